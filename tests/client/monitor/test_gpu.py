"""The cases of `gpu_cases` on the stub and, marked `gpu`, on a GPU of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor

from tests.client.monitor.gpu_cases import (
    Load,
    case_comparison,
    case_names,
    case_nested_windows,
    case_short_windows,
    case_units,
    case_visible_by_uuid,
)
from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu

LOADED = [case_units, case_nested_windows, case_short_windows]


def name_of(case: Callable[..., object]) -> str:
    """The name of a case in the ids of tests."""
    return case.__name__.removeprefix("case_")


@pytest.fixture
def counting(machine: Machine) -> None:
    """A GPU that draws 250 W, with a counter that steps every 20 ms."""
    machine.show(StubGpu(energy_mj="+", power_mw=250_000))


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("case", LOADED, ids=name_of)
def test_over_the_stub(run: Runner, case: Callable[[Load], None]) -> None:
    """The case holds on the stub, whose load is the time that passes."""
    run(case, time.sleep)


@pytest.mark.usefixtures("counting")
def test_counter_and_power_over_the_stub(run: Runner) -> None:
    """Counter and polled power agree up to the counter's steps."""
    assert run(case_comparison, time.sleep, 1.0, 0.05).counted == pytest.approx(250, rel=0.1)


@pytest.mark.usefixtures("counting")
def test_names_over_the_stub(run: Runner) -> None:
    """The case of names holds on the stub."""
    run(case_names)


@pytest.mark.usefixtures("counting")
def test_uuids_over_the_stub(run: Runner) -> None:
    """The case of UUIDs holds on the stub."""
    run(case_visible_by_uuid)


@pytest.fixture
def gpu() -> NvmlMonitor:
    """This machine's GPUs."""
    try:
        return NvmlMonitor()
    except MonitorError as error:
        pytest.skip(f"no GPU to measure: {error}")


@pytest.fixture
def load() -> Load:
    """Multiplies matrices with PyTorch; without PyTorch or its CUDA, only time passes."""
    try:
        import torch  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return time.sleep
    if not torch.cuda.is_available():
        return time.sleep
    matrix = torch.randn(4096, 4096, device="cuda:0")

    def multiply(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            matrix @ matrix
            torch.cuda.synchronize(0)

    return multiply


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("case", LOADED, ids=name_of)
def test_on_a_gpu(load: Load, case: Callable[[Load], None]) -> None:
    """The case holds on a real GPU under load."""
    case(load)


@pytest.mark.gpu
def test_counter_and_power_on_a_gpu(gpu: NvmlMonitor, load: Load) -> None:
    """Counter and polled power agree within 10%; GPU, NVIDIA driver and both energies are printed."""
    import pynvml  # noqa: PLC0415 - for the version of the NVIDIA driver

    result = case_comparison(load, 10.0, 0.1)
    busy = "idle" if load is time.sleep else "multiplying matrices"
    print(  # noqa: T201 - the purpose of this test
        f"\n{gpu!r}, NVIDIA driver {pynvml.nvmlSystemGetDriverVersion()}, {busy} for {result.seconds:.1f} s: counter "
        f"{result.counted:.1f} J, polled power {result.polled:.1f} J ({result.polled / result.counted - 1:+.2%})"
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_names_on_a_gpu() -> None:
    """The case of names holds on a real GPU."""
    case_names()


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_uuids_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case of UUIDs holds on a real GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))  # restores it, too
    case_visible_by_uuid()


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_queued_work_is_waited_for() -> None:
    """A window that is ended while kernels are queued lasts until they are done."""
    torch = pytest.importorskip("torch", reason="needs PyTorch with CUDA")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch with CUDA")
    matrix = torch.randn(8192, 8192, device="cuda:0")
    monitor = NvmlMonitor([0])
    done = torch.cuda.Event()
    monitor.begin_window("epoch")
    for _ in range(50):
        matrix @ matrix
    done.record()
    assert not done.query(), "the GPU was too fast for this test"
    monitor.end_window("epoch")
    assert done.query()
