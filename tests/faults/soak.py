"""The length of soak tests: `SOAK=short` takes minutes, otherwise full length."""

from __future__ import annotations

import os


def number(usual: int, *, short: int) -> int:
    """The number of repetitions in this run."""
    return short if os.environ.get("SOAK") == "short" else usual
