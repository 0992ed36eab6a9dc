"""Ends the trial when the process goes away before it is decided."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from wattwise import v1
from wattwise.errors import ResumeError, WattwiseError
from wattwise.rpc.calls import trainer_end_reason
from wattwise.rules import EndReason

# Messages of frameworks and runtimes. "Out of memory" alone is not enough: databases, disks and quotas say it too.
_OUT_OF_MEMORY = (
    # PyTorch, on any device, and the runtimes that it calls.
    r"out of memory\. tried to allocate",
    (
        r"\b(?:cuda|hip|rocm|xpu|npu|hpu|mps|mlu|musa|tpu|gpu|acl|sycl|level.zero)"
        r"(?: driver| runtime| backend)?(?: error| failure)?(?: ?\(?\d+\)?)?[ :'\"]*"
        r"(?:has |is )?(?:ran |run |runs )?out of memory"
    ),
    r"allocation on device .{0,20}would exceed allowed memory",
    # CUDA and ROCm, their libraries, NCCL, MAGMA.
    r"\b(?:cuda|hip)_?error_?(?:out_?of_?memory|memory_?allocation)",
    r"\b(?:cu|hip|roc)[a-z]+_(?:\w+_)?alloc(?:ation)?_failed",
    r"\bnvrtc_error_out_of_memory",
    r"\bmiopen_?status_?alloc_?failed",
    r"\brocblas_status_memory_error",
    r"\bhsa_status_error_out_of_resources",
    r"\bmagma_err_(?:device|host)_alloc",
    r"failed to cuda (?:calloc|malloc|host alloc)",
    r"memory not available to allocate buffer",
    # cuDNN, if no algorithm's workspace fits. "Unable to find an engine" is about types and devices instead.
    r"cudnn error: cudnn_status_not_supported\.",
    r"unable to find a valid cudnn algorithm",
    # XPU: Level Zero, Unified Runtime and its predecessor, OpenCL.
    (
        r"\b(?:ze_result_error|ur_result_error|pi_error|cl)_"
        r"(?:out_of_(?:device_memory|host_memory|resources)|mem_object_allocation_failure)"
    ),
    r"allocation is out of device memory",
    # NPU (Ascend).
    r"\bacl_error_(?:rt_memory_allocation|bad_alloc|storage_over_limit)",
    r"error code is 207001\b",
    r"\bmemory_allocation_failure\b",
    r"failed to apply for memory",
    # HPU (Gaudi).
    r"\bpt_devmem\b.{0,40}\ballocation failed",
    r"\bsynoutof(?:device|host)memory",
    r"out of (?:device|host) memory \(oom\)",
    # MPS.
    r"kiogpucommandbuffercallbackerroroutofmemory",
    r"\binvalid buffer size: [\d.]+ [kmgt]i?b\b",
    # XLA on any device, JAX, TensorFlow.
    r"resource[_ ]exhausted: (?:out of memory|failed to allocate|error allocating)",
    r"attempting to (?:reserve|allocate) .{1,60} that was not possible",
    r"ran out of memory (?:in memory space|(?:while )?trying to allocate)",
    r"out of memory (?:while trying to allocate|allocating) \d",
    r"error allocating device buffer",
    r"failed to allocate (?:memory\b|scratch buffer|\d+ bytes|[\d.]+\w* \(\d+ bytes\) from device)",
    r"\boom when allocating tensor",
    r"dst tensor is not initialized",
    # The host: C++, PyTorch, NumPy, errno 12, and exceptions in the text of another process's traceback.
    r"\bstd::bad_alloc\b",
    r"defaultcpuallocator: (?:can't allocate|not enough) memory",
    r"unable to allocate [\d.]+ [kmgtpe]ib for an array",
    r"\[errno 12\]",
    r"cannot allocate memory \(12\)",
    r"^(?:[\w.]+\.)?(?:_ArrayMemoryError|MemoryError|OutOfMemoryError)(?::|\s*$)",
    # The batches of a DataLoader's workers: the kernel has killed a worker, or shared memory is full.
    r"dataloader worker \(pid[^)]*\) is killed by signal: (?:killed|bus error)",
    r"insufficient shared memory \(shm\)",
    r"unable to allocate shared memory",
    r"</torch_[^>]*>.{0,40}: no space left on device",
)
_LONGEST = 10_000
"""Characters of a message to search at each end: XLA appends megabytes, and a traceback has its error last."""


def end_reason(error: BaseException | None) -> EndReason:
    """Returns the end reason for a training that ends with an exception; None stands for no exception.

    It is out of memory if the exception, one of its causes, or one exception of a group says so. Ctrl-C and a
    checkpoint that cannot be continued count as preempted, because the batch size is not the cause.
    """
    if error is None or isinstance(error, GeneratorExit):
        return EndReason.COMPLETED
    if isinstance(error, SystemExit):
        return EndReason.ERROR if error.code else EndReason.COMPLETED
    if isinstance(error, KeyboardInterrupt | ResumeError):
        return EndReason.PREEMPTED
    out_of_memory = any(_is_out_of_memory(cause) for cause in _causes(error))
    return EndReason.OUT_OF_MEMORY if out_of_memory else EndReason.ERROR


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, its causes, and the members of exception groups."""
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
    if isinstance(error, WattwiseError):
        # Its message may be about other trials.
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # By name, without importing torch.
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    message = str(error)
    parts = message if len(message) <= 2 * _LONGEST else f"{message[:_LONGEST]}\n{message[-_LONGEST:]}"
    # Compiled here, because few processes need it.
    return named or re.search("|".join(_OUT_OF_MEMORY), parts, re.IGNORECASE | re.MULTILINE) is not None


