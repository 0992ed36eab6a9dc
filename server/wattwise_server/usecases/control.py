"""The use cases of operators that change what a job's search does: in one transaction, like all calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wattwise_server.clock import Clock
from wattwise_server.domain import EventKind, Job, JobEvent, Trial, TrialId
from wattwise_server.errors import InvalidRequestError, NotPossibleNowError, Violation, jobs_command
from wattwise_server.observability.events import NO_OBSERVERS, JobChanged, Observer
from wattwise_server.policy.base import Banned, Readmitted, Unbanned
from wattwise_server.store.base import Store, Transaction
from wattwise_server.usecases.changes import with_change_warnings
from wattwise_server.usecases.job_spec import JobDraft, policy_change, with_policy
from wattwise_server.usecases.lifecycle import after
from wattwise_server.usecases.lookup import batch_size_fault, find_job, find_trial, with_current_cost
from wattwise_server.usecases.power_limits import with_counted_profiles
from wattwise_server.usecases.publishing import Publisher
from wattwise_server.usecases.rebuild import rebuilt
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import with_warnings_of_imports, without_warnings_of

_REMEMBERED_REQUESTS = 16
"""More than a client has on their way at a time."""


class Control:
    """Every method may raise `StorageUnavailableError`, and `JobNotFoundError` if there is no such job.

    One that asks for what is already so changes nothing, and saves at most the id of its request.
    """

    def __init__(self, store: Store, clock: Clock, observer: Observer = NO_OBSERVERS) -> None:
        self._store = store
        self._clock = clock
        self._publisher = Publisher(clock, observer)

    @retried
    async def reset(self, job_id: str, request_id: str) -> Job:
        """Begins a job's search again: no trial so far counts, no baseline waits. Banned batch sizes stay banned.

        A repeated request changes nothing.
        """
        async with self._store.transaction(job_id) as tx:
            job, repeated = _with_request(find_job(tx, job_id), "reset", request_id)
            if repeated:
                return job
            job = replace(job, reset_after=job.num_trials, reset_time=self._clock(), warnings=())
            job = replace(job, baseline_requested=False)
            return self._save(tx, await _with_rebuilt_search(job, await tx.events()), "reset")

    @retried
    async def set_trial_excluded(self, key: TrialId, *, excluded: bool) -> tuple[Trial, Job]:
        """Excludes a trial from the search of its job, or includes it again.

        A trial from before a reset is excluded already.

        Raises:
            TrialNotFoundError: there is no such trial.
            NotPossibleNowError: it is to be included, and a reset has excluded it for good.
        """
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await find_trial(tx, key)
            reset = trial.number <= job.reset_after
            if reset and not excluded:
                why = (
                    f"trial {trial.number} cannot count again: the search was reset after trial {job.reset_after}, "
                    "for good; launch the job to get a trial that counts"
                )
                raise NotPossibleNowError(key.job_id, why)
            if trial.excluded is not excluded and not reset:
                trial = trial._replace(excluded=excluded)
                if excluded:
                    job = without_warnings_of(job, trial)
                events = [_with_excluded(event, trial) for event in await tx.events()]
                job = with_warnings_of_imports(job, trial, _trials(events))
                job = await _with_rebuilt_search(job, events)
                if trial.profile:
                    job = with_counted_profiles(job, trial.batch_size, _trials(events))
                tx.save_trial(trial)
                job = self._save(tx, job, "trial excluded" if excluded else "trial included", trial.batch_size, trial)
            return with_current_cost(job, trial), job

    @retried
    async def set_banned(self, job_id: str, batch_size: int, *, banned: bool) -> Job:
        """Bans a batch size, or lifts its ban. A baseline that waits for a batch size that is banned is withdrawn.

        Raises:
            InvalidRequestError: the job has no such batch size.
            NotPossibleNowError: the job would have no batch size left.
        """
        async with self._store.transaction(job_id) as tx:
            job = _find_with(tx, job_id, batch_size)
            if job.search.arm(batch_size).banned is banned:
                return job
            if not banned:
                job = _with_event(tx, after(job, Unbanned(batch_size)), EventKind.UNBANNED, batch_size)
                return self._save(tx, job, "batch size unbanned", batch_size)
            if not any(arm.batch_size != batch_size for arm in job.search.available):
                why = f"{batch_size} is the last available batch size; unban or readmit another one first"
                raise NotPossibleNowError(job_id, why)
            if job.spec.default_batch_size == batch_size:
                job = replace(job, baseline_requested=False)
            job = _with_event(tx, after(job, Banned(batch_size)), EventKind.BANNED, batch_size)
            return self._save(tx, job, "batch size banned", batch_size)

    @retried
    async def readmit(self, job_id: str, batch_size: int, request_id: str) -> Job:
        """Readmits a batch size: what ruled it out no longer counts, a ban aside.

        A repeated request changes nothing; with another batch size it is a new one. It is remembered also if nothing
        ruled the batch size out: a late retry must not forgive what failed since.

        Raises:
            InvalidRequestError: the job has no such batch size.
        """
        async with self._store.transaction(job_id) as tx:
            job, repeated = _with_request(_find_with(tx, job_id, batch_size), f"readmit {batch_size}", request_id)
            if repeated:
                return job
            readmitted = after(job, Readmitted(batch_size))
            if readmitted.search == job.search:
                tx.save_job(job)
                return job
            readmitted = _with_event(tx, readmitted, EventKind.READMITTED, batch_size)
            return self._save(tx, readmitted, "batch size readmitted", batch_size)

    @retried
    async def pin(self, job_id: str, batch_size: int) -> Job:
        """Pins a batch size, in place of another one.

        Raises:
            InvalidRequestError: the job has no such batch size.
        """
        async with self._store.transaction(job_id) as tx:
            job = _find_with(tx, job_id, batch_size)
            if job.pinned == batch_size:
                return job
            return self._save(tx, replace(job, pinned=batch_size), "batch size pinned", batch_size)

    @retried
    async def unpin(self, job_id: str) -> Job:
        """Ends that a batch size is pinned."""
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.pinned is None:
                return job
            return self._save(tx, replace(job, pinned=None), "batch size unpinned", job.pinned)

    @retried
    async def set_paused(self, job_id: str, *, paused: bool) -> Job:
        """Pauses a search, or resumes it."""
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.paused is paused:
                return job
            return self._save(tx, replace(job, paused=paused), "paused" if paused else "resumed")

    @retried
    async def request_baseline(self, job_id: str, request_id: str) -> Job:
        """Requests a trial of the default batch size. A repeated request changes nothing.

        It is remembered also if one waits already: a late retry must not request another one.

        Raises:
            NotPossibleNowError: the default batch size may not be chosen.
        """
        async with self._store.transaction(job_id) as tx:
            job, repeated = _with_request(find_job(tx, job_id), "baseline", request_id)
            if repeated:
                return job
            default = job.spec.default_batch_size
            if not any(arm.batch_size == default for arm in job.search.available):
                action = "unban" if job.search.arm(default).banned else "readmit"
                first = jobs_command(action, job_id, default)
                why = f"the default batch size {default} may not be chosen; use {first} first"
                raise NotPossibleNowError(job_id, why)
            if job.baseline_requested:
                tx.save_job(job)
                return job
            return self._save(tx, replace(job, baseline_requested=True), "baseline requested", default)

    @retried
    async def set_baseline_every(self, job_id: str, every: int) -> Job:
        """Gives one launch in `every` the default batch size from now on; 0 ends that.

        Raises:
            InvalidRequestError: `every` is 1 or negative.
        """
        if every < 0 or every == 1:
            raise InvalidRequestError(Violation("every", f"is {every}; use 2 or more, or 0 for no more baselines"))
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.baseline_every == every:
                return job
            change = "baselines scheduled" if every else "baselines ended"
            return self._save(tx, replace(job, baseline_every=every), change, job.spec.default_batch_size)

    @retried
    async def set_policy(self, job_id: str, draft: JobDraft) -> Job:
        """Changes the policy of a job and its parameters; its search is rebuilt from its trials.

        Args:
            job_id: The job.
            draft: The policy and those of its parameters that are set.

        Raises:
            InvalidJobSpecError: the policy has a fault.
        """
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            spec, registered = with_policy(job, draft), job.registered or job.spec
            if spec == job.spec:
                return job
            change = policy_change(job.spec, spec)
            job = replace(job, spec=spec, registered=None if spec == registered else registered)
            job = await _with_rebuilt_search(job, await tx.events())
            return self._save(tx, job, "policy changed", details=change)

    def _save(
        self,
        tx: Transaction,
        job: Job,
        change: str,
        batch_size: int | None = None,
        trial: Trial | None = None,
        *,
        details: str = "",
    ) -> Job:
        before, job = tx.job, with_change_warnings(job)
        tx.save_job(job)
        number = None if trial is None else trial.number
        self._publisher.publish(tx, JobChanged(job, change, batch_size, number, details))
        if before is not None:
            self._publisher.publish_best(tx, before, job)
        return job


def _with_request(job: Job, what: str, request_id: str) -> tuple[Job, bool]:
    """A job that remembers a request, and whether it did so before: then it is repeated."""
    request = f"{what} {request_id}"
    if request in job.requests:
        return job, True
    return replace(job, requests=(*job.requests, request)[-_REMEMBERED_REQUESTS:]), False


def _find_with(tx: Transaction, job_id: str, batch_size: int) -> Job:
    """The job, if it has this batch size."""
    job = find_job(tx, job_id)
    if fault := batch_size_fault(job, batch_size):
        raise InvalidRequestError(Violation("batch_size", fault))
    return job


def _with_event(tx: Transaction, job: Job, kind: EventKind, batch_size: int) -> Job:
    """The job after an event of a batch size, which is saved."""
    tx.add_event(JobEvent(job.num_events, kind, batch_size))
    return job


async def _with_rebuilt_search(job: Job, events: Sequence[JobEvent]) -> Job:
    # Other jobs' calls go on meanwhile; those of this job wait for its lock.
    return replace(job, search=await asyncio.to_thread(rebuilt, job, events))


def _trials(events: Sequence[JobEvent]) -> Iterable[Trial]:
    """Every trial, once."""
    return (event.trial for event in events if event.trial and event.kind is EventKind.DISPATCHED)


def _with_excluded(event: JobEvent, changed: Trial) -> JobEvent:
    if event.trial is None or event.trial.number != changed.number:
        return event
    return event._replace(trial=event.trial._replace(excluded=changed.excluded))
