"""What every event adds to a search, whatever its policy: recorded before the policy observes the event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from wattwise_server.domain import Arm, EndReason, JobSpec, Moments, Observation, Search, Trial, TrialType
from wattwise_server.policy.arm import move_floor, record
from wattwise_server.policy.base import (
    ArmBelief,
    Dispatched,
    Event,
    Failed,
    Policy,
    Prior,
    Reported,
    Revived,
    Succeeded,
)
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


def prior_of(beliefs: Sequence[ArmBelief], trials: Iterable[Trial]) -> Prior:
    """What a job tells about the epochs of another one.

    Args:
        beliefs: What its policy believes.
        trials: Its trials; those that did not run to a decision tell nothing.
    """
    epochs: dict[int, Moments] = {}
    missed: dict[int, tuple[int, float]] = {}
    for trial in trials:
        if trial.observation is None or trial.last is None:
            continue
        size, length = trial.batch_size, math.log(trial.last.epoch)
        if trial.target_reached:
            epochs[size] = epochs.get(size, Moments()).add(length)
        else:
            count, longest = missed.get(size, (0, 0.0))
            missed[size] = count + 1, max(longest, length)
    costs = {belief.batch_size: belief.expected_cost for belief in beliefs if belief.expected_cost is not None}
    reached = [size for size in costs if size in epochs]
    return Prior(min(reached, key=costs.__getitem__, default=None), epochs, missed)


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
    if trial.converged:
        search = with_fitting(replace(search, bound_stops=0), trial.batch_size)
    elif trial.type is TrialType.MAB and trial.end_reason is EndReason.COST_BOUND:
        search = replace(search, bound_stops=search.bound_stops + 1)
    return _with_min_cost(spec, search, trial)


def _with_min_cost(spec: JobSpec, search: Search, trial: Trial) -> Search:
    """The search with the cheapest converged cost among those that count; a trial that cost nothing does not."""
    held = search.min_cost, search.min_cost_batch_size
    cheapest = _cheapest_of_windows(search) if _left_window(spec, search) else held
    if trial.converged and trial.cost and (not cheapest[0] or trial.cost < cheapest[0]):
        cheapest = trial.cost, trial.batch_size
    if cheapest == held:
        return search
    floor = None if cheapest[0] is None else missed_floor(spec, cheapest[0])
    arms = tuple(move_floor(arm, search.missed_floor, floor, spec.window_size) for arm in search.arms)
    return replace(search, arms=arms, min_cost=cheapest[0], min_cost_batch_size=cheapest[1], missed_floor=floor)


def _left_window(spec: JobSpec, search: Search) -> bool:
    """Whether the observation that is the cheapest no longer counts."""
    if not spec.window_size or search.min_cost_batch_size is None:
        return False
    window = search.arm(search.min_cost_batch_size).window
    return not any(seen.converged and seen.cost == search.min_cost for seen in window)


def _cheapest_of_windows(search: Search) -> tuple[float | None, int | None]:
    """The cheapest converged cost in all windows, and its batch size."""
    seen = ((seen.cost, arm.batch_size) for arm in search.arms for seen in arm.window if seen.converged and seen.cost)
    return min(seen, default=(None, None))
