"""A clock that never steps: UTC at the start of the process plus the time since then, while suspended, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], datetime]

_MICROSECOND = timedelta(microseconds=1)
# Linux's monotonic clock stands still while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_micros() -> int:
    """Returns the microseconds since some moment, with those in which this process or its machine was suspended."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def steady_clock() -> Clock:
    """Returns a clock whose readings never go back, even if the system clock is changed."""
    start, since = datetime.now(timezone.utc), elapsed_micros()
    return lambda: start + _MICROSECOND * (elapsed_micros() - since)
