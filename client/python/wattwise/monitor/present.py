"""Which meters this machine has."""

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


class Meter(NamedTuple):
    """A meter that this machine may have.

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


def present_meters(powercap: str | Path = POWERCAP) -> list[Meter]:
    """Every meter that measures, in the order in which a trainer should try them.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    return [_meter("NvmlMonitor()", NvmlMonitor), *other_meters(powercap)]


def other_meters(powercap: str | Path = POWERCAP) -> list[Meter]:
    """Every meter that measures but the default one.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    return [_meter("AmdSmiMonitor()", AmdSmiMonitor), _meter("RaplMonitor()", lambda: RaplMonitor(powercap))]


def alternatives(powercap: str | Path = POWERCAP) -> str:
    """What a trainer without an NVIDIA GPU can pass on this machine, in a sentence.

    Args:
        powercap: Where the kernel shows its powercap zones.
    """
    meters = other_meters(powercap)
    working = [meter.call for meter in meters if isinstance(meter.monitor, WindowMonitor)]
    if working:
        return f"On this machine {' and '.join(working)} can measure."
    # Nobody without AMD's GPUs need hear of a package that is not installed.
    wanted = [meter for meter in meters if meter.call != "AmdSmiMonitor()" or find_spec("amdsmi") is not None]
    reasons = "; ".join(f"{meter.call}: {meter.why_not}" for meter in wanted)
    return f"On this machine only EstimateMonitor(watts=...) works ({reasons})."


def _meter(call: str, make: Callable[[], WindowMonitor]) -> Meter:
    try:
        return Meter(call, make())
    except MonitorError as error:
        return Meter(call, error)
