"""RaplMonitor on folders like the kernel's."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from wattwise.errors import ImplausibleError, MonitorError
from wattwise.monitor import RaplMonitor, gpu_group
from wattwise.monitor.rapl import find_zones


def make_zone(root: Path, folder: str, name: str, *, wraps_at_uj: int = 262_143_328_850, **files: int) -> Path:
    """Creates a zone's folder with these files; returns the file with the energy counter."""
    zone = root / folder
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n", encoding="ascii")
    for file, number in ({"energy_uj": 0, "max_energy_range_uj": wraps_at_uj} | files).items():
        (zone / file).write_text(f"{number}\n", encoding="ascii")
    return zone / "energy_uj"


def count(counter: Path, microjoules: int) -> None:
    """Sets a counter atomically."""
    fresh = counter.with_name("fresh")
    fresh.write_text(f"{microjoules}\n", encoding="ascii")
    fresh.rename(counter)


def test_packages_and_their_memory_are_summed(tmp_path: Path) -> None:
    """Energy is that of the packages and their dram zones, in joules; zones that repeat them are ignored."""
    counters = {
        folder: make_zone(tmp_path, folder, name)
        for folder, name in {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",
            "intel-rapl:0:1": "dram",
            "intel-rapl:1": "package-1",
            "intel-rapl:2": "psys",
            "intel-rapl-mmio:0": "package-0",
        }.items()
    }
    monitor = RaplMonitor(tmp_path)
    monitor.begin_window("epoch")
    for number, counter in enumerate(counters.values()):
        count(counter, 10**number * 1_000_000)
    assert monitor.end_window("epoch").total_energy == 1 + 100 + 1000
    assert repr(monitor) == "RaplMonitor(package-0, package-0 dram, package-1)"


def test_windows_overlap(tmp_path: Path) -> None:
    """Overlapping windows each measure their own time span."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0")
    monitor = RaplMonitor(tmp_path)
    monitor.begin_window("early")
    count(counter, 1_000_000)
    monitor.begin_window("late")
    count(counter, 11_000_000)
    assert monitor.end_window("early").total_energy == 11
    count(counter, 111_000_000)
    assert monitor.end_window("late").total_energy == 110


def test_a_counter_wraps_around(tmp_path: Path) -> None:
    """If a counter wraps around within a window, its range is added."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", wraps_at_uj=1_000_000_000, energy_uj=900_000_000)
    monitor = RaplMonitor(tmp_path)
    monitor.begin_window("epoch")
    count(counter, 50_000_000)
    assert monitor.end_window("epoch").total_energy == 150


def test_a_counter_wraps_around_often(tmp_path: Path) -> None:
    """Every wrap-around between two readings adds the counter's range."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", wraps_at_uj=100_000_000, energy_uj=50_000_000)
    (zone,) = find_zones(tmp_path)
    energies = []
    for joules in (90, 10, 80, 5, 30):
        count(counter, joules * 1_000_000)
        energies.append(zone.read_joules())
    assert energies == [90, 110, 180, 205, 230]


@pytest.mark.parametrize("after", [0, 40_000_000_000])
def test_a_counter_that_jumps(tmp_path: Path, after: int) -> None:
    """A counter that was reset or that jumped spoils the open windows, and none that begins later; a wrap does not."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=30_000_000_000)
    monitor = RaplMonitor(tmp_path)
    monitor.begin_window("early")
    monitor.begin_window("late")
    count(counter, after)
    for name in ("early", "late"):
        with pytest.raises(ImplausibleError, match="package-0"):
            monitor.end_window(name)
    monitor.begin_window("early")
    count(counter, after + 5_000_000)
    assert monitor.end_window("early").total_energy == 5


def test_a_jump_between_windows(tmp_path: Path) -> None:
    """A jump before a window does not concern the window."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=30_000_000_000)
    monitor = RaplMonitor(tmp_path)
    count(counter, 0)
    monitor.begin_window("epoch")
    count(counter, 5_000_000)
    assert monitor.end_window("epoch").total_energy == 5


def test_the_limit_for_moments_counts(tmp_path: Path) -> None:
    """A zone may draw twice its highest limit, which is more than the one that holds for long; not more."""
    limits = {"constraint_0_max_power_uw": 65_000_000, "constraint_1_power_limit_uw": 200_000_000}
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", **limits)
    monitor = RaplMonitor(tmp_path)
    monitor.begin_window("epoch")
    count(counter, 390_000_000)
    assert monitor.end_window("epoch").total_energy == 390
    monitor.begin_window("epoch")
    count(counter, 100_000_000_000)
    with pytest.raises(ImplausibleError):
        monitor.end_window("epoch")


class Openings:
    """Counts how often the poller's thread opens a file, by Python's own audit events."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        self._changed = threading.Condition()
        self._opened = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open" and str(args[0]) == self._file and threading.current_thread().name == "wattwise-poller":
            with self._changed:
                self._opened += 1
                self._changed.notify_all()

    def wait_for_a_reading(self) -> None:
        """Waits until the poller has read the current content: until it opens the file a second time."""
        with self._changed:
            wanted = self._opened + 2
            assert self._changed.wait_for(lambda: self._opened >= wanted, timeout=60), "the counter is not read"


