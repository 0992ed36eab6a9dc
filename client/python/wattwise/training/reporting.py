"""The end of an epoch on rank 0: closes the measurement window, reports its sums, opens the next window."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import InvalidRequestError, InvalidResultError, WattwiseError, log
from wattwise.monitor import Monitor
from wattwise.spec import max_power_watts
from wattwise.training.metric import metric_value
from wattwise.training.own_decision import own_decision
from wattwise.training.power_usage import PowerUsage
from wattwise.training.resume import Progress
from wattwise.training.session import Session
from wattwise.training.trial import TrialInfo
from wattwise.training.windows import TrainingWindows, training_result


class EpochOutcome(NamedTuple):
    """What the end of an epoch led to. An epoch whose report was refused is over too, on every rank.

    Attributes:
        progress: the sums up to the end of the epoch.
        metric: the metric of the epoch.
        decision: the decision, if there is one.
        own: whether the decision is this trainer's, because the server did not answer.
        over: whether the trial is over.
        by_server: whether the server said so.
        refusal: the server's error, if it refused the report.
    """

    progress: Progress
    metric: float
    decision: v1.Decision | None
    own: bool
    over: bool
    by_server: bool
    refusal: WattwiseError | None = None


class Reporter:
    """Measures and reports the epochs of one trial.

    Attributes:
        power: what the results say about power limits.
    """

    def __init__(
        self, session: Session, monitor: Monitor, info: TrialInfo, progress: Progress, known: v1.Measurement
    ) -> None:
        self._session = session
        self._spec = info.job.spec
        self._trial = info.snapshot
        name = f"wattwise {self._trial.id.job_id} {self._trial.id.trial_number}"
        self._windows = TrainingWindows(
            monitor, name, max_power_watts(self._spec), weighs_energy=self._spec.eta_knob > 0
        )
        _, self._windows.time_seconds, self._windows.energy_joules = progress
        # The last epoch that an earlier process of the trial has reported.
        self._reported = max(self._trial.newest.epoch, progress.epoch)
        self.power = PowerUsage(known, progress)
        self._warned_of_nan = False

    def open_window(self) -> None:
        """Opens the first window.

        Raises:
            MonitorError: if the energy cannot be measured.
        """
        self._windows.open()

    def end_epoch(self, epoch: int, metric: float) -> EpochOutcome:
        """Ends an epoch, numbered from 1, after which the validation metric is `metric`.

        Raises:
            MetricTypeError: if the metric is not a number; the epoch is not over then.
        """
        session, windows = self._session, self._windows
        value = metric_value(metric)
        self._warn_of_nan(epoch, value)
        windows.close()
        progress = Progress(epoch, windows.time_seconds, windows.energy_joules)
        over, own = False, None
        try:
            result = self._result(progress, value)
            # The server refuses other numbers for an epoch that was reported before the checkpoint was loaded.
            reported_before = epoch <= self._reported
            decision = session.decision if reported_before else session.report(result)
            progress = Progress(epoch, result.measurement.time_seconds, result.measurement.energy_joules)
            if not (reported_before or session.over):
                own = self._own_decision(result, decision)
                over = own is not None and own.stop_train
            if over:
                session.decide()
        except (InvalidResultError, InvalidRequestError) as refusal:
            return EpochOutcome(progress, value, None, own=False, over=False, by_server=False, refusal=refusal)
        finally:
            if not (over or session.over):
                windows.reopen()
        return EpochOutcome(progress, value, own or decision, own is not None, over or session.over, session.over)

    def measure(self, epoch: int) -> Progress:
        """The sums up to now, within an epoch as well; `epoch` is the last one that has ended."""
        self._windows.measure()
        return Progress(epoch, self._windows.time_seconds, self._windows.energy_joules)

    def close_window(self) -> None:
        """Closes the window, if one is open; what it measured does not count."""
        self._windows.discard()

    def _result(self, progress: Progress, metric: float) -> v1.TrainingResult:
        result = training_result(self._trial.id, progress, metric, self._windows.monitor)
        self.power.complete(result.measurement)
        return result

    def _own_decision(self, result: v1.TrainingResult, decision: v1.Decision | None) -> v1.Decision | None:
        """This trainer's decision if the server has made none, or lets the trial go on after its end."""
        own = own_decision(self._spec, result)
        if decision is None:
            return own
        if not own.stop_train:
            return None
        log.warning(
            "training stops although the server lets trial %d continue after epoch %d, in which it %s: a fault",
            *(self._trial.id.trial_number, result.measurement.epoch),
            "reached the target" if own.target_reached else "ended",
        )
        return own

    def _warn_of_nan(self, epoch: int, value: float) -> None:
        if self._warned_of_nan or math.isfinite(value):
            return
        self._warned_of_nan = True
        log.warning(
            "the metric of epoch %d is %s, which counts as target not reached; if training has diverged, "
            "end it (logged once)",
            *(epoch, value),
        )
