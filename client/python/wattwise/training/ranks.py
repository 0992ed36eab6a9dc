"""The processes of one training: rank 0 acts, and all ranks get the same outcome."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from wattwise.errors import InvalidArgumentError, OperationOrderError, TrainerSetupError, WattwiseError, log
from wattwise.training.arrivals import Arrivals, warned

T = TypeVar("T")

Broadcast: TypeAlias = Callable[[Any], Any]
"""Gets bytes on rank 0 and None on the other ranks, and returns rank 0's bytes on every rank."""

_END_SECONDS = 1.0
_PAUSE_SECONDS = 0.0002

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `init_process_group` reads."""

_MOST_DIGITS = 9
"""A number of processes with more digits does not fit into the request."""


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of its training.

    Attributes:
        rank: this process, from 0.
        size: the number of ranks; 1 without `torch.distributed`.
        broadcast: sends rank 0's bytes to all ranks; None uses `torch.distributed`.
        given: whether the user gave them, so that `torch.distributed` does not matter.
    """

    rank: int = 0
    size: int = 1
    broadcast: Broadcast | None = None
    given: bool = False

    @classmethod
    def of(cls, rank: int | None, size: int | None, broadcast: Broadcast | None) -> Ranks | None:
        """Returns the ranks of a user's arguments; None if there are no arguments.

        Raises:
            InvalidArgumentError: if an argument is missing or invalid.
        """
        if rank is None and size is None and broadcast is None:
            return None
        given = {"rank": rank, "world_size": size, "broadcast": broadcast}
        missing = [name for name, value in given.items() if value is None]
        if missing and (missing != ["broadcast"] or size != 1):
            passed = [name for name in given if name not in missing]
            raise InvalidArgumentError(
                f"got {' and '.join(passed)} without {' and '.join(missing)}: pass all three, or none of them to use "
                "torch.distributed"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidArgumentError(f"world_size={size!r} is invalid: pass the number of ranks, 1 or more")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size:
            raise InvalidArgumentError(
                f"rank={rank!r} is invalid: pass an integer from 0 to world_size - 1 = {size - 1}"
            )
        if broadcast is not None and not callable(broadcast):
            raise InvalidArgumentError(
                f"broadcast={broadcast!r} cannot be called: pass a function that gets bytes on rank 0 and None on the "
                "other ranks, and returns rank 0's bytes on every rank"
            )
        return cls(rank, size, broadcast, given=True)

    @classmethod
    def current(cls) -> Ranks:
        """Returns the rank and size in `torch.distributed` now."""
        group = _group()
        return cls() if group is None else cls(group.get_rank(), group.get_world_size())

    def on_first(self, call: str, action: Callable[[], T]) -> T:
        """Runs `action` on rank 0 and returns its result, or raises its error, on every rank. All ranks must call it.

        Args:
            call: what the user calls, for the warning about ranks that do not call it.
            action: its result must be picklable.

        Raises:
            OperationOrderError: if the process group was initialised or destroyed since `current`.
        """
        self._check_unchanged()
        if self.size == 1:
            return action()
        if self.broadcast is None:
            outcomes: list[T] = self._exchanged(call, action if self.rank == 0 else _nothing)
            return outcomes[0]
        outcome = None if self.rank else _outcome(action)
        with warned(call):
            if outcome is None:
                outcome = self._received()
            else:
                self.broadcast(pickle.dumps(outcome.for_others(self.rank)))
        return cast("T", outcome.result_or_raise())

    def gather(self, call: str, action: Callable[[], T]) -> list[T]:
        """Runs `action` on every rank and returns all results, by rank, on every rank. All ranks must call it.

        A `broadcast` cannot do that: with one, there must be a single rank.

        Args:
            call: as for `on_first`.
            action: its result must be picklable.

        Raises:
            Exception: on every rank, the error of the first rank that failed; a WattwiseError if that is another rank.
            OperationOrderError: if the process group was initialised or destroyed since `current`.
        """
        self._check_unchanged()
        return [action()] if self.size == 1 else self._exchanged(call, action)

    def end(self) -> None:
        """Tells the other ranks that this one fails, so that none waits for it longer than it must."""
        arrivals = None if self.size == 1 else _arrivals(self)
        if arrivals is not None:
            # A store whose machine is gone may not answer.
            thread = threading.Thread(target=_attempt, args=(arrivals.end,), daemon=True)
            thread.start()
            thread.join(_END_SECONDS)

    def _check_unchanged(self) -> None:
        if not self.given and Ranks.current() != self:
            raise OperationOrderError(
                "the torch.distributed process group changed since get_batch_size(); "
                "initialise it before that call and destroy it after the training"
            )

    def _exchanged(self, call: str, action: Callable[[], Any]) -> list[Any]:
        """Returns the results of `action` on every rank, through `torch.distributed`."""
        arrivals = _arrivals(self)
        if arrivals is not None:
            _attempt(lambda: arrivals.enter(call))
        own = _outcome(action)
        if arrivals is not None:
            _attempt(arrivals.wait)
        with warned(call) if arrivals is None else contextlib.nullcontext():
            outcomes = _all_gather(own.for_others(self.rank), self.size)
        outcomes[self.rank] = own
        return [outcome.result_or_raise() for outcome in outcomes]

    def _received(self) -> _Outcome:
        received = cast("Broadcast", self.broadcast)(None)
        if not isinstance(received, bytes | bytearray | memoryview):
            raise TrainerSetupError(
                f"broadcast() returned an object of type {type(received).__name__} on rank {self.rank} instead of "
                "the bytes that rank 0 passed to it"
            )
        return cast("_Outcome", pickle.loads(received))  # noqa: S301 - rank 0 is this training


class _Outcome(NamedTuple):
    """What an action returned or raised."""

    result: Any
    error: Exception | None = None

    def for_others(self, rank: int) -> _Outcome:
        """Returns the outcome as `rank` sends it: other exceptions may not survive pickling, which shows too late."""
        if self.error is None or isinstance(self.error, WattwiseError):
            return self
        return _Outcome(None, WattwiseError(f"rank {rank} failed: {type(self.error).__name__}: {self.error}"))

    def result_or_raise(self) -> Any:
        """Returns the result.

        Raises:
            Exception: what the action raised.
        """
        if self.error is not None:
            raise self.error
        return self.result


def _outcome(action: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(action())
    except Exception as error:  # noqa: BLE001 - every rank raises it once all ranks have it
        return _Outcome(None, error)


def _nothing() -> None:
    """Does nothing, as the ranks other than 0."""


def _attempt(exchange: Callable[[], None]) -> None:
    """Exchanges something through the store, if its process is there; else a collective operation fails soon."""
    with contextlib.suppress(RuntimeError):
        exchange()


def _all_gather(own: _Outcome, size: int) -> list[_Outcome]:
    """Returns the outcome of each rank, by rank."""
    group = _group()
    if "cpu:gloo" not in group.get_backend_config():
        outcomes: list[Any] = [None] * size
        group.all_gather_object(outcomes, own)
        return outcomes
    torch: Any = sys.modules["torch"]
    sent = pickle.dumps(own)
    length, lengths = torch.tensor([len(sent)]), [torch.tensor([0]) for _ in range(size)]
    group.all_gather(lengths, length)
    longest = max(map(int, lengths))
    part = torch.tensor(list(sent.ljust(longest, b"\0")), dtype=torch.uint8)
    parts = [torch.empty_like(part) for _ in range(size)]
    group.all_gather(parts, part)
    _wait_for_threads([length, *lengths, part, *parts])
    messages = [bytes(each[: int(count)].tolist()) for each, count in zip(parts, lengths, strict=True)]
    return [pickle.loads(message) for message in messages]  # noqa: S301 - the ranks are this training


def _wait_for_threads(tensors: Sequence[Any]) -> None:
    """Waits until gloo's threads have released the tensors of an exchange, usually a few microseconds.

    A thread needs the interpreter for that, and aborts the process if it has ended, as it may right after the last
    exchange: `all_gather_object` of PyTorch 2.13 has this fault.
    """
    end = time.monotonic() + _END_SECONDS
    while any(getattr(each, "_use_count", int)() > 1 for each in tensors) and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)


_arrivals_of_group: Arrivals | None = None


def _arrivals(ranks: Ranks) -> Arrivals | None:
    """Returns the arrivals of this process in its process group; None if the group has no store."""
    global _arrivals_of_group  # noqa: PLW0603 - like the process group itself
    if ranks.given:
        return None
    try:
        # No public function returns it.
        store = _group().distributed_c10d._get_default_store()  # noqa: SLF001
    except (AttributeError, RuntimeError, ValueError):
        store = None
    if store is None:
        return None
    if _arrivals_of_group is None or _arrivals_of_group.store is not store:
        _arrivals_of_group = Arrivals(store, ranks.rank, ranks.size)
    return _arrivals_of_group


def not_connected() -> str | None:
    """Returns the advice if a launcher started several processes that are not connected; None otherwise."""
    size = os.environ.get("WORLD_SIZE", "")
    if size in {"", "1"} or _group() is not None:
        return None
    return (
        f"WORLD_SIZE is {size} but torch.distributed is not initialised, so every process would get its own trial: "
        "call torch.distributed.init_process_group(), or create accelerate's Accelerator(), before get_batch_size(); "
        "or pass rank, world_size and broadcast to BatchSizeOptimizer"
    )


def connect() -> None:
    """Initialises `torch.distributed` in a process of torchrun, or of a launcher that sets the same variables."""
    torch = cast("Any", sys.modules.get("torch"))
    if not_connected() is None or torch is None or not all(map(os.environ.get, _TORCHRUN)):
        return
    # PyTorch's default is two backends, which Lightning takes for one that averages integers.
    backend = None if getattr(torch, "accelerator", torch.cuda).is_available() else "gloo"
    group = cast("Any", importlib.import_module("torch.distributed"))
    with warned("WattwiseCallback, or fit_attempts"):
        group.init_process_group(backend)
    atexit.register(_disconnect)


def _disconnect() -> None:
    if (group := _group()) is not None:
        group.destroy_process_group()


def warn_if_not_connected() -> int:
    """Logs `not_connected` in a process that has PyTorch; without it WORLD_SIZE may mean something else.

    Returns:
        The number of processes that are not connected; 0 if they are.
    """
    if "torch" not in sys.modules or not (advice := not_connected()):
        return 0
    log.warning("%s", advice)
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and len(size) <= _MOST_DIGITS else 0


def _group() -> Any:
    """Returns the module `torch.distributed` if it is initialised."""
    module = cast("Any", sys.modules.get("torch.distributed"))
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module
