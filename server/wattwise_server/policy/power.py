"""Which GPU power limit trains most cheaply: just-in-time profiling (You, Chung, Chowdhury, NSDI 2023, section 4).

Within one batch size the number of steps to the target does not depend on the power limit, so that the limit whose
single step costs least is the cheapest for the whole training.

Symbols: E energy (J) and T time (s) of n steps at one limit, P max power of all GPUs together (W), η energy/time
balance.
"""

from __future__ import annotations

from collections.abc import Iterable

from wattwise_server.domain import JobSpec, PowerSample
from wattwise_server.policy.cost import cost


def cost_per_step(spec: JobSpec, sample: PowerSample) -> float:
    """The cost `(η·E/T + (1−η)·P) · T/n` of one step, in joules (NSDI 2023, section 4)."""
    return cost(spec, sample.energy_joules, sample.time_seconds) / sample.steps


def cheapest(spec: JobSpec, samples: Iterable[PowerSample]) -> PowerSample:
    """The sample whose step costs least; of equally cheap ones that of the lowest limit.

    Args:
        spec: The job.
        samples: At least one.
    """
    return min(samples, key=lambda sample: (cost_per_step(spec, sample), sample.power_limit_watts))
