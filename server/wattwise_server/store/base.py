"""The storage contract.

It is written for two kinds of backend: an embedded one with a single owner, which may remember between calls and commit
in groups, and a shared one under many servers, which locks rows and remembers nothing. Callers can't tell them apart.

**Atomicity.** All reading and writing of one job happens inside `transaction(job_id)`. Transactions of one job happen
one after the other; those of different jobs don't wait for each other. What a block saved is durable (it survives
`kill -9` and power loss) when the block has been left without an exception, wholly or, if leaving raised, not at all as
far as anybody can see. A block left by an exception has changed nothing. A block that only read is left once all that
it saw is durable, so that no answer rests on something that a crash could take back.

**Followers.** What `once_durable` was given is called after the commit and before the block is left, in the order of
commits; never for a block that changed nothing.

**Cancellation.** A caller that is cancelled while it waits for durability leaves the transaction as it is: committed,
or failed for reasons of its own.

**Errors.** `StorageUnavailableError` when the storage could not be read or written; the same call may succeed later.
Nothing else is raised but for programming errors.

**Leases** (`Trial.lease_expire_time`) need not be durable: after a restart every running trial gets a whole one.

**Consistency of lists.** `jobs`, `trials` and `count_jobs` show what is durable, each call as of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Protocol

from wattwise_server.domain import Job, Measurement, Trial, TrialKey, TrialStatus
from wattwise_server.store.hub import Subscription


class Transaction(Protocol):
    """One job, loaded and locked."""

    @property
    def job(self) -> Job | None:
        """The job; None when there is none under this id."""

    def save_job(self, job: Job) -> None:
        """Creates the job, or saves what changed."""

    def delete_job(self) -> Sequence[Trial]:
        """Deletes the job with its trials and measurements; returns, and remembers, the trials that were running."""

    def running(self) -> Sequence[Trial]:
        """The dispatched trials by number."""

    def running_trial(self, number: int) -> Trial | None:
        """The dispatched trial of this number."""

    async def trial(self, number: int) -> Trial | None:
        """The trial of this number."""

    async def measurements(self, number: int) -> Sequence[Measurement]:
        """The newest measurements of a trial, as many as one answer holds, by epoch."""

    async def trial_of_request(self, request_id: str) -> Trial | None:
        """The trial that this request dispatched."""

    def save_trial(self, trial: Trial) -> None:
        """Creates the trial, or saves what changed but for `last`, which `add_measurement` keeps."""

    def add_measurement(self, trial: Trial) -> None:
        """Keeps `trial.last` as the newest measurement of the trial."""

    def forget_measurements(self, trial: Trial, through_epoch: int) -> None:
        """Drops a trial's measurements up to an epoch; never its newest."""

    def renew_lease(self, trial: Trial) -> None:
        """Keeps the trial's lease."""

    def once_durable(self, tell: Callable[[], None]) -> None:
        """Calls something, that must not raise, once what the block saved is durable."""


class Store(Protocol):
    """Jobs, trials and measurements."""

    def transaction(self, job_id: str) -> AbstractAsyncContextManager[Transaction]:
        """The one way to read and change a job."""

    async def was_running_when_deleted(self, key: TrialKey) -> bool:
        """Whether this trial was running when its job was deleted."""

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[tuple[int, Job]]:
        """Jobs whose id starts with `prefix`, oldest first, each with its place; only those after place `after`."""

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials of a job by number, only those above `after`, of one status and batch size if given."""

    async def count_jobs(self, prefix: str, limit: int) -> int:
        """How many jobs have this very `job_id_prefix`; counting ends at a limit."""

    async def prune(self, ended_before: datetime) -> None:
        """Drops measurements of trials that ended before a time, little by little and without delaying anybody.

        All measurements of a trial that its trainer ended or that was decided, all but the newest of a lost or
        preempted one, and none of a running one. Nothing else changes. What is left when this raises, or is cancelled,
        goes another time.
        """

    def lapsed(self, now: datetime) -> Sequence[TrialKey]:
        """Running trials whose lease has run out by now."""

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """Tells of every durable change of the job, or of one trial's start, end or revival."""

    async def close(self) -> None:
        """Waits for what is being written and lets go of the storage."""
