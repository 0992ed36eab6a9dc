"""A GPU that is lost while a training runs, on a stub of NVML and with the real server."""

from __future__ import annotations

import time

import pytest
from wattwise import BatchSizeOptimizer, Client, NvmlMonitor, v1
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS
from wattwise.rpc.calls import trial_id

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu
from tests.client.training.script import job_spec

OTHER = StubGpu(uuid="GPU-bbbb")


def case_training(machine: Machine, address: str) -> bytes:
    """Three epochs on two GPUs: the first uses 20 J, in the second one GPU is lost; returns the trial's id."""
    with BatchSizeOptimizer(address, job_spec(gpu=None), monitor=NvmlMonitor()) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        time.sleep(COUNTER_SECONDS)
        machine.show(StubGpu(energy_mj=15_000), StubGpu(uuid="GPU-bbbb", energy_mj=5_000))
        bso.on_evaluate(0.1)
        machine.show(StubGpu(energy_mj=15_000), StubGpu(uuid="lost"))
        bso.on_evaluate(0.2)
        bso.on_evaluate(0.3)
        return trial_id(bso.trial).SerializeToString()


def test_training_continues_after_a_gpu_is_lost(grpc_addr: str, machine: Machine, run: Runner) -> None:
    """After a GPU is lost within a window, the training continues; its energy is the mean power so far times time."""
    machine.show(StubGpu(), OTHER)
    trial = run(case_training, machine, grpc_addr)
    with Client(grpc_addr) as client:
        first, second, third = client.measurements(v1.TrialId.FromString(trial))
    watts = 20 / first.time_seconds
    assert first.energy_joules == 20
    for later in (second, third):
        assert later.energy_joules == pytest.approx(watts * later.time_seconds)
