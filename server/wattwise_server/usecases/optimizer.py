"""The use cases of trainers: load, decide, save, in one transaction. The rules are in `policy/`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from wattwise_server.clock import Clock
from wattwise_server.config import Limits
from wattwise_server.domain import (
    TRAINER_END_REASONS,
    Decision,
    EndReason,
    Job,
    Launch,
    Measurement,
    Trial,
    TrialId,
    UnknownEndReason,
    identifier_fault,
)
from wattwise_server.errors import (
    InvalidRequestError,
    NoBatchSizeLeftError,
    TooManyTrialsError,
    TrialDeletedError,
    Violation,
)
from wattwise_server.observability.events import (
    NO_OBSERVERS,
    JobRegistered,
    Observer,
    PriorDiffers,
    PriorUnused,
    TrialDispatched,
)
from wattwise_server.policy.base import Dispatched, Exhausted, Prior
from wattwise_server.policy.failures import ruled_out
from wattwise_server.policy.history import prior_of
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.requests import requested
from wattwise_server.policy.stopping import decide, judge, stopped_early, why_unbounded
from wattwise_server.policy.thompson import generator
from wattwise_server.store.base import Store, Transaction, TrialList
from wattwise_server.usecases.job_spec import MAX_PRIOR_JOBS, JobDraft, check_identical, resolve, set_fields
from wattwise_server.usecases.labels import NO_LABELS, label_faults
from wattwise_server.usecases.lifecycle import Lifecycle, after
from wattwise_server.usecases.lookup import (
    bound_of,
    check_not_deleted,
    decision_for,
    find_job,
    find_launch,
    find_running_trial,
    find_trial,
    is_best_known,
    job_id_faults,
    with_current_cost,
    with_notes,
)
from wattwise_server.usecases.publishing import Publisher, caller_token
from wattwise_server.usecases.report import Report, epoch_reported, to_measurement
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import (
    in_report,
    known_reason,
    of_power,
    of_unconnected_ranks,
    of_unknown_end,
)

_EXPIRED_PER_BATCH = 100
"""Few enough that a trainer's call does not wait long behind them."""

_TRIALS_OF_A_PRIOR = 1000
"""Only a prior job's newest trials are read: far more than the four for each batch size that count."""

_USUAL_LIMITS = Limits()


