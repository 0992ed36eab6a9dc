"""The storage contract.

It allows two kinds of backend: an embedded one with a single owner, and one that any number of servers share. Both
cache jobs and commit in groups. Callers see one difference: a block of a shared one may end in a `ConflictError`.

**Atomicity.** All reads and writes of one job happen inside `transaction(job_id)`. Transactions of one job are
serialized; those of different jobs do not wait for each other. When a block exits without an exception, everything it
saved is durable: it survives `kill -9` and power loss. When the exit raises, nothing that it saved is visible. A block
left by an exception changes nothing. A block that only read exits once everything it read is durable, so no answer
depends on data that a crash could lose.

**Conflicts.** When another server has changed the job since this one read it, the exit raises `ConflictError`, nothing
is saved and no callback runs: the use case runs again from its start (`usecases.retries`). So does a block that only
read, or that refuses, which would otherwise answer from an old version.

**Callbacks.** `after_commit` callbacks run after the commit and before the block exits, in the order of commits. They
do not run for a block that changed nothing.

**Cancellation.** Cancelling a caller that waits for durability does not affect the transaction: it commits or fails on
its own.

**Errors.** `StorageUnavailableError` when the storage cannot be read or written, or when it is unknown whether a commit
succeeded; the same call may succeed later. Anything else that is raised is a bug.

**Time** (`Store.clock`) is that of the database: the same on all servers, whatever their clocks say.

**Leases** (`Trial.lease_expire_time`) need not be durable: after a time without any server every running trial gets a
full one. What is known of the lease of a trial that another server serves may be too early, so that `lease_expired` is
the way to ask: the commit then fails if the lease was renewed.

**Lists.** `jobs` and `trials` return durable data, each call as of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Protocol

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, JobEvent, ListedJob, Measurement, MetricSpan, Trial, TrialKey, TrialStatus
from wattwise_server.store.subscriptions import Subscription


class Transaction(Protocol):
    """One job, loaded and locked."""

    @property
    def job(self) -> Job | None:
        """The job; None if no job has this id."""

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""

    async def make_room(self, prefix: str, limit: int) -> None:
        """Checks, before a job is created, that fewer jobs than a limit have an id that starts with a prefix.

        No other block creates one between this check and the commit.

        Raises:
            TooManyJobsError: the limit is reached.
        """

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job with its trials and measurements; returns the trials that were running.

        For a year the store remembers which trials were running or could be resumed, the request ids of all dispatched
        ones, and when the job was created and deleted.
        """

    def running(self) -> Sequence[Trial]:
        """The dispatched trials by number."""

    def running_trial(self, number: int) -> Trial | None:
        """The dispatched trial of this number."""

    async def trial(self, number: int) -> Trial | None:
        """The trial of this number."""

    async def measurements(self, number: int) -> Sequence[Measurement]:
        """The newest measurements of a trial, as many as one answer holds, by epoch."""

    async def metric_span(self, number: int) -> MetricSpan:
        """The metrics of a trial's measurements that were saved by earlier transactions."""

    async def trial_of_request(self, request_id: str) -> Trial | None:
        """The trial that this request dispatched."""

    def lease_expired(self, trial: Trial) -> bool:
        """Whether the lease of a trial has expired; if so, it still has when the block is committed."""

    def save_trial(self, trial: Trial) -> None:
        """Creates the trial, or saves what changed except `last`, which `add_measurement` saves."""

    def add_measurement(self, trial: Trial) -> None:
        """Saves `trial.last` as the trial's newest measurement."""

    def keep_measurements(self, trial: Trial, newest: int) -> None:
        """Deletes all but a trial's newest measurements, one or more."""

    def renew_lease(self, trial: Trial) -> None:
        """Saves the trial's lease."""

    def add_event(self, event: JobEvent) -> None:
        """Saves an event that the trials do not tell.

        A trial tells its dispatch and, once it has ended, its newest end.
        """

    @property
    def num_running(self) -> int:
        """How many trials were running before this block."""

    async def events(self) -> Sequence[JobEvent]:
        """All events of the job in their order, without what this block has saved."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Calls `callback`, which must not raise, once what the block saved is durable."""


class Store(Protocol):
    """Jobs, trials and measurements.

    Attributes:
        page_token_key: Random, made with the database, for the tokens of lists.
        clock: The time of the database, which never goes back.
        shared: Whether other servers may change the database.
    """

    page_token_key: bytes
    clock: Clock
    shared: bool

    def check(self) -> None:
        """Checks that the database can serve calls, now or once it is reachable again.

        Raises:
            StorageUnavailableError: it cannot, until it has been repaired.
        """

    async def content(self) -> tuple[int, int]:
        """How many jobs and running trials the database holds."""

    def transaction(self, job_id: str) -> AbstractAsyncContextManager[Transaction]:
        """The one way to read and change a job."""

    async def was_deleted(self, key: TrialKey) -> bool:
        """Whether this launch was deleted with its job; without one, a trial of this number that might still train."""

    async def was_launch_deleted(self, job_id: str, request_id: str, started: datetime | None) -> bool:
        """Whether the launch of this request id was dispatched by a job of this id that was deleted.

        With `started`, also whether a job of this id existed at that time and was deleted since.
        """

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[ListedJob]:
        """Jobs whose id starts with `prefix`, oldest first; only those after the position `after`."""

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials of a job by number, only those above `after`, of one status and batch size if given."""

    async def prune(self, ended_before: datetime) -> None:
        """Deletes measurements of trials that ended before a time, in small steps that delay no other call.

        Deletes all measurements of a trial that was decided or ended by its trainer, all but the newest of a lost or
        preempted one, and none of a running one. If this raises or is cancelled, the next call deletes the rest.
        """

    async def expired_leases(self) -> Sequence[TrialKey]:
        """Running trials whose lease has expired; of several servers one at a time learns of a trial."""

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Notifies of every durable change of the job, or of one trial's start, end and revival.

        Where servers share the database, it also notifies when something may have changed.
        """

    async def close(self) -> None:
        """Waits for pending commits and closes the storage."""
