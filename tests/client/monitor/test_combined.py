"""CombinedMonitor over real monitors, on a stub of NVML and on folders like the kernel's."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import (
    CombinedMonitor,
    EnergyQuality,
    EstimateMonitor,
    MonitorKinds,
    NvmlMonitor,
    RaplMonitor,
    Window,
    gpu_group,
)
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS
from wattwise.rules import GpuGroup

from tests.client.monitor.nvml_stub import Machine, Runner, StubGpu
from tests.client.monitor.test_rapl import count, make_zone


def both(root: Path) -> CombinedMonitor:
    """The monitors of a machine's GPUs and of its processors."""
    return CombinedMonitor(NvmlMonitor(), RaplMonitor(root))


def case_overlap(machine: Machine, root: Path) -> tuple[float, float]:
    """Two windows that overlap by 3 J of a GPU and 20 J of a processor."""
    counter = root / "intel-rapl:0" / "energy_uj"
    monitor = both(root)
    monitor.begin_window("early")
    monitor.begin_window("late")
    machine.show(StubGpu(energy_mj=3_000))
    count(counter, 20_000_000)
    time.sleep(COUNTER_SECONDS)
    early = monitor.end_window("early")
    machine.show(StubGpu(energy_mj=7_000))
    count(counter, 70_000_000)
    return early.total_energy, monitor.end_window("late").total_energy


def case_gpu(root: Path) -> tuple[str, list[int], GpuGroup, str]:
    """The kinds, GPUs and repr of a combined monitor."""
    monitor = both(root)
    return str(monitor.kinds), monitor.gpu_indices, gpu_group(monitor), repr(monitor)


def case_lost_gpu(machine: Machine, root: Path) -> tuple[str, str]:
    """The errors of a combined monitor whose GPU is lost, and of the other monitor if its window is ended again."""
    rapl = RaplMonitor(root)
    monitor = CombinedMonitor(NvmlMonitor(), rapl)
    monitor.begin_window("epoch")
    machine.show(StubGpu(uuid="lost"))
    with pytest.raises(MonitorError) as lost:
        monitor.end_window("epoch")
    with pytest.raises(MonitorError) as closed:
        rapl.end_window("epoch")
    return str(lost.value), str(closed.value)


@pytest.fixture
def root(machine: Machine, tmp_path: Path) -> Path:
    """One GPU, and a powercap folder with one package."""
    machine.show(StubGpu())
    make_zone(tmp_path, "intel-rapl:0", "package-0", constraint_0_max_power_uw=150_000_000)
    return tmp_path


def test_energies_add_up(machine: Machine, root: Path, run: Runner) -> None:
    """Energies are summed, and overlapping windows each measure their own time span."""
    assert run(case_overlap, machine, root) == (23.0, 77.0)


def test_the_job_is_that_of_the_gpus(root: Path, run: Runner) -> None:
    """Kinds and repr name both monitors; GPUs and maximum power are those of the GPU monitor."""
    kind, indices, config, text = run(case_gpu, root)
    assert (kind, indices) == ("nvml+rapl", [0])
    assert config == GpuGroup(gpu_model="Stub V100", count=1, max_power_watts_per_gpu=250.0)
    assert text == "CombinedMonitor(NvmlMonitor(Stub V100 (GPU-aaaa)), RaplMonitor(package-0))"


def test_one_monitor_fails_at_the_end(machine: Machine, root: Path, run: Runner) -> None:
    """The error of one monitor is raised, and the window of the other is still ended."""
    lost, closed = run(case_lost_gpu, machine, root)
    assert "GPU-aaaa" in lost
    assert "'epoch' is not open" in closed


def test_one_monitor_fails_at_the_beginning(root: Path) -> None:
    """If one monitor fails, no monitor has an open window."""
    estimate, rapl = EstimateMonitor(watts=10), RaplMonitor(root)
    monitor = CombinedMonitor(estimate, rapl)
    counter = root / "intel-rapl:0" / "energy_uj"
    counter.unlink()
    with pytest.raises(MonitorError, match="energy_uj"):
        monitor.begin_window("epoch")
    count(counter, 0)
    monitor.begin_window("epoch")
    count(counter, 5_000_000)
    window = monitor.end_window("epoch")
    assert window.total_energy == pytest.approx(5 + 10 * window.time, abs=1e-3)


def test_names(root: Path) -> None:
    """A name with an open window cannot be begun, one without cannot be ended, and open windows stay open."""
    monitor = CombinedMonitor(RaplMonitor(root), EstimateMonitor(watts=1))
    with pytest.raises(MonitorError, match="'epoch' is not open"):
        monitor.end_window("epoch")
    monitor.begin_window("epoch")
    with pytest.raises(MonitorError, match="'epoch' is already open"):
        monitor.begin_window("epoch")
    assert monitor.end_window("epoch").time > 0


def test_window_of_one_monitor_is_already_open(root: Path) -> None:
    """A window that was opened on one of the monitors before is not ended."""
    rapl, estimate = RaplMonitor(root), EstimateMonitor(watts=1)
    estimate.begin_window("epoch")
    monitor = CombinedMonitor(rapl, estimate)
    with pytest.raises(MonitorError, match="'epoch' is already open"):
        monitor.begin_window("epoch")
    assert estimate.end_window("epoch").time > 0
    monitor.begin_window("epoch")


def test_without_gpus(root: Path) -> None:
    """Without a GPU, the configuration is that of the first monitor."""
    monitor = CombinedMonitor(RaplMonitor(root), EstimateMonitor(watts=20))
    assert (monitor.kinds, monitor.gpu_indices) == (
        MonitorKinds(("rapl", "estimate"), EnergyQuality.PARTLY_ESTIMATED),
        [],
    )
    assert gpu_group(monitor).max_power_watts == 150.0


class Broken(EstimateMonitor):
    """A third-party monitor that cannot end a window."""

    kind = "broken"
    raises_own_errors = False

    def end_window(self, name: str, /) -> Window:
        """Fails."""
        raise OSError(name)


def test_failure_of_a_third_party_monitor() -> None:
    """Any exception of a third-party monitor is a MonitorError with its cause, and all other windows are ended."""
    estimate = EstimateMonitor(watts=1)
    monitor = CombinedMonitor(Broken(watts=1), estimate)
    monitor.begin_window("epoch")
    with pytest.raises(MonitorError, match="OSError") as failure:
        monitor.end_window("epoch")
    assert isinstance(failure.value.__cause__, OSError)
    estimate.begin_window("epoch")


def test_same_kind_twice(root: Path) -> None:
    """A single monitor, and two monitors of one kind even if nested, are refused."""
    rapl = RaplMonitor(root)
    with pytest.raises(MonitorError, match="two or more monitors"):
        CombinedMonitor(rapl)
    with pytest.raises(MonitorError, match="rapl would count twice"):
        CombinedMonitor(CombinedMonitor(EstimateMonitor(watts=1), rapl), rapl)


class Zeus(EstimateMonitor):
    """Another GPU monitor, such as Zeus's."""

    kind = "ZeusMonitor"

    def __init__(self) -> None:
        super().__init__(watts=1)
        self.gpu_indices = [0]


def test_two_gpu_monitors(machine: Machine, run: Runner) -> None:
    """Two GPU monitors are refused, whatever their kinds."""
    machine.show(replace(StubGpu(), uuid="GPU-aaaa"))
    with pytest.raises(MonitorError, match=r"NvmlMonitor\(.* both measure GPUs"):
        run(case_two_gpu_monitors)


def case_two_gpu_monitors() -> None:
    """Combines two GPU monitors."""
    CombinedMonitor(NvmlMonitor(), Zeus())
