"""The storage contract on one SQLite file with one owner.

The owner caches: jobs in use and their running trials are in memory, as they will be once everything submitted is
durable. A transaction reads and changes the cached job under its lock, hands its statements to the writer, releases the
lock and only then waits for the commit, so that the next transaction of the job can share it. When a commit fails, the
cached job is dropped and read again, and every transaction that used it is refused.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from types import TracebackType

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, JobEvent, ListedJob, Measurement, MetricSpan, Trial, TrialKey, TrialStatus
from wattwise_server.errors import ServiceError, StorageUnavailableError
from wattwise_server.store import rows
from wattwise_server.store.connection import Sql, Statement
from wattwise_server.store.queries import Queries, readable
from wattwise_server.store.retention import Retention
from wattwise_server.store.subscriptions import Subscription, Subscriptions, Topic
from wattwise_server.store.writer import Submission, Writer

CACHED_JOBS = 4096
"""Jobs cached beyond those with running trials."""

_DROPPED_AT_ONCE = 4
"""Jobs that leave the cache when another one enters: a few, so that no call pays for many."""

_CACHED_ENDED_TRIALS = 4
"""Ended trials cached per job: their trainers are about to call EndTrial."""

_RETRY = timedelta(seconds=1)
_DELETE_JOB = Sql("DELETE FROM jobs WHERE job_key = ?")
_REMEMBER_TRIALS = Sql(
    """
    INSERT OR REPLACE INTO deleted_trials SELECT ?1, trial_number, batch_size, ?2 FROM trials
    WHERE job_key = ?3 AND (status = 'DISPATCHED' OR end_reason IN ('PREEMPTED', 'LOST'))
    """
)
# Imports are not remembered: history may be imported again.
_REMEMBER_LAUNCHES = Sql(
    """
    INSERT OR REPLACE INTO deletions SELECT job_id, '', create_time, ?2 FROM jobs WHERE job_key = ?3 UNION ALL
    SELECT ?1, request_id, start_time, ?2 FROM trials WHERE job_key = ?3 AND request_id != '' AND type != 'IMPORTED'
    """
)
_REMEMBERED = timedelta(days=365)
_FORGET_TRIALS = Sql("DELETE FROM deleted_trials WHERE delete_time < ?")
_FORGET_LAUNCHES = Sql("DELETE FROM deletions WHERE delete_time < ?")


@dataclass(slots=True)
class CachedJob:
    """One job in memory.

    Attributes:
        failed: Set when one of its commits failed.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: bool = False
    key: int = 0
    job: Job | None = None
    running: dict[int, Trial] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    ended: dict[int, Trial] = field(default_factory=dict)
    submitted: Submission | None = None
    users: int = 0
    failed: bool = False

    @property
    def idle(self) -> bool:
        """Whether it can be dropped from the cache."""
        return not self.users and not self.running and not self.pending

    @property
    def pending(self) -> bool:
        """Whether something that was submitted may still fail."""
        return self.submitted is not None and not self.submitted.done

    def update(self, trial: Trial) -> bool:
        """Saves a trial; returns whether it has started to run."""
        number = trial.number
        if trial.running:
            starts = number not in self.running
            self.running[number] = trial
            if starts:
                self.ended.pop(number, None)
                if trial.request_id:
                    self.requests[trial.request_id] = number
            return starts
        self.running.pop(number, None)
        if trial.request_id:
            self.requests.pop(trial.request_id, None)
        self.ended[number] = trial
        if len(self.ended) > _CACHED_ENDED_TRIALS:  # pragma: no mutate: one less is read again
            del self.ended[next(iter(self.ended))]
        return False  # pragma: no mutate: the lease of an ended trial is dropped when it expires

    async def durable(self) -> None:
        """Returns once all that was submitted for the job is durable."""
        if self.submitted is not None:
            await self.submitted.durable()


