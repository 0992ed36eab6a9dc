"""NvmlMonitor with the real pynvml on a stub of NVML."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor, Window, default_monitor, monitor_kinds
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS, PowerIntegral

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu, runner

FIRST = StubGpu(uuid="GPU-aaaa", energy_mj=7_000)
SECOND = StubGpu(uuid="GPU-bbbb", energy_mj=90_000)
OLD = StubGpu(uuid="GPU-cccc", energy_mj=None, power_mw=250_000)


def used(gpu: StubGpu, joules: float) -> StubGpu:
    """The GPU after it has used `joules` more."""
    assert isinstance(gpu.energy_mj, int)
    return replace(gpu, energy_mj=gpu.energy_mj + round(joules * 1000))


def pass_time() -> None:
    """Waits until an open window is long enough for counters."""
    time.sleep(COUNTER_SECONDS)


# Functions named case_… run in their own process.


def case_energy(machine: Machine, indices: list[int] | None = None) -> tuple[list[int], float]:
    """A window in which the first GPU uses 1.5 J and the second 5000 J."""
    monitor = NvmlMonitor(indices)
    monitor.begin_window("epoch")
    machine.show(used(FIRST, 1.5), used(SECOND, 5000))
    pass_time()
    return monitor.gpu_indices, monitor.end_window("epoch").total_energy


def case_kind(machine: Machine, indices: list[int]) -> str:
    """The kind of a monitor of some of three GPUs, of which the last has no counter."""
    machine.show(FIRST, SECOND, OLD)
    return str(monitor_kinds(NvmlMonitor(indices)))


def case_overlap(machine: Machine) -> tuple[float, float]:
    """Two windows that overlap by 10 J."""
    monitor = NvmlMonitor([0])
    monitor.begin_window("early")
    machine.show(used(FIRST, 1))
    monitor.begin_window("late")
    machine.show(used(FIRST, 11))
    pass_time()
    early = monitor.end_window("early")
    machine.show(used(FIRST, 111))
    return early.total_energy, monitor.end_window("late").total_energy


def case_lost_gpu(machine: Machine) -> tuple[str, float]:
    """The GPU is lost within a window and comes back: the error, and the energy of the next window of this name."""
    monitor = NvmlMonitor([0])
    monitor.begin_window("epoch")
    machine.show(StubGpu(uuid="lost"), SECOND)
    with pytest.raises(MonitorError) as refusal:
        monitor.end_window("epoch")
    machine.show(FIRST, SECOND)
    monitor.begin_window("epoch")
    machine.show(used(FIRST, 3), SECOND)
    pass_time()
    return str(refusal.value), monitor.end_window("epoch").total_energy


def case_counter_shows(machine: Machine, *gpus: StubGpu) -> tuple[Window, list[str]]:
    """A window at whose end the GPUs are these, and the log messages."""
    messages = logged()
    monitor = NvmlMonitor()
    monitor.begin_window("epoch")
    pass_time()
    machine.show(*gpus)
    return monitor.end_window("epoch"), messages


def case_short_window(machine: Machine, begun: StubGpu, ended: StubGpu) -> tuple[Window, list[str]]:
    """A window that is too short for counters, and the log messages; repeated until this machine is fast enough."""
    messages = logged()
    monitor = NvmlMonitor([0])
    while True:
        machine.show(begun)
        monitor.begin_window("step")
        machine.show(ended)
        window = monitor.end_window("step")
        if window.time < COUNTER_SECONDS:
            return window, messages


def logged() -> list[str]:
    """The list that receives Wattwise's log messages from now on."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("wattwise").addHandler(handler)
    return messages


def case_constant_power(machine: Machine) -> Window:
    """A window with at least one reading of power between its ends."""
    monitor = NvmlMonitor()
    monitor.begin_window("epoch")
    wait_for_power_reads(machine, 1)
    return monitor.end_window("epoch")


def case_power_peak(machine: Machine) -> Window:
    """A window over a GPU without a counter that draws 250 W at both ends, and more in between."""
    monitor = NvmlMonitor()
    monitor.begin_window("epoch")
    machine.show(replace(OLD, power_mw=750_000))
    wait_for_power_reads(machine, 2)
    machine.show(OLD)
    wait_for_power_reads(machine, 2)
    return monitor.end_window("epoch")


