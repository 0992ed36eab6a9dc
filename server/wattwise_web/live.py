"""The live stream of a tab: which job has changed, at most once a second, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from wattwise.errors import ServerUnavailableError, UnauthenticatedError, WattwiseError

from wattwise_web.backend import Backend
from wattwise_web.pages import Visitor

_PING_SECONDS = 15.0
_PAUSES = (1.0, 2.0, 5.0)
_DONE = None


async def changes(backend: Backend, visitor: Visitor, job_id: str, closing: asyncio.Event) -> AsyncIterator[str]:
    """Events `change`, `away` and `login`, until the browser leaves or the page stops.

    Args:
        backend: the server.
        visitor: who reads.
        job_id: the only job; empty for all.
        closing: set when the page stops.
    """
    # One place: whatever happens meanwhile is one change.
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    task = asyncio.create_task(_watch(backend, visitor, job_id, queue))
    stop = asyncio.create_task(closing.wait())
    try:
        yield "retry: 2000\n\n"
        while True:
            get = asyncio.create_task(queue.get())
            done, _ = await asyncio.wait({get, stop}, timeout=_PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if get in done:
                event = get.result()
                if event is _DONE:
                    return
                yield event
                continue
            get.cancel()
            if stop in done:
                return
            yield ": ping\n\n"
    finally:
        for each in (task, stop):
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task, stop})


async def _watch(backend: Backend, visitor: Visitor, job_id: str, queue: asyncio.Queue[str | None]) -> None:
    failures = 0
    while True:
        try:
            async for message in backend.watch_jobs(job_id, visitor.token):
                failures = 0
                if message.all_jobs or not job_id or job_id in message.job_ids:
                    named = [job_id] if job_id else list(message.job_ids)[:20]
                    queue.put_nowait(_event("change", {"jobs": named, "all": message.all_jobs}))
        except UnauthenticatedError:
            queue.put_nowait(_event("login", {}))
            queue.put_nowait(_DONE)
            return
        except ServerUnavailableError:
            if failures:
                queue.put_nowait(_event("away", {}))
        except WattwiseError:
            # The stream is refused; the page polls instead.
            queue.put_nowait(_DONE)
            return
        await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1


def _event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