class SqliteStore:
    """Jobs, trials and measurements in one file. Made by `store.open.open_store`."""

    def __init__(self, writer: Writer, queries: Queries, clock: Clock, next_key: int, page_token_key: bytes) -> None:
        self.page_token_key = page_token_key
        self._writer = writer
        self.queries = queries
        self._retention = Retention(queries, writer)
        self.clock = clock
        # Of the running trials of jobs that are not in memory: nobody could renew a lease while no server ran, or while
        # commits failed.
        self._granted = clock()
        writer.on_failure = self._grant_again
        # One load at a time: those of many wide jobs would delay the reports to all other jobs.
        self._loading = asyncio.Lock()
        self._keys = count(next_key)
        self._cache: OrderedDict[str, CachedJob] = OrderedDict()
        # Expiry, the job's id and key, and the trial's number.
        self._leases: list[tuple[datetime, str, int, int]] = []
        self._subscriptions = Subscriptions()

    def check_file(self) -> None:
        """Checks that the database is where it was opened; until it is back, every call is refused.

        Raises:
            StorageUnavailableError: it was deleted, moved or replaced.
        """
        self.queries.check()

    def transaction(self, job_id: str) -> SqliteTransaction:
        """The one way to read and change a job."""
        return SqliteTransaction(self, job_id)

    def acquire(self, job_id: str) -> CachedJob:
        """The cached job, kept until it is released; the caller locks it, and loads it if it is not loaded."""
        cached = self._cache.get(job_id)
        if cached is None or cached.failed:
            cached = self._cache[job_id] = CachedJob()
            self._evict()
        self._cache.move_to_end(job_id)
        cached.users += 1
        return cached

    def release(self, job_id: str, cached: CachedJob) -> None:
        """Ends a use; a job that does not exist is dropped at once."""
        cached.users -= 1
        if cached.job is None and cached.idle and self._cache.get(job_id) is cached:
            del self._cache[job_id]

    def new_key(self) -> int:
        """A key for a new job."""
        return next(self._keys)

    async def load(self, job_id: str, cached: CachedJob) -> None:
        """Reads a locked job; each of its running trials has a full lease.

        Raises:
            StorageUnavailableError: the job cannot be read.
        """
        async with self._loading:
            with readable(job_id):
                await self._read(job_id, cached)

    async def _read(self, job_id: str, cached: CachedJob) -> None:
        found = await self.queries.job(job_id)
        if found is not None:
            cached.key, cached.job = found
            lease = cached.job.spec.lease_expiry(self._granted)
            running = await self.queries.running(job_id, cached.key)
            cached.job = _with_running(cached.job, running)
            for trial in running:
                cached.update(trial._replace(lease_expire_time=lease))
            for trial in cached.running.values():
                self._watch_lease(trial, cached.key)
        cached.loaded = True

    def submit(self, cached: CachedJob, tx: SqliteTransaction) -> None:
        """Applies a transaction's changes to the cache and hands them to the writer.

        Raises:
            StorageUnavailableError: an earlier commit that it depends on failed.
        """
        if cached.failed:
            raise StorageUnavailableError("a commit that this call depends on failed; nothing was saved, retry")
        for trial in tx.apply():
            self._watch_lease(trial, tx.key)
        if tx.statements:
            cached.submitted = self._writer.submit(cached, tx.statements, partial(self._publish, tx))

    def _publish(self, tx: SqliteTransaction) -> None:
        if tx.deleted:
            # Their trials no longer exist. Another job of this id has another key.
            self._leases = [lease for lease in self._leases if lease[2] != tx.key]
            heapq.heapify(self._leases)
        for topic in tx.topics:
            self._subscriptions.publish(topic)
        for callback in tx.callbacks:
            callback()

    def _grant_again(self) -> None:
        self._granted = self.clock()

    def _evict(self) -> None:
        for _ in range(min(_DROPPED_AT_ONCE, len(self._cache) - CACHED_JOBS)):
            job_id, cached = next(iter(self._cache.items()))
            if cached.idle:
                del self._cache[job_id]
            else:
                self._cache.move_to_end(job_id)

    def _watch_lease(self, trial: Trial, key: int) -> None:
        if trial.lease_expire_time is not None:
            heapq.heappush(self._leases, (trial.lease_expire_time, trial.job_id, key, trial.number))

    def expired_leases(self, now: datetime) -> Sequence[TrialKey]:
        """Running trials whose lease has expired by now."""
        found: dict[TrialKey, None] = {}
        again = []
        while self._leases and self._leases[0][0] <= now:
            _, job_id, key, number = heapq.heappop(self._leases)
            cached = self._cache.get(job_id)
            later = now + _RETRY, job_id, key, number
            trial = None if cached is None else cached.running.get(number)
            # After a failed commit the cache is not reliable, and a deletion or an end may still fail.
            if cached is None or cached.failed or cached.key != key or (trial and trial.lease_expired(now)):
                found[TrialKey(job_id, 0, number)] = None
                again.append(later)
            elif trial:
                self._watch_lease(trial, key)
            elif cached.pending:
                again.append(later)
        # Failing these trials may be refused by the storage: they are returned again until it succeeds.
        for lease in again:
            heapq.heappush(self._leases, lease)
        return list(found)

    async def grant_leases(self) -> None:
        """Gives every running trial in the file a full lease; called once, at the start. No job is loaded for it."""
        for row in await self.queries.running_leases():
            expiry = self._granted + timedelta(seconds=row["trial_lease_seconds"])
            self._leases.append((expiry, row["job_id"], row["job_key"], row["trial_number"]))
        heapq.heapify(self._leases)

    async def prune(self, ended_before: datetime) -> None:
        """Drops measurements of trials that ended before a time."""
        await self._retention.prune(ended_before)

    async def was_deleted(self, key: TrialKey) -> bool:
        """Whether this launch was deleted with its job; without one, a trial of this number that might still train."""
        if cached := self._cache.get(key.job_id):
            await cached.durable()
        return await self.queries.was_deleted(key)

    async def was_launch_deleted(self, job_id: str, request_id: str, started: datetime | None) -> bool:
        """Whether a launch was deleted with its job."""
        if cached := self._cache.get(job_id):
            await cached.durable()
        return await self.queries.was_launch_deleted(job_id, request_id, started)

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[ListedJob]:
        """Jobs by place."""
        return await self.queries.jobs(prefix, after, limit)

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials by number."""
        found = await self.queries.trials(job_id, status, batch_size, after, limit)
        cached = self._cache.get(job_id)
        leased = cached.running if cached else {}
        return [self._with_lease(trial, leased.get(trial.number)) for trial in found]

    @staticmethod
    def _with_lease(trial: Trial, live: Trial | None) -> Trial:
        return trial._replace(lease_expire_time=live.lease_expire_time) if live and trial.running else trial

    async def count_jobs(self, prefix: str, limit: int) -> int:
        """How many job ids start with a prefix."""
        return await self.queries.count_jobs(prefix, limit)

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Notifies of changes."""
        return self._subscriptions.subscribe((job_id, trial_number))

    async def close(self) -> None:
        """Waits for pending commits."""
        await self._writer.close()


