"""A profile of power limits as a trainer sent it, and whether it can be one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattwise_server.domain import JobSpec, PowerSample
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.policy.power import cost_per_step
from wattwise_server.usecases.report import LARGEST_COST

MOST_SAMPLES = 1000
"""Far more limits than any GPU can be set to with a difference that shows."""


def check_profile(spec: JobSpec, samples: Sequence[PowerSample]) -> None:
    """Lets a profile in, or not.

    Raises:
        InvalidRequestError: with one violation per fault.
    """
    if not samples:
        raise InvalidRequestError(Violation("samples", "is empty; report what was measured at one power limit or more"))
    if len(samples) > MOST_SAMPLES:
        raise InvalidRequestError(Violation("samples", f"has {len(samples)}; report {MOST_SAMPLES} at most"))
    faults = []
    seen: set[float] = set()
    for place, sample in enumerate(samples):
        found = _faults(spec, sample)
        if sample.power_limit_watts in seen:
            said = f"{sample.power_limit_watts:g} is listed twice; report every limit once"
            found.append(("power_limit_watts", said))
        seen.add(sample.power_limit_watts)
        faults += [Violation(f"samples[{place}].{name}", fault) for name, fault in found]
    if faults:
        raise InvalidRequestError(*faults)


def _faults(spec: JobSpec, sample: PowerSample) -> list[tuple[str, str]]:
    faults = []
    for name, value, unit in (
        ("power_limit_watts", sample.power_limit_watts, "watts of one GPU's limit"),
        ("time_seconds", sample.time_seconds, "seconds that the steps took"),
    ):
        if not 0 < value < math.inf:
            faults.append((name, f"is {value}; report the {unit}, above 0 and finite"))
    if not 0 <= sample.energy_joules < math.inf:
        faults.append(("energy_joules", f"is {sample.energy_joules}; report joules of all GPUs, finite and 0 or more"))
    if sample.steps < 1:
        faults.append(("steps", f"is {sample.steps}; report how many steps were measured, 1 or more"))
    if not faults and not cost_per_step(spec, sample) <= LARGEST_COST:
        faults.append(("energy_joules", f"makes the cost exceed {LARGEST_COST:g} J; report joules and seconds"))
    return faults
