"""`python -m wattwise.monitor`: which monitors work on this machine, and what each of them measures now."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattwise.errors import MonitorError
from wattwise.monitor.amd_gpu import AmdSmiMonitor
from wattwise.monitor.gpu import NvmlMonitor
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS, GpuMonitor
from wattwise.monitor.present import PresentMonitor, present_monitors
from wattwise.monitor.rapl import POWERCAP
from wattwise.monitor.window import WindowMonitor
from wattwise.streams import run_command

_NAME = "python -m wattwise.monitor"
_WINDOW = "wattwise.monitor"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per monitor.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0, or 1 if no monitor works.
    """
    return run_command(_NAME, sys.argv[1:] if argv is None else argv, _run)


def _run(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    monitors = [other for monitor in present_monitors(args.powercap) for other in (monitor, *_by_power(monitor))]
    watts = _watts(
        [monitor.monitor for monitor in monitors if isinstance(monitor.monitor, WindowMonitor)], args.seconds
    )
    for monitor in monitors:
        _print(monitor, watts.get(id(monitor.monitor)))
    if not any(isinstance(result, float) for result in watts.values()):
        _print_line("No monitor works here: pass EstimateMonitor(watts=...), with the power of your training in watts.")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        description="Shows which energy monitors work on this machine and what they measure in the same seconds. GPUs "
        "with energy counters are also measured by their power, to compare the two: run it while they are busy.",
    )
    parser.add_argument("--seconds", type=_seconds, default=3.0, help="the length of the measurement (default: 3)")
    parser.add_argument(
        "--powercap", type=Path, default=POWERCAP, help=f"the kernel's folder of powercap zones (default: {POWERCAP})"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not COUNTER_SECONDS <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is invalid; use {COUNTER_SECONDS} to 86400 seconds")
    return seconds


def _by_power(monitor: PresentMonitor) -> list[PresentMonitor]:
    """Returns the same GPUs measured by their power, if some of them have energy counters."""
    if not isinstance(monitor.monitor, GpuMonitor) or not monitor.monitor.counts_energy:
        return []
    kind = AmdSmiMonitor if isinstance(monitor.monitor, AmdSmiMonitor) else NvmlMonitor
    call = f"{kind.__name__}(use_counter=False)"
    try:
        return [PresentMonitor(call, kind(use_counter=False))]
    except MonitorError as error:
        return [PresentMonitor(call, error)]


def _watts(monitors: Sequence[WindowMonitor], seconds: float) -> dict[int, float | MonitorError]:
    """Returns the mean power that each monitor measures, or its error, by the id of the monitor."""
    errors = {id(monitor): _begin(monitor) for monitor in monitors}
    time.sleep(seconds)
    return {id(monitor): errors[id(monitor)] or _end(monitor) for monitor in monitors}


def _begin(monitor: WindowMonitor) -> MonitorError | None:
    try:
        monitor.begin_window(_WINDOW)
    except MonitorError as error:
        return error
    return None


def _end(monitor: WindowMonitor) -> float | MonitorError:
    try:
        window = monitor.end_window(_WINDOW)
    except MonitorError as error:
        return error
    return window.total_energy / window.time


def _print(monitor: PresentMonitor, watts: float | MonitorError | None) -> None:
    if isinstance(monitor.monitor, MonitorError):
        _print_line(f"{monitor.call:33} not available: {monitor.monitor.problem}")
    elif isinstance(watts, float):
        _print_line(f"{monitor.call:33} {watts:8.1f} W  {monitor.monitor!r}")
    else:
        _print_line(f"{monitor.call:33} fails: {watts}")


def _print_line(line: str) -> None:
    print(" ".join(line.split()) if "\n" in line else line)  # noqa: T201 - the command's answer


if __name__ == "__main__":
    sys.exit(main())
