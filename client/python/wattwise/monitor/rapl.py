"""The processor's own energy monitor: Intel's and AMD's RAPL, read through Linux's powercap folders."""

from __future__ import annotations

import os
import time
from pathlib import Path

from wattwise.errors import MonitorError
from wattwise.monitor.rapl_zone import find_zones
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.spec import GpuConfig

POWERCAP = "/sys/class/powercap"
_HIGHEST_ZONE_POWER_WATTS = 2000.0
_LONGEST_POLL_SECONDS = 30.0


class RaplMonitor(WindowMonitor):
    """Measures the processors (every package and its memory) for training that runs on them.

    The counters wrap around, most after minutes; while a window is open they are read at least every 30 seconds, and
    often enough that a zone would have to draw more than 2000 W to wrap around unseen.

    Args:
        root: Where the kernel shows its powercap zones.

    Raises:
        MonitorError: There are no RAPL zones here, or they may not be read; the message says what to do.
    """

    kind = "rapl"

    def __init__(self, root: str | Path = POWERCAP) -> None:
        self._zones = find_zones(Path(root))
        shortest = min(zone.range_joules for zone in self._zones) / _HIGHEST_ZONE_POWER_WATTS
        super().__init__(poll_seconds=min(shortest, _LONGEST_POLL_SECONDS))
        self._read()  # refuses here what may not be read, rather than in the first window

    def __repr__(self) -> str:
        return f"RaplMonitor({', '.join(zone.name for zone in self._zones)})"

    @staticmethod
    def available(root: str | Path = POWERCAP) -> bool:
        """Whether this machine has RAPL zones and this process may read them."""
        try:
            RaplMonitor(root)
        except MonitorError:
            return False
        return True

    def gpu_config(self) -> GpuConfig:
        """All packages as one device: the processor's model and the sum of the zones' power limits.

        Raises:
            MonitorError: A package tells no power limit.
        """
        watts = 0.0
        for zone in self._zones:
            limit = zone.max_power_watts()
            # Few boards tell a limit for memory, and its share is small; a package without one would make time cheap.
            if limit is None and zone.is_package:
                raise MonitorError(
                    f"RAPL zone {zone.name} tells no power limit; give the job "
                    "gpu=GpuConfig(max_power_watts=..., number_of_gpus=1, gpu_model=...)"
                )
            watts += limit or 0.0
        return GpuConfig(max_power_watts=watts, number_of_gpus=1, gpu_model=cpu_model())

    def _read(self) -> Reading:
        return Reading(time.monotonic(), tuple(zone.read_joules() for zone in self._zones))


def cpu_model() -> str:
    """The processor's name as the kernel tells it, or its architecture where the kernel tells none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), f"{os.uname().machine} processor")
