"""Work that is repeated while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from wattwise_server.errors import ServiceError
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.process import open_files

log = logging.getLogger(__name__)

_LOG_AGAIN_SECONDS = 60.0


@contextlib.asynccontextmanager
async def repeating(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> AsyncIterator[None]:
    """Repeats work for the length of the block, also after it has failed; `what` names the work in the log."""
    task = asyncio.create_task(_repeat(work, seconds, what), name=f"wattwise: {what}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> None:
    clock = asyncio.get_running_loop().time
    since, logged = 0.0, 0.0
    while True:
        try:
            await work()
            if since:
                log_event(log, logging.INFO, "maintenance resumed", work=what, seconds=round(clock() - since, 3))
                since = 0.0
        except ServiceError as error:
            # The database may be away for hours.
            if not since or clock() - logged >= _LOG_AGAIN_SECONDS:
                logged = clock()
                since = since or logged
                log_event(log, logging.WARNING, "maintenance postponed", work=what, message=str(error))
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next run may succeed
            log_exception(log, "maintenance failed", error, work=what)
        await asyncio.sleep(seconds)


class ConnectionWatch:
    """Warns when no connection is left: gRPC closes further ones without a word.

    Args:
        most: The largest number of connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._own = open_files()
        self._full = False

    async def look(self) -> None:
        """Logs that the connections are used up, once until some are free again."""
        full = open_files() - self._own >= self._most
        if full and not self._full:
            hint = "further ones are closed; raise --max-connections, or find who opens so many"
            log_event(log, logging.WARNING, "connections used up", max_connections=self._most, message=hint)
        self._full = full
