"""Batch sizes that always miss the target: those beyond an edge on either side, and single ones.

A training diverges, or never gets as good, from some batch size on. Where that edge lies is unknown: starting from the
batch sizes that have reached the target, it comes at a constant rate per octave. A batch size that missed the target
either lies beyond an edge, or its trials missed for another reason.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats


class Edges(NamedTuple):
    """The probability that batch sizes always miss the target (n,).

    Attributes:
        above: That a batch size lies beyond the upper edge; it never decreases with the batch size.
        below: That it lies below the lower edge.
        apart: That it misses by itself.
        reached: Whether it has reached the target, and hence does not.
    """

    above: Floats
    below: Floats
    apart: Floats
    reached: NDArray[np.bool_]

    @property
    def always(self) -> Floats:
        """The probability that a batch size always misses the target."""
        return self._always(self.above, self.below)

    def always_after(self, places: NDArray[np.int64]) -> Floats:
        """Returns P(always misses) once each of some places (m,) has reached the target (m, n)."""
        above, below = (_without(each, each[places, None]) for each in (self.above, self.below))
        always = self._always(above, below)
        always[np.arange(len(places)), places] = 0.0
        return always

    def _always(self, above: Floats, below: Floats) -> Floats:
        return np.where(self.reached, 0.0, 1 - (1 - np.minimum(above + below, 1)) * (1 - self.apart))


def _without(beyond: Floats, excluded: Floats) -> Floats:
    """Returns the probability of lying beyond an edge that is not among the nearest, which had this probability."""
    return np.asarray(np.maximum(beyond - excluded, 0) / np.maximum(1 - excluded, 1e-9))


def edges(
    octaves: Floats, reached: Floats, misses: Floats, constants: Constants, *, elsewhere: Floats | None = None
) -> Edges:
    """Returns what the trials say about the edges.

    Args:
        octaves: log2 of the batch sizes (n,), ascending.
        reached: The number of trials that reached the target (n,).
        misses: ln of the probability of all misses of a batch size if it does not always miss; 0 without misses (n,).
        constants: The constants.
        elsewhere: The number of trials that reached the target in prior jobs (n,): the edges lie beyond these, too.
    """
    otherwise = np.exp(misses)
    # 1 for a batch size without a miss: nothing is known about it.
    single = constants.apart + (1 - constants.apart) * otherwise
    apart = constants.apart / single
    usable = np.flatnonzero(reached if elsewhere is None else reached + elsewhere)
    count = len(octaves)
    above, below = np.zeros(count), np.zeros(count)
    if len(usable):
        first, last = int(usable[0]), int(usable[-1])
        above[last + 1 :] = _beyond(octaves[last:] - octaves[last], single[last + 1 :], constants.edge)
        downwards = _beyond((octaves[first] - octaves[: first + 1])[::-1], single[:first][::-1], constants.edge)
        below[:first] = downwards[::-1]
    return Edges(above, below, apart, reached > 0)


def _beyond(distances: Floats, single: Floats, rate: float) -> Floats:
    """Returns the probability that each batch size (m,) lies beyond the edge.

    Args:
        distances: Octaves from the last batch size that reached the target, which comes first: 0 (m + 1,).
        single: The likelihood of the misses of each batch size that does not lie beyond the edge (m,).
        rate: Of the edge, per octave.
    """
    found, alive, likelihood = [], 1.0, 1.0
    for gap, each in zip(np.diff(distances).tolist(), single.tolist(), strict=True):
        here = math.exp(-rate * gap)
        found.append(alive * (1 - here) * likelihood)
        alive *= here
        likelihood *= each
    total = sum(found) + alive * likelihood
    return np.cumsum(found) / total if found else np.zeros(0)
