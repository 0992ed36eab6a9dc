"""The storage contract on one SQLite file with one owner.

The owner remembers: jobs in use, with their running trials, live in memory as they will be once all that was submitted
is durable. A transaction reads and changes that memory under the job's lock, hands its statements to the writer, lets
go of the lock and only then waits for the commit, so that the next transaction of the job can share it. When a commit
fails, the job's memory is dropped and read anew, and every transaction that rested on it is refused.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from types import TracebackType

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, Measurement, Trial, TrialKey, TrialStatus
from wattwise_server.errors import ServiceError, StorageUnavailableError
from wattwise_server.store import rows
from wattwise_server.store.group import Statement
from wattwise_server.store.hub import Hub, Subscription, Topic
from wattwise_server.store.queries import Queries
from wattwise_server.store.retention import Retention
from wattwise_server.store.writer import Submission, Writer

REMEMBERED_JOBS = 4096
"""Jobs kept in memory beyond those with running trials."""

_REMEMBERED_ENDS = 4
"""Trials of a job kept in memory once they have ended: their trainers are about to say that they are gone."""

_RETRY = timedelta(seconds=1)
_DELETE_JOB = "DELETE FROM jobs WHERE job_key = ?"
_REMEMBER_DELETED = "INSERT OR REPLACE INTO deleted_trials VALUES (?, ?, ?, ?)"


@dataclass(slots=True)
class _Entry:
    """One job in memory."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: bool = False
    key: int = 0
    job: Job | None = None
    running: dict[int, Trial] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    ended: dict[int, Trial] = field(default_factory=dict)
    submitted: Submission | None = None
    users: int = 0
    lost: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        durable = self.submitted is None or self.submitted.done
        return not self.users and not self.running and durable

    def see(self, trial: Trial) -> None:
        """Takes a trial as it is now."""
        if trial.running:
            self.running[trial.number] = trial
            self.ended.pop(trial.number, None)
            if trial.request_id:
                self.requests[trial.request_id] = trial.number
            return
        self.running.pop(trial.number, None)
        if trial.request_id:
            self.requests.pop(trial.request_id, None)
        self.ended[trial.number] = trial
        if len(self.ended) > _REMEMBERED_ENDS:
            del self.ended[next(iter(self.ended))]

    async def durable(self) -> None:
        """Returns once all that was submitted for the job is durable."""
        if self.submitted is not None:
            await self.submitted.durable()