def wait_for_power_reads(machine: Machine, count: int) -> None:
    """Waits until the power has been read `count` more times."""
    wanted = machine.power_reads() + count
    deadline = time.monotonic() + 60
    while machine.power_reads() < wanted:
        assert time.monotonic() < deadline, "the power is not read within a window"
        time.sleep(0.01)


def case_default() -> str:
    """The default monitor's repr."""
    return repr(default_monitor())


def case_without_pynvml() -> str:
    """The same without nvidia-ml-py."""
    sys.modules["pynvml"] = None  # type: ignore[assignment]  # makes the import fail
    return repr(default_monitor())


def test_counters_are_summed_in_joules(machine: Machine, run: Runner) -> None:
    """A window's energy is the growth of all GPUs' millijoule counters, in joules."""
    assert run(case_energy, machine) == ([0, 1], 5001.5)


def test_chosen_gpus(machine: Machine, run: Runner) -> None:
    """Only the selected GPUs are measured."""
    assert run(case_energy, machine, [1]) == ([1], 5000.0)


@pytest.mark.parametrize("visible", ["1,0", "GPU-bbbb,GPU-aaaa", "GPU-b"])
def test_indices_count_visible_gpus(
    machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """Index 0 is the first GPU that CUDA_VISIBLE_DEVICES names, by number or by UUID."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert run(case_energy, machine, [0]) == ([0], 5000.0)


def test_all_visible_gpus_by_default(machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without indices, all GPUs that CUDA shows are measured."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert run(case_energy, machine) == ([0], 5000.0)


@pytest.mark.parametrize(
    ("indices", "message"), [([2], r"visible GPUs are \[0, 1\]"), ([], "is wrong"), ([0, 0], "twice")]
)
@pytest.mark.usefixtures("machine")
def test_wrong_indices(run: Runner, indices: list[int], message: str) -> None:
    """Indices that are out of range, missing or repeated are refused."""
    with pytest.raises(MonitorError, match=message):
        run(NvmlMonitor, indices)


def test_windows_overlap(machine: Machine, run: Runner) -> None:
    """Overlapping windows each measure their own time span."""
    assert run(case_overlap, machine) == (11.0, 110.0)


def test_lost_gpu(machine: Machine, run: Runner) -> None:
    """If a GPU is lost within a window, the error names it; the monitor works again once the GPU does."""
    message, energy = run(case_lost_gpu, machine)
    assert "Stub V100 (GPU-aaaa)" in message
    assert "lost" in message
    assert energy == 3.0


def test_lost_gpu_of_others(machine: Machine, run: Runner) -> None:
    """The error of a broken GPU is raised only if this GPU is selected."""
    machine.show(FIRST, SECOND, StubGpu(uuid="lost"))
    assert run(case_energy, machine, [0, 1]) == ([0, 1], 5001.5)


@pytest.mark.parametrize(("millijoules", "fault"), [(0, "went backwards"), (7_000, "does not change")])
def test_wrong_counter(machine: Machine, run: Runner, millijoules: int, fault: str) -> None:
    """After a counter was reset or did not change, energy is power times time, which is logged once."""
    window, messages = run(case_counter_shows, machine, replace(FIRST, energy_mj=millijoules), used(SECOND, 20))
    assert window.total_energy == pytest.approx(100 * window.time + 20)
    (message,) = messages
    assert f"counter of Stub V100 (GPU-aaaa) {fault}" in message


def test_a_reset_counter_without_power(machine: Machine, run: Runner) -> None:
    """A counter that was reset on a GPU that does not report its power is an error, not a negative energy."""
    with pytest.raises(MonitorError, match=r"GPU-aaaa\) went backwards, and .* does not report its power"):
        run(case_counter_shows, machine, replace(FIRST, energy_mj=0, power_mw=None), SECOND)


@pytest.mark.parametrize("joules", [0, 2])
def test_window_too_short_for_the_counter(machine: Machine, run: Runner, joules: int) -> None:
    """The energy of a short window is power times time, whatever the counter shows, and nothing is logged."""
    window, messages = run(case_short_window, machine, FIRST, used(FIRST, joules))
    assert window.total_energy == pytest.approx(100 * window.time)
    assert messages == []


def test_a_short_window_without_power(machine: Machine, run: Runner) -> None:
    """Without power readings, the counter is used however short the window is."""
    gpu = replace(FIRST, power_mw=None)
    assert run(case_short_window, machine, gpu, used(gpu, 2))[0].total_energy == 2


def test_mig(machine: Machine, run: Runner) -> None:
    """A GPU that is split into MIG slices is refused by name, if it is selected."""
    machine.show(replace(FIRST, mig_mode=1), replace(SECOND, mig_mode=0))
    with pytest.raises(MonitorError, match=r"Stub V100 \(GPU-aaaa\) is split into MIG.*EstimateMonitor"):
        run(NvmlMonitor)
    assert run(case_energy, machine, [1]) == ([1], 5000.0)


@pytest.mark.parametrize(("indices", "kind"), [([0, 1], "nvml"), ([2], "nvml-polled"), ([0, 2], "nvml-polled")])
def test_kind(machine: Machine, run: Runner, indices: list[int], kind: str) -> None:
    """If the power of any GPU is polled, the kind is "nvml-polled"."""
    assert run(case_kind, machine, indices) == kind


def test_power_is_integrated_without_a_counter(machine: Machine, run: Runner) -> None:
    """The energy of a GPU without a counter is its power times the window's length."""
    machine.show(OLD)
    window = run(case_constant_power, machine)
    assert window.time > 0
    assert window.total_energy == pytest.approx(250 * window.time)


def test_old_and_new_gpus_together(machine: Machine, run: Runner) -> None:
    """Counted and integrated energies are summed: two GPUs draw 400 W, and one counts 3 J."""
    others = (OLD, replace(OLD, uuid="GPU-dddd", power_mw=150_000))
    machine.show(FIRST, *others)
    window, _ = run(case_counter_shows, machine, used(FIRST, 3), *others)
    assert window.total_energy == pytest.approx((250 + 150) * window.time + 3)


def test_power_is_read_within_the_window(machine: Machine, run: Runner) -> None:
    """Power between a window's ends is part of its energy."""
    machine.show(OLD)
    window = run(case_power_peak, machine)
    # The peak's sample is at least a tenth of a second from its neighbour: 500 W too much, on average half of it.
    assert 250 * window.time + 20 < window.total_energy < 750 * window.time


def test_trapezoids() -> None:
    """Power is interpolated linearly between two samples."""
    integral = PowerIntegral()
    assert [integral.add(10, 100), integral.add(12, 200), integral.add(13, 0)] == [0, 300, 400]


@pytest.mark.usefixtures("machine")
def test_default_monitor(run: Runner) -> None:
    """The default monitor is NVML over all visible GPUs."""
    assert run(case_default) == "NvmlMonitor(Stub V100 (GPU-aaaa), Stub V100 (GPU-bbbb))"


def expect_alternatives(run: Runner, cause: str) -> None:
    """Asserts that the default monitor fails for this cause, and that the error names the alternatives."""
    with pytest.raises(MonitorError, match=cause) as refusal:
        run(case_default)
    for alternative in ("EstimateMonitor(watts=...)", "RaplMonitor()", "ZeusMonitor"):
        assert alternative in str(refusal.value)


@pytest.mark.usefixtures("machine")
def test_no_library(tmp_path: Path) -> None:
    """Without NVML, the error names the alternatives."""
    (tmp_path / "libnvidia-ml.so.1").touch()  # an invalid library, found before the machine's own
    with runner(tmp_path) as run:
        expect_alternatives(run, "Library Not Found")


def test_no_driver(machine: Machine, run: Runner) -> None:
    """Without the NVIDIA driver, the error names the alternatives."""
    machine.file.unlink()
    expect_alternatives(run, "Driver Not Loaded")


def test_no_gpu(machine: Machine, run: Runner) -> None:
    """On a machine without a GPU, the error names the alternatives."""
    machine.show()
    expect_alternatives(run, "has no NVIDIA GPU;")


@pytest.mark.usefixtures("machine")
def test_hidden_gpus(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every GPU is hidden, the error names the variable and the alternatives."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    expect_alternatives(run, "CUDA_VISIBLE_DEVICES=''")


@pytest.mark.usefixtures("machine")
def test_no_package(run: Runner) -> None:
    """Without nvidia-ml-py, the error names the package and an alternative."""
    with pytest.raises(MonitorError, match=r"nvidia-ml-py is not installed.*EstimateMonitor"):
        run(case_without_pynvml)
