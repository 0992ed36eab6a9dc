"""Ends the trial when the process goes away before it is decided."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from wattwise import v1
from wattwise.errors import InvalidArgumentError

_TRAINER_REASONS = (
    v1.END_REASON_COMPLETED,
    v1.END_REASON_STOPPED_EARLY,
    v1.END_REASON_ERROR,
    v1.END_REASON_OUT_OF_MEMORY,
    v1.END_REASON_PREEMPTED,
)
# Parts of the messages of PyTorch and others, in lower case.
_OUT_OF_MEMORY = (
    # PyTorch, with the messages of CUDA's libraries and NCCL.
    "cuda out of memory",
    "cuda error: out of memory",
    "cuda driver error: out of memory",
    "cuda failure 'out of memory'",
    "cuda failure 2 'out of memory'",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "hip out of memory",
    "hip error: out of memory",
    "mps backend out of memory",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    # JAX.
    "resource_exhausted: out of memory",
    "resource_exhausted: failed to allocate",
    "ran out of memory in memory space",
    "error allocating device buffer",
    # TensorFlow.
    "oom when allocating tensor",
    "failed to allocate memory",
    "dst tensor is not initialized",
)


def end_reason(error: BaseException | None) -> v1.EndReason.ValueType:
    """The end reason for a training that ends with an exception; None stands for no exception.

    It is out of memory if the exception, one of its causes, or one exception of a group says so. Ctrl-C counts as
    preempted, because the batch size is not the cause.
    """
    if error is None or isinstance(error, GeneratorExit):
        return v1.END_REASON_COMPLETED
    if isinstance(error, SystemExit):
        return v1.END_REASON_ERROR if error.code else v1.END_REASON_COMPLETED
    if isinstance(error, KeyboardInterrupt):
        return v1.END_REASON_PREEMPTED
    out_of_memory = any(_is_out_of_memory(cause) for cause in _causes(error))
    return v1.END_REASON_OUT_OF_MEMORY if out_of_memory else v1.END_REASON_ERROR


def check_reason(reason: v1.EndReason.ValueType) -> None:
    """Checks that a trainer may end a trial for `reason`.

    Raises:
        InvalidArgumentError: if not; names the reasons that are allowed.
    """
    if reason not in _TRAINER_REASONS:
        names = " or ".join(f"v1.{v1.EndReason.Name(each)}" for each in _TRAINER_REASONS)
        raise InvalidArgumentError(f"close() got reason {reason!r}: use {names}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes, and the members of exception groups."""
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            following.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))
            following += _members(each)


def _members(error: BaseException) -> tuple[BaseException, ...]:
    # By name: Python 3.10 has exception groups only from a backport.
    is_group = any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)
    return tuple(getattr(error, "exceptions", ())) if is_group else ()


def _is_out_of_memory(error: BaseException) -> bool:
    # By name, without importing torch.
    names, message = (kind.__name__ for kind in type(error).__mro__), str(error).lower()
    return (
        isinstance(error, MemoryError) or "OutOfMemoryError" in names or any(each in message for each in _OUT_OF_MEMORY)
    )


class EndActions:
    """Callbacks for the end of a trial or of its process."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._ended = False

    def add(self, action: Callable[[], None]) -> None:
        """Calls `action` at the end, or immediately if the end has already come."""
        self._actions.append(action)
        if self._ended:
            self.run()

    def run(self) -> None:
        """Calls every action once, even if a signal handler calls this at the same time."""
        self._ended = True
        while self._actions:
            self._actions.pop()()


class ExitGuard:
    """Ends a trial when the process exits, dies of an exception or is terminated.

    It works only in the process that installed it. SIGTERM and SIGHUP are caught if the main thread installs the guard
    and the process does not ignore the signal, as under `nohup`; the previous handler runs afterwards.

    Args:
        end: ends the trial within a bounded time; must be safe to call in a signal handler.
    """

    def __init__(self, end: Callable[[v1.EndReason.ValueType], None]) -> None:
        self._end = end

    def install(self) -> None:
        """Starts to watch for the end of the process."""
        watch = _watches.get(os.getpid())
        if watch is None:
            watch = _watches[os.getpid()] = _Watch()
            watch.install()
        watch.ends.append(self._end)

    def remove(self) -> None:
        """Stops to watch; the last guard restores the previous hooks, unless they were replaced since."""
        watch = _watches.get(os.getpid())
        if watch is not None and self._end in watch.ends:
            watch.ends.remove(self._end)
            if not watch.ends:
                del _watches[os.getpid()]
                watch.uninstall()


class _Watch:
    """The hooks of one process, shared by all its trials."""

    def __init__(self) -> None:
        self.ends: list[Callable[[v1.EndReason.ValueType], None]] = []
        self._pid = os.getpid()
        self._hook_before: Callable[..., Any] = sys.excepthook
        self._handlers_before = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        atexit.register(self._on_exit)
        sys.excepthook = self._on_exception
        for number, before in self._handlers_before.items():
            # None is a handler that was not installed by Python code and cannot be called afterwards.
            if before is not None and before != signal.SIG_IGN:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        atexit.unregister(self._on_exit)
        # Every access creates a new bound method: equal, but not identical.
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook_before
        for number, before in self._handlers_before.items():
            if signal.getsignal(number) == self._on_signal:
                # Not in the main thread: the handler then just passes the signal on.
                with contextlib.suppress(ValueError):
                    signal.signal(number, before)

    def _end_all(self, reason: v1.EndReason.ValueType) -> None:
        # A forked process runs the same hooks, but its parent owns the trial.
        if os.getpid() == self._pid:
            # Once each: a second signal must not wait again.
            ends, self.ends = self.ends, []
            for end in ends:
                end(reason)

    def _on_exit(self) -> None:
        self._end_all(v1.END_REASON_COMPLETED)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._end_all(end_reason(error))
        finally:
            self._hook_before(kind, error, trace)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._handlers_before[signal.Signals(number)]
        try:
            self._end_all(v1.END_REASON_PREEMPTED)
        finally:
            if callable(before):
                before(number, frame)
            else:
                # Only dying of the signal itself gives that signal's exit status.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Of a scheduler that takes the machine away, and of a terminal that is closed."""

_watches: dict[int, _Watch] = {}
"""By process id, so that a forked process does not find its parent's."""


_masks: dict[int, set[int | signal.Signals]] = {}
"""By thread id: the blocked signals before the thread forks."""


def _hold_signal() -> None:
    # A child loses signals that reach it before it is set up, so those with a handler are held back until then.
    if os.getpid() in _watches:
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_signal_through() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _release_in_child() -> None:
    # A forked child, such as a data-loader worker, dies of a signal as usual, even if it never returns to Python code.
    for watch in _watches.values():
        watch.uninstall()
    _watches.clear()
    _let_signal_through()
    _masks.clear()


os.register_at_fork(before=_hold_signal, after_in_parent=_let_signal_through, after_in_child=_release_in_child)
