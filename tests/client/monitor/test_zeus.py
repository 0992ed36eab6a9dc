"""The real ZeusMonitor in the real client with the real server, on stubs of NVML and CUDA."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.rpc.calls import trial_id

from tests.client.monitor.cuda_edge import CudaEdge
from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu
from tests.client.training.script import job_spec

pytestmark = [
    pytest.mark.zeus,
    pytest.mark.skipif(find_spec("zeus") is None, reason="needs Zeus, in its own environment: make test-zeus"),
]


def show(machine: Machine, joules: float) -> None:
    """Two GPUs that have used `joules` each."""
    millijoules = round(joules * 1000)
    machine.show(*(StubGpu(uuid=uuid, energy_mj=millijoules) for uuid in ("GPU-aaaa", "GPU-bbbb")))


def case_training(machine: Machine, address: str, job_id: str) -> tuple[bytes, list[int]]:
    """Two epochs, in which each GPU uses 7 J and 20 J: the trial's id, and the devices that Zeus waited for."""
    import torch  # noqa: PLC0415 - only installed with Zeus
    from zeus.monitor import ZeusMonitor  # noqa: PLC0415

    edge = CudaEdge(torch, pytest.MonkeyPatch())
    monitor: Any = ZeusMonitor()
    spec = job_spec(job_id=job_id, gpu=None)
    with BatchSizeOptimizer(address, spec, monitor=monitor) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        for joules in (7, 27):
            show(machine, joules)
            bso.on_evaluate(0.1)
        return trial_id(bso.trial).SerializeToString(), edge.waited


def test_zeus_monitor(grpc_addr: str, machine: Machine, run: Runner) -> None:
    """The server has energy and time of Zeus's windows, and the job's GPUs are those that Zeus measures."""
    show(machine, 0)
    trial, waited = run(case_training, machine, grpc_addr, "test-zeus")
    with Client(grpc_addr) as client:
        first, second = client.measurements(v1.TrialId.FromString(trial))
        gpu = client.get_job("test-zeus").job.spec.gpus[0]
    assert (first.energy_joules, second.energy_joules) == (14.0, 54.0)
    assert 0 < first.time_seconds < second.time_seconds < 60
    assert gpu == v1.GpuGroup(gpu_model="Stub V100", count=2, max_power_watts_per_gpu=250.0)
    assert set(waited) == {0, 1}
