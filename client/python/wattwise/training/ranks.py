"""The processes of one training: rank 0 acts, and all ranks get the same outcome."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from wattwise.errors import OperationOrderError, WattwiseError, log

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of its training.

    Attributes:
        rank: this process, from 0.
        size: the number of ranks; 1 without `torch.distributed`.
    """

    rank: int = 0
    size: int = 1

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
        return self._receive() if self.rank else self._act(action)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Runs `action` on every rank and returns all results, by rank, on every rank. All ranks must call it.

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
        if Ranks.current() != self:
            raise OperationOrderError(
                "the torch.distributed process group changed since get_batch_size(); "
                "initialise it before that call and destroy it after the training"
            )

    def _act(self, action: Callable[[], T]) -> T:
        try:
            result = action()
        except WattwiseError as error:
            _broadcast((None, error))
            raise
        except Exception as error:
            # Other exceptions may not survive pickling, and that shows too late.
            _broadcast((None, WattwiseError(f"rank 0 failed: {type(error).__name__}: {error}")))
            raise
        _broadcast((result, None))
        return result

    def _receive(self) -> Any:
        result, error = _broadcast(None)
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
        "call torch.distributed.init_process_group() before get_batch_size(), and before a callback is created"
    )


def warn_if_not_connected() -> None:
    """Logs `not_connected` in a process that has PyTorch; without it WORLD_SIZE may mean something else."""
    if "torch" in sys.modules and (advice := not_connected()):
        log.warning("%s", advice)


def _group() -> Any:
    """The module `torch.distributed` if it is initialised."""
    module = cast("Any", sys.modules.get("torch.distributed"))
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _broadcast(outcome: object) -> Any:
    """Sends rank 0's outcome to the other ranks."""
    box = [outcome]
    _group().broadcast_object_list(box, src=0)
    return box[0]
