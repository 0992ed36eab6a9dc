"""The loop over epochs: how many there are, whether each was reported, and how the loop was left."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from wattwise.errors import InvalidArgumentError, OperationOrderError, log

if TYPE_CHECKING:
    from wattwise.training.optimizer import BatchSizeOptimizer


class Turn:
    """The turn that the loop over a training's epochs is in.

    Attributes:
        epoch: which epoch it trains, from 1; 0 outside of the loop, where nobody knows what an epoch is.
    """

    epoch = 0

    def refuse_second(self, last_epoch: int) -> None:
        """Makes sure that the turn has not reported its epoch yet.

        Args:
            last_epoch: the last one that was reported.

        Raises:
            OperationOrderError: if it has.
        """
        if 0 < self.epoch <= last_epoch:
            raise OperationOrderError(
                f"epoch {self.epoch} has its metric already, and a second one would count as another epoch: call "
                "on_evaluate(metric) once in every turn of the loop over epochs()"
            )


def loop(
    bso: BatchSizeOptimizer,
    max_epochs: int | None,
    turn: Turn,
    begin: Callable[[], None],
    heed_end: Callable[[], None],
) -> Iterator[int]:
    """What `BatchSizeOptimizer.epochs` yields.

    Plain numbers: any other kind would end up in checkpoints that PyTorch then refuses to load.

    Args:
        bso: whose epochs they are.
        max_epochs: the last one; None is the job's.
        turn: is told which epoch is trained.
        begin: opens the measurement window if that has not been done.
        heed_end: takes notice that the trial is over; may raise.

    Raises:
        WattwiseError: as `BatchSizeOptimizer.epochs` says.
    """
    bso.get_batch_size()
    last = _last(max_epochs, bso.job.spec.max_epochs)
    begin()
    try:
        while bso.last_epoch < last and not bso.training_finished:
            turn.epoch = epoch = bso.last_epoch + 1
            yield epoch
            if bso.last_epoch < epoch and not bso.training_finished:
                raise OperationOrderError(
                    f"epoch {epoch} passed without a metric: call on_evaluate(metric) in every turn of the loop"
                )
    except GeneratorExit:
        if _left_by_choice():
            bso.close()
        raise
    finally:
        turn.epoch = 0
    if bso.training_finished:
        heed_end()
    else:
        log.warning("the loop is over after epoch %d, but the trial is not: it ends without a decision", last)
        bso.close()


def _last(asked: int | None, of_job: int) -> int:
    if asked is None:
        return of_job
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise InvalidArgumentError(f"epochs() got {asked!r}: give a whole number from 1, or nothing for the job's own")
    return asked


def _left_by_choice() -> bool:
    """Whether the `for` loop over the calling generator was left by `break` or `return`; asked on `GeneratorExit`.

    An exception closes the generator just as `break` does, before anybody can see it. What tells them apart is what
    the loop's frame is doing: it drops the generator as its next instruction, or was stopped in the middle of another.
    Where this cannot be told, as when something stands between the loop and the generator, the answer is no.
    """
    left = sys._getframe(1).f_back  # noqa: SLF001 - the documented way to look at a caller
    return left is not None and dis.opname[left.f_code.co_code[left.f_lasti]] in {"POP_TOP", "POP_ITER"}
