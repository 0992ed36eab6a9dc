"""Logs every event once it is durable."""

from __future__ import annotations

import logging
from contextvars import copy_context
from functools import partial

from wattwise_server.domain import EndReason, JobSpec, Trial, TrialWarning
from wattwise_server.observability.call import current_call
from wattwise_server.observability.events import (
    BatchSizeStatusChanged,
    BestKnownChanged,
    ChangeDetected,
    EpochReported,
    Event,
    JobChanged,
    JobDeleted,
    JobRegistered,
    MonitorsDiffer,
    Notification,
    PowerProfiled,
    PriorDiffers,
    PriorUnused,
    TrialDispatched,
    TrialEnded,
    TrialImported,
    TrialRevived,
    TrialWarned,
)
from wattwise_server.observability.logs import log_event

log = logging.getLogger(__name__)


class EventLog:
    """An Observer that writes log lines."""

    def __init__(self) -> None:
        self.wants_reports = log.isEnabledFor(logging.DEBUG)

    def opened(self, jobs: int, running_trials: int) -> None:
        """Logs what the database holds."""
        log_event(log, logging.INFO, "database opened", jobs=jobs, running_trials=running_trials)

    def counted(self, jobs: int, running_trials: int) -> None:
        """Logs nothing."""

    def prepare(self, event: Event) -> Notification:
        """Logs the event once it is durable, with the fields of the running call."""
        if isinstance(event, EpochReported) and not self.wants_reports:
            return _ignore
        if call := current_call.get():
            call.remember()
        return partial(copy_context().run, _log, event)

    def committed(self, rows: int, seconds: float) -> None:
        """Logs nothing."""

    def commit_failed(self) -> None:
        """Logs nothing: the writer logs it with the cause."""

    def conflicted(self) -> None:
        """Logs nothing: the calls are run again."""


def _ignore() -> None:
    pass


def _log(event: Event) -> None:
    match event:
        case JobRegistered(job):
            log_event(log, logging.INFO, "job registered", job=job.spec.job_id, policy=job.spec.policy)
        case JobDeleted(job, stopped):
            log_event(log, logging.INFO, "job deleted", job=job.spec.job_id, stopped_trials=stopped)
        case TrialDispatched(trial, why):
            _log_trial(trial, "trial dispatched", origin=trial.origin.value, why=why)
        case TrialImported(trial, epochs):
            _log_trial(trial, "trial imported", epochs=epochs)
        case EpochReported(trial):
            _log_report(trial)
        case TrialEnded(trial):
            _log_end(trial)
        case TrialRevived(trial):
            _log_trial(trial, "trial revived", origin=trial.origin.value)
        case MonitorsDiffer(trial):
            kinds = {"monitor": str(trial.monitor), "other_monitors": ", ".join(map(str, trial.other_monitors))}
            _log_trial(trial, "monitors differ", logging.WARNING, **kinds)
        case TrialWarned(trial, warning):
            _log_warning(trial, warning)
        case PriorDiffers() | PriorUnused():
            _log_prior(event)
        case JobChanged() | BatchSizeStatusChanged() | BestKnownChanged() | ChangeDetected():
            _log_change(event)
        case PowerProfiled(trial, limits, cheapest):
            _log_trial(trial, "power profiled", limits=limits, cheapest_watts=cheapest.limit_watts_per_gpu)


def _log_change(event: JobChanged | BatchSizeStatusChanged | BestKnownChanged | ChangeDetected) -> None:
    if isinstance(event, ChangeDetected):
        found = event.change
        where = {"job": event.job.spec.job_id, "trial": found.detected_by_trial, "batch_size": found.batch_size}
        what = {"quantity": found.quantity.value, "since_trial": found.since_trial, "message": found.message}
        log_event(log, logging.WARNING, "change detected", **where, **what)
        return
    name, about = "job changed", dict[str, object]()
    match event:
        case JobChanged(job, change, _, trial_number):
            about = {"change": change, "trial": trial_number, "policy": job.spec.policy}
        case BatchSizeStatusChanged(_, _, status, why):
            name, about = "batch size status changed", {"status": status, "why": why}
        case BestKnownChanged(cost=cost):
            name, about = "best known changed", {"cost_joules": cost}
    log_event(log, logging.INFO, name, job=event.job.spec.job_id, batch_size=event.batch_size, **about)


def _log_prior(event: PriorDiffers | PriorUnused) -> None:
    job, prior = event.job.spec, event.prior.spec
    names = {"job": job.job_id, "prior_job": prior.job_id}
    if isinstance(event, PriorUnused):
        log_event(log, logging.WARNING, "prior unused", **names, why=event.why)
    else:
        targets = {"target": _target(job), "prior_target": _target(prior)}
        log_event(log, logging.WARNING, "prior differs", **names, **targets)


def _target(spec: JobSpec) -> str:
    return f"{'at least' if spec.higher_is_better else 'at most'} {spec.target_metric:g}"


def _log_warning(trial: Trial, warning: TrialWarning) -> None:
    about = {"reason": warning.reason.value, "field": warning.field, "message": warning.message}
    _log_trial(trial, "trial warning", logging.WARNING, **about, monitor=str(trial.monitor) or None)


def _log_report(trial: Trial) -> None:
    if trial.last is not None:
        sums = {"metric": trial.last.metric, "seconds": trial.last.time_seconds, "joules": trial.last.energy_joules}
        _log_trial(trial, "epoch reported", logging.DEBUG, **sums, monitor=str(trial.monitor) or None)


def _log_end(trial: Trial) -> None:
    reason = trial.end_reason.value if trial.end_reason else None
    if trial.end_reason is EndReason.LOST:
        _log_trial(trial, "trial lost", logging.WARNING)
    elif trial.undecided:
        _log_trial(trial, "trial failed", reason=reason)
    else:
        monitor = str(trial.monitor) or None
        _log_trial(
            trial, "trial decided", reason=reason, converged=trial.converged, cost_joules=trial.cost, monitor=monitor
        )


def _log_trial(trial: Trial, event: str, level: int = logging.INFO, **fields: object) -> None:
    epoch = trial.last.epoch if trial.last else None
    who = {"job": trial.job_id, "trial": trial.number, "batch_size": trial.batch_size, "epoch": epoch}
    log_event(log, level, event, **who, **fields)
