"""The calls that lead to a callback: what a trainer does not pass to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FrameType


def callers() -> Iterator[FrameType]:
    """Yields the frames of the running calls, the newest first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
