"""All reads of the file, on a separate read-only connection."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import aiosqlite

from wattwise_server.config import LARGEST_EPOCHS_KEPT
from wattwise_server.domain import (
    RESUMABLE,
    Arm,
    Job,
    JobEvent,
    ListedJob,
    Measurement,
    MetricSpan,
    Observation,
    Trial,
    TrialKey,
    TrialStatus,
)
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.connection import explain
from wattwise_server.store.database_file import DatabaseFile
from wattwise_server.store.rows import (
    Row,
    read_arm,
    read_events,
    read_job,
    read_listed_job,
    read_measurement,
    read_trial,
    to_micros,
)

# The newest measurement of a running trial is only in `measurements`.
_TRIALS = """
    SELECT t.job_key, t.trial_number, t.batch_size, t.type, t.pruning_round, t.status, t.end_reason, t.request_id,
           t.start_time, t.end_time, t.cost, t.cost_bound, t.converged, t.target_reached, t.observation,
           t.best_known,
           t.monitor_kinds, t.monitor_estimated, t.monitor_partly,
           t.other_monitor_kinds, t.other_monitor_estimated, t.other_monitor_partly,
           t.excluded, t.dispatch_event, t.end_event,
           t.power_limit_watts, t.warnings, t.start_known, t.profile,
           coalesce(t.last_epoch, m.epoch) AS last_epoch,
           coalesce(t.last_time_seconds, m.time_seconds) AS last_time_seconds,
           coalesce(t.last_energy_joules, m.energy_joules) AS last_energy_joules,
           coalesce(t.last_metric, m.metric) AS last_metric,
           coalesce(t.last_report_time, m.report_time) AS last_report_time,
           coalesce(t.last_computed_time_seconds, m.computed_time_seconds) AS last_computed_time_seconds,
           coalesce(t.last_computed_energy_joules, m.computed_energy_joules) AS last_computed_energy_joules,
           coalesce(t.last_computed_power_limit_watts, m.computed_power_limit_watts) AS last_computed_power_limit_watts
    FROM trials t LEFT JOIN measurements m
      ON t.status = 'DISPATCHED' AND m.job_key = t.job_key AND m.trial_number = t.trial_number
     AND m.epoch = (SELECT max(epoch) FROM measurements WHERE job_key = t.job_key AND trial_number = t.trial_number)
"""
_JOB = "SELECT * FROM jobs WHERE job_id = ?"
_ARMS = "SELECT * FROM arms LEFT JOIN power_limits USING (job_key, batch_size) WHERE job_key = ? ORDER BY batch_size"
# The order of keys is that of registration.
_JOBS = """
    SELECT *,
           (SELECT json_group_array(batch_size) FROM arms a WHERE a.job_key = j.job_key) AS batch_sizes,
           (SELECT json_group_array(batch_size) FROM arms a
            WHERE a.job_key = j.job_key AND NOT (pruned OR excluded OR banned)) AS surviving
    FROM {jobs} job_key > ?2 ORDER BY job_key LIMIT ?3
"""
# In UTF-8, no text that starts with the prefix is greater than it with the byte FF behind.
_PREFIXED = "jobs j WHERE job_id >= ?1 AND job_id < ?1 || CAST(x'FF' AS TEXT)"
_MEASUREMENTS = """
    SELECT * FROM measurements WHERE job_key = ? AND trial_number = ? AND epoch < ? ORDER BY epoch DESC LIMIT ?
"""
_PIECES = 50
_MEASUREMENTS_AT_A_TIME = LARGEST_EPOCHS_KEPT // _PIECES
_METRIC_SPAN = """
    SELECT count(*) AS epochs, min(metric) AS least, max(metric) AS most,
           (SELECT metric FROM measurements WHERE job_key = ?1 AND trial_number = ?2 ORDER BY epoch LIMIT 1) AS first
    FROM measurements WHERE job_key = ?1 AND trial_number = ?2
"""
# The signs keep SQLite from searching by the primary key, which would read every trial of the job.
_OBSERVATIONS = "trials WHERE job_key = ?1 AND observation IS NOT NULL AND +trial_number > ?2 AND NOT excluded"
_MISSES = f"SELECT batch_size, cost FROM {_OBSERVATIONS} AND NOT converged ORDER BY observation"  # noqa: S608
_WINDOWS = f"""
    SELECT t.batch_size, t.cost, t.converged FROM arms a JOIN trials t
        ON t.job_key = a.job_key AND t.trial_number IN (
            SELECT trial_number FROM {_OBSERVATIONS} AND batch_size = a.batch_size ORDER BY observation DESC LIMIT ?3)
    WHERE a.job_key = ?1 ORDER BY t.observation
"""  # noqa: S608
_RUNNING_LEASES = """
    SELECT job_id, job_key, trial_number, trial_lease_seconds FROM trials JOIN jobs USING (job_key)
    WHERE status = 'DISPATCHED' AND trial_lease_seconds > 0
