"""The time of one process: UTC at its start, moved on by the monotonic clock, so that it never steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], datetime]

_MICROSECOND = timedelta(microseconds=1)


def steady_clock() -> Clock:
    """A clock whose readings never go back, whatever happens to the system's time meanwhile."""
    start, since = datetime.now(timezone.utc), time.monotonic_ns()
    return lambda: start + _MICROSECOND * ((time.monotonic_ns() - since) // 1000)
