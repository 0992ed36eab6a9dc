"""A monitor for machines without energy counters: constant power times time."""

from __future__ import annotations

import math
import time

from wattwise.errors import MonitorError
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.spec import GpuConfig, to_number


class EstimateMonitor(WindowMonitor):
    """Measures time and estimates energy: energy = watts × time.

    Its `kind`, its repr and the GPU model of its jobs say that it is an estimate. Since all batch sizes have the same
    power under it, they are ranked by time alone.

    Args:
        watts: The assumed power of the training, over all devices of the trial.

    Raises:
        MonitorError: `watts` is not a finite number above 0.
    """

    kind = "estimate"

    def __init__(self, watts: float) -> None:
        super().__init__()
        if not 0 < to_number(watts) < math.inf:
            raise MonitorError(f"watts={watts!r} is not a power; use the power of the training in watts, above 0")
        self.watts = float(watts)

    def __repr__(self) -> str:
        return f"EstimateMonitor(watts={self.watts:g})"

    def gpu_config(self) -> GpuConfig:
        """The estimated power as that of one device, whose model says that it is an estimate."""
        return GpuConfig(max_power_watts=self.watts, number_of_gpus=1, gpu_model=f"estimate ({self.watts:g} W)")

    def _read(self) -> Reading:
        now = time.monotonic()
        return Reading(now, (self.watts * now,))
