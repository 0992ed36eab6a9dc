"""The changes of a transaction: what a backend writes when it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from wattwise_server.domain import (
    Arm,
    Job,
    Measurement,
    PowerLimitState,
    PowerSample,
    RecordedEvent,
    RecordedSearchEvent,
    Trial,
)
from wattwise_server.store.columns import to_micros
from wattwise_server.store.tables import (
    ARM,
    ARMS,
    CHANGED_PARAMETERS,
    CHANGED_POLICY,
    EVENT,
    EVENTS,
    JOB,
    JOBS,
    LAUNCH,
    LAUNCHES,
    MEASUREMENT,
    MEASUREMENTS,
    POWER_LIMIT,
    POWER_LIMITS,
    POWER_SAMPLES,
    REGISTRATION,
    SAMPLES,
    SEARCH,
    SEARCH_EVENT,
    SEARCH_EVENTS,
    SPEC,
    TRIAL,
    TRIALS,
    Table,
)

_REMEMBERED = timedelta(days=365)


class Put(NamedTuple):
    """Adds a row, or merges it with the one that has its key, as the table says.

    Attributes:
        table: The table.
        values: A value for each of its columns.
    """

    table: Table
    values: Sequence[object]


class Update(NamedTuple):
    """Changes a row of a table whose rows are updated.

    Attributes:
        table: The table.
        values: Those of the key and of the columns that may change.
    """

    table: Table
    values: Sequence[object]


class KeepMeasurements(NamedTuple):
    """Deletes all but a trial's newest measurements."""

    job_key: int
    trial_number: int
    newest: int


class DeleteJob(NamedTuple):
    """Deletes a job with all its rows, and remembers its dispatched launches.

    Attributes:
        job_key: The job's key.
        job_id: Its id.
        delete_time: Now, in microseconds.
        forget_before: Deletions from before this time are forgotten.
    """

    job_key: int
    job_id: str
    delete_time: int
    forget_before: int


class PruneMeasurements(NamedTuple):
    """Deletes at most `limit` of a trial's oldest measurements, up to an epoch."""

    job_key: int
    trial_number: int
    through_epoch: int
    limit: int


class PruneEvents(NamedTuple):
    """Deletes at most `limit` of the oldest events from before a time, in microseconds."""

    before: int
    limit: int


class Lease(NamedTuple):
    """Renews the lease of a running trial in a database that keeps leases.

    Attributes:
        job_key: The job's key.
        trial_number: The trial's number.
        micros: How long the lease lasts from the commit on, in microseconds; None: the trial has ended.
        starts: Whether the trial starts to run.
    """

    job_key: int
    trial_number: int
    micros: int | None
    starts: bool = False


class Expired(NamedTuple):
    """Checks that the lease of a trial has expired; the commit changes nothing otherwise."""

    job_key: int
    trial_number: int


class Room(NamedTuple):
    """Checks that fewer than `limit` jobs have ids that start with a prefix, before a job is created."""

    prefix: str
    limit: int
    job_key: int


Change: TypeAlias = (
    Put | Update | KeepMeasurements | DeleteJob | PruneMeasurements | PruneEvents | Lease | Expired | Room
)


def insert_job(key: int, job: Job) -> list[Change]:
    """Creates a job with its arms and power limits."""
    registered = [*SPEC.write(job.registered or job.spec), *REGISTRATION.write(job)]
    inserted = Put(JOBS, (key, *registered, *_job_state(job)))
    return [inserted, *_save_arms(key, job.search.arms), *_save_power_limits(key, job.power_limits)]


def update_job(key: int, before: Job, job: Job) -> list[Change]:
    """Saves what changed in a job."""
    pairs = zip(job.search.arms, before.search.arms, strict=True)
    # Running trials are not stored: they are counted when the job is loaded.
    arms = [new for new, old in pairs if new is not old and ARM.write(new) != ARM.write(old)]
    changes: list[Change] = [Update(JOBS, (key, *_job_state(job))), *_save_arms(key, arms)]
    if job.power_limits is not before.power_limits:
        known = set(before.power_limits)
        changes += _save_power_limits(key, [state for state in job.power_limits if state not in known])
    return changes


def _job_state(job: Job) -> Sequence[object]:
    changed = None if job.registered is None else job.spec
    policy = CHANGED_POLICY.write(changed and changed.policy)
    return (*SEARCH.write(job.search), *JOB.write(job), *policy, *CHANGED_PARAMETERS.write(changed))


def _save_arms(key: int, arms: Iterable[Arm]) -> list[Put]:
    return [Put(ARMS, (key, arm.batch_size, *ARM.write(arm))) for arm in arms]


def _save_power_limits(key: int, states: Iterable[PowerLimitState]) -> list[Put]:
    return [Put(POWER_LIMITS, (key, state.batch_size, *POWER_LIMIT.write(state))) for state in states]


def delete_job(key: int, job_id: str, now: datetime) -> DeleteJob:
    """Deletes a job, and remembers its launches for a year."""
    return DeleteJob(key, job_id, to_micros(now), to_micros(now - _REMEMBERED))


def save_trial(key: int, trial: Trial) -> Put:
    """Creates or saves a trial."""
    if trial.running:
        # It follows from its measurements and from other trials.
        trial = trial._replace(
            last=None, cost=None, cost_bound=None, converged=False, target_reached=False, best_known=False
        )
    return Put(TRIALS, (key, trial.number, *TRIAL.write(trial)))


def add_measurement(key: int, trial_number: int, measurement: Measurement) -> Put:
    """Saves a measurement of a trial."""
    return Put(MEASUREMENTS, (key, trial_number, *MEASUREMENT.write(measurement)))


def add_launch(key: int, trial: Trial) -> Put:
    """Saves what is known of a trial's launch."""
    return Put(LAUNCHES, (key, trial.number, *LAUNCH.write(trial.launch)))


def save_samples(key: int, trial: Trial, samples: Sequence[PowerSample]) -> Put:
    """Saves all samples of a trial's profile."""
    return Put(POWER_SAMPLES, (key, trial.number, *SAMPLES.write(samples)))


def add_search_event(key: int, event: RecordedSearchEvent) -> Put:
    """Saves an event that the trials do not tell."""
    return Put(SEARCH_EVENTS, (key, *SEARCH_EVENT.write(event)))


def add_event(event: RecordedEvent) -> Put:
    """Saves an event for people."""
    return Put(EVENTS, EVENT.write(event))