class EndActions:
    """Callbacks for the end of a trial or of its process; a signal handler may call them, and they must not raise."""

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
    and the process does not ignore the signal, as under `nohup`; the previous handler runs afterwards. Ctrl-C is noted,
    because many training scripts catch `KeyboardInterrupt` and exit as if they were finished.

    Args:
        end: ends the trial within a bounded time; must be safe to call in a signal handler.
    """

    def __init__(self, end: Callable[[v1.EndReason.ValueType], None]) -> None:
        self._end = end
        self._interrupts_before = 0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed since this guard was installed."""
        watch = _watches.get(os.getpid())
        return watch is not None and watch.interrupts > self._interrupts_before

    def install(self) -> None:
        """Starts to watch for the end of the process."""
        watch = _watches.get(os.getpid())
        if watch is None:
            watch = _watches[os.getpid()] = _Watch()
            watch.install()
        self._interrupts_before = watch.interrupts
        watch.ends.append(self._end)

    def remove(self) -> None:
        """Stops to watch; the last guard restores the previous hooks, unless they were replaced since."""
        watch = _watches.get(os.getpid())
        if watch is None:
            return
        # A signal has taken all of them, even if the process goes on.
        with contextlib.suppress(ValueError):
            watch.ends.remove(self._end)
        if not watch.ends:
            del _watches[os.getpid()]
            watch.uninstall()


class _Watch:
    """The hooks of one process, shared by all its trials."""

    def __init__(self) -> None:
        self.ends: list[Callable[[v1.EndReason.ValueType], None]] = []
        self.interrupts = 0
        self._pid = os.getpid()
        self._hook_before: Callable[..., Any] = sys.excepthook
        self._handlers_before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGINT)}

    def install(self) -> None:
        atexit.register(self._on_exit)
        sys.excepthook = self._on_exception
        for number, before in self._handlers_before.items():
            # None is a handler that was not installed by Python code and cannot be called afterwards.
            if before is not None and before != signal.SIG_IGN:
                with contextlib.suppress(ValueError):  # not in the main thread
                    signal.signal(number, self._handler_of(number))

    def uninstall(self) -> None:
        atexit.unregister(self._on_exit)
        # Every access creates a new bound method: equal, but not identical.
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook_before
        for number, before in self._handlers_before.items():
            if signal.getsignal(number) == self._handler_of(number):
                # Not in the main thread: the handler then just passes the signal on.
                with contextlib.suppress(ValueError):
                    signal.signal(number, before)

    def _handler_of(self, number: signal.Signals) -> Callable[[int, FrameType | None], None]:
        return self._on_interrupt if number == signal.SIGINT else self._on_signal

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
            self._end_all(trainer_end_reason(end_reason(error)))
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

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        before = self._handlers_before[signal.SIGINT]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""A scheduler that takes the machine away sends one, a terminal that is closed the other."""

_watches: dict[int, _Watch] = {}
"""The keys are process ids, so that a forked process does not find its parent's watch."""


_masks: dict[int, set[int | signal.Signals]] = {}
"""The signals that a thread had blocked before it forks; the keys are thread ids."""


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
