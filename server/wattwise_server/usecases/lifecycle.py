"""What happens to the trials of a job: pure functions, and what ends the trials above their bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from wattwise.rules import STATUS_AFTER, EndReason, TrialStatus

from wattwise_server.domain import Job, MonitorKinds, PruningGtsRole, Trial, TrialWarning
from wattwise_server.events import (
    BatchSizeStatusChanged,
    BestKnownChanged,
    ChangeDetected,
    Event,
    JobDeleted,
    MonitorNamed,
    MonitorsDiffer,
    TrialDecided,
    TrialRevived,
    TrialWarned,
    event_of_end,
)
from wattwise_server.policy.failures import state
from wattwise_server.policy.search import job_after
from wattwise_server.policy.stopping import Verdict, bound_of, has_best_known, judge, with_current_cost
from wattwise_server.store.transactions import Store, Transaction
from wattwise_server.usecases.changes import new_changes, with_change_warnings
from wattwise_server.usecases.monitors import with_monitor
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

_BEFORE_STOPS = frozenset((TrialDecided, TrialRevived))
"""A decision may lower the bound, and a trial that goes on may have missed that."""


class Progress(NamedTuple):
    """A job and one of its trials after events that are not recorded yet."""

    job: Job
    trial: Trial
    events: tuple[Event, ...] = ()


def revive(progress: Progress, now: datetime) -> Progress:
    """Revives a lost trial that reports again, or one that resumes from a checkpoint."""
    job, before, events = progress
    trial = before.renew(before.last, job.spec.lease_expiry(now))
    event = TrialRevived(trial, before, job.num_search_events + 1)
    job = job_after(job, event)
    if trial.policy_role and trial.role is PruningGtsRole.EXPLORATION and job.search.exploring != trial.number:
        trial = trial._replace(policy_role=trial.policy_role._replace(role=PruningGtsRole.CONCURRENT))
        event = replace(event, trial=trial)
    return Progress(job, trial, (*events, event))


def keep_monitor(progress: Progress, reported: MonitorKinds) -> Progress:
    """Keeps what measures a trial, if a result names something new."""
    job, trial = with_monitor(progress.job, progress.trial, reported)
    if trial == progress.trial:
        return progress
    event: Event = MonitorNamed(trial)
    if (warning := trial.monitor_warning) is not None:
        job, event = with_job_warnings(job, trial, [warning]), MonitorsDiffer(trial, warning)
    return Progress(job, trial, (*progress.events, event))


def warn(progress: Progress, found: Iterable[TrialWarning]) -> Progress:
    """Keeps the warnings that are new to a trial."""
    job, trial, new = with_warnings(progress.job, progress.trial, found)
    return Progress(job, trial, (*progress.events, *(TrialWarned(trial, warning) for warning in new)))


def decide(progress: Progress, verdict: Verdict, now: datetime) -> Progress:
    """Ends a decided trial."""
    job, trial, _ = progress
    place = None if trial.doubtful else job.num_observations + 1
    trial = _ended(job, trial, TrialStatus.DECIDED, verdict.end_reason, now)._replace(
        cost=verdict.cost,
        cost_bound=verdict.cost_bound,
        converged=verdict.converged,
        target_reached=verdict.target_reached,
        observation=place,
        best_known=has_best_known(job),
    )
    return _with_end(progress, replace(job, num_observations=place or job.num_observations), trial)


def fail(progress: Progress, reason: EndReason, now: datetime) -> Progress:
    """Fails a trial that its trainer ended, or that was lost.

    Without a result there is no miss: a trial that stopped early then only completed.
    """
    reason = EndReason.COMPLETED if reason is EndReason.STOPPED_EARLY else reason
    trial = _ended(progress.job, with_current_cost(progress.job, progress.trial), STATUS_AFTER[reason], reason, now)
    return _with_end(progress, progress.job, trial)


def deletion_events(job: Job, running: Sequence[Trial], now: datetime) -> Sequence[Event]:
    """Returns the events of the deletion of a job: its running trials are stopped first."""
    ends = [_ended(job, trial, TrialStatus.DECIDED, EndReason.JOB_DELETED, now) for trial in running]
    return [*map(TrialDecided, ends), JobDeleted(job.spec, job.num_trials, len(ends))]


def best_known_changes(before: Job, job: Job) -> Iterable[Event]:
    """Yields the event of another batch size that is the best known one since `before`."""
    size, cost = job.search.best_known, job.search.best_known_cost
    if size is not None and cost is not None and size != before.search.best_known:
        yield BestKnownChanged(job.spec, size, cost)


async def conclude(
    tx: Transaction, progress: Progress, verdict: Verdict, now: datetime, *, new: Sequence[float] = ()
) -> Progress:
    """Ends a decided trial, with warnings of what looks wrong about its end.

    Args:
        tx: The transaction, for what was saved before.
        progress: The trial, with its last measurement.
        verdict: The verdict about that measurement.
        now: When it ends.
        new: Metrics of the epochs that are not saved yet.
    """
    if not verdict.target_reached:
        progress = await with_miss_warning(tx, progress, new)
    return decide(await _with_doubt(tx, progress, verdict), verdict, now)


async def with_miss_warning(tx: Transaction, progress: Progress, new: Iterable[float] = ()) -> Progress:
    """Warns if the metric of a trial that missed the target moved away from it.

    Trials that a falling bound stops are not checked: another trial has reached the target.

    Args:
        tx: The transaction, for what was saved before.
        progress: The trial, with its last measurement.
        new: Metrics of the epochs that are not saved yet.
    """
    trial = progress.trial
    if trial.last is None or trial.last.epoch < LEAST_EPOCHS_TO_MOVE_AWAY:
        return progress
    span = await tx.metric_span(trial.number)
    for metric in new:
        span = span.add(metric)
    return warn(progress, of_missed_target(progress.job.spec, trial, span, trial.last))


async def _with_doubt(tx: Transaction, progress: Progress, verdict: Verdict) -> Progress:
    """Warns of a trial that reached the target far below the usual cost; a second one of its batch size counts."""
    job, trial, events = progress
    if not job.counts(trial) or trial.last is None or not verdict.converged:
        return progress
    found = of_cheap_delivery(job, trial, verdict.cost)
    if found is None and is_perfect_at_once(job.spec, trial.last) and is_cheapest(job, verdict.cost):
        found = of_perfect_delivery(job, trial, await tx.search_events())
    if found is None:
        return progress
    doubtful = next((known for known in job.warnings if known.reason is found.reason), None)
    earlier = await tx.trial(doubtful.trial_number) if doubtful else None
    if earlier is not None and earlier.batch_size == trial.batch_size:
        return Progress(without_warnings_of(job, earlier, found.reason), trial, events)
    return warn(progress, [found])


def record(tx: Transaction, progress: Progress) -> None:
    """Records what has happened to a trial, and ends the running trials whose newest cost exceeds their bound since.

    Of many trials the first end in this block, and the others in blocks of a few, with other calls in between. The exit
    of this block returns when all have ended.
    """
    tx.record(progress.job, *progress.events)
    if _BEFORE_STOPS.isdisjoint(map(type, progress.events)):
        return
    running = tx.running()
    _stop(tx, running[:_AT_ONCE])
    if others := [trial.number for trial in running[_AT_ONCE:]]:
        tx.follow_up(partial(_stop_others, tx.store, progress.trial.job_id, others))


def _stop(tx: Transaction, running: Iterable[Trial]) -> None:
    now = tx.store.clock()
    for trial in running:
        if tx.job is None or trial.last is None:
            continue
        verdict = judge(tx.job.spec, bound_of(tx.job, trial), trial.last)
        if verdict.end_reason is EndReason.COST_BOUND:
            progress = decide(Progress(tx.job, trial), verdict, now)
            tx.record(progress.job, *progress.events)


async def _stop_others(store: Store, job_id: str, numbers: Sequence[int]) -> None:
    while numbers:
        piece, numbers = numbers[:_AT_ONCE], numbers[_AT_ONCE:]
        # A transaction that changes nothing waits for nothing.
        await asyncio.sleep(0)  # pragma: no mutate: or waits longer
        await _stop_piece(store, job_id, piece)


@retried
async def _stop_piece(store: Store, job_id: str, numbers: Sequence[int]) -> None:
    async with store.transaction(job_id) as tx:
        _stop(tx, [trial for trial in map(tx.running_trial, numbers) if trial is not None])


def _with_end(progress: Progress, job: Job, trial: Trial) -> Progress:
    event = event_of_end(trial)
    job = with_change_warnings(without_contradicted(job_after(job, event), trial))
    return Progress(job, trial, (*progress.events, event, *_search_changes(progress.job, job)))


def _search_changes(before: Job, job: Job) -> Iterable[Event]:
    """Yields what is new in a search: other statuses of batch sizes, detected changes, the best known one."""
    if job.search is before.search:
        return
    for old, new in zip(before.search.arms, job.search.arms, strict=True):
        if new is not old:
            was, now = (state(each.search, arm, job.spec.job_id) for each, arm in ((before, old), (job, new)))
            if was.status is not now.status and not new.banned:
                yield BatchSizeStatusChanged(job.spec, new.batch_size, now.status.value, now.reason)
    for change in new_changes(before, job):
        yield ChangeDetected(job.spec, change)
    yield from best_known_changes(before, job)


def _ended(job: Job, trial: Trial, status: TrialStatus, reason: EndReason | None, end_time: datetime) -> Trial:
    if trial.start_time is not None:
        # The system clock may have been set back while no server ran.
        end_time = max(end_time, trial.start_time)
    return trial._replace(
        status=status,
        end_reason=reason,
        end_time=end_time,
        lease_expire_time=None,
        heartbeat_interval=None,
        end_event=job.num_search_events + 1,
    )
