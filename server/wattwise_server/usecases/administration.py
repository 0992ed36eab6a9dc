"""The use cases of operators: look at jobs and trials, watch them, delete them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from wattwise_server.clock import Clock
from wattwise_server.domain import Job, Measurement, Trial, TrialKey, TrialStatus
from wattwise_server.observability.events import NO_OBSERVERS, Observer
from wattwise_server.store.base import Store
from wattwise_server.usecases.lifecycle import Lifecycle
from wattwise_server.usecases.lookup import job_of, priced_in, trial_of


class Administration:
    """What operators can ask for. Every method may raise `StorageUnavailableError`."""

    def __init__(self, store: Store, clock: Clock, observer: Observer = NO_OBSERVERS) -> None:
        self._store = store
        self._lifecycle = Lifecycle(clock, observer)

    async def job(self, job_id: str) -> Job:
        """A job as it stands.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            return job_of(tx, job_id)

    async def jobs(self, prefix: str, after: int, limit: int) -> Sequence[tuple[int, Job]]:
        """Jobs whose id starts with a prefix, oldest first, each with its place; only those after a place."""
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
        return [priced_in(job, trial) for trial in found]

    async def trial(self, key: TrialKey) -> tuple[Trial, Sequence[Measurement]]:
        """A trial with its measurements.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            trial = priced_in(*await trial_of(tx, key))
            return trial, await tx.measurements(trial.number)

    async def delete_job(self, job_id: str) -> tuple[Job, Sequence[Trial]]:
        """Deletes a job; returns it as it last stood, and its trials that are told to stop.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            job = job_of(tx, job_id)
            return job, self._lifecycle.delete(tx, job)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """The job now and after every change, until it is deleted.

        Raises:
            JobNotFoundError: there is no such job, or no more.
        """
        with self._store.subscribe(job_id) as changes:
            while True:
                yield await self.job(job_id)
                await changes.wait()
