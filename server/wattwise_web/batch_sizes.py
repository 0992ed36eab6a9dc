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
    return {state.batch_size: _belief(state) for state in details.batch_size_states}


def _belief(state: v1.BatchSizeState) -> Belief:
    if not (state.HasField("expected_cost") and math.isfinite(state.expected_cost)):
        return Belief()
    known = state.HasField("expected_cost_deviation") and math.isfinite(state.expected_cost_deviation)
    return Belief(state.expected_cost, state.expected_cost_deviation if known else None)
