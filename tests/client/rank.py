"""One rank of a training with torch.distributed: `python -m tests.client.rank ADDRESS RANK PORT END`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, WattwiseError


def main(address: str, rank: str, port: str, end: str) -> None:
    """Trains until told to stop, or to the named end; prints the batch size, and the epoch and the way it ended in."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
    job = JobSpec(
        job_id_prefix="ranks", job_id="ranks", batch_sizes=[64, 128], default_batch_size=128, target_metric=0.9
    )
    # Only rank 0's meter may be used: the other's would fail.
    monitor = EstimateMonitor(watts=100) if rank == "0" else None
    bso = BatchSizeOptimizer(address, job, monitor=monitor, timeout=2)
    try:
        sys.stdout.write(f"{bso.get_batch_size()}\n")
        bso.on_train_begin()
        epoch = 0
        while not bso.training_finished:
            epoch += 1
            if end == "out-of-memory" and rank == "1":
                raise torch.OutOfMemoryError("no room on this rank")
            # The ranks disagree on the metric; rank 0's counts.
            bso.on_evaluate(0.25 * epoch if rank == "0" else 0.0)
        sys.stdout.write(f"stopped after epoch {epoch}\n")
    except WattwiseError as error:
        sys.stdout.write(f"{type(error).__name__}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
