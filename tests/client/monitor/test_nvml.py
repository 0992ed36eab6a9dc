"""NvmlMonitor with the real pynvml on a stub of NVML."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise.errors import ImplausibleError, MonitorError, Remedy
from wattwise.monitor import NvmlMonitor, Window, default_monitor, gpu_group, monitor_kinds
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
    """A window in which the first GPU uses 1.5 J and the second 40 J."""
    monitor = NvmlMonitor(indices)
    monitor.begin_window("epoch")
    machine.show(used(FIRST, 1.5), used(SECOND, 40))
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
    machine.show(used(FIRST, 31))
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
    machine.show(replace(OLD, power_mw=450_000))
    wait_for_power_reads(machine, 2)
    machine.show(OLD)
    wait_for_power_reads(machine, 2)
    return monitor.end_window("epoch")


def case_impossible_power(machine: Machine, power_mw: int) -> tuple[list[str], Window]:
    """Two windows with an impossible power in between: their errors; and a window after that."""
    monitor = NvmlMonitor()
    monitor.begin_window("one")
    monitor.begin_window("another")
    machine.show(replace(OLD, power_mw=power_mw))
    wait_for_power_reads(machine, 2)
    machine.show(OLD)
    refusals = []
    for name in ("one", "another"):
        with pytest.raises(ImplausibleError) as refusal:
            monitor.end_window(name)
        refusals.append(str(refusal.value))
    monitor.begin_window("one")
    return refusals, monitor.end_window("one")


def case_kind_of(indices: list[int]) -> str:
    """The kind of a monitor of some GPUs."""
    return NvmlMonitor(indices).kind


def case_power() -> float:
    """The maximum power of a job on the GPUs."""
    return gpu_group(NvmlMonitor()).max_power_watts


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
    assert run(case_energy, machine) == ([0, 1], 41.5)


def test_chosen_gpus(machine: Machine, run: Runner) -> None:
    """Only the selected GPUs are measured."""
    assert run(case_energy, machine, [1]) == ([1], 40.0)


@pytest.mark.parametrize("visible", ["1,0", "GPU-bbbb,GPU-aaaa", "GPU-b"])
def test_indices_count_visible_gpus(
    machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """Index 0 is the first GPU that CUDA_VISIBLE_DEVICES names, by number or by UUID."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert run(case_energy, machine, [0]) == ([0], 40.0)


def test_all_visible_gpus_by_default(machine: Machine, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without indices, all GPUs that CUDA shows are measured."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert run(case_energy, machine) == ([0], 40.0)


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
    assert run(case_overlap, machine) == (11.0, 30.0)


def test_lost_gpu(machine: Machine, run: Runner) -> None:
    """If a GPU is lost within a window, the error names it; the monitor works again once the GPU does."""
    message, energy = run(case_lost_gpu, machine)
    assert "Stub V100 (GPU-aaaa)" in message
    assert "lost" in message
    assert energy == 3.0


def test_lost_gpu_of_others(machine: Machine, run: Runner) -> None:
    """The error of a broken GPU is raised only if this GPU is selected."""
    machine.show(FIRST, SECOND, StubGpu(uuid="lost"))
    assert run(case_energy, machine, [0, 1]) == ([0, 1], 41.5)


def test_a_counter_that_does_not_change(machine: Machine, run: Runner) -> None:
    """If a counter does not change, energy is power times time, which is logged once."""
    window, messages = run(case_counter_shows, machine, FIRST, used(SECOND, 20))
    assert window.total_energy == pytest.approx(100 * window.time + 20)
    (message,) = messages
    assert "counter of Stub V100 (GPU-aaaa) does not change" in message


@pytest.mark.parametrize("millijoules", [0, 7_000 + 10**9])
@pytest.mark.parametrize("power_mw", [100_000, None])
def test_a_counter_that_jumps(machine: Machine, run: Runner, millijoules: int, power_mw: int | None) -> None:
    """A counter that was reset, or that grew faster than twice the GPU's limit, is an error that names the GPU."""
    with pytest.raises(ImplausibleError, match=r"counter of Stub V100 \(GPU-aaaa\)"):
        run(case_counter_shows, machine, replace(FIRST, energy_mj=millijoules, power_mw=power_mw), SECOND)


@pytest.mark.parametrize("power_mw", [501_000, 3_700_000_000])
def test_an_impossible_power(machine: Machine, run: Runner, power_mw: int) -> None:
    """A power above twice the GPU's limit spoils every window that is open, and none that begins later."""
    machine.show(OLD)
    refusals, later = run(case_impossible_power, machine, power_mw)
    assert all("Stub V100 (GPU-cccc)" in refusal for refusal in refusals)
    assert later.total_energy == pytest.approx(250 * later.time)


def test_a_gpu_without_power_beside_others(machine: Machine, run: Runner) -> None:
    """If one of several GPUs cannot be measured, the error names it and says how to leave it out."""
    machine.show(FIRST, replace(OLD, name="Stub GT 710", power_mw=None))
    with pytest.raises(MonitorError, match=r"Stub GT 710 \(GPU-cccc\) does not report its power") as refusal:
        run(NvmlMonitor)
    assert refusal.value.remedies[0] is Remedy.SELECT_GPUS
    assert run(case_kind_of, [0]) == "nvml"


def test_a_power_limit_of_0(machine: Machine, run: Runner) -> None:
    """A GPU whose limit is 0 W is an error of the job's configuration that names the GPU; its windows are measured."""
    machine.show(replace(FIRST, highest_limit_mw=0, enforced_limit_mw=0))
    with pytest.raises(MonitorError, match=r"Stub V100 \(GPU-aaaa\) reports a power limit of 0 W") as refusal:
        run(case_power)
    assert set(refusal.value.remedies) == {Remedy.GPU_GROUP, Remedy.SELECT_GPUS}
    assert run(case_counter_shows, machine, used(FIRST, 1000))[0].total_energy == 1000


def test_the_enforced_limit_in_place_of_0(machine: Machine, run: Runner) -> None:
    """If the highest limit is 0 W, the enforced one counts."""
    machine.show(replace(FIRST, highest_limit_mw=0))
    assert run(case_power) == 200


def test_a_name_that_is_not_utf8(machine: Machine, run: Runner) -> None:
    """A name in another encoding is shown with escapes, and two such names differ."""
    machine.show(replace(FIRST, name="\udcf8\udc95"), replace(SECOND, name="\udcf8\udc96\x07"))
    assert run(case_default) == r"NvmlMonitor(\xf8\x95 (GPU-aaaa), \xf8\x96? (GPU-bbbb))"


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
    assert run(case_energy, machine, [1]) == ([1], 40.0)


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
    # The peak's sample is at least a tenth of a second from its neighbour: 200 W too much, on average half of it.
    assert 250 * window.time + 8 < window.total_energy < 450 * window.time


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
