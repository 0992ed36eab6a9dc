"""The live streams: which jobs have changed, at most once a second, as server-sent events.

All streams of a token share one watch of the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection

from wattwise.errors import ServerUnavailableError, UnauthenticatedError, WattwiseError

from wattwise_web.reader import Reader, Visitor

LARGEST_SESSION = 50
"""Streams of one session."""
LARGEST_TOKEN = 250
"""Streams of all sessions of one token."""
LARGEST_TOTAL = 1_000
"""Streams of this process."""
_MOST_NAMED = 50
"""Changed jobs that an event names; of more, any may have changed."""
LONGEST_PAUSE = 30.0
_SHORTEST_PAUSE = 1.0
_PACE = 40
_PING_SECONDS = 15.0
_LEAST_SECONDS = 0.5
"""Between two messages of a watch, of which the server sends one a second at most."""
_PAUSES = (1.0, 2.0, 5.0)


class Stream:
    """The next event for a browser; a single one, because the page reads what has changed."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._event: str | None = None
        # Those that have changed; None: any may have.
        self._job_ids: frozenset[str] | None = None
        self._over = False

    def say(self, event: str, job_ids: Collection[str] | None = None) -> None:
        """Adds an event, which includes the event that was not sent yet."""
        both = None if job_ids is None or (self._event and self._job_ids is None) else self._named(job_ids)
        self._event, self._job_ids = event, both
        self._wake.set()

    def _named(self, job_ids: Collection[str]) -> frozenset[str] | None:
        both = frozenset(job_ids) | (self._job_ids or frozenset())
        return both if len(both) <= _MOST_NAMED else None

    def end(self, event: str | None = None) -> None:
        """Ends the stream after a last event."""
        self._event, self._over = event, True
        self._wake.set()

    async def events(self) -> AsyncIterator[str]:
        """Yields the text of the stream until it ends, with a comment now and then for proxies."""
        over = False
        while not over:
            try:
                await asyncio.wait_for(self._wake.wait(), _PING_SECONDS)
            except asyncio.TimeoutError:
                yield ": ping\n\n"
                continue
            self._wake.clear()
            event, job_ids, over = self._event, self._job_ids, self._over
            self._event = self._job_ids = None
            if event is not None:
                yield f"event: {event}\ndata:{'' if job_ids is None else json.dumps(sorted(job_ids))}\n\n"


class _Watch:
    """The watch of a token, and the streams that follow it."""

    def __init__(self, reader: Reader, visitor: Visitor) -> None:
        self.streams: set[Stream] = set()
        self.over = False
        self._up = False
        self._task = asyncio.create_task(self._follow(reader, visitor))

    def join(self, stream: Stream) -> None:
        """Adds a stream. It learns at once that the watch works, and that anything may have changed before."""
        self.streams.add(stream)
        if self._up:
            stream.say("change")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _follow(self, reader: Reader, visitor: Visitor) -> None:
        failures = 0
        while True:
            try:
                async for message in reader.client(visitor).watch_jobs():
                    failures, self._up = 0, True
                    self._say("change", None if message.all_jobs else message.job_ids)
                    # A server that sends more must not take this process from its visitors.
                    await asyncio.sleep(_LEAST_SECONDS)
            except UnauthenticatedError:
                self._end("login")
                return
            except ServerUnavailableError:
                if failures:
                    self._say("away")
            except WattwiseError:
                # The watch is refused; the pages poll instead.
                self._end()
                return
            self._up = False
            await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1

    def _say(self, event: str, job_ids: Collection[str] | None = None) -> None:
        for stream in self.streams:
            stream.say(event, job_ids)

    def _end(self, event: str | None = None) -> None:
        self.over = True
        for stream in self.streams:
            stream.end(event)


class Streams:
    """The open streams of this process."""

    def __init__(self) -> None:
        self._owners: dict[Stream, tuple[str, str | None, _Watch]] = {}
        self._watches: dict[str | None, _Watch] = {}

    def __len__(self) -> int:
        """Returns the number of open streams."""
        return len(self._owners)

    def open(self, reader: Reader, visitor: Visitor, session_id: str) -> Stream | None:
        """Opens a stream, which counts at once; None if a limit is reached. The caller closes it.

        Args:
            reader: the pages of the server.
            visitor: who reads.
            session_id: the id of the visitor's session; empty without one.
        """
        token = visitor.token
        if not self._has_room(session_id, token):
            return None
        watch = self._watches.get(token)
        if watch is None or watch.over:
            watch = self._watches[token] = _Watch(reader, visitor)
        stream = Stream()
        self._owners[stream] = session_id, token, watch
        watch.join(stream)
        return stream

    def _has_room(self, session_id: str, token: str | None) -> bool:
        if len(self) >= LARGEST_TOTAL:
            return False
        if token is None:
            return True
        sessions = Counter(session for session, of, _ in self._owners.values() if of == token)
        return sessions.total() < LARGEST_TOKEN and sessions[session_id] < LARGEST_SESSION

    async def close(self, stream: Stream) -> None:
        """Closes a stream, which makes room for another one."""
        _, token, watch = self._owners.pop(stream)
        watch.streams.discard(stream)
        if not watch.streams and self._watches.get(token) is watch:
            del self._watches[token]
            await watch.stop()

    def end(self) -> None:
        """Ends all streams."""
        for stream in self._owners:
            stream.end()

    def end_session(self, session_id: str) -> None:
        """Ends the streams of a session."""
        for stream, (session, *_) in self._owners.items():
            if session == session_id:
                stream.end("login")


class Pace:
    """The pace at which pages ask again: each at most once a second, and all together a fortieth of the time.

    The server has trainers to answer.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at = 0.0

    def pause_after(self, seconds: float) -> float:
        """Returns how many seconds the page that was made in some time waits before it asks again."""
        now = self._clock()
        free_at = max(now, self._free_at) + _PACE * seconds
        self._free_at = min(free_at, now + LONGEST_PAUSE)
        return max(_SHORTEST_PAUSE, self._free_at - now)


async def changes(stream: Stream, is_open: Callable[[], bool]) -> AsyncIterator[str]:
    """Yields events until the browser leaves, the session ends or the page stops.

    `change` has the ids of the jobs that have changed as JSON, and no data if any may have; `away` says that the server
    does not answer, and `login` that the session has ended.

    Args:
        stream: what the browser gets.
        is_open: whether the session has not ended.
    """
    yield "retry: 2000\n\n"
    async for text in stream.events():
        if not is_open():
            yield "event: login\ndata:\n\n"
            return
        yield text
