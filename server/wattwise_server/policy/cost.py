"""A trial's cost and its bound.

Symbols: E energy (J), T time (s), P max power of all GPUs together (W), η energy/time balance, β early-stopping factor.
"""

from wattwise_server.domain import JobSpec, Search

UNBOUNDED_PENALTY_FACTOR = 2.0
"""Replaces β in `missed_floor` where early stopping is off."""

_MOST_DOUBLINGS = 64
"""Keeps the bound finite; no real cost is 2^64 times the cheapest."""

_UNITS = (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3), ("J", 1.0))


def cost(spec: JobSpec, energy_joules: float | None, time_seconds: float) -> float:
    """The cost of a trial, in joules."""
    return weighed(spec.eta_knob, spec.gpu.max_power_watts, energy_joules or 0.0, time_seconds)


def weighed(eta: float, max_power_watts: float, energy_joules: float, time_seconds: float) -> float:
    """The cost `η·E + (1−η)·P·T`, in joules (NSDI 2023, equation 2)."""
    return eta * energy_joules + (1 - eta) * max_power_watts * time_seconds


def cost_bound(spec: JobSpec, search: Search, batch_size: int) -> float | None:
    """The cost `β·min_cost` at which a trial is stopped (NSDI 2023, section 4.4); None while there is none.

    `min_cost` is that of the batch sizes that may be chosen. A job always delivers: after two trials in a row that were
    stopped at the bound it doubles with each further one, and the best known batch size has none.
    """
    if spec.beta_knob is None or not search.min_cost or batch_size == search.min_cost_batch_size:
        return None
    return spec.beta_knob * search.min_cost * relaxation(search.bound_stops)


def relaxation(bound_stops: int) -> float:
    """The factor of a bound: it doubles with each trial that it stops, after two in a row."""
    return 2.0 ** min(max(0, bound_stops - 1), _MOST_DOUBLINGS)


def missed_floor(spec: JobSpec, min_cost: float | None) -> float:
    """Returns the least cost in joules that a trial without convergence counts as, so that it never looks cheap.

    Args:
        spec: The job.
        min_cost: That of its search.
    """
    if min_cost is None:
        return 0.0
    factor = UNBOUNDED_PENALTY_FACTOR if spec.beta_knob is None else spec.beta_knob
    return factor * min_cost


def unit_of(joules: float) -> tuple[str, float]:
    """The unit in which a cost is readable, and its size in joules."""
    return next((unit for unit in _UNITS if joules >= unit[1]), _UNITS[-1])


def with_unit(joules: float, deviation: float | None = None) -> str:
    """A cost in a readable unit: "19.1 ± 2 kJ"."""
    unit, size = unit_of(joules)
    value = _rounded(joules / size, 3)
    return f"{value} {unit}" if deviation is None else f"{value} ± {_rounded(deviation / size, 2)} {unit}"


def _rounded(value: float, digits: int) -> str:
    """Rounded to significant digits, without an exponent: "190", not "1.9e+02"."""
    return f"{float(f'{value:.{digits}g}'):g}"
