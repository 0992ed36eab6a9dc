"""A PostgreSQL as the source or the target of a copy: one transaction, in which no server can start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from wattwise_server.errors import StartError
from wattwise_server.store.copying import BATCH, Rows
from wattwise_server.store.postgres.connecting import Connection, Connector, hang_up
from wattwise_server.store.postgres.failures import ERRORS, explain
from wattwise_server.store.postgres.migrate import migrate, migrations, read_schema
from wattwise_server.store.postgres.reserving import reserved
from wattwise_server.store.tables import TABLES

_COLUMNS = """
    SELECT attname, format_type(atttypid, NULL) AS type FROM pg_attribute
    WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
"""
# As in SQLite.
_READ = {"boolean": "{0}::int", "double precision": "nullif({0} + 0, 'NaN')"}


class PostgresCopy:
    """Reads and fills one database.

    Attributes:
        name: Its URL without a password.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self._connection = connection
        self._types: dict[str, dict[str, str]] = {}

    async def columns(self, table: str) -> Sequence[str]:
        """Returns the names of a table's columns."""
        self._types[table] = {row["attname"]: row["type"] for row in await self._connection.fetch(_COLUMNS, table)}
        return list(self._types[table])

    async def count(self, table: str) -> int:
        """Returns how many rows a table has."""
        return int(await self._connection.fetchval(f"SELECT count(*) FROM {table}"))  # noqa: S608 - one of TABLES

    async def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[Rows]:
        """Yields all rows of a table in batches."""
        types = self._types[table]
        values = ", ".join(_READ.get(types[column], "{0}").format(column) for column in columns)
        found = await self._connection.cursor(f"SELECT {values} FROM {table}")  # noqa: S608 - one of TABLES
        while rows := await found.fetch(BATCH):
            yield [tuple(row) for row in rows]

    async def highest_key(self) -> int:
        """Returns the highest key that a job has had."""
        return int(
            await self._connection.fetchval(
                "SELECT greatest((SELECT CASE WHEN is_called THEN last_value END FROM job_keys), "
                "(SELECT max(job_key) FROM jobs), 0)"
            )
        )

    async def write(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """Adds rows."""
        flags = [self._types[table][column] == "boolean" for column in columns]
        if any(flags):
            rows = [[bool(value) if flag else value for flag, value in zip(flags, row, strict=True)] for row in rows]
        await self._connection.copy_records_to_table(table, records=rows, columns=columns)

    async def finish(self, highest_key: int) -> None:
        """Adds the versions of jobs and the leases of running trials, raises the sequence of keys."""
        await self._connection.execute("DELETE FROM job_versions")
        await self._connection.execute("INSERT INTO job_versions SELECT job_key, 1, 0, 0 FROM jobs")
        await self._connection.execute("DELETE FROM leases")
        await self._connection.execute(
            "INSERT INTO leases SELECT job_key, trial_number, micros_now() + (trial_lease_seconds * 1000000)::bigint "
            "FROM trials JOIN jobs USING (job_key) WHERE status = 'RUNNING' AND trial_lease_seconds > 0"
        )
        if highest_key:
            await self._connection.execute("SELECT setval('job_keys', $1)", highest_key)
        await self._connection.execute(
            "SELECT setval(pg_get_serial_sequence('events', 'entry'), max(entry)) FROM events HAVING count(*) > 0"
        )
        # So that the first servers find their plans.
        await self._connection.execute(f"ANALYZE {', '.join(table.name for table in TABLES)}")


@asynccontextmanager
async def open_source(url: str, shown: str) -> AsyncIterator[PostgresCopy]:
    """Opens a database that no server can use until the block ends; it is only read.

    Raises:
        StartError: a server uses it, it is of another version or program, or it cannot be read.
    """
    async with _connected(url, shown, "read") as connection:
        version, newest = (await read_schema(connection)).version, max(migrations())
        if not version:
            raise StartError(f"{shown} is not a database of Wattwise: name the one that is to be copied")
        if version < newest:
            raise StartError(
                f"{shown} has schema version {version}, and only {newest} is copied: run `wattwise migrate` first"
            )
        _must_not_be_newer(shown, version)
        async with reserved(connection, shown):
            yield PostgresCopy(shown, connection)


@asynccontextmanager
async def open_target(url: str, shown: str) -> AsyncIterator[PostgresCopy]:
    """Opens a database that is committed when the block ends without an exception.

    Raises:
        StartError: a server uses it, it has content or cannot be written.
    """
    async with _connected(url, shown, "write") as connection:
        _must_not_be_newer(shown, (await migrate(connection, shown)).now)
        async with reserved(connection, shown):
            for table in TABLES:
                if table.from_schema:
                    await connection.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of ours
                elif await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table.name})"):  # noqa: S608 - as above
                    raise StartError(f"{shown} has content, and only an empty database is filled: name another one")
            if await connection.fetchval("SHOW synchronous_commit") in ("off", "local"):
                await connection.execute("SET LOCAL synchronous_commit = on")
            yield PostgresCopy(shown, connection)


@asynccontextmanager
async def _connected(url: str, shown: str, action: str) -> AsyncIterator[Connection]:
    connection = await Connector(url, shown).connect_at_start()
    try:
        yield connection
    except asyncpg.InsufficientPrivilegeError as error:
        raise StartError(f"cannot {action} {shown}: {explain(error)}: use the role that owns its tables") from error
    except ERRORS as error:
        raise StartError(f"cannot {action} {shown}: {explain(error)}") from error
    finally:
        await hang_up(connection)


def _must_not_be_newer(shown: str, version: int) -> None:
    newest = max(migrations())
    if version > newest:
        raise StartError(
            f"{shown} has schema version {version}, and this program copies {newest}: run a newer Wattwise"
        )
