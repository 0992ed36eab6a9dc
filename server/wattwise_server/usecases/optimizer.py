"""The use cases of trainers: load, decide, save, inside one transaction. The rules themselves are in `policy/`."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from weakref import WeakValueDictionary

from wattwise_server.clock import Clock
from wattwise_server.config import Limits
from wattwise_server.domain import (
    SAID_BY_TRAINER,
    Decision,
    EndReason,
    Job,
    Measurement,
    Trial,
    TrialKey,
    TrialStatus,
    identifier_fault,
)
from wattwise_server.errors import (
    InvalidRequestError,
    JobNotFoundError,
    NoBatchSizeConvergedError,
    NoTrialToResumeError,
    TooManyJobsError,
    TrialNotFoundError,
    Violation,
)
from wattwise_server.observability.events import (
    NO_OBSERVERS,
    EpochReported,
    Event,
    JobRegistered,
    Observer,
    TrialDispatched,
)
from wattwise_server.policy.base import Dispatched, Exhausted
from wattwise_server.policy.cost import cost
from wattwise_server.policy.explorer import crashed, untried
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import answer, judge
from wattwise_server.policy.thompson import generator
from wattwise_server.store.base import Store, Transaction
from wattwise_server.usecases.job_spec import JobDraft, check_identical, resolve
from wattwise_server.usecases.lifecycle import Lifecycle, observe
from wattwise_server.usecases.lookup import decision_in, job_of, priced_in, running_trial_of, trial_of
from wattwise_server.usecases.monitors import with_monitor
from wattwise_server.usecases.report import Report, checked

_GIVEN_UP_TOGETHER = 100
"""Few enough that a trainer's call never waits long behind them."""

_USUAL_LIMITS = Limits()


