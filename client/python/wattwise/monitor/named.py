"""Monitors by the names that job files and the driver's variables use."""

from __future__ import annotations

import math
from collections.abc import Callable

from wattwise.errors import MonitorError, NoDeviceError, Remedy
from wattwise.monitor.amd_gpu import AmdSmiMonitor
from wattwise.monitor.estimate import EstimateMonitor
from wattwise.monitor.gpu import NvmlMonitor
from wattwise.monitor.rapl import RaplMonitor
from wattwise.monitor.window import WindowMonitor

# In the order in which they are tried.
_MONITORS: dict[str, tuple[str, Callable[[], WindowMonitor]]] = {
    "nvml": ("NVIDIA GPU", NvmlMonitor),
    "amdsmi": ("AMD GPU", AmdSmiMonitor),
    "rapl": ("processor", RaplMonitor),
}


def checked_monitor(name: str) -> float | None:
    """Checks a name: "nvml", "amdsmi", "rapl" or "estimate:WATTS"; returns the watts of an estimate, else None.

    Raises:
        MonitorError: if there is no monitor of this name.
    """
    if name in _MONITORS:
        return None
    kind, colon, text = name.partition(":")
    try:
        watts = float(text) if kind == "estimate" and colon else math.nan
    except ValueError:
        watts = math.nan
    if 0 < watts < math.inf:
        return watts
    raise MonitorError(
        f'{name!r} is not a monitor; use "nvml", "amdsmi", "rapl" or, with the power of the training in watts, '
        '"estimate:150"'
    )


def named_monitor(name: str | None) -> WindowMonitor:
    """Opens a monitor by its name; None is that of the NVIDIA GPUs, else of the AMD GPUs, else of the processors.

    Raises:
        MonitorError: if there is no monitor of this name, or it does not work on this machine; or GPUs are present, and
            theirs does not work.
    """
    if name is None:
        return _first()
    watts = checked_monitor(name)
    return _MONITORS[name][1]() if watts is None else EstimateMonitor(watts)


def name_of(monitor: WindowMonitor) -> str:
    """Returns the name under which `named_monitor` opens such a monitor."""
    watts = getattr(monitor, "watts", None)
    return monitor.kind.partition("-")[0] if watts is None else f"{monitor.kind}:{watts:.17g}"


def _first() -> WindowMonitor:
    """Returns the monitor of the first devices that are present, whether it works or not; the others are not opened."""
    missing = []
    for device, create in _MONITORS.values():
        try:
            return create()
        except MonitorError as error:  # noqa: PERF203 - at most three
            if device.endswith("GPU") and not isinstance(error, NoDeviceError):
                raise
            missing.append(f"no {device} ({error.problem})")
    raise MonitorError(f"no energy monitor works on this machine: {', '.join(missing)}", Remedy.ESTIMATE)
