"""All reads of both databases. Parameters are `$1`, `$2` and so on; an attribute of `Reads` says what differs."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple

from wattwise_server.domain import (
    Arm,
    Job,
    ListedJob,
    Measurement,
    MetricSpan,
    Observation,
    PowerSample,
    RecordedSearchEvent,
    Trial,
)
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store import aggregates, lists
from wattwise_server.store.base import (
    Bucket,
    Content,
    Day,
    EventList,
    JobList,
    JobPlace,
    JobVersion,
    ListedEvent,
    ListedTrial,
    Place,
    PolicyState,
    Prices,
    Spent,
    StoredProfile,
    TrialGroup,
    TrialList,
)
from wattwise_server.store.columns import Row, to_micros
from wattwise_server.store.lists import Dialect, Query
from wattwise_server.store.rows import (
    NEWEST_EPOCH,
    read_arm,
    read_event,
    read_job,
    read_listed_job,
    read_measurement,
    read_samples,
    read_search_events,
    read_trial,
    window_of,
)
from wattwise_server.store.tables import LAUNCH, MEASUREMENT, TRIALS


def _trial_columns() -> str:
    """Returns SELECT with the columns of a trial; the newest measurement of a running one is in `measurements`."""
    newest = [column.name for column in MEASUREMENT.columns]
    stored = [column.name for column in TRIALS.columns if column.name.removeprefix("last_") not in newest]
    columns = [f"t.{name}" for name in stored] + [f"l.{column.name}" for column in LAUNCH.columns]
    columns += (f"coalesce(t.last_{name}, m.{name}) AS last_{name}" for name in newest)
    return f"SELECT {', '.join(columns)}"


TRIAL_COLUMNS = _trial_columns()
OF_TRIALS = f"""
    FROM trials t LEFT JOIN launches l ON l.job_key = t.job_key AND l.trial_number = t.trial_number
    LEFT JOIN measurements m
      ON t.status = 'RUNNING' AND m.job_key = t.job_key AND m.trial_number = t.trial_number
     AND m.epoch = {NEWEST_EPOCH}
"""
_ARMS = "SELECT * FROM arms LEFT JOIN power_limits USING (job_key, batch_size) WHERE job_key = $1 ORDER BY batch_size"
_PREFIXED = "jobs j WHERE job_id >= $1 AND job_id < $1 || {greatest}"
_MEASUREMENTS = """
    SELECT * FROM measurements WHERE job_key = $1 AND trial_number = $2 AND epoch > $3 ORDER BY epoch LIMIT $4
"""
_NEWEST_MEASUREMENTS = """
    SELECT * FROM measurements WHERE job_key = $1 AND trial_number = $2 AND epoch < $3 ORDER BY epoch DESC LIMIT $4
"""
_PLACE = ("start_time", "job_key", "trial_number")
# Each delivery is counted once, in the gap between two times, by the index of ends.
_DELIVERIES = """
    WITH gaps (after, until) AS (VALUES {gaps})
    SELECT (SELECT count(*) FROM trials t WHERE t.job_key = j.job_key AND t.end_time > g.after AND t.end_time <= g.until
            AND t.target_reached) AS found
    FROM jobs j CROSS JOIN gaps g WHERE j.job_id = $1 ORDER BY g.until
"""
_CONTENT = """
    SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM trials WHERE status = 'RUNNING') AS running_trials
"""
_LEAST_MICROS = -(2**63)
_JOBS_AT_A_STRETCH = 100
_DELETED_LAUNCH = "SELECT 1 FROM deletions WHERE job_id = $1 AND launch_id = $2 LIMIT 1"
"""The deletion of a job itself has an empty launch id."""

_DELETED_SINCE = (
    "SELECT 1 FROM deletions WHERE job_id = $1 AND launch_id = '' AND $2 BETWEEN create_time AND delete_time LIMIT 1"
)

_METRIC_SPAN = """
    SELECT count(*) AS epochs, min(metric) AS least, max(metric) AS most,
           (SELECT metric FROM measurements WHERE job_key = $1 AND trial_number = $2 ORDER BY epoch LIMIT 1) AS first
    FROM measurements WHERE job_key = $1 AND trial_number = $2
