"""Keeps servers away from a database while it is copied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from wattwise_server.errors import StartError
from wattwise_server.store.postgres.connecting import Connection

_RESERVE = "SELECT pg_try_advisory_lock(8677, 2)"
_IS_FREE = "SELECT pg_try_advisory_xact_lock_shared(8677, 2)"
_USERS = """
    SELECT (SELECT count(*) FROM servers WHERE seen > micros_now() - 5000000) AS servers, (
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'wattwise' AND pid != pg_backend_pid()
    ) AS connections
"""
_NOTED_SECONDS = 6.0
"""A server that was stopped counts as running for five."""

_PAUSE_SECONDS = 0.2


class _Users(NamedTuple):
    """Servers that were noted a moment ago, and connections of this program."""

    servers: int
    connections: int


async def check_free(connection: Connection, shown: str) -> None:
    """Checks that a database is not being copied.

    Raises:
        StartError: it is.
    """
    if not await connection.fetchval(_IS_FREE):
        raise StartError(f"{shown} is being copied by `wattwise copy`: start again when that has ended")


@asynccontextmanager
async def reserved(connection: Connection, shown: str) -> AsyncIterator[None]:
    """Begins a transaction that sees one moment; until it ends, no server starts or connects again.

    Args:
        connection: Closed by the caller afterwards, which ends the reservation.
        shown: The database's name, for messages.

    Raises:
        StartError: the database is in use.
    """
    if not await connection.fetchval(_RESERVE):
        raise StartError(f"{shown} is both the source and the target, or another `wattwise copy` is using it")
    give_up = asyncio.get_running_loop().time() + _NOTED_SECONDS
    # Before the lock, behind which a server that runs could not note that it is there.
    while True:
        users = await _users(connection)
        if not users.servers or users.connections or asyncio.get_running_loop().time() > give_up:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    _must_be_unused(users, shown)
    async with connection.transaction(isolation="repeatable_read"):
        # The first statement that reads decides what is seen: it follows the lock.
        await connection.execute("SET LOCAL lock_timeout = '10s'")
        await connection.execute("LOCK TABLE servers IN EXCLUSIVE MODE")
        await connection.execute("SET LOCAL lock_timeout = 0")
        _must_be_unused(await _users(connection), shown)
        yield


async def _users(connection: Connection) -> _Users:
    row = await connection.fetchrow(_USERS)
    assert row is not None  # noqa: S101 - it has no condition
    return _Users(row["servers"], row["connections"])


def _must_be_unused(users: _Users, shown: str) -> None:
    if any(users):
        raise StartError(
            f"{shown} is in use (servers: {users.servers}, connections: {users.connections}): stop its servers first"
        )
