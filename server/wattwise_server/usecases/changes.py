"""What follows from a change of a job's behaviour: a warning, and from which trial its savings are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from wattwise_server.domain import ChangedQuantity, DetectedChange, Job, Search, Stage, TrialWarning, WarningReason
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.base import PolicyState

SHOWN_TRIALS = 20
"""A change's warning is withdrawn once so many later trials have ended: that of a daily job stays three weeks."""

_REASONS = {
    ChangedQuantity.EPOCHS: WarningReason.EPOCHS_CHANGED,
    ChangedQuantity.EPOCH_COST: WarningReason.EPOCH_COST_CHANGED,
}


def changes(job: Job) -> Sequence[DetectedChange]:
    """Returns the newest change of each quantity."""
    return POLICIES[job.spec.policy].changes(job.search)


def new_changes(before: Job, job: Job) -> Sequence[DetectedChange]:
    """Returns the changes that a job has and had not before; one whose numbers have become more exact is not new."""
    known = {(change.quantity, change.detected_by_trial) for change in changes(before)}
    return [change for change in changes(job) if (change.quantity, change.detected_by_trial) not in known]


def compared_from(state: PolicyState) -> int:
    """Returns the first trial that claims of savings compare, the first after the newest change; 0 without a change."""
    try:
        found = POLICIES[state.policy].changes(Search(Stage.BANDIT, (), 0, 0, notes=state.notes))
    except ValueError:
        # Its notes are damaged, or those of another version: a list has its figures nevertheless.
        return 0
    return max((change.since_trial for change in found), default=0)


def with_change_warnings(job: Job) -> Job:
    """Returns the job with the warnings that follow from its search, in place of earlier ones."""
    reasons = set(_REASONS.values())
    kept = [warning for warning in job.warnings if warning.reason not in reasons]
    warnings = (*kept, *_warnings(job))
    return job if warnings == job.warnings else replace(job, warnings=warnings)


def _warnings(job: Job) -> Iterable[TrialWarning]:
    # Older trials that still run keep a warning longer, never shorter.
    ended = job.num_trials - sum(arm.running for arm in job.search.arms)
    for change in changes(job):
        if ended - change.detected_by_trial < SHOWN_TRIALS:
            field = "result.measurement.epoch"
            if change.quantity is ChangedQuantity.EPOCH_COST:
                field = "result.measurement.energy_joules" if job.spec.eta_knob else "result.measurement.time_seconds"
            yield TrialWarning(_REASONS[change.quantity], field, change.message, change.detected_by_trial)
