"""Reads values of the domain from rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wattwise.rules import STATUS_AFTER

from wattwise_server.domain import (
    UNDECIDED,
    Activity,
    Arm,
    Job,
    Launch,
    ListedJob,
    Measurement,
    PowerLimitState,
    PowerSample,
    PruningGtsTrial,
    RecordedEvent,
    RecordedSearchEvent,
    Search,
    Trial,
)
from wattwise_server.events import TrialDispatched, event_of_end
from wattwise_server.store.columns import Row, from_micros
from wattwise_server.store.tables import (
    ARM,
    CHANGED_PARAMETERS,
    EVENT,
    JOB,
    LAUNCH,
    MEASUREMENT,
    POWER_LIMIT,
    REGISTRATION,
    SAMPLES,
    SEARCH,
    SPEC,
    TRIAL,
    TRIAL_AT_EVENT,
)

_NO_LAUNCH = Launch()

FAILED = f"status IN ({', '.join(sorted(repr(status.value) for status in UNDECIDED))})"
"""The condition that a trial ended without a decision."""

NEWEST_EPOCH = (
    "(SELECT max(n.epoch) FROM measurements n WHERE n.job_key = t.job_key AND n.trial_number = t.trial_number)"
)
"""The epoch of the newest measurement of a trial `t`."""


def read_job(row: Row, arms: tuple[Arm, ...], limits: Iterable[Row]) -> Job:
    """Returns a job from its row, its arms, and rows with the columns of its power limits."""
    job = _read_job(row, tuple(arm.batch_size for arm in arms), arms)
    states = (PowerLimitState(batch_size=each["batch_size"], **POWER_LIMIT.fields(each)) for each in limits)
    known = (state for state in states if state.cheapest is not None or state.profiling is not None)
    return replace(job, power_limits=tuple(known))


def read_listed_job(row: Row, position: int | str) -> ListedJob:
    """Returns a job of a list from its row, with `batch_sizes`, `available`, `failing` and those of its activity."""
    names = ("batch_sizes", "available", "failing")
    batch_sizes, available, failing = (tuple(sorted(json.loads(row[name] or "[]"))) for name in names)
    activity = None
    if row["num_running"] is not None:
        last_time = from_micros(row["active_time"]) if row["active_time"] else None
        activity = Activity(row["num_running"], last_time, bool(row["attention"]))
    return ListedJob(position, row["job_key"], _read_job(row, batch_sizes, ()), available, failing, activity)


def _read_job(row: Row, batch_sizes: tuple[int, ...], arms: tuple[Arm, ...]) -> Job:
    registered, spec = None, SPEC.make(batch_sizes=batch_sizes, **SPEC.fields(row))
    if changed := row["changed_policy"]:
        registered, spec = spec, replace(spec, policy=changed, **CHANGED_PARAMETERS.read(row))
    search = Search(arms=arms, **SEARCH.fields(row))
    return Job(spec=spec, registered=registered, search=search, **REGISTRATION.fields(row), **JOB.fields(row))


def window_of(row: Row) -> int:
    """Returns the window of a job's policy."""
    changed = CHANGED_PARAMETERS.read(row)
    return int((changed or row)["window_size"])


def read_arm(row: Row) -> Arm:
    """Returns the arm of a row, without what is derived from the trials."""
    return Arm(batch_size=row["batch_size"], **ARM.fields(row))


def read_trial(row: Row, job_id: str) -> Trial:
    """Returns the trial of a row, joined with its launch and, while it runs, its newest measurement (`last_…`)."""
    launch = _NO_LAUNCH if row["reason"] is None else LAUNCH.read(row)
    return Trial(job_id=job_id, number=row["trial_number"], launch=launch, **TRIAL.fields(row))


def read_samples(row: Row) -> Sequence[PowerSample]:
    """Returns the samples of a row of power_samples, by ascending limit."""
    samples: Sequence[PowerSample] = SAMPLES.read(row)
    return sorted(samples)


def read_event(row: Row) -> RecordedEvent:
    """Returns the event of a row."""
    return EVENT.read(row)


def read_search_events(job_id: str, trials: Iterable[Row], rows: Iterable[Row]) -> Sequence[RecordedSearchEvent]:
    """Returns all events of a job in their order, from its rows of trials and of events."""
    by_number = {row["trial_number"]: read_trial(row, job_id) for row in trials}
    found, first_roles = [], dict[int, PruningGtsTrial | None]()
    for row in rows:
        trial = by_number.get(row["trial_number"])
        if trial is not None:
            trial = _at_event(trial, row)
            first_roles.setdefault(trial.number, trial.policy_role)
        found.append(RecordedSearchEvent(row["number"], row["kind"], row["batch_size"], trial))
    for trial in by_number.values():
        dispatched = trial.renew(None, None)._replace(policy_role=first_roles.get(trial.number, trial.policy_role))
        found.append(RecordedSearchEvent(trial.dispatch_event, TrialDispatched.kind, trial.batch_size, dispatched))
        if trial.end_event is not None:
            found.append(RecordedSearchEvent(trial.end_event, event_of_end(trial).kind, trial.batch_size, trial))
    found.sort(key=lambda event: event.number)  # pragma: no mutate: the number comes first in an event
    return found


def _at_event(trial: Trial, row: Row) -> Trial:
    """Returns a trial as it was at an event of its own row."""
    then = TRIAL_AT_EVENT.fields(row)
    past = trial.renew(then["last"], None)._replace(policy_role=then["policy_role"])
    reason = then["end_reason"]
    if reason is None:
        return past
    return past._replace(status=STATUS_AFTER[reason], end_reason=reason, cost=then["cost"])


def read_measurement(row: Row) -> Measurement:
    """Returns the measurement of a row."""
    return MEASUREMENT.read(row)
