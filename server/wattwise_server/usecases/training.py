"""The use cases of trainers: load, decide, record, in one transaction. The rules are in `policy/`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from wattwise.rules import MAX_PRIOR_JOBS, TRAINER_END_REASONS, EndReason, JobDraft, ResolvedJob, identifier_fault

from wattwise_server.config import Limits
from wattwise_server.domain import Decision, Job, Launch, Trial, TrialId, UnknownEndReason
from wattwise_server.errors import (
    InvalidRequestError,
    NoBatchSizeLeftError,
    TooManyTrialsError,
    TrialDeletedError,
    Violation,
)
from wattwise_server.events import Event, JobRegistered, PriorDiffers, PriorUnused, TrialDispatched
from wattwise_server.observability.call import caller_token
from wattwise_server.policy.base import Exhausted, Prior
from wattwise_server.policy.decisions import decision_for
from wattwise_server.policy.failures import ruled_out
from wattwise_server.policy.history import prior_of
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.requests import choice_on_request
from wattwise_server.policy.search import job_after
from wattwise_server.policy.stopping import bound_of, stopped_early, with_current_cost
from wattwise_server.policy.thompson import generator
from wattwise_server.store.base import TrialList
from wattwise_server.store.transactions import Store, Transaction
from wattwise_server.usecases.finding import (
    check_not_deleted,
    find_job,
    find_launch,
    find_running_trial,
    find_trial,
    job_id_faults,
)
from wattwise_server.usecases.job_spec import check_identical, resolve, set_fields
from wattwise_server.usecases.labels import NO_LABELS, label_faults
from wattwise_server.usecases.lifecycle import (
    Progress,
    conclude,
    fail,
    record,
    revive,
    warn,
    with_miss_warning,
)
from wattwise_server.usecases.report import Report, apply_report
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import known_reason, of_unconnected_ranks, of_unknown_end

_EXPIRED_PER_BATCH = 100
"""Few enough that a trainer's call does not wait long behind them."""

_TRIALS_OF_A_PRIOR = 1000
"""Only a prior job's newest trials are read: far more than the four for each batch size that count."""

_USUAL_LIMITS = Limits()


