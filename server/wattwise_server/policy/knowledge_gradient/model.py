"""The prior of a job: the laws and processes of ln E and ln c at its batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattwise_server.policy.knowledge_gradient.constants import Constants, Deviation
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats, Mixture

_VAGUE = 25.0
"""Variance of the constant of k: nothing is known about it."""


@dataclass(frozen=True, eq=False)
class Model:
    """The prior of a job with n batch sizes.

    Attributes:
        constants: The constants.
        octaves: x = log2 of the batch sizes, ascending (n,).
        epochs: The prior of e: the laws 1 + b/B and 1 + b/B + L/b, with a process of each amplitude.
        epoch_cost: The prior of k: the laws 1 + K/b, with one process.
    """

    constants: Constants
    octaves: Floats
    epochs: Mixture
    epoch_cost: Mixture


@lru_cache(maxsize=256)
def model(batch_sizes: tuple[int, ...], constants: Constants) -> Model:
    """Returns the model of jobs with these batch sizes, ascending.

    B and K lie on knots 1.5 octaves apart, L on every other of the lower half.
    """
    octaves: Floats = np.log2(batch_sizes)
    knots = np.arange(octaves[0] - 2, octaves[-1] + 2.01, 1.5)
    ratio = 2.0 ** (octaves[:, None] - knots)
    # Only where batches are small for the job.
    left = knots[knots < (octaves[0] + octaves[-1]) / 2][::2]
    risen = [np.log(1 + ratio + 2.0 ** (knot - octaves)[:, None]) for knot in left]
    flat, rise = np.full(len(knots), 1 / len(knots)), constants.rise
    epochs = _mixture(
        octaves,
        constants.laws * np.hstack([np.log(1 + ratio), *risen]),
        np.concatenate([flat * (1 - rise)] + [flat * rise / len(left)] * len(left)),
        constants.epochs_deviations,
        constants.epochs_apart,
        variance=constants.usual_spread**2,
        center=math.log(constants.usual_epochs),
    )
    laws = constants.laws * np.log(1 + 1 / ratio)
    epoch_cost = _mixture(
        octaves, laws, flat, [constants.cost_deviation], constants.cost_apart, variance=_VAGUE, center=None
    )
    return Model(constants, octaves, epochs, epoch_cost)


def _mixture(
    octaves: Floats,
    curves: Floats,
    weights: Floats,
    processes: Sequence[Deviation],
    apart: float,
    *,
    variance: float,
    center: float | None,
) -> Mixture:
    """Laws with processes: kernels are the sum of a constant, a squared exponential and a part of each batch size."""
    distance = (octaves[:, None] - octaves) ** 2
    smooth = [each.amplitude**2 * np.exp(-distance / (2 * each.octaves**2)) for each in processes]
    kernels = variance + np.array(smooth) + apart**2 * np.eye(len(octaves))
    return Mixture(curves, weights, kernels, np.array([each.amplitude for each in processes]), center)
