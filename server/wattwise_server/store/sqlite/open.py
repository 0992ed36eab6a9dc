"""Opens a file, which is created or migrated first."""

from __future__ import annotations

import logging
import math
import re
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite
from wattwise.files import FileError, resolved

from wattwise_server.clock import Clock
from wattwise_server.errors import ServiceError, StartError
from wattwise_server.observability.logs import log_event
from wattwise_server.observability.observers import NO_OBSERVERS, Observer
from wattwise_server.store.base import Migrated
from wattwise_server.store.sqlite.backend import SqliteStore
from wattwise_server.store.sqlite.connection import Group, explain, recording_factory
from wattwise_server.store.sqlite.database_file import DatabaseFile, owned
from wattwise_server.store.sqlite.migrate import file_error, migrate, migrations
from wattwise_server.store.sqlite.reads import SqliteReads
from wattwise_server.store.writer import Writer

log = logging.getLogger(__name__)

SCHEME = "sqlite:///"
_PRAGMAS = ("busy_timeout = 10000", "foreign_keys = ON", "synchronous = FULL")


def database_path(url: str) -> Path:
    """Returns the file that a URL names.

    Raises:
        StartError: the URL names no file.
    """
    if not url.startswith(SCHEME) or url == SCHEME or ":memory:" in url:
        raise StartError(
            f"{_shown(url)} names no database: use sqlite:///wattwise.db for a file in the current folder, "
            "sqlite:////var/lib/wattwise/wattwise.db for an absolute path, or postgresql://USER@HOST/DATABASE"
        )
    try:
        path = resolved(Path(url.removeprefix(SCHEME)))
        # The longest name that SQLite or a lock gives to a file beside it.
        resolved(Path(f"{path}-journal"))
    except FileError as error:
        raise StartError(f"{_shown(url)} names no file: {error}") from None
    return path


def _shown(url: str) -> str:
    """Returns a URL without what may be a password: it may be the misspelt URL of another kind of database."""
    if url.startswith("sqlite:") and "@" not in url:
        return repr(url)
    scheme = re.match("[a-z0-9+.-]+:", url, re.IGNORECASE)
    return f"{scheme[0]}…" if scheme else "the text given"


@asynccontextmanager
async def open_sqlite(url: str, clock: Clock, observer: Observer = NO_OBSERVERS) -> AsyncIterator[SqliteStore]:
    """Opens the store of a file; the block's exit closes everything.

    Raises:
        StartError: another server uses the file, it is not a Wattwise database, or it cannot be opened.
    """
    path = database_path(url)
    check_whole(path)
    with owned(path, create=True):
        _warn_of_folder(path.parent)
        _prepare(path)
        factory, made = recording_factory()
        async with (
            _connection(path, "rw", factory=factory) as write,
            _connection(path, "ro") as read,
            _connection(path, "ro") as slow,
        ):
            read.row_factory = slow.row_factory = sqlite3.Row
            await _add_logarithm(slow)
            rows = list(await read.execute_fetchall("SELECT coalesce(max(job_key), 0) + 1 FROM jobs"))
            file = DatabaseFile(path)
            group = Group(write, made[0], file, observer)
            found = list(await read.execute_fetchall("SELECT value FROM secrets WHERE name = 'page tokens'"))
            reads = SqliteReads(read, file, slow)
            store = SqliteStore(Writer(group), reads, clock, bytes(found[0][0]), observer, next_key=int(rows[0][0]))
            try:
                try:
                    await store.grant_leases()
                except ServiceError as error:
                    raise StartError(f"cannot read {path}: {error}; restore a backup, or name another file") from error
                observer.opened(*await store.reads.content())
                yield store
            finally:
                await store.close()


def migrate_sqlite(url: str) -> Migrated:
    """Creates or migrates a file.

    Raises:
        StartError: as `open_sqlite`.
    """
    path = database_path(url)
    check_whole(path)
    with owned(path, create=True):
        return Migrated(_prepare(path), max(migrations()))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Makes a read-only connection."""
    uri = f"file:{quote(str(path))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)  # pragma: no mutate: many builds of SQLite take it for a URI anyway
    connection.execute("PRAGMA busy_timeout = 10000")
    return connection


def check_whole(path: Path) -> None:
    """Refuses a log without its database: a new database would discard it, with the newest results in it.

    Raises:
        StartError: there is a log without its database.
    """
    log_file = Path(f"{path}-wal")
    if log_file.exists() and log_file.stat().st_size and not (path.exists() and path.stat().st_size):
        raise StartError(
            f"there is {log_file}, with the newest results, but no {path}: move the database back if it was moved; "
            f"otherwise restore a backup, or delete {log_file} to begin with an empty database"
        )


def _warn_of_folder(folder: Path) -> None:
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        advice = f"every user of this machine can delete the database: chmod o-w {folder}"
        log_event(log, logging.WARNING, "open folder", folder=str(folder), message=advice)


def _prepare(path: Path) -> int:
    """Creates or migrates the file; returns its former version. WAL, in which readers do not wait, stays on."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA busy_timeout = 10000")
            before = migrate(connection, str(path))
            connection.execute("PRAGMA journal_mode = WAL")
            # A file that is not writable fails now, not at the first report. BEGIN alone would only read it.
            connection.executescript("BEGIN IMMEDIATE; DELETE FROM jobs WHERE FALSE; ROLLBACK;")
            return before
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


async def _add_logarithm(connection: aiosqlite.Connection) -> None:
    """Adds ln(), which some builds of SQLite lack."""
    try:
        await connection.execute_fetchall("SELECT ln(1.0)")
    except sqlite3.OperationalError:
        await connection.create_function("ln", 1, math.log, deterministic=True)


def _unusable(path: Path, error: sqlite3.Error) -> StartError:
    return file_error(path, error, f"cannot use {path} as a database: {explain(error)}; or name another file")


@asynccontextmanager
async def _connection(path: Path, mode: str, **options: Any) -> AsyncIterator[aiosqlite.Connection]:
    uri = f"file:{quote(str(path))}?mode={mode}"
    async with aiosqlite.connect(uri, uri=True, isolation_level=None, **options) as connection:
        try:
            for pragma in _PRAGMAS:
                await connection.execute_fetchall(f"PRAGMA {pragma}")
            # An unreadable file fails here.
            await connection.execute_fetchall("SELECT max(job_key) FROM jobs")
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        yield connection
