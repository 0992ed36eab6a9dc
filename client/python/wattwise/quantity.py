"""Numbers as users give them."""

from __future__ import annotations

import math


def quantity(given: object) -> float:
    """The number that was given; NaN, which is in no range, for what is none."""
    if isinstance(given, str | bytes | bytearray):
        return math.nan
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
