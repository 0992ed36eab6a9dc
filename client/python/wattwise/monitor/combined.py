"""Several monitors as one, such as those of the GPUs and the processors."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

from wattwise.errors import MonitorError
from wattwise.monitor.config import gpu_group
from wattwise.monitor.kind import MonitorKinds, monitor_kinds
from wattwise.monitor.plausible import CheckedMonitor
from wattwise.monitor.window import Monitor, Window, WindowMeasurement
from wattwise.rules import MAX_KINDS, GpuGroup


class CombinedMonitor:
    """Adds up what several monitors measure.

        monitor = CombinedMonitor(NvmlMonitor(), RaplMonitor())

    The maximum power of a job remains that of the GPUs, since its cost counts only their power.

    Args:
        monitors: monitors of different kinds; at most one of them measures GPUs.

    Attributes:
        raises_own_errors: True, as for all monitors of Wattwise.
        kinds: the kinds of all of them.
        monitors: as given.
        checked_parts: the same, with the plausibility check.
        gpu_indices: those of the monitor that measures GPUs; empty if none does.

    Raises:
        MonitorError: if there are fewer than two, or two measure the same devices.
    """

    raises_own_errors = True

    def __init__(self, *monitors: Monitor) -> None:
        if len(monitors) < 2:
            raise MonitorError(
                "CombinedMonitor needs two or more monitors: CombinedMonitor(NvmlMonitor(), RaplMonitor())"
            )
        kinds = [kind for monitor in monitors for kind in monitor_kinds(monitor).kinds]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            raise MonitorError(
                f"{' and '.join(twice)} would count twice; pass one monitor of each kind, for all its devices"
            )
        of_gpus = [monitor for monitor in monitors if len(monitor.gpu_indices) > 0]
        if len(of_gpus) > 1:
            raise MonitorError(f"{of_gpus[0]!r} and {of_gpus[1]!r} both measure GPUs; pass one monitor for all of them")
        if len(kinds) > MAX_KINDS:
            raise MonitorError(f"{len(kinds)} kinds of monitor are too many; combine at most {MAX_KINDS}")
        self.kinds = MonitorKinds.of(kinds)
        self.monitors = monitors
        self.checked_parts = [CheckedMonitor(monitor) for monitor in monitors]
        self._main = of_gpus[0] if of_gpus else monitors[0]
        self.gpu_indices = list(self._main.gpu_indices)

    def __repr__(self) -> str:
        return f"CombinedMonitor({', '.join(map(repr, self.monitors))})"

    @property
    def gpu_monitor(self) -> Monitor:
        """The monitor that measures GPUs; the first one if none does."""
        monitor: Monitor = getattr(self._main, "gpu_monitor", self._main)
        return monitor

    def gpu_group(self) -> GpuGroup:
        """Returns the configuration of the GPUs; that of the first monitor if none measures GPUs.

        Raises:
            MonitorError: if it is unknown.
        """
        return gpu_group(self._main)

    def begin_window(self, name: str, /) -> None:
        """Begins a window of every monitor, or of none if one of them fails.

        Args:
            name: a name without an open window in any of them.

        Raises:
            MonitorError: if a window of this name is open, or a monitor cannot be read.
        """
        open_monitors: list[CheckedMonitor] = []
        try:
            for monitor in self.checked_parts:
                _begin(monitor, name)
                open_monitors.append(monitor)
        except BaseException:
            for monitor in open_monitors:
                # The error of the other monitor is the one to raise.
                with suppress(Exception):
                    monitor.end_window(name)
            raise

    def end_window(self, name: str, /) -> Window:
        """Ends the window of every monitor.

        Args:
            name: the name given to `begin_window`; it can be used again afterwards, even if a monitor fails.

        Returns:
            The first monitor's seconds, and the joules of all of them.

        Raises:
            MonitorError: if no window of this name is open, or a monitor cannot be read.
            ImplausibleError: if what one of them measured cannot be true.
        """
        # All windows are ended before the first error is raised.
        results = [_end(monitor, name) for monitor in self.checked_parts]
        windows: list[WindowMeasurement] = []
        for monitor, result in zip(self.checked_parts, results, strict=True):
            if isinstance(result, Exception):
                _raise(monitor, result)
            windows.append(result)
        return Window(windows[0].time, sum(window.total_energy for window in windows))


def _begin(monitor: CheckedMonitor, name: str) -> None:
    try:
        monitor.begin_window(name)
    except Exception as error:  # noqa: BLE001 - third-party monitors may raise anything
        _raise(monitor, error)


def _raise(monitor: CheckedMonitor, error: Exception) -> NoReturn:
    """Raises a monitor's error; whatever a third-party monitor raises is its failure."""
    if isinstance(error, MonitorError) or monitor.raises_own_errors:
        raise error
    raise MonitorError(f"{monitor!r} failed: {type(error).__name__}: {error}") from error


def _end(monitor: CheckedMonitor, name: str) -> WindowMeasurement | Exception:
    try:
        return monitor.end_window(name)
    except Exception as error:  # noqa: BLE001 - third-party monitors may raise anything
        return error
