"""Recognizes a connection pooler between a server and PostgreSQL by what it does.

With transaction or statement pooling the statements of one connection run in changing sessions of PostgreSQL, so that
notices, settings and prepared statements get lost. Session pooling loses nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from wattwise_server.store.postgres.failures import ERRORS, DatabaseAwayError, RefusedError, may_be_terminated

if TYPE_CHECKING:
    from wattwise_server.store.postgres.connecting import Connection

_T = TypeVar("_T")

_ANSWER_SECONDS = 4.0
_NOTICE_SECONDS = 3.0
# Another host may have a process of the same number.
_SESSION = "SELECT pg_backend_pid(), pg_postmaster_start_time()"
_LOST_SESSION = ("08P01", "0A000", "26000", "42P05")
"""The errors of a statement that a pooler does not allow, and of one that was prepared in another session."""

_CHANGES = "changes the session of a connection, as in transaction or statement pooling"
_REMEDY = "use the host and port of PostgreSQL itself, or session pooling as docs/operations.md shows"


def pooler(does: str, error: Exception | None = None) -> RefusedError:
    """Returns why a pooler is refused: what it does, and what it said."""
    said = f" ({error.args[0] if error.args else error})" if error else ""
    return RefusedError(
        f"a connection pooler such as PgBouncer answers there, which {does}{said}: {_REMEDY}",
        "a connection pooler is before it",
        answered=True,
    )


async def check_sessions(first: Connection, second: Connection) -> None:
    """Checks that each of two connections has a session of its own, and that notices pass between them.

    Raises:
        RefusedError: a pooler does not keep sessions.
        DatabaseAwayError: or another of ERRORS, which proves no pooler: the database may be slow or have ended.
    """
    check = _Check(first, second)
    try:
        if not await check.keeps_sessions():
            raise pooler(_CHANGES)
        if not await check.passes_notices():
            raise pooler("does not pass on notices, as in transaction or statement pooling")
    except RefusedError:
        raise
    except ERRORS as error:
        if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _LOST_SESSION:
            raise pooler(_CHANGES, error) from error
        if check.stalled and not check.pooled:
            raise DatabaseAwayError("no answer in time", "no answer in time", answered=True) from error
        if check.stalled:
            raise pooler("has no session for each of two connections") from error
        if check.pooled and (first.is_closed() or second.is_closed()):
            raise pooler("ended a connection, as in statement pooling", error) from error
        raise


class _Check:
    """The check of two connections.

    Attributes:
        pooled: Whether a pooler has given the first one the number of its process.
        stalled: Whether an answer took too long, so that both connections were ended.
    """

    def __init__(self, first: Connection, second: Connection) -> None:
        self.pooled = self.stalled = False
        self._first, self._second = first, second

    async def keeps_sessions(self) -> bool:
        """Returns whether the connections stay in two sessions, also while one of them is in a transaction."""
        seen: dict[Connection, set[object]] = {self._first: set(), self._second: set()}
        self.pooled = (await self._session(self._first))[0] != self._first.get_server_pid()
        for holder, other in ((self._second, self._first), (self._first, self._second)):
            # A pooler gives this one the session that the other one has left, for as long as the transaction lasts.
            await self._answer(holder, holder.execute("BEGIN"))
            for connection in (holder, other):
                seen[connection].add(await self._session(connection))
            await self._answer(holder, holder.execute("COMMIT"))
            for connection in (other, holder):
                seen[connection].add(await self._session(connection))
        return len(seen[self._first]) == len(seen[self._second]) == 1 and not seen[self._first] & seen[self._second]

    async def passes_notices(self) -> bool:
        """Returns whether the first connection gets a notice of the second one."""
        channel, arrived = f"wattwise_{secrets.token_hex(8)}", asyncio.Event()

        def receive(*_notice: object) -> None:
            arrived.set()

        await self._answer(self._first, self._first.add_listener(channel, receive))
        await self._answer(self._second, self._second.execute(f"NOTIFY {channel}"))
        # Before its answer PostgreSQL sends the notices that are there: also a slow one does not seem to lose them.
        await self._session(self._first)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(arrived.wait(), _NOTICE_SECONDS)
        await self._answer(self._first, self._first.remove_listener(channel, receive))
        return arrived.is_set()

    async def _session(self, connection: Connection) -> tuple[object, ...]:
        row = await self._answer(connection, connection.fetchrow(_SESSION))
        return tuple(row or ())

    async def _answer(self, connection: Connection, asked: Awaitable[_T]) -> _T:
        timer = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._end)
        try:
            with may_be_terminated(connection):
                return await asked
        finally:
            timer.cancel()

    def _end(self) -> None:
        self.stalled = True
        self._first.terminate()
        self._second.terminate()
