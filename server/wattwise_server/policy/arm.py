"""Running sums over an arm's decided trials, so that no decision reads the history again.

A trial that missed the target counts as the larger of its own cost and a floor, β times the job's cheapest. The floor
moves with the cheapest cost, so the missed costs are kept one by one as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattwise_server.domain import Arm, Moments, Observation


def record(arm: Arm, seen: Observation, window_size: int, floor: float | None) -> Arm:
    """The arm with one more decided trial. `floor` is in joules, None while nothing has converged."""
    converged = arm.num_converged + seen.converged
    arm = replace(arm, num_decided=arm.num_decided + 1, num_converged=converged, failed_trials=())
    if window_size:
        arm = _of_window(replace(arm, window=(*arm.window, seen)[-window_size:]))
    elif seen.converged:
        arm = replace(arm, reached=arm.reached.add(seen.cost), cheapest=_cheapest((arm.cheapest, seen.cost)))
    else:
        arm = replace(arm, missed=arm.missed.add(seen.cost), misses=(*arm.misses, seen.cost))
    return with_floor(arm, floor)


def with_floor(arm: Arm, floor: float | None) -> Arm:
    """The arm whose missed trials count as the larger of their cost and the floor."""
    missed = arm.missed
    if missed.count and floor is not None:
        costs = [seen.cost for seen in arm.window if not seen.converged] if arm.window else arm.misses
        missed = _moments(np.maximum(costs, floor))
    return replace(arm, counted=arm.reached.merge(missed))


def _of_window(arm: Arm) -> Arm:
    reached = [seen.cost for seen in arm.window if seen.converged]
    missed = [seen.cost for seen in arm.window if not seen.converged]
    return replace(arm, reached=_moments(reached), missed=_moments(missed), cheapest=_cheapest(reached))


def _cheapest(costs: Sequence[float | None]) -> float | None:
    """The cheapest that cost anything."""
    return min((cost for cost in costs if cost), default=None)


def _moments(costs: Sequence[float] | np.typing.NDArray[np.float64]) -> Moments:
    values = np.asarray(costs)
    if not len(values):
        return Moments()
    if values.min() == values.max():
        return Moments(len(values), float(values[0]))
    return Moments(len(values), float(values.mean()), float(values.var()) * len(values))
