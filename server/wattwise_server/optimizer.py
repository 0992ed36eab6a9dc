"""The use cases: load, decide, save, inside one transaction. The rules themselves are in `policy/`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from wattwise_server.clock import Clock
from wattwise_server.config import Limits
from wattwise_server.domain import (
    SAID_BY_TRAINER,
    Decision,
    EndReason,
    Job,
    Measurement,
    Search,
    Trial,
    TrialKey,
    TrialStatus,
    TrialType,
)
from wattwise_server.errors import (
    InvalidRequestError,
    JobNotFoundError,
    NoBatchSizeConvergedError,
    TooManyJobsError,
    TrialNotFoundError,
    Violation,
)
from wattwise_server.job_spec import JobDraft, check_identical, identifier_fault, resolve
from wattwise_server.observe import (
    UNOBSERVED,
    EpochReported,
    JobDeleted,
    JobRegistered,
    Observer,
    TrialDispatched,
    TrialEnded,
    TrialRevived,
)
from wattwise_server.observe import Event as Seen
from wattwise_server.policy.base import Dispatched, Event, Exhausted, Failed, Revived, Succeeded
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import Verdict, answer, decision, judge, priced
from wattwise_server.policy.thompson import generator
from wattwise_server.report import Report, checked
from wattwise_server.store.base import Store, Transaction

_GIVEN_UP_TOGETHER = 100
"""Few enough that a trainer's call never waits long behind them."""

_USUAL_LIMITS = Limits()