class SqliteTransaction:
    """A job's memory with the changes of one block, not yet part of it."""

    __slots__ = ("_changed", "_entry", "_store", "deleted", "followers", "job", "job_id", "key", "statements", "topics")
    _entry: _Entry

    def __init__(self, store: SqliteStore, job_id: str) -> None:
        self._store = store
        self.job_id = job_id
        self.job: Job | None = None
        self.key = 0
        self.deleted = False
        self._changed: dict[int, Trial] = {}
        self.statements: list[Statement] = []
        self.topics: set[Topic] = set()
        self.followers: list[Callable[[], None]] = []

    async def __aenter__(self) -> SqliteTransaction:
        self._entry = entry = await self._store.enter(self.job_id)
        self.job, self.key = entry.job, entry.key
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.leave(self._entry, self, error)

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""
        if self.job is None:
            self.key = self._store.new_key()
            self.statements += rows.insert_job(self.key, job)
        else:
            before = self.job.search.arms
            changed = [new for new, old in zip(job.search.arms, before, strict=True) if new is not old]
            self.statements += [rows.update_job(self.key, job), *rows.save_arms(self.key, changed)]
        self.job = job
        self.topics.add((self.job_id, None))

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job; returns and remembers the trials that were running."""
        now, running = rows.to_micros(self._store.clock()), self.running()
        for trial in running:
            values = (trial.job_id, trial.number, trial.batch_size, now)
            self.statements.append(Statement(None, _REMEMBER_DELETED, values))
            self.topics.add((self.job_id, trial.number))
        self.statements.append(Statement(None, _DELETE_JOB, (self.key,)))
        self.topics.add((self.job_id, None))
        self.job, self.deleted = None, True
        return running

    def running(self) -> Sequence[Trial]:
        """The dispatched trials by number."""
        latest = self._entry.running | self._changed
        return [trial for _, trial in sorted(latest.items()) if trial.running]

    async def trial(self, number: int) -> Trial | None:
        """The trial of this number."""
        entry = self._entry
        known = self._changed.get(number) or entry.running.get(number) or entry.ended.get(number)
        if known is not None:
            return known
        if self.job is None or not 0 < number <= self.job.num_trials:
            return None
        await self._entry.durable()
        return await self._store.queries.trial(self.job_id, self.key, number)

    async def measurements(self, number: int) -> Sequence[Measurement]:
        """The newest measurements of a trial by epoch."""
        await self._entry.durable()
        return await self._store.queries.measurements(self.key, number)

    async def trial_of_request(self, request_id: str) -> Trial | None:
        """The trial that this request dispatched."""
        if known := self._entry.requests.get(request_id):
            return self._entry.running[known]
        if self.job is None or not self.job.num_trials:
            return None
        await self._entry.durable()
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
        self.renew_lease(trial)

    def forget_measurements(self, trial: Trial, through_epoch: int) -> None:
        """Drops a trial's measurements up to an epoch."""
        self.statements.append(rows.forget_measurements(self.key, trial.number, through_epoch))

    def renew_lease(self, trial: Trial) -> None:
        """Keeps the trial's lease, in memory alone."""
        self._changed[trial.number] = trial

    def once_durable(self, tell: Callable[[], None]) -> None:
        """Calls something once the changes are durable."""
        self.followers.append(tell)

    def apply(self) -> Sequence[Trial]:
        """Makes the changes part of the memory; returns the trials that started to run."""
        entry = self._entry
        if self.deleted:
            entry.job, entry.key, entry.running, entry.requests, entry.ended = None, 0, {}, {}, {}
            return ()
        if self.job is not None:
            entry.job, entry.key = self.job, self.key
        started = [trial for trial in self._changed.values() if trial.running and trial.number not in entry.running]
        for trial in self._changed.values():
            entry.see(trial)
        return started


