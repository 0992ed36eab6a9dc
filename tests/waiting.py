"""Waiting for a fact, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(fact: Callable[[], bool], seconds: float = 20.0) -> None:
    """Returns once the fact holds.

    Raises:
        TimeoutError: when it has not come to hold in time.
    """
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.02)
