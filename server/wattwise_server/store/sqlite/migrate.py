"""The schema's versions: numbered .sql files, applied forward in one transaction; `PRAGMA user_version` counts them.

The first file creates the schema.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from importlib.resources import files
from pathlib import Path
from typing import IO

from wattwise.files import open_file

from wattwise_server.errors import StartError

APPLICATION_ID = int.from_bytes(b"WATT", "big")
"""Identifies a file as a Wattwise database."""
_MAGIC = b"SQLite format 3\0"
"""How a file of SQLite begins."""
# https://www.sqlite.org/fileformat.html: the magic, the page size, the change counter, the number of pages, the
# application id, and the change counter for which the number of pages is valid.
_HEADER = struct.Struct(">16sH6xII36xI20xI4x")
_LARGEST_PAGE = 65536
"""The page size that a header has as 1."""


def migrations(folder: Path | None = None) -> dict[int, str]:
    """Returns each version's SQL, by ascending version.

    Raises:
        RuntimeError: the files are not numbered from 1 without gaps.
    """
    where = folder or files("wattwise_server.store.sqlite") / "migrations"
    names = sorted(file.name for file in where.iterdir() if file.name.endswith(".sql"))
    versions = [int(name.partition("_")[0]) for name in names]
    if versions != list(range(1, len(names) + 1)):
        raise RuntimeError(f"migrations are not numbered without gaps: {', '.join(names)}")
    return {version: (where / name).read_bytes().decode() for version, name in zip(versions, names, strict=True)}


def migrate(connection: sqlite3.Connection, path: str, steps: dict[int, str] | None = None) -> int:
    """Migrates a database to the newest version in one transaction; returns the version that it had, 0 for a new one.

    Args:
        connection: An open connection, not in a transaction.
        path: The file's name, for messages.
        steps: The migrations; those of this program by default.

    Raises:
        StartError: the file is newer than the program, or not a Wattwise database; it is unchanged.
    """
    steps = migrations() if steps is None else steps
    current, ours = _identity(connection, path, steps)
    if not ours and (current or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
        raise _foreign(path)
    todo = "".join(f"{sql}\nPRAGMA user_version = {version};\n" for version, sql in steps.items() if version > current)
    if not todo:
        return current
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\nPRAGMA application_id = {APPLICATION_ID};\n{todo}COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return current


def check(connection: sqlite3.Connection, path: str) -> None:
    """Checks that a file is a Wattwise database of a known version.

    Raises:
        StartError: it is not.
    """
    if not _identity(connection, path, migrations())[1]:
        raise _foreign(path)


def check_header(file: IO[bytes], path: Path) -> None:
    """Checks the header of a file against its size, so that a file of a terabyte is refused before it is read.

    Args:
        file: The file, which is read from its beginning.
        path: Its name, for messages.

    Raises:
        StartError: it is not a Wattwise database, or not as large as one.
        OSError: it cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    # Files of /proc have size 0 as well, and reading one may block.
    if not size:
        raise _foreign(str(path))
    header = file.read(_HEADER.size)
    if not header.startswith(_MAGIC) or len(header) < _HEADER.size:
        raise _headless(path)
    _, page_size, changes, pages, application, valid_for = _HEADER.unpack(header)
    if application != APPLICATION_ID:
        raise _foreign(str(path))
    wanted = pages * (page_size if page_size > 1 else _LARGEST_PAGE)
    if changes == valid_for and size != wanted:
        raise StartError(
            f"{path} is damaged: it has {size:,} bytes instead of {wanted:,}; use another backup, or copy it again"
        )


def schema_version(connection: sqlite3.Connection) -> int:
    """Returns a file's schema version; 0 if it has none."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _identity(connection: sqlite3.Connection, path: str, steps: dict[int, str]) -> tuple[int, bool]:
    """Returns a file's schema version, and whether it is a Wattwise database."""
    current = schema_version(connection)
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if ours and current > max(steps):
        raise StartError(
            f"{path} has schema version {current}, but this program supports versions up to {max(steps)}: "
            "run a newer Wattwise, or name another file"
        )
    return current, ours


def file_error(path: Path, error: sqlite3.Error, message: str) -> StartError:
    """Returns the error for a file that SQLite cannot use, with a message, unless its beginning is not SQLite's."""
    if "not a database" in str(error):
        with open_file(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return _headless(path)
    return StartError(message)


def _headless(path: Path) -> StartError:
    return StartError(
        f"{path} is not a Wattwise database, or its header is damaged: name another file, or restore a backup"
    )


def _foreign(path: str) -> StartError:
    return StartError(f"{path} is not a Wattwise database: name another file")
