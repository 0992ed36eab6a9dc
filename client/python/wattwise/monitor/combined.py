"""Several meters as one: the GPUs and the processors that feed them."""

from __future__ import annotations

from contextlib import suppress

from wattwise.errors import MonitorError
from wattwise.monitor import Monitor, gpu_config, meter_kind
from wattwise.monitor.window import Measurement, Window
from wattwise.spec import GpuConfig


class CombinedMonitor:
    """Adds up what several meters measure.

        monitor = CombinedMonitor(NvmlMonitor(), RaplMonitor())

    A job's maximum power stays that of the GPUs, as its cost has it: P counts GPUs alone.

    Args:
        monitors: Meters of different kinds; one of them at most measures GPUs.

    Attributes:
        tells_failures: As of our meters: what it raises, but for a MonitorError, is the training's failure.
        kind: The kinds of all of them, such as "nvml+rapl".
        gpu_indices: Those of the meter that measures GPUs; empty when none does.

    Raises:
        MonitorError: There are fewer than two, or two that would measure the same thing.
    """

    tells_failures = True

    def __init__(self, *monitors: Monitor) -> None:
        if len(monitors) < 2:
            raise MonitorError(
                "CombinedMonitor adds up two meters or more: CombinedMonitor(NvmlMonitor(), RaplMonitor())"
            )
        kinds = [meter_kind(monitor) for monitor in monitors]
        parts = "+".join(kinds).split("+")
        twice = sorted({kind for kind in parts if parts.count(kind) > 1})
        if twice:
            raise MonitorError(
                f"{' and '.join(twice)} would count twice; pass one meter of a kind, over all its devices"
            )
        of_gpus = [monitor for monitor in monitors if len(monitor.gpu_indices) > 0]
        if len(of_gpus) > 1:
            raise MonitorError(f"{of_gpus[0]!r} and {of_gpus[1]!r} both measure GPUs; pass one meter over all of them")
        self.kind = "+".join(kinds)
        self._monitors = monitors
        self._main = of_gpus[0] if of_gpus else monitors[0]
        self.gpu_indices = list(self._main.gpu_indices)

    def __repr__(self) -> str:
        return f"CombinedMonitor({', '.join(map(repr, self._monitors))})"

    @property
    def gpu_meter(self) -> Monitor:
        """The one of them that measures GPUs; without GPUs, the first."""
        meter: Monitor = getattr(self._main, "gpu_meter", self._main)
        return meter

    def gpu_config(self) -> GpuConfig:
        """What the meter of the GPUs tells; without GPUs, what the first meter tells.

        Raises:
            MonitorError: It cannot tell.
        """
        return gpu_config(self._main)

    def begin_window(self, name: str, /) -> None:
        """Starts to measure under this name with every meter, or, if one cannot, with none.

        Args:
            name: Any name that no open window of theirs has.

        Raises:
            MonitorError: A window of this name is open, or a meter cannot be read.
        """
        begun: list[Monitor] = []
        try:
            for monitor in self._monitors:
                _begin(monitor, name)
                begun.append(monitor)
        except BaseException:
            for monitor in begun:
                # What made the other meter fail is the error to be told.
                with suppress(Exception):
                    monitor.end_window(name)
            raise

    def end_window(self, name: str, /) -> Window:
        """Ends the window of this name with every meter.

        Args:
            name: The name that it was begun under; it is free again afterwards, even when a meter cannot be read.

        Returns:
            The first meter's seconds, and the joules of all of them.

        Raises:
            MonitorError: No window of this name is open, or a meter cannot be read.
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
    """What a meter raised; out of another's meter anything may come, and all of it is the meter's failure."""
    if isinstance(error, MonitorError) or getattr(monitor, "tells_failures", False):
        return error
    return MonitorError(f"{monitor!r} failed: {type(error).__name__}: {error}")


def _ended(monitor: Monitor, name: str) -> Measurement | Exception:
    """What the meter measured, or why it could not: the others' windows are to be ended all the same."""
    try:
        return monitor.end_window(name)
    except Exception as error:  # noqa: BLE001 - the meter may be anybody's
        return error
