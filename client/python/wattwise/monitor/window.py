"""What an energy monitor is: the protocol, one window's result, and the window keeping that our own monitors share."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from wattwise.errors import MonitorError
from wattwise.monitor.in_flight import synchronize
from wattwise.monitor.poller import Poller
from wattwise.spec import GpuConfig


class Measurement(Protocol):
    """What a closed window answers; Zeus's `Measurement` fits."""

    @property
    def time(self) -> float:
        """Length of the window in seconds."""

    @property
    def total_energy(self) -> float:
        """Joules that everything the monitor measures used within the window."""


class Monitor(Protocol):
    """An energy monitor. Ours fit, and Zeus's `ZeusMonitor` as it is.

    A monitor may also have `gpu_config() -> GpuConfig`; without it the GPUs of `gpu_indices` are read through NVML.
    And it may have a `kind: str`, a word that is shown beside its energy: "estimate" where it does not measure.
    """

    @property
    def gpu_indices(self) -> Sequence[int]:
        """The measured GPUs, counted among those that CUDA_VISIBLE_DEVICES shows; empty when no GPU is measured."""

    def begin_window(self, name: str, /) -> None:
        """Starts to measure under this name."""

    def end_window(self, name: str, /) -> Measurement:
        """Ends the window of this name and says what happened within it."""


@dataclass(frozen=True)
class Window:
    """What one window measured.

    Attributes:
        time: Its length in seconds.
        total_energy: Joules that everything the monitor measures used within it.
    """

    time: float
    total_energy: float


@dataclass(frozen=True)
class Reading:
    """A monitor's counters at one moment; only the difference of two means anything.

    Attributes:
        time: Seconds of the monotonic clock.
        energies: Joules by each counter of the monitor.
    """

    time: float
    energies: tuple[float, ...]


class WindowMonitor(ABC):
    """Windows by name over energy counters: they may nest and overlap, and threads may share the monitor.

    Args:
        gpu_indices: The measured GPUs among the visible ones; empty when no GPU is measured.
        poll_seconds: How often the counter must be read while a window is open; None when its ends are enough.

    Attributes:
        tells_failures: Whether what it raises, but for a MonitorError, is the training's failure and not its own.
        kind: What measures: "nvml", "nvml-polled", "amdsmi", "amdsmi-polled", "rapl" or "estimate".
        gpu_indices: As given.
    """

    tells_failures = True
    kind: str

    def __init__(self, gpu_indices: Sequence[int] = (), poll_seconds: float | None = None) -> None:
        self.gpu_indices = list(gpu_indices)
        self._open: dict[str, Reading] = {}
        self._lock = threading.Lock()
        self._poller = None if poll_seconds is None else Poller(self._poll, poll_seconds)

    def begin_window(self, name: str, /) -> None:
        """Starts to measure under this name, once the work that PyTorch or JAX has queued is done.

        Args:
            name: Any name that no open window has.

        Raises:
            MonitorError: A window of this name is open, or the monitor cannot be read.
        """
        synchronize()
        with self._lock:
            if name in self._open:
                raise MonitorError(f"window {name!r} is open already; end it before you begin it again")
            self._open[name] = self._read()
            if self._poller:
                self._poller.start()

    def end_window(self, name: str, /) -> Window:
        """Ends the window of this name, once the work that PyTorch or JAX has queued is done.

        Args:
            name: The name that it was begun under; it is free again afterwards, even when the monitor cannot be read.

        Returns:
            Seconds and joules between the two calls.

        Raises:
            MonitorError: No window of this name is open, or the monitor cannot be read.
        """
        synchronize()
        with self._lock:
            begun = self._open.pop(name, None)
            if begun is None:
                raise MonitorError(f"window {name!r} is not open; call begin_window({name!r}) first")
            if self._poller and not self._open:
                self._poller.stop()
            ended = self._read()
        seconds = ended.time - begun.time
        used = [end - start for start, end in zip(begun.energies, ended.energies, strict=True)]
        return Window(seconds, self._joules(used, seconds))

    @abstractmethod
    def gpu_config(self) -> GpuConfig:
        """What is measured, as a job's specification names it.

        Raises:
            MonitorError: It cannot be told; the message says what to give instead.
        """

    def _joules(self, used: Sequence[float], seconds: float) -> float:  # noqa: ARG002 - for monitors that need it
        """What a window used.

        Args:
            used: By how much each counter grew within it, in joules.
            seconds: Its length.

        Raises:
            MonitorError: It cannot be told.
        """
        return sum(used)

    @abstractmethod
    def _read(self) -> Reading:
        """Reads clock and counters; called under the lock."""

    def _poll(self) -> None:
        # What fails here fails in end_window too, where somebody is there to be told.
        with self._lock, suppress(MonitorError):
            self._read()