class SqliteTransaction:
    """A cached job with the changes of one block, not yet applied to it."""

    __slots__ = (
        "_cached",
        "_changed",
        "_store",
        "callbacks",
        "deleted",
        "job",
        "job_id",
        "key",
        "statements",
        "topics",
    )
    _cached: CachedJob
    job: Job | None
    key: int

    def __init__(self, store: SqliteStore, job_id: str) -> None:
        self._store = store
        self.job_id = job_id
        self.deleted = False
        self._changed: dict[int, Trial] = {}
        self.statements: list[Statement] = []
        self.topics: set[Topic] = set()
        self.callbacks: list[Callable[[], None]] = []

    async def __aenter__(self) -> SqliteTransaction:
        store, job_id = self._store, self.job_id
        if store.queries.file.gone:
            # Also if all that the call needs is in memory: what it answers could be lost.
            store.check_file()
        self._cached = cached = store.acquire(job_id)
        try:
            await cached.lock.acquire()
            try:
                if not cached.loaded:
                    await store.load(job_id, cached)
            except BaseException:
                cached.lock.release()
                raise
        except BaseException:
            store.release(job_id, cached)
            raise
        self.job, self.key = cached.job, cached.key
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cached = self._cached
        try:
            try:
                if error is None:
                    self._store.submit(cached, self)
            finally:
                cached.lock.release()
            # A refusal is an answer too: it may depend on an earlier transaction that is not durable yet.
            if (submitted := cached.submitted) is not None and (error is None or isinstance(error, ServiceError)):
                await submitted.durable()
        finally:
            self._store.release(self.job_id, cached)

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""
        if self.job is None:
            self.key = self._store.new_key()
            saved = rows.insert_job(self.key, job)
        else:
            saved = rows.update_job(self.key, self.job, job)
        self.statements += saved
        self.job = job
        self.topics.add((self.job_id, None))

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job, and remembers its launches; returns the trials that were running."""
        now, running = self._store.clock(), self.running()
        for trial in running:
            self.topics.add((self.job_id, trial.number))
        for sql in (_FORGET_TRIALS, _FORGET_LAUNCHES):
            self.statements.append(Statement(sql, (rows.to_micros(now - _REMEMBERED),)))
        for sql in (_REMEMBER_TRIALS, _REMEMBER_LAUNCHES):
            self.statements.append(Statement(sql, (self.job_id, rows.to_micros(now), self.key)))
        self.statements.append(Statement(_DELETE_JOB, (self.key,)))
        self.topics.add((self.job_id, None))
        self.job, self.deleted = None, True
        return running

    @property
    def num_running(self) -> int:
        """How many trials were running before this block."""
        return len(self._cached.running)

    def running(self) -> Sequence[Trial]:
        """The dispatched trials by number."""
        latest = self._cached.running | self._changed
        return [trial for _, trial in sorted(latest.items()) if trial.running]

    def running_trial(self, number: int) -> Trial | None:
        """The trial of this number if it is running."""
        trial = self._changed.get(number) or self._cached.running.get(number)
        return trial if trial and trial.running else None

    async def trial(self, number: int) -> Trial | None:
        """The trial of this number."""
        cached = self._cached
        known = self._changed.get(number) or cached.running.get(number) or cached.ended.get(number)
        if known is not None:
            return known
        if self.job is None or number > self.job.num_trials:
            return None
        await self._cached.durable()
        return await self._store.queries.trial(self.job_id, self.key, number)

    async def measurements(self, number: int) -> Sequence[Measurement]:
        """The newest measurements of a trial by epoch."""
        await self._cached.durable()
        return await self._store.queries.measurements(self.key, number)

    async def metric_span(self, number: int) -> MetricSpan:
        """The metrics of a trial's measurements."""
        await self._cached.durable()
        return await self._store.queries.metric_span(self.key, number)

    async def trial_of_request(self, request_id: str) -> Trial | None:
        """The trial that this request dispatched."""
        if known := self._cached.requests.get(request_id):
            return self._cached.running[known]
        if self.job is None or not self.job.num_trials:
            return None
        await self._cached.durable()
        return await self._store.queries.trial_of_request(self.job_id, self.key, request_id)

    def save_trial(self, trial: Trial) -> None:
        """Creates the trial, or saves what changed."""
        self.statements.append(rows.save_trial(self.key, trial))
        self._changed[trial.number] = trial
        self.topics.add((self.job_id, trial.number))

    def add_measurement(self, trial: Trial) -> None:
        """Keeps `trial.last`."""
        if trial.last is not None:
            self.statements.append(rows.add_measurement(self.key, trial.number, trial.last))
        self._changed[trial.number] = trial

    def keep_measurements(self, trial: Trial, newest: int) -> None:
        """Drops all but a trial's newest measurements."""
        self.statements.append(rows.keep_measurements(self.key, trial.number, newest))

    def renew_lease(self, trial: Trial) -> None:
        """Keeps the trial's lease, in memory only."""
        self._changed[trial.number] = trial

    def add_event(self, event: JobEvent) -> None:
        """Saves an event that the trials do not tell."""
        self.statements.append(rows.add_event(self.key, event))

    async def events(self) -> Sequence[JobEvent]:
        """All events of the job in their order."""
        await self._cached.durable()
        return await self._store.queries.events(self.job_id, self.key)

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once the changes are durable."""
        self.callbacks.append(callback)

    def apply(self) -> Sequence[Trial]:
        """Applies the changes to the cached job; returns the trials that started to run."""
        cached = self._cached
        if self.deleted:
            cached.job, cached.key, cached.running, cached.requests, cached.ended = None, 0, {}, {}, {}
            return ()
        if self.job is not None:
            cached.job, cached.key = self.job, self.key
        started = []
        for trial in self._changed.values():
            if cached.update(trial):
                started.append(trial)  # noqa: PERF401 - a comprehension would cost every report a call more
        return started


def _with_running(job: Job, running: Sequence[Trial]) -> Job:
    """The job with the running trials of each arm counted."""
    counts = Counter(trial.batch_size for trial in running if job.counts(trial))
    if not counts:
        return job
    arms = tuple(replace(arm, running=counts[arm.batch_size]) for arm in job.search.arms)
    return replace(job, search=replace(job.search, arms=arms))
