"""The best epoch of a launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from wattwise.errors import ResumeError


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


_PREFIX = "best_"


def best_state(best: BestEpoch | None) -> dict[str, int | float]:
    """Returns the best epoch as plain values for a checkpoint."""
    return {} if best is None else {f"{_PREFIX}{name}": value for name, value in best._asdict().items()}


def saved_best(state: Mapping[str, object]) -> BestEpoch | None:
    """Reads the result of `best_state`; None if there was no epoch.

    Raises:
        ResumeError: if the values are not numbers.
    """
    values = [state.get(f"{_PREFIX}{name}") for name in BestEpoch._fields]
    if all(value is None for value in values):
        return None
    attempt, epoch, metric = values
    if type(attempt) is int and type(epoch) is int and isinstance(metric, int | float):
        return BestEpoch(attempt, epoch, metric)
    raise ResumeError(f"the checkpoint's state has no best epoch but {values}: it was changed since it was saved")


def better(best: BestEpoch | None, newest: BestEpoch, *, higher_is_better: bool) -> BestEpoch | None:
    """Returns the better of two epochs, the earlier one if they are equal; NaN and infinity are no metrics."""
    if not math.isfinite(newest.metric):
        return best
    sign = 1 if higher_is_better else -1
    return newest if best is None or sign * newest.metric > sign * best.metric else best
