"""A trial as the callbacks of all trainers see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from wattwise import v1
from wattwise.errors import TrainerSetupError, TrainFailError, log
from wattwise.integrations.steps import StepListener, StepNotifier
from wattwise.training.inheritance import pass_on
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.ranks import connect


class CallbackTrial:
    """Gets the batch size, reports epochs, and raises `TrainFailError` once the trainer has wrapped up.

    The measurement window opens when training begins, and every report closes it and opens the next: an epoch includes
    its evaluation and whatever the trainer does between two epochs, as in your own loop.

    Attributes:
        batch: the trial's batch size.
        steps: passes training steps on to `power`.
        running: whether training has begun and not ended.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, power: StepListener | None) -> None:
        if bso.unconnected:
            connect()
        if advice := bso.unconnected:
            raise TrainerSetupError(advice)
        self.bso = bso
        bso.get_batch_size()
        self.batch = bso.global_batch
        pass_on(self.batch)
        self.steps = StepNotifier(power)
        self.running = False
        self._metric = metric

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self.batch.size

    @property
    def ranks(self) -> int:
        """The number of ranks, each of which has one device."""
        return self.bso.world_size

    @property
    def finished(self) -> bool:
        """Whether the trial is over and training should stop."""
        return self.bso.training_finished

    def begin(self, epochs: float) -> None:
        """Opens the measurement window.

        Args:
            epochs: the number of epochs after which the trainer stops by itself; infinity if it does not.
        """
        job_epochs = self.bso.trial.job.spec.max_epochs
        if epochs < job_epochs:
            log.warning(
                "the trainer stops after %g epochs, but the job allows %d: a trial that has not reached its target by "
                "then ends undecided, which counts as failed; give the trainer %d epochs: the server stops it earlier",
                *(epochs, job_epochs, job_epochs),
            )
        self.bso.on_train_begin()
        self.running = True

    def has_metric(self, metrics: Mapping[str, Any]) -> bool:
        """Whether an evaluation has the metric."""
        return self._metric in metrics

    def missing_metric(self, names: Iterable[str]) -> TrainerSetupError:
        """The error for an evaluation that has only the metrics `names`."""
        found = ", ".join(sorted(names))
        advice = f"use one of its metrics: {found}" if found else "it has no metrics: evaluate after every epoch"
        return TrainerSetupError(f"the evaluation has no metric {self._metric!r}; {advice}")

    def report(self, metrics: Mapping[str, Any]) -> bool:
        """Reports the epoch that an evaluation ends, and returns whether training should stop now.

        Raises:
            TrainerSetupError: if the evaluation does not have the metric; names those that it has.
            WattwiseError: as documented at `on_evaluate`, except for `TrainFailError`, which `end` raises.
        """
        if not self.has_metric(metrics):
            raise self.missing_metric(metrics)
        self.steps.end_epoch()
        with contextlib.suppress(TrainFailError):
            self.bso.on_evaluate(metrics[self._metric])
        return self.finished

    def end(self) -> None:
        """Ends the trial unless it is decided; the trainer has wrapped up.

        Raises:
            TrainFailError: if the target was not reached, unless another attempt follows.
        """
        self.close(v1.END_REASON_COMPLETED)
        failure = self.bso.running_trial.failure
        if failure is not None:
            raise failure

    def close(self, reason: v1.EndReason.ValueType) -> None:
        """Ends the trial unless it is decided, for a reason as `BatchSizeOptimizer.close` takes it."""
        self.running = False
        self.steps.close()
        if self.finished:
            self.bso.running_trial.announce_decision()
        else:
            self.bso.close(reason)
