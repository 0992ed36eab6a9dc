"""Waiting for a condition, with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(fact: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return once the fact holds.

    Raises:
        TimeoutError: If it does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the fact did not hold within {seconds} s")
        time.sleep(0.02)
