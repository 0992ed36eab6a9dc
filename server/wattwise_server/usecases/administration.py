"""The use cases of operators: show, watch and delete jobs and trials."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from wattwise_server.domain import Job, Measurement, PowerSample, Trial, TrialId, TrialOrigin
from wattwise_server.errors import JobNotFoundError
from wattwise_server.policy.base import Choice, Exhausted
from wattwise_server.policy.decisions import explanation
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.requests import choice_on_request
from wattwise_server.policy.stopping import with_current_cost
from wattwise_server.policy.thompson import generator
from wattwise_server.store.base import EventList, JobList, ListedEvent, Place, StoredProfile, TrialList
from wattwise_server.store.subscriptions import JobsSubscription
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.finding import find_job, find_trial
from wattwise_server.usecases.job_view import PowerProfile, TrialView, power_profile
from wattwise_server.usecases.lifecycle import deletion_events
from wattwise_server.usecases.retries import retried

_PREVIEW_SAMPLES = 200
"""Calls of the policy: a share of one half is off by 0.1 once in two hundred previews."""

_FOLLOWED = 1_000
"""Trials that may start and end between two messages of a watch; of more, the rest are left out."""


class PagedTrial(NamedTuple):
    """A trial of a page, and its place in the list.

    Attributes:
        trial: The trial; None if its job was deleted since the list was read.
    """

    place: Place
    trial: TrialView | None


class TrialDetails(NamedTuple):
    """A trial with its power profile; None if it has profiled nothing."""

    trial: TrialView
    power_profile: PowerProfile | None


class PreviewedChoice(NamedTuple):
    """What the next launch may get, and how probable that is."""

    batch_size: int
    probability: float
    origin: TrialOrigin
    reason: str


class Preview(NamedTuple):
    """What the next launch of a job would get.

    Attributes:
        choices: The most frequent first, one for each batch size; empty if no batch size is left.
        num_samples: How often the policy was asked; 1 if its choice depends on no random number.
    """

    choices: Sequence[PreviewedChoice]
    num_samples: int


def trial_view(job: Job, trial: Trial, recurrence: int | None = None) -> TrialView:
    """Returns a trial as people see it: with its current cost and bound."""
    current = with_current_cost(job, trial)
    return TrialView(current, explanation(job.spec, current), recurrence)


class Administration:
    """The calls of operators that show, watch and delete. Every method may raise `StorageUnavailableError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @retried
    async def job(self, job_id: str) -> Job:
        """Returns a job.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            return find_job(tx, job_id)

    async def count_jobs(self, wanted: JobList) -> int:
        """Counts the jobs of a list."""
        return await self._store.reads.count_jobs(wanted)

    async def trials(self, wanted: TrialList, after: Place, limit: int) -> Sequence[PagedTrial]:
        """Returns a page of at most `limit` trials; only those behind the place `after`.

        Raises:
            JobNotFoundError: there is no such job.
        """
        jobs: dict[str, Job | None] = {}
        if wanted.job_id is not None:
            jobs[wanted.job_id] = await self.job(wanted.job_id)
        listed = await self._store.reads.trials(wanted, after, limit)
        recurrences = await self._recurrences(wanted.job_id, [each.trial for each in listed])
        found = []
        for place, trial in listed:
            if trial.job_id not in jobs:
                try:
                    jobs[trial.job_id] = await self.job(trial.job_id)
                except JobNotFoundError:
                    jobs[trial.job_id] = None
            job = jobs[trial.job_id]
            view = trial_view(job, trial, recurrences.get(trial.number)) if job is not None else None
            found.append(PagedTrial(place, view))
        return found

    async def count_trials(self, wanted: TrialList) -> int:
        """Counts the trials of a list."""
        return await self._store.reads.count_trials(wanted)

    async def trial(self, key: TrialId) -> TrialDetails:
        """Returns a trial with its power profile.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        job, trial, samples = await self._trial(key)
        recurrences = await self._recurrences(trial.job_id, [trial])
        profile = None
        if samples:
            profile = power_profile(job.spec, StoredProfile(trial.number, trial.batch_size, samples))
        return TrialDetails(trial_view(job, trial, recurrences.get(trial.number)), profile)

    @retried
    async def measurements(self, key: TrialId, after: int, limit: int, *, newest_first: bool) -> Sequence[Measurement]:
        """Returns at most `limit` measurements of a trial behind the epoch `after` (0: all), by epoch or newest first.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            _, trial = await find_trial(tx, key)
            return await tx.measurements(trial.number, after=after, newest_first=newest_first, limit=limit)

    @retried
    async def _trial(self, key: TrialId) -> tuple[Job, Trial, Sequence[PowerSample]]:
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await find_trial(tx, key)
            return job, trial, await tx.samples(trial.number)

    async def _recurrences(self, job_id: str | None, trials: Sequence[Trial]) -> Mapping[int, int]:
        """Returns which need for a model each trial of one job served, by its number, as far as its start is known."""
        starts = {trial.number: trial.start_time for trial in trials if trial.start_time is not None}
        if job_id is None or not starts:
            return {}
        times = sorted(set(starts.values()))
        delivered = dict(zip(times, await self._store.reads.deliveries_before(job_id, times), strict=True))
        return {number: delivered[start] + 1 for number, start in starts.items()}

    async def events(self, wanted: EventList, after: Place, limit: int) -> Sequence[ListedEvent]:
        """Returns a page of the history, newest first; only events behind the place `after`."""
        return await self._store.reads.events(wanted, after, limit)

    @retried
    async def delete_job(self, job_id: str, create_time: datetime | None = None) -> tuple[Job, int]:
        """Deletes a job; returns its last state, and the number of its running trials, which will be stopped.

        Args:
            job_id: The job.
            create_time: When it was registered: another one of its id counts as missing. None: any.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if create_time is not None and _milliseconds(create_time) != _milliseconds(job.create_time):
                raise JobNotFoundError(job_id)
            running = tx.running()
            tx.record(None, *deletion_events(job, running, self._store.clock()))
            return job, len(running)

    async def preview(self, job_id: str) -> Preview:
        """Previews what the next launch of a job would get; dispatches nothing.

        Raises:
            JobNotFoundError: there is no such job.
        """
        # Other calls go on meanwhile.
        return await asyncio.to_thread(_preview, await self.job(job_id))

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yields the job now and after every change, until it is deleted.

        Raises:
            JobNotFoundError: there is no such job, or it was deleted.
        """
        shown = None
        with self._store.subscribe(job_id) as changes:
            while True:
                job = await self.job(job_id)
                # We may not know whether another server's change was already sent.
                if job != shown:
                    shown = job
                    yield job
                await changes.wait()

    async def watch_trials(self, job_id: str) -> AsyncGenerator[Sequence[TrialView], None]:
        """Yields the running trials of a job, then those that are new or have changed, until the job is deleted.

        A trial is followed until it has ended.

        Raises:
            JobNotFoundError: there is no such job, or it was deleted.
        """
        shown: dict[int, TrialView] = {}
        seen: dict[int, Trial] = {}
        before: Job | None = None
        with self._store.subscribe_jobs(job_id) as changes:
            while True:
                job, trials = await self._followed_trials(job_id, seen, before.num_trials if before else None)
                # Costs and bounds of all depend on what the job knows.
                same = before is not None and before.search is job.search
                changed = [trial for trial in trials if not same or seen.get(trial.number) != trial]
                found = [trial for trial in (trial_view(job, each) for each in changed)
                         if shown.get(trial.trial.number) != trial]  # fmt: skip
                if found or before is None:
                    yield found
                seen = {trial.number: trial for trial in trials if trial.running}
                shown = {number: trial for number, trial in shown.items() if number in seen}
                shown |= {trial.trial.number: trial for trial in found if trial.trial.running}
                before = job
                await _wait_for(changes, job_id)

    @retried
    async def _followed_trials(
        self, job_id: str, known: Iterable[int], newest: int | None
    ) -> tuple[Job, Sequence[Trial]]:
        """Returns the running trials of a job, those of these numbers, and those after the newest one, by number."""
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            trials = {trial.number: trial for trial in tx.running()}
            started = () if newest is None else range(newest + 1, min(job.num_trials, newest + _FOLLOWED) + 1)
            for number in (*known, *started):
                if number not in trials and (ended := await tx.trial(number)) is not None:
                    trials[number] = ended
        return job, [trial for _, trial in sorted(trials.items())]

    async def watch_jobs(self, prefix: str) -> AsyncGenerator[tuple[Sequence[str], bool], None]:
        """Yields ids of changed jobs, and whether others may have changed too, which is so at the beginning."""
        with self._store.subscribe_jobs(prefix) as changes:
            yield (), True
            while True:
                await changes.wait()
                job_ids, others = changes.take()
                yield sorted(job_ids), others


def _milliseconds(time: datetime) -> datetime:
    """Returns a time without what some languages cannot send back."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _preview(job: Job) -> Preview:
    """Asks the policy, with other random numbers each time, unless its choice depends on none."""
    policy, number = POLICIES[job.spec.policy], job.num_trials + 1
    first: dict[int, Choice] = {}
    counts: Counter[int] = Counter()
    for sample in range(_PREVIEW_SAMPLES):
        rng = np.random.default_rng([sample, number])
        if job.spec.seed is not None:
            rng = generator(job.spec, number)
        before = rng.bit_generator.state
        choice = choice_on_request(policy, job, number) or policy.next(job.spec, job.search, number, rng)
        if not isinstance(choice, Exhausted):
            first.setdefault(choice.batch_size, choice)
            counts[choice.batch_size] += 1
        if job.spec.seed is not None or rng.bit_generator.state == before:
            break
    choices = [
        PreviewedChoice(size, count / (sample + 1), first[size].origin, first[size].reason)
        for size, count in counts.most_common()
    ]
    return Preview(choices, sample + 1)


async def _wait_for(changes: JobsSubscription, job_id: str) -> None:
    """Waits for a change of one job, among those of jobs whose ids begin with its id."""
    while True:
        await changes.wait()
        job_ids, others = changes.take()
        if others or job_id in job_ids:
            return
