"""The likelihood of a trial: usual and unusual trials of one batch size.

A trial of a batch size with e = E[ln E] is usual with probability 1 − u. Then ln E ~ N(e, s²). Otherwise it reaches the
target with probability w, with ln E ~ N(e, s² + τ²), or never does. A trial that missed the target after n epochs says
that E > n, or that its batch size always misses (`edges`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats

TINY = 1e-300
"""Keeps logarithms and quotients of probabilities finite."""


class Rates(NamedTuple):
    """The rates by which the trials of a job differ.

    Attributes:
        noise: s², by batch size (n,).
        unusual: u.
        reaches: w.
    """

    noise: Floats
    unusual: float
    reaches: float


def likelihoods(error: Floats, variance: Floats, rates: Rates, spread: float) -> tuple[Floats, Floats]:
    """Returns the likelihood of each trial that reached the target, if it is usual and if it is unusual."""
    wide, squares = variance + spread, -0.5 * error * error
    usual = (1 - rates.unusual) * np.exp(squares / variance) / np.sqrt(variance) + TINY
    return usual, rates.unusual * rates.reaches * np.exp(squares / wide) / np.sqrt(wide) + TINY


def later(late: Floats, variance: Floats, rates: Rates, constants: Constants) -> Floats:
    """Returns P(E > n) of a trial whose batch size does not always miss the target.

    Args:
        late: ln n, less the expected ln E.
        variance: Of ln E of a usual trial, with that of the belief.
        rates: u and w.
        constants: The constants.
    """
    far = rates.reaches * fast_tail(late / np.sqrt(variance + constants.unusual_spread**2))
    return np.asarray(
        (1 - rates.unusual) * fast_tail(late / np.sqrt(variance)) + rates.unusual * (1 - rates.reaches + far)
    )


_erfc = np.frompyfunc(math.erfc, 1, 1)


def tail(z: Floats) -> Floats:
    """Returns P(Z > z) of a standard normal, exact also where it is tiny; slow."""
    return 0.5 * np.asarray(_erfc(z / math.sqrt(2)), float)


def fast_tail(z: Floats) -> Floats:
    """Returns P(Z > z) of a standard normal (Page, Applied Statistics 26(1), 1977; absolute error below 2e-4)."""
    return np.asarray(0.5 - 0.5 * np.tanh(math.sqrt(2 / math.pi) * z * (1 + 0.044715 * (z * z))))


def hazard(z: Floats, probability: Floats) -> Floats:
    """Returns E[Z | Z > z] of a standard normal; from 8 on by its asymptote."""
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return np.where(z > 8, z + 1 / np.maximum(z, 1), density / np.maximum(probability, TINY))
