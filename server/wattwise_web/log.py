"""The log of the page, which is limited so that visitors without a login cannot flood it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

_SECONDS = 60.0
_BURST = 5
_CHECK_SECONDS = 10.0


@dataclass
class _Kind:
    """Records of one kind: when their minute began, how many there were, and the newest one that was left out."""

    begun: float
    count: int = 0
    newest: logging.LogRecord | None = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """A handler that writes five records of a kind per minute, and the number of the others after the minute.

    Records of one kind come from the same line of code.

    Args:
        stream: where they are written.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        # By file and line, the oldest minute first.
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes or counts a record."""
        self.write_numbers()
        kind = self._kinds.setdefault((record.pathname, record.lineno), _Kind(self._clock()))
        kind.count += 1
        if kind.count <= _BURST:
            super().emit(record)
        else:
            kind.newest = record

    def write_numbers(self, *, early: bool = False) -> None:
        """Writes how many records were left out in the minutes that are over, or, if early, until now."""
        self.acquire()
        try:
            for line, kind in list(self._kinds.items()):
                if not early and self._clock() - kind.begun < _SECONDS:
                    break
                del self._kinds[line]
                if kind.newest is not None:
                    super().emit(_number(kind.newest, kind.count - _BURST))
        finally:
            self.release()

    async def write_numbers_regularly(self, pause: float = _CHECK_SECONDS) -> None:
        """Writes the numbers also if nothing else is logged, until it is cancelled."""
        while True:
            await asyncio.sleep(pause)
            self.write_numbers()


def _number(newest: logging.LogRecord, count: int) -> logging.LogRecord:
    try:
        text = newest.getMessage().partition("\n")[0]
    except (TypeError, ValueError):
        # Its arguments do not fit its text, as the records before it have shown.
        text = str(newest.msg)
    return logging.makeLogRecord(
        {
            "name": newest.name,
            "levelno": newest.levelno,
            "levelname": newest.levelname,
            "msg": f"{text} ({count:,} more {'was' if count == 1 else 'were'} left out)",
        }
    )