class Optimizer:
    """The calls of trainers, and what happens to trials over time. Every method may raise `StorageUnavailableError`."""

    def __init__(
        self, store: Store, clock: Clock, limits: Limits = _USUAL_LIMITS, observer: Observer = NO_OBSERVERS
    ) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._publisher = Publisher(clock, observer)
        self._lifecycle = Lifecycle(clock, observer)
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
            job = Job(spec, search, self._clock(), first_notes=notes, set_fields=set_fields(draft))
            tx.save_job(job)
            self._publisher.publish(tx, JobRegistered(job))
            for prior, evidence in priors:
                self._warn_of_prior(tx, job, prior, evidence)
            return job, True

    async def _prior_jobs(self, job_id: str, listed: Sequence[str]) -> Mapping[str, Job | None]:
        """The prior jobs of a job by id, None for one that does not exist; empty if the job exists already."""
        if not listed or await self._job(job_id) is not None:
            return {}
        return {prior_id: await self._job(prior_id) for prior_id in listed[:MAX_PRIOR_JOBS] if prior_id != job_id}

    async def _prior(self, job: Job) -> Prior:
        """What a prior job tells about a new one."""
        beliefs = POLICIES[job.spec.policy].belief(job.spec, job.search)
        after = max(0, job.num_trials - _TRIALS_OF_A_PRIOR)
        listed = await self._store.reads.trials(TrialList(job.spec.job_id), (after,), _TRIALS_OF_A_PRIOR)
        return prior_of(beliefs, [each.trial for each in listed if job.counts(each.trial)])

    def _warn_of_prior(self, tx: Transaction, job: Job, prior: Job, evidence: Prior) -> None:
        """Logs what makes a prior job misleading or useless; both may be intended."""
        spec = job.spec
        target = spec.target_metric, spec.higher_is_better
        if target != (prior.spec.target_metric, prior.spec.higher_is_better):
            self._publisher.publish(tx, PriorDiffers(job, prior))
        tried = evidence.epochs.keys() | evidence.missed.keys()
        if not tried:
            self._publisher.publish(tx, PriorUnused(job, prior, "none of its trials was decided"))
        elif tried.isdisjoint(spec.batch_sizes):
            self._publisher.publish(tx, PriorUnused(job, prior, "no batch size in common"))

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
            if resume:
                known: Trial | None = (await find_launch(tx, TrialId(job_id, launch_id), to_resume=True))[1]
            elif (known := await tx.trial_of_launch(launch_id)) is None:
                await check_not_deleted(tx, job_id, launch_id)
            job = find_job(tx, job_id, to_register=True)
            if known is not None:
                answer = await self._repeat_dispatch(tx, job, known, resume=resume)
            else:
                answer = await self._dispatch(tx, job, launch_id, unconnected_ranks, labels)
        await self._lifecycle.stop_others(self._store, job_id)
        return answer

    async def _dispatch(
        self, tx: Transaction, job: Job, launch_id: str, unconnected_ranks: int, labels: Mapping[str, str]
    ) -> Trial:
        limit = self._limits.max_running_trials
        if limit and tx.num_running >= limit:
            raise TooManyTrialsError(job.spec.job_id, limit)
        job = await self._lifecycle.free_slot(tx, job)
        number = job.num_trials + 1
        policy = POLICIES[job.spec.policy]
        choice = requested(policy, job, number) or policy.next(
            job.spec, job.search, number, generator(job.spec, number)
        )
        if isinstance(choice, Exhausted):
            causes = ruled_out(job.search)
            raise NoBatchSizeLeftError(job.spec.job_id, causes)
        now = self._clock()
        trial = Trial(
            job.spec.job_id,
            number,
            choice.batch_size,
            choice.origin,
            choice.policy_role,
            now,
            launch_id,
            lease_expire_time=job.spec.lease_expiry(now),
            dispatch_event=job.num_events + 1,
            launch=Launch(choice.reason, tuple(sorted(labels.items())), caller_token()),
        )
        # The default batch size is a baseline, whoever chose it.
        served = trial.batch_size == job.spec.default_batch_size
        job = replace(job, baseline_requested=job.baseline_requested and not served)
        job = after(job, Dispatched(trial))
        tx.save_job(job)
        tx.save_trial(trial)
        tx.add_launch(trial)
        self._publisher.publish(tx, TrialDispatched(trial, choice.reason))
        _, trial = self._lifecycle.warn(tx, job, trial, of_unconnected_ranks(trial, unconnected_ranks))
        return with_current_cost(job, trial)

    @retried
    async def report(self, report: Report) -> Decision:
        """Saves one epoch's measurement; decides whether training continues.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidResultError: the measurement is invalid; nothing was changed.
        """
        async with self._store.transaction(report.trial.job_id) as tx:
            found = find_running_trial(tx, report.trial) or await self._find_live_trial(tx, report.trial)
            if isinstance(found, Decision):
                return found
            job, trial = found
            measurement = to_measurement(report, job.spec, trial.last, self._clock())
            if trial.lost:
                job, trial = self._lifecycle.revive(tx, job, trial)
            if report.monitor and report.monitor.kinds and report.monitor != trial.monitor:
                job, trial = self._lifecycle.monitor(tx, job, trial, report.monitor)
            decision = await self._record(tx, job, trial, measurement)
        await self._lifecycle.stop_others(self._store, report.trial.job_id)
        return decision

    @retried
    async def heartbeat(self, key: TrialId) -> Decision:
        """Renews a trial's lease; decides whether training continues.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            found = await self._find_live_trial(tx, key)
            if isinstance(found, Decision):
                return found
            job, trial = found
            if trial.lost:
                job, _ = self._lifecycle.revive(tx, job, trial)
                # The bound may have fallen below its cost while it was lost.
                await self._lifecycle.stop_over_bound(tx, job)
                job, trial = await find_trial(tx, trial.key)
            if trial.running:
                tx.renew_lease(trial.renew(trial.last, job.spec.lease_expiry(self._clock())))
            decision = decision_for(job, trial)
        await self._lifecycle.stop_others(self._store, key.job_id)
        return decision

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
            if trial.lost:
                job, trial = self._lifecycle.revive(tx, job, trial)
            if not trial.running:
                return trial
            job, trial = self._lifecycle.warn(tx, job, trial, of_unknown_end(trial, stated))
            if reason in (EndReason.COMPLETED, EndReason.STOPPED_EARLY):
                job, trial = await self._lifecycle.warn_of_miss(tx, job, trial)
            if reason is EndReason.STOPPED_EARLY and trial.last is not None:
                verdict = stopped_early(job.spec, bound_of(job, trial), trial.last)
                self._lifecycle.decide(tx, job, trial, verdict)
                return await tx.trial(trial.number) or trial
            return self._lifecycle.fail(tx, job, trial, reason)[1]

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
            await self._store.prune(self._clock() - timedelta(days=days))
        if days := self._limits.keep_events_days:
            await self._store.forget_history(self._clock() - timedelta(days=days))

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
        """The whole key of a live trial; for any other trial the answer to its trainer."""
        async with self._store.transaction(key.job_id) as tx:
            found = await self._find_live_trial(tx, key)
            return found if isinstance(found, Decision) else found[1].key

    async def _repeat_dispatch(self, tx: Transaction, job: Job, trial: Trial, *, resume: bool) -> Trial:
        if resume and trial.running:
            trial = trial.renew(trial.last, job.spec.lease_expiry(self._clock()))
            tx.renew_lease(trial)
        if not resume or not trial.resumable:
            return with_current_cost(job, trial)
        job = await self._lifecycle.free_slot(tx, job)
        job, _ = self._lifecycle.revive(tx, job, trial)
        # The bound may have fallen below its cost since it ended.
        await self._lifecycle.stop_over_bound(tx, job)
        job, trial = await find_trial(tx, trial.key)
        return with_current_cost(job, trial)

    @retried
    async def _expire_lease(self, key: TrialId) -> None:
        async with self._store.transaction(key.job_id) as tx:
            trial = await tx.trial(key.trial_number)
            if tx.job and trial and tx.lease_expired(trial):
                self._lifecycle.fail(tx, tx.job, trial, EndReason.LOST)

    async def _find_live_trial(self, tx: Transaction, key: TrialId) -> tuple[Job, Trial] | Decision:
        """A running or lost trial with its job; for any other trial the answer to its trainer, which is to stop."""
        try:
            job, trial = await find_trial(tx, key)
        except TrialDeletedError:
            pass
        else:
            return (job, trial) if trial.running or trial.lost else decision_for(job, trial)
        message = f"stop: job {key.job_id!r} was deleted; do not launch it again, which would register a new job"
        return Decision(True, False, False, message, EndReason.JOB_DELETED)

    async def _record(self, tx: Transaction, job: Job, trial: Trial, measurement: Measurement) -> Decision:
        bound = bound_of(job, trial)
        unbounded = why_unbounded(trial, best_known=is_best_known(job))
        verdict = judge(job.spec, bound, measurement)
        before = trial.last
        repeated = before is not None and before.repeats(measurement)
        trial = trial.renew(measurement, job.spec.lease_expiry(measurement.report_time))
        if repeated:
            tx.renew_lease(trial)
        else:
            tx.add_measurement(trial)
            if measurement.epoch > self._limits.max_epochs_kept:  # pragma: no mutate: or deletes nothing once
                tx.keep_measurements(trial, self._limits.max_epochs_kept)
            if self._observer.wants_reports:
                self._publisher.publish(tx, epoch_reported(job, trial, before, measurement))
            job = self._lifecycle.observe_report(tx, job, trial)
            # In every other case nothing is found.
            if before is None or not 0 <= measurement.metric <= 1 or job.spec.target_metric > 1:  # pragma: no mutate
                found = in_report(job.spec, trial, before, measurement, reached=verdict.target_reached)
                job, trial = self._lifecycle.warn(tx, job, trial, found)
            if (excess := of_power(job.spec, trial, before, measurement)) is not None:
                job, trial = self._lifecycle.warn(tx, job, trial, [excess])
        if verdict.end_reason is not None:
            if not verdict.target_reached:
                new = () if repeated else (measurement.metric,)
                job, trial = await self._lifecycle.warn_of_miss(tx, job, trial, *new)
            job, trial = await self._lifecycle.warn_of_cheap_delivery(tx, job, trial, verdict)
            job = self._lifecycle.decide(tx, job, trial, verdict)
            await self._lifecycle.stop_over_bound(tx, job)
        return with_notes(trial, decide(job.spec, measurement, verdict, unbounded))


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