class Training:
    """The calls of trainers, and what happens to trials over time. Every method may raise `StorageUnavailableError`."""

    def __init__(self, store: Store, limits: Limits = _USUAL_LIMITS) -> None:
        self._store = store
        self._limits = limits

    @retried
    async def register(self, draft: JobDraft, reach: str = "") -> tuple[Job, bool]:
        """Creates a job, or confirms that it exists; returns whether it was created.

        Args:
            draft: The fields of the job that the client set.
            reach: The job ids that the caller may access start with this; the limit of jobs counts those. Empty: it
                may access every job, and the limit counts those that start with the new job's prefix.

        Raises:
            InvalidJobSpecError: with every fault.
            JobDiffersError: the id has another configuration.
            TooManyJobsError: the prefix has reached its limit of jobs.
        """
        job_id = draft.get("job_id", "")
        # Read before the job's own transaction: no call ever locks two jobs.
        found = await self._prior_jobs(job_id, draft.get("prior_job_ids", ()))
        priors = [(prior, await self._prior(prior)) for prior in found.values() if prior is not None]
        async with self._store.transaction(job_id) as tx:
            if tx.job is not None:
                check_identical(tx.job, draft)
                return tx.job, False
            spec = resolve(draft, unknown_jobs=[prior_id for prior_id, prior in found.items() if prior is None])
            if limit := self._limits.max_jobs_per_prefix:
                await tx.make_room(reach or spec.job_id_prefix, limit)
            search = POLICIES[spec.policy].register(spec, [evidence for _, evidence in priors])
            notes = search.notes if priors else ""
            job = Job(spec, search, self._store.clock(), first_notes=notes, set_fields=set_fields(draft))
            tx.record(job, JobRegistered(spec), *_prior_warnings(spec, priors))
            return job, True

    async def _prior_jobs(self, job_id: str, listed: Sequence[str]) -> Mapping[str, Job | None]:
        """Returns the prior jobs of a job by id, None for one that does not exist; empty if the job exists already."""
        if not listed or await self._job(job_id) is not None:
            return {}
        return {prior_id: await self._job(prior_id) for prior_id in listed[:MAX_PRIOR_JOBS] if prior_id != job_id}

    async def _prior(self, job: Job) -> Prior:
        """Returns what a prior job tells about a new one."""
        beliefs = POLICIES[job.spec.policy].belief(job.spec, job.search)
        place = max(0, job.num_trials - _TRIALS_OF_A_PRIOR)
        listed = await self._store.reads.trials(TrialList(job.spec.job_id), (place,), _TRIALS_OF_A_PRIOR)
        return prior_of(beliefs, [each.trial for each in listed if job.counts(each.trial)])

    async def _job(self, job_id: str) -> Job | None:
        async with self._store.transaction(job_id) as tx:
            return tx.job

    @retried
    async def next_trial(
        self,
        job_id: str,
        launch_id: str,
        *,
        resume: bool = False,
        unconnected_ranks: int = 0,  # pragma: no mutate: one process that asks is as usual as none
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        """Dispatches a job's next trial. A known launch gets its trial again.

        With `resume`, a preempted or lost trial is revived: its launch resumes from a checkpoint. Without it a repeated
        request changes nothing, because it may be a late retry.

        Raises:
            JobNotFoundError: there is no such job.
            TrialDeletedError: the launch's trial was deleted with its job; no retry dispatches a second one.
            TrialNotFoundError: `resume`, but the launch has no trial.
            NoBatchSizeLeftError: no batch size is left.
            InvalidRequestError: an id is empty or invalid, a label is invalid, or a number is negative.
        """
        faults = job_id_faults(job_id)
        if fault := _launch_id_fault(launch_id):
            faults.append(Violation("launch_id", fault))
        if unconnected_ranks < 0:
            faults.append(Violation("unconnected_ranks", f"is {unconnected_ranks}; use the number of processes, or 0"))
        faults += label_faults(labels)
        if faults:
            raise InvalidRequestError(*faults)
        async with self._store.transaction(job_id) as tx:
            known: Trial | None
            if resume:
                _, known = await find_launch(tx, TrialId(job_id, launch_id), to_resume=True)
            elif (known := await tx.trial_of_launch(launch_id)) is None:
                await check_not_deleted(tx, job_id, launch_id)
            job = find_job(tx, job_id, to_register=True)
            if known is not None:
                return await self._repeat_dispatch(tx, job, known, resume=resume)
            return await self._dispatch(tx, job, launch_id, unconnected_ranks, labels)

    async def _dispatch(
        self, tx: Transaction, job: Job, launch_id: str, unconnected_ranks: int, labels: Mapping[str, str]
    ) -> Trial:
        limit = self._limits.max_running_trials
        if limit and tx.num_running >= limit:
            raise TooManyTrialsError(job.spec.job_id, limit)
        job = await self._free_slot(tx, job)
        number = job.num_trials + 1
        policy = POLICIES[job.spec.policy]
        choice = choice_on_request(policy, job, number) or policy.next(
            job.spec, job.search, number, generator(job.spec, number)
        )
        if isinstance(choice, Exhausted):
            causes = ruled_out(job.search)
            raise NoBatchSizeLeftError(job.spec.job_id, causes)
        now = self._store.clock()
        trial = Trial(
            job.spec.job_id,
            number,
            choice.batch_size,
            choice.origin,
            choice.policy_role,
            now,
            launch_id,
            lease_expire_time=job.spec.lease_expiry(now),
            dispatch_event=job.num_search_events + 1,
            launch=Launch(choice.reason, tuple(sorted(labels.items())), caller_token()),
        )
        # A trial of the default batch size is a baseline, also if the policy chose it.
        served = trial.batch_size == job.spec.default_batch_size
        job = replace(job, baseline_requested=job.baseline_requested and not served)
        event = TrialDispatched(trial)
        dispatched = Progress(job_after(job, event), trial, (event,))
        progress = warn(dispatched, of_unconnected_ranks(trial, unconnected_ranks))
        record(tx, progress)
        return with_current_cost(progress.job, progress.trial)

    async def _free_slot(self, tx: Transaction, job: Job) -> Job:
        """Frees the exploration slot if its trial's lease has expired."""
        holder = await tx.trial(job.search.exploring) if job.search.exploring is not None else None
        if holder is None or not tx.lease_expired(holder):
            return job
        progress = fail(Progress(job, holder), EndReason.LOST, self._store.clock())
        record(tx, progress)
        return progress.job

    async def _repeat_dispatch(self, tx: Transaction, job: Job, trial: Trial, *, resume: bool) -> Trial:
        if resume and trial.running:
            trial = trial.renew(trial.last, job.spec.lease_expiry(self._store.clock()))
            tx.renew_lease(trial)
        if resume and trial.resumable:
            job, trial = await self._revive(tx, await self._free_slot(tx, job), trial)
        return with_current_cost(job, trial)

    async def _revive(self, tx: Transaction, job: Job, trial: Trial) -> tuple[Job, Trial]:
        progress = revive(Progress(job, trial), self._store.clock())
        record(tx, progress)
        return await find_trial(tx, trial.key)

    @retried
    async def report(self, report: Report) -> Decision:
        """Saves one epoch's measurement; decides whether training continues.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidResultError: the measurement is invalid; nothing was changed.
        """
        async with self._store.transaction(report.trial.job_id) as tx:
            found = find_running_trial(tx, report.trial) or await _find_live_trial(tx, report.trial)
            if isinstance(found, Decision):
                return found
            now = self._store.clock()
            progress, measurement, verdict, repeated = apply_report(*found, report, now)
            if verdict.end_reason is not None:
                progress = await conclude(tx, progress, verdict, now, new=() if repeated else (measurement.metric,))
            record(tx, progress)
            if measurement.epoch > self._limits.max_epochs_kept:  # pragma: no mutate: or deletes nothing once
                tx.keep_measurements(progress.trial, self._limits.max_epochs_kept)
            if verdict.end_reason is not None:
                return decision_for(progress.job, progress.trial)
            if repeated:
                tx.renew_lease(progress.trial)
            return decision_for(progress.job, progress.trial, verdict)

    @retried
    async def heartbeat(self, key: TrialId) -> Decision:
        """Renews a trial's lease; decides whether training continues.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            found = await _find_live_trial(tx, key)
            if isinstance(found, Decision):
                return found
            job, trial = found
            if trial.lost:
                job, trial = await self._revive(tx, job, trial)
            if trial.running:
                tx.renew_lease(trial.renew(trial.last, job.spec.lease_expiry(self._store.clock())))
            return decision_for(job, trial)

    @retried
    async def lookup(self, job_id: str, launch_id: str) -> Trial:
        """Returns the trial of a launch; changes nothing.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            TrialDeletedError: it was deleted with its job.
            InvalidRequestError: an id is empty.
        """
        ids = {"job_id": job_id, "launch_id": launch_id}
        faults = [Violation(name, "is empty; use the ids of the launch") for name, value in ids.items() if not value]
        if faults:
            raise InvalidRequestError(*faults)
        async with self._store.transaction(job_id) as tx:
            return with_current_cost(*await find_launch(tx, TrialId(job_id, launch_id)))

    @retried
    async def end_trial(self, key: TrialId, reason: EndReason | UnknownEndReason | None) -> Trial:
        """Ends a trial for its trainer; a trial that has already ended is unchanged.

        A reason that only newer clients know counts as an error, with a warning.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: a trainer cannot give this reason.
        """
        stated, reason = reason, trainers_reason(reason)
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await find_trial(tx, key)
            now = self._store.clock()
            if not trial.running and not trial.lost:
                return trial
            progress = revive(Progress(job, trial), now) if trial.lost else Progress(job, trial)
            progress = warn(progress, of_unknown_end(trial, stated))
            if reason is EndReason.STOPPED_EARLY and trial.last is not None:
                verdict = stopped_early(job.spec, bound_of(progress.job, trial), trial.last)
                progress = await conclude(tx, progress, verdict, now)
            else:
                if reason is EndReason.COMPLETED:
                    progress = await with_miss_warning(tx, progress)
                progress = fail(progress, reason, now)
            record(tx, progress)
            return progress.trial

    async def expire_leases(self) -> None:
        """Fails every trial whose lease has expired, in batches that share commits."""
        expired, failures = await self._store.expired_leases(), list[BaseException]()
        while expired:
            together, expired = expired[:_EXPIRED_PER_BATCH], expired[_EXPIRED_PER_BATCH:]
            outcomes = await asyncio.gather(*map(self._expire_lease, together), return_exceptions=True)
            failures += (outcome for outcome in outcomes if outcome is not None)
        if failures:
            # The others have been given up; these are found again.
            raise failures[0]

    async def prune(self) -> None:
        """Deletes measurements, and entries of the history, that are older than the configured numbers of days."""
        if days := self._limits.keep_measurements_days:
            await self._store.prune(self._store.clock() - timedelta(days=days))
        if days := self._limits.keep_events_days:
            await self._store.forget_events(self._store.clock() - timedelta(days=days))

    async def wait_for_stop(self, key: TrialId) -> Decision:
        """Waits until a trial has ended; returns the answer to its trainer."""
        found = key if key.trial_number else await self._live(key)
        if isinstance(found, Decision):
            return found
        with self._store.subscribe(found.job_id, found.trial_number) as changes:
            # It may have ended before the subscription.
            while not isinstance(found := await self._live(found), Decision):
                await changes.wait()
            return found

    @retried
    async def _live(self, key: TrialId) -> TrialId | Decision:
        """Returns the whole key of a live trial; for any other trial the answer to its trainer."""
        async with self._store.transaction(key.job_id) as tx:
            found = await _find_live_trial(tx, key)
            if isinstance(found, Decision):
                return found
            _, trial = found
            return trial.key

    @retried
    async def _expire_lease(self, key: TrialId) -> None:
        async with self._store.transaction(key.job_id) as tx:
            trial = await tx.trial(key.trial_number)
            if tx.job and trial and tx.lease_expired(trial):
                progress = fail(Progress(tx.job, trial), EndReason.LOST, self._store.clock())
                record(tx, progress)


async def _find_live_trial(tx: Transaction, key: TrialId) -> tuple[Job, Trial] | Decision:
    """Finds a running or lost trial with its job; of any other trial the answer to its trainer, which is to stop."""
    try:
        job, trial = await find_trial(tx, key)
    except TrialDeletedError:
        pass
    else:
        return (job, trial) if trial.running or trial.lost else decision_for(job, trial)
    message = f"stop: job {key.job_id!r} was deleted; do not launch it again, which would register a new job"
    return Decision(True, False, False, message, EndReason.JOB_DELETED)


def _prior_warnings(spec: ResolvedJob, priors: Iterable[tuple[Job, Prior]]) -> Iterable[Event]:
    """Yields what makes the prior jobs of a job misleading or useless; both may be intended."""
    for prior, evidence in priors:
        target = spec.target_metric, spec.higher_is_better
        if target != (prior.spec.target_metric, prior.spec.higher_is_better):
            yield PriorDiffers(spec, prior.spec)
        tried = evidence.epochs.keys() | evidence.missed.keys()
        if not tried:
            yield PriorUnused(spec, prior.spec, "none of its trials was decided")
        elif tried.isdisjoint(spec.batch_sizes):
            yield PriorUnused(spec, prior.spec, "no batch size in common")


def trainers_reason(stated: EndReason | UnknownEndReason | None) -> EndReason:
    """Returns the reason for which a trainer ends its trial, as it is stored.

    Raises:
        InvalidRequestError: a trainer cannot give this reason.
    """
    known = known_reason(stated)
    if known is None or known not in TRAINER_END_REASONS:
        what = "reserved for the server" if known else "not set"
        names = " or ".join(f"END_REASON_{each.value}" for each in TRAINER_END_REASONS)
        raise InvalidRequestError(Violation("end_reason", f"is {what}; use {names}"))
    return known


def _launch_id_fault(launch_id: str) -> str | None:
    if not launch_id:
        return "is empty; use a new UUID for each launch or, to resume, the launch_id of the launch that is resumed"
    return identifier_fault(launch_id)
