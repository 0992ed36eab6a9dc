"""A connection pooler before a PostgreSQL of 127.0.0.1, with the habits of various products.

It speaks as much of PostgreSQL's protocol as it takes to give the sessions of a pool to its clients, each for a
connection, a transaction or a statement.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.ports import hold_port, port_of

if TYPE_CHECKING:
    from typing_extensions import Self

_PROTOCOL = 196_608
_NOT_STARTUP = (80_877_102, 80_877_103, 80_877_104)
"""Requests to cancel, and for TLS and GSSAPI."""

_ALWAYS_KEPT = ("user", "database", "client_encoding")
_KEY = b"K" + struct.pack("!III", 12, 77, 77)


@dataclass(frozen=True)
class Habits:
    """What a pooler does.

    Attributes:
        keeps: For how long a client keeps its session.
        refuses: Parameters of the start of a connection that it refuses.
        code: The SQLSTATE with which it refuses them; empty: it closes the connection.
        drops: Whether it ignores the other parameters.
        passes_notices: Whether it passes on notices.
        oldest_first: Whether the session that was left the longest ago is given first, or the last one.
        sessions: How many sessions it opens at once when there is none left.
        version: The version of PostgreSQL that it reports, if not the real one.
    """

    keeps: Literal["connection", "transaction", "statement"] = "connection"
    refuses: Sequence[str] = ()
    code: str = "08P01"
    drops: bool = False
    passes_notices: bool = True
    oldest_first: bool = False
    sessions: int = 1
    version: str = ""


class Pooler:
    """Listens on a port of its own, in a thread of its own.

    Args:
        target: The port of PostgreSQL, which asks for no password.
        habits: What it does.
    """

    def __init__(self, target: int, habits: Habits) -> None:
        self._held = hold_port()
        self.port = port_of(self._held)
        self._target, self._habits = target, habits
        self._idle: dict[tuple[str, str], deque[_Session]] = {}
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler")

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._listener = asyncio.run_coroutine_threadsafe(starting, self._loop).result(20)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        self._held.close()

    async def _end(self) -> None:
        assert self._listener is not None
        self._listener.close()
        while self._tasks:
            for writer in self._open:
                writer.transport.abort()
            await asyncio.wait(set(self._tasks))

    def _spawn(self, work: asyncio.Task[None]) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self._spawn(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            parameters = await self._parameters(reader, writer)
            if self._takes(client, parameters):
                await self._log_in(client, parameters)
                await self._follow(client, reader, parameters)
        if client.session is not None:
            # It may be in a transaction.
            client.session.end()
        writer.transport.abort()
        self._open.discard(writer)

    async def _parameters(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Mapping[str, str]:
        while True:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            body = await reader.readexactly(length - 4)
            (code,) = struct.unpack("!I", body[:4])
            if code not in _NOT_STARTUP:
                words = body[4:].decode().split("\0")
                return dict(zip(words[::2], words[1::2], strict=False))
            writer.write(b"N")

    def _takes(self, client: _Client, parameters: Mapping[str, str]) -> bool:
        """Whether a client is not refused."""
        refused = [name for name in parameters if name in self._habits.refuses]
        if refused and self._habits.code:
            client.send(_error(self._habits.code, f"parameter {refused[0]!r} is not available"))
        return not refused

    async def _log_in(self, client: _Client, parameters: Mapping[str, str]) -> None:
        session = await self._take(parameters)
        client.send(b"R" + struct.pack("!II", 8, 0), *session.parameters, _KEY, b"Z" + struct.pack("!I", 5) + b"I")
        if self._habits.keeps == "connection":
            session.client, client.session = client, session
        else:
            self._give_back(session)

    async def _follow(self, client: _Client, reader: asyncio.StreamReader, parameters: Mapping[str, str]) -> None:
        while True:
            kind, message = await _read(reader)
            if kind == b"X":
                return
            if kind == b"Q" and self._habits.keeps == "statement" and message[5:].startswith(b"BEGIN"):
                client.send(_error("08P01", "transactions are not available"), b"Z" + struct.pack("!I", 5) + b"I")
                continue
            if client.session is None:
                client.session = await self._take(parameters)
                client.session.client = client
            client.session.forward(client, kind, message)

    async def _take(self, parameters: Mapping[str, str]) -> _Session:
        idle = self._idle.setdefault((parameters["user"], parameters["database"]), deque())
        while not idle:
            for _ in range(self._habits.sessions):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
                self._open.add(writer)
                writer.write(self._startup(parameters))
                session = _Session(idle, writer)
                await session.begin(reader, self._habits.version)
                self._spawn(asyncio.create_task(self._pump(session, reader)))
                idle.append(session)
        return idle.popleft() if self._habits.oldest_first else idle.pop()

    def _startup(self, parameters: Mapping[str, str]) -> bytes:
        """The message that begins a session."""
        kept = [name for name in parameters if name in _ALWAYS_KEPT or (name and not self._habits.drops)]
        words = "\0".join(f"{name}\0{parameters[name]}" for name in kept)
        body = struct.pack("!I", _PROTOCOL) + words.encode() + b"\0\0"
        return struct.pack("!I", len(body) + 4) + body

    def _give_back(self, session: _Session) -> None:
        session.client = None
        session.idle.append(session)

    async def _pump(self, session: _Session, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                kind, message = await _read(reader)
                client = session.client
                if client is None or session.hides(kind) or (kind == b"A" and not self._habits.passes_notices):
                    continue
                client.send(message)
                if kind == b"Z" and session.is_left(message) and self._habits.keeps != "connection":
                    client.session = None
                    self._give_back(session)
        if session.client is not None:
            session.client.writer.transport.abort()
        session.end()
        self._open.discard(session.writer)


class _Client:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.session: _Session | None = None
        # Its prepared statements, which it finds in every session, as with PgBouncer since 1.21.
        self.statements: dict[bytes, bytes] = {}

    def send(self, *messages: bytes) -> None:
        self.writer.write(b"".join(messages))


class _Session:
    """A session of PostgreSQL."""

    def __init__(self, idle: deque[_Session], writer: asyncio.StreamWriter) -> None:
        self.idle, self.writer = idle, writer
        self.client: _Client | None = None
        self.parameters: list[bytes] = []
        self._awaited = 0
        self._prepared: set[bytes] = set()
        # Of each statement that is being prepared, whether the client does not know of it.
        self._hidden: deque[bool] = deque()

    async def begin(self, reader: asyncio.StreamReader, version: str) -> None:
        while True:
            kind, message = await _read(reader)
            if kind == b"S":
                name = message[5:].partition(b"\0")[0]
                if name == b"server_version" and version:
                    body = name + b"\0" + version.encode() + b"\0"
                    message = b"S" + struct.pack("!I", len(body) + 4) + body
                self.parameters.append(message)
            elif kind == b"Z":
                return
            elif kind == b"E":
                raise OSError(message)

    def forward(self, client: _Client, kind: bytes, message: bytes) -> None:
        name = _statement(kind, message)
        if kind == b"P":
            self._hidden.append(False)
            client.statements[name] = message
            self._prepared.add(name)
        elif name in client.statements and name not in self._prepared:
            self._hidden.append(True)
            self._prepared.add(name)
            self.writer.write(client.statements[name])
        if kind in (b"Q", b"S"):
            self._awaited += 1
        self.writer.write(message)

    def hides(self, kind: bytes) -> bool:
        """Whether a message is the answer to what the client has not sent."""
        return kind == b"1" and self._hidden.popleft()

    def is_left(self, ready: bytes) -> bool:
        """Whether the client has had all answers and is in no transaction."""
        self._awaited -= 1
        return self._awaited == 0 and ready[5:] == b"I"

    def end(self) -> None:
        self.client = None
        self.writer.transport.abort()
        with suppress(ValueError):
            self.idle.remove(self)


def _statement(kind: bytes, message: bytes) -> bytes:
    """The name of the prepared statement that a message is about; empty if there is none."""
    body = message[5:]
    if kind == b"P":
        return body.partition(b"\0")[0]
    if kind == b"B":
        return body.split(b"\0", 2)[1]
    return body[1:].partition(b"\0")[0] if kind == b"D" and body[:1] == b"S" else b""


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)


def _error(code: str, text: str) -> bytes:
    body = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()
    return b"E" + struct.pack("!I", len(body) + 4) + body
