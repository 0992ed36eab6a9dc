"""One rank that prints its monitor: `python -m tests.client.training.monitor_rank ADDRESS RANK PORT`."""

from __future__ import annotations

import sys

import torch.distributed as dist
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec


def main(address: str, rank: str, port: str) -> None:
    """Asks for the batch size, prints the kind of monitor, and ends."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
    job = JobSpec(job_id_prefix="ranks", job_id="ranks", batch_sizes=[64], default_batch_size=64)
    # Only rank 0's monitor may be used: the other's would fail.
    with BatchSizeOptimizer(address, job, monitor=EstimateMonitor(watts=100) if rank == "0" else None) as bso:
        bso.get_batch_size()
        sys.stdout.write(f"{bso.trial.monitor_kind}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
