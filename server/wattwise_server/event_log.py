"""Writes every event into the log once it is durable."""

from __future__ import annotations

import logging

from wattwise_server.domain import Decision, EndReason, Trial, TrialStatus
from wattwise_server.logs import say
from wattwise_server.observe import Event, JobDeleted, JobRegistered, TrialDispatched, TrialEnded, TrialRevived
from wattwise_server.report import Report

log = logging.getLogger(__name__)


class EventLog:
    """An Observer that writes lines."""

    def opened(self, jobs: int, running_trials: int) -> None:
        """Tells what the store holds."""
        say(log, logging.INFO, "database opened", jobs=jobs, running_trials=running_trials)

    def happened(self, event: Event) -> None:
        """Tells the event."""
        match event:
            case JobRegistered(job):
                spec = job.spec
                say(log, logging.INFO, "job registered", job=spec.job_id, policy=spec.policy.value)
            case JobDeleted(job, stopped):
                say(log, logging.INFO, "job deleted", job=job.spec.job_id, stopped_trials=stopped)
            case TrialDispatched(trial, why):
                _say_of(trial, "trial dispatched", type=trial.type.value, why=why)
            case TrialEnded(_, trial):
                _say_end(trial)
            case TrialRevived(_, trial):
                _say_of(trial, "trial revived", type=trial.type.value)

    def committed(self, transactions: int, rows: int, seconds: float) -> None:
        """Is no event."""

    def commit_failed(self) -> None:
        """The writer tells it itself, with the cause."""


def say_reported(report: Report, decision: Decision) -> None:
    """Tells, at debug, of one epoch's report and what its trainer was told."""
    if log.isEnabledFor(logging.DEBUG):
        say(
            log,
            logging.DEBUG,
            "epoch reported",
            job=report.trial.job_id,
            trial=report.trial.trial_number,
            batch_size=report.trial.batch_size,
            epoch=report.epoch,
            metric=report.metric,
            time_seconds=report.time_seconds,
            energy_joules=report.energy_joules,
            answer=decision.message,
        )


def _say_end(trial: Trial) -> None:
    reason = trial.end_reason.value if trial.end_reason else None
    if trial.end_reason is EndReason.LOST:
        _say_of(trial, "lease lost")
    elif trial.status is TrialStatus.FAILED:
        _say_of(trial, "trial failed", reason=reason)
    else:
        _say_of(trial, "trial decided", reason=reason, converged=trial.converged, cost_joules=trial.cost)


def _say_of(trial: Trial, event: str, **fields: object) -> None:
    epoch = trial.last.epoch if trial.last else None
    say(
        log,
        logging.INFO,
        event,
        job=trial.job_id,
        trial=trial.number,
        batch_size=trial.batch_size,
        epoch=epoch,
        **fields,
    )
