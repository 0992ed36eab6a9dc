"""The live stream of a tab: which job has changed, at most once a second, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from wattwise.errors import ServerUnavailableError, UnauthenticatedError, WattwiseError

from wattwise_web.backend import Backend
from wattwise_web.pages import Visitor

_PING_SECONDS = 15.0
_PAUSES = (1.0, 2.0, 5.0)


async def changes(backend: Backend, visitor: Visitor, job_id: str, closing: asyncio.Event) -> AsyncIterator[str]:
    """Events `change`, `away` and `login`, until the browser leaves or the page stops.

    Args:
        backend: the server.
        visitor: who reads.
        job_id: the only job; empty for all.
        closing: set when the page stops.
    """
    # What has changed is read with the page, so that a second event says nothing more than the first.
    events: asyncio.Queue[str | None] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_watch(backend, visitor, job_id, events)),
        asyncio.create_task(_end(closing, events)),
    ]
    try:
        yield "retry: 2000\n\n"
        while True:
            try:
                event = await asyncio.wait_for(events.get(), _PING_SECONDS)
            except asyncio.TimeoutError:
                yield ": ping\n\n"
                continue
            if event is None:
                return
            yield f"event: {event}\ndata:\n\n"
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


async def _end(closing: asyncio.Event, events: asyncio.Queue[str | None]) -> None:
    await closing.wait()
    events.put_nowait(None)


async def _watch(backend: Backend, visitor: Visitor, job_id: str, events: asyncio.Queue[str | None]) -> None:
    failures = 0
    while True:
        try:
            async for message in backend.watch_jobs(job_id, visitor.token):
                failures = 0
                # The server watches a prefix: other ids may begin with this one.
                mine = message.all_jobs or not job_id or job_id in message.job_ids
                if mine and events.empty():
                    events.put_nowait("change")
        except UnauthenticatedError:
            events.put_nowait("login")
            events.put_nowait(None)
            return
        except ServerUnavailableError:
            if failures and events.empty():
                events.put_nowait("away")
        except WattwiseError:
            # The stream is refused; the page polls instead.
            events.put_nowait(None)
            return
        await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1
