"""Files that survive a power failure, and locks that the kernel releases when their owner dies."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wattwise.errors import WattwiseError


class WriteError(WattwiseError):
    """A file of the run cannot be written, such as on a full disk."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Explains why the file cannot be written in the block.

    Raises:
        WriteError: if it cannot.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written: {error.strerror}. Free space or correct the permissions, and run the same "
            "command to continue: no result is lost"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for a lock file and holds it within the block."""
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Locks a lock file without waiting, until the returned descriptor is closed; None if it is locked already."""
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a file atomically and durably.

    Raises:
        WriteError: if it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.new")
    with writing(path):
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing or malformed."""
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            return document
    return None


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