"""
# The signs keep SQLite from searching by the primary key, which would read every trial of the job.
_OBSERVATIONS = "trials WHERE job_key = $1 AND observation IS NOT NULL AND +trial_number > $2 AND NOT excluded"
_MISSES = f"SELECT batch_size, cost, converged FROM {_OBSERVATIONS} AND NOT converged ORDER BY observation"  # noqa: S608
_WINDOWS = f"""
    SELECT t.batch_size, t.cost, t.converged FROM arms a JOIN trials t
        ON t.job_key = a.job_key AND t.trial_number IN (
            SELECT trial_number FROM {_OBSERVATIONS} AND batch_size = a.batch_size ORDER BY observation DESC LIMIT $3)
    WHERE a.job_key = $1 ORDER BY t.observation
"""  # noqa: S608

# Jumps from trial to trial over the primary key, without reading the rows in between.
_MEASURED_TRIALS = """
    WITH RECURSIVE found (job_key, trial_number, hops) AS (
        SELECT * FROM (SELECT job_key, trial_number, 1 FROM measurements
                       WHERE (job_key, trial_number) > ($1, $2) ORDER BY job_key, trial_number LIMIT 1) AS least
        UNION ALL
        SELECT (SELECT job_key FROM measurements m WHERE (m.job_key, m.trial_number) > (f.job_key, f.trial_number)
                ORDER BY m.job_key, m.trial_number LIMIT 1),
               (SELECT trial_number FROM measurements m WHERE (m.job_key, m.trial_number) > (f.job_key, f.trial_number)
                ORDER BY m.job_key, m.trial_number LIMIT 1),
               hops + 1
        FROM found f WHERE f.job_key IS NOT NULL AND hops < $3
    )
    SELECT f.job_key, f.trial_number,
           t.end_time < $4 AND t.status != 'RUNNING' AS over,
           t.status = 'INTERRUPTED' AS resumable,
           (SELECT min(epoch) FROM measurements m WHERE (m.job_key, m.trial_number) = (f.job_key, f.trial_number))
               AS oldest,
           (SELECT max(epoch) FROM measurements m WHERE (m.job_key, m.trial_number) = (f.job_key, f.trial_number))
               AS newest
    FROM found f JOIN trials t USING (job_key, trial_number) ORDER BY f.job_key, f.trial_number
