"""A transaction of the SQLite store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from wattwise_server.domain import Job, Measurement, Trial
from wattwise_server.errors import ServiceError
from wattwise_server.store import rows
from wattwise_server.store.entry import Entry
from wattwise_server.store.group import Sql, Statement
from wattwise_server.store.hub import Topic

if TYPE_CHECKING:
    from wattwise_server.store.sqlite import SqliteStore

_DELETE_JOB = Sql("DELETE FROM jobs WHERE job_key = ?")
_REMEMBER_DELETED = Sql("INSERT OR REPLACE INTO deleted_trials VALUES (?, ?, ?, ?)")


class SqliteTransaction:
    """A job's memory with the changes of one block, not yet part of it."""

    __slots__ = ("_changed", "_entry", "_store", "deleted", "followers", "job", "job_id", "key", "statements", "topics")
    _entry: Entry

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
        store, job_id = self._store, self.job_id
        self._entry = entry = store.use(job_id)
        try:
            await entry.lock.acquire()
            try:
                if not entry.loaded:
                    await store.load(job_id, entry)
            except BaseException:
                entry.lock.release()
                raise
        except BaseException:
            store.let_go(job_id, entry)
            raise
        self.job, self.key = entry.job, entry.key
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._entry
        try:
            try:
                if error is None:
                    self._store.submit(entry, self)
            finally:
                entry.lock.release()
            # A refusal is an answer too: it may rest on what a transaction before it has yet to make durable.
            if (submitted := entry.submitted) is not None and (error is None or isinstance(error, ServiceError)):
                await submitted.durable()
        finally:
            self._store.let_go(self.job_id, entry)

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""
        if self.job is None:
            self.key = self._store.new_key()
            self.statements += rows.insert_job(self.key, job)
        else:
            self.statements += rows.update_job(self.key, self.job, job)
        self.job = job
        self.topics.add((self.job_id, None))

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job; returns and remembers the trials that were running."""
        now, running = rows.to_micros(self._store.clock()), self.running()
        for trial in running:
            values = (trial.job_id, trial.number, trial.batch_size, now)
            self.statements.append(Statement(_REMEMBER_DELETED, values))
            self.topics.add((self.job_id, trial.number))
        self.statements.append(Statement(_DELETE_JOB, (self.key,)))
        self.topics.add((self.job_id, None))
        self.job, self.deleted = None, True
        return running

    def running(self) -> Sequence[Trial]:
        """The dispatched trials by number."""
        latest = self._entry.running | self._changed
        return [trial for _, trial in sorted(latest.items()) if trial.running]

    def running_trial(self, number: int) -> Trial | None:
        """The trial of this number if it is running."""
        changed = self._changed.get(number)
        if changed is None:
            return self._entry.running.get(number)
        return changed if changed.running else None

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
        self._changed[trial.number] = trial

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
        started = []
        for trial in self._changed.values():
            if entry.see(trial):
                started.append(trial)  # noqa: PERF401 - a comprehension would cost every report a call more
        return started
