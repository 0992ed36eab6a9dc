"""What a model is expected to cost with each batch size of a job."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattwise import v1


class Belief(NamedTuple):
    """The expected cost of a model with one batch size, failures included, in joules.

    Attributes:
        mean: the expected cost; None: unknown.
        deviation: the standard deviation of this belief; None: unknown.
    """

    mean: float | None = None
    deviation: float | None = None


def beliefs(details: v1.JobDetails) -> dict[int, Belief]:
    """What is known of each batch size."""
    arms = {arm.batch_size: arm for arm in details.arms}
    return {state.batch_size: _belief(state, arms.get(state.batch_size)) for state in details.batch_size_states}


def _belief(state: v1.BatchSizeState, arm: v1.Arm | None) -> Belief:
    if state.HasField("expected_cost") and math.isfinite(state.expected_cost):
        known = state.HasField("expected_cost_deviation") and math.isfinite(state.expected_cost_deviation)
        return Belief(state.expected_cost, state.expected_cost_deviation if known else None)
    if arm is not None and arm.num_observations and arm.param_precision > 0:
        precise = math.isfinite(arm.param_precision)
        return Belief(-arm.param_mean, 1 / math.sqrt(arm.param_precision) if precise else 0.0)
    return Belief(state.round_cost) if state.HasField("round_cost") else Belief()
