"""Monitors by the names that a job file and its variables give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from wattwise.errors import MonitorError

if TYPE_CHECKING:
    from wattwise.monitor.window import WindowMonitor


def checked_monitor(name: str) -> float | None:
    """Whether a name is that of a monitor.

    Args:
        name: "nvml", "amdsmi", "rapl" or "estimate:WATTS".

    Returns:
        The watts of an estimate, else None.

    Raises:
        MonitorError: It is none.
    """
    kind, colon, given = name.partition(":")
    if name in ("nvml", "amdsmi", "rapl"):
        return None
    try:
        watts = float(given) if kind == "estimate" and colon else math.nan
    except ValueError:
        watts = math.nan
    if 0 < watts < math.inf:
        return watts
    raise MonitorError(
        f'{name!r} is no monitor; use "nvml", "amdsmi", "rapl" or, with the watts that training draws, "estimate:150"'
    )


def named_monitor(name: str | None) -> WindowMonitor:
    """Opens a monitor.

    Args:
        name: As `checked_monitor` takes it; None is the best one present: the GPUs', else the processor's.

    Raises:
        MonitorError: It is none, or it is not present.
    """
    watts = None if name is None else checked_monitor(name)
    if watts is not None:
        from wattwise.monitor.estimate import EstimateMonitor  # noqa: PLC0415 - whoever has one needs no other

        return EstimateMonitor(watts)
    if name == "amdsmi":
        from wattwise.monitor.amdsmi import AmdSmiMonitor  # noqa: PLC0415

        return AmdSmiMonitor()
    if name == "rapl":
        from wattwise.monitor.rapl import RaplMonitor  # noqa: PLC0415

        return RaplMonitor()
    from wattwise.monitor.nvml import NvmlMonitor  # noqa: PLC0415

    return NvmlMonitor() if name == "nvml" else _best()


def name_of(monitor: WindowMonitor) -> str:
    """The name under which `named_monitor` opens such a monitor."""
    watts = getattr(monitor, "watts", None)
    return monitor.kind.partition("-")[0] if watts is None else f"{monitor.kind}:{watts:.17g}"


def _best() -> WindowMonitor:
    """The first that is present, in the order of `present_monitors`; the others are not opened."""
    from wattwise.monitor.amdsmi import AmdSmiMonitor  # noqa: PLC0415
    from wattwise.monitor.nvml import NvmlMonitor  # noqa: PLC0415
    from wattwise.monitor.rapl import RaplMonitor  # noqa: PLC0415

    monitors: dict[str, Callable[[], WindowMonitor]] = {
        "NVIDIA GPU": NvmlMonitor,
        "AMD GPU": AmdSmiMonitor,
        "processor": RaplMonitor,
    }
    missing = []
    for what, make in monitors.items():
        found = _opened(make)
        if not isinstance(found, MonitorError):
            return found
        missing.append(f"no {what} ({str(found).partition(';')[0]})")
    raise MonitorError(
        f"no energy monitor is present: {', '.join(missing)}; "
        'to estimate from a known power write monitor = "estimate:150" under [run]'
    )


def _opened(make: Callable[[], WindowMonitor]) -> WindowMonitor | MonitorError:
    try:
        return make()
    except MonitorError as error:
        return error
