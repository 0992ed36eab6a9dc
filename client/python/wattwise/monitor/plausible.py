"""The plausibility check of all energy measurements: power, energy and duration of a window, and of a reading."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from wattwise import rules
from wattwise.errors import ImplausibleError
from wattwise.monitor.kind import ESTIMATE, monitor_kinds
from wattwise.monitor.window import Monitor, Window

STEP_SECONDS = 0.1
"""How late the energy counter of a GPU may be."""

_CLOCK_FACTOR = 1.1
_CLOCK_SECONDS = 2.0
"""Clocks of wall plugs and management controllers tick once a second or slower."""

_ROUNDING = 1.01


def power_fault(joules: float, seconds: float, most_watts: float, late_seconds: float = 0.0) -> str | None:
    """Returns what is wrong with an energy and its time; None if nothing is.

    Args:
        joules: the energy.
        seconds: the time.
        most_watts: the highest power.
        late_seconds: the time before it whose energy the counter may add late.
    """
    if not 0 <= joules < math.inf:
        return f"{joules:g} J in {seconds:.4g} s is not an energy"
    # A product, because a window may be so short that it has no length.
    if joules > most_watts * (seconds + late_seconds) * _ROUNDING:
        watts = f"{joules / seconds:.4g} W" if seconds > 0 else "far"
        return f"{joules:.6g} J in {seconds:.4g} s are {watts}, more than the {most_watts:.4g} W that are possible"
    return None


def clock_fault(measured: float, least: float, most: float) -> str | None:
    """Returns what is wrong with a window's length, which took at least and at most so long by the clock."""
    if not 0 <= measured < math.inf:
        return f"{measured:g} s is not a duration"
    if not least / _CLOCK_FACTOR - _CLOCK_SECONDS <= measured <= most * _CLOCK_FACTOR + _CLOCK_SECONDS:
        return f"{measured:.4g} s contradict the clock, by which the window lasted {most:.4g} s"
    return None


class CheckedMonitor:
    """A monitor whose windows are plausible; an `end_window` with any other raises `ImplausibleError`.

    Args:
        monitor: the monitor.
        limit_watts: see `set_limit`.

    Attributes:
        gpu_indices: those of the monitor.
        most_watts: the highest power that it may measure.
        raises_own_errors: whether its failures are MonitorErrors, and any other exception comes from the training.
    """

    def __init__(self, monitor: Monitor, limit_watts: float = math.inf) -> None:
        self._monitor = monitor
        # An estimate may be of another time, such as a processor's.
        self._has_clock = ESTIMATE not in monitor_kinds(monitor).kinds
        self._parts: Sequence[CheckedMonitor] = getattr(monitor, "checked_parts", ())
        self.most_watts = math.inf
        self.set_limit(limit_watts)
        self._begun: dict[str, tuple[float, float]] = {}
        # Since the energy last grew: the counters of wall plugs and management controllers change once a second or
        # more slowly, and the window in which they change has the energy of those before.
        self._idle_seconds = 0.0
        self.gpu_indices = monitor.gpu_indices
        self.raises_own_errors: bool = getattr(monitor, "raises_own_errors", False)

    def __repr__(self) -> str:
        return repr(self._monitor)

    def set_limit(self, watts: float) -> None:
        """Sets the power limit of the job's GPUs, for a monitor or a part of one without `max_power_watts`."""
        for part in self._parts:
            part.set_limit(watts)
        own = getattr(self._monitor, "max_power_watts", None)
        of_parts = math.fsum(part.most_watts for part in self._parts)
        self.most_watts = float(own) if own is not None else of_parts or rules.POWER_FACTOR * watts

    def begin_window(self, name: str, /) -> None:
        """Begins a window of the monitor."""
        called = time.monotonic()
        self._monitor.begin_window(name)
        self._begun[name] = called, time.monotonic()

    def end_window(self, name: str, /) -> Window:
        """Ends a window of the monitor.

        Raises:
            ImplausibleError: if what it measured cannot be true.
        """
        called = time.monotonic()
        window = self._monitor.end_window(name)
        first, last = self._begun.pop(name, (called, called))
        longest = time.monotonic() - first
        seconds, joules = float(window.time), float(window.total_energy)
        fault = clock_fault(seconds, called - last, longest) if self._has_clock else clock_fault(seconds, 0, math.inf)
        fault = fault or power_fault(joules, max(seconds, longest), self.most_watts, STEP_SECONDS + self._idle_seconds)
        self._idle_seconds = 0.0 if joules else self._idle_seconds + longest
        if fault:
            raise ImplausibleError(f"{self!r} has measured what cannot be true: {fault}")
        return Window(seconds, joules)
