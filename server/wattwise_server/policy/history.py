"""What every event adds to a search, whatever its policy: recorded before the policy observes the event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wattwise_server.domain import Arm, EndReason, JobSpec, Observation, Search, Trial, TrialType
from wattwise_server.policy.arm import move_floor, record
from wattwise_server.policy.base import Dispatched, Event, Failed, Policy, Reported, Revived, Succeeded
from wattwise_server.policy.cost import missed_floor
from wattwise_server.policy.failures import with_failure, with_failure_undone, with_fitting


def observe(policy: Policy, spec: JobSpec, search: Search, event: Event) -> Search:
    """The search after an event: first its history, then its policy's state."""
    return policy.observe(spec, with_event(spec, search, event), event)


def with_event(spec: JobSpec, search: Search, event: Event) -> Search:
    """The search with an event in its history: running trials, sums, costs and failures."""
    trial = event.trial
    match event:
        case Dispatched():
            return replace(_with_running(search, trial, 1), num_trials=trial.number)
        case Reported():
            return search
        case Revived():
            return with_failure_undone(_with_running(search, trial, 1), trial)
        case Failed():
            return with_failure(_with_running(search, trial, -1), trial)
        case Succeeded():
            return _with_success(spec, _with_running(search, trial, -1), trial)


def with_arm(search: Search, batch_size: int, change: Callable[[Arm], Arm]) -> Search:
    """The search with one arm changed."""
    return replace(search, arms=tuple(change(a) if a.batch_size == batch_size else a for a in search.arms))


def _with_running(search: Search, trial: Trial, more: int) -> Search:
    return with_arm(search, trial.batch_size, lambda arm: replace(arm, running=max(0, arm.running + more)))


def _with_success(spec: JobSpec, search: Search, trial: Trial) -> Search:
    if trial.cost is None:
        raise ValueError(f"trial {trial.number} has no cost, so it cannot have succeeded")
    floor = search.missed_floor
    seen = Observation(trial.cost, trial.converged)
    search = with_arm(search, trial.batch_size, lambda arm: record(arm, seen, spec.window_size, floor))
    if not trial.converged:
        stopped = trial.type is TrialType.MAB and trial.end_reason is EndReason.COST_BOUND
        return replace(search, bound_stops=search.bound_stops + 1) if stopped else search
    search = with_fitting(replace(search, bound_stops=0), trial.batch_size)
    if search.min_cost is not None and trial.cost >= search.min_cost:
        return search
    lower = missed_floor(spec, trial.cost)
    arms = tuple(move_floor(arm, floor, lower, spec.window_size) for arm in search.arms)
    return replace(search, arms=arms, min_cost=trial.cost, min_cost_batch_size=trial.batch_size, missed_floor=lower)
