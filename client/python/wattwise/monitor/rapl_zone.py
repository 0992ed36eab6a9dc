"""One RAPL zone, a folder of Linux's powercap tree (Documentation/power/powercap in the kernel's sources)."""

from __future__ import annotations

import re
from pathlib import Path

from wattwise.errors import MonitorError

_PACKAGE = re.compile(r"intel-rapl:\d+")
_SUBZONE = re.compile(r"intel-rapl:\d+:\d+")


class RaplZone:
    """An energy counter that wraps around, unwrapped.

    Args:
        folder: The zone's folder.
        name: What the zone measures: "package-0", "dram".
        is_package: Whether it is a zone of its own rather than a part of one.

    Raises:
        MonitorError: The zone may not be read, or is not one.
    """

    def __init__(self, folder: Path, name: str, *, is_package: bool) -> None:
        self.name = name
        self.is_package = is_package
        self._folder = folder
        self.range_joules = self._number("max_energy_range_uj") / 1e6
        if self.range_joules <= 0:
            raise MonitorError(f"{folder} does not tell where its energy counter wraps around, so it cannot be used")
        self._last = self._number("energy_uj")
        self._wraps = 0

    def read_joules(self) -> float:
        """Joules since the counter's zero, however often it wrapped around since this object was made."""
        now = self._number("energy_uj")
        if now < self._last:
            self._wraps += 1
        self._last = now
        return self._wraps * self.range_joules + now / 1e6

    def max_power_watts(self) -> float | None:
        """The zone's highest long-term power limit, else the one in force, in watts; None when it tells neither."""
        for file in ("constraint_0_max_power_uw", "constraint_0_power_limit_uw"):
            try:
                microwatts = self._number(file)
            except MonitorError:
                continue
            if microwatts > 0:
                return microwatts / 1e6
        return None

    def _number(self, file: str) -> int:
        path = self._folder / file
        try:
            return int(path.read_text(encoding="ascii"))
        except PermissionError:
            raise MonitorError(
                f"this process may not read {path}; run as root, or allow it until the next boot with "
                f"'sudo chmod a+r {self._folder.parent}/intel-rapl:*/energy_uj' (a udev rule does it for good)"
            ) from None
        except (OSError, ValueError) as error:
            raise MonitorError(f"cannot read the RAPL zone at {path}: {error}") from error


def find_zones(root: Path) -> list[RaplZone]:
    """The zones that together hold the processors and their memory, each joule once.

    Those are the packages and their dram subzones. The core and uncore subzones are parts of their package; psys is
    the whole platform, packages included, and not wired up on many boards; intel-rapl-mmio repeats a package.

    Raises:
        MonitorError: There is no package zone, or it may not be read.
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
            "intel_rapl_common, and not a virtual machine; pass monitor=EstimateMonitor(watts=...) instead"
        )
    return zones


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text(encoding="ascii").strip()
    except OSError:
        return ""
