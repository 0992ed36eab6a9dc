"""Opens a database, which is migrated first."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from wattwise_server.errors import ServiceError, StartError
from wattwise_server.observability.logs import log_exception
from wattwise_server.observability.observers import Observer
from wattwise_server.store.base import Migrated
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.postgres.connecting import Connection, Connector, hang_up
from wattwise_server.store.postgres.failures import ERRORS, DatabaseAwayError, explain
from wattwise_server.store.postgres.migrate import migrate, migrations
from wattwise_server.store.postgres.notices import Notices
from wattwise_server.store.postgres.reads import PostgresReads
from wattwise_server.store.postgres.reserving import check_free
from wattwise_server.store.postgres.saving import Saver

log = logging.getLogger(__name__)

_READERS = 8
_READ_SECONDS = 5.0
_NOTE_SECONDS = 1.0
_SCHEMA_SECONDS = 5.0
_CLOSE_SECONDS = 1.0


@asynccontextmanager
async def open_postgres(url: str, shown: str, observer: Observer) -> AsyncIterator[PostgresStore]:
    """Opens the store of a database; the block's exit closes everything.

    Args:
        url: The database's, as libpq takes it, with one host or several.
        shown: The same without its password.
        observer: Learns of every commit.

    Raises:
        StartError: the database cannot be reached or used, or belongs to another program.
    """
    connector = Connector(url, shown)
    writing = await connector.connect_at_start()
    saver = Saver(connector, secrets.randbits(62) + 1, observer)
    try:
        with _refused(connector.shown):
            await migrate(writing, connector.shown)
            await check_free(writing, connector.shown)
            await saver.start(writing)
            key = await writing.fetchval("SELECT value FROM secrets WHERE name = 'page tokens'")
        async with _pool(connector) as pool:
            reads = PostgresReads(pool)
            store = PostgresStore(saver, reads, bytes(key), observer)
            notices = Notices(connector, saver.server, store, reads.versions, lambda: saver.others)
            store.notices = notices

            async def reconnected() -> None:
                # Another host may take writes now; the former one may still answer, with what was true then.
                await pool.expire_connections()
                notices.connect_again()
                store.distrust()

            saver.on_reconnect = reconnected
            # Leases were read, and granted, by the clock of before.
            saver.on_set_back = store.distrust
            with _refused(connector.shown):
                observer.opened(*await store.reads.content())
            tasks = {
                asyncio.create_task(notices.follow(), name="wattwise: notices"),
                asyncio.create_task(_repeat(saver.note, _NOTE_SECONDS), name="wattwise: note server"),
                asyncio.create_task(_repeat(lambda: _check(store), _SCHEMA_SECONDS), name="wattwise: check schema"),
            }
            try:
                yield store
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await store.close()
    finally:
        await saver.close()
        await hang_up(writing)


async def migrate_postgres(url: str, shown: str) -> Migrated:
    """Creates or migrates a schema.

    Raises:
        StartError: as `open_postgres`.
    """
    connection = await Connector(url, shown).connect_at_start()
    try:
        with _refused(shown):
            await check_free(connection, shown)
            return await migrate(connection, shown)
    finally:
        await hang_up(connection)


@contextmanager
def _refused(shown: str) -> Iterator[None]:
    """Turns what PostgreSQL refuses of a block into a reason not to start.

    Raises:
        StartError: something was refused.
    """
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise StartError(
            f"{shown} refuses its user what a server needs ({explain(error)}): grant SELECT, INSERT, UPDATE and DELETE "
            "on all its tables, USAGE on all its sequences, and TEMPORARY on the database"
        ) from error
    except (*ERRORS, ServiceError) as error:
        raise StartError(f"cannot use {shown} as a database: {explain(error.__cause__ or error)}") from error


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except (DatabaseAwayError, ServiceError):
            continue
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next one may succeed
            log_exception(log, "maintenance failed", error, work="follow the database")


async def _check(store: PostgresStore) -> None:
    needed, ours = await store.reads.min_reader(), max(migrations())
    why = f"the database was migrated and needs a program of schema version {needed}; this one has {ours}: "
    store.reads.unusable = f"{why}run a newer Wattwise" if needed > ours else ""


@asynccontextmanager
async def _pool(connector: Connector) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    async def connect(*_arguments: Any, **_options: Any) -> Connection:
        # Which host takes writes may have changed.
        return await connector.connect({"jit": "off"}, command_timeout=_READ_SECONDS, reads=True)

    async def reset(_connection: Any) -> None:
        """Resets nothing: nothing that a query does outlasts it."""

    pool = await asyncpg.create_pool(
        min_size=0, max_size=_READERS, max_inactive_connection_lifetime=300.0, connect=connect, reset=reset
    )
    try:
        yield pool
    finally:
        try:
            await asyncio.wait_for(pool.close(), _CLOSE_SECONDS)
        except ERRORS:
            pool.terminate()
        # Until the event loop has closed the sockets.
        await asyncio.sleep(0)