class Optimizer:
    """What trainers and operators can ask for. Every method may raise `StorageUnavailableError`."""

    def __init__(
        self, store: Store, clock: Clock, limits: Limits = _USUAL_LIMITS, observer: Observer = UNOBSERVED
    ) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._limits = limits
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def register(self, draft: JobDraft) -> tuple[Job, bool]:
        """Creates a job, or confirms it; says whether it created.

        Raises:
            InvalidJobSpecError: with every fault.
            JobDiffersError: the id is taken by another configuration.
            TooManyJobsError: the prefix has as many jobs as it may.
        """
        spec = resolve(draft, f"{draft.job_id_prefix}-{secrets.token_hex(4)}")
        async with AsyncExitStack() as counted, self._store.transaction(spec.job_id) as tx:
            if tx.job is not None:
                check_identical(tx.job.spec, spec)
                return tx.job, False
            await self._make_room(counted, spec.job_id_prefix)
            job = Job(spec, POLICIES[spec.policy].register(spec), self._clock())
            tx.save_job(job)
            self._tell(tx, JobRegistered(job))
            return job, True

    async def _make_room(self, counted: AsyncExitStack, prefix: str) -> None:
        """Refuses one more job of a prefix that is full; others of it are counted when the stack has been left."""
        limit = self._limits.max_jobs_per_prefix
        if not limit:
            return
        await counted.enter_async_context(self._creating.setdefault(prefix, asyncio.Lock()))
        if await self._store.count_jobs(prefix, limit) >= limit:
            raise TooManyJobsError(prefix, limit)

    async def next_trial(self, job_id: str, request_id: str) -> tuple[Trial, str]:
        """Dispatches the next trial of a job; says why this batch size. A known request gets its trial again.

        Raises:
            JobNotFoundError: there is no such job.
            NoBatchSizeConvergedError: the job has no batch size left.
            InvalidRequestError: the request id is not one.
        """
        if fault := identifier_fault(request_id):
            raise InvalidRequestError(Violation("request_id", fault))
        async with self._open(job_id) as tx:
            job = _job(tx, job_id)
            if request_id and (known := await tx.trial_of_request(request_id)):
                return _priced(job, known), f"this request was given trial {known.number} before"
            job = await self._free_slot(tx, job)
            number = job.num_trials + 1
            choice = POLICIES[job.spec.policy].next(job.spec, job.search, number, generator(job.spec, number))
            if isinstance(choice, Exhausted):
                raise NoBatchSizeConvergedError(job_id, job.search.pruning_round)
            now = self._clock()
            trial = Trial(
                job_id,
                number,
                choice.batch_size,
                choice.type,
                job.search.pruning_round,
                now,
                request_id or None,
                lease_expire_time=_lease(job, now),
            )
            tx.save_job(replace(job, num_trials=number, search=_observe(job, Dispatched(trial))))
            tx.save_trial(trial)
            self._tell(tx, TrialDispatched(trial, choice.reason))
            return trial, choice.reason

    async def report(self, report: Report) -> Decision:
        """Takes one epoch's measurement and says whether to go on.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidResultError: the measurement makes no sense; nothing was changed.
        """
        async with self._open(report.trial.job_id) as tx:
            found = await self._find(tx, report.trial)
            if isinstance(found, Decision):
                return found
            job, trial = found
            if not trial.running and not trial.lost:
                return _decision(job, trial)
            measured = checked(report, job.spec, trial.last, self._clock())
            if trial.lost:
                job, trial = self._revive(tx, job, trial)
            return self._take(tx, job, trial, measured)

    async def heartbeat(self, key: TrialKey) -> Decision:
        """Renews a trial's lease and says whether to go on.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._open(key.job_id) as tx:
            found = await self._find(tx, key)
            if isinstance(found, Decision):
                return found
            job, trial = found
            if trial.lost:
                job, _ = self._revive(tx, job, trial)
                # The bound may have fallen below its cost while nobody knew that it runs.
                self._stop_dearer(tx, job)
                job, trial = await _trial(tx, key)
            if trial.running:
                tx.renew_lease(trial.renewed(trial.last, _lease(job, self._clock())))
            return _decision(job, trial)

    async def end_trial(self, key: TrialKey, reason: EndReason | None) -> Trial:
        """Notes that a trainer is gone; a trial that has been decided, or ended before, is left as it is.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: the reason is not a trainer's to give.
        """
        if reason is None or reason not in SAID_BY_TRAINER:
            fault = "is not a trainer's to give; use END_REASON_COMPLETED, _ERROR, _OUT_OF_MEMORY or _PREEMPTED"
            raise InvalidRequestError(Violation("reason", fault))
        async with self._open(key.job_id) as tx:
            job, trial = await _trial(tx, key)
            if trial.lost:
                job, trial = self._revive(tx, job, trial)
            return self._fail(tx, job, trial, reason)[1] if trial.running else trial

    async def expire_leases(self) -> None:
        """Gives up every trial whose lease has run out, many at a time so that they share commits."""
        lapsed = self._store.lapsed(self._clock())
        for start in range(0, len(lapsed), _GIVEN_UP_TOGETHER):
            together = (self._give_up(key) for key in lapsed[start : start + _GIVEN_UP_TOGETHER])
            for failure in await asyncio.gather(*together, return_exceptions=True):
                if failure is not None:
                    raise failure

    async def prune(self) -> None:
        """Drops the measurements that are older than they are to be kept, if any are to go."""
        days = self._limits.keep_measurements_days
        if days:
            await self._store.prune(self._clock() - timedelta(days=days))

    async def _give_up(self, key: TrialKey) -> None:
        async with self._open(key.job_id) as tx:
            trial = await tx.trial(key.trial_number) if tx.job else None
            if tx.job and trial and self._has_lapsed(trial):
                self._fail(tx, tx.job, trial, EndReason.LOST)

    async def job(self, job_id: str) -> Job:
        """A job as it stands.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._open(job_id) as tx:
            return _job(tx, job_id)

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
        return [_priced(job, trial) for trial in found]

    async def trial(self, key: TrialKey) -> tuple[Trial, Sequence[Measurement]]:
        """A trial with its measurements.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._open(key.job_id) as tx:
            trial = _priced(*await _trial(tx, key))
            return trial, await tx.measurements(trial.number)

    async def delete_job(self, job_id: str) -> tuple[Job, Sequence[Trial]]:
        """Deletes a job; returns it as it last stood, and its trials that are told to stop.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._open(job_id) as tx:
            job = _job(tx, job_id)
            stopped = [self._ended(trial, TrialStatus.FAILED, EndReason.JOB_DELETED) for trial in tx.delete_job()]
            for trial in stopped:
                self._tell(tx, TrialEnded(trial))
            self._tell(tx, JobDeleted(job, len(stopped)))
            return job, stopped

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """The job now and after every change, until it is deleted.

        Raises:
            JobNotFoundError: there is no such job, or no more.
        """
        with self._store.subscribe(job_id) as changes:
            while True:
                yield await self.job(job_id)
                await changes.wait()

    async def stop_of(self, key: TrialKey) -> Decision:
        """Waits until a trial has ended, however it did, and returns what its trainer is to be told."""
        with self._store.subscribe(key.job_id, key.trial_number) as changes:
            while True:
                async with self._open(key.job_id) as tx:
                    found = await self._find(tx, key)
                if isinstance(found, Decision):
                    return found
                job, trial = found
                if not trial.running and not trial.lost:
                    return _decision(job, trial)
                await changes.wait()

    def _open(self, job_id: str) -> AbstractAsyncContextManager[Transaction]:
        """A transaction of a job, if its id can be one: what cannot was never registered."""
        if identifier_fault(job_id):
            raise JobNotFoundError(job_id)
        return self._store.transaction(job_id)

    async def _find(self, tx: Transaction, key: TrialKey) -> tuple[Job, Trial] | Decision:
        """A trial with its job, or the stop that a trainer of a deleted job is told."""
        try:
            return await _trial(tx, key)
        except (JobNotFoundError, TrialNotFoundError):
            if not await self._store.was_running_when_deleted(key):
                raise
        said = (
            f"stop: job {key.job_id!r} was deleted; if that was meant, launch it no more: it would be registered anew"
        )
        return Decision(True, False, False, said)

    def _take(self, tx: Transaction, job: Job, trial: Trial, measured: Measurement) -> Decision:
        verdict = judge(job.spec, job.search.min_cost, measured)
        before = trial.last
        repeated = before is not None and before.repeats(measured)
        trial = trial.renewed(measured, _lease(job, measured.report_time))
        if repeated:
            tx.renew_lease(trial)
        else:
            tx.add_measurement(trial)
            if measured.epoch > self._limits.max_epochs_kept:
                tx.forget_measurements(trial, measured.epoch - self._limits.max_epochs_kept)
            if self._observer.wants_reports:
                self._tell(tx, EpochReported(job, trial, before))
        if verdict.end_reason is not None:
            self._stop_dearer(tx, self._succeed(tx, job, trial, verdict))
        return answer(job.spec, measured, verdict)

    def _stop_dearer(self, tx: Transaction, job: Job) -> None:
        """Decides every running trial whose newest cost exceeds the bound, which may just have fallen."""
        for trial in tx.running():
            if trial.last is None:
                continue
            verdict = judge(job.spec, job.search.min_cost, trial.last)
            if verdict.end_reason is EndReason.COST_BOUND:
                job = self._succeed(tx, job, trial, verdict)

    def _succeed(self, tx: Transaction, job: Job, trial: Trial, verdict: Verdict) -> Job:
        place = job.num_observations + 1
        trial = replace(
            self._ended(trial, TrialStatus.SUCCEEDED, verdict.end_reason),
            cost=verdict.cost,
            cost_bound=verdict.bound,
            converged=verdict.converged,
            target_reached=verdict.target_reached,
            observation=place,
        )
        return self._save(tx, replace(job, num_observations=place), trial, Succeeded(trial))[0]

    def _fail(self, tx: Transaction, job: Job, trial: Trial, reason: EndReason) -> tuple[Job, Trial]:
        trial = self._ended(_priced(job, trial), TrialStatus.FAILED, reason)
        return self._save(tx, job, trial, Failed(trial))

    def _revive(self, tx: Transaction, job: Job, trial: Trial) -> tuple[Job, Trial]:
        search = _observe(job, Revived(trial))
        explored = trial.type is TrialType.EXPLORATION and search.exploring != trial.number
        back = replace(
            trial.renewed(trial.last, _lease(job, self._clock())),
            type=TrialType.CONCURRENT if explored else trial.type,
        )
        job = replace(job, search=search)
        tx.save_job(job)
        tx.save_trial(back)
        self._tell(tx, TrialRevived(back))
        return job, back

    def _save(self, tx: Transaction, job: Job, trial: Trial, event: Event) -> tuple[Job, Trial]:
        job = replace(job, search=_observe(job, event))
        tx.save_job(job)
        tx.save_trial(trial)
        self._tell(tx, TrialEnded(trial))
        return job, trial

    def _tell(self, tx: Transaction, event: Seen) -> None:
        tx.once_durable(self._observer.witness(event))

    def _ended(self, trial: Trial, status: TrialStatus, reason: EndReason | None) -> Trial:
        # The system's time may have been set back since, while no server ran.
        end_time = max(self._clock(), trial.start_time)
        return replace(trial, status=status, end_reason=reason, end_time=end_time, lease_expire_time=None)

    async def _free_slot(self, tx: Transaction, job: Job) -> Job:
        """Gives the exploration slot up at once if its trial's lease has run out."""
        holder = await tx.trial(job.search.exploring) if job.search.exploring is not None else None
        if holder is not None and self._has_lapsed(holder):
            return self._fail(tx, job, holder, EndReason.LOST)[0]
        return job

    def _has_lapsed(self, trial: Trial) -> bool:
        return trial.running and trial.lease_expire_time is not None and trial.lease_expire_time <= self._clock()


def _lease(job: Job, now: datetime) -> datetime | None:
    seconds = job.spec.trial_lease_seconds
    return now + timedelta(seconds=seconds) if seconds else None


def _priced(job: Job, trial: Trial) -> Trial:
    return priced(job.spec, job.search.min_cost, trial)


def _decision(job: Job, trial: Trial) -> Decision:
    return decision(job.spec, job.search.min_cost, trial)


def _observe(job: Job, event: Event) -> Search:
    return POLICIES[job.spec.policy].observe(job.spec, job.search, event)


def _job(tx: Transaction, job_id: str) -> Job:
    if tx.job is None:
        raise JobNotFoundError(job_id)
    return tx.job


async def _trial(tx: Transaction, key: TrialKey) -> tuple[Job, Trial]:
    job = _job(tx, key.job_id)
    trial = await tx.trial(key.trial_number)
    if trial is None:
        why = f"job {key.job_id!r} has no trial {key.trial_number}"
    elif key.batch_size not in (0, trial.batch_size):
        why = f"trial {key.trial_number} of job {key.job_id!r} has batch size {trial.batch_size}, not {key.batch_size}"
    else:
        return job, trial
    raise TrialNotFoundError(key.job_id, key.trial_number, key.batch_size, why)
