"""Formats quantities for people."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timezone
from typing import TYPE_CHECKING, Any, cast

from wattwise import v1
from wattwise.monitor.kind import EnergyQuality, EnergySource, energy_quality

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


MINUS = "\N{MINUS SIGN}"
_PREFIXES = ("", "k", "M", "G", "T", "P")


def number(value: float, digits: int = 3) -> str:
    """Returns a number with so many significant digits, thousands set apart: "1,240", "0.0312", "−3.1", "NaN", "∞"."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-6 or size >= 1e9:
        text = f"{size:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    else:
        decimals = max(0, digits - 1 - math.floor(math.log10(float(f"{size:.{digits - 1}e}"))))
        text = f"{size:,.{decimals}f}"
        if "." in text and size >= 100:
            text = text.rstrip("0").rstrip(".")
    return f"{MINUS}{text}" if value < 0 else text


def metric(value: float) -> str:
    """Returns a metric with up to four significant digits."""
    text = number(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def joules(value: float) -> str:
    """Returns joules as three digits with a unit prefix: "0.523 J", "−1.20 MJ"; "unknown" if they are not finite."""
    if not math.isfinite(value):
        return "unknown"
    if not value:
        return "0.00 J"
    if abs(value) < 0.01:
        return f"{number(1000 * value)} mJ"
    prefix = 0
    while abs(value) >= 999.5 and prefix < len(_PREFIXES) - 1:
        value, prefix = value / 1000, prefix + 1
    return f"{number(value)} {_PREFIXES[prefix]}J"


def energy(value: float) -> str:
    """Returns an energy in the unit of bills from 0.1 kWh on: "12.3 kJ", "0.342 kWh", "1.20 MWh"."""
    kilowatt_hours = value / 3.6e6
    if not 0.1 <= abs(kilowatt_hours) < math.inf:
        return joules(value)
    if abs(kilowatt_hours) >= 1000:
        return f"{number(kilowatt_hours / 1000)} MWh"
    return f"{number(kilowatt_hours)} kWh"


_LEAST_MONEY = 1e-6
"""Smaller amounts of money have one text."""


def money(value: float, currency: str) -> str:
    """Returns an amount of a currency, with cents or three digits below 1: "1,234.50 EUR", "0.0312 EUR"."""
    if abs(value) < _LEAST_MONEY:
        return f"{'<0.000001' if value else '0.00'} {currency}".rstrip()
    return f"{number(value) if 0 < abs(value) < 1 else _signed(value, 2)} {currency}".rstrip()


def carbon(grams: float) -> str:
    """Returns grams, kilograms or tonnes of CO2 equivalent: "512 g", "−1.20 kg"."""
    for unit, size in (("t", 1e6), ("kg", 1e3)):
        if abs(grams) >= size:
            return f"{number(grams / size)} {unit}"
    return f"{number(grams)} g"


def _signed(value: float, decimals: int) -> str:
    """Returns a number with a minus sign, and with commas between thousands: "−1,234.50"."""
    return f"{value:,.{decimals}f}".replace("-", MINUS)


_LARGEST_PERCENT = 999
"""Larger shares are said as such: they come from a baseline of nearly nothing."""


def percent(share: float) -> str:
    """Returns a share as a whole percentage that is 0% and 100% only of those: "44%", "<1%", ">99%", ">999%"."""
    if not math.isfinite(share):
        return "unknown"
    rounded = round(100 * share)
    if 0 < share < 0.01:
        return "<1%"
    if rounded == 100 and share < 1:
        return ">99%"
    return f">{_LARGEST_PERCENT}%" if rounded > _LARGEST_PERCENT else f"{rounded}%"


def duration(seconds: float) -> str:
    """Returns the two largest units: "3 h 07 min", "8.2 s", "−8.2 s", "12 ms"; "unknown" if seconds are not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"{MINUS}{duration(-seconds)}"
    if seconds < 59.95:
        return f"{number(1000 * seconds, 2)} ms" if 0 < seconds < 0.095 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02} h"


def age(seconds: float) -> str:
    """Returns an age in one unit, which begins with 2 of it: "45 s", "12 min", "3 h", "40 d"; "0 s" below 0."""
    size = max(0, int(seconds))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if size >= 2 * length:
            return f"{size // length} {unit}"
    return f"{size} s"


def epochs(mean: float) -> str:
    """Returns a mean number of epochs: "6", "6.5", "1,240"."""
    return f"{mean:,.1f}".removesuffix(".0")


def moment(timestamp: Timestamp) -> str:
    """Returns a time to the second, in UTC: "2026-11-21 02:43:05 UTC"."""
    return timestamp.ToDatetime(tzinfo=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def exact_moment(timestamp: Timestamp) -> str:
    """Returns a time for programs, to the second, in UTC, as in ISO 8601: "2026-11-21T02:43:05Z"."""
    return timestamp.ToDatetime(tzinfo=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(timestamp: Timestamp) -> str:
    """Returns a time for programs, to the millisecond, in UTC, as in ISO 8601: "2026-11-21T02:43:05.128Z"."""
    return timestamp.ToDatetime(tzinfo=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


PLUS_MINUS = "± is one standard deviation of what is known of the expected cost."
"""What ± means on the page and in tables."""


def spread(precision: float, text: Callable[[float], str]) -> str:
    """Returns the standard deviation 1/√precision as a text, for a precision in 1/joules²; 0 is "unknown"."""
    return "unknown" if precision <= 0 else text(1 / math.sqrt(precision))


COMPUTED_MARK = " (computed)"
"""The mark behind costs that follow from computed usage instead of the measured one, in observer mode."""

COMPUTED_NOTE = "computed for the cheapest power limit, not measured"
"""What a table says of such costs."""

ESTIMATE_MARK = "~"
"""The mark before an energy that is an estimate, and before the cost, money or CO2 that follows from such an energy."""

ESTIMATE_NOTE = "estimates, wholly or in part"
"""What the mark means."""


def quality_of(*sources: EnergySource) -> EnergyQuality:
    """Returns how much of an energy from these sources was measured. Sources without a kind do not count."""
    known = {energy_quality(source) for source in sources if source.kinds}
    if known <= {EnergyQuality.MEASURED}:
        return EnergyQuality.MEASURED
    return EnergyQuality.ESTIMATED if known == {EnergyQuality.ESTIMATED} else EnergyQuality.PARTLY_ESTIMATED


def estimate_mark(*sources: EnergySource) -> str:
    """Returns the mark before amounts that follow from the energy of these sources; empty if all of it was measured."""
    return "" if quality_of(*sources) is EnergyQuality.MEASURED else ESTIMATE_MARK


def marked(text: Callable[[float], str], mark: str) -> Callable[[float], str]:
    """Returns the function `text` with a mark before every amount that is known."""
    return lambda value: f"{mark}{text(value)}" if math.isfinite(value) else text(value)


def optional(message: Any, name: str) -> Any:
    """Returns an optional field of a message; None if it is unset."""
    return getattr(message, name) if message.HasField(name) else None


def energy_of(sums: v1.Measurement | v1.ComputedUsage) -> float | None:
    """Returns the energy in joules; None if none was measured."""
    return cast("float | None", optional(sums, "energy_joules"))


def step_energy(limit: v1.ProfiledLimit | v1.PowerLimit) -> float | None:
    """Returns the energy of a step in joules; None if none was measured."""
    return cast("float | None", optional(limit, "energy_joules_per_step"))


def watts_per_gpu(watts: float) -> str:
    """Returns a power limit: "250 W per GPU"."""
    return f"{watts:g} W per GPU"


def step_time(seconds: float) -> str:
    """Returns the duration of a training step: "0.25 s"."""
    return f"{seconds:.3g} s"


def seconds_since(timestamp: Timestamp) -> float:
    """Returns the seconds since a time."""
    return time.time() - timestamp.ToNanoseconds() / 1e9
