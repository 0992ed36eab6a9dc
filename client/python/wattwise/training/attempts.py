"""One trial of several in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from wattwise.errors import OperationOrderError, log, short_tracebacks
from wattwise.rules import EndReason
from wattwise.training.exits import end_reason, reason_value
from wattwise.training.running import RunningTrial
from wattwise.training.trial import Trial

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.training.optimizer import BatchSizeOptimizer


@short_tracebacks
class Attempt:
    """One trial of `BatchSizeOptimizer.attempts`, with the calls of the optimizer.

    A `with attempt:` block ends the trial if an exception leaves it, for the reason that the exception shows. If the
    memory ran out and another attempt follows, the block swallows the exception and the loop goes on, with a single
    process; every other exception leaves the loop.

        for attempt in bso.attempts():
            with attempt:
                ...

    Attributes:
        number: counts the attempts from 1. A checkpoint continues the count.
    """

    def __init__(self, bso: BatchSizeOptimizer, running: RunningTrial | None, number: int, max_tries: int) -> None:
        self.number = number
        self._bso = bso
        self._joined = running
        self._max_tries = max_tries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or self._bso.waits_for_trial:
            return False
        reason = end_reason(error)
        self._running.close(reason_value(reason))
        if reason is not EndReason.OUT_OF_MEMORY or self.target_reached or self.trial.world_size > 1:
            # With several ranks the others wait for this one in the middle of a step.
            return False
        # The text only: the exception itself keeps the model alive.
        what, last = str(error) or type(error).__name__, self.number >= self._max_tries
        remedy = self._running.remedy() if last else "the next attempt follows"
        log.warning(
            "attempt %d of %d ran out of memory with batch size %d (%s): %s",
            *(self.number, self._max_tries, self.batch_size, what, remedy),
        )
        return not last

    def continue_with(self, running: RunningTrial, number: int) -> None:
        """Continues with the trial of a checkpoint that its body has loaded, in place of a new one."""
        self._joined, self.number = running, number

    @property
    def _running(self) -> RunningTrial:
        # A rank that its trainer has started joins the trial later.
        self._joined = self._joined or self._bso.running_trial
        return self._joined

    @property
    def batch_size(self) -> int:
        """The global batch size to train with."""
        return self._bso.get_batch_size() if self._joined is None else self.trial.batch_size

    @property
    def seed_offset(self) -> int:
        """A number to add to your seed, so that no attempt repeats an earlier one: 0 in the first, 1 in the second."""
        return self.number - 1

    @property
    def trial(self) -> Trial:
        """The trial: its number, job, rank, and why the server chose this batch size."""
        return self._running.info.trial

    @property
    def target_reached(self) -> bool:
        """Whether the metric reached its target, regardless of cost."""
        decision = self._running.decision
        return decision is not None and decision.target_reached

    def steps(self, examples: float) -> int:
        """Returns the number of steps of the trial's batch size that pass `examples` examples.

        Args:
            examples: as for `BatchSizeOptimizer.steps`.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        return self.trial.global_batch.steps(examples)

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Yields the epochs to train, as `BatchSizeOptimizer.epochs` does, until the trial is over.

        Args:
            max_epochs: the last epoch; None is the job's `max_epochs`, where the server stops in any case.

        Raises:
            OperationOrderError: if an epoch passed without `on_evaluate`, or another attempt has begun.
            WattwiseError: as documented at `BatchSizeOptimizer.epochs`, except for `TrainFailError`.
        """
        self._check_current("epochs()")
        yield from self._bso.epochs(max_epochs)

    def on_evaluate(self, metric: float) -> None:
        """Reports the epoch, as `BatchSizeOptimizer.on_evaluate` does. Does nothing once the trial is over.

        Args:
            metric: the validation metric after this epoch.

        Raises:
            OperationOrderError: if another attempt has begun, or as documented at `BatchSizeOptimizer.on_evaluate`.
            WattwiseError: as documented there, except for `TrainFailError`.
        """
        self._check_current("on_evaluate()")
        self._bso.on_evaluate(metric)

    def _check_current(self, call: str) -> None:
        if self._bso.running_trial is not self._running:
            raise OperationOrderError(
                f"{call} was called on attempt {self.number}, which is over: use the attempt of the current turn"
            )