class SqliteStore:
    """Jobs, trials and measurements in one file. Made by `store.open.open_store`."""

    def __init__(self, writer: Writer, queries: Queries, clock: Clock, next_key: int) -> None:
        self._writer = writer
        self.queries = queries
        self._retention = Retention(queries, writer)
        self.clock = clock
        self._keys = count(next_key)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._leases: list[tuple[datetime, str, int]] = []
        self._hub = Hub()

    def transaction(self, job_id: str) -> SqliteTransaction:
        """The one way to read and change a job."""
        return SqliteTransaction(self, job_id)

    async def enter(self, job_id: str) -> _Entry:
        """Locks and loads a job."""
        entry = self._entry(job_id)
        entry.users += 1
        try:
            await entry.lock.acquire()
            try:
                if not entry.loaded:
                    await self._load(job_id, entry)
            except BaseException:
                entry.lock.release()
                raise
        except BaseException:
            self._let_go(job_id, entry)
            raise
        return entry

    async def leave(self, entry: _Entry, tx: SqliteTransaction, error: BaseException | None) -> None:
        """Submits what a block has saved unless an error ended it, unlocks the job and waits until all is durable."""
        try:
            try:
                if error is None:
                    self._submit(entry, tx)
            finally:
                entry.lock.release()
            # A refusal is an answer too: it may rest on what a transaction before it has yet to make durable.
            if error is None or isinstance(error, ServiceError):
                await entry.durable()
        finally:
            self._let_go(tx.job_id, entry)

    def new_key(self) -> int:
        """A key for a job that is created."""
        return next(self._keys)

    def _let_go(self, job_id: str, entry: _Entry) -> None:
        entry.users -= 1
        if entry.job is None and entry.idle and self._entries.get(job_id) is entry:
            del self._entries[job_id]

    def _submit(self, entry: _Entry, tx: SqliteTransaction) -> None:
        if entry.lost:
            raise StorageUnavailableError("a commit that this call rests on has failed; nothing was kept, retry")
        for trial in tx.apply():
            self._watch_lease(trial)
        if tx.deleted:
            # Nobody would ever find these trials to give them up; should the deletion fail, loading them watches them.
            self._leases = [lapse for lapse in self._leases if lapse[1] != tx.job_id]
            heapq.heapify(self._leases)
        if tx.statements:
            entry.submitted = self._writer.submit(entry, tx.statements, lambda: self._publish(tx))

    def _publish(self, tx: SqliteTransaction) -> None:
        for topic in tx.topics:
            self._hub.publish(topic)
        for tell in tx.followers:
            tell()

    def _entry(self, job_id: str) -> _Entry:
        entry = self._entries.get(job_id)
        if entry is None or entry.lost:
            entry = self._entries[job_id] = _Entry()
            self._forget()
        self._entries.move_to_end(job_id)
        return entry

    def _forget(self) -> None:
        # A few at a time: however many jobs run, a call pays for no more than these.
        for _ in range(min(4, len(self._entries) - REMEMBERED_JOBS)):
            job_id, entry = next(iter(self._entries.items()))
            if entry.idle:
                del self._entries[job_id]
            else:
                self._entries.move_to_end(job_id)

    async def _load(self, job_id: str, entry: _Entry) -> None:
        found = await self.queries.job(job_id)
        if found is not None:
            entry.key, entry.job = found
            lease = _lease(self.clock(), entry.job)
            running = await self.queries.running(job_id, entry.key)
            for trial in running:
                entry.see(replace(trial, lease_expire_time=lease))
            for trial in entry.running.values():
                self._watch_lease(trial)
        entry.loaded = True

    def _watch_lease(self, trial: Trial) -> None:
        if trial.lease_expire_time is not None:
            heapq.heappush(self._leases, (trial.lease_expire_time, trial.job_id, trial.number))

    def lapsed(self, now: datetime) -> Sequence[TrialKey]:
        """Running trials whose lease has run out by now."""
        found, again = [], []
        while self._leases and self._leases[0][0] <= now:
            _, job_id, number = heapq.heappop(self._leases)
            entry = self._entries.get(job_id)
            trial = entry.running.get(number) if entry else None
            if entry is None or (trial and trial.lease_expire_time and trial.lease_expire_time <= now):
                found.append(TrialKey(job_id, 0, number))
                again.append((now + _RETRY, job_id, number))
            elif trial:
                self._watch_lease(trial)
        # Whoever gives these trials up may be refused by the storage; they come up again until they are.
        for lapse in again:
            heapq.heappush(self._leases, lapse)
        return found

    async def load_running(self) -> None:
        """Gives every running trial in the file a whole lease; called once, at the start."""
        for job_id in await self.queries.jobs_with_running_trials():
            async with self.transaction(job_id):
                pass

    async def prune(self, ended_before: datetime) -> None:
        """Drops measurements of trials that ended before a time."""
        await self._retention.prune(ended_before)

    async def was_running_when_deleted(self, key: TrialKey) -> bool:
        """Whether this trial was running when its job was deleted."""
        if entry := self._entries.get(key.job_id):
            await entry.durable()
        return await self.queries.was_running_when_deleted(key)

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[tuple[int, Job]]:
        """Jobs by place."""
        return await self.queries.jobs(prefix, after, limit)

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials by number."""
        found = await self.queries.trials(job_id, status, batch_size, after, limit)
        entry = self._entries.get(job_id)
        leased = entry.running if entry else {}
        return [self._with_lease(trial, leased.get(trial.number)) for trial in found]

    @staticmethod
    def _with_lease(trial: Trial, live: Trial | None) -> Trial:
        return replace(trial, lease_expire_time=live.lease_expire_time) if live and trial.running else trial

    async def count_jobs(self, prefix: str, limit: int) -> int:
        """How many jobs have this prefix."""
        return await self.queries.count_jobs(prefix, limit)

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Tells of changes."""
        return self._hub.subscribe((job_id, trial_number))

    async def close(self) -> None:
        """Waits for what is being written."""
        await self._writer.close()


def _lease(now: datetime, job: Job) -> datetime | None:
    seconds = job.spec.trial_lease_seconds
    return now + timedelta(seconds=seconds) if seconds else None
