"""The database's files on the disk: locked against other servers, and watched.

SQLite goes on writing to a file that was deleted or replaced, without an error, and all of it is gone in the end.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from filelock import FileLock, Timeout
from wattwise.files import FileError, open_regular

from wattwise_server.errors import StartError

_PAUSE_SECONDS = 0.05


class FileGoneError(sqlite3.OperationalError):
    """The database's file, or its write-ahead log, is no longer where it was opened."""


class DatabaseFile:
    """The database's file and its write-ahead log, as they were opened.

    Attributes:
        gone: Whether one of them was missing at the last check.
    """

    def __init__(self, path: Path) -> None:
        self._known = {str(path): _identity(str(path))}
        # SQLite creates it with the first commit and keeps it as long as the database is open.
        self._log: str | None = f"{path}-wal"
        self.check()

    def check_after_pause(self) -> None:
        """Does the same as `check`, unless the last check found the files a moment ago.

        Raises:
            FileGoneError: one of them was deleted, moved or replaced.
        """
        if self.gone or monotonic() - self._checked > _PAUSE_SECONDS:  # pragma: no mutate: or checks more often
            self.check()

    def check(self) -> None:
        """Compares the files with those that were opened.

        Raises:
            FileGoneError: one of them was deleted, moved or replaced.
        """
        if self._log is not None and (found := _identity(self._log)) is not None:
            self._known[self._log], self._log = found, None
        for path, known in self._known.items():
            if _identity(path) != known:
                self.gone = True
                raise FileGoneError(f"{path} was deleted, moved or replaced")
        self.gone = False  # pragma: no mutate: or the next call checks again
        self._checked = monotonic()


@contextmanager
def owned(path: Path, *, create: bool = False) -> Iterator[None]:
    """Locks a database against other servers for the duration of the block.

    Both a file beside it and the database itself, if it exists, are locked: the first may be deleted, the second
    replaced by a restore.

    Args:
        path: The database.
        create: Whether to create it, empty and readable by its owner only, if there is none.

    Raises:
        StartError: another server uses it, or its folder is missing or not writable.
    """
    if not path.parent.is_dir():
        raise StartError(f"there is no folder {path.parent}: create it, or name another file")
    lock = FileLock(f"{path}.lock", mode=0o600)
    made = [file for file in (path, Path(lock.lock_file)) if not file.exists()]
    try:
        lock.acquire(timeout=0)
        if create and not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except Timeout:
        if not Path(lock.lock_file).exists():
            raise StartError(f"cannot create {lock.lock_file}: name a file in another folder") from None
        raise _in_use(path, f"the lock is {path}.lock") from None
    except OSError as error:
        raise StartError(f"cannot write beside {path}: {error.strerror}; check the permissions of its folder") from None
    try:
        _check_kept(lock)
        with _locked(path):
            yield
    except StartError:
        # A failed start leaves no new files.
        for file in made:
            file.unlink(missing_ok=True)
        raise
    finally:
        lock.release()


def _check_kept(lock: FileLock) -> None:
    """Checks the lock: one whose file was removed by another process in the meantime locks nothing."""
    if not Path(lock.lock_file).exists():
        raise StartError(f"another server removed {lock.lock_file} while its start failed: start again")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the file itself, under whatever name another server opens it.

    SQLite's own locks are of another kind and are not affected, except by the close of any descriptor of the file in
    this process: so it stays open until SQLite's connections are closed.
    """
    try:
        descriptor = open_regular(path)
    except FileError as error:
        raise StartError(str(error)) from None
    except OSError:
        # There is none, or it cannot be read, which its opening explains.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _in_use(path, "the file itself is locked, perhaps under another name") from None
        yield
    finally:
        os.close(descriptor)


def _in_use(path: Path, how: str) -> StartError:
    return StartError(f"another server uses {path}: stop it, or name another file ({how})")


def _identity(path: str) -> tuple[int, int] | None:
    """Returns the device and the inode of a file; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - with every commit: a Path takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino
