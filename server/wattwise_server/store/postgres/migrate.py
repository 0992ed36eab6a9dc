"""The schema's versions: numbered .sql files, applied forward in one transaction.

Servers of two versions run at once during a rollout. So migrations only add, and each says in its first line which
version of the program can still work with it. The first file creates the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import asyncpg

from wattwise_server.errors import StartError
from wattwise_server.store.base import Migrated
from wattwise_server.store.postgres.connecting import Connection

_LOCK = "SELECT pg_advisory_xact_lock(8677, 0)"
# By its rows: after a wait for the lock, `to_regclass` may still answer from what this connection knew before it.
_IS_THERE = "SELECT count(*) > 0 FROM pg_class WHERE relname = $1 AND pg_table_is_visible(oid)"
_FIRST_LINE = re.compile(r"-- min_reader_version: (\d+)\n")
_TABLE = """
    CREATE TABLE IF NOT EXISTS wattwise_schema (version bigint NOT NULL, min_reader_version bigint NOT NULL)
"""


class Migration(NamedTuple):
    """One version.

    Attributes:
        sql: What it changes.
        min_reader: The oldest version of the program that can work with it.
    """

    sql: str
    min_reader: int


class Schema(NamedTuple):
    """A database's version, and the oldest version of the program that can work with it."""

    version: int
    min_reader: int


def migrations(folder: Path | None = None) -> dict[int, Migration]:
    """Returns the migrations by ascending version.

    Raises:
        RuntimeError: the files are not numbered without gaps, or do not say who can work with them.
    """
    where = folder or files("wattwise_server.store.postgres") / "migrations"
    names = sorted(file.name for file in where.iterdir() if file.name.endswith(".sql"))
    versions = [int(name.partition("_")[0]) for name in names]
    if versions != list(range(1, len(names) + 1)):
        raise RuntimeError(f"migrations are not numbered without gaps: {', '.join(names)}")
    found = {}
    for version, name in zip(versions, names, strict=True):
        sql = (where / name).read_bytes().decode()
        first = _FIRST_LINE.match(sql)
        if first is None:
            raise RuntimeError(f"{name} does not begin with '-- min_reader_version: N'")
        found[version] = Migration(sql, int(first[1]))
    return found


async def migrate(connection: Connection, shown: str, steps: dict[int, Migration] | None = None) -> Migrated:
    """Migrates a database to the newest version, unless it has it; of several processes one does it.

    Args:
        connection: Not in a transaction.
        shown: The database's name, for messages.
        steps: The migrations; those of this program by default.

    Raises:
        StartError: the database needs a newer program, belongs to another program, has another encoding than UTF-8, or
            may not be changed; it is unchanged.
    """
    steps = migrations() if steps is None else steps
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StartError(f"{shown} has the encoding {encoding}: create it with ENCODING 'UTF8' TEMPLATE template0")
    before = await _check_version(connection, shown, steps)
    if before.version >= max(steps):
        return Migrated(before.version, before.version)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_LOCK)
            found = await _check_version(connection, shown, steps)
            # Only now, when no other process is about to commit its tables.
            if not found.version and await connection.fetchval(_IS_THERE, "jobs"):
                raise StartError(f"{shown} has tables of another program: name another database")
            todo = {version: step for version, step in steps.items() if version > found.version}
            if not todo:
                return Migrated(before.version, found.version, by_another=True)
            await connection.execute(_TABLE)
            for step in todo.values():
                await connection.execute(step.sql)
            now = Schema(max(todo), max(found.min_reader, *(step.min_reader for step in todo.values())))
            await connection.execute("DELETE FROM wattwise_schema")
            await connection.execute("INSERT INTO wattwise_schema VALUES ($1, $2)", *now)
    except asyncpg.InsufficientPrivilegeError as error:
        remedy = "run `wattwise migrate` as the owner of its tables"
        if not before.version:
            schema = await connection.fetchval("SELECT current_schema()")
            remedy = f'GRANT CREATE ON SCHEMA "{schema}" to it, or run `wattwise migrate` as a user with this right'
        raise StartError(
            f"{shown} needs a migration to schema version {max(steps)}, which this user may not make ({error}): "
            f"{remedy}"
        ) from error
    return Migrated(found.version, now.version)


async def read_schema(connection: Connection) -> Schema:
    """Returns the version of a database; 0 if it has none."""
    if not await connection.fetchval(_IS_THERE, "wattwise_schema"):
        return Schema(0, 0)
    row = await connection.fetchrow("SELECT version, min_reader_version FROM wattwise_schema")
    return Schema(*row) if row else Schema(0, 0)


async def _check_version(connection: Connection, shown: str, steps: Mapping[int, Migration]) -> Schema:
    found = await read_schema(connection)
    if found.min_reader > max(steps):
        raise StartError(
            f"{shown} has schema version {found.version}, which needs a program of version {found.min_reader} or "
            f"newer; this one has {max(steps)}: run a newer Wattwise"
        )
    return found
