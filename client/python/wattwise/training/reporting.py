"""The end of an epoch, as rank 0 makes it: the window is closed, what it measured is reported, the next one opens."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import InvalidRequestError, InvalidResultError, WattwiseError, log
from wattwise.training.metric import NanWarning, number
from wattwise.training.offline import decision_without_server
from wattwise.training.resume import Progress
from wattwise.training.session import Session
from wattwise.training.windows import TrainingWindows


class Outcome(NamedTuple):
    """What a report led to: the decision, if there is one yet, whether the trial is over, and who says so.

    An epoch whose report was refused has passed all the same, on every rank.
    """

    progress: Progress
    decision: v1.Decision | None
    over: bool
    by_server: bool
    refusal: WattwiseError | None = None


def warn_of_silence(trial: v1.Trial) -> None:
    """Says that a trial ends of which nothing was reported, which is hardly ever meant."""
    log.warning(
        "trial %d of job %r ends without a metric and counts as failed, and a batch size that fails three times in a "
        "row is given up: call on_evaluate(metric) after every epoch",
        *(trial.id.trial_number, trial.id.job_id),
    )


class Reporter:
    """Reports the epochs of one trial.

    Args:
        session: the trial's line to the server.
        windows: what measures it.
        spec: its job.
        trial: the trial as it stood when the batch size was given.
    """

    def __init__(self, session: Session, windows: TrainingWindows, spec: v1.JobSpec, trial: v1.Trial) -> None:
        self._session = session
        self._windows = windows
        self._spec = spec
        self._trial = trial
        self._nan_warning = NanWarning()

    def report(self, epoch: int, metric: float) -> Outcome:
        """Ends an epoch.

        Args:
            epoch: which, from 1.
            metric: the validation metric after it.

        Raises:
            MetricTypeError: if the metric is no number; nothing has happened then.
        """
        session, windows = self._session, self._windows
        value = number(metric)
        self._nan_warning.look(epoch, value)
        windows.close()
        progress = Progress(epoch, windows.time_seconds, windows.energy_joules)
        over, decision = False, None
        try:
            result = self._result(progress, value)
            # What was reported before the checkpoint was loaded cannot be reported with other numbers.
            known = epoch <= self._trial.last_epoch
            decision = session.decision if known else session.report(result)
            if decision is None and not (known or session.over):
                decision = decision_without_server(self._spec, result)
                over = decision is not None
        except (InvalidResultError, InvalidRequestError) as refusal:
            return Outcome(progress, None, over=False, by_server=False, refusal=refusal)
        finally:
            if not (over or session.over):
                windows.reopen()
        return Outcome(progress, decision, over or session.over, session.over)

    def _result(self, progress: Progress, metric: float) -> v1.TrainingResult:
        return v1.TrainingResult(
            trial=self._trial.id,
            time_seconds=progress.time_seconds,
            energy_joules=progress.energy_joules,
            metric=metric if math.isfinite(metric) else math.nan,
            current_epoch=progress.epoch,
            monitor=self._windows.monitor,
        )
