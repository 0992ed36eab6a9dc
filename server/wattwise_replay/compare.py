"""Compares policies with baselines over the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from wattwise import v1
from wattwise.drafts import Policy
from wattwise_server.policy import registry

from wattwise_replay.engines import Engine, Fixed, GridSearch, WithFallback
from wattwise_replay.play import Ledger, play
from wattwise_replay.world import World

DEFAULT, AT_BEST_LIMIT, GRID, HINDSIGHT = (
    "default at maximum power",
    "default at its best limit",
    "grid search",
    "best in hindsight",
)
POLICIES: Sequence[Policy] = [
    field.name for field in v1.PolicySpec.DESCRIPTOR.fields if field.name in registry.POLICIES
]
EARLY = 40
"""The first recurrences, in which learning costs most."""

MakeEngine = Callable[[World, Policy, int], Engine]
"""An engine for a world, a policy and a seed."""


@dataclass(frozen=True)
class Comparison:
    """The results of one workload.

    Attributes:
        world: The world.
        recurrences: Recurrences per seed.
        best_sizes: The best batch size in hindsight; with a drift also the best one after it.
        ledgers: The ledgers of each contender, by seed.
        fallbacks: Launches for which a policy had no batch size left, by policy and seed.
    """

    world: World
    recurrences: int
    best_sizes: Sequence[int]
    ledgers: dict[str, Sequence[Ledger]]
    fallbacks: Mapping[str, Sequence[int]]

    def totals(self, name: str, what: str, first: int | None = None) -> np.ndarray:
        """Sums over the recurrences, or the first of them, seed by seed.

        Args:
            name: The contender.
            what: "costs", "joules" or "seconds".
            first: The number of recurrences; None for all.
        """
        return np.array([getattr(ledger, what)[:first].sum() for ledger in self.ledgers[name]])

    def delivers(self, name: str, first: int | None = None) -> bool:
        """Returns whether every seed has a model from the recurrences, or the first of them."""
        return all(ledger.delivered[:first].any() for ledger in self.ledgers[name])

    def regret(self, name: str) -> np.ndarray:
        """Cumulative cost above that of the best batch size in hindsight, in J; shape (seeds, recurrences)."""
        pairs = zip(self.ledgers[name], self.ledgers[HINDSIGHT], strict=True)
        return np.array([np.cumsum(mine.costs - best.costs) for mine, best in pairs])


def compare(
    world: World,
    make: MakeEngine,
    policies: Sequence[Policy],
    *,
    seeds: int,
    recurrences: int | None = None,
    overlap: float = 0.0,
) -> Comparison:
    """Plays a world with every baseline and policy.

    A launch for which a policy has no batch size left trains the default without early stopping.

    Args:
        world: The world.
        make: Creates the engine of a policy.
        policies: The policies.
        seeds: Number of seeds, from 0.
        recurrences: Number of recurrences; None for the paper's horizon.
        overlap: Share of recurrences that overlap with the one before.

    Raises:
        ReplayError: A policy fails.
    """
    workload = world.workload
    horizon = workload.horizon if recurrences is None else recurrences

    def ledgers(engine: Callable[[int], Engine]) -> Sequence[Ledger]:
        return [play(engine(seed), world, seed, horizon, overlap) for seed in range(seeds)]

    default = workload.default_batch_size
    found = {
        DEFAULT: ledgers(lambda _: Fixed(workload, default, "highest")),
        AT_BEST_LIMIT: ledgers(lambda _: Fixed(workload, default)),
        GRID: ledgers(lambda _: GridSearch(workload, world.eta)),
    }
    fallbacks = {}
    for policy in policies:
        engines = [WithFallback(make(world, policy, seed), workload) for seed in range(seeds)]
        found[policy] = ledgers(engines.__getitem__)
        fallbacks[policy] = [engine.fallbacks for engine in engines]
    fixed = {size: ledgers(lambda _, size=size: Fixed(workload, size)) for size in workload.sizes}  # type: ignore[misc]
    sizes, found[HINDSIGHT] = _hindsight(world, horizon, fixed)
    return Comparison(world, horizon, sizes, found, fallbacks)


def _hindsight(
    world: World, recurrences: int, fixed: dict[int, Sequence[Ledger]]
) -> tuple[Sequence[int], Sequence[Ledger]]:
    """Returns the batch size with the lowest cost over all seeds, of those that deliver; between two changes."""
    stretches = [stretch for stretch, _ in world.workload.stages(recurrences)]

    def order(size: int, stretch: slice) -> tuple[int, float]:
        undelivered = sum((~ledger.delivered[stretch]).sum() for ledger in fixed[size])
        return int(undelivered), float(sum(ledger.costs[stretch].sum() for ledger in fixed[size]))

    best = [min(fixed, key=lambda size, stretch=stretch: order(size, stretch)) for stretch in stretches]  # type: ignore[misc]
    ledgers = (fixed[size] for size in best)
    return best, [_joined(parts, stretches) for parts in zip(*ledgers, strict=True)]


def _joined(parts: Sequence[Ledger], stretches: Sequence[slice]) -> Ledger:
    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name)[stretch] for part, stretch in zip(parts, stretches, strict=True)])

    trials = (
        trial
        for part, stretch in zip(parts, stretches, strict=True)
        for trial in part.trials
        if stretch.start <= trial.recurrence < stretch.stop
    )
    return Ledger(tuple(trials), join("costs"), join("joules"), join("seconds"), join("delivered"))
