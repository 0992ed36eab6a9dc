"""Means over seeds with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class Mean(NamedTuple):
    """A mean over seeds with half the width of its 95% confidence interval; NaN with a single seed."""

    mean: float
    half_width: float

    def times(self, factor: float) -> Mean:
        """Returns the same in another unit."""
        return Mean(self.mean * factor, self.half_width * factor)


def mean_of(values: Sequence[float] | np.ndarray) -> Mean:
    """Returns the mean of independent values, with Student's interval."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return Mean(float(array.mean()), math.nan)
    error = array.std(ddof=1) / math.sqrt(len(array))
    return Mean(float(array.mean()), float(error * quantile(len(array) - 1)))


def quantile(degrees: int) -> float:
    """Student's t at 97.5%, from the normal quantile (Abramowitz and Stegun, 26.7.5); exact for 1 and 2 degrees."""
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95 * 0.95))
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / math.pow(degrees, power) for power, term in enumerate(terms, 1))
