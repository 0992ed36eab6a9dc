"""Ends and revives trials and updates their job, within a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from wattwise_server.clock import Clock
from wattwise_server.domain import (
    EndReason,
    EventKind,
    Job,
    JobEvent,
    MonitorKinds,
    PruningGtsRole,
    Trial,
    TrialStatus,
    TrialWarning,
    undecided,
)
from wattwise_server.observability.events import (
    JobDeleted,
    MonitorsDiffer,
    Observer,
    TrialEnded,
    TrialRevived,
    TrialWarned,
)
from wattwise_server.policy import history
from wattwise_server.policy.base import (
    Banned,
    Decided,
    Dispatched,
    Event,
    Failed,
    Readmitted,
    Reported,
    Revived,
    Unbanned,
)
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import Verdict, judge
from wattwise_server.store.base import Store, Transaction
from wattwise_server.usecases.changes import with_change_warnings
from wattwise_server.usecases.lookup import bound_of, is_best_known, with_current_cost
from wattwise_server.usecases.monitors import monitor_warning, with_monitor
from wattwise_server.usecases.publishing import Publisher
from wattwise_server.usecases.retries import retried
from wattwise_server.usecases.trial_warnings import (
    LEAST_EPOCHS_TO_MOVE_AWAY,
    is_cheapest,
    is_perfect_at_once,
    of_cheap_delivery,
    of_missed_target,
    of_perfect_delivery,
    with_job_warnings,
    with_warnings,
    without_contradicted,
    without_warnings_of,
)

_AT_ONCE = 32
"""Trials that are compared with a bound that has fallen, and perhaps ended, in one step: some ten milliseconds."""


class Lifecycle:
    """Ends and revives trials, and publishes events."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        self._clock = clock
        self._publisher = Publisher(clock, observer)
        # By job, the running trials that `stop_others` compares with the bound.
        self._unchecked: dict[str, Sequence[int]] = {}

    async def stop_over_bound(self, tx: Transaction, job: Job) -> None:
        """Ends every running trial whose newest cost exceeds the bound, which may just have fallen.

        Of many only the first: the caller ends the others with `stop_others` after its transaction.
        """
        numbers = [trial.number for trial in tx.running()]
        await self._stop(tx, job, numbers[:_AT_ONCE])
        if others := numbers[_AT_ONCE:]:
            self._unchecked[job.spec.job_id] = others

    async def stop_others(self, store: Store, job_id: str) -> None:
        """Goes on with `stop_over_bound` in transactions of a few trials, with other calls in between."""
        numbers = self._unchecked.pop(job_id, None)
        while numbers:
            piece, numbers = numbers[:_AT_ONCE], numbers[_AT_ONCE:]
            # A transaction that changes nothing waits for nothing.
            await asyncio.sleep(0)  # pragma: no mutate: or waits longer
            await self._stop_piece(store, job_id, piece)

    @retried
    async def _stop_piece(self, store: Store, job_id: str, numbers: Sequence[int]) -> None:
        async with store.transaction(job_id) as tx:
            if tx.job is not None:
                await self._stop(tx, tx.job, numbers)

    async def _stop(self, tx: Transaction, job: Job, numbers: Sequence[int]) -> None:
        for number in numbers:
            trial = await tx.trial(number)
            if trial is None or not trial.running or trial.last is None:
                continue
            verdict = judge(job.spec, bound_of(job, trial), trial.last)
            if verdict.end_reason is EndReason.COST_BOUND:
                job = self.decide(tx, job, trial, verdict)

    def observe_report(self, tx: Transaction, job: Job, trial: Trial) -> Job:
        """Lets a policy that watches epochs observe a report; returns the job."""
        if not POLICIES[job.spec.policy].watches_epochs:
            return job
        job = after(job, Reported(trial))
        tx.add_event(JobEvent(job.num_events, EventKind.REPORTED, trial.batch_size, trial))
        tx.save_job(job)
        return job

    def decide(
        self, tx: Transaction, job: Job, trial: Trial, verdict: Verdict, end_time: datetime | None = None
    ) -> Job:
        """Ends a decided trial, now unless there is an end time; returns its job."""
        place = None if trial.doubtful else job.num_observations + 1
        trial = self._ended(job, trial, TrialStatus.DECIDED, verdict.end_reason, end_time)._replace(
            cost=verdict.cost,
            cost_bound=verdict.bound,
            converged=verdict.converged,
            target_reached=verdict.target_reached,
            observation=place,
            best_known=is_best_known(job),
        )
        return self._save(tx, replace(job, num_observations=place or job.num_observations), trial, Decided(trial))[0]

    def fail(
        self, tx: Transaction, job: Job, trial: Trial, reason: EndReason, end_time: datetime | None = None
    ) -> tuple[Job, Trial]:
        """Fails a trial that its trainer ended, or that was lost; now unless there is an end time.

        Without a result there is no miss: a trial that stopped early then only completed.
        """
        reason = EndReason.COMPLETED if reason is EndReason.STOPPED_EARLY else reason
        trial = self._ended(job, with_current_cost(job, trial), undecided(reason), reason, end_time)
        return self._save(tx, job, trial, Failed(trial))

    def revive(self, tx: Transaction, job: Job, trial: Trial) -> tuple[Job, Trial]:
        """Revives a lost trial that reports again, or one that resumes from a checkpoint."""
        # Its row will tell the newest end only.
        tx.add_event(JobEvent(trial.end_event or 0, EventKind.FAILED, trial.batch_size, trial))
        job = after(job, Revived(trial))
        tx.add_event(JobEvent(job.num_events, EventKind.REVIVED, trial.batch_size, trial))
        lost_slot = trial.role is PruningGtsRole.EXPLORATION and job.search.exploring != trial.number
        revived = trial.renew(trial.last, job.spec.lease_expiry(self._clock()))
        if lost_slot and trial.policy_role:
            revived = revived._replace(policy_role=trial.policy_role._replace(role=PruningGtsRole.CONCURRENT))
        tx.save_job(job)
        tx.save_trial(revived)
        self._publisher.publish(tx, TrialRevived(revived))
        return job, revived

    def monitor(self, tx: Transaction, job: Job, trial: Trial, reported: MonitorKinds) -> tuple[Job, Trial]:
        """Keeps what measures a trial, if a result names something new."""
        job_now, trial_now = with_monitor(job, trial, reported)
        if trial_now == trial:
            return job, trial
        if trial_now.other_monitors:
            job_now = with_job_warnings(job_now, trial_now, [monitor_warning(trial_now)])
            self._publisher.publish(tx, MonitorsDiffer(trial_now))
        if job_now != job:
            tx.save_job(job_now)
        tx.save_trial(trial_now)
        return job_now, trial_now

    def warn(self, tx: Transaction, job: Job, trial: Trial, found: Iterable[TrialWarning]) -> tuple[Job, Trial]:
        """Keeps the warnings that are new to a trial."""
        job, trial, new = with_warnings(job, trial, found)
        if new:
            tx.save_job(job)
            tx.save_trial(trial)
            for warning in new:
                self._publisher.publish(tx, TrialWarned(trial, warning))
        return job, trial

    async def warn_of_miss(self, tx: Transaction, job: Job, trial: Trial, *new: float) -> tuple[Job, Trial]:
        """Warns if the metric of a trial that missed the target moved away from it.

        Trials that a falling bound stops are not checked: another trial has reached the target.

        Args:
            tx: The transaction.
            job: The job.
            trial: The trial, with its last measurement.
            new: Metrics of the epochs that this transaction saved.
        """
        if trial.last is None or trial.last.epoch < LEAST_EPOCHS_TO_MOVE_AWAY:
            return job, trial
        span = await tx.metric_span(trial.number)
        for metric in new:
            span = span.add(metric)
        return self.warn(tx, job, trial, of_missed_target(job.spec, trial, span, trial.last))

    async def warn_of_cheap_delivery(
        self, tx: Transaction, job: Job, trial: Trial, verdict: Verdict
    ) -> tuple[Job, Trial]:
        """Warns of a trial that reached the target far below the usual cost; a second one of its batch size counts."""
        if not job.counts(trial) or trial.last is None or not verdict.converged:
            return job, trial
        found = of_cheap_delivery(job, trial, verdict.cost)
        if found is None and is_perfect_at_once(job.spec, trial.last) and is_cheapest(job, verdict.cost):
            found = of_perfect_delivery(job, trial, await tx.events())
        if found is None:
            return job, trial
        doubtful = next((known for known in job.warnings if known.reason is found.reason), None)
        earlier = await tx.trial(doubtful.trial_number) if doubtful else None
        if earlier is not None and earlier.batch_size == trial.batch_size:
            return without_warnings_of(job, earlier, found.reason), trial
        return self.warn(tx, job, trial, [found])

    def delete(self, tx: Transaction, job: Job) -> Sequence[Trial]:
        """Deletes a job; returns its running trials, which will be stopped."""
        stopped = [self._ended(job, trial, TrialStatus.DECIDED, EndReason.JOB_DELETED) for trial in tx.delete_job()]
        for trial in stopped:
            self._publisher.publish(tx, TrialEnded(trial))
        self._publisher.publish(tx, JobDeleted(job, len(stopped)))
        return stopped

    async def free_slot(self, tx: Transaction, job: Job) -> Job:
        """Frees the exploration slot if its trial's lease has expired."""
        holder = await tx.trial(job.search.exploring) if job.search.exploring is not None else None
        if holder is not None and tx.lease_expired(holder):
            return self.fail(tx, job, holder, EndReason.LOST)[0]
        return job

    def _save(self, tx: Transaction, job: Job, trial: Trial, event: Event) -> tuple[Job, Trial]:
        before, job = job, with_change_warnings(without_contradicted(after(job, event), trial))
        tx.save_job(job)
        tx.save_trial(trial)
        self._publisher.publish(tx, TrialEnded(trial))
        self._publisher.publish_search(tx, before, job)
        return job, trial

    def _ended(
        self,
        job: Job,
        trial: Trial,
        status: TrialStatus,
        reason: EndReason | None,
        end_time: datetime | None = None,
    ) -> Trial:
        end_time = self._clock() if end_time is None else end_time
        if trial.start_time is not None:
            # The system clock may have been set back while no server ran.
            end_time = max(end_time, trial.start_time)
        place = job.num_events + 1
        return trial._replace(
            status=status,
            end_reason=reason,
            end_time=end_time,
            lease_expire_time=None,
            heartbeat_interval=None,
            end_event=place,
        )


def after(job: Job, event: Event) -> Job:
    """The job after its next event, which changes its search unless it is one of a trial that does not count."""
    job = replace(job, num_events=job.num_events + 1)
    if not isinstance(event, Banned | Unbanned | Readmitted) and not job.counts(event.trial):
        # An import may be excluded from its start.
        dispatched = isinstance(event, Dispatched)
        return replace(job, search=replace(job.search, num_trials=event.trial.number)) if dispatched else job
    return replace(job, search=history.observe(POLICIES[job.spec.policy], job.spec, job.search, event))
