"""The use cases of operators: show, watch and delete jobs and trials."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, ListedJob, Measurement, Trial, TrialKey, TrialStatus
from wattwise_server.observability.events import NO_OBSERVERS, Observer
from wattwise_server.store.base import Store
from wattwise_server.usecases.lifecycle import Lifecycle
from wattwise_server.usecases.lookup import find_job, find_trial, with_current_cost
from wattwise_server.usecases.retries import retried


class Administration:
    """Every method may raise `StorageUnavailableError`."""

    def __init__(self, store: Store, clock: Clock, observer: Observer = NO_OBSERVERS) -> None:
        self._store = store
        self._lifecycle = Lifecycle(clock, observer)

    @retried
    async def job(self, job_id: str) -> Job:
        """A job.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            return find_job(tx, job_id)

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[ListedJob]:
        """Jobs whose id starts with a prefix, oldest first; only those after the position `after`."""
        return await self._store.jobs(prefix, after, limit)

    async def trials(
        self, job_id: str, status: TrialStatus | None, batch_size: int | None, after: int, limit: int
    ) -> Sequence[Trial]:
        """Trials of a job by number, only those above `after`.

        Raises:
            JobNotFoundError: there is no such job.
        """
        job = await self.job(job_id)
        found = await self._store.trials(job_id, status, batch_size, after, limit)
        return [with_current_cost(job, trial) for trial in found]

    @retried
    async def trial(self, key: TrialKey) -> tuple[Trial, Sequence[Measurement]]:
        """A trial with its measurements.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            trial = with_current_cost(*await find_trial(tx, key))
            return trial, await tx.measurements(trial.number)

    @retried
    async def delete_job(self, job_id: str) -> tuple[Job, Sequence[Trial]]:
        """Deletes a job; returns its last state, and its running trials, which will be stopped.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            return job, self._lifecycle.delete(tx, job)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """The job now and after every change, until it is deleted.

        Raises:
            JobNotFoundError: there is no such job, or it was deleted.
        """
        shown = None
        with self._store.subscribe(job_id) as changes:
            while True:
                job = await self.job(job_id)
                # Of another server's change it may be unknown whether it has been shown.
                if job != shown:
                    shown = job
                    yield job
                await changes.wait()
