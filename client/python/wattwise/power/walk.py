"""The walk over power limits: just-in-time profiling (You, Chung, Chowdhury, NSDI 2023, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattwise import v1
from wattwise.training.rules import cost

_DEARER_IN_A_ROW = 2
"""The cost over the limits has one valley: two limits in a row that cost more than the best are its other side."""


def limits_between(lowest_watts: float, highest_watts: float, step_watts: float) -> list[float]:
    """The limits to walk, from the highest downwards in equal steps; none is below the lowest."""
    count = int((highest_watts - lowest_watts) / step_watts + 1e-9) + 1
    return [highest_watts - number * step_watts for number in range(count)]


def cost_per_step(spec: v1.JobSpec, sample: v1.PowerSample) -> float:
    """The cost `(η·average power + (1−η)·P)·time per step`, in joules; P is the max power of all GPUs together."""
    return cost(spec, sample.time_seconds, sample.energy_joules) / sample.steps


class Walk:
    """Goes from limit to limit until two in a row cost more than the best, or none is left.

    Args:
        limits: in watts, in the order in which they are visited; at least one.
        cost: what a step of a sample costs.

    Attributes:
        samples: what was measured so far, in that order.
        best: the cheapest of it, of equally cheap ones the lowest limit; None before the first.
    """

    def __init__(self, limits: Sequence[float], cost: Callable[[v1.PowerSample], float]) -> None:
        self._limits = tuple(limits)
        self._cost = cost
        self._dearer = 0
        self.samples: list[v1.PowerSample] = []
        self.best: v1.PowerSample | None = None

    @property
    def limit(self) -> float | None:
        """The limit to measure now, in watts; None once the walk is over."""
        if self._dearer == _DEARER_IN_A_ROW or len(self.samples) == len(self._limits):
            return None
        return self._limits[len(self.samples)]

    @property
    def length(self) -> int:
        """How many limits the walk may visit."""
        return len(self._limits)

    def take(self, sample: v1.PowerSample) -> None:
        """Goes on to the next limit.

        Args:
            sample: what was measured at `limit`.
        """
        self.samples.append(sample)
        if self.best is None or self._rank(sample) < self._rank(self.best):
            self.best, self._dearer = sample, 0
        elif self._cost(sample) > self._cost(self.best):
            self._dearer += 1
        else:
            self._dearer = 0

    def _rank(self, sample: v1.PowerSample) -> tuple[float, float]:
        return self._cost(sample), sample.power_limit_watts
