"""The monitors that work on this machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from wattwise.errors import MonitorError
from wattwise.monitor.amd_gpu import AmdSmiMonitor
from wattwise.monitor.gpu import NvmlMonitor
from wattwise.monitor.rapl import POWERCAP, RaplMonitor
from wattwise.monitor.window import WindowMonitor


class PresentMonitor(NamedTuple):
    """A monitor that this machine may have.

    Attributes:
        call: the Python expression that creates it.
        monitor: the monitor, or the error of creating it.
    """

    call: str
    monitor: WindowMonitor | MonitorError


def default_monitor() -> NvmlMonitor:
    """Returns the monitor of a trainer that names none: all visible NVIDIA GPUs.

    Raises:
        MonitorError: if there is no such GPU; the message says what to pass instead, and what works on this machine.
    """
    try:
        return NvmlMonitor()
    except MonitorError as error:
        raise MonitorError(f"{error}. {alternatives()}") from None


def present_monitors(powercap: str | Path = POWERCAP) -> list[PresentMonitor]:
    """Returns every monitor that measures, in the order in which a trainer should try them."""
    return [_monitor("NvmlMonitor()", NvmlMonitor), *_others(powercap)]


def alternatives(powercap: str | Path = POWERCAP) -> str:
    """Returns a sentence on the monitors that a trainer without an NVIDIA GPU can pass on this machine."""
    monitors = _others(powercap)
    working = [monitor.call for monitor in monitors if isinstance(monitor.monitor, WindowMonitor)]
    if working:
        return f"On this machine {' and '.join(working)} can measure."
    # On a machine without AMD GPUs it does not matter that amdsmi is not installed.
    failures = [
        f"{monitor.call}: {monitor.monitor.problem}"
        for monitor in monitors
        if isinstance(monitor.monitor, MonitorError)
        and (monitor.call != "AmdSmiMonitor()" or find_spec("amdsmi") is not None)
    ]
    return f"On this machine only EstimateMonitor(watts=...) works ({'; '.join(failures)})."


def _others(powercap: str | Path) -> list[PresentMonitor]:
    return [_monitor("AmdSmiMonitor()", AmdSmiMonitor), _monitor("RaplMonitor()", lambda: RaplMonitor(powercap))]


def _monitor(call: str, create: Callable[[], WindowMonitor]) -> PresentMonitor:
    try:
        return PresentMonitor(call, create())
    except MonitorError as error:
        return PresentMonitor(call, error)