"""

_RESUMABLE = ", ".join(sorted(f"'{reason.value}'" for reason in RESUMABLE))

# Jumps from trial to trial over the primary key, without reading the rows in between.
_MEASURED_TRIALS = f"""
    WITH RECURSIVE found (job_key, trial_number, hops) AS (
        SELECT * FROM (SELECT job_key, trial_number, 1 FROM measurements
                       WHERE (job_key, trial_number) > (?, ?) ORDER BY job_key, trial_number LIMIT 1)
        UNION ALL
        SELECT (SELECT job_key FROM measurements m WHERE (m.job_key, m.trial_number) > (f.job_key, f.trial_number)
                ORDER BY m.job_key, m.trial_number LIMIT 1),
               (SELECT trial_number FROM measurements m WHERE (m.job_key, m.trial_number) > (f.job_key, f.trial_number)
                ORDER BY m.job_key, m.trial_number LIMIT 1),
               hops + 1
        FROM found f WHERE f.job_key IS NOT NULL AND hops < ?
    )
    SELECT f.job_key, f.trial_number,
           t.end_time < ? AND t.status != 'DISPATCHED' AS over,
           coalesce(t.end_reason IN ({_RESUMABLE}), 0) AS resumable,
           (SELECT min(epoch) FROM measurements m WHERE (m.job_key, m.trial_number) = (f.job_key, f.trial_number))
               AS oldest,
           (SELECT max(epoch) FROM measurements m WHERE (m.job_key, m.trial_number) = (f.job_key, f.trial_number))
               AS newest
    FROM found f JOIN trials t USING (job_key, trial_number) ORDER BY f.job_key, f.trial_number
