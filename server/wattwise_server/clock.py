"""A clock that never steps: UTC at the start of the process plus the monotonic time since then."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], datetime]

_MICROSECOND = timedelta(microseconds=1)


def steady_clock() -> Clock:
    """A clock whose readings never go back, even if the system clock is changed."""
    start, since = datetime.now(timezone.utc), time.monotonic_ns()
    return lambda: start + _MICROSECOND * ((time.monotonic_ns() - since) // 1000)
