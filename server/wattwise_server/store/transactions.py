"""The transactions of both databases: a cache of jobs in front of a group writer. The contract is in `base`.

Jobs in use and their running trials are in memory, as they will be once everything submitted is durable. A transaction
reads and changes the cached job under its lock, hands its changes to the writer, releases the lock and only then
waits for the commit, so that the next transaction of the job can share it. When a commit fails, the cached job is
dropped and read again, and every transaction that used it is refused.

Where several servers share a database, every commit compares the version of each job with the one that was read. If it
has moved, nothing of the job's transactions is saved and they end in a ConflictError. A transaction that changed
nothing joins the group too, so that its answer rests on the newest version.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import TracebackType
from zlib import crc32

from wattwise_server.clock import Clock
from wattwise_server.config import LARGEST_EPOCHS_KEPT
from wattwise_server.domain import (
    Job,
    Measurement,
    MetricSpan,
    PowerSample,
    RecordedEvent,
    RecordedSearchEvent,
    Trial,
    TrialId,
)
from wattwise_server.errors import ConflictError, ServiceError
from wattwise_server.events import EpochReported, Event
from wattwise_server.observability.call import caller_token
from wattwise_server.observability.observers import Notification, Observer
from wattwise_server.store import changes
from wattwise_server.store.changes import Change, KeepMeasurements, PruneEvents
from wattwise_server.store.columns import to_micros
from wattwise_server.store.reads import Reads, readable
from wattwise_server.store.subscriptions import REPORTS, JobsSubscription, Subscription, Subscriptions, Topic
from wattwise_server.store.writer import Submission, Writer, failure_of

CACHED_JOBS = 4096
"""Jobs cached beyond those with running trials."""

_DROPPED_AT_ONCE = 4
"""Jobs that leave the cache when another one enters: a few, so that no call pays for many."""

_MOST_CHECKSUMS = 500
"""Trials of a job whose launch ids are remembered as checksums, so that a new one is known to be new."""

_EVENTS_AT_ONCE = 500
_FORGET_PAUSE_SECONDS = 0.05

_CACHED_ENDED_TRIALS = 4
"""Ended trials cached per job: their trainers are about to call EndTrial."""


@dataclass(slots=True, eq=False)
class CachedJob:
    """One job in memory.

    Attributes:
        key: The job's; for one that does not exist, a key for its creation, or 0.
        version: The version that the next commit of it expects; 0 if it does not exist.
        leases: Until when the leases of running trials last in the database, if they are kept there.
        checksums: Of the launch ids of all trials; None: not known.
        asked: Whether a launch id was looked for in the database.
        replaces: Whether another job of this id was deleted before; None: not known.
        failed: Set when one of its commits failed.
        outdated: Set when another server has changed the job.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: bool = False
    key: int = 0
    version: int = 0
    job: Job | None = None
    running: dict[int, Trial] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    ended: dict[int, Trial] = field(default_factory=dict)
    leases: dict[int, datetime] = field(default_factory=dict)
    checksums: array[int] | None = None
    asked: bool = False
    replaces: bool | None = None
    submitted: Submission | None = None
    users: int = 0
    failed: bool = False
    outdated: bool = False

    @property
    def unused(self) -> bool:
        """Whether nothing is under way with it."""
        return not self.users and not self.pending

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
                self.launches[trial.launch_id] = number
            return starts
        self.running.pop(number, None)
        self.launches.pop(trial.launch_id, None)
        self.ended[number] = trial
        if len(self.ended) > _CACHED_ENDED_TRIALS:  # pragma: no mutate: one less is read again
            del self.ended[next(iter(self.ended))]
        return False  # pragma: no mutate: the lease of an ended trial is dropped when it expires

    def note_launch(self, launch_id: str) -> None:
        """Notes the launch id of a new trial."""
        if self.checksums is not None:
            self.checksums.append(_checksum(launch_id))
            if len(self.checksums) > _MOST_CHECKSUMS:
                self.checksums = None

    async def durable(self) -> None:
        """Returns once all that was submitted for the job is durable."""
        if self.submitted is not None:
            await self.submitted.durable()