"""  # noqa: S608 - the values are an enum's own


@contextmanager
def readable(job_id: str) -> Iterator[None]:
    """Around the conversion of a job's rows, whose values may be damaged.

    Raises:
        StorageUnavailableError: they are.
    """
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StorageUnavailableError(
            f"job {job_id!r} is damaged in the database ({error}): stop the server and restore a backup"
        ) from error


def _listed(row: Row) -> ListedJob:
    with readable(row["job_id"]):
        return read_listed_job(row)


class Queries:
    """The queries."""

    def __init__(self, connection: aiosqlite.Connection, file: DatabaseFile) -> None:
        """Reads a file through a connection whose row factory is `sqlite3.Row`."""
        self._connection = connection
        self.file = file

    async def job(self, job_id: str) -> tuple[int, Job] | None:
        """A job with its key. Nothing of it may be waiting for its commit."""
        found = await self._all(_JOB, job_id)
        if not found:
            return None
        row = found[0]
        arms = await self._all(_ARMS, row["job_key"])
        return row["job_key"], read_job(row, await self._with_histories(row, list(map(read_arm, arms))), arms)

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[ListedJob]:
        """Jobs by key."""
        jobs = "jobs j WHERE "
        if prefix:
            # By the index of ids.
            jobs = f"{_PREFIXED} AND +"
        found = await self._all(_JOBS.format(jobs=jobs), prefix, after, limit)
        return [_listed(row) for row in found]

    async def running_leases(self) -> Sequence[Row]:
        """The running trials that have a lease: rows of job_id, job_key, trial_number and trial_lease_seconds."""
        return await self._all(_RUNNING_LEASES)

    async def running(self, job_id: str, key: int) -> Sequence[Trial]:
        """A job's dispatched trials by number."""
        sql = f"{_TRIALS} WHERE t.job_key = ? AND t.status = 'DISPATCHED' ORDER BY t.trial_number"
        return [read_trial(row, job_id) for row in await self._all(sql, key)]

    async def trial(self, job_id: str, key: int, number: int) -> Trial | None:
        """One trial."""
        found = await self._all(f"{_TRIALS} WHERE t.job_key = ? AND t.trial_number = ?", key, number)
        return read_trial(found[0], job_id) if found else None

    async def trial_of_request(self, job_id: str, key: int, request_id: str) -> Trial | None:
        """The trial that a request dispatched."""
        found = await self._all(f"{_TRIALS} WHERE t.job_key = ? AND t.request_id = ?", key, request_id)
        return read_trial(found[0], job_id) if found else None

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials by number."""
        conditions = ["t.job_key = (SELECT job_key FROM jobs WHERE job_id = ?)", "t.trial_number > ?"]
        parameters: list[object] = [job_id, after]
        if status is not None:
            conditions.append("t.status = ?")
            parameters.append(status.value)
        if batch_size is not None:
            conditions.append("t.batch_size = ?")
            parameters.append(batch_size)
        sql = f"{_TRIALS} WHERE {' AND '.join(conditions)} ORDER BY t.trial_number LIMIT ?"
        return [read_trial(row, job_id) for row in await self._all(sql, *parameters, limit)]

    async def events(self, job_id: str, key: int) -> Sequence[JobEvent]:
        """All events of a job in their order."""
        trials = await self._all(f"{_TRIALS} WHERE t.job_key = ?", key)
        rows = await self._all("SELECT * FROM events WHERE job_key = ? ORDER BY event", key)
        # Of thousands of trials: other jobs' calls go on meanwhile.
        return await asyncio.to_thread(read_events, job_id, trials, rows)

    async def measurements(self, key: int, trial_number: int) -> Sequence[Measurement]:
        """A trial's newest measurements, as many as one answer holds, by epoch."""
        newest: list[Measurement] = []
        before = sys.maxsize
        # In pieces, between which others read.
        for _ in range(_PIECES):
            rows = await self._all(_MEASUREMENTS, key, trial_number, before, _MEASUREMENTS_AT_A_TIME)
            newest += map(read_measurement, rows)
            if len(rows) < _MEASUREMENTS_AT_A_TIME:
                break
            before = newest[-1].epoch
        return newest[::-1]

    async def metric_span(self, key: int, trial_number: int) -> MetricSpan:
        """The metrics of a trial's measurements."""
        found = (await self._all(_METRIC_SPAN, key, trial_number))[0]
        return MetricSpan(found["epochs"], found["first"], found["least"], found["most"])

    async def count_jobs(self, prefix: str, limit: int) -> int:
        """The number of jobs whose id starts with a prefix, or the limit if there are more."""
        sql = f"SELECT count(*) AS found FROM (SELECT 1 FROM {_PREFIXED} LIMIT ?2)"  # noqa: S608
        return int((await self._all(sql, prefix, limit))[0]["found"])

    async def was_launch_deleted(self, job_id: str, request_id: str, started: datetime | None) -> bool:
        """Whether a launch was deleted with its job: by its id or, unless `started` is None, by its start."""
        sql = (
            "SELECT 1 FROM deletions WHERE job_id = ?1 AND (request_id != '' AND request_id = ?2 "
            "OR request_id = '' AND ?3 BETWEEN create_time AND delete_time)"
        )
        return bool(await self._all(sql, job_id, request_id, None if started is None else to_micros(started)))

    async def was_deleted(self, key: TrialKey) -> bool:
        """Whether this launch was deleted with its job; without one, a trial of this number that might still train."""
        if key.request_id:
            return await self.was_launch_deleted(key.job_id, key.request_id, None)
        sql = "SELECT 1 FROM deleted_trials WHERE job_id = ? AND trial_number = ? AND ? IN (0, batch_size)"
        return bool(await self._all(sql, key.job_id, key.trial_number, key.batch_size))

    async def measured_trials(self, after: tuple[int, int], limit: int, ended_before: int) -> Sequence[Row]:
        """The next trials that have measurements.

        Args:
            after: A job's key and a trial's number; only trials behind it.
            limit: The largest number of trials.
            ended_before: Microseconds since 1970; a trial that ended earlier is `over`.

        Returns:
            Rows of job_key, trial_number, over, resumable, and the oldest and newest epoch.
        """
        return await self._all(_MEASURED_TRIALS, *after, limit, ended_before)

    async def _with_histories(self, job: Row, arms: Sequence[Arm]) -> tuple[Arm, ...]:
        """The arms with what is derived from the trials."""
        key, reset_after, window = job["job_key"], job["reset_after"], job["window_size"]
        if window:
            windows: defaultdict[int, list[Observation]] = defaultdict(list)
            for row in await self._all(_WINDOWS, key, reset_after, window):
                windows[row["batch_size"]].append(Observation(row["cost"], bool(row["converged"])))
            return tuple(replace(arm, window=tuple(windows[arm.batch_size])) for arm in arms)
        if all(arm.num_succeeded == arm.reached.count for arm in arms):
            return tuple(arms)
        misses: defaultdict[int, list[float]] = defaultdict(list)
        for row in await self._all(_MISSES, key, reset_after):
            misses[row["batch_size"]].append(row["cost"])
        return tuple(replace(arm, misses=tuple(misses[arm.batch_size])) for arm in arms)

    def check(self) -> None:
        """Checks that the file is where it was opened.

        Raises:
            StorageUnavailableError: it is not.
        """
        try:
            self.file.check()
        except sqlite3.Error as error:
            raise StorageUnavailableError(f"the database is gone ({explain(error)})") from error

    async def _all(self, sql: str, *parameters: object) -> Sequence[Row]:
        try:
            self.file.check_after_pause()
            return list(await self._connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]
        except (sqlite3.Error, ValueError) as error:
            # aiosqlite raises ValueError for a closed connection.
            raise StorageUnavailableError(f"the database could not be read ({explain(error)}); retry") from error
