"""A file as the source or the target of a copy."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from wattwise_server.errors import StartError
from wattwise_server.store.copying import BATCH, Rows
from wattwise_server.store.sqlite.backup import copy_owner, must_exist, new_file, remove_side_files
from wattwise_server.store.sqlite.connection import explain
from wattwise_server.store.sqlite.database_file import owned
from wattwise_server.store.sqlite.migrate import check, file_error, migrate, migrations, schema_version
from wattwise_server.store.sqlite.open import SCHEME, check_whole, connect_read_only, database_path
from wattwise_server.store.tables import TABLES


class SqliteCopy:
    """Reads and fills one file.

    Attributes:
        name: Its URL.
    """

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name = name
        self._connection = connection

    async def columns(self, table: str) -> Sequence[str]:
        """Returns the names of a table's columns."""
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]

    async def count(self, table: str) -> int:
        """Returns how many rows a table has."""
        return int(self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - TABLES

    async def rows(self, table: str, columns: Sequence[str]) -> AsyncIterator[Rows]:
        """Yields all rows of a table in batches."""
        found = self._connection.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608 - TABLES
        while rows := found.fetchmany(BATCH):
            yield rows

    async def highest_key(self) -> int:
        """Returns the highest key that a job has had."""
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
        return 0 if row is None else int(row[0])

    async def write(self, table: str, columns: Sequence[str], rows: Rows) -> None:
        """Adds rows."""
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",  # noqa: S608
            rows,
        )

    async def finish(self, highest_key: int) -> None:
        """Raises the number from which keys are made, and checks what SQLite checks row by row otherwise."""
        self._connection.execute("DELETE FROM sqlite_sequence")
        self._connection.execute("INSERT INTO sqlite_sequence VALUES ('jobs', ?)", (highest_key,))
        orphan = self._connection.execute("PRAGMA foreign_key_check").fetchone()
        if orphan is not None:
            raise StartError(f"the source has rows of {orphan[0]} that belong to no row of {orphan[2]}")
        self._connection.execute("COMMIT")


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[SqliteCopy]:
    """Opens a file that no server may use until the block ends; it is only read.

    Raises:
        StartError: a server uses it, it is of another version or program, or it cannot be read.
    """
    path = database_path(url)
    must_exist(path, "the database that is to be copied")
    with owned(path), _explained("read", path):
        copy_owner(path, path)
        with closing(connect_read_only(path)) as connection:
            check(connection, str(path))
            version, newest = schema_version(connection), max(migrations())
            if version < newest:
                raise StartError(
                    f"{path} has schema version {version}, and only {newest} is copied: "
                    f"run `wattwise migrate --database {SCHEME}{path}` first"
                )
            # All reads see one moment, whatever other programs do.
            connection.execute("BEGIN")
            yield SqliteCopy(url, connection)


@asynccontextmanager
async def open_target(url: str) -> AsyncIterator[SqliteCopy]:
    """Fills a file that appears when the block ends without an exception.

    Raises:
        StartError: a server uses it, it has content or cannot be written.
    """
    path = database_path(url)
    check_whole(path)
    with owned(path), _explained("write", path):
        _must_be_empty(path)
        with new_file(path) as fresh:
            with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
                migrate(connection, str(path))
                # What is interrupted is thrown away, and the whole is synced before it gets its name.
                for pragma in ("journal_mode = OFF", "synchronous = OFF", "foreign_keys = OFF"):
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute("BEGIN")
                for table in TABLES:
                    if table.from_schema:
                        connection.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of ours
                yield SqliteCopy(url, connection)
            copy_owner(path, fresh)
            # SQLite would apply a -wal file of the empty one that is replaced.
            remove_side_files(path)


def _must_be_empty(path: Path) -> None:
    if not path.exists() or not path.stat().st_size:
        return
    with closing(connect_read_only(path)) as connection:
        check(connection, str(path))
        known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        for table in TABLES:
            if table.from_schema or table.name not in known:
                continue
            if connection.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone():  # noqa: S608 - a name of ours
                raise StartError(f"{path} has content, and only an empty database is filled: name another file")


@contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise file_error(path, error, f"cannot {verb} {path}: {explain(error)}") from error
    except UnicodeError as error:
        raise StartError(f"cannot {verb} {path}: {explain(error)}") from error
