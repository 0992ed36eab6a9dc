"""Several monitors as one: the GPUs and the processors that feed them."""

from __future__ import annotations

from contextlib import suppress

from wattwise.errors import MonitorError
from wattwise.monitor import Monitor, MonitorKinds, gpu_config, monitor_kinds
from wattwise.monitor.kind import MOST_KINDS
from wattwise.monitor.window import Measurement, Window
from wattwise.spec import GpuConfig


class CombinedMonitor:
    """Adds up what several monitors measure.

        monitor = CombinedMonitor(NvmlMonitor(), RaplMonitor())

    A job's maximum power stays that of the GPUs, as its cost has it: P counts GPUs alone.

    Args:
        monitors: Monitors of different kinds; one of them at most measures GPUs.

    Attributes:
        tells_failures: As of our monitors: what it raises, but for a MonitorError, is the training's failure.
        kinds: The kinds of all of them.
        gpu_indices: Those of the monitor that measures GPUs; empty when none does.

    Raises:
        MonitorError: There are fewer than two, or two that would measure the same thing.
    """

    tells_failures = True

    def __init__(self, *monitors: Monitor) -> None:
        if len(monitors) < 2:
            raise MonitorError(
                "CombinedMonitor adds up two monitors or more: CombinedMonitor(NvmlMonitor(), RaplMonitor())"
            )
        kinds = [kind for monitor in monitors for kind in monitor_kinds(monitor).kinds]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            raise MonitorError(
                f"{' and '.join(twice)} would count twice; pass one monitor of a kind, over all its devices"
            )
        of_gpus = [monitor for monitor in monitors if len(monitor.gpu_indices) > 0]
        if len(of_gpus) > 1:
            raise MonitorError(
                f"{of_gpus[0]!r} and {of_gpus[1]!r} both measure GPUs; pass one monitor over all of them"
            )
        if len(kinds) > MOST_KINDS:
            raise MonitorError(f"{len(kinds)} kinds of monitor are too many; combine at most {MOST_KINDS}")
        self.kinds = MonitorKinds.of(kinds)
        self._monitors = monitors
        self._main = of_gpus[0] if of_gpus else monitors[0]
        self.gpu_indices = list(self._main.gpu_indices)

    def __repr__(self) -> str:
        return f"CombinedMonitor({', '.join(map(repr, self._monitors))})"

    @property
    def gpu_monitor(self) -> Monitor:
        """The one of them that measures GPUs; without GPUs, the first."""
        monitor: Monitor = getattr(self._main, "gpu_monitor", self._main)
        return monitor

    def gpu_config(self) -> GpuConfig:
        """What the monitor of the GPUs tells; without GPUs, what the first monitor tells.

        Raises:
            MonitorError: It cannot tell.
        """
        return gpu_config(self._main)

    def begin_window(self, name: str, /) -> None:
        """Starts to measure under this name with every monitor, or, if one cannot, with none.

        Args:
            name: Any name that no open window of theirs has.

        Raises:
            MonitorError: A window of this name is open, or a monitor cannot be read.
        """
        begun: list[Monitor] = []
        try:
            for monitor in self._monitors:
                _begin(monitor, name)
                begun.append(monitor)
        except BaseException:
            for monitor in begun:
                # What made the other monitor fail is the error to be told.
                with suppress(Exception):
                    monitor.end_window(name)
            raise

    def end_window(self, name: str, /) -> Window:
        """Ends the window of this name with every monitor.

        Args:
            name: The name that it was begun under; it is free again afterwards, even when a monitor cannot be read.

        Returns:
            The first monitor's seconds, and the joules of all of them.

        Raises:
            MonitorError: No window of this name is open, or a monitor cannot be read.
        """
        ended = [_ended(monitor, name) for monitor in self._monitors]
        measured = [window for window in ended if not isinstance(window, Exception)]
        for monitor, failure in zip(self._monitors, ended, strict=True):
            if isinstance(failure, Exception):
                raise _told(monitor, failure)
        return Window(measured[0].time, sum(window.total_energy for window in measured))


def _begin(monitor: Monitor, name: str) -> None:
    try:
        monitor.begin_window(name)
    except Exception as error:
        raise _told(monitor, error) from error


def _told(monitor: Monitor, error: Exception) -> Exception:
    """What a monitor raised; out of another's monitor anything may come, and all of it is the monitor's failure."""
    if isinstance(error, MonitorError) or getattr(monitor, "tells_failures", False):
        return error
    return MonitorError(f"{monitor!r} failed: {type(error).__name__}: {error}")


def _ended(monitor: Monitor, name: str) -> Measurement | Exception:
    """What the monitor measured, or why it could not: the others' windows are to be ended all the same."""
    try:
        return monitor.end_window(name)
    except Exception as error:  # noqa: BLE001 - the monitor may be anybody's
        return error
