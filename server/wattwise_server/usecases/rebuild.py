"""Rebuilds a job's search by replaying its events through its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from wattwise_server.domain import EventKind, Job, JobEvent, Search, Trial
from wattwise_server.policy import history
from wattwise_server.policy.base import (
    Banned,
    Decided,
    Dispatched,
    Event,
    Failed,
    Readmitted,
    Reported,
    Revived,
    Unbanned,
)
from wattwise_server.policy.registry import POLICIES

_OF_TRIALS: Mapping[EventKind, Callable[[Trial], Event]] = {
    EventKind.DISPATCHED: Dispatched,
    EventKind.REPORTED: Reported,
    EventKind.DECIDED: Decided,
    EventKind.FAILED: Failed,
    EventKind.REVIVED: Revived,
}
_OF_BATCH_SIZES: Mapping[EventKind, Callable[[int], Event]] = {
    EventKind.BANNED: Banned,
    EventKind.UNBANNED: Unbanned,
    EventKind.READMITTED: Readmitted,
}


def rebuilt(job: Job, events: Iterable[JobEvent]) -> Search:
    """The search that follows from the events of the trials that count, under the job's policy.

    Takes about a millisecond for each trial, so long jobs are rebuilt in a thread.

    Args:
        job: The job; its search is ignored.
        events: All its events, in their order.
    """
    policy = POLICIES[job.spec.policy]
    search = policy.register(job.spec, ())
    if job.first_notes and job.spec.policy == (job.registered or job.spec).policy:
        search = replace(search, notes=job.first_notes)
    for event in events:
        trial = event.trial
        if trial is None or job.counts(trial):
            search = history.observe(policy, job.spec, search, _policy_event(event, trial))
        elif event.kind is EventKind.DISPATCHED:
            search = replace(search, num_trials=trial.number)
    return search


def _policy_event(event: JobEvent, trial: Trial | None) -> Event:
    if trial is None:
        return _OF_BATCH_SIZES[event.kind](event.batch_size)
    return _OF_TRIALS[event.kind](trial)
