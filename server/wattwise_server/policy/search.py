"""The search of a job follows from its events: `job_after` adds the newest one, `rebuild_search` replays them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wattwise_server.domain import Job, RecordedSearchEvent, Search
from wattwise_server.events import SearchEvent, SearchEventOfBatchSize, TrialStarted, event_of_row
from wattwise_server.policy.history import observe
from wattwise_server.policy.registry import POLICIES


def job_after(job: Job, event: SearchEvent) -> Job:
    """Returns the job after its next event."""
    return replace(job, num_search_events=job.num_search_events + 1, search=_searched(job, job.search, event))


def rebuild_search(job: Job, rows: Iterable[RecordedSearchEvent]) -> Search:
    """Rebuilds the search that follows from the events of a job under its policy.

    Takes about a millisecond for each trial, so long jobs are rebuilt in a thread.

    Args:
        job: The job; its search is ignored.
        rows: All its events, in their order.
    """
    search = POLICIES[job.spec.policy].register(job.spec, ())
    if job.first_notes and job.spec.policy == (job.registered or job.spec).policy:
        search = replace(search, notes=job.first_notes)
    for row in rows:
        search = _searched(job, search, event_of_row(job.spec, row))
    return search


def _searched(job: Job, search: Search, event: SearchEvent) -> Search:
    """Returns the search after an event, which changes nothing if its trial does not count."""
    if isinstance(event, SearchEventOfBatchSize) or job.counts(event.trial):
        return observe(POLICIES[job.spec.policy], job.spec, search, event)
    # An import may be excluded from its start.
    return replace(search, num_trials=event.trial.number) if isinstance(event, TrialStarted) else search
