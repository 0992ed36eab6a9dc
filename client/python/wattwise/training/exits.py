"""Tells the server how a training ended when the process goes away before the trial is decided."""

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

# What the libraries say, in lower case; a class of the name below says it without words.
_OF_A_TRAINER = (
    v1.END_REASON_COMPLETED,
    v1.END_REASON_ERROR,
    v1.END_REASON_OUT_OF_MEMORY,
    v1.END_REASON_PREEMPTED,
)
_OUT_OF_MEMORY = (
    # PyTorch, and what CUDA's libraries and NCCL report through it.
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
    """Why a training ends that was left with an exception.

    Args:
        error: the exception; None if there was none.

    Returns:
        Out of memory if the exception says so, or one that led to it, or one of a group; one that was caught and dealt
        with before is none of them. Ctrl-C counts as preempted: the batch size is not to blame for it.
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
    """Makes sure that a reason is a trainer's to give.

    Raises:
        InvalidArgumentError: if it is not; says which are.
    """
    if reason not in _OF_A_TRAINER:
        names = "COMPLETED, _ERROR, _OUT_OF_MEMORY or _PREEMPTED"
        raise InvalidArgumentError(f"close() got {reason!r} as reason: give v1.END_REASON_{names}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, those that led to it, and those that a group is made of."""
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
    # By name: Python 3.10 has exception groups from a package alone.
    is_group = any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)
    return tuple(getattr(error, "exceptions", ())) if is_group else ()


def _is_out_of_memory(error: BaseException) -> bool:
    # torch.cuda.OutOfMemoryError is an old name of torch.OutOfMemoryError; neither is worth importing torch for.
    names, said = (kind.__name__ for kind in type(error).__mro__), str(error).lower()
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names or any(each in said for each in _OUT_OF_MEMORY)


class EndActions:
    """What is to be done as soon as a trial is over, or its process goes away."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._ended = False

    def add(self, action: Callable[[], None]) -> None:
        """Has something done at the end; at once if that has come."""
        self._actions.append(action)
        if self._ended:
            self.run()

    def run(self) -> None:
        """The end has come. A signal handler may say so in the midst of this: each action is called once."""
        self._ended = True
        while self._actions:
            self._actions.pop()()


class ExitGuard:
    """Ends a trial when the process exits, dies of an exception or is terminated, and leaves everything else as usual.

    It works in the process that installed it only. SIGTERM is caught if the main thread installs it and the process
    does not ignore the signal; what handled it before does so afterwards.

    Args:
        end: ends the trial within a bounded time; safe to call in a signal handler.
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
        """Stops to watch; the last guard puts back what was there before, unless somebody came after."""
        watch = _watches.get(os.getpid())
        if watch is not None and self._end in watch.ends:
            watch.ends.remove(self._end)
            if not watch.ends:
                del _watches[os.getpid()]
                watch.uninstall()


class _Watch:
    """The hooks of one process, for all trials that run in it at the same time."""

    def __init__(self) -> None:
        self.ends: list[Callable[[v1.EndReason.ValueType], None]] = []
        self._pid = os.getpid()
        self._hook_before: Callable[..., Any] = sys.excepthook
        self._handler_before = signal.getsignal(signal.SIGTERM)

    def install(self) -> None:
        atexit.register(self._on_exit)
        sys.excepthook = self._on_exception
        # A handler that is None was not installed by Python code and could not be called afterwards.
        if self._handler_before is not None and self._handler_before != signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # not the main thread, which alone may do so
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def uninstall(self) -> None:
        atexit.unregister(self._on_exit)
        # Bound methods are made anew at every look: the same one is equal, never identical.
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook_before
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            with contextlib.suppress(ValueError):  # not the main thread; the handler then only passes the signal on
                signal.signal(signal.SIGTERM, self._handler_before)

    def _tell(self, reason: v1.EndReason.ValueType) -> None:
        # A process forked since then may run the same hooks, but it has no trial to end.
        if os.getpid() == self._pid:
            # Each is told once: a second signal must not wait again.
            ends, self.ends = self.ends, []
            for end in ends:
                end(reason)

    def _on_exit(self) -> None:
        self._tell(v1.END_REASON_COMPLETED)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._tell(end_reason(error))
        finally:
            self._hook_before(kind, error, trace)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        try:
            self._tell(v1.END_REASON_PREEMPTED)
        finally:
            if callable(self._handler_before):
                self._handler_before(number, frame)
            else:
                # Dying of the signal itself is the only way to the exit status that it stands for.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)


_watches: dict[int, _Watch] = {}
"""By process id, so that a forked process finds none."""


_masks: dict[int, set[int | signal.Signals]] = {}
"""By thread id: the signals that were blocked before the thread began to fork."""


def _hold_signal() -> None:
    # A child forgets signals that reach it before it is set up, and a SIGTERM with a handler would be lost: it waits.
    if os.getpid() in _watches:
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_signal_through() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _release_in_child() -> None:
    # A forked child, such as a data-loader worker, dies of SIGTERM as usual even if it never returns to Python code.
    for watch in _watches.values():
        watch.uninstall()
    _watches.clear()
    _let_signal_through()
    _masks.clear()


os.register_at_fork(before=_hold_signal, after_in_parent=_let_signal_through, after_in_child=_release_in_child)
