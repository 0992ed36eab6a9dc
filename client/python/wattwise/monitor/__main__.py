"""`python -m wattwise.monitor`: which monitors this machine has, and what each one measures right now."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattwise.errors import MonitorError
from wattwise.monitor.amdsmi import AmdSmiMonitor
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS, GpuMonitor
from wattwise.monitor.nvml import NvmlMonitor
from wattwise.monitor.present import PresentMonitor, present_monitors
from wattwise.monitor.rapl import POWERCAP
from wattwise.monitor.window import WindowMonitor

_WINDOW = "wattwise.monitor"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per monitor.

    Args:
        argv: The arguments; None for those of the process.

    Returns:
        The exit status: 0, or 1 when nothing here can be measured.
    """
    args = _parser().parse_args(argv)
    monitors = [other for monitor in present_monitors(args.powercap) for other in (monitor, *_by_power(monitor))]
    watts = _watts(
        [monitor.monitor for monitor in monitors if isinstance(monitor.monitor, WindowMonitor)], args.seconds
    )
    for monitor in monitors:
        _print(monitor, watts.get(id(monitor.monitor)))
    if not any(isinstance(told, float) for told in watts.values()):
        _say("Nothing measures here: pass EstimateMonitor(watts=...), with the watts that your training draws.")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattwise.monitor",
        description="Shows which energy monitors this machine has and what each measures, all at the same time. GPUs "
        "that count energy are measured by their power too, so that the two can be compared: run it beside a load.",
    )
    parser.add_argument("--seconds", type=_seconds, default=3.0, help="how long to measure (default: 3)")
    parser.add_argument("--powercap", type=Path, default=POWERCAP, help=f"the kernel's zones (default: {POWERCAP})")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not COUNTER_SECONDS <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not from {COUNTER_SECONDS} to 86400")
    return seconds


def _by_power(monitor: PresentMonitor) -> list[PresentMonitor]:
    """The same GPUs by their power, where some of them count energy."""
    if not isinstance(monitor.monitor, GpuMonitor) or not monitor.monitor.counts_energy:
        return []
    kind = AmdSmiMonitor if isinstance(monitor.monitor, AmdSmiMonitor) else NvmlMonitor
    call = f"{kind.__name__}(use_counter=False)"
    try:
        return [PresentMonitor(call, kind(use_counter=False))]
    except MonitorError as error:
        return [PresentMonitor(call, error)]


def _watts(monitors: Sequence[WindowMonitor], seconds: float) -> dict[int, float | MonitorError]:
    """What each monitor measures within the same seconds, or why it cannot, by the monitor's id."""
    begun = {id(monitor): _begun(monitor) for monitor in monitors}
    time.sleep(seconds)
    return {id(monitor): begun[id(monitor)] or _ended(monitor) for monitor in monitors}


def _begun(monitor: WindowMonitor) -> MonitorError | None:
    try:
        monitor.begin_window(_WINDOW)
    except MonitorError as error:
        return error
    return None


def _ended(monitor: WindowMonitor) -> float | MonitorError:
    try:
        window = monitor.end_window(_WINDOW)
    except MonitorError as error:
        return error
    return window.total_energy / window.time


def _print(monitor: PresentMonitor, told: float | MonitorError | None) -> None:
    if isinstance(monitor.monitor, MonitorError):
        _say(f"{monitor.call:33} not here: {monitor.why_not}")
    elif isinstance(told, float):
        _say(f"{monitor.call:33} {told:8.1f} W  {monitor.monitor!r}")
    else:
        _say(f"{monitor.call:33} fails: {told}")


def _say(line: str) -> None:
    print(" ".join(line.split()) if "\n" in line else line)  # noqa: T201 - the command's answer


if __name__ == "__main__":
    sys.exit(main())
