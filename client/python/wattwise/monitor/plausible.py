"""The plausibility check of all energy measurements: power, energy and duration of a window, and of a reading."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from wattwise.errors import ImplausibleError
from wattwise.monitor.kind import ESTIMATE, monitor_kinds
from wattwise.monitor.window import Monitor, Window

POWER_FACTOR = 2.0
"""Times their limit: GPUs exceed it for moments."""

_STEP_SECONDS = 0.1
"""By which a counter may be late."""

_CLOCK_FACTOR = 1.1
_CLOCK_SECONDS = 2.0
"""Clocks of wall plugs and management controllers tick once a second or slower."""

_ROUNDING = 1.01


def power_fault(joules: float, seconds: float, most_watts: float) -> str | None:
    """What is wrong with an energy and its time; None if nothing is."""
    if not 0 <= joules < math.inf:
        return f"{joules:g} J in {seconds:.4g} s is not an energy"
    # A product, because a window may be so short that it has no length.
    if joules > most_watts * seconds * _ROUNDING:
        watts = f"{joules / seconds:.4g} W" if seconds > 0 else "far"
        return f"{joules:.6g} J in {seconds:.4g} s are {watts}, more than the {most_watts:.4g} W that are possible"
    return None


def clock_fault(measured: float, least: float, most: float) -> str | None:
    """What is wrong with a window's length, which took at least and at most so long by the clock."""
    if not 0 <= measured < math.inf:
        return f"{measured:g} s is not a duration"
    if not least / _CLOCK_FACTOR - _CLOCK_SECONDS <= measured <= most * _CLOCK_FACTOR + _CLOCK_SECONDS:
        return f"{measured:.4g} s contradict the clock, by which the window lasted {most:.4g} s"
    return None


def most_watts(monitor: Monitor, limit_watts: float) -> float:
    """The highest power that a monitor may measure, in watts.

    Args:
        monitor: The monitor; its own `max_power_watts` comes first.
        limit_watts: The power limit of the GPUs of a monitor that has none.
    """
    own = getattr(monitor, "max_power_watts", None)
    if own is not None:
        return float(own)
    parts: Iterable[Monitor] = getattr(monitor, "monitors", ())
    return math.fsum(most_watts(part, limit_watts) for part in parts) or POWER_FACTOR * limit_watts


class CheckedMonitor:
    """A monitor whose windows are plausible; an `end_window` with any other raises `ImplausibleError`.

    Args:
        monitor: The monitor.
        limit_watts: The power limit of its GPUs, for a monitor that has no `max_power_watts` of its own.

    Attributes:
        gpu_indices: Those of the monitor.
        raises_own_errors: Whether its failures are MonitorErrors, and any other exception comes from the training.
    """

    def __init__(self, monitor: Monitor, limit_watts: float = math.inf) -> None:
        self._monitor = monitor
        self._most_watts = most_watts(monitor, limit_watts)
        # An estimate may be of another time, such as a processor's.
        self._has_clock = ESTIMATE not in monitor_kinds(monitor).kinds
        self._begun: dict[str, tuple[float, float]] = {}
        self.gpu_indices = monitor.gpu_indices
        self.raises_own_errors: bool = getattr(monitor, "raises_own_errors", False)

    def __repr__(self) -> str:
        return repr(self._monitor)

    def begin_window(self, name: str, /) -> None:
        """Begins a window of the monitor."""
        called = time.monotonic()
        self._monitor.begin_window(name)
        self._begun[name] = called, time.monotonic()

    def end_window(self, name: str, /) -> Window:
        """Ends a window of the monitor.

        Raises:
            ImplausibleError: What it measured cannot be true.
        """
        called = time.monotonic()
        window = self._monitor.end_window(name)
        first, last = self._begun.pop(name, (called, called))
        longest = time.monotonic() - first
        seconds, joules = float(window.time), float(window.total_energy)
        fault = clock_fault(seconds, called - last, longest) if self._has_clock else clock_fault(seconds, 0, math.inf)
        fault = fault or power_fault(joules, max(seconds, longest) + _STEP_SECONDS, self._most_watts)
        if fault:
            raise ImplausibleError(f"{self!r} has measured what cannot be true: {fault}")
        return Window(seconds, joules)
