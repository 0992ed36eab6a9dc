"""The storage contract on a PostgreSQL under many servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from wattwise_server.domain import TrialId
from wattwise_server.errors import ConflictError, TooManyJobsError
from wattwise_server.observability.observers import Observer
from wattwise_server.store.changes import Change, Expired, Lease, PruneEvents, PruneMeasurements, Room
from wattwise_server.store.postgres.notices import Notice, Notices
from wattwise_server.store.postgres.reads import PostgresReads
from wattwise_server.store.postgres.saving import Saver
from wattwise_server.store.retention import PRUNE_EVENTS, PRUNE_MEASUREMENTS, Retention
from wattwise_server.store.transactions import CachedJob, Store, Transaction, with_running
from wattwise_server.store.writer import Writer

_RETENTION_SECONDS = 300.0
"""Half of the time after which a server looks for old measurements again."""

_FINISH_SECONDS = 3.0
_MICROSECOND = timedelta(microseconds=1)
_SLACK, _SLACK_SHARE = timedelta(seconds=0.5), 0.05


class PostgresStore(Store):
    """Jobs, trials and measurements of one database. Made by `store.open.open_store`."""

    reads: PostgresReads
    shared = True
    _loads_at_once = 6

    def __init__(self, saver: Saver, reads: PostgresReads, page_token_key: bytes, observer: Observer) -> None:
        super().__init__(Writer(saver), reads, saver.clock, page_token_key, observer)
        self.saver = saver
        self._retention = Retention(reads, self._prune_measurements)
        self.notices: Notices | None = None
        # For outdated jobs, the version up to which followers were notified of every change.
        self._published: dict[str, int] = {}

    def check(self) -> None:
        """Checks the schema alone: an orchestrator must not remove every server because the database is away."""
        self.reads.admit()

    async def read(self, job_id: str, cached: CachedJob) -> None:
        """Reads a job. Its version comes first: if it changes meanwhile, the commit finds out."""
        found = await self.reads.job(job_id)
        # A notice may be lost, and the poll will find only what is newer than this.
        if self._published.pop(job_id, None) != (found.version if found else 0):
            self._subscriptions.publish_all(job_id)
        if found is None:
            cached.version, cached.job = 0, None
            cached.key = await self.reads.new_key()
            return
        cached.key, cached.version, cached.job = found
        running = await self.reads.running(job_id, cached.key)
        cached.job = with_running(cached.job, running)
        for trial in running:
            cached.update(trial)
            if trial.lease_expire_time is not None:
                cached.leases[trial.number] = trial.lease_expire_time

    def new_key(self, cached: CachedJob) -> int:
        """Returns the key that was drawn when the job was not found."""
        if cached.version:
            # It was deleted just now.
            raise ConflictError
        return cached.key

    async def make_room(self, tx: Transaction, prefix: str, limit: int) -> None:
        """Counts now, and again with the commit, which other servers' commits wait for."""
        if await self.reads.count_under(prefix, limit) >= limit:
            raise TooManyJobsError(prefix, limit)
        tx.changes.append(Room(prefix, limit, tx.key))

    def with_leases(self, tx: Transaction) -> Sequence[Change]:
        """Returns what a transaction writes, with the leases of the trials that it changed."""
        if tx.deleted:
            return tx.changes
        changes, key, leases, now = tx.changes, tx.key, tx.cached.leases, self.clock()
        for number, trial in tx.trials.items():
            expires = trial.lease_expire_time
            if not trial.running:
                leases.pop(number, None)
                changes.append(Lease(key, number, None))
            elif expires is not None and (number not in leases or leases[number] < expires):
                starts = number not in leases
                # A little longer: of many reports in a moment only the first renews it.
                leases[number] = expires + min(_SLACK, _SLACK_SHARE * (expires - now))
                changes.append(Lease(key, number, (leases[number] - now) // _MICROSECOND, starts))
        return [*changes, *self.checks(tx)] if changes else ()

    def checks(self, tx: Transaction) -> Sequence[Change]:
        """Returns what has to hold of a transaction's leases when it is committed."""
        return [Expired(tx.key, number) for number in tx.expired]

    def evicted(self, job_id: str) -> None:
        """Forgets what its followers know."""
        self._published.pop(job_id, None)

    def changed(self, cached: CachedJob, tx: Transaction) -> None:
        """Notifies the other servers."""
        if tx.deleted:
            cached.outdated = True
        if self.notices is None or self.notices.alone:
            return
        if not all(isinstance(change, Lease) and not change.starts for change in tx.changes):
            numbers = [number for _, number in tx.topics if number is not None]
            version = 0 if tx.deleted else cached.version
            self.notices.publish(Notice(tx.job_id, version, (tx.job_id, None) in tx.topics, numbers))

    def notice(self, notice: Notice) -> None:
        """Notes that another server has changed a job."""
        cached = self.cache.get(notice.job_id)
        if cached is not None and (notice.version == 0 or notice.version > cached.version):
            cached.outdated = True
            self._note_published(notice, self._published.pop(notice.job_id, cached.version))
        if notice.numbers is None:
            self._subscriptions.publish_all(notice.job_id)
            return
        if notice.job:
            self._subscriptions.publish((notice.job_id, None))
        for number in notice.numbers:
            self._subscriptions.publish((notice.job_id, number))

    def _note_published(self, notice: Notice, known: int) -> None:
        """Notes what followers learn from a notice, unless others between it and the known version may be lost."""
        if notice.numbers is None or 0 < notice.version <= known + 1:
            self._published[notice.job_id] = max(notice.version, known) if notice.version else 0

    def followed(self) -> Mapping[str, int | None]:
        """Returns the followed jobs, with the version of each in the cache."""
        return {job_id: self._version(job_id) for job_id in self._subscriptions.job_ids()}

    def missed_notices(self) -> None:
        """Wakes the followers of several jobs, who read them again; followers of one job were found by its version."""
        self._subscriptions.publish_unknown()

    def _version(self, job_id: str) -> int | None:
        cached = self.cache.get(job_id)
        if cached is None or not cached.loaded or cached.outdated or cached.failed:
            return None
        return cached.version

    def distrust(self) -> None:
        """Reads every job again: after a failover a version may have been given twice."""
        for cached in self.cache.values():
            cached.outdated = True

    async def expired_leases(self) -> Sequence[TrialId]:
        """Returns the running trials whose lease has expired, which this server is to give up."""
        return [TrialId(row["job_id"], trial_number=row["trial_number"]) for row in await self.reads.expired_leases()]

    async def prune(self, ended_before: datetime) -> None:
        """Drops measurements of trials that ended before a time, unless another server has just done it."""
        if await self.reads.begin_retention(_RETENTION_SECONDS):
            await self._retention.prune(ended_before)

    async def _prune_measurements(self, todo: Sequence[PruneMeasurements]) -> None:
        await self.reads.run(PRUNE_MEASUREMENTS, todo)

    async def _prune_events(self, todo: PruneEvents) -> None:
        await self.reads.run(PRUNE_EVENTS, [todo])

    async def close(self) -> None:
        """Waits for pending commits, but not for a database that is away."""
        closing = asyncio.create_task(super().close())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), _FINISH_SECONDS)
        await self.saver.close()
        await closing
