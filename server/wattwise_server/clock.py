"""The time of one process: UTC at its start, moved on by the monotonic clock, so that it never steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

Clock = Callable[[], datetime]


def steady_clock() -> Clock:
    """A clock whose readings never go back, whatever happens to the system's time meanwhile."""
    start, since = datetime.now(timezone.utc), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - since)
