"""The processes of one training: rank 0 acts, and all ranks get the same outcome."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from wattwise.errors import InvalidArgumentError, OperationOrderError, TrainerSetupError, WattwiseError, log

T = TypeVar("T")

Broadcast: TypeAlias = Callable[[Any], Any]
"""Gets bytes on rank 0 and None on the other ranks, and returns rank 0's bytes on every rank."""


_MOST_DIGITS = 9
"""Of a number of processes; larger ones do not fit into the request."""


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
        """The ranks of a user's arguments; None if there are no arguments.

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
        """The rank and size in `torch.distributed` now."""
        group = _group()
        return cls() if group is None else cls(group.get_rank(), group.get_world_size())

    def on_first(self, action: Callable[[], T]) -> T:
        """Runs `action` on rank 0 and returns its result, or raises its error, on every rank. All ranks must call it.

        Args:
            action: its result must be picklable.

        Raises:
            OperationOrderError: if the process group was initialised or destroyed since `current`.
        """
        self._check_unchanged()
        if self.size == 1:
            return action()
        return self._received() if self.rank else self._act(action)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Runs `action` on every rank and returns all results, by rank, on every rank. All ranks must call it.

        A `broadcast` cannot do that: with one, there must be a single rank.

        Args:
            action: its result must be picklable.

        Raises:
            WattwiseError: on every rank, the error of the first rank that failed.
            OperationOrderError: if the process group was initialised or destroyed since `current`.
        """
        self._check_unchanged()
        outcome: T | WattwiseError
        try:
            outcome = action()
        except WattwiseError as error:
            outcome = error
        outcomes: list[Any] = [outcome] * self.size
        if self.size > 1:
            _group().all_gather_object(outcomes, outcome)
        for each in outcomes:
            if isinstance(each, WattwiseError):
                raise each
        return outcomes

    def _check_unchanged(self) -> None:
        if not self.given and Ranks.current() != self:
            raise OperationOrderError(
                "the torch.distributed process group changed since get_batch_size(); "
                "initialise it before that call and destroy it after the training"
            )

    def _act(self, action: Callable[[], T]) -> T:
        try:
            result = action()
        except WattwiseError as error:
            self._send((None, error))
            raise
        except Exception as error:
            # Other exceptions may not survive pickling, and that shows too late.
            self._send((None, WattwiseError(f"rank 0 failed: {type(error).__name__}: {error}")))
            raise
        self._send((result, None))
        return result

    def _send(self, outcome: object) -> None:
        if self.broadcast is None:
            _group().broadcast_object_list([outcome], src=0)
        else:
            self.broadcast(pickle.dumps(outcome))

    def _received(self) -> Any:
        if self.broadcast is None:
            box: list[Any] = [None]
            _group().broadcast_object_list(box, src=0)
            result, error = box[0]
        else:
            received = self.broadcast(None)
            if not isinstance(received, bytes | bytearray | memoryview):
                raise TrainerSetupError(
                    f"broadcast() returned an object of type {type(received).__name__} on rank {self.rank} instead of "
                    "the bytes that rank 0 passed to it"
                )
            result, error = pickle.loads(received)  # noqa: S301 - rank 0 is this training
        if error is not None:
            raise error
        return result


def not_connected() -> str | None:
    """The advice if a launcher started several processes that are not connected to each other; None otherwise."""
    size = os.environ.get("WORLD_SIZE", "")
    if size in {"", "1"} or _group() is not None:
        return None
    return (
        f"WORLD_SIZE is {size} but torch.distributed is not initialised, so every process would get its own trial: "
        "call torch.distributed.init_process_group() before get_batch_size(), and before a callback is created, or "
        "pass rank, world_size and broadcast to BatchSizeOptimizer"
    )


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
    """The module `torch.distributed` if it is initialised."""
    module = cast("Any", sys.modules.get("torch.distributed"))
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module
