"""The storage contract on one SQLite file with one owner."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import count
from weakref import WeakValueDictionary

from wattwise_server.clock import Clock, elapsed_micros
from wattwise_server.domain import Trial, TrialId
from wattwise_server.errors import TooManyJobsError
from wattwise_server.observability.observers import Observer
from wattwise_server.store.changes import PruneEvents, PruneMeasurements
from wattwise_server.store.retention import Retention
from wattwise_server.store.sqlite.reads import SqliteReads
from wattwise_server.store.transactions import CachedJob, Store, Transaction, with_running
from wattwise_server.store.writer import NoOwner, Writer

_RETRY = timedelta(seconds=1)
_AWAY_MICROS = 5_000_000
"""If nobody has looked at the leases for so long, this process did not run; usually it looks several times a second."""


class SqliteStore(Store):
    """Jobs, trials and measurements in one file. Made by `store.open.open_store`.

    Attributes:
        leases: A heap of the leases of running trials: expiry, the job's id and key, and the trial's number.
    """

    reads: SqliteReads

    def __init__(
        self,
        writer: Writer,
        reads: SqliteReads,
        clock: Clock,
        page_token_key: bytes,
        observer: Observer,
        *,
        next_key: int,
    ) -> None:
        super().__init__(writer, reads, clock, page_token_key, observer)
        reads.lease_of = self._lease_of
        self._retention = Retention(reads, self._prune_measurements)
        # When the running trials of jobs that are not in memory got their leases: nobody could renew a lease while no
        # server ran, while it was suspended, or while commits failed.
        self._granted = clock()
        self._looked = elapsed_micros()
        writer.on_failure = self._grant_again
        self._keys = count(next_key)
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.leases: list[tuple[datetime, str, int, int]] = []

    def check(self) -> None:
        """Checks that the database is where it was opened; until it is back, every call is refused."""
        self.reads.check()

    async def read(self, job_id: str, cached: CachedJob) -> None:
        """Reads a job; each of its running trials has a full lease."""
        found = await self.reads.job(job_id)
        if found is None:
            return
        cached.key, cached.version, cached.job = found
        lease = cached.job.spec.lease_expiry(self._granted)
        running = await self.reads.running(job_id, cached.key)
        cached.job = with_running(cached.job, running)
        for trial in running:
            cached.update(trial._replace(lease_expire_time=lease))
        for trial in cached.running.values():
            self.started(trial, cached.key)

    def new_key(self, cached: CachedJob) -> int:  # noqa: ARG002 - other backends draw it when they read
        """Returns a key for a new job."""
        return next(self._keys)

    async def make_room(self, tx: Transaction, prefix: str, limit: int) -> None:
        """Holds a lock of the prefix until the transaction ends."""
        tx.kept = tx.kept or AsyncExitStack()
        await tx.kept.enter_async_context(self._creating.setdefault(prefix, asyncio.Lock()))
        if await self.reads.count_under(prefix, limit) >= limit:
            raise TooManyJobsError(prefix, limit)

    def transaction(self, job_id: str) -> Transaction:
        """Begins a transaction: the one way to read and change a job."""
        self._note_pause()
        return super().transaction(job_id)

    def _grant_again(self) -> None:
        self._granted = self.clock()

    def _note_pause(self) -> None:
        """Gives every running trial a full lease if this process was suspended since the last look."""
        before, self._looked = self._looked, elapsed_micros()
        if self._looked - before < _AWAY_MICROS:
            return
        self._grant_again()
        for cached in self.cache.values():
            if cached.job is not None:
                lease = cached.job.spec.lease_expiry(self._granted)
                for trial in list(cached.running.values()):
                    cached.update(trial.renew(trial.last, lease))

    def started(self, trial: Trial, key: int) -> None:
        """Watches the lease of a running trial."""
        if trial.lease_expire_time is not None:
            heapq.heappush(self.leases, (trial.lease_expire_time, trial.job_id, key, trial.number))

    def deleted(self, key: int) -> None:
        """Forgets the leases of a deleted job. Another job of its id has another key."""
        self.leases = [lease for lease in self.leases if lease[2] != key]
        heapq.heapify(self.leases)

    async def expired_leases(self) -> Sequence[TrialId]:
        """Returns the running trials whose lease has expired by now."""
        self._note_pause()
        now = self.clock()
        found: dict[TrialId, None] = {}
        again = []
        while self.leases and self.leases[0][0] <= now:
            _, job_id, key, number = heapq.heappop(self.leases)
            cached = self.cache.get(job_id)
            later = now + _RETRY, job_id, key, number
            trial = None if cached is None else cached.running.get(number)
            # After a failed commit the cache is not reliable, and a deletion or an end may still fail.
            unreliable = cached is None or cached.failed or cached.job is None or cached.key != key
            if unreliable or (trial and trial.lease_expired(now)):
                found[TrialId(job_id, trial_number=number)] = None
                again.append(later)
            elif trial:
                self.started(trial, key)
            elif cached and cached.pending:
                again.append(later)
        # Failing these trials may be refused by the storage: they are returned again until it succeeds.
        for lease in again:
            heapq.heappush(self.leases, lease)
        return list(found)

    async def grant_leases(self) -> None:
        """Gives every running trial in the file a full lease; called once, at the start. No job is loaded for it."""
        for row in await self.reads.running_leases():
            expiry = self._granted + timedelta(seconds=row["trial_lease_seconds"])
            self.leases.append((expiry, row["job_id"], row["job_key"], row["trial_number"]))
        heapq.heapify(self.leases)

    async def prune(self, ended_before: datetime) -> None:
        """Drops measurements of trials that ended before a time."""
        await self._retention.prune(ended_before)

    async def _prune_measurements(self, todo: Sequence[PruneMeasurements]) -> None:
        await self.writer.submit(NoOwner(), todo).durable()

    async def _prune_events(self, todo: PruneEvents) -> None:
        await self.writer.submit(NoOwner(), [todo]).durable()

    def _lease_of(self, job_id: str, number: int) -> datetime | None:
        cached = self.cache.get(job_id)
        trial = cached.running.get(number) if cached else None
        return trial and trial.lease_expire_time
