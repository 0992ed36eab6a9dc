"""How many streams are open, and that they don't become too many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wattwise_server.errors import TooManyStreamsError


class OpenStreams:
    """Counts the streams of one server.

    Args:
        limit: how many may be open at a time; 0 is no limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts one stream for as long as the block lasts.

        Raises:
            TooManyStreamsError: there is no room for it.
        """
        if self._limit and self.count >= self._limit:
            raise TooManyStreamsError(self._limit)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
