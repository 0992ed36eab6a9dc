"""The protocol of energy monitors, and the base class of Wattwise's own."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from wattwise.errors import ImplausibleError, MonitorError
from wattwise.rules import GpuGroup

if TYPE_CHECKING:
    from typing_extensions import Self


class WindowMeasurement(Protocol):
    """The result of a window; Zeus's `Measurement` fits."""

    @property
    def time(self) -> float:
        """Length of the window in seconds."""

    @property
    def total_energy(self) -> float:
        """Joules used within the window by all measured devices."""


class Monitor(Protocol):
    """An energy monitor: those of this package, Zeus's `ZeusMonitor`, or your own.

    A monitor may also have `gpu_group() -> GpuGroup`; without it the GPUs of `gpu_indices` are looked up, unless the
    job has a `gpu`. It may have a `kind: str`, the name that is shown beside its energy: "estimate" if it does not
    measure. And it may have `max_power_watts: float`, the highest power that it can measure: windows above it are
    discarded. Without it that is twice the maximum power of the job's GPUs.
    """

    @property
    def gpu_indices(self) -> Sequence[int]:
        """The measured GPUs, counted among those that CUDA_VISIBLE_DEVICES shows; empty if no GPU is measured."""

    def begin_window(self, name: str, /) -> None:
        """Begins a window of this name."""

    def end_window(self, name: str, /) -> WindowMeasurement:
        """Ends the window of this name and returns what it measured."""


@dataclass(frozen=True)
class Window:
    """What one window measured.

    Attributes:
        time: its length in seconds.
        total_energy: Joules used within it by all measured devices.
    """

    time: float
    total_energy: float


@dataclass(frozen=True)
class Reading:
    """A monitor's counters at one moment; only differences between readings are meaningful.

    Attributes:
        time: seconds of the monotonic clock.
        energies: Joules by each counter of the monitor.
    """

    time: float
    energies: tuple[float, ...]


class WindowMonitor(ABC):
    """Named windows over energy counters. They may nest and overlap, and threads may share the monitor.

    Args:
        gpu_indices: the measured GPUs among the visible ones; empty if no GPU is measured.
        poll_seconds: how often the counters must be read while a window is open; None if only at its ends.

    Attributes:
        raises_own_errors: True: its failures are MonitorErrors, and any other exception comes from the training.
        kind: "nvml", "nvml-polled", "amdsmi", "amdsmi-polled", "rapl" or "estimate".
        gpu_indices: as given.
    """

    raises_own_errors = True
    kind: str
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keeps the arguments for a copy in another process."""
        monitor = super().__new__(cls)
        monitor._arguments = args, options
        return monitor

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies the monitor by its arguments: another process opens the counters itself."""
        args, options = self._arguments
        return partial(type(self), **options), args

    def __init__(self, gpu_indices: Sequence[int] = (), poll_seconds: float | None = None) -> None:
        self.gpu_indices = list(gpu_indices)
        self._open: dict[str, Reading] = {}
        self._spoiled: dict[str, ImplausibleError] = {}
        self._lock = threading.Lock()
        self._poller = None if poll_seconds is None else Poller(self._poll, poll_seconds)

    def begin_window(self, name: str, /) -> None:
        """Begins a window, after the work that PyTorch or JAX has queued is done.

        Args:
            name: a name without an open window.

        Raises:
            MonitorError: if a window of this name is open, or the monitor cannot be read.
        """
        synchronize()
        with self._lock:
            if name in self._open:
                raise MonitorError(f"window {name!r} is already open; end it before beginning it again")
            try:
                reading = self._checked_read()
            except ImplausibleError:
                # A jump before the window does not concern it.
                reading = self._checked_read()
            self._open[name] = reading
            if self._poller:
                self._poller.start()

    def end_window(self, name: str, /) -> Window:
        """Ends a window, after the work that PyTorch or JAX has queued is done.

        Args:
            name: the name given to `begin_window`; it can be used again afterwards, even if the monitor fails.

        Returns:
            Seconds and joules between the two calls.

        Raises:
            MonitorError: if no window of this name is open, or the monitor cannot be read.
            ImplausibleError: if a reading within the window cannot be true.
        """
        synchronize()
        with self._lock:
            start = self._open.pop(name, None)
            if start is None:
                raise MonitorError(f"window {name!r} is not open; call begin_window({name!r}) first")
            if self._poller and not self._open:
                self._poller.stop()
            spoiled = self._spoiled.pop(name, None)
            end = self._checked_read()
        if spoiled is not None:
            raise spoiled
        seconds = end.time - start.time
        used = [last - first for first, last in zip(start.energies, end.energies, strict=True)]
        return Window(seconds, self._joules(used, seconds))

    @abstractmethod
    def gpu_group(self) -> GpuGroup:
        """Returns the measured devices, for the specification of a job.

        Raises:
            MonitorError: if they are unknown; the message says what to pass instead.
        """

    def _joules(self, used: Sequence[float], seconds: float) -> float:  # noqa: ARG002 - for monitors that need it
        """Returns the energy of a window.

        Args:
            used: the growth of each counter within it, in joules.
            seconds: its length.

        Raises:
            MonitorError: if it cannot be determined.
        """
        return sum(used)

    @abstractmethod
    def _read(self) -> Reading:
        """Reads clock and counters; called under the lock.

        Raises:
            ImplausibleError: if a number cannot be true; the next reading goes on from it.
        """

    def _checked_read(self) -> Reading:
        """Returns a reading; one that cannot be true spoils every open window."""
        try:
            return self._read()
        except ImplausibleError as error:
            self._spoiled.update(dict.fromkeys(self._open, error))
            raise

    def _poll(self) -> None:
        # A failure here also occurs in end_window, which raises it, as it does an implausible reading.
        with self._lock, suppress(MonitorError):
            self._checked_read()


class Poller:
    """Calls `action` every `period` seconds between `start` and `stop`.

    Neither waits for the thread, so both may be called while holding a lock that `action` takes; `action` may
    therefore run once more after `stop`.
    """

    def __init__(self, action: Callable[[], None], period: float) -> None:
        self._action = action
        self._period = period
        self._stopped: threading.Event | None = None

    def start(self) -> None:
        """Starts the calls, the first after one period; does nothing if they are running."""
        if self._stopped is not None:
            return
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(self._stopped,), name="wattwise-poller", daemon=True).start()

    def stop(self) -> None:
        """Stops the calls; does nothing if they are not running."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._period):
            self._action()


def synchronize() -> None:
    """Waits for the work that PyTorch and JAX have queued, so that a window contains its own work only.

    Neither is imported or initialized by this.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None:
        _wait_for_torch(torch)
    if jax is not None:
        _wait_for_jax(jax)


def _wait_for_torch(torch: Any) -> None:
    # Absent while another thread is still importing PyTorch.
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    # Synchronizing an unused device would create a context there, which takes memory.
    touched = {i for i in range(cuda.device_count()) if cuda.memory_reserved(i)}
    for device in sorted(touched | {cuda.current_device()}):
        cuda.synchronize(device)


def _wait_for_jax(jax: Any) -> None:
    # Asking for arrays would initialize JAX, which takes most of the memory of a GPU.
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    if hasattr(jax, "live_arrays") and (started is None or started()):
        jax.block_until_ready(jax.live_arrays())
