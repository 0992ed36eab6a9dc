"""Which monitors this machine has."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from wattwise.errors import MonitorError
from wattwise.monitor.amdsmi import AmdSmiMonitor
from wattwise.monitor.gpu import INSTEAD
from wattwise.monitor.nvml import NvmlMonitor
from wattwise.monitor.rapl import POWERCAP, RaplMonitor
from wattwise.monitor.window import WindowMonitor


class PresentMonitor(NamedTuple):
    """A monitor that this machine may have.

    Attributes:
        call: What makes it.
        monitor: It, or why this machine has none.
    """

    call: str
    monitor: WindowMonitor | MonitorError

    @property
    def why_not(self) -> str:
        """Why this machine has none, without what to pass instead."""
        return str(self.monitor).replace(f"; {INSTEAD}", "").replace(f", or {INSTEAD}", "")


def present_monitors(powercap: str | Path = POWERCAP) -> list[PresentMonitor]:
    """Every monitor that measures, in the order in which a trainer should try them.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    return [_monitor("NvmlMonitor()", NvmlMonitor), *other_monitors(powercap)]


def other_monitors(powercap: str | Path = POWERCAP) -> list[PresentMonitor]:
    """Every monitor that measures but the default one.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    return [_monitor("AmdSmiMonitor()", AmdSmiMonitor), _monitor("RaplMonitor()", lambda: RaplMonitor(powercap))]


def alternatives(powercap: str | Path = POWERCAP) -> str:
    """What a trainer without an NVIDIA GPU can pass on this machine, in a sentence.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    monitors = other_monitors(powercap)
    working = [monitor.call for monitor in monitors if isinstance(monitor.monitor, WindowMonitor)]
    if working:
        return f"On this machine {' and '.join(working)} can measure."
    # Nobody without AMD's GPUs need hear of a package that is not installed.
    wanted = [monitor for monitor in monitors if monitor.call != "AmdSmiMonitor()" or find_spec("amdsmi") is not None]
    reasons = "; ".join(f"{monitor.call}: {monitor.why_not}" for monitor in wanted)
    return f"On this machine only EstimateMonitor(watts=...) works ({reasons})."


def _monitor(call: str, make: Callable[[], WindowMonitor]) -> PresentMonitor:
    try:
        return PresentMonitor(call, make())
    except MonitorError as error:
        return PresentMonitor(call, error)
