"""Running sums over an arm's succeeded trials, so that no decision reads the history again.

A trial that missed the target counts as the larger of its own cost and a floor, β times the job's cheapest. The floor
falls as cheaper trials converge, so a missed cost below the floor is held until the floor has fallen below it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from wattwise_server.domain import Arm, Moments, Observation


def record(arm: Arm, seen: Observation, window_size: int, floor: float | None) -> Arm:
    """The arm with one more succeeded trial. `floor` is in joules, None while nothing has converged."""
    converged = arm.num_converged + seen.converged
    arm = replace(arm, num_succeeded=arm.num_succeeded + 1, num_converged=converged, failed_trials=())
    if window_size:
        return _recount(replace(arm, window=(*arm.window, seen)[-window_size:]), floor)
    if seen.converged:
        arm = replace(arm, reached=arm.reached.add(seen.cost))
    else:
        if floor is None or seen.cost >= floor:
            arm = replace(arm, missed=arm.missed.add(seen.cost))
        if floor is None or seen.cost < floor:
            arm = replace(arm, held=(*arm.held, seen.cost))
    return _recount(arm, floor)


def move_floor(arm: Arm, old: float | None, new: float | None, window_size: int) -> Arm:
    """The arm after the floor appeared or fell; with a window it may also rise or disappear."""
    if not window_size and arm.held and new is not None:
        settled = (cost for cost in arm.held if cost >= new)
        kept = Moments() if old is None else arm.missed
        arm = replace(arm, missed=reduce(Moments.add, settled, kept), held=tuple(c for c in arm.held if c < new))
    return _recount(arm, new)


def _recount(arm: Arm, floor: float | None) -> Arm:
    if arm.window:
        return replace(arm, counted=_of_window(arm.window, floor))
    held = Moments() if floor is None else Moments(len(arm.held), floor)
    return replace(arm, counted=arm.reached.merge(arm.missed).merge(held))


def _of_window(window: tuple[Observation, ...], floor: float | None) -> Moments:
    least = 0.0 if floor is None else floor
    costs = np.array([seen.cost if seen.converged else max(seen.cost, least) for seen in window])
    if costs.min() == costs.max():
        return Moments(len(window), float(costs[0]))
    return Moments(len(window), float(costs.mean()), float(costs.var()) * len(window))
