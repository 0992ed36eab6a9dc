"""Batch sizes that always miss the target, by enumeration of all that may be the case."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from wattwise_server.policy.knowledge_gradient import Constants

from tests.server.policy.reference.gaussians import Floats


@dataclass(frozen=True)
class Edges:
    """Where batch sizes begin to miss the target always, and which ones do so by themselves.

    Attributes:
        octaves: log2 of the batch sizes.
        reached: Whether each of them has reached the target.
        misses: ln of the probability of all misses of each of them, if it does not always miss.
        constants: The constants.
        elsewhere: Whether each of them has reached the target in prior jobs: the edges lie outside these, too.
    """

    octaves: Sequence[float]
    reached: Sequence[bool]
    misses: Sequence[float]
    constants: Constants
    elsewhere: Sequence[bool] = ()

    def side(self, distances: Sequence[float]) -> Iterator[float]:
        """The prior probability that an edge lies right before each batch size on one side, and that none does."""
        rate, so_far = self.constants.edge, 0.0
        for distance in distances:
            beyond = 1 - math.exp(-rate * distance)
            yield beyond - so_far
            so_far = beyond
        yield 1 - so_far

    def cases(self) -> Iterator[tuple[float, Sequence[bool]]]:
        """What may be the case, as the batch sizes that always miss, with its prior probability times the likelihood.

        Batch sizes that have reached the target do not; the edges lie outside them.
        """
        x, places = self.octaves, range(len(self.octaves))
        usable = [place for place in places if self.reached[place] or (self.elsewhere and self.elsewhere[place])]
        first, last = (usable[0], usable[-1]) if usable else (0, len(x) - 1)
        upper = list(self.side([x[place] - x[last] for place in range(last + 1, len(x))]))
        lower = list(self.side([x[first] - x[place] for place in range(first - 1, -1, -1)]))
        open_places = [place for place in places if not self.reached[place]]
        for above, below in itertools.product(range(len(upper)), range(len(lower))):
            for flags in itertools.product((False, True), repeat=len(open_places)):
                weight = upper[above] * lower[below]
                apart = {place for place, flag in zip(open_places, flags, strict=True) if flag}
                always = [place in apart or place >= last + 1 + above or place <= first - 1 - below for place in places]
                for place in open_places:
                    weight *= self.constants.apart if place in apart else 1 - self.constants.apart
                    weight *= 1.0 if always[place] else math.exp(self.misses[place])
                yield weight, always

    @property
    def always(self) -> Floats:
        """The probability that each batch size always misses the target."""
        return self.probability(None)

    def always_after(self, reached: int) -> Floats:
        """The same once one more has reached the target."""
        return self.probability(reached)

    def probability(self, reached: int | None) -> Floats:
        """The share of the cases, of those in which a batch size does not always miss."""
        cases = [(weight, always) for weight, always in self.cases() if reached is None or not always[reached]]
        total = sum(weight for weight, _ in cases)
        found = np.zeros(len(self.octaves))
        for weight, always in cases:
            found += weight / total * np.array(always)
        return found
