"""Synthetic workloads, shaped like measured ones.

Batch sizes are powers of two. Over x, the logarithm of the batch size as the distance from the best one:

    epochs to the target    e(x) = e₀ · (1 + a · x²), times e^(s·Z) in each run, Z ~ N(0, 1): noise
    an epoch's time         t(x) = t₀ · (1/4 + 2^−x): larger batches use the GPU better, with less and less to gain
    an epoch's power        at limit p: min(p, demand), demand rising with x; slower by (demand / p)^0.7 below it

so that the cost over x has one minimum. The ends, the smallest and the largest batch sizes, do not converge: their runs
never reach the target. Training ends after as many epochs as the longest run would take.
"""

from __future__ import annotations

import math

import numpy as np

from wattwise_replay.workload import BatchSize, PowerPoint, RecordedRun, Workload, validated

_RUNS = 6
_LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
_FEWEST_EPOCHS, _CURVATURE = 12.0, 0.35
_EPOCH_SECONDS = 30.0


def synthetic(seed: int, sizes: int = 8, noise: float = 0.08, failing_ends: int = 1) -> Workload:
    """Generates a workload.

    Args:
        seed: The same seed gives the same workload.
        sizes: Number of batch sizes; at least 3.
        noise: s above: the standard deviation of the logarithm of a run's epochs.
        failing_ends: Number of batch sizes at each end that never reach the target.
    """
    rng = np.random.default_rng(seed)
    able = range(failing_ends, sizes - failing_ends)
    best = rng.uniform(able.start, able.stop - 1)
    batch_sizes = []
    longest = 0
    for place in range(sizes):
        epochs = _epochs(rng, place - best, noise)
        longest = max(longest, *epochs)
        runs = tuple(RecordedRun(epoch if place in able else None) for epoch in epochs)
        batch_sizes.append(BatchSize(16 << place, runs, tuple(_point(limit, place - best) for limit in _LIMITS)))
    default = batch_sizes[able.stop - 1].size
    name = f"synthetic-{seed}"
    return validated(Workload(name, "simulated", tuple(batch_sizes), default, 0.9, True, longest, max(_LIMITS)))


def _epochs(rng: np.random.Generator, x: float, noise: float) -> list[int]:
    factors = np.exp(noise * rng.standard_normal(_RUNS))
    return [max(1, round(_FEWEST_EPOCHS * (1 + _CURVATURE * x * x) * factor)) for factor in factors]


def _point(limit: float, x: float) -> PowerPoint:
    demand = 160 + 70 * math.tanh(x / 3)
    slower = max(1.0, (demand / limit) ** 0.7)
    return PowerPoint(limit, _EPOCH_SECONDS * (0.25 + 2.0**-x) * slower, min(limit, demand))
