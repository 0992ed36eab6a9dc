"""Workloads that nobody measured, of a shape that measured ones have.

Batch sizes are powers of two. Over x, the logarithm of the batch size as the distance from the best one:

    epochs to the target    e(x) = e₀ · (1 + a · x²), times e^(s·Z) in each run, Z ~ N(0, 1): noise
    an epoch's time         t(x) = t₀ · (1/4 + 2^−x): larger batches use the GPU better, with less and less to gain
    an epoch's power        at limit p: min(p, demand), demand rising with x; slower by (demand / p)^0.7 below it

so that the cost over x has one minimum, and the ends, the smallest and the largest batch sizes, do not converge: their
runs never reach the target.
"""

from __future__ import annotations

import math

import numpy as np

from wattwise_replay.workload import BatchSize, PowerPoint, Run, Workload, checked

_RUNS = 6
_LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
_FEWEST_EPOCHS, _CURVATURE = 12.0, 0.35
_EPOCH_SECONDS = 30.0
_MAX_EPOCHS = 100


def synthetic(seed: int, sizes: int = 8, noise: float = 0.08, failing_ends: int = 1) -> Workload:
    """Makes a workload.

    Args:
        seed: The same seed makes the same workload.
        sizes: How many batch sizes; at least 3.
        noise: s above: the standard deviation of the logarithm of a run's epochs.
        failing_ends: How many batch sizes at either end never reach the target.
    """
    rng = np.random.default_rng(seed)
    best = rng.uniform(failing_ends, sizes - 1 - failing_ends)
    made = tuple(_batch_size(rng, place, best, sizes, noise, failing_ends) for place in range(sizes))
    default = made[sizes - 1 - failing_ends].size
    return checked(Workload(f"synthetic-{seed}", "made", made, default, 0.9, True, _MAX_EPOCHS, max(_LIMITS)))


def _batch_size(
    rng: np.random.Generator, place: int, best: float, sizes: int, noise: float, failing_ends: int
) -> BatchSize:
    x = place - best
    fails = place < failing_ends or place >= sizes - failing_ends
    factors = np.exp(noise * rng.standard_normal(_RUNS))
    epochs = [max(1, round(_FEWEST_EPOCHS * (1 + _CURVATURE * x * x) * factor)) for factor in factors]
    runs = tuple(Run(None if fails or epoch > _MAX_EPOCHS else epoch) for epoch in epochs)
    return BatchSize(16 << place, runs, tuple(_point(limit, x) for limit in _LIMITS))


def _point(limit: float, x: float) -> PowerPoint:
    demand = 160 + 70 * math.tanh(x / 3)
    slower = max(1.0, (demand / limit) ** 0.7)
    return PowerPoint(limit, _EPOCH_SECONDS * (0.25 + 2.0**-x) * slower, min(limit, demand))
