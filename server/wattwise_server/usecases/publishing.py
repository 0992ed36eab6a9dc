"""Publishes events: to observers, and to the history if people want to know them later."""

from __future__ import annotations

from wattwise_server.clock import Clock
from wattwise_server.domain import EndReason, HistoryEntry, HistoryKind, Job, Trial, TrialOrigin
from wattwise_server.observability.call import current_call
from wattwise_server.observability.events import (
    BatchSizeStatusChanged,
    BestKnownChanged,
    ChangeDetected,
    Event,
    JobChanged,
    JobDeleted,
    JobRegistered,
    MonitorsDiffer,
    Observer,
    PowerProfiled,
    TrialEnded,
    TrialImported,
    TrialRevived,
    TrialWarned,
)
from wattwise_server.policy.cost import with_unit
from wattwise_server.policy.failures import state
from wattwise_server.store.base import Transaction
from wattwise_server.usecases.changes import new_changes
from wattwise_server.usecases.monitors import monitor_warning

_CHANGES = {
    "reset": HistoryKind.JOB_RESET,
    "paused": HistoryKind.JOB_PAUSED,
    "resumed": HistoryKind.JOB_RESUMED,
    "policy changed": HistoryKind.POLICY_CHANGED,
    "baseline requested": HistoryKind.BASELINE_REQUESTED,
    "baselines scheduled": HistoryKind.BASELINE_SCHEDULE_CHANGED,
    "baselines ended": HistoryKind.BASELINE_SCHEDULE_CHANGED,
    "batch size pinned": HistoryKind.BATCH_SIZE_PINNED,
    "batch size unpinned": HistoryKind.BATCH_SIZE_UNPINNED,
    "batch size banned": HistoryKind.BATCH_SIZE_BANNED,
    "batch size unbanned": HistoryKind.BATCH_SIZE_UNBANNED,
    "batch size readmitted": HistoryKind.BATCH_SIZE_READMITTED,
    "trial excluded": HistoryKind.TRIAL_EXCLUDED,
    "trial included": HistoryKind.TRIAL_INCLUDED,
}
_ENDS = {
    EndReason.COMPLETED: (HistoryKind.TRIAL_FAILED, "completed without a decision"),
    EndReason.ERROR: (HistoryKind.TRIAL_FAILED, "crashed"),
    EndReason.OUT_OF_MEMORY: (HistoryKind.TRIAL_FAILED, "ran out of memory"),
    EndReason.PREEMPTED: (HistoryKind.TRIAL_INTERRUPTED, "was preempted"),
    EndReason.LOST: (HistoryKind.TRIAL_INTERRUPTED, "was lost"),
}


