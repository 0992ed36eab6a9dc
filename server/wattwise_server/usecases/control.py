"""The use cases of operators that change what a job's search does: in one transaction, like all calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wattwise.rules import BASELINE_ADVICE, JobDraft, can_be_scheduled

from wattwise_server.domain import Job, RecordedSearchEvent, Trial, TrialId
from wattwise_server.errors import InvalidRequestError, NotPossibleNowError, Violation, jobs_command
from wattwise_server.events import (
    BaselineRequested,
    BaselineScheduleChanged,
    BatchSizeBanned,
    BatchSizePinned,
    BatchSizeReadmitted,
    BatchSizeUnbanned,
    BatchSizeUnpinned,
    JobChanged,
    JobPaused,
    JobReset,
    JobResumed,
    PolicyChanged,
    TrialDispatched,
    TrialExcluded,
    TrialIncluded,
)
from wattwise_server.policy.search import job_after, rebuild_search
from wattwise_server.policy.stopping import with_current_cost
from wattwise_server.store.transactions import Store, Transaction
from wattwise_server.usecases.changes import with_change_warnings
from wattwise_server.usecases.finding import batch_size_fault, find_job, find_trial
from wattwise_server.usecases.job_spec import policy_change, with_policy
from wattwise_server.usecases.lifecycle import best_known_changes
from wattwise_server.usecases.power_limits import with_counted_profiles
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import with_warnings_of_imports, without_warnings_of

_REMEMBERED_REQUESTS = 16
"""More than a client has on their way at a time."""


class Control:
    """The calls of operators that change a search.

    Every method may raise `StorageUnavailableError`, and `JobNotFoundError` if there is no such job. A call that asks
    for what is already so changes nothing, and saves at most the id of its request.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @retried
    async def reset(self, job_id: str, request_id: str) -> Job:
        """Begins a job's search again: no trial so far counts, no baseline waits. Banned batch sizes stay banned.

        A repeated request changes nothing.
        """
        async with self._store.transaction(job_id) as tx:
            job, repeated = _with_request(find_job(tx, job_id), "reset", request_id)
            if repeated:
                return job
            job = replace(job, reset_after=job.num_trials, reset_time=self._store.clock(), warnings=())
            job = replace(job, baseline_requested=False)
            return _record(tx, await _with_rebuilt_search(job, await tx.search_events()), JobReset(job.spec))

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
                events = [_with_excluded(event, trial) for event in await tx.search_events()]
                job = with_warnings_of_imports(job, trial, _trials(events))
                job = await _with_rebuilt_search(job, events)
                if trial.profile:
                    job = with_counted_profiles(job, trial.batch_size, _trials(events))
                job = _record(tx, job, (TrialExcluded if excluded else TrialIncluded)(job.spec, trial))
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
                unbanned = BatchSizeUnbanned(job.spec, batch_size, job.num_search_events + 1)
                return _record(tx, job_after(job, unbanned), unbanned)
            if not any(arm.batch_size != batch_size for arm in job.search.available):
                why = f"{batch_size} is the last available batch size; unban or readmit another one first"
                raise NotPossibleNowError(job_id, why)
            if job.spec.default_batch_size == batch_size:
                job = replace(job, baseline_requested=False)
            event = BatchSizeBanned(job.spec, batch_size, job.num_search_events + 1)
            return _record(tx, job_after(job, event), event)

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
            event = BatchSizeReadmitted(job.spec, batch_size, job.num_search_events + 1)
            readmitted = job_after(job, event)
            if readmitted.search == job.search:
                tx.record(job)
                return job
            return _record(tx, readmitted, event)

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
            return _record(tx, replace(job, pinned=batch_size), BatchSizePinned(job.spec, batch_size))

    @retried
    async def unpin(self, job_id: str) -> Job:
        """Ends that a batch size is pinned."""
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.pinned is None:
                return job
            return _record(tx, replace(job, pinned=None), BatchSizeUnpinned(job.spec, job.pinned))

    @retried
    async def set_paused(self, job_id: str, *, paused: bool) -> Job:
        """Pauses a search, or resumes it."""
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.paused is paused:
                return job
            return _record(tx, replace(job, paused=paused), (JobPaused if paused else JobResumed)(job.spec))

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
                tx.record(job)
                return job
            return _record(tx, replace(job, baseline_requested=True), BaselineRequested(job.spec, default))

    @retried
    async def set_baseline_every(self, job_id: str, every: int) -> Job:
        """Gives one launch in `every` the default batch size from now on; 0 ends that.

        Raises:
            InvalidRequestError: `every` is 1 or negative.
        """
        if not can_be_scheduled(every):
            raise InvalidRequestError(Violation("every", f"is {every}; {BASELINE_ADVICE}"))
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
            if job.baseline_every == every:
                return job
            event = BaselineScheduleChanged(job.spec, job.spec.default_batch_size, every)
            return _record(tx, replace(job, baseline_every=every), event)

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
            event = PolicyChanged(spec, policy_change(job.spec, spec))
            job = replace(job, spec=spec, registered=None if spec == registered else registered)
            job = await _with_rebuilt_search(job, await tx.search_events())
            return _record(tx, job, event)


def _record(tx: Transaction, job: Job, event: JobChanged) -> Job:
    """Records a change of a job; returns it with the warnings that follow from its search."""
    before, job = tx.job or job, with_change_warnings(job)
    tx.record(job, event, *best_known_changes(before, job))
    return job


def _with_request(job: Job, what: str, request_id: str) -> tuple[Job, bool]:
    """Returns a job that remembers a request, and whether it did so before: then it is repeated."""
    request = f"{what} {request_id}"
    if request in job.requests:
        return job, True
    return replace(job, requests=(*job.requests, request)[-_REMEMBERED_REQUESTS:]), False


def _find_with(tx: Transaction, job_id: str, batch_size: int) -> Job:
    """Finds the job, if it has this batch size."""
    job = find_job(tx, job_id)
    if fault := batch_size_fault(job, batch_size):
        raise InvalidRequestError(Violation("batch_size", fault))
    return job


async def _with_rebuilt_search(job: Job, events: Sequence[RecordedSearchEvent]) -> Job:
    # Other jobs' calls go on meanwhile; those of this job wait for its lock.
    return replace(job, search=await asyncio.to_thread(rebuild_search, job, events))


def _trials(events: Sequence[RecordedSearchEvent]) -> Iterable[Trial]:
    """Returns every trial, once."""
    return (event.trial for event in events if event.trial and event.kind == TrialDispatched.kind)


def _with_excluded(event: RecordedSearchEvent, changed: Trial) -> RecordedSearchEvent:
    if event.trial is None or event.trial.number != changed.number:
        return event
    return event._replace(trial=event.trial._replace(excluded=changed.excluded))
