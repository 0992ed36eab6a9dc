"""Ends and revives trials and updates their job, within a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattwise_server.clock import Clock
from wattwise_server.domain import EndReason, Job, MonitorKinds, Search, Trial, TrialStatus, TrialType
from wattwise_server.observability.events import Event as PublishedEvent
from wattwise_server.observability.events import JobDeleted, MonitorsDiffer, Observer, TrialEnded, TrialRevived
from wattwise_server.policy import history
from wattwise_server.policy.base import Event, Failed, Reported, Revived, Succeeded
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import Verdict, judge
from wattwise_server.store.base import Transaction
from wattwise_server.usecases.lookup import bound_of, is_best_known, with_current_cost
from wattwise_server.usecases.monitors import with_monitor


class Lifecycle:
    """Ends and revives trials, and publishes events."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        self._clock = clock
        self._observer = observer

    def stop_over_bound(self, tx: Transaction, job: Job) -> None:
        """Ends every running trial whose newest cost exceeds the bound, which may just have fallen."""
        for trial in tx.running():
            if trial.last is None:
                continue
            verdict = judge(job.spec, bound_of(job, trial.batch_size), trial.last)
            if verdict.end_reason is EndReason.COST_BOUND:
                job = self.succeed(tx, job, trial, verdict)

    def observe_report(self, tx: Transaction, job: Job, trial: Trial) -> Job:
        """Lets a policy that watches epochs observe a report; returns the job."""
        if not POLICIES[job.spec.policy].watches_epochs:
            return job
        job = replace(job, search=observe(job, Reported(trial)))
        tx.save_job(job)
        return job

    def succeed(self, tx: Transaction, job: Job, trial: Trial, verdict: Verdict) -> Job:
        """Ends a decided trial; returns its job."""
        place = job.num_observations + 1
        trial = self._ended(trial, TrialStatus.SUCCEEDED, verdict.end_reason)._replace(
            cost=verdict.cost,
            cost_bound=verdict.bound,
            converged=verdict.converged,
            target_reached=verdict.target_reached,
            observation=place,
            best_known=is_best_known(job, verdict.bound),
        )
        return self._save(tx, replace(job, num_observations=place), trial, Succeeded(trial))[0]

    def fail(self, tx: Transaction, job: Job, trial: Trial, reason: EndReason) -> tuple[Job, Trial]:
        """Ends a trial that its trainer ended, or that was lost."""
        trial = self._ended(with_current_cost(job, trial), TrialStatus.FAILED, reason)
        return self._save(tx, job, trial, Failed(trial))

    def revive(self, tx: Transaction, job: Job, trial: Trial) -> tuple[Job, Trial]:
        """Revives a lost trial that reports again, or one that resumes from a checkpoint."""
        search = observe(job, Revived(trial))
        lost_slot = trial.type is TrialType.EXPLORATION and search.exploring != trial.number
        revived = trial.renew(trial.last, job.spec.lease_expiry(self._clock()))
        revived = revived._replace(type=TrialType.CONCURRENT if lost_slot else trial.type)
        job = replace(job, search=search)
        tx.save_job(job)
        tx.save_trial(revived)
        self._publish(tx, TrialRevived(revived))
        return job, revived

    def monitor(self, tx: Transaction, job: Job, trial: Trial, reported: MonitorKinds) -> tuple[Job, Trial]:
        """Keeps what measures a trial, if a result names something new."""
        job_now, trial_now = with_monitor(job, trial, reported)
        if job_now is not job:
            tx.save_job(job_now)
        if trial_now is not trial:
            tx.save_trial(trial_now)
            if trial_now.other_monitor.kinds:
                self._publish(tx, MonitorsDiffer(trial_now))
        return job_now, trial_now

    def delete(self, tx: Transaction, job: Job) -> Sequence[Trial]:
        """Deletes a job; returns its running trials, which will be stopped."""
        stopped = [self._ended(trial, TrialStatus.FAILED, EndReason.JOB_DELETED) for trial in tx.delete_job()]
        for trial in stopped:
            self._publish(tx, TrialEnded(trial))
        self._publish(tx, JobDeleted(job, len(stopped)))
        return stopped

    async def free_slot(self, tx: Transaction, job: Job) -> Job:
        """Frees the exploration slot if its trial's lease has expired."""
        holder = await tx.trial(job.search.exploring) if job.search.exploring is not None else None
        if holder is not None and holder.lease_expired(self._clock()):
            return self.fail(tx, job, holder, EndReason.LOST)[0]
        return job

    def _save(self, tx: Transaction, job: Job, trial: Trial, event: Event) -> tuple[Job, Trial]:
        job = replace(job, search=observe(job, event))
        tx.save_job(job)
        tx.save_trial(trial)
        self._publish(tx, TrialEnded(trial))
        return job, trial

    def _publish(self, tx: Transaction, event: PublishedEvent) -> None:
        tx.after_commit(self._observer.prepare(event))

    def _ended(self, trial: Trial, status: TrialStatus, reason: EndReason | None) -> Trial:
        # The system clock may have been set back while no server ran.
        end_time = max(self._clock(), trial.start_time)
        return trial._replace(status=status, end_reason=reason, end_time=end_time, lease_expire_time=None)


def observe(job: Job, event: Event) -> Search:
    """The search after an event: its history, then its policy's state."""
    return history.observe(POLICIES[job.spec.policy], job.spec, job.search, event)
