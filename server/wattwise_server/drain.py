"""How open streams end when the server does: between two messages, never in the middle of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from wattwise_server.errors import ShuttingDownError

T = TypeVar("T")


class Drain:
    """Whether the server is on its way out, and who waits for a stream's next item meanwhile."""

    def __init__(self) -> None:
        self.begun = False
        self._waiting: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Wakes all who wait within `UntilDrained`, now and from now on, with ShuttingDownError."""
        self.begun = True
        for task in self._waiting:
            task.cancel()

    def enter(self, task: asyncio.Task[Any]) -> None:
        """Notes that a task waits for an item.

        Raises:
            ShuttingDownError: if nobody is to wait any more.
        """
        if self.begun:
            raise ShuttingDownError
        self._waiting.add(task)

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Notes that it waits no longer."""
        self._waiting.discard(task)


class UntilDrained(Generic[T]):
    """The items of a stream; waiting for the next one raises ShuttingDownError once the server drains.

    A task is cancelled only while it waits here. A write that is cancelled would leave gRPC with half an operation, and
    no status could be sent after it. One task iterates, from beginning to end.
    """

    def __init__(self, items: AsyncIterator[T], drain: Drain) -> None:
        self._items = items
        self._drain = drain
        self._task: asyncio.Task[Any] | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        task = self._task = self._task or _this_task()
        self._drain.enter(task)
        try:
            return await self._items.__anext__()
        except asyncio.CancelledError:
            if self._drain.begun:
                raise ShuttingDownError from None
            raise
        finally:
            self._drain.leave(task)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("gRPC runs every handler in a task")
    return task
