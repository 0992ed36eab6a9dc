"""A trial as the callbacks of all trainers see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wattwise.errors import OperationOrderError, ResumeError, TrainerSetupError, TrainFailError, log
from wattwise.integrations.steps import StepListener, StepNotifier
from wattwise.rules import EndReason
from wattwise.training.inheritance import pass_on
from wattwise.training.optimizer import BatchSizeOptimizer, connection_advice, running_trial
from wattwise.training.ranks import connect
from wattwise.training.resume import integer_in, sum_in

_STEPS_DONE = "steps_at_report"
"""Key of a saved state for the trainer's steps at the last report."""
_INTERVAL = "steps_per_report"
"""Key of a saved state for the steps between two reports, if they are known."""


@dataclass(frozen=True)
class Plan:
    """What a trainer is going to do, before its first step.

    Attributes:
        steps_done: updates of the weights that the trainer has done already; above 0 if it resumes from a checkpoint.
        steps_per_report: updates between two evaluations that are reported; None if the first report will show them.
        max_reports: evaluations after which the trainer stops by itself; infinity if it does not.
        earlier: what shows that the trainer continues an earlier training; empty if its steps do.
    """

    steps_done: int
    steps_per_report: float | None
    max_reports: float
    earlier: str = ""


class CallbackTrial:
    """Gets the batch size, reports epochs, and raises `TrainFailError` once the trainer has wrapped up.

    The measurement window opens when training begins, and every report closes it and opens the next: an epoch includes
    its evaluation and whatever the trainer does between two epochs, as in your own loop.

    Args:
        bso: the optimizer.
        metric: the name of the metric.
        power: is notified of steps.
        saved: the state that an earlier process of the trial saved in the trainer's checkpoint, from `state`; None
            starts a new trial.
        count_from_zero: whether a training that continues without a trial's state counts as a complete training.

    Attributes:
        batch: the trial's batch size.
        steps: passes training steps on to `power`.
        begun: whether training has begun.
        running: whether training has begun and not ended.
        counts: whether the training is the trial; False for a dry run, which is not reported.
        steps_at_report: the trainer's updates of the weights at the last report.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        ResumeError: if the trial of the saved state cannot continue.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(
        self,
        bso: BatchSizeOptimizer,
        metric: str,
        power: StepListener | None,
        *,
        saved: Mapping[str, Any] | None = None,
        count_from_zero: bool = False,
    ) -> None:
        if connection_advice(bso):
            connect()
        if advice := connection_advice(bso):
            raise TrainerSetupError(advice)
        self.bso = bso
        self.steps_at_report = 0
        self.restored = False
        if saved is not None:
            self.restore(saved)
        bso.get_batch_size()
        self.batch = bso.global_batch
        pass_on(self.batch)
        self.steps = StepNotifier(power)
        self.running = False
        self._metric = metric
        self._count_from_zero = count_from_zero
        # Updates between two reports; None until they are known.
        self._interval: float | None = None
        self._size_unknown = False
        self.counts = True
        self.begun = False
        # Numbers of steps that were computed from a number of examples.
        self._declared: set[int] = set()

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
        return self.counts and self.bso.training_finished

    @property
    def default_batch_size(self) -> int:
        """The job's default batch size."""
        return self.bso.trial.job.default_batch_size

    def steps_for(self, examples: float) -> int:
        """Returns the number of steps that pass about `examples` examples; `is_declared` knows it from then on.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        steps = self.batch.steps(examples)
        self._declared.add(steps)
        return steps

    def is_declared(self, steps: float) -> bool:
        """Returns whether a number of steps stands for a number of examples."""
        return steps in self._declared

    # Checkpoints

    def state(self, *, within_epoch: bool = True) -> dict[str, str | int | float]:
        """Returns what belongs into the trainer's checkpoint, so that the trial continues with it: plain values.

        Args:
            within_epoch: as for `BatchSizeOptimizer.state_dict`.
        """
        interval = {} if self._interval is None else {_INTERVAL: self._interval}
        return {**self.bso.state_dict(within_epoch=within_epoch), _STEPS_DONE: self.steps_at_report, **interval}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues the trial of a checkpoint's state; in its place a new trial ends, if there is one.

        Raises:
            ResumeError: if that trial cannot continue, or has another batch size than the new one.
        """
        try:
            own = (_STEPS_DONE, _INTERVAL)
            self.bso.load_state_dict({name: value for name, value in saved.items() if name not in own})
        except ResumeError:
            self._give_up()
            raise
        if _INTERVAL in saved:
            sum_in(saved, _INTERVAL)
        self.steps_at_report = integer_in(saved, _STEPS_DONE) if _STEPS_DONE in saved else 0
        self.restored = True
        self._interval = saved.get(_INTERVAL)

    def rewind(self, saved: Mapping[str, Any]) -> None:
        """Goes back to an earlier state of the restored trial, because the trainer does; time and energy stay."""
        running_trial(self.bso).rewind(int(saved["epoch"]))
        self.restore(saved)

    # Training

    def refuse(self, fault: str) -> TrainerSetupError:
        """Returns the error for a trainer that cannot train the trial, which ends as preempted: nothing was trained.

        raise trial.refuse("…")
        """
        self._give_up()
        return TrainerSetupError(fault)

    def fail(self, fault: str) -> TrainerSetupError:
        """Returns the error for a training that went wrong on the way; the trial fails."""
        self.close(EndReason.ERROR)
        return TrainerSetupError(fault)

    def warn_of_unknown_size(self) -> None:
        """Warns, once, that the data does not state the size of its batches."""
        if not self._size_unknown:
            log.warning("the training data has no batch_size: whether it is %d is not checked", self.batch_size)
        self._size_unknown = True

    def skip(self, why: str) -> None:
        """Does not count this training, such as a dry run: nothing is reported, and the trial ends as preempted."""
        log.warning("%s: this training is not a trial and is not counted", why)
        self._give_up()
        self.counts = False

    def begin(self, plan: Plan) -> None:
        """Opens the measurement window.

        Raises:
            TrainerSetupError: if the training is not a complete one with the trial's batch size; says what to change.
        """
        if not self.counts:
            return
        if self.begun:
            raise self.repeated()
        if running_trial(self.bso).ended_undecided:
            raise TrainerSetupError(
                f"{running_trial(self.bso).outcome}: create a BatchSizeOptimizer and a callback for this training"
            )
        self.begun = True
        self._check_beginning(plan)
        if plan.max_reports < 1:
            raise self.refuse(
                "the trainer stops before its first evaluation at the end of an epoch: train at least one epoch"
            )
        job_epochs = self.bso.trial.job.max_epochs
        if plan.max_reports < job_epochs:
            log.warning(
                "the trainer stops after %g epochs, but the job allows %d: a trial that has not reached its target by "
                "then counts as a miss; give the trainer %d epochs: the server stops it earlier",
                *(plan.max_reports, job_epochs, job_epochs),
            )
        self._interval = self._interval if plan.steps_per_report is None else plan.steps_per_report
        try:
            self.bso.on_train_begin()
        except OperationOrderError:
            # Another callback has trained the trial.
            raise self.repeated() from None
        self.running = True

    def repeated(self) -> TrainerSetupError:
        """Returns the error for a second training of the trial."""
        return self.refuse(
            f"training begins a second time with the callback of {self.bso.trial.name}, but a trial "
            "is one training: create a BatchSizeOptimizer and a callback for each, or give the callback to only one"
        )

    def _check_beginning(self, plan: Plan) -> None:
        """Checks that the trainer begins where the trial is."""
        last = self.bso.last_epoch
        if plan.steps_done and not self.restored:
            if not last and not self._count_from_zero:
                earlier = plan.earlier or f"the trainer continues after {plan.steps_done} steps"
                raise self.refuse(
                    f"{earlier}, but the checkpoint has no trial of Wattwise: the cost of the earlier steps is "
                    "unknown. Train from the start, or pass count_from_zero=True to the callback if this rest is what "
                    "every launch of the job trains"
                )
            self.steps_at_report = plan.steps_done
        if self.bso.training_finished:
            return
        if last and not plan.steps_done:
            raise self.refuse(
                f"{self.bso.trial.name} continues after epoch {last}, but the trainer "
                "starts from the beginning: pass it the checkpoint as well, or start without the trial's state"
            )
        before, now = self._interval, plan.steps_per_report
        if before is not None and now is not None and not _same(before, now):
            raise self.refuse(
                f"{self.bso.trial.name} reports after every {before:g} steps, but this training after "
                f"every {now:g}: continue it with the same data and the same interval of its evaluations, or start "
                "without the checkpoint"
            )

    def has_metric(self, metrics: Mapping[str, Any]) -> bool:
        """Returns whether an evaluation has the metric."""
        return self._metric in metrics

    def missing_metric(self, names: Iterable[str]) -> TrainerSetupError:
        """Returns the error for an evaluation that has only the metrics `names`; the trial fails."""
        found = ", ".join(sorted(names))
        advice = f"use one of its metrics: {found}" if found else "it has no metrics: evaluate after every epoch"
        return self.fail(f"the evaluation has no metric {self._metric!r}; {advice}")

    def report(
        self, metrics: Mapping[str, Any], steps_done: int, planned: float | None = None, *, complete: bool = True
    ) -> bool:
        """Reports the epoch that an evaluation ends, and returns whether training should stop now.

        Args:
            metrics: the evaluation's metrics.
            steps_done: the trainer's updates of the weights so far.
            planned: updates since the last report, if not all epochs have the same number; None is the plan's, or the
                number of the first epoch.
            complete: whether the data of the epoch have ended; False if the trainer may stop within the epoch.

        Raises:
            TrainerSetupError: if the evaluation does not have the metric; names those that it has. Also if the epoch
                had no step, or has ended after another number of steps than the plan says.
            WattwiseError: as documented at `on_evaluate`, except for `TrainFailError`, which `end` raises.
        """
        if not self.counts:
            return False
        if not self.has_metric(metrics):
            raise self.missing_metric(metrics)
        self.steps.end_epoch()
        planned = self._interval if planned is None else planned
        if not self._is_whole(steps_done, planned, complete=complete):
            return self.finished
        if self._interval is None:
            self._interval = steps_done - self.steps_at_report
        self.steps_at_report = steps_done
        with contextlib.suppress(TrainFailError):
            self.bso.on_evaluate(metrics[self._metric])
        return self.finished

    def _is_whole(self, steps_done: int, planned: float | None, *, complete: bool) -> bool:
        """Returns whether the steps since the last report are an epoch.

        Raises:
            TrainerSetupError: if there was none, or the epoch ended after fewer or more than planned: the batch size or
                the data have changed.
        """
        done = steps_done - self.steps_at_report
        if done <= 0:
            raise self.fail(
                f"no batch was trained before this evaluation: with batch size {self.batch_size} the training data may "
                "have no full batch (drop_last), or be empty"
            )
        if self.finished or (complete if planned is None else _same(done, planned)):
            return True
        if planned is None:
            log.warning(
                "the training stops after %d steps, before its data ends. The data has no length, so that it is not "
                "known whether this is a whole epoch, and it is not reported: evaluate after callback.steps(examples)",
                steps_done,
            )
            return False
        if done < planned and not complete:
            log.warning(
                "the evaluation after %d steps is in the middle of an epoch, %d steps after the last report: it is not "
                "reported",
                *(steps_done, done),
            )
            return False
        raise self.fail(
            f"an epoch had {done} steps instead of {planned:g}: the batch size or the training data changed during the "
            "training, so that its cost says nothing about the batch size of the trial"
        )

    def end(self) -> None:
        """Ends the trial unless it is decided; the trainer has wrapped up.

        Raises:
            TrainFailError: if the target was not reached, unless another attempt follows.
        """
        if not self.counts:
            return
        self.close(EndReason.COMPLETED)
        failure = running_trial(self.bso).failure
        if failure is not None:
            raise failure

    def close(self, reason: EndReason) -> None:
        """Ends the trial unless it is decided, for a reason as `BatchSizeOptimizer.close` takes it."""
        self.running = False
        self.steps.close()
        if self.finished:
            running_trial(self.bso).announce_decision()
        else:
            self.bso.close(reason)

    def _give_up(self) -> None:
        """Ends the trial without blame for its batch size."""
        self.running = False
        self.bso.close(EndReason.PREEMPTED)


def _same(steps: float, planned: float) -> bool:
    """Returns whether two numbers of steps are the same epoch."""
    return abs(steps - planned) < max(1.0, 0.001 * planned)
