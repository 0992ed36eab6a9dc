"""How long a soak test is: `SOAK=short` for whoever must know within minutes, else as long as it takes."""

from __future__ import annotations

import os


def number(usual: int, *, short: int) -> int:
    """How many of something this run does."""
    return short if os.environ.get("SOAK") == "short" else usual
