"""The history of a search: what every event adds to it, before the policy observes the event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from wattwise.rules import EndReason, ResolvedJob

from wattwise_server.domain import Arm, Moments, Observation, PruningGtsRole, Search, Trial, TrialOrigin
from wattwise_server.events import (
    BatchSizeBanned,
    BatchSizeReadmitted,
    BatchSizeUnbanned,
    EpochReported,
    SearchEvent,
    TrialDecided,
    TrialRevived,
    TrialStarted,
    TrialUndecided,
)
from wattwise_server.policy.base import ArmBelief, Policy, Prior, PriorMisses
from wattwise_server.policy.failures import failing, with_failure, with_failure_undone, with_fitting, with_readmitted
from wattwise_server.policy.requests import best_known


def observe(policy: Policy, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
    """Returns the search after an event: its history, then its policy's state, then the best of what is left."""
    search = policy.observe(spec, with_event(spec, search, event), event)
    if isinstance(event, TrialStarted | EpochReported):
        # They change no cost.
        return search  # pragma: no mutate
    search = _with_cheapest(search)
    size, cost = best_known(search, policy.belief(spec, search), search.num_trials + 1)
    return replace(search, best_known=size, best_known_cost=cost)


def with_event(spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
    """Returns the search with an event in its history: running trials, sums, costs, failures and bans; not reports."""
    match event:
        case TrialStarted(trial):
            search = replace(_with_running(search, trial, 1), num_trials=trial.number)
        case TrialRevived(ended=trial):
            search = with_failure_undone(_with_running(search, trial, 1), trial)
        case TrialUndecided(trial):
            search = with_failure(_with_running(search, trial, -1), trial)
        case TrialDecided(trial) if trial.doubtful:
            search = _with_running(search, trial, -1)
            search = with_arm(search, trial.batch_size, lambda arm: replace(arm, failed_trials=()))
            search = with_fitting(search, trial.batch_size)
        case TrialDecided(trial):
            search = _with_success(spec, _with_running(search, trial, -1), trial)
        case BatchSizeBanned(batch_size=batch_size):
            search = with_arm(search, batch_size, lambda arm: replace(arm, banned=True))
        case BatchSizeUnbanned(batch_size=batch_size):
            search = with_arm(search, batch_size, lambda arm: replace(arm, banned=False))
        case BatchSizeReadmitted(batch_size=batch_size):
            search = with_readmitted(search, batch_size)
    return search


def prior_of(beliefs: Sequence[ArmBelief], trials: Iterable[Trial]) -> Prior:
    """Returns the evidence of a job about the epochs of another one.

    Args:
        beliefs: What its policy believes.
        trials: Its trials; those that did not run to a decision tell nothing.
    """
    epochs: dict[int, Moments] = {}
    missed: dict[int, PriorMisses] = {}
    for trial in trials:
        if trial.observation is None or trial.last is None:
            continue
        size, length = trial.batch_size, math.log(trial.last.epoch)
        if trial.target_reached:
            epochs[size] = epochs.get(size, Moments()).add(length)
        else:
            known = missed.get(size, PriorMisses(0, length))
            missed[size] = PriorMisses(known.number + 1, max(known.longest, length))
    costs = {belief.batch_size: belief.expected_cost for belief in beliefs if belief.expected_cost is not None}
    reached = [size for size in costs if size in epochs]
    return Prior(min(reached, key=costs.__getitem__, default=None), epochs, missed)


def with_arm(search: Search, batch_size: int, change: Callable[[Arm], Arm]) -> Search:
    """Returns the search with one arm changed."""
    return replace(search, arms=tuple(change(a) if a.batch_size == batch_size else a for a in search.arms))


def _with_running(search: Search, trial: Trial, more: int) -> Search:
    return with_arm(search, trial.batch_size, lambda arm: replace(arm, running=max(0, arm.running + more)))


def _with_success(spec: ResolvedJob, search: Search, trial: Trial) -> Search:
    if trial.cost is None:
        raise ValueError(f"trial {trial.number} has no cost, so it cannot have been decided")
    seen = Observation(trial.cost, trial.converged)
    search = with_arm(search, trial.batch_size, lambda arm: with_observation(arm, seen, spec.window_size))
    if trial.converged:
        search = replace(search, bound_stops=0)
    elif _of_search(trial) and trial.end_reason is EndReason.COST_BOUND:
        search = replace(search, bound_stops=search.bound_stops + 1)
    return with_fitting(search, trial.batch_size)


def with_observation(arm: Arm, seen: Observation, window_size: int) -> Arm:
    """Returns the arm with one more decided trial.

    Without a window, sums are kept of the costs of the trials that converged. A trial that did not converge is kept by
    itself, because it counts as the larger of its own cost and a floor, which moves with the cheapest cost of the job.
    """
    converged = arm.num_converged + seen.converged
    arm = replace(arm, num_decided=arm.num_decided + 1, num_converged=converged, failed_trials=())
    if window_size:
        kept = (*arm.kept, seen)[-window_size:]
        reached = [each.cost for each in kept if each.converged]
        return replace(arm, kept=kept, reached=Moments.of(reached), cheapest=min(filter(None, reached), default=None))
    if not seen.converged:
        return replace(arm, kept=(*arm.kept, seen))
    cheapest = min(filter(None, (arm.cheapest, seen.cost)), default=None)
    return replace(arm, reached=arm.reached.add(seen.cost), cheapest=cheapest)


def _of_search(trial: Trial) -> bool:
    """Returns whether the search chose it, outside of pruning rounds."""
    return trial.origin is TrialOrigin.SEARCH and trial.role in (None, PruningGtsRole.BANDIT)


def _with_cheapest(search: Search) -> Search:
    """Returns the search with the cheapest converged cost of the batch sizes that may be chosen.

    One that keeps failing counts only if no other has converged. A tie stays where it is.
    """
    known = [(arm, arm.cheapest) for arm in search.available if arm.cheapest is not None]
    working = [(arm, least) for arm, least in known if not failing(arm)] or known
    if not working:
        return replace(search, min_cost=None, min_cost_batch_size=None)
    held = search.min_cost_batch_size
    arm, least = min(working, key=lambda each: (each[1], each[0].batch_size != held, each[0].batch_size))
    return replace(search, min_cost=least, min_cost_batch_size=arm.batch_size)
