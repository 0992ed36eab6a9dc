"""The best epoch of a launch."""

from __future__ import annotations

import math
from typing import NamedTuple


class BestEpoch(NamedTuple):
    """The epoch with the best metric, over all attempts of a launch.

    Attributes:
        attempt: the number of the attempt, from 1.
        epoch: the number of the epoch, from 1.
        metric: its metric.
    """

    attempt: int
    epoch: int
    metric: float


def better(best: BestEpoch | None, newest: BestEpoch, *, higher_is_better: bool) -> BestEpoch | None:
    """The better of two epochs, the earlier one if they are equal; NaN and infinity are no metrics."""
    if not math.isfinite(newest.metric):
        return best
    sign = 1 if higher_is_better else -1
    return newest if best is None or sign * newest.metric > sign * best.metric else best
