"""Writes every event into the log once it is durable."""

from __future__ import annotations

import logging
from contextvars import copy_context
from functools import partial

from wattwise_server.domain import EndReason, Trial, TrialStatus
from wattwise_server.observability.call import current_call
from wattwise_server.observability.events import (
    EpochReported,
    Event,
    JobDeleted,
    JobRegistered,
    MonitorsDiffer,
    PowerProfiled,
    Tell,
    TrialDispatched,
    TrialEnded,
    TrialRevived,
)
from wattwise_server.observability.logs import say

log = logging.getLogger(__name__)


class EventLog:
    """An Observer that writes lines."""

    def __init__(self) -> None:
        self.wants_reports = log.isEnabledFor(logging.DEBUG)

    def opened(self, jobs: int, running_trials: int) -> None:
        """Tells what the database holds."""
        say(log, logging.INFO, "database opened", jobs=jobs, running_trials=running_trials)

    def witness(self, event: Event) -> Tell:
        """Tells the event once it is durable, as one of the call that runs."""
        if isinstance(event, EpochReported) and not self.wants_reports:
            return _say_nothing
        if call := current_call.get():
            call.remember()
        return partial(copy_context().run, _say, event)

    def committed(self, rows: int, seconds: float) -> None:
        """Is no event."""

    def commit_failed(self) -> None:
        """The writer tells it itself, with the cause."""


def _say_nothing() -> None:
    """What need not be told."""


def _say(event: Event) -> None:
    match event:
        case JobRegistered(job):
            say(log, logging.INFO, "job registered", job=job.spec.job_id, policy=job.spec.policy)
        case JobDeleted(job, stopped):
            say(log, logging.INFO, "job deleted", job=job.spec.job_id, stopped_trials=stopped)
        case TrialDispatched(trial, why):
            _say_of(trial, "trial dispatched", type=trial.type.value, why=why)
        case EpochReported(_, trial):
            _say_report(trial)
        case TrialEnded(trial):
            _say_end(trial)
        case TrialRevived(trial):
            _say_of(trial, "trial revived", type=trial.type.value)
        case MonitorsDiffer(trial):
            kinds = {"monitor": trial.monitor.kind, "other_monitor": trial.monitor.other}
            _say_of(trial, "monitors differ", logging.WARNING, **kinds)
        case PowerProfiled(trial, limits, cheapest):
            _say_of(trial, "power profiled", limits=limits, cheapest_watts=cheapest.power_limit_watts)


def _say_report(trial: Trial) -> None:
    if trial.last is not None:
        measured = {"metric": trial.last.metric, "seconds": trial.last.time_seconds, "joules": trial.last.energy_joules}
        _say_of(trial, "epoch reported", logging.DEBUG, **measured, monitor=trial.monitor.kind or None)


def _say_end(trial: Trial) -> None:
    reason = trial.end_reason.value if trial.end_reason else None
    if trial.end_reason is EndReason.LOST:
        _say_of(trial, "trial lost", logging.WARNING)
    elif trial.status is TrialStatus.FAILED:
        _say_of(trial, "trial failed", reason=reason)
    else:
        monitor = trial.monitor.kind or None
        _say_of(
            trial, "trial decided", reason=reason, converged=trial.converged, cost_joules=trial.cost, monitor=monitor
        )


def _say_of(trial: Trial, event: str, level: int = logging.INFO, **fields: object) -> None:
    epoch = trial.last.epoch if trial.last else None
    who = {"job": trial.job_id, "trial": trial.number, "batch_size": trial.batch_size, "epoch": epoch}
    say(log, level, event, **who, **fields)
