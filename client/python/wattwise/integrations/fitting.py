"""Fits a model again until it reaches its target, with any trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from wattwise.errors import log
from wattwise.rules import EndReason
from wattwise.training.exits import end_reason
from wattwise.training.optimizer import connection_advice
from wattwise.training.ranks import connect

if TYPE_CHECKING:
    from wattwise.training.best import BestEpoch
    from wattwise.training.optimizer import Attempt, BatchSizeOptimizer

T = TypeVar("T")


def fit_attempts(
    bso: BatchSizeOptimizer, fit: Callable[[Attempt], T], max_tries: int = 5, *, keep_best: bool = False
) -> T:
    """Calls `fit` for one trial after another, until one reaches its target, and returns what that call returned.

        def fit(attempt):
            callback = WattwiseCallback(bso, metric="eval_accuracy")
            arguments = TrainingArguments(..., **callback.batch_arguments(), seed=42 + attempt.seed_offset)
            trainer = Trainer(build_model(), arguments, ..., callbacks=[callback])
            trainer.train()
            return trainer

        trainer = fit_attempts(bso, fit)

    A trial that misses its target, or whose memory runs out in a single process, is followed by the next one: within
    `fit`, the callback does not raise `TrainFailError`. What `fit` built and returned for it is released before the
    next call, unless you keep it elsewhere: every call builds its model anew. Save the model after `fit_attempts`, not
    in `fit`. Any other exception in `fit` ends the trial for the reason that it shows, and is raised.

    Args:
        bso: the optimizer.
        fit: builds a model, a trainer and its callback, fits the model, and returns what you need of them.
        max_tries: the number of trials at most.
        keep_best: whether to return what `fit` returned for the attempt with the best metric, with a warning, if no
            attempt reaches the target. It is kept in memory until then. The metric is that of the best epoch: to return
            the model of that epoch, let the trainer load its best checkpoint at the end. It is also returned if no
            further attempt can begin, or if memory runs out in the last one in a single process.

    Raises:
        TrainFailError: if no trial reached the target, without `keep_best`; says what to change.
        Exception: what `fit` raised, also if memory ran out in the last trial, unless an earlier result is kept.
        WattwiseError: as documented at `BatchSizeOptimizer.attempts`.
    """
    if connection_advice(bso):
        connect()
    fitted: T | None = None
    kept: tuple[T, BestEpoch] | None = None
    fitting = False
    try:
        for attempt in bso.attempts(max_tries):
            fitting, returned = True, False
            with attempt:
                fitted = fit(attempt)
                returned = True
            fitting = False
            if not attempt.target_reached:
                if keep_best and returned and attempt.is_better_than(kept and kept[1]):
                    kept = cast("T", fitted), cast("BestEpoch", attempt.best)
                fitted = None
    except Exception as error:
        out_of_memory = end_reason(error) is EndReason.OUT_OF_MEMORY and bso.world_size == 1
        if kept is None or (fitting and not out_of_memory):
            raise
        result, best = kept
        log.warning(
            "%s; what attempt %d returned is kept, whose metric was %g in epoch %d",
            *(str(error) or type(error).__name__, best.attempt, best.metric, best.epoch),
        )
        return result
    return cast("T", fitted)