def test_no_wrap_around_is_missed(tmp_path: Path) -> None:
    """While a window is open, the counter is read in the background, so that no wrap-around is missed."""
    counter = make_zone(tmp_path, "intel-rapl:0", "package-0", wraps_at_uj=100_000_000, energy_uj=50_000_000)
    monitor = RaplMonitor(tmp_path)
    openings = Openings(counter)
    monitor.begin_window("epoch")
    for joules in (90, 10, 80, 5):
        count(counter, joules * 1_000_000)
        openings.wait_for_a_reading()
    assert monitor.end_window("epoch").total_energy == 155


def test_power_limits_are_summed(tmp_path: Path) -> None:
    """Max power is the sum of the zones' highest limits, or of the current ones; memory counts if it has a limit."""
    make_zone(tmp_path, "intel-rapl:0", "package-0", constraint_0_max_power_uw=150_000_000)
    make_zone(tmp_path, "intel-rapl:0:0", "dram", constraint_0_max_power_uw=20_000_000)
    make_zone(
        tmp_path,
        "intel-rapl:1",
        "package-1",
        constraint_0_max_power_uw=0,
        constraint_0_power_limit_uw=140_000_000,
    )
    make_zone(tmp_path, "intel-rapl:1:0", "dram")
    group = gpu_group(RaplMonitor(tmp_path))
    assert (group.max_power_watts, group.count) == (310.0, 1)


def test_the_processor_is_named() -> None:
    """The model is that of /proc/cpuinfo, or else the architecture."""
    with tempfile.TemporaryDirectory() as folder:
        make_zone(Path(folder), "intel-rapl:0", "package-0", constraint_0_max_power_uw=1_000_000)
        model = RaplMonitor(folder).gpu_group().gpu_model
    assert model in Path("/proc/cpuinfo").read_text(encoding="utf-8") or model == f"{platform.machine()} processor"


def test_no_power_limit(tmp_path: Path) -> None:
    """A package without a limit is refused; the error names JobSpec's `gpu`."""
    make_zone(tmp_path, "intel-rapl:0", "package-0")
    with pytest.raises(MonitorError, match=r"package-0 .*gpu=GpuGroup\("):
        RaplMonitor(tmp_path).gpu_group()


def test_available(tmp_path: Path) -> None:
    """The monitor is available if and only if a package zone can be read."""
    assert not RaplMonitor.available(tmp_path / "missing")
    make_zone(tmp_path, "intel-rapl:0", "psys")
    assert not RaplMonitor.available(tmp_path)
    make_zone(tmp_path, "intel-rapl:1", "package-0")
    assert RaplMonitor.available(tmp_path)


def test_no_zones(tmp_path: Path) -> None:
    """Without zones, the error names the folder and an alternative."""
    with pytest.raises(MonitorError, match=r"no RAPL package zone under .*EstimateMonitor\(watts"):
        RaplMonitor(tmp_path)


@pytest.mark.parametrize("content", ["", "many\n"])
def test_malformed_counter(tmp_path: Path, content: str) -> None:
    """The error for a malformed counter names its file."""
    make_zone(tmp_path, "intel-rapl:0", "package-0").write_text(content, encoding="ascii")
    with pytest.raises(MonitorError, match="intel-rapl:0/energy_uj"):
        RaplMonitor(tmp_path)


def test_a_counter_without_a_range(tmp_path: Path) -> None:
    """A zone without the range of its counter is refused."""
    make_zone(tmp_path, "intel-rapl:0", "package-0", wraps_at_uj=0)
    with pytest.raises(MonitorError, match="wraps around"):
        RaplMonitor(tmp_path)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Runs the test as a user other than root, who may read every file."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root cannot become another user here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def closed_root() -> Iterator[Path]:
    """A powercap folder whose counter only root may read, as the kernel creates it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        make_zone(root, "intel-rapl:0", "package-0").chmod(0)
        yield root


@pytest.mark.usefixtures("ordinary_user")
def test_no_permission(closed_root: Path) -> None:
    """The error for an unreadable counter shows how to allow reading, and the monitor is not available."""
    with pytest.raises(MonitorError, match=r"run as root.*sudo chmod a\+r .*udev"):
        RaplMonitor(closed_root)
    assert not RaplMonitor.available(closed_root)