class Store(ABC):
    """A database of jobs, trials and measurements: its transactions and its reads. Made by `store.open.open_store`.

    Attributes:
        page_token_key: Random, made with the database, for the tokens of lists.
        clock: The time of the database.
        reads: Its reads.
        observer: Is notified of every event.
        shared: Whether other servers may change the database.
    """

    shared = False
    _loads_at_once = 1

    def __init__(self, writer: Writer, reads: Reads, clock: Clock, page_token_key: bytes, observer: Observer) -> None:
        self.page_token_key = page_token_key
        self.clock = clock
        self.reads = reads
        self.observer = observer
        self.writer = writer
        # Few loads at a time: those of many wide jobs would delay the reports to all other jobs.
        self._loading = asyncio.Semaphore(self._loads_at_once)
        self.cache: OrderedDict[str, CachedJob] = OrderedDict()
        self._subscriptions = Subscriptions()

    @abstractmethod
    def check(self) -> None:
        """Checks that the database can serve calls, now or once it is reachable again.

        Raises:
            StorageUnavailableError: it cannot, until it has been repaired.
        """

    @abstractmethod
    async def expired_leases(self) -> Sequence[TrialId]:
        """Returns the running trials whose lease has expired; of several servers one at a time learns of a trial."""

    @abstractmethod
    async def prune(self, ended_before: datetime) -> None:
        """Deletes measurements of trials that ended before a time, in small steps that delay no other call.

        Deletes all measurements of a trial that was decided or ended by its trainer, all but the newest of a lost or
        preempted one, and none of a running one. If this raises or is cancelled, the next call deletes the rest.
        """

    @abstractmethod
    async def read(self, job_id: str, cached: CachedJob) -> None:
        """Reads a locked job, unless it does not exist; each of its running trials has its lease."""

    @abstractmethod
    def new_key(self, cached: CachedJob) -> int:
        """Returns a key for a new job.

        Raises:
            ConflictError: the cached job is to be read again first.
        """

    @abstractmethod
    async def make_room(self, tx: Transaction, prefix: str, limit: int) -> None:
        """Implements `Transaction.make_room`."""

    def with_leases(self, tx: Transaction) -> Sequence[Change]:
        """Returns what a transaction writes, with what keeps its trials' leases."""
        return tx.changes

    def checks(self, tx: Transaction) -> Sequence[Change]:  # noqa: ARG002 - a hook
        """Returns what has to hold when a transaction that writes nothing is committed."""
        return ()

    def evicted(self, job_id: str) -> None:  # noqa: B027 - a hook
        """Notes that a job has left the cache."""

    def started(self, trial: Trial, key: int) -> None:  # noqa: B027 - a hook
        """Notes that a trial has started to run."""

    def deleted(self, key: int) -> None:  # noqa: B027 - a hook
        """Notes that the deletion of a job has become durable."""

    def changed(self, cached: CachedJob, tx: Transaction) -> None:  # noqa: B027 - a hook
        """Notes that a transaction's changes have become durable."""

    def transaction(self, job_id: str) -> Transaction:
        """Begins a transaction: the one way to read and change a job."""
        return Transaction(self, job_id)

    def acquire(self, job_id: str) -> CachedJob:
        """Returns the cached job, kept until it is released; the caller locks it, and loads it if it is not loaded."""
        cached = self.cache.get(job_id)
        if cached is None or cached.failed or cached.outdated:
            cached = self.cache[job_id] = CachedJob()
            self._evict()
        self.cache.move_to_end(job_id)
        cached.users += 1
        return cached

    def release(self, job_id: str, cached: CachedJob) -> None:
        """Ends a use; a job that does not exist is dropped at once."""
        cached.users -= 1
        if cached.job is None and cached.unused and self.cache.get(job_id) is cached:
            del self.cache[job_id]

    async def load(self, job_id: str, cached: CachedJob) -> None:
        """Reads a locked job.

        Raises:
            StorageUnavailableError: the job cannot be read.
        """
        async with self._loading:
            with readable(job_id):
                await self.read(job_id, cached)
        # A job that does not exist has no version that a commit could compare: who asks next looks again.
        cached.loaded = not self.shared or cached.version > 0

    def submit(self, cached: CachedJob, tx: Transaction) -> None:
        """Applies a transaction's changes to the cache and hands them to the writer.

        Raises:
            StorageUnavailableError: an earlier commit that it depends on failed.
            ConflictError: another server has changed the job.
        """
        if cached.failed:
            raise failure_of(cached)
        for trial in tx.apply():
            self.started(trial, tx.key)
        if written := self.with_leases(tx):
            cached.submitted = self.writer.submit(cached, written, partial(self._publish, cached, tx))
        else:
            self.submit_check(cached, tx)

    def submit_check(self, cached: CachedJob, tx: Transaction) -> None:
        """Lets the next commit compare what a transaction has read of a job that others may change."""
        if self.shared and cached.version and not cached.failed:
            cached.submitted = self.writer.submit(cached, self.checks(tx))

    def _publish(self, cached: CachedJob, tx: Transaction) -> None:
        if tx.deleted:
            self.deleted(tx.key)
        for topic in tx.topics:
            self._subscriptions.publish(topic)
        for notify in tx.notifications:
            notify()
        self.changed(cached, tx)

    def _evict(self) -> None:
        for _ in range(min(_DROPPED_AT_ONCE, len(self.cache) - CACHED_JOBS)):
            job_id, cached = next(iter(self.cache.items()))
            # In a shared database, another server may long have ended what is running here.
            if cached.unused and (self.shared or not cached.running):
                del self.cache[job_id]
                self.evicted(job_id)
            else:
                self.cache.move_to_end(job_id)

    async def forget_events(self, before: datetime) -> None:
        """Deletes older events of the history, in small steps."""
        while await self.reads.has_events(before):
            await self._prune_events(PruneEvents(to_micros(before), _EVENTS_AT_ONCE))
            await asyncio.sleep(_FORGET_PAUSE_SECONDS)

    @abstractmethod
    async def _prune_events(self, todo: PruneEvents) -> None:
        """Deletes some of them, in one commit."""

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Notifies of every durable change of the job, or of one trial's start, end and revival; of trial 0: of epochs.

        Where servers share the database, it also notifies when something may have changed.
        """
        return self._subscriptions.subscribe((job_id, trial_number))

    def subscribe_jobs(self, prefix: str) -> AbstractContextManager[JobsSubscription]:
        """Notifies of every durable change of a job whose id starts with a prefix, of its trials and their epochs."""
        return self._subscriptions.subscribe_jobs(prefix)

    async def close(self) -> None:
        """Waits for pending commits and closes the storage."""
        await self.writer.close()


class Transaction:
    """One job, loaded and locked, with the changes of one block, which are not yet applied to the cached job."""

    __slots__ = (
        "cached",
        "changes",
        "deleted",
        "expired",
        "follow_ups",
        "job",
        "job_id",
        "kept",
        "key",
        "notifications",
        "store",
        "topics",
        "trials",
    )
    cached: CachedJob
    job: Job | None
    key: int

    def __init__(self, store: Store, job_id: str) -> None:
        self.store = store
        self.job_id = job_id
        self.deleted = False
        # The trials that the block has changed.
        self.trials: dict[int, Trial] = {}
        # Trials of which the block learned that their lease has expired.
        self.expired: list[int] = []
        self.changes: list[Change] = []
        self.topics: set[Topic] = set()
        self.notifications: list[Notification] = []
        self.follow_ups: list[Callable[[], Awaitable[None]]] = []
        # What the block holds until its changes are durable.
        self.kept: AsyncExitStack | None = None

    async def __aenter__(self) -> Transaction:
        store, job_id = self.store, self.job_id
        store.reads.admit()
        self.cached = cached = store.acquire(job_id)
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
        try:
            await self._leave(error)
        except ConflictError:
            self.store.observer.conflicted()
            raise
        finally:
            self.store.release(self.job_id, self.cached)
            if self.kept is not None:
                await self.kept.aclose()
        if error is None:
            for work in self.follow_ups:
                await work()

    async def _leave(self, error: BaseException | None) -> None:
        cached, store = self.cached, self.store
        # A refusal is an answer too: it may depend on an earlier transaction that is not durable yet. Where others
        # change the job, what looks like a defect may come from rows of two versions.
        waits = error is None or isinstance(error, Exception if store.shared else ServiceError)
        try:
            if error is None:
                store.submit(cached, self)
            elif waits:
                store.submit_check(cached, self)
        finally:
            cached.lock.release()
        if waits and cached.submitted is not None:
            await cached.submitted.durable()

    def record(self, job: Job | None, *events: Event) -> None:
        """Saves a job after events, and what the events say has changed; the way in which use cases change a job.

        Events with a message are added to the history, with the time of the database and the token of the running call.
        The observer is notified of every event after the commit.

        Args:
            job: The job since, saved if it differs from that before; None: it is deleted, as by `delete_job`.
            events: What has happened, in this order; nothing for what is no event, such as a remembered request.
        """
        if job is None:
            self.delete_job()
        elif job is not self.job and job != self.job:
            self.save_job(job)
        observer = self.store.observer
        for event in events:
            if job is not None:
                event.save(self)
            if event.in_history:
                self.add_event(self._entry(event))
            if observer.wants_reports or not isinstance(event, EpochReported):
                self.notifications.append(observer.prepare(event))

    def _entry(self, event: Event) -> RecordedEvent:
        job_id, trial_number, batch_size = event.about
        return RecordedEvent(
            self.store.clock(), event.kind, job_id, event.message, trial_number, batch_size, caller_token()
        )

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""
        if self.job is None:
            self.key = self.store.new_key(self.cached)
            self.changes += changes.insert_job(self.key, job)
        else:
            self.changes += changes.update_job(self.key, self.job, job)
        self.job = job
        self.topics.add((self.job_id, None))

    async def make_room(self, prefix: str, limit: int) -> None:
        """Checks, before a job is created, that fewer jobs than a limit have an id that starts with a prefix.

        No other block creates one between this check and the commit.

        Raises:
            TooManyJobsError: the limit is reached.
        """
        await self.store.make_room(self, prefix, limit)

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job with its trials and measurements; returns the trials that were running.

        For a year the store remembers the launch ids of all trials that were dispatched, and when the job was created
        and deleted.
        """
        running = self.running()
        for trial in running:
            self.topics.add((self.job_id, trial.number))
        self.changes.append(changes.delete_job(self.key, self.job_id, self.store.clock()))
        self.topics.add((self.job_id, None))
        self.job, self.deleted = None, True
        return running

    @property
    def num_running(self) -> int:
        """How many trials were running before this block."""
        return len(self.cached.running)

    def running(self) -> Sequence[Trial]:
        """Returns the running trials by number."""
        latest = self.cached.running | self.trials
        # Thousands of pairs would start a garbage collection.
        return [latest[number] for number in sorted(latest) if latest[number].running]

    def running_trial(self, number: int) -> Trial | None:
        """Returns the trial of this number if it is running."""
        trial = self.trials.get(number) or self.cached.running.get(number)
        return trial if trial and trial.running else None

    async def trial(self, number: int) -> Trial | None:
        """Returns the trial of this number."""
        cached = self.cached
        known = self.trials.get(number) or cached.running.get(number) or cached.ended.get(number)
        if known is not None:
            return known
        if self.job is None or number > self.job.num_trials:
            return None
        await self.cached.durable()
        return await self.store.reads.trial(self.job_id, self.key, number)

    async def measurements(
        self, number: int, *, after: int = 0, newest_first: bool = False, limit: int = LARGEST_EPOCHS_KEPT
    ) -> Sequence[Measurement]:
        """Returns the measurements of a trial behind the epoch `after`, 0 for all, by epoch or the newest first."""
        await self.cached.durable()
        return await self.store.reads.measurements(self.key, number, after, limit, newest_first=newest_first)

    async def metric_span(self, number: int) -> MetricSpan:
        """Returns the metrics of a trial's measurements that were saved by earlier transactions."""
        await self.cached.durable()
        return await self.store.reads.metric_span(self.key, number)

    async def trial_of_launch(self, launch_id: str) -> Trial | None:
        """Returns the trial of this launch."""
        cached, reads = self.cached, self.store.reads
        if known := cached.launches.get(launch_id):
            return self.trials.get(known, cached.running[known])
        if self.job is None or not self.job.num_trials:
            return None
        if cached.checksums is not None and _checksum(launch_id) not in cached.checksums:
            return None
        await cached.durable()
        if cached.checksums is None and cached.asked and self.job.num_trials <= _MOST_CHECKSUMS:
            cached.checksums = array("I", map(_checksum, await reads.launch_ids(self.key)))
        cached.asked = True
        found = await reads.trial_of_launch(self.job_id, self.key, launch_id)
        return self.trials.get(found.number, found) if found else None

    async def was_launch_deleted(self, launch_id: str, started: datetime | None = None) -> bool:
        """Returns whether the launch of this launch id was dispatched by a job of this id that was deleted.

        With `started`, also whether a job of this id existed at that time and was deleted since.
        """
        cached, reads = self.cached, self.store.reads
        if self.job is not None and cached.replaces is False:
            return False
        await cached.durable()
        if self.job is not None and cached.replaces is None:
            # Only what was deleted before this job was created counts, so that the answer does not change.
            cached.replaces = await reads.was_job_deleted(self.job_id)
            return cached.replaces and await reads.was_launch_deleted(self.job_id, launch_id, started)
        return await reads.was_launch_deleted(self.job_id, launch_id, started)

    def lease_expired(self, trial: Trial) -> bool:
        """Returns whether the lease of a trial has expired; if so, it still has when the block is committed."""
        if not trial.lease_expired(self.store.clock()):
            return False
        self.expired.append(trial.number)
        return True

    def save_trial(self, trial: Trial) -> None:
        """Creates the trial, or saves what changed except `last`, which `add_measurement` saves."""
        self.changes.append(changes.save_trial(self.key, trial))
        self.trials[trial.number] = trial
        self.topics.add((self.job_id, trial.number))

    def add_launch(self, trial: Trial) -> None:
        """Saves `trial.launch` of a trial that this block creates."""
        self.changes.append(changes.add_launch(self.key, trial))

    def save_samples(self, trial: Trial, samples: Sequence[PowerSample]) -> None:
        """Saves the samples of a trial's profile, in place of earlier ones."""
        self.changes.append(changes.save_samples(self.key, trial, samples))

    async def samples(self, number: int) -> Sequence[PowerSample]:
        """Returns the samples of a trial's profile by ascending limit; empty if it has none."""
        await self.cached.durable()
        return await self.store.reads.samples(self.key, number)

    def add_event(self, entry: RecordedEvent) -> None:
        """Adds an event to the history."""
        self.changes.append(changes.add_event(entry))

    def add_measurement(self, trial: Trial) -> None:
        """Saves `trial.last` as the trial's newest measurement."""
        if trial.last is not None:
            self.changes.append(changes.add_measurement(self.key, trial.number, trial.last))
        self.trials[trial.number] = trial
        self.topics.add((self.job_id, REPORTS))

    def keep_measurements(self, trial: Trial, newest: int) -> None:
        """Deletes all but a trial's newest measurements, one or more."""
        self.changes.append(KeepMeasurements(self.key, trial.number, newest))

    def renew_lease(self, trial: Trial) -> None:
        """Saves the trial's lease."""
        self.trials[trial.number] = trial

    def add_search_event(self, event: RecordedSearchEvent) -> None:
        """Saves an event that the trials do not tell.

        A trial tells its dispatch and, once it has ended, its newest end.
        """
        self.changes.append(changes.add_search_event(self.key, event))

    async def search_events(self) -> Sequence[RecordedSearchEvent]:
        """Returns all events of the job in their order, without what this block has saved."""
        await self.cached.durable()
        return await self.store.reads.search_events(self.job_id, self.key)

    def follow_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` once what the block saved is durable and other blocks can have the job.

        The exit of the block returns, or raises, after `work` does. `work` does not run if the block is not saved.
        """
        self.follow_ups.append(work)

    def apply(self) -> Iterable[Trial]:
        """Applies the changes to the cached job; returns the trials that started to run."""
        cached = self.cached
        if self.deleted:
            cached.job, cached.running, cached.launches, cached.ended = None, {}, {}, {}
            cached.replaces = True
            return ()
        newest = cached.job.num_trials if cached.job is not None else 0
        if self.job is not None:
            cached.job, cached.key, cached.loaded = self.job, self.key, True
        started = []
        for trial in self.trials.values():
            if trial.number > newest:
                cached.note_launch(trial.launch_id)
            if cached.update(trial):
                started.append(trial)
        return started


def _checksum(launch_id: str) -> int:
    return crc32(launch_id.encode(errors="surrogatepass"))


def with_running(job: Job, running: Sequence[Trial]) -> Job:
    """Returns the job with the running trials of each arm counted."""
    counts = Counter(trial.batch_size for trial in running if job.counts(trial))
    if not counts:
        return job
    arms = tuple(replace(arm, running=counts[arm.batch_size]) for arm in job.search.arms)
    return replace(job, search=replace(job.search, arms=arms))