"""


@contextmanager
def readable(job_id: str) -> Iterator[None]:
    """Wraps the conversion of a job's rows, whose values may be damaged.

    Raises:
        StorageUnavailableError: they are.
    """
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise StorageUnavailableError(
            f"job {job_id!r} is damaged in the database ({error}): stop the server and restore a backup"
        ) from error


def _listed(row: Row, position: JobPlace) -> ListedJob:
    with readable(row["job_id"]):
        return read_listed_job(row, position)


def _by_job(rows: Iterable[Row], read: Callable[[Row], TrialGroup]) -> Mapping[int, Sequence[TrialGroup]]:
    found: defaultdict[int, list[TrialGroup]] = defaultdict(list)
    for row in rows:
        found[row["job_key"]].append(read(row))
    return found


class StoredJob(NamedTuple):
    """A job with its key, and the version that a commit compares; 0 where only one server writes."""

    key: int
    version: int
    job: Job


class Reads(ABC):
    """The reads of a database.

    Attributes:
        job_sql: A job's row by its id, with its version.
        trial_columns: What is read of trials.
        dialect: What the databases spell differently.
    """

    job_sql = "SELECT *, 0 AS version FROM jobs WHERE job_id = $1"
    trial_columns = TRIAL_COLUMNS
    dialect: Dialect

    @abstractmethod
    def admit(self) -> None:
        """Checks that the database is there, and that this program knows its schema. Every read and transaction asks.

        Raises:
            StorageUnavailableError: it is not, or the schema is newer.
        """

    @abstractmethod
    async def _fetch(self, sql: str, parameters: Sequence[object], *, slow: bool) -> Sequence[Row]:
        """Returns all rows of a query; one that may take long is `slow`, so that others need not wait for it.

        Raises:
            StorageUnavailableError: the database cannot be read.
        """

    async def _all(self, sql: str, *parameters: object) -> Sequence[Row]:
        self.admit()
        return await self._fetch(sql, parameters, slow=False)

    async def _slowly(self, sql: str, *parameters: object) -> Sequence[Row]:
        self.admit()
        return await self._fetch(sql, parameters, slow=True)

    @property
    def _trials_sql(self) -> str:
        """Rows of trials, to which conditions are added."""
        return self.trial_columns + OF_TRIALS

    def _trial(self, row: Row, job_id: str) -> Trial:
        return read_trial(row, job_id)

    async def job(self, job_id: str) -> StoredJob | None:
        """Returns a job. Nothing of it may be waiting for its commit."""
        found = await self._all(self.job_sql, job_id)
        if not found:
            return None
        row = found[0]
        arms = await self._all(_ARMS, row["job_key"])
        job = read_job(row, await self._with_histories(row, list(map(read_arm, arms))), arms)
        return StoredJob(row["job_key"], row["version"], job)

    async def content(self) -> Content:
        """Returns how many jobs and running trials the database holds."""
        (row,) = await self._all(_CONTENT)
        return Content(row["jobs"], row["running_trials"])

    async def jobs(self, wanted: JobList, after: JobPlace, limit: int) -> Sequence[ListedJob]:
        """Returns a page of jobs behind the place `after`.

        In an order by activity or attention places change with the jobs: what a page shows may come again on the next
        one, or be missed, when a job is deleted or changes in between.
        """
        sql, parameters = lists.jobs(wanted, after, limit, self.dialect)
        found = await self._slowly(sql, *parameters)
        column = lists.PLACES.get(wanted.order)
        listed: list[ListedJob] = []
        for row in found:
            if len(listed) % _JOBS_AT_A_STRETCH == 0:
                # Others go on meanwhile.
                await asyncio.sleep(0)
            place = row[column] if column else int(after) + len(listed) + 1
            listed.append(_listed(row, place))
        return listed

    async def count_jobs(self, wanted: JobList) -> int:
        """Returns how many jobs a list has."""
        return await self._count(lists.count_jobs(wanted, self.dialect))

    async def running(self, job_id: str, key: int) -> Sequence[Trial]:
        """Returns a job's running trials by number."""
        # A range of one key: see lists.py.
        running = "t.job_key BETWEEN $1 AND $1 AND t.status = 'RUNNING'"
        sql = f"{self._trials_sql} WHERE {running} ORDER BY t.trial_number"
        return [self._trial(row, job_id) for row in await self._all(sql, key)]

    async def trial(self, job_id: str, key: int, number: int) -> Trial | None:
        """Returns one trial."""
        found = await self._all(f"{self._trials_sql} WHERE t.job_key = $1 AND t.trial_number = $2", key, number)
        return self._trial(found[0], job_id) if found else None

    async def trial_of_launch(self, job_id: str, key: int, launch_id: str) -> Trial | None:
        """Returns the trial of a launch."""
        found = await self._all(f"{self._trials_sql} WHERE t.job_key = $1 AND t.launch_id = $2", key, launch_id)
        return self._trial(found[0], job_id) if found else None

    async def launch_ids(self, key: int) -> Sequence[str]:
        """Returns the launch ids of all trials of a job."""
        found = await self._all("SELECT launch_id FROM trials WHERE job_key = $1", key)
        return [row["launch_id"] for row in found]

    async def trials(self, wanted: TrialList, after: Place, limit: int) -> Sequence[ListedTrial]:
        """Returns a page of trials."""
        sql, parameters = lists.trials(
            wanted, after, limit, columns=self.trial_columns, tables=OF_TRIALS, dialect=self.dialect
        )
        read = self._all if lists.is_quick(wanted) else self._slowly
        rows = await read(sql, *parameters)
        if wanted.job_id is not None:
            return [ListedTrial((row["trial_number"],), self._trial(row, wanted.job_id)) for row in rows]
        return [ListedTrial(tuple(row[name] for name in _PLACE), self._trial(row, row["job_id"])) for row in rows]

    async def count_trials(self, wanted: TrialList) -> int:
        """Returns how many trials a list has."""
        return await self._count(lists.count_trials(wanted, self.dialect))

    async def deliveries_before(self, job_id: str, times: Sequence[datetime]) -> Sequence[int]:
        """Returns how many trials of a job had delivered a model at each of several times, which ascend."""
        if not times:
            return []
        gaps = ", ".join(
            f"(CAST(${number} AS bigint), CAST(${number + 1} AS bigint))" for number in range(2, len(times) + 2)
        )
        rows = await self._slowly(_DELIVERIES.format(gaps=gaps), job_id, _LEAST_MICROS, *map(to_micros, times))
        # A deleted job has none.
        return list(accumulate(row["found"] for row in rows)) or [0] * len(times)

    async def events(self, wanted: EventList, after: Place, limit: int) -> Sequence[ListedEvent]:
        """Returns a page of the history, newest first."""
        sql, parameters = lists.events(wanted, after, limit, self.dialect)
        return [ListedEvent((row["entry"],), read_event(row)) for row in await self._slowly(sql, *parameters)]

    async def has_events(self, before: datetime) -> bool:
        """Returns whether the history has entries from before a time."""
        return bool(await self._all("SELECT 1 FROM events WHERE time < $1 LIMIT 1", to_micros(before)))

    async def job_versions(
        self, prefix: str = "", job_id: str | None = None, keys: Sequence[int] | None = None
    ) -> Sequence[JobVersion]:
        """Returns the jobs whose ids start with a prefix, the one of an id, or those of some keys."""
        sql, parameters = lists.versions(prefix, job_id, keys, self.dialect)
        rows = await self._slowly(sql, *parameters)
        return [aggregates.read_version(row) for row in rows]

    async def policy_states(self, keys: Sequence[int]) -> Mapping[int, PolicyState]:
        """Returns the policies of jobs and the notes of their searches, by key."""
        rows = await self._slowly(lists.policy_states(keys))
        return {row["job_key"]: PolicyState(row["policy"], row["notes"]) for row in rows}

    async def trial_groups(
        self, keys: Sequence[int], prices: Prices, splits: Mapping[int, int]
    ) -> Mapping[int, Sequence[TrialGroup]]:
        """Returns the ended trials of jobs, by key.

        No group of a job has trials from before its number in `splits` together with that trial or a later one.
        """
        sql = aggregates.GROUPS.format(jobs=aggregates.of_jobs(keys), later=aggregates.later(splits))
        return _by_job(await self._slowly(sql, *prices), aggregates.read_group)

    async def running_groups(self, keys: Sequence[int] | None) -> Mapping[int, Sequence[TrialGroup]]:
        """Returns the running trials of jobs, by key; None: of all jobs that have any."""
        # By the index of running trials, of which there are few, instead of all trials of these jobs.
        rows = await self._slowly(aggregates.RUNNING.format(jobs=aggregates.of_jobs(keys, sign="+")))
        return _by_job(rows, aggregates.read_running)

    async def buckets(self, key: int, first: int, width: int, *, with_excluded: bool) -> Sequence[Bucket]:
        """Returns the ended trials of a job that have reported, in ranges of `width` numbers from `first` on.

        Excluded trials are left out, or have buckets of their own.
        """
        sql = aggregates.buckets(single=width == 1, with_excluded=with_excluded)
        return list(map(aggregates.read_bucket, await self._slowly(sql, key, first, width)))

    async def spent(self, key: int, first: int, width: int, compared_from: int) -> Sequence[Spent]:
        """Deliveries and costs of the ended trials of a job that count, in the same ranges.

        A claim of savings compares those from `compared_from` on, here and below.
        """
        rows = await self._slowly(aggregates.POINTS, key, first, width, compared_from)
        return [Spent(**{name: row[name] for name in Spent._fields}) for row in rows]

    async def deliveries_since(self, key: int, time: datetime, compared_from: int) -> int:
        """Returns how many own trials of a job that are compared have delivered a model after a time."""
        (row,) = await self._slowly(aggregates.DELIVERIES_SINCE, key, to_micros(time), compared_from)
        return int(row["found"])

    async def break_even(self, key: int, baseline: float, compared_from: int) -> int | None:
        """Returns the compared trial from which the deliveries times `baseline` exceed the cost; None: not yet."""
        (row,) = await self._slowly(aggregates.BREAK_EVEN, key, 0, 1, baseline, compared_from)
        found: int | None = row["found"]
        return found

    async def days(self, key: int, since: datetime) -> Sequence[Day]:
        """Returns the days since a time on which own trials of a job ended that count, ascending."""
        return [aggregates.read_day(row) for row in await self._slowly(aggregates.DAYS, key, to_micros(since))]

    async def profiles(self, key: int) -> Sequence[StoredProfile]:
        """Returns the newest profile of each batch size, ascending."""
        rows = await self._slowly(aggregates.PROFILES, key)
        return [StoredProfile(row["trial_number"], row["batch_size"], read_samples(row)) for row in rows]

    async def samples(self, key: int, trial_number: int) -> Sequence[PowerSample]:
        """Returns the samples of a trial's profile."""
        sql = "SELECT samples FROM power_samples WHERE job_key = $1 AND trial_number = $2"
        return [sample for row in await self._all(sql, key, trial_number) for sample in read_samples(row)]

    async def _count(self, query: Query) -> int:
        return int((await self._slowly(query.sql, *query.parameters))[0]["found"])

    async def search_events(self, job_id: str, key: int) -> Sequence[RecordedSearchEvent]:
        """Returns all events of a job in their order."""
        trials = await self._all(f"{self._trials_sql} WHERE t.job_key = $1", key)
        rows = await self._all("SELECT * FROM search_events WHERE job_key = $1 ORDER BY number", key)
        # There may be thousands of trials: other calls run meanwhile.
        return await asyncio.to_thread(read_search_events, job_id, trials, rows)

    async def measurements(
        self, key: int, trial_number: int, after: int, limit: int, *, newest_first: bool
    ) -> Sequence[Measurement]:
        """Returns a trial's measurements behind an epoch, 0 for all, by epoch or the newest first."""
        if newest_first:
            rows = await self._all(_NEWEST_MEASUREMENTS, key, trial_number, after or sys.maxsize, limit)
        else:
            rows = await self._all(_MEASUREMENTS, key, trial_number, after, limit)
        return [read_measurement(row) for row in rows]

    async def metric_span(self, key: int, trial_number: int) -> MetricSpan:
        """Returns the metrics of a trial's measurements."""
        found = (await self._all(_METRIC_SPAN, key, trial_number))[0]
        return MetricSpan(found["epochs"], found["first"], found["least"], found["most"])

    async def count_under(self, prefix: str, limit: int) -> int:
        """Returns the number of jobs whose id starts with a prefix, or the limit if there are more."""
        prefixed = _PREFIXED.format(greatest=self.dialect.greatest)
        sql = f"SELECT count(*) AS found FROM (SELECT 1 FROM {prefixed} LIMIT $2) AS listed"  # noqa: S608
        return int((await self._all(sql, prefix, limit))[0]["found"])

    async def was_launch_deleted(self, job_id: str, launch_id: str, started: datetime | None) -> bool:
        """Returns whether a launch was deleted with its job: by its id or, unless `started` is None, by its start."""
        if launch_id and await self._all(_DELETED_LAUNCH, job_id, launch_id):
            return True
        return started is not None and bool(await self._all(_DELETED_SINCE, job_id, to_micros(started)))

    async def was_job_deleted(self, job_id: str) -> bool:
        """Returns whether a job of this id was deleted."""
        return bool(await self._all(_DELETED_LAUNCH, job_id, ""))

    async def measured_trials(self, after: tuple[int, int], limit: int, ended_before: int) -> Sequence[Row]:
        """Returns the next trials that have measurements.

        Args:
            after: A job's key and a trial's number; only trials behind it.
            limit: The largest number of trials.
            ended_before: Microseconds since 1970; a trial that ended earlier is `over`.

        Returns:
            Rows of job_key, trial_number, over, resumable, and the oldest and newest epoch.
        """
        return await self._all(_MEASURED_TRIALS, *after, limit, ended_before)

    async def _with_histories(self, job: Row, arms: Sequence[Arm]) -> tuple[Arm, ...]:
        """Returns the arms with what is derived from the trials."""
        key, reset_after, window = job["job_key"], job["reset_after"], window_of(job)
        if window:
            rows = await self._all(_WINDOWS, key, reset_after, window)
        elif any(arm.num_decided > arm.num_converged for arm in arms):
            rows = await self._all(_MISSES, key, reset_after)
        else:
            return tuple(arms)
        kept: defaultdict[int, list[Observation]] = defaultdict(list)
        for row in rows:
            kept[row["batch_size"]].append(Observation(row["cost"], bool(row["converged"])))
        return tuple(replace(arm, kept=tuple(kept[arm.batch_size])) for arm in arms)
