"""Processors: the energy counters (RAPL) of Intel and AMD, read through the powercap folders of Linux.

The folders are described in Documentation/power/powercap of the kernel's sources.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from wattwise import rules
from wattwise.errors import ImplausibleError, MonitorError, Remedy, short_tracebacks
from wattwise.monitor.plausible import power_fault
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.rules import GpuGroup

POWERCAP = "/sys/class/powercap"
_HIGHEST_ZONE_POWER_WATTS = 2000.0
_LONGEST_POLL_SECONDS = 30.0
_STEP_SECONDS = 1.0
"""How late a counter may be."""
_PACKAGE = re.compile(r"intel-rapl:\d+")
_SUBZONE = re.compile(r"intel-rapl:\d+:\d+")


@short_tracebacks
class RaplMonitor(WindowMonitor):
    """Measures the processors (every package and its memory) for training that runs on them.

    The counters wrap around, most after minutes; while a window is open they are read at least every 30 seconds, and
    often enough that a zone would have to draw more than 2000 W to wrap around unseen. A zone that has drawn more
    between two readings, or more than twice its highest limit, has a counter that jumped or was reset.

    Args:
        root: where the kernel shows its powercap zones.

    Raises:
        MonitorError: if there are no RAPL zones, or this process may not read them; the message says what to do.
    """

    kind = "rapl"
    max_power_watts = math.inf
    """Every reading of a zone is checked instead."""

    def __init__(self, root: str | Path = POWERCAP) -> None:
        self._zones = find_zones(Path(root))
        shortest = min(zone.range_joules for zone in self._zones) / _HIGHEST_ZONE_POWER_WATTS
        super().__init__(poll_seconds=min(shortest, _LONGEST_POLL_SECONDS))
        self._read()  # raises here rather than in the first window

    def __repr__(self) -> str:
        return f"RaplMonitor({', '.join(zone.name for zone in self._zones)})"

    @staticmethod
    def available(root: str | Path = POWERCAP) -> bool:
        """Returns whether this machine has RAPL zones and this process may read them."""
        try:
            RaplMonitor(root)
        except MonitorError:
            return False
        return True

    def gpu_group(self) -> GpuGroup:
        """Returns all packages as one device: the processor's model and the sum of the zones' power limits.

        Raises:
            MonitorError: if a package reports no power limit.
        """
        watts = 0.0
        for zone in self._zones:
            limit = zone.max_power_watts()
            # Few boards report a limit for memory, and its share is small. A package without one would make time cheap.
            if limit is None and zone.is_package:
                raise MonitorError(f"RAPL zone {zone.name} reports no power limit", Remedy.GPU_GROUP)
            watts += limit or 0.0
        return GpuGroup(gpu_model=cpu_model(), count=1, max_power_watts_per_gpu=watts)

    def _read(self) -> Reading:
        return Reading(time.monotonic(), tuple(zone.read_joules() for zone in self._zones))


def cpu_model() -> str:
    """Returns the processor's name according to the kernel, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), f"{os.uname().machine} processor")


class RaplZone:
    """A RAPL zone: an energy counter whose wraps are counted.

    Args:
        folder: the zone's folder.
        name: what the zone measures: "package-0", "dram".
        is_package: whether it is a whole package rather than a part of one.

    Raises:
        MonitorError: if the zone cannot be read or is malformed.
    """

    def __init__(self, folder: Path, name: str, *, is_package: bool) -> None:
        self.name = name
        self.is_package = is_package
        self._folder = folder
        self.range_joules = self._number("max_energy_range_uj") / 1e6
        if self.range_joules <= 0:
            raise MonitorError(f"{folder} does not report at which value its energy counter wraps around")
        self._most_watts = self._highest_power()
        self._last_time = time.monotonic()
        self._last = self._number("energy_uj")
        self._wraps = 0

    def read_joules(self) -> float:
        """Returns the joules since the counter's zero, wraps since this object was created included.

        Raises:
            ImplausibleError: if the counter jumped or was reset; the next reading goes on from it.
        """
        now, time_now = self._number("energy_uj"), time.monotonic()
        wrapped = now < self._last
        grown = (now - self._last) / 1e6 + wrapped * self.range_joules
        seconds = time_now - self._last_time
        self._wraps += wrapped
        self._last, self._last_time = now, time_now
        if fault := power_fault(grown, seconds, self._most_watts, _STEP_SECONDS):
            raise ImplausibleError(f"the energy counter of RAPL zone {self.name} jumped or was reset: {fault}")
        return self._wraps * self.range_joules + now / 1e6

    def max_power_watts(self) -> float | None:
        """Returns the zone's highest long-term power limit, else the current one, in watts; None if there is none."""
        for file in ("constraint_0_max_power_uw", "constraint_0_power_limit_uw"):
            try:
                microwatts = self._number(file)
            except MonitorError:
                continue
            if microwatts > 0:
                return microwatts / 1e6
        return None

    def _highest_power(self) -> float:
        """Returns twice the highest of the zone's limits: those for moments exceed the one that holds for long."""
        limits = [0.0]
        for file in self._folder.glob("constraint_*_uw"):
            with suppress(MonitorError):
                limits.append(self._number(file.name) / 1e6)
        return min(rules.POWER_FACTOR * max(limits) or math.inf, _HIGHEST_ZONE_POWER_WATTS)

    def _number(self, file: str) -> int:
        path = self._folder / file
        try:
            return int(path.read_text(encoding="ascii"))
        except PermissionError:
            raise MonitorError(
                f"this process may not read {path}; run as root, or allow it until the next boot with "
                f"'sudo chmod a+r {self._folder.parent}/intel-rapl:*/energy_uj' (a udev rule makes it permanent)"
            ) from None
        except (OSError, ValueError) as error:
            raise MonitorError(f"cannot read the RAPL zone at {path}: {error}") from error


def find_zones(root: Path) -> list[RaplZone]:
    """Returns the zones of the processors and their memory, in which each joule counts once.

    These are the packages and their dram subzones. The core and uncore subzones are part of their package; psys is the
    whole platform, packages included, and not connected on many boards; intel-rapl-mmio repeats a package.

    Raises:
        MonitorError: if there is no package zone, or it cannot be read.
    """
    zones = []
    for folder in sorted(root.glob("intel-rapl:*")):
        name = _name(folder)
        if _PACKAGE.fullmatch(folder.name) and name.startswith("package"):
            zones.append(RaplZone(folder, name, is_package=True))
        elif _SUBZONE.fullmatch(folder.name) and name == "dram":
            zones.append(RaplZone(folder, f"{_name(root / folder.name.rpartition(':')[0])} dram", is_package=False))
    if not any(zone.is_package for zone in zones):
        raise MonitorError(
            f"no RAPL package zone under {root}: this needs Linux on an Intel or AMD processor with the module "
            "intel_rapl_common, and not a virtual machine",
            Remedy.ESTIMATE,
        )
    return zones


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text(encoding="ascii", errors="backslashreplace").strip()
    except OSError:
        return ""
