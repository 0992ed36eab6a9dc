"""What a trial costs.

Symbols: E energy (J), T time (s), P max power of all GPUs together (W), η energy/time balance, β early-stopping factor.
"""

from wattwise_server.domain import JobSpec

UNBOUNDED_PENALTY_FACTOR = 2.0
"""What stands in for β where early stopping is off and a trial that missed the target has to be counted."""


def cost(spec: JobSpec, energy_joules: float, time_seconds: float) -> float:
    """What a trial of a job costs, in joules."""
    return weighed(spec.eta_knob, spec.gpu.max_power_watts, energy_joules, time_seconds)


def weighed(eta: float, max_power_watts: float, energy_joules: float, time_seconds: float) -> float:
    """The cost `η·E + (1−η)·P·T`, in joules (NSDI 2023, equation 2)."""
    return eta * energy_joules + (1 - eta) * max_power_watts * time_seconds


def cost_bound(spec: JobSpec, min_cost: float | None) -> float | None:
    """The cost `β·min_cost` at which a trial is stopped (NSDI 2023, section 4.4); None while there is none."""
    if spec.beta_knob is None or min_cost is None:
        return None
    return spec.beta_knob * min_cost


def missed_floor(spec: JobSpec, min_cost: float) -> float:
    """What a trial that missed its target counts as at least, so that failing fast never looks cheap; in joules."""
    factor = UNBOUNDED_PENALTY_FACTOR if spec.beta_knob is None else spec.beta_knob
    return factor * min_cost
