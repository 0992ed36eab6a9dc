"""The length of soak tests: `SOAK=short` takes minutes, `SOAK=long` hours."""

from __future__ import annotations

import os


def quiet() -> bool:
    """Whether times are bars: not in a short run, beside which others use the machine."""
    return os.environ.get("SOAK", "") != "short"


def number(usual: int, *, short: int, long: int | None = None) -> int:
    """The number of repetitions, or of seconds, in this run."""
    named = {"short": short, "long": usual if long is None else long}
    return named.get(os.environ.get("SOAK", ""), usual)
