"""The pruning walk (NSDI 2023, section 4.4, "pruning exploration").

A round starts at its default batch size, goes down to the smallest, then up from the next above the default. Each
direction ends at the first batch size that does not converge; it and all beyond it are pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wattwise_server.domain import Arm, JobSpec, Search, Stage

MAX_FAILURES = 3
"""Failures in a row after which a batch size counts as not converged."""


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
        search = with_arm(search, batch_size, lambda arm: replace(arm, round_cost=cost, failures=0))
    else:
        search = _prune(search, batch_size)
    return search if next_exploration(search) is not None else _end_round(spec, search)


def failed(spec: JobSpec, search: Search, batch_size: int, trial_number: int, *, hopeless: bool) -> Search:
    """The search after an exploration crashed or was lost; too many in a row count as not converged."""
    count = MAX_FAILURES if hopeless else search.arm(batch_size).failures + 1
    search = with_arm(search, batch_size, lambda arm: replace(arm, failures=count, last_failure=trial_number))
    if count >= MAX_FAILURES:
        return explored(spec, search, batch_size, cost=0.0, converged=False)
    return replace(search, exploring=None)


def crashed(search: Search) -> Sequence[int]:
    """The batch sizes that were pruned because their trials failed."""
    return [arm.batch_size for arm in search.arms if arm.pruned and arm.failures >= MAX_FAILURES]


def untried(search: Search) -> Sequence[int]:
    """The batch sizes that were pruned without a trial."""
    return [arm.batch_size for arm in search.arms if arm.pruned and not (arm.num_succeeded or arm.failures)]


def with_arm(search: Search, batch_size: int, change: Callable[[Arm], Arm]) -> Search:
    """The search with one arm changed."""
    return replace(search, arms=tuple(change(a) if a.batch_size == batch_size else a for a in search.arms))


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
