"""The pruning walk (NSDI 2023, section 4.4, "pruning exploration").

A round starts at its default batch size, goes down to the smallest, then up from the next above the default. Each
direction ends at the first batch size that misses the target; it and all beyond it are pruned. A batch size that is set
aside is skipped, and tried when no other is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from wattwise.rules import ResolvedJob

from wattwise_server.domain import Arm, Search, Stage, Trial
from wattwise_server.policy.failures import due, set_aside
from wattwise_server.policy.history import with_arm


def first_round(spec: ResolvedJob) -> Search:
    """Returns a new search, which starts with the walk, or with the bandit if there are no rounds."""
    stage = Stage.PRUNING if spec.num_pruning_rounds else Stage.BANDIT
    return Search(stage, tuple(map(Arm, spec.batch_sizes)), 0, spec.default_batch_size)


def next_exploration(search: Search) -> Arm | None:
    """Returns the first arm of the walk that waits for its result in this round; None when none waits.

    If all that wait are set aside, it is the one that is due first.
    """
    number = search.num_trials + 1
    waiting = [arm for arm in walk(search) if arm.round_cost is None]
    ready = (arm for arm in waiting if not set_aside(search, arm, number))
    return next(ready, None) or min(waiting, key=lambda arm: due(search, arm), default=None)


def with_exploration(search: Search, trial: Trial) -> Search:
    """Returns the search after the exploration was decided."""
    search = replace(search, exploring=None)
    if trial.converged:
        return with_arm(search, trial.batch_size, lambda arm: replace(arm, round_cost=trial.cost))
    return _prune(search, trial.batch_size)


def with_next_round(spec: ResolvedJob, search: Search) -> Search:
    """Returns the search with a default that is available, and in the next round if this one is complete.

    A round is complete when a trial has converged in it and no batch size waits that may be tried now. Those that are
    set aside go into the next round.
    """
    search = _with_available_default(search)
    converged = [arm for arm in walk(search) if arm.round_cost is not None]
    if search.exploring is not None or not converged or _ready(search):
        return search
    done = search.pruning_round + 1
    # The first of the walk among equals; a trial that cost nothing says nothing about costs.
    cheapest = min(converged, key=lambda arm: arm.round_cost or math.inf)
    return replace(
        search,
        stage=Stage.BANDIT if done == spec.num_pruning_rounds else Stage.PRUNING,
        pruning_round=done,
        round_default=cheapest.batch_size,
        arms=tuple(replace(arm, round_cost=None) for arm in search.arms),
    )


def walk(search: Search) -> Sequence[Arm]:
    """Returns the available arms in the order of a round."""
    start = search.round_default
    return sorted(search.available, key=lambda arm: (arm.batch_size > start, abs(arm.batch_size - start)))


def _ready(search: Search) -> bool:
    number = search.num_trials + 1
    return any(arm.round_cost is None and not set_aside(search, arm, number) for arm in search.available)


def _prune(search: Search, missed: int) -> Search:
    """Prunes a batch size that missed the target, and those beyond it that have no result in this round."""
    down = missed <= search.round_default

    def beyond(arm: Arm) -> bool:
        outwards = arm.batch_size <= missed if down else arm.batch_size >= missed
        return outwards and (arm.round_cost is None or arm.batch_size == missed)

    return replace(search, arms=tuple(replace(arm, pruned=True) if beyond(arm) else arm for arm in search.arms))


def _with_available_default(search: Search) -> Search:
    """Replaces the default of the round by the next smaller batch size if it does not fit into memory or is banned.

    If there is none it is the next larger one.
    """
    default = search.arm(search.round_default)
    if not (default.excluded or default.banned):
        return search
    others = walk(search)
    return replace(search, round_default=others[0].batch_size) if others else search
