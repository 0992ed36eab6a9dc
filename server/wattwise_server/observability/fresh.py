"""Values that are computed on the event loop when another thread asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent import futures
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from wattwise_server.errors import ServiceError
from wattwise_server.observability.logs import log_event, log_exception

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEAST_PAUSE_SECONDS = 0.5
_MOST_PAUSE_SECONDS = 60.0
_PAUSE = 19
"""The pause after a computation is so many times as long: at most a twentieth of the time is spent on it."""

_PATIENCE_SECONDS = 3.0
"""How long a caller waits for a new value. Prometheus waits 10 s for all metrics."""


@dataclass(frozen=True)
class Computed(Generic[T]):
    """A value, and how many seconds ago it was computed."""

    value: T
    age: float


class Fresh(Generic[T]):
    """Computes a value when it is asked for, and not while a recent one is known.

    Args:
        compute: Computes it.
        what: Names it in the log.
    """

    def __init__(self, compute: Callable[[], Awaitable[T]], what: str) -> None:
        self._compute = compute
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._known: tuple[T, float] | None = None
        self.due = 0.0
        self._computing: asyncio.Task[None] | None = None
        self._failed = False
        self._closed = False

    def ask(self) -> Computed[T] | None:
        """Returns the newest value, after waiting for another one for a moment; None if there is none yet.

        To be called in another thread than the event loop's.
        """
        with suppress(futures.TimeoutError, futures.CancelledError):
            if not self._closed:
                asyncio.run_coroutine_threadsafe(self._refreshed(), self._loop).result(_PATIENCE_SECONDS)
        if self._known is None:
            return None
        value, began = self._known
        return Computed(value, max(0.0, self._loop.time() - began))

    async def close(self) -> None:
        """Computes nothing any more."""
        self._closed = True
        if self._computing is not None:
            self._computing.cancel()
            await asyncio.wait({self._computing})

    async def _refreshed(self) -> None:
        if self._computing is None:
            if self._closed or self._loop.time() < self.due:
                return
            self._computing = asyncio.create_task(self._refresh(), name=f"wattwise: {self._what}")
        # One caller may give up; the others wait on.
        await asyncio.wait({self._computing})

    async def _refresh(self) -> None:
        began = self._loop.time()
        try:
            self._known = await self._compute(), began
            self._failed = False
        except ServiceError as error:
            # The database may be away for hours; the last values stay.
            if not self._failed:
                log_event(log, logging.WARNING, "figures not read", work=self._what, message=str(error))
            self._failed = True
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next time may succeed
            log_exception(log, "maintenance failed", error, work=self._what)
        finally:
            self._computing = None
            ended = self._loop.time()
            self.due = ended + min(_MOST_PAUSE_SECONDS, max(_LEAST_PAUSE_SECONDS, _PAUSE * (ended - began)))


@asynccontextmanager
async def fresh(compute: Callable[[], Awaitable[T]], what: str) -> AsyncIterator[Fresh[T]]:
    """Provides a value that is computed when it is asked for, until the block is left."""
    value = Fresh(compute, what)
    try:
        yield value
    finally:
        await value.close()
