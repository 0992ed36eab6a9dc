"""A copy of a database that is in use, and the way back; each is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from wattwise_server.errors import StartError
from wattwise_server.files import replacing
from wattwise_server.store.connection import explain
from wattwise_server.store.migrate import check
from wattwise_server.store.open import connect_read_only, owned

_SIDE_FILES = ("-wal", "-shm")


def backup(database: Path, target: Path, *, overwrite: bool) -> None:
    """Copies a database as of one moment, while a server may be writing to it, and proves the copy sound.

    Args:
        database: The database.
        target: The file to make.
        overwrite: Whether the file may exist; it is replaced only by a sound copy.

    Raises:
        StartError: when there is no such database, it is damaged, or the copy cannot be made; the target is as it was.
    """
    _must_be_free(target, overwrite=overwrite)
    _must_exist(database, "the server's database with --database")
    if target.exists() and target.samefile(database):
        raise StartError(f"{target} is the database itself: name another file")
    with _new_file(target) as fresh:
        try:
            with closing(connect_read_only(database)) as source, closing(sqlite3.connect(fresh)) as copy:
                # All pages in one step: that is one moment, and no write of the server's starts it over.
                source.backup(copy)
                # So that it is one file, whole by itself.
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise StartError(f"cannot copy {database} to {target}: {explain(error)}") from error
        _must_be_sound(fresh, f"{database} is damaged, its copy was not kept")


def restore(source: Path, database: Path, *, overwrite: bool) -> Path | None:
    """Puts a backup in a database's place; no server may use it meanwhile.

    Args:
        source: The backup; it stays as it is.
        database: The database.
        overwrite: Whether there may be one already; it is kept beside the new one.

    Returns:
        Where the former database is, if there was one.

    Raises:
        StartError: when the backup is none, is damaged or newer than the program, a server uses the database, or it
            cannot be written; the database is as it was.
    """
    _must_exist(source, "a backup")
    with owned(database):
        _must_be_free(database, overwrite=overwrite)
        if database.exists() and source.samefile(database):
            raise StartError(f"{source} is the database itself: name a backup")
        aside: Path | None = None
        try:
            with _new_file(database) as fresh:
                _copy(source, fresh, database)
                _take_after(fresh, database)
                _must_be_sound(fresh, f"{source} is damaged and was not restored; use another backup")
                aside = _set_aside(database)
        except StartError:
            if aside is not None and aside.samefile(database):
                aside.unlink()
            raise
        return aside


def _copy(source: Path, fresh: Path, database: Path) -> None:
    try:
        shutil.copyfile(source, fresh)
    except OSError as error:
        raise StartError(f"cannot copy {source} to {database}: {error.strerror}") from error


def _must_exist(path: Path, meant: str) -> None:
    if not path.is_file():
        raise StartError(f"there is no file {path}: name {meant}")


def _must_be_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise StartError(f"{path} exists: name another file, or replace it with --force")


def _must_be_sound(path: Path, otherwise: str) -> None:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            check(connection, str(path))
            faults = [row[0] for row in connection.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
            faults = faults or ["rows are missing" for _ in connection.execute("PRAGMA foreign_key_check")]
    except sqlite3.Error as error:
        raise StartError(f"{otherwise} ({error})") from error
    if faults:
        raise StartError(f"{otherwise} ({faults[0]})")


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """A file beside the target to fill; it becomes the target, durably, unless the block raises."""
    fresh: Path | None = None
    try:
        with replacing(target) as fresh:
            yield fresh
    except OSError as error:
        where = "cannot write beside" if fresh is None else "cannot write"
        raise StartError(f"{where} {target}: {error.strerror}; check the permissions of its folder") from error
    finally:
        if fresh is not None:
            for side in (*_SIDE_FILES, "-journal"):
                fresh.with_name(fresh.name + side).unlink(missing_ok=True)


def _take_after(fresh: Path, database: Path) -> None:
    """Root that restores must not take the file, or its lock, away from the server's user."""
    if os.geteuid() == 0:
        former = (database if database.exists() else database.parent).stat()
        for path in (fresh, Path(f"{database}.lock")):
            with suppress(OSError):
                os.chown(path, former.st_uid, former.st_gid)


def _set_aside(database: Path) -> Path | None:
    """Gives a database a second name beside its own, under which the next one can be put at any moment."""
    if not database.exists():
        _remove_side_files(database)
        return None
    # What is in its -wal comes back into the file: left behind, it would be taken for a part of the next one.
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    number = 1
    while (aside := database.with_name(f"{database.name}.replaced-{number}")).exists():
        number += 1
    # Those of a database that is too damaged for that.
    for side in _SIDE_FILES:
        part = database.with_name(database.name + side)
        if part.exists():
            part.replace(aside.with_name(aside.name + side))
    aside.hardlink_to(database)
    return aside


def _remove_side_files(database: Path) -> None:
    for side in _SIDE_FILES:
        database.with_name(database.name + side).unlink(missing_ok=True)
