"""The storage contract on one SQLite file with one owner.

The owner remembers: jobs in use, with their running trials, live in memory as they will be once all that was submitted
is durable. A transaction reads and changes that memory under the job's lock, hands its statements to the writer, lets
go of the lock and only then waits for the commit, so that the next transaction of the job can share it. When a commit
fails, the job's memory is dropped and read anew, and every transaction that rested on it is refused.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, Trial, TrialKey, TrialStatus
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.entry import Entry
from wattwise_server.store.hub import Hub, Subscription
from wattwise_server.store.queries import Queries
from wattwise_server.store.retention import Retention
from wattwise_server.store.transaction import SqliteTransaction
from wattwise_server.store.writer import Writer

REMEMBERED_JOBS = 4096
"""Jobs kept in memory beyond those with running trials."""

_RETRY = timedelta(seconds=1)


class SqliteStore:
    """Jobs, trials and measurements in one file. Made by `store.open.open_store`."""

    def __init__(self, writer: Writer, queries: Queries, clock: Clock, next_key: int) -> None:
        self._writer = writer
        self.queries = queries
        self._retention = Retention(queries, writer)
        self.clock = clock
        self._keys = count(next_key)
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        # When each runs out, with its job's id and key and the number of its trial.
        self._leases: list[tuple[datetime, str, int, int]] = []
        self._hub = Hub()

    def transaction(self, job_id: str) -> SqliteTransaction:
        """The one way to read and change a job."""
        return SqliteTransaction(self, job_id)

    def use(self, job_id: str) -> Entry:
        """What is remembered of a job, kept until it is let go; to be locked, and loaded unless it is."""
        entry = self._entries.get(job_id)
        if entry is None or entry.lost:
            entry = self._entries[job_id] = Entry()
            self._forget()
        self._entries.move_to_end(job_id)
        entry.users += 1
        return entry

    def let_go(self, job_id: str, entry: Entry) -> None:
        """Ends a use; a job that there is not is forgotten at once."""
        entry.users -= 1
        if entry.job is None and entry.idle and self._entries.get(job_id) is entry:
            del self._entries[job_id]

    def new_key(self) -> int:
        """A key for a job that is created."""
        return next(self._keys)

    async def load(self, job_id: str, entry: Entry) -> None:
        """Reads a job that is locked; its running trials get a whole lease each."""
        found = await self.queries.job(job_id)
        if found is not None:
            entry.key, entry.job = found
            lease = entry.job.spec.lease_from(self.clock())
            running = await self.queries.running(job_id, entry.key)
            for trial in running:
                entry.see(trial._replace(lease_expire_time=lease))
            for trial in entry.running.values():
                self._watch_lease(trial, entry.key)
        entry.loaded = True

    def submit(self, entry: Entry, tx: SqliteTransaction) -> None:
        """Makes what a block has saved part of the memory, and hands it to the writer.

        Raises:
            StorageUnavailableError: what it rests on was not kept.
        """
        if entry.lost:
            raise StorageUnavailableError("a commit that this call rests on has failed; nothing was kept, retry")
        for trial in tx.apply():
            self._watch_lease(trial, tx.key)
        if tx.statements:
            then = partial(self._publish, tx) if tx.topics or tx.followers else None
            entry.submitted = self._writer.submit(entry, tx.statements, then)

    def _publish(self, tx: SqliteTransaction) -> None:
        if tx.deleted:
            # Nobody would ever find these trials to give them up. Another job of this id has another key.
            self._leases = [lapse for lapse in self._leases if lapse[2] != tx.key]
            heapq.heapify(self._leases)
        for topic in tx.topics:
            self._hub.publish(topic)
        for tell in tx.followers:
            tell()

    def _forget(self) -> None:
        # A few at a time: however many jobs run, a call pays for no more than these.
        for _ in range(min(4, len(self._entries) - REMEMBERED_JOBS)):
            job_id, entry = next(iter(self._entries.items()))
            if entry.idle:
                del self._entries[job_id]
            else:
                self._entries.move_to_end(job_id)

    def _watch_lease(self, trial: Trial, key: int) -> None:
        if trial.lease_expire_time is not None:
            heapq.heappush(self._leases, (trial.lease_expire_time, trial.job_id, key, trial.number))

    def lapsed(self, now: datetime) -> Sequence[TrialKey]:
        """Running trials whose lease has run out by now."""
        found, again = [], []
        while self._leases and self._leases[0][0] <= now:
            _, job_id, key, number = heapq.heappop(self._leases)
            entry = self._entries.get(job_id)
            # What a failed commit left in memory tells nothing, and a deletion may yet fail.
            unknown = entry is None or entry.lost or entry.key != key
            trial = None if entry is None else entry.running.get(number)
            if unknown or (trial and trial.lease_expire_time and trial.lease_expire_time <= now):
                found.append(TrialKey(job_id, 0, number))
                again.append((now + _RETRY, job_id, key, number))
            elif trial:
                self._watch_lease(trial, key)
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
        return trial._replace(lease_expire_time=live.lease_expire_time) if live and trial.running else trial

    async def count_jobs(self, prefix: str, limit: int) -> int:
        """How many jobs have this prefix."""
        return await self.queries.count_jobs(prefix, limit)

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Tells of changes."""
        return self._hub.subscribe((job_id, trial_number))

    async def close(self) -> None:
        """Waits for what is being written."""
        await self._writer.close()
