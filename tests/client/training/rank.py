"""One rank of a training with torch.distributed: `python -m tests.client.training.rank ADDRESS RANK PORT [OPTIONS]`."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, data_loader
from wattwise.errors import WattwiseError
from wattwise.training import arrivals


def _run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("no room on this rank")


def _crash() -> None:
    raise RuntimeError("a bug on this rank")


def _be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _be_preempted() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _wait() -> None:
    while True:
        time.sleep(0.05)


ENDS: dict[str, Callable[[], None]] = {
    "out-of-memory": _run_out_of_memory,
    "crash": _crash,
    "killed": _be_killed,
    "preempted": _be_preempted,
    "waits": _wait,
}

METRICS = {"first": (0.25, 0.0), "mean": (0.5, 0.0), "sum": (0.25, 0.0), "min": (0.9, 0.25), "max": (0.0, 0.25)}
"""By reduction: the factors by which each rank's metric grows per epoch. The target 0.9 is reached in epoch 4."""


def main() -> None:
    """Trains until the trial is over or the rank ends in the given way; prints the batch size, epochs and the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("rank", type=int)
    parser.add_argument("port")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--reduce", default="first")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--late", nargs=2, metavar=("RANK", "CALL"), default=("", ""))
    parser.add_argument("--end", nargs=2, metavar=("RANK", "END"), default=("", ""))
    parser.add_argument("--metric", nargs=2, metavar=("RANK", "METRIC"), default=("", ""))
    given = parser.parse_args()
    place, patience = f"tcp://127.0.0.1:{given.port}", timedelta(seconds=given.timeout)
    dist.init_process_group("gloo", init_method=place, rank=given.rank, world_size=given.world_size, timeout=patience)
    job = JobSpec(
        job_id_prefix="ranks",
        job_id="ranks",
        batch_sizes=given.batch_sizes,
        default_batch_size=given.batch_sizes[-1],
        target_metric=0.9,
        max_epochs=8,
    )
    # Rank 1 must not use its default monitor, which fails here.
    monitor = EstimateMonitor(watts=100) if given.rank == 0 else None
    bso = BatchSizeOptimizer(given.address, job, monitor=monitor, timeout=2, reduce_metric=given.reduce)
    if given.late[0]:
        arrivals.WARN_SECONDS = 0.0
    if given.late[0] == str(given.rank):
        make_late(bso, given.late[1])
    try:
        _train(bso, given)
    except WattwiseError as error:
        _print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def make_late(bso: BatchSizeOptimizer, call: str) -> None:
    """Lets the first of the calls of this name wait for a line."""
    punctual = getattr(bso, call)

    def late(*given: float) -> object:
        setattr(bso, call, punctual)
        sys.stdin.readline()
        return punctual(*given)

    setattr(bso, call, late)


def _print(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _train(bso: BatchSizeOptimizer, given: argparse.Namespace) -> None:
    if given.checkpoint and given.checkpoint.exists():
        bso.load_state_dict(torch.load(given.checkpoint))
    _print(bso.get_batch_size())
    loader = data_loader(bso, torch.arange(256), shuffle=True)
    for epoch in bso.epochs():
        batches = [batch.tolist() for batch in loader]
        _print(f"{epoch} {len(batches[0])} {sum(map(sum, batches))} {batches[0][:3]}")
        if epoch == 2 and given.end[0] == str(given.rank):
            ENDS[given.end[1]]()
        metric = METRICS[given.reduce][given.rank] * epoch
        if given.metric[0] == str(given.rank):
            metric = {"nan": math.nan, "none": None}[given.metric[1]]  # type: ignore[assignment]  # wrong on purpose
        bso.on_evaluate(metric)
        if given.checkpoint and given.rank == given.world_size - 1:
            # Every rank has the whole state.
            torch.save(bso.state_dict(), given.checkpoint)
    _print(f"stopped after epoch {bso.last_epoch}")


if __name__ == "__main__":
    main()
