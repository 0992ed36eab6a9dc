"""One rank that prints its monitor: `python -m tests.client.training.monitor_rank ADDRESS RANK PORT`."""

from __future__ import annotations

import sys

import torch.distributed as dist
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec


def main(address: str, rank: str, port: str) -> None:
    """Gets the batch size and prints the kind of monitor."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
    job = JobSpec(job_id_prefix="ranks", job_id="ranks", batch_sizes=[64], default_batch_size=64, target_metric=0.9)
    # The default monitor of rank 1 would fail on a machine without GPUs, and must not be used.
    with BatchSizeOptimizer(address, job, monitor=EstimateMonitor(watts=100) if rank == "0" else None) as bso:
        bso.get_batch_size()
        sys.stdout.write(f"{bso.trial.monitor_kind}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
