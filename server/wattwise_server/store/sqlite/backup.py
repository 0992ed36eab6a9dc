"""Backs up a database while it is in use, and restores it. A file that is written is complete or absent."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType

from wattwise.files import FileError, open_file, replacing, resolved

from wattwise_server.errors import StartError
from wattwise_server.store.sqlite.connection import explain
from wattwise_server.store.sqlite.database_file import owned
from wattwise_server.store.sqlite.migrate import check, check_header, file_error
from wattwise_server.store.sqlite.open import connect_read_only

_SIDE_FILES = ("-wal", "-shm")
_CHUNK = 2**20


def backup(database: Path, target: Path, *, overwrite: bool) -> None:
    """Copies a database as of one moment, while a server may be writing to it, and checks the copy.

    Args:
        database: The database.
        target: The file to create.
        overwrite: Whether to replace an existing file; only an undamaged copy replaces it.

    Raises:
        StartError: the database is missing or damaged, or the copy cannot be written; the target is unchanged.
    """
    _must_be_free(target, overwrite=overwrite)
    must_exist(database, "the server's database with --database")
    if target.exists() and target.samefile(database):
        raise StartError(f"{target} is the database itself: name another file")
    with new_file(target) as fresh:
        try:
            with closing(connect_read_only(database)) as source, closing(sqlite3.connect(fresh)) as copy:
                # All pages in one step: the copy is of one moment, and no write of the server restarts it.
                source.backup(copy)
                # So that the copy needs no -wal file beside it.
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise file_error(database, error, f"cannot copy {database} to {target}: {explain(error)}") from error
        _check_integrity(fresh, database, "is damaged; its copy was deleted")


def restore(source: Path, database: Path, *, overwrite: bool) -> Path | None:
    """Replaces a database by a backup; no server may be using it.

    Args:
        source: The backup; it is not changed.
        database: The database.
        overwrite: Whether to replace an existing database, which is kept beside the new one.

    Returns:
        The path of the replaced database; None if there was none.

    Raises:
        StartError: the backup is not a Wattwise database, is damaged or newer than the program, a server uses the
            database, or it cannot be written; the database is unchanged.
    """
    must_exist(source, "a backup")
    with owned(database):
        _must_be_free(database, overwrite=overwrite)
        if database.exists() and source.samefile(database):
            raise StartError(f"{source} is the database itself: name a backup")
        aside: Path | None = None
        try:
            with new_file(database) as fresh:
                _copy(source, fresh, database)
                copy_owner(database, fresh)
                _check_integrity(fresh, source, "is damaged and was not restored; use another backup")
                aside = _set_aside(database)
        except BaseException:
            if aside is not None and aside.samefile(database):
                aside.unlink()
            raise
        return aside


def _copy(source: Path, fresh: Path, database: Path) -> None:
    try:
        with open_file(source, "rb") as file, fresh.open("wb") as copy:
            check_header(file, source)
            file.seek(0)
            shutil.copyfileobj(file, copy, _CHUNK)
    except FileError as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"cannot copy {source} to {database}: {error.strerror}") from error


def must_exist(path: Path, example: str) -> None:
    """Refuses a path that is no file; the example says what to name instead.

    Raises:
        StartError: there is no file.
    """
    _check_name(path)
    if path.is_dir():
        raise StartError(f"{path} is a folder: name {example}")
    if path.exists() and not path.is_file():
        raise StartError(f"{path} is not a regular file: name {example}")
    if not path.is_file():
        raise StartError(f"there is no file {path}: name {example}")


def _check_name(path: Path) -> None:
    try:
        resolved(path)
    except FileError as error:
        raise StartError(str(error)) from None


def _must_be_free(path: Path, *, overwrite: bool) -> None:
    _check_name(path)
    if path.exists() and not path.is_file():
        raise StartError(f"{path} is not a regular file, which alone can be replaced: name another file")
    if path.exists() and not overwrite:
        raise StartError(f"{path} exists: name another file, or replace it with --force")


def _check_integrity(copy: Path, original: Path, fault: str) -> None:
    try:
        with closing(sqlite3.connect(copy)) as connection:
            check(connection, str(original))
            faults = [row[0] for row in connection.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
            faults = faults or ["rows are missing" for _ in connection.execute("PRAGMA foreign_key_check")]
    except sqlite3.Error as error:
        raise file_error(original, error, f"{original} {fault} ({error})") from error
    if faults:
        raise StartError(f"{original} {fault} ({faults[0]})")


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Makes a file to fill, which becomes the target, durably, unless the block raises or SIGTERM comes."""
    fresh: Path | None = None
    try:
        with _terminable(), replacing(target, f".{{}}.{os.getpid()}.part", mode=0o600) as file:
            fresh = Path(file.name)
            yield fresh
    except OSError as error:
        where = "cannot write beside" if fresh is None else "cannot write"
        raise StartError(f"{where} {target}: {error.strerror}; check the permissions of its folder") from error
    finally:
        if fresh is not None:
            for side in (*_SIDE_FILES, "-journal"):
                fresh.with_name(fresh.name + side).unlink(missing_ok=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM an exception for the duration of the block, so that what the block has begun is removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def copy_owner(database: Path, fresh: Path) -> None:
    """Copies the owner: when root restores, the server's user must still own the file and its lock."""
    if os.geteuid() == 0:
        former = (database if database.exists() else database.parent).stat()
        for path in (fresh, Path(f"{database}.lock")):
            with suppress(OSError):
                os.chown(path, former.st_uid, former.st_gid)


def remove_side_files(database: Path) -> None:
    """Removes the log of a database that is gone, or is to be replaced."""
    for side in _SIDE_FILES:
        database.with_name(database.name + side).unlink(missing_ok=True)


def _set_aside(database: Path) -> Path | None:
    """Gives a database a second name beside its own, so that the first can be replaced atomically."""
    if not database.exists():
        remove_side_files(database)
        return None
    # SQLite would apply a -wal file that is left behind to the new database.
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    names = (f"{database.name}.replaced-{number}" for number in count(1))
    aside = next(path for path in map(database.with_name, names) if not path.exists())
    # Left only if the database is too damaged for a checkpoint.
    for side in _SIDE_FILES:
        part = database.with_name(database.name + side)
        if part.exists():
            part.replace(aside.with_name(aside.name + side))
    aside.hardlink_to(database)
    return aside
