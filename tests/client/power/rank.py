"""One rank of a training with power limits: `python -m tests.client.power.rank ADDRESS FILE RANK PORT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from wattwise import BatchSizeOptimizer, NvmlMonitor, PowerLimitOptimizer

from tests.client.monitor.nvml_stub import Machine
from tests.client.power.training import WALK_STEPS, Training, job_id_of, power_job, visited


def main(address: str, file: str, rank: str, port: str) -> None:
    """Trains the steps of a walk; prints the limit of its optimizer and, on rank 0, the visited limits."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
    machine = Machine(Path(file))
    if rank == "0":
        training = Training(machine, address)
        train(training.bso, training.plo, training.step)
        sys.stdout.write(f"{training.plo.limit_watts_per_gpu} {visited(machine)}\n")
    else:
        # Rank 0 simulates, sets and measures the GPUs, although this rank sees them too.
        bso = BatchSizeOptimizer(address, power_job(job_id_of(machine)), monitor=NvmlMonitor())
        plo = PowerLimitOptimizer(bso, profile_warmup_iters=0, profile_measure_iters=1)
        bso.get_batch_size()
        bso.on_train_begin()

        def step() -> None:
            plo.on_step_begin()
            plo.on_step_end()

        train(bso, plo, step)
        sys.stdout.write(f"{plo.limit_watts_per_gpu}\n")
    dist.destroy_process_group()


def train(bso: BatchSizeOptimizer, plo: PowerLimitOptimizer, step: Callable[[], object]) -> None:
    """An epoch in step with the other rank."""
    for _ in range(WALK_STEPS):
        step()
        dist.barrier()
    plo.on_epoch_end()
    bso.on_evaluate(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
