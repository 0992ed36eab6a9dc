"""How open streams end when the server does: between two messages, never in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from wattwise_server.errors import ShuttingDownError

T = TypeVar("T")


class Drain:
    """Whether the server is on its way out, and which streams it ends then."""

    def __init__(self) -> None:
        self.begun = False
        self._streams: WeakSet[UntilDrained[Any]] = WeakSet()

    def begin(self) -> None:
        """Wakes all who wait within `UntilDrained`, now and from now on, with ShuttingDownError."""
        self.begun = True
        for stream in tuple(self._streams):
            stream.interrupt()

    def follow(self, stream: UntilDrained[Any]) -> None:
        """Interrupts a stream when it is time, for as long as there is the stream."""
        self._streams.add(stream)


class UntilDrained(Generic[T]):
    """The items of a stream; waiting for the next one raises ShuttingDownError once the server drains.

    A task is cancelled only while it waits here. A write that is cancelled would leave gRPC with half an operation, and
    no status could be sent after it. One task iterates, from beginning to end.

    Args:
        read: Waits for the next item.
        end: What `read` returns after the last one, if it does not raise StopAsyncIteration.
        drain: When to stop.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], drain: Drain, end: object = None) -> None:
        self._read = read
        self._drain = drain
        self._end = end
        self._waiting: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[Any] | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        task = self._task or self._begin()
        if self._drain.begun:
            raise ShuttingDownError
        self._waiting = task
        try:
            item = await self._read()
        except asyncio.CancelledError:
            if self._drain.begun:
                raise ShuttingDownError from None
            raise
        finally:
            self._waiting = None
        if item is self._end:
            raise StopAsyncIteration
        return item

    def interrupt(self) -> None:
        """Wakes the task that waits for an item, if one does."""
        if self._waiting is not None:
            self._waiting.cancel()

    def _begin(self) -> asyncio.Task[Any]:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("gRPC runs every handler in a task")
        self._drain.follow(self)
        return self._task
