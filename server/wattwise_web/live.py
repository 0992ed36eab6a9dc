"""The live stream of a tab: whether something has changed, at most once a second, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from wattwise.errors import ServerUnavailableError, UnauthenticatedError, WattwiseError

from wattwise_web.backend import Backend
from wattwise_web.pages import Visitor

LARGEST_SESSION = 50
"""Streams of one session."""
LARGEST_TOTAL = 1_000
"""Streams of this process: trainers share the server's own limit."""
_PING_SECONDS = 15.0
_PAUSES = (1.0, 2.0, 5.0)


class Streams:
    """The open streams of this process."""

    def __init__(self) -> None:
        self._sessions: dict[Tab, str] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._sessions)

    def has_room(self, session_id: str) -> bool:
        """Whether a session may open another one; an empty id is anybody's."""
        own = sum(each == session_id for each in self._sessions.values()) if session_id else 0
        return len(self) < LARGEST_TOTAL and own < LARGEST_SESSION

    @contextlib.contextmanager
    def opened(self, session_id: str) -> Iterator[Tab]:
        """A stream for as long as the block lasts."""
        tab = Tab()
        self._sessions[tab] = session_id
        try:
            yield tab
        finally:
            del self._sessions[tab]

    def end(self) -> None:
        """Ends all of them."""
        for tab in self._sessions:
            tab.end()

    def end_session(self, session_id: str) -> None:
        """Ends those of a session."""
        for tab, session in self._sessions.items():
            if session == session_id:
                tab.end("login")


class Tab:
    """What a tab is told next: one event, since what has changed is read with the page."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._event: str | None = None
        self._over = False

    def say(self, event: str) -> None:
        """Says it, unless the tab has not heard the last event yet."""
        self._event = self._event or event
        self._wake.set()

    def end(self, event: str | None = None) -> None:
        """Ends the stream, after an event."""
        self._event, self._over = event, True
        self._wake.set()

    async def events(self) -> AsyncIterator[str]:
        """The text of the stream until it ends, with a comment now and then for proxies."""
        while not self._over:
            try:
                await asyncio.wait_for(self._wake.wait(), _PING_SECONDS)
            except asyncio.TimeoutError:
                yield ": ping\n\n"
                continue
            self._wake.clear()
            event, self._event = self._event, None
            if event is not None:
                yield f"event: {event}\ndata:\n\n"


async def changes(
    streams: Streams,
    backend: Backend,
    visitor: Visitor,
    job_id: str,
    *,
    session_id: str = "",
    is_open: Callable[[], bool] = lambda: True,
) -> AsyncIterator[str]:
    """Events `change`, `away` and `login`, until the browser leaves, the session ends or the page stops.

    Args:
        streams: where it is counted.
        backend: the server.
        visitor: who reads.
        job_id: the only job; empty for all.
        session_id: of the visitor; empty without one.
        is_open: whether the session has not ended.
    """
    with streams.opened(session_id) as tab:
        task = asyncio.create_task(_watch(backend, visitor, job_id, tab))
        try:
            yield "retry: 2000\n\n"
            async for text in tab.events():
                if not is_open():
                    yield "event: login\ndata:\n\n"
                    return
                yield text
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _watch(backend: Backend, visitor: Visitor, job_id: str, tab: Tab) -> None:
    failures = 0
    while True:
        try:
            async for message in backend.watch_jobs(job_id, visitor.token):
                failures = 0
                # The server watches a prefix: other ids may begin with this one.
                if message.all_jobs or not job_id or job_id in message.job_ids:
                    tab.say("change")
        except UnauthenticatedError:
            tab.end("login")
            return
        except ServerUnavailableError:
            if failures:
                tab.say("away")
        except WattwiseError:
            # The stream is refused; the page polls instead.
            tab.end()
            return
        await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1
