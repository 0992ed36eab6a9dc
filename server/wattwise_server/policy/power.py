"""The cheapest GPU power limit: just-in-time profiling (You, Chung, Chowdhury, NSDI 2023, section 4).

For one batch size the number of steps to the target does not depend on the power limit, so the limit with the cheapest
step is the cheapest for the whole training.

Symbols: E energy (J) and T time (s) of n steps at one limit, P max power of all GPUs together (W), η energy/time
balance.
"""

from __future__ import annotations

from collections.abc import Iterable

from wattwise.rules import ResolvedJob

from wattwise_server.cost import cost
from wattwise_server.domain import PowerSample


def cost_per_step(spec: ResolvedJob, sample: PowerSample) -> float:
    """Returns the cost `(η·E/T + (1−η)·P) · T/n` of one step, in joules (NSDI 2023, section 4)."""
    return cost(spec, sample.energy_joules, sample.time_seconds) / sample.steps


def cheapest(spec: ResolvedJob, samples: Iterable[PowerSample]) -> PowerSample:
    """Returns the sample with the cheapest step; among equals the lowest limit. There is at least one sample.

    A sample without energy has the cost of its time alone. It is chosen only if no sample has energy, or if energy
    costs nothing.
    """

    def rank(sample: PowerSample) -> tuple[bool, float, float]:
        lacks_energy = spec.eta_knob > 0 and sample.energy_joules is None
        return lacks_energy, cost_per_step(spec, sample), sample.limit_watts_per_gpu

    return min(samples, key=rank)
