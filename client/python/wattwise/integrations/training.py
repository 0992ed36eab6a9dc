"""One training with a trial, as the callbacks of all trainers see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from wattwise import v1
from wattwise.errors import TrainerSetupError, TrainFailError, log
from wattwise.integrations.steps import StepListener, Steps
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.ranks import Ranks, alone_by_mistake
from wattwise.training.split import GlobalBatch


class Training:
    """Asks for the batch size, reports epochs, and says that the target was missed once the trainer has wrapped up.

    The measurement window opens with the training, and every report closes it and opens the next: an epoch's evaluation
    is measured with it, as in a loop of one's own, and so is what the trainer does between two epochs.

    Args:
        bso: the trial's; is asked for the batch size unless it was before.
        metric: name of the metric among those that the trainer's evaluation gives.
        power: is told of every training step.

    Attributes:
        batch: the trial's batch size.
        steps: takes the steps that are told.
        running: whether the training has begun and not ended yet.

    Raises:
        TrainerSetupError: if a launcher started several processes that do not know of each other yet.
        WattwiseError: whatever `get_batch_size` raises.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, power: StepListener | None) -> None:
        if lonely := alone_by_mistake():
            raise TrainerSetupError(lonely)
        self.bso = bso
        self.batch = GlobalBatch(bso.get_batch_size(), tuple(bso.job.spec.batch_sizes))
        self.steps = Steps(power)
        self.running = False
        self._metric = metric

    @property
    def batch_size(self) -> int:
        """The trial's, which is the global one."""
        return self.batch.size

    @property
    def finished(self) -> bool:
        """Whether training should stop: the trial is over."""
        return self.bso.training_finished

    def begin(self, epochs: float) -> None:
        """Opens the measurement window.

        Args:
            epochs: after how many the trainer stops by itself; infinite if it does not.
        """
        most = self.bso.job.spec.max_epochs
        if epochs < most:
            log.warning(
                "the trainer stops after %g epochs, the job allows %d: a trial that has not reached its target by then "
                "ends undecided, which counts as failed; give the trainer %d epochs, the server stops it in time",
                epochs,
                most,
                most,
            )
        self.bso.on_train_begin()
        self.running = True

    def has(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the metric is among those of an evaluation."""
        return self._metric in metrics

    def missing(self, names: Iterable[str]) -> TrainerSetupError:
        """The error of a metric that an epoch's evaluation did not give, but others."""
        there = ", ".join(sorted(names))
        instead = f"name one of those that it gives: {there}" if there else "it gave none: evaluate after every epoch"
        return TrainerSetupError(f"the evaluation gives no metric {self._metric!r}; {instead}")

    def report(self, metrics: Mapping[str, Any]) -> bool:
        """Reports the epoch that an evaluation ends.

        Returns:
            Whether training should stop now.

        Raises:
            TrainerSetupError: if the metric is not among those of the evaluation; names those that are.
            WattwiseError: whatever else `on_evaluate` raises, save for `TrainFailError`, which `end` raises.
        """
        if not self.has(metrics):
            raise self.missing(metrics)
        self.steps.end_epoch()
        with contextlib.suppress(TrainFailError):
            self.bso.on_evaluate(metrics[self._metric])
        return self.finished

    def end(self) -> None:
        """Ends the trial if nothing has decided it.

        Raises:
            TrainFailError: if the target was not reached; the trainer has wrapped up by now.
        """
        self.running = False
        self.steps.close()
        if not self.finished:
            self.bso.close()
        decision = self.bso.decision
        if decision is not None and decision.stop_train and not decision.target_reached:
            raise TrainFailError(f"training is over and the target was not reached: {decision.message}", decision)

    def give_up(self, reason: v1.EndReason.ValueType) -> None:
        """Ends the trial if nothing has decided it: the trainer has failed.

        Args:
            reason: why, as `BatchSizeOptimizer.close` takes it.
        """
        self.running = False
        self.steps.close()
        if not self.finished:
            self.bso.close(reason)


def devices_of_all_ranks() -> int:
    """How many processes train together, each of them with a device."""
    return Ranks.current().size
