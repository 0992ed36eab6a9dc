"""The connections of the page: how many there may be, and how long each may take."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("wattwise_web")

REQUEST_SECONDS = 10.0
"""The longest time from the connection, or the first byte of a further request, to its last byte, TLS included."""

_TAKING_SECONDS = 60.0
"""The longest time in which a browser may read nothing of an answer."""

_MOST_CONNECTIONS = 4_000
_RESERVED_FILES = 64
"""Files that are left for this process itself; requests open none, except connections to the servers."""

_PAUSE_SECONDS = 0.5


class Protocol(H11Protocol):
    """HTTP/1.1 with deadlines."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lost = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        # Now the connection was accepted, and TLS begins.
        self._first_deadline = self.loop.time() + REQUEST_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the deadline of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_at(self._first_deadline, self._late)

    def data_received(self, data: bytes) -> None:
        """Starts the deadline of a further request."""
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)
        super().data_received(data)

    def handle_events(self) -> None:
        """Ends the deadline of a complete request; starts that of a request whose head came with the previous one."""
        super().handle_events()
        state = self.conn.their_state
        if self._deadline is None and state is h11.SEND_BODY:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)
        elif self._deadline is not None and state not in (h11.IDLE, h11.SEND_BODY):
            self._deadline.cancel()
            self._deadline = None

    def _should_upgrade(self) -> bool:
        """Returns False: the page has no WebSockets. uvicorn would also advise to install a package for them."""
        return False

    def _late(self) -> None:
        log.warning("a connection was closed: no complete request within %.0f s", REQUEST_SECONDS)
        self.transport.abort()

    def pause_writing(self) -> None:
        """Starts the deadline for reading a part of the answer."""
        super().pause_writing()
        self._taking = self.loop.call_later(_TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that deadline."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Makes room for another connection."""
        super().connection_lost(exc)
        for timer in (self._deadline, self._taking, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        if not self.lost.done():
            self.lost.set_result(None)


class Server(uvicorn.Server):
    """A server that accepts only as many connections as it can serve; further ones wait until others end.

    Args:
        config: the configuration of uvicorn.
        most: the most connections at a time.
    """

    _accepting: asyncio.Task[None]

    def __init__(self, config: uvicorn.Config, most: int) -> None:
        super().__init__(config)
        self._most = most

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, then accepts on the one socket."""
        if sockets is None:
            raise ValueError("a socket is needed")
        (listener,) = sockets
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(listener))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no further connections, and ends those that are open."""
        self._accepting.cancel()
        await asyncio.wait({self._accepting})
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(self._most)
        serving: set[asyncio.Task[None]] = set()
        while True:
            await room.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                # No file or memory is left for it, or the other side has left already.
                room.release()
                log.warning("a connection could not be accepted: %s", os.strerror(error.errno or 0))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = loop.create_task(self._handle(accepted))
            serving.add(task)
            task.add_done_callback(serving.discard)
            task.add_done_callback(lambda _: room.release())

    async def _handle(self, accepted: socket.socket) -> None:
        loop, config = asyncio.get_running_loop(), self.config
        accepted.setblocking(False)
        protocol = Protocol(config, self.server_state, self.lifespan.state, loop)
        limit = {"ssl_handshake_timeout": REQUEST_SECONDS} if config.ssl else {}
        try:
            await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=config.ssl, **limit)
        except OSError as error:
            accepted.close()
            log.warning("a connection was closed: %s", error)
            return
        await protocol.lost


def max_connections(to_servers: int) -> int:
    """Returns how many connections of browsers there may be, after raising the limit of files as far as allowed.

    Args:
        to_servers: how many connections to servers this process may open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = _RESERVED_FILES + to_servers
    wanted = _MOST_CONNECTIONS + reserved
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    files = wanted if soft == resource.RLIM_INFINITY else soft
    return max(1, min(_MOST_CONNECTIONS, files - reserved))