class Publisher:
    """Publishes the events of transactions."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        self._clock = clock
        self._observer = observer

    def publish(self, tx: Transaction, event: Event) -> None:
        """Publishes an event once the block is durable."""
        tx.after_commit(self._observer.prepare(event))
        found = _history_of(event)
        if found is not None:
            kind, job_id, message, number, size = found
            tx.add_history(HistoryEntry(self._clock(), kind, job_id, message, number, size, caller_token()))

    def publish_search(self, tx: Transaction, before: Job, job: Job) -> None:
        """Publishes what is new since `before`: other statuses of batch sizes, detected changes, the best known one."""
        if job.search is before.search:
            return
        for old, new in zip(before.search.arms, job.search.arms, strict=True):
            if new is not old:
                was, now = (state(each.search, arm, job.spec.job_id) for each, arm in ((before, old), (job, new)))
                if was.status is not now.status and not new.banned:
                    self.publish(tx, BatchSizeStatusChanged(job, new.batch_size, now.status.value, now.reason))
        for change in new_changes(before, job):
            self.publish(tx, ChangeDetected(job, change))
        self.publish_best(tx, before, job)

    def publish_best(self, tx: Transaction, before: Job, job: Job) -> None:
        """Publishes whether another batch size is the best known one since `before`."""
        size, cost = job.search.best_known, job.search.best_known_cost
        if size is not None and cost is not None and size != before.search.best_known:
            self.publish(tx, BestKnownChanged(job, size, cost))


def caller_token() -> str:
    """Id of the token of the running call; empty if there is none."""
    call = current_call.get()
    return call.token_id if call is not None else ""


def _history_of(event: Event) -> tuple[HistoryKind, str, str, int | None, int | None] | None:
    """The kind, job, sentence, trial and batch size of an event in the history; None if it has no place there."""
    found: tuple[HistoryKind, str, str, int | None, int | None] | None = None
    match event:
        case JobRegistered(job):
            sizes = ", ".join(map(str, job.spec.batch_sizes))
            message = f"registered with the batch sizes {sizes}, by default {job.spec.default_batch_size}"
            found = HistoryKind.JOB_REGISTERED, job.spec.job_id, message, None, None
        case JobDeleted(job, stopped):
            trials = f"its {job.num_trials} trials" if job.num_trials != 1 else "its trial"
            message = (
                f"deleted with {trials if job.num_trials else 'no trials'}; running ones that were stopped: {stopped}"
            )
            found = HistoryKind.JOB_DELETED, job.spec.job_id, message, None, None
        case JobChanged(job, change, batch_size, number):
            found = _CHANGES[change], job.spec.job_id, _changed(event), number, batch_size
        case TrialEnded(trial) if trial.end_reason in _ENDS:
            kind, what = _ENDS[trial.end_reason]
            found = _of(trial, kind, f"{what}{_place(trial)}{_cause(trial)}")
        case TrialRevived(trial):
            found = _of(trial, HistoryKind.TRIAL_REVIVED, f"goes on{_place(trial)}")
        case TrialImported(trial, epochs):
            found = _of(
                trial, HistoryKind.TRIAL_IMPORTED, f"was imported with {epochs} measurement{'s' * (epochs != 1)}"
            )
        case MonitorsDiffer(trial):
            found = _of(trial, HistoryKind.TRIAL_WARNED, monitor_warning(trial).message, subject=False)
        case TrialWarned(trial, warning):
            found = _of(trial, HistoryKind.TRIAL_WARNED, warning.message, subject=False)
        case PowerProfiled(trial, limits, cheapest):
            what = f"profiled {limits} power limits; the cheapest known is {cheapest.limit_watts_per_gpu:g} W"
            found = _of(trial, HistoryKind.POWER_PROFILED, what)
        case BatchSizeStatusChanged(job, batch_size, status, reason):
            message = f"batch size {batch_size} is now {status.lower().replace('_', ' ')}: {reason}"
            found = HistoryKind.BATCH_SIZE_STATUS_CHANGED, job.spec.job_id, message, None, batch_size
        case BestKnownChanged(job, batch_size, cost):
            message = f"batch size {batch_size} now has the least expected cost, {with_unit(cost)} per model"
            found = HistoryKind.BEST_KNOWN_CHANGED, job.spec.job_id, message, None, batch_size
        case ChangeDetected(job, change):
            place = change.detected_by_trial, change.batch_size
            found = HistoryKind.CHANGE_DETECTED, job.spec.job_id, change.message, *place
    return found


def _of(
    trial: Trial, kind: HistoryKind, message: str, *, subject: bool = True
) -> tuple[HistoryKind, str, str, int | None, int | None]:
    said = f"trial {trial.number}, batch size {trial.batch_size}, {message}" if subject else message
    return kind, trial.job_id, said, trial.number, trial.batch_size


def _place(trial: Trial) -> str:
    return f" after epoch {trial.last.epoch}" if trial.last else " before its first report"


def _cause(trial: Trial) -> str:
    lost = trial.end_reason is EndReason.LOST and trial.origin is not TrialOrigin.IMPORTED
    return ": its lease expired without a report or a heartbeat" if lost else ""


def _changed(event: JobChanged) -> str:
    about = [f"batch size {event.batch_size}"] if event.batch_size and event.trial_number is None else []
    if event.trial_number is not None:
        about = [f"trial {event.trial_number}, batch size {event.batch_size}"]
    if event.change == "baselines scheduled":
        about.append(f"one launch in {event.job.baseline_every}")
    if event.change == "policy changed":
        about = [event.details]
    return ": ".join((event.change, *about))
