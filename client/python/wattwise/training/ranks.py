"""The processes of one training: rank 0 acts, and all ranks have the same outcome."""

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
    """A process's place among those of its training.

    Attributes:
        rank: this process, from 0.
        size: how many there are; 1 without `torch.distributed`.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """The place as `torch.distributed` has it now."""
        group = _group()
        return cls() if group is None else cls(group.get_rank(), group.get_world_size())

    def on_first(self, action: Callable[[], T]) -> T:
        """Lets rank 0 act and gives every rank its result, or raises what it raised. All ranks must call it.

        Args:
            action: what rank 0 does; its result must be picklable.

        Raises:
            OperationOrderError: if the process group came or went since this place was taken.
        """
        self._check_unchanged()
        if self.size == 1:
            return action()
        return self._receive() if self.rank else self._act(action)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Lets every rank act and gives every rank all results, by rank. All ranks must call it.

        Args:
            action: what each rank does; its result must be picklable.

        Raises:
            WattwiseError: on every rank, what the first rank that failed has raised.
            OperationOrderError: if the process group came or went since this place was taken.
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
            # Whether a foreign exception survives pickling is not known before it is too late.
            _broadcast((None, WattwiseError(f"rank 0 failed: {type(error).__name__}: {error}")))
            raise
        _broadcast((result, None))
        return result

    def _receive(self) -> Any:
        result, error = _broadcast(None)
        if error is not None:
            raise error
        return result


def alone_by_mistake() -> str | None:
    """What to do if a launcher started several processes that do not know of each other yet; None if it has not."""
    size = os.environ.get("WORLD_SIZE", "")
    if size in {"", "1"} or _group() is not None:
        return None
    return (
        f"WORLD_SIZE is {size} but torch.distributed is not initialised, so every process asks for a trial of its own: "
        "call torch.distributed.init_process_group() before get_batch_size(), and before a trainer's callback is made"
    )


def warn_if_alone_by_mistake() -> None:
    """Warns of it in a process that has PyTorch; any other launcher's WORLD_SIZE may mean something else."""
    if "torch" in sys.modules and (lonely := alone_by_mistake()):
        log.warning("%s", lonely)


def _group() -> Any:
    """The module `torch.distributed` if the trainer uses it."""
    module = cast("Any", sys.modules.get("torch.distributed"))
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _broadcast(outcome: object) -> Any:
    """Rank 0 says the outcome, the others hear it."""
    box = [outcome]
    _group().broadcast_object_list(box, src=0)
    return box[0]
