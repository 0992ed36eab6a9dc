"""Copies a database to another one, of the same kind or not, and compares both by checksums.

The checksum of a table is the sum, modulo 2^256, of its rows' SHA-256. A row is hashed as a JSON array of its values by
the names of their columns, in UTF-8: flags are 0 and 1, bytes hexadecimal, NaN is null, and -0.0 is 0.0. So it depends
neither on the order of the rows nor on how a database stores a value.

What belongs to one database is not copied: SQLite's statistics, and in a PostgreSQL the versions of jobs, its servers,
and when old measurements were last looked for. Leases begin again, as after a time without any server: the clocks of
two databases may differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, cast

from wattwise_server.errors import StartError
from wattwise_server.store.open import is_shared, needs_asyncpg, shown_url
from wattwise_server.store.sqlite.open import database_path
from wattwise_server.store.tables import TABLES

BATCH = 2000
"""Rows in memory at a time."""

Rows = Sequence[Sequence[Any]]
Watch = Callable[[str, str, int, int], None]
"""Learns of the progress: what is done, with which table, how many rows are done, and of how many."""

_MODULUS = 2**256


class Source(Protocol):
    """A database that nothing else uses until the block that opened it ends.

    Attributes:
        name: Its URL without a password.
    """

    name: str

    async def columns(self, table: str) -> Sequence[str]:
        """Returns the names of a table's columns."""

    async def count(self, table: str) -> int:
        """Returns how many rows a table has."""

    def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[Rows]:
        """Yields all rows of a table in batches, each value as the checksum takes it."""

    async def highest_key(self) -> int:
        """Returns the highest key that a job has had; 0 if there was none."""


class Target(Source, Protocol):
    """A database that is empty, and stays so unless the block that opened it ends without an exception."""

    async def write(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """Adds rows."""

    async def finish(self, highest_key: int) -> None:
        """Adds what is not copied but follows from the rest; all is there now, and can be read."""


class Copied(NamedTuple):
    """A table that was copied.

    Attributes:
        table: Its name.
        rows: How many rows it has.
        checksum: Of its rows, on both sides.
    """

    table: str
    rows: int
    checksum: str


class Checksum:
    """Counts and hashes rows.

    Attributes:
        count: The number of rows so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=bytes.hex).encode

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Adds rows."""
        for row in rows:
            self.count += 1
            self._sum += int.from_bytes(sha256(self._encode(row).encode()).digest(), "big")

    @property
    def digest(self) -> str:
        """The checksum, in hexadecimal."""
        return f"{self._sum % _MODULUS:064x}"


async def copy(source: str, target: str, watch: Watch) -> Sequence[Copied]:
    """Copies everything; if it fails, or is interrupted, the target is empty and the source as it was.

    Args:
        source: The URL of a database that no server uses.
        target: The URL of another one, which does not exist or is empty.
        watch: Learns of the progress.

    Raises:
        StartError: both are one database, one is in use or cannot be used, the target has content, or differs from the
            source.
    """
    if _is_one_database(source, target):
        raise StartError(f"{shown_url(source)} is both the source and the target: name another target")
    async with _open(source, is_target=False) as here, _open(target, is_target=True) as there:
        names = [table.name for table in TABLES]
        columns = {table: await _columns(table, here, cast(Target, there)) for table in names}
        sent = {table: await _send(table, columns[table], here, cast(Target, there), watch) for table in names}
        await cast(Target, there).finish(await here.highest_key())
        found = {table: await _read(table, columns[table], there, sent[table].count, watch) for table in names}
        _compare(here.name, there.name, sent, found)
    return [Copied(table, checksum.count, checksum.digest) for table, checksum in found.items()]


def _is_one_database(source: str, target: str) -> bool:
    """Returns whether two URLs name one file, or are equal; other URLs of one PostgreSQL are refused by its lock."""
    if is_shared(source) or is_shared(target):
        return source == target
    one, other = database_path(source), database_path(target)
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _open(url: str, *, is_target: bool) -> AbstractAsyncContextManager[Source]:
    if not is_shared(url):
        from wattwise_server.store.sqlite import copying as sqlite  # noqa: PLC0415 - it takes names from this module

        return sqlite.open_target(url) if is_target else sqlite.open_source(url)
    with needs_asyncpg():
        from wattwise_server.store.postgres import copying as postgres  # noqa: PLC0415 - the extra may be missing
    shown = shown_url(url)
    return postgres.open_target(url, shown) if is_target else postgres.open_source(url, shown)


async def _columns(table: str, source: Source, target: Target) -> Sequence[str]:
    columns, others = sorted(await source.columns(table)), sorted(await target.columns(table))
    if columns != others:
        differing = ", ".join(sorted(set(columns) ^ set(others)))
        raise StartError(f"the table {table} of {source.name} and that of {target.name} differ in {differing}")
    return columns


async def _send(table: str, columns: Sequence[str], source: Source, target: Target, watch: Watch) -> Checksum:
    checksum, total = Checksum(), await source.count(table)
    async for rows in source.rows(table, columns):
        checksum.add(rows)
        await target.write(table, columns, rows)
        watch("copying", table, checksum.count, total)
        # SQLite never waits, and an interrupt arrives where something waits.
        await asyncio.sleep(0)
    return checksum


async def _read(table: str, columns: Sequence[str], target: Source, total: int, watch: Watch) -> Checksum:
    checksum = Checksum()
    async for rows in target.rows(table, columns):
        checksum.add(rows)
        watch("checking", table, checksum.count, total)
        await asyncio.sleep(0)
    return checksum


def _compare(source: str, target: str, sent: Mapping[str, Checksum], found: Mapping[str, Checksum]) -> None:
    differing = [
        f"{table} (read {here.count} rows with {here.digest}, found {found[table].count} with {found[table].digest})"
        for table, here in sent.items()
        if (here.count, here.digest) != (found[table].count, found[table].digest)
    ]
    if differing:
        raise StartError(
            f"{target} is not what was read from {source}, and was left empty: {'; '.join(differing)}. Look for "
            "triggers or a failing disk"
        )
