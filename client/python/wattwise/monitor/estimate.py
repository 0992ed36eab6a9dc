"""A monitor for machines without energy counters: constant power times time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from wattwise.errors import MonitorError, log
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.rules import GpuGroup, finite

_LEAST_SECONDS = 10.0
"""The shortest window that the load is checked at: a load average tells little about less than a minute."""


class EstimateMonitor(WindowMonitor):
    """Measures time and estimates energy: energy = watts × time.

    Its `kind`, its repr and the GPU model of its jobs say that it is an estimate. Since all batch sizes have the same
    power under it, they are ranked by time alone. Other work on the machine lengthens the time: one warning is logged
    if the machine is loaded at the end of a window of ten seconds or more.

    Args:
        watts: the assumed power of the training, over all devices of the trial.

    Raises:
        MonitorError: if `watts` is not a finite number above 0.
    """

    kind = "estimate"

    def __init__(self, watts: float) -> None:
        super().__init__()
        if not finite(watts) > 0:
            raise MonitorError(f"watts={watts!r} is not a power; use the power of the training in watts, above 0")
        self.watts = self.max_power_watts = float(watts)
        self._warned = False

    def __repr__(self) -> str:
        return f"EstimateMonitor(watts={self.watts:g})"

    def gpu_group(self) -> GpuGroup:
        """Returns the estimated power as that of one device, whose model says that it is an estimate."""
        return GpuGroup(gpu_model=f"estimate ({self.watts:g} W)", count=1, max_power_watts_per_gpu=self.watts)

    def _joules(self, used: Sequence[float], seconds: float) -> float:
        if seconds >= _LEAST_SECONDS and not self._warned:
            self._warn_of_load()
        return super()._joules(used, seconds)

    def _warn_of_load(self) -> None:
        load, processors = _load(), os.cpu_count() or 1
        if load > processors:
            self._warned = True
            log.warning(
                "the machine is loaded: the load average of the last minute is %.1f, with %d processors. The energy is "
                "estimated from the time of the training, which other work lengthens: do not compare this trial with "
                "those of an idle machine, and start no more threads than there are processors",
                *(load, processors),
            )

    def _read(self) -> Reading:
        now = time.monotonic()
        return Reading(now, (self.watts * now,))


def _load() -> float:
    """Returns the load average of the last minute; 0 where there is none, as on Windows."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
