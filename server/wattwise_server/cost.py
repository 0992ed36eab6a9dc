"""What a trial costs, and how people read it."""

from wattwise import rules
from wattwise.rules import ResolvedJob

_UNITS = (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3), ("J", 1.0))


def cost(spec: ResolvedJob, energy_joules: float | None, time_seconds: float) -> float:
    """Returns the cost of a trial, in joules."""
    return rules.cost(spec.eta_knob, spec.gpu.max_power_watts, energy_joules or 0.0, time_seconds)


def unit_of(joules: float) -> tuple[str, float]:
    """Returns the unit in which a cost is readable, and its size in joules."""
    return next((unit for unit in _UNITS if joules >= unit[1]), _UNITS[-1])


def with_unit(joules: float, deviation: float | None = None) -> str:
    """Writes a cost in a readable unit: "19.1 ± 2.04 kJ"."""
    unit, size = unit_of(joules)
    value = _rounded(joules / size)
    return f"{value} {unit}" if deviation is None else f"{value} ± {_rounded(deviation / size)} {unit}"


def _rounded(value: float) -> str:
    """Rounds to three significant digits, without an exponent: "1230", not "1.23e+03"."""
    return f"{float(f'{value:.3g}'):g}"
