"""The demo's energy monitor."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wattwise import GpuGroup, RaplMonitor
from wattwise.monitor import Window

ESTIMATED_WATTS = 65.0


class ProcessorTimeMonitor:
    """Estimates time and energy from the processor time of this process, which other programs do not lengthen.

    That fits a training in one thread. It would miss the time of other processes, such as those that load data.

    Args:
        watts: The assumed power of the training.
    """

    kind = "estimate"
    gpu_indices: Sequence[int] = ()

    def __init__(self, watts: float) -> None:
        self._watts = watts
        self._open: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"{self._watts:g} W times processor time"

    def gpu_group(self) -> GpuGroup:
        """Returns the estimated power, as that of one device."""
        return GpuGroup(gpu_model=f"estimate ({self!r})", count=1, max_power_watts_per_gpu=self._watts)

    def begin_window(self, name: str, /) -> None:
        """Begins a window of this name."""
        self._open[name] = time.process_time()

    def end_window(self, name: str, /) -> Window:
        """Ends the window of this name and returns what it took."""
        seconds = time.process_time() - self._open.pop(name)
        return Window(seconds, self._watts * seconds)


def energy_monitor() -> RaplMonitor | ProcessorTimeMonitor:
    """Returns the processor's energy counters if they can be read, else an estimate."""
    return RaplMonitor() if RaplMonitor.available() else ProcessorTimeMonitor(ESTIMATED_WATTS)