class Optimizer:
    """What trainers can ask for, and what time does to trials. Every method may raise `StorageUnavailableError`."""

    def __init__(
        self, store: Store, clock: Clock, limits: Limits = _USUAL_LIMITS, observer: Observer = NO_OBSERVERS
    ) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._lifecycle = Lifecycle(clock, observer)
        self._limits = limits
        self._creating: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def register(self, draft: JobDraft) -> tuple[Job, bool]:
        """Creates a job, or confirms it; says whether it created.

        Raises:
            InvalidJobSpecError: with every fault.
            JobDiffersError: the id is taken by another configuration.
            TooManyJobsError: the prefix has as many jobs as it may.
        """
        spec = resolve(draft, f"{draft.get('job_id_prefix', '')}-{secrets.token_hex(4)}")
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

    async def next_trial(self, job_id: str, request_id: str, *, resume: bool = False) -> tuple[Trial, str]:
        """Dispatches the next trial of a job; says why this batch size. A known request gets its trial again.

        With `resume` a trial that was preempted or lost is taken back then: its launch goes on from a checkpoint.
        Without it nothing changes, for a repetition may come late.

        Raises:
            JobNotFoundError: there is no such job.
            NoTrialToResumeError: no trial of the job was dispatched for the request that is to go on.
            NoBatchSizeConvergedError: the job has no batch size left.
            InvalidRequestError: the request id is not one, or missing where it is needed.
        """
        if fault := _request_fault(request_id, resume=resume):
            raise InvalidRequestError(Violation("request_id", fault))
        async with self._store.transaction(job_id) as tx:
            job = job_of(tx, job_id)
            if request_id and (known := await tx.trial_of_request(request_id)):
                return await self._again(tx, job, known, resume=resume)
            if resume:
                raise NoTrialToResumeError(job_id, request_id)
            job = await self._lifecycle.free_slot(tx, job)
            number = job.num_trials + 1
            choice = POLICIES[job.spec.policy].next(job.spec, job.search, number, generator(job.spec, number))
            if isinstance(choice, Exhausted):
                search = job.search
                raise NoBatchSizeConvergedError(job_id, search.pruning_round, crashed(search), untried(search))
            now = self._clock()
            trial = Trial(
                job_id,
                number,
                choice.batch_size,
                choice.type,
                job.search.pruning_round,
                now,
                request_id or None,
                lease_expire_time=job.spec.lease_from(now),
            )
            tx.save_job(replace(job, num_trials=number, search=observe(job, Dispatched(trial))))
            tx.save_trial(trial)
            self._tell(tx, TrialDispatched(trial, choice.reason))
            return trial, choice.reason

    async def report(self, report: Report) -> Decision:
        """Takes one epoch's measurement and says whether to go on.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidResultError: the measurement makes no sense; nothing was changed.
        """
        async with self._store.transaction(report.trial.job_id) as tx:
            found = running_trial_of(tx, report.trial) or await self._find(tx, report.trial)
            if isinstance(found, Decision):
                return found
            job, trial = found
            measured = checked(report, job.spec, trial.last, self._clock())
            if trial.lost:
                job, trial = self._lifecycle.revive(tx, job, trial)
            if report.monitor not in ("", trial.monitor.kind):
                job, trial = self._lifecycle.monitor(tx, job, trial, report.monitor)
            return self._take(tx, job, trial, measured)

    async def heartbeat(self, key: TrialKey) -> Decision:
        """Renews a trial's lease and says whether to go on.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            found = await self._find(tx, key)
            if isinstance(found, Decision):
                return found
            job, trial = found
            if trial.lost:
                job, _ = self._lifecycle.revive(tx, job, trial)
                # The bound may have fallen below its cost while nobody knew that it runs.
                self._lifecycle.stop_dearer(tx, job)
                job, trial = await trial_of(tx, key)
            if trial.running:
                tx.renew_lease(trial.renewed(trial.last, job.spec.lease_from(self._clock())))
            return decision_in(job, trial)

    async def end_trial(self, key: TrialKey, reason: EndReason | None) -> Trial:
        """Notes that a trainer is gone; a trial that has been decided, or ended before, is left as it is.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: the reason is not a trainer's to give.
        """
        if reason is None or reason not in SAID_BY_TRAINER:
            fault = "is not a trainer's to give; use END_REASON_COMPLETED, _ERROR, _OUT_OF_MEMORY or _PREEMPTED"
            raise InvalidRequestError(Violation("reason", fault))
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await trial_of(tx, key)
            if trial.lost:
                job, trial = self._lifecycle.revive(tx, job, trial)
            return self._lifecycle.fail(tx, job, trial, reason)[1] if trial.running else trial

    async def expire_leases(self) -> None:
        """Gives up every trial whose lease has run out, many at a time so that they share commits."""
        expired = self._store.expired_leases(self._clock())
        for start in range(0, len(expired), _GIVEN_UP_TOGETHER):
            together = (self._give_up(key) for key in expired[start : start + _GIVEN_UP_TOGETHER])
            for failure in await asyncio.gather(*together, return_exceptions=True):
                if failure is not None:
                    raise failure

    async def prune(self) -> None:
        """Drops the measurements that are older than they are to be kept, if any are to go."""
        days = self._limits.keep_measurements_days
        if days:
            await self._store.prune(self._clock() - timedelta(days=days))

    async def stop_of(self, key: TrialKey) -> Decision:
        """Waits until a trial has ended, however it did, and returns what its trainer is to be told."""
        with self._store.subscribe(key.job_id, key.trial_number) as changes:
            while True:
                async with self._store.transaction(key.job_id) as tx:
                    found = await self._find(tx, key)
                if isinstance(found, Decision):
                    return found
                await changes.wait()

    async def _again(self, tx: Transaction, job: Job, trial: Trial, *, resume: bool) -> tuple[Trial, str]:
        """The trial of a request that was asked before."""
        if not resume:
            return priced_in(job, trial), f"this request was given trial {trial.number} before"
        if trial.running:
            trial = trial.renewed(trial.last, job.spec.lease_from(self._clock()))
            tx.renew_lease(trial)
        if not trial.resumable:
            return priced_in(job, trial), _resumed(trial)
        job = await self._lifecycle.free_slot(tx, job)
        job, _ = self._lifecycle.revive(tx, job, trial)
        # The bound may have fallen below its cost meanwhile.
        self._lifecycle.stop_dearer(tx, job)
        job, trial = await trial_of(tx, trial.key)
        return priced_in(job, trial), _resumed(trial)

    async def _give_up(self, key: TrialKey) -> None:
        async with self._store.transaction(key.job_id) as tx:
            trial = await tx.trial(key.trial_number) if tx.job else None
            if tx.job and trial and trial.lease_expired(self._clock()):
                self._lifecycle.fail(tx, tx.job, trial, EndReason.LOST)

    async def _find(self, tx: Transaction, key: TrialKey) -> tuple[Job, Trial] | Decision:
        """A trial that runs or is lost, with its job; or what the trainer of any other is told: to stop."""
        try:
            job, trial = await trial_of(tx, key)
        except (JobNotFoundError, TrialNotFoundError):
            if not await self._store.was_running_when_deleted(key):
                raise
        else:
            return (job, trial) if trial.running or trial.lost else decision_in(job, trial)
        said = (
            f"stop: job {key.job_id!r} was deleted; if that was meant, launch it no more: it would be registered anew"
        )
        return Decision(True, False, False, said)

    def _take(self, tx: Transaction, job: Job, trial: Trial, measured: Measurement) -> Decision:
        verdict = judge(job.spec, job.search.min_cost, measured)
        before = trial.last
        repeated = before is not None and before.repeats(measured)
        trial = trial.renewed(measured, job.spec.lease_from(measured.report_time))
        if repeated:
            tx.renew_lease(trial)
        else:
            tx.add_measurement(trial)
            if measured.epoch > self._limits.max_epochs_kept:
                tx.forget_measurements(trial, measured.epoch - self._limits.max_epochs_kept)
            if self._observer.wants_reports:
                self._tell(tx, _epoch_reported(job, trial, before, measured))
            job = self._lifecycle.measured(tx, job, trial)
        if verdict.end_reason is not None:
            self._lifecycle.stop_dearer(tx, self._lifecycle.succeed(tx, job, trial, verdict))
        return with_monitor(trial, answer(job.spec, measured, verdict))

    def _tell(self, tx: Transaction, event: Event) -> None:
        tx.after_commit(self._observer.prepare(event))


def _epoch_reported(job: Job, trial: Trial, before: Measurement | None, measured: Measurement) -> EpochReported:
    seconds = measured.time_seconds - (before.time_seconds if before else 0.0)
    joules = measured.energy_joules - (before.energy_joules if before else 0.0)
    # The cost is linear: the difference of two costs is the cost of the differences, which rounding cannot make
    # negative.
    return EpochReported(trial, seconds, joules, cost(job.spec, joules, seconds))


def _resumed(trial: Trial) -> str:
    """Whether the trial of a launch that resumes goes on, and after what; or why it does not."""
    after = f"after epoch {trial.last.epoch}, the last that it reported" if trial.last else "from its first epoch"
    if trial.running:
        return f"trial {trial.number} goes on {after}"
    why = "its trainer ended it" if trial.status is TrialStatus.FAILED else "it was decided meanwhile"
    reason = trial.end_reason.value.lower().replace("_", " ") if trial.end_reason else "no reason"
    return f"trial {trial.number} does not go on: {why} ({reason})"


def _request_fault(request_id: str, *, resume: bool) -> str | None:
    if resume and not request_id:
        return "is empty; pass that of the launch whose trial is to go on"
    return identifier_fault(request_id)
