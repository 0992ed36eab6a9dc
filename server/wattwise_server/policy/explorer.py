"""The pruning walk (NSDI 2023, section 4.4, "pruning exploration").

A round starts at its default batch size, goes down to the smallest, then up from the next above the default. Each
direction ends at the first batch size that does not converge; it and all beyond it are pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattwise_server.domain import Arm, JobSpec, Search, Stage
from wattwise_server.policy.failures import FAILURES_TO_SET_ASIDE
from wattwise_server.policy.history import with_arm


def first_round(spec: JobSpec) -> Search:
    """A new search, which starts with the walk, or with the bandit if there are no rounds."""
    stage = Stage.PRUNING if spec.num_pruning_rounds else Stage.MAB
    return Search(stage, tuple(map(Arm, spec.batch_sizes)), 0, spec.default_batch_size)


def next_exploration(search: Search) -> int | None:
    """The first batch size of the walk without a result in this round; None when every batch size is pruned."""
    waiting = [arm.batch_size for arm in search.surviving if arm.round_cost is None]
    down = [size for size in waiting if size <= search.round_default]
    return max(down) if down else min(waiting, default=None)


def explored(spec: JobSpec, search: Search, batch_size: int, *, cost: float, converged: bool) -> Search:
    """The search after an exploration with a result."""
    search = replace(search, exploring=None)
    if converged:
        search = with_arm(search, batch_size, lambda arm: replace(arm, round_cost=cost))
    else:
        search = _prune(search, batch_size)
    return search if next_exploration(search) is not None else _end_round(spec, search)


def failed(spec: JobSpec, search: Search, batch_size: int) -> Search:
    """The search after an exploration crashed or was lost; too many in a row count as not converged."""
    arm = search.arm(batch_size)
    if arm.excluded or len(arm.failed_trials) >= FAILURES_TO_SET_ASIDE:
        return explored(spec, search, batch_size, cost=0.0, converged=False)
    return replace(search, exploring=None)


def crashed(search: Search) -> Sequence[int]:
    """The batch sizes that were pruned because their trials failed."""
    failing = (arm for arm in search.arms if len(arm.failed_trials) >= FAILURES_TO_SET_ASIDE)
    return [arm.batch_size for arm in failing if arm.pruned]


def untried(search: Search) -> Sequence[int]:
    """The batch sizes that were pruned without a trial."""
    return [arm.batch_size for arm in search.arms if arm.pruned and not (arm.num_succeeded or arm.num_failed)]


def _prune(search: Search, failed_size: int) -> Search:
    down = failed_size <= search.round_default

    def beyond(arm: Arm) -> bool:
        return arm.batch_size <= failed_size if down else arm.batch_size >= failed_size

    return replace(search, arms=tuple(replace(arm, pruned=arm.pruned or beyond(arm)) for arm in search.arms))


def _end_round(spec: JobSpec, search: Search) -> Search:
    if not search.surviving:
        return search
    cheapest = min(search.surviving, key=lambda arm: (arm.round_cost, arm.batch_size))
    done = search.pruning_round + 1
    return replace(
        search,
        stage=Stage.MAB if done == spec.num_pruning_rounds else Stage.PRUNING,
        pruning_round=done,
        round_default=cheapest.batch_size,
        arms=tuple(replace(arm, round_cost=None) for arm in search.arms),
    )
