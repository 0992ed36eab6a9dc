"""Files that survive a power failure, and locks that the kernel releases when their owner dies."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeAlias

from wattwise.errors import WattwiseError
from wattwise.files import FileError, holder_of, integer_of, is_number, open_regular, read_json, replacing, shown
from wattwise.monitor.kind import MonitorKinds

_LOCK_SECONDS = 60.0
_LOCK_PAUSE_SECONDS = 0.02


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
    except FileError as error:
        raise WriteError(str(error)) from error
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written: {error.strerror}. Free space or correct the permissions, and run the same "
            "command to continue: no result is lost"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for a lock file and holds it within the block.

    Raises:
        WriteError: if another process holds it for too long, or it cannot be created.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise WriteError(
                f"{shown(path)} has been locked for {_LOCK_SECONDS:g} s by {holder_of(path)}: end that process, and "
                "run the same command to continue"
            )
        time.sleep(_LOCK_PAUSE_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Locks a lock file without waiting, until the returned descriptor is closed; None if it is locked already."""
    with writing(path):
        descriptor = _opened(path)
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
    with writing(path), replacing(path) as file:
        file.write(json.dumps(document, indent=2).encode())


def read_object(path: Path, *, within: Path | None = None) -> dict[str, Any] | None:
    """Returns the JSON object in a file; None if the file is missing.

    Args:
        path: the file.
        within: the folder that links must not lead out of; None follows every link.

    Raises:
        FileError: if it cannot be used.
    """
    try:
        document = read_json(path, within=within)
    except FileNotFoundError:
        return None
    if not isinstance(document, dict):
        raise FileError(path, "is not a JSON object", "restore it, or move it away")
    return document


Read: TypeAlias = Callable[[Any], Any]
"""Reads a value of a JSON document; returns None if it has another type."""


def values_of(kind: type[Any], document: Mapping[str, Any], **others: Read) -> dict[str, Any]:
    """Returns the values of a JSON object for the fields of a dataclass, each of its type; others are left out.

    Args:
        kind: the dataclass.
        document: the JSON object.
        others: read fields of other types than those in `_READ`.

    Raises:
        ValueError: if a value is missing or has another type.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):
        value, wanted = document.get(field.name), str(field.type)
        if field.name not in document:
            if field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"has no {field.name}")
        elif value is None and wanted.endswith(" | None"):
            values[field.name] = None
        else:
            values[field.name] = (others.get(field.name) or _READ[wanted.removesuffix(" | None")])(value)
            if values[field.name] is None:
                raise ValueError(f"has {field.name} {value!r:.80}, which is not of type {wanted}")
    return values


_READ: Mapping[str, Read] = {
    "int": integer_of,
    "float": lambda value: float(value) if is_number(value) and math.isfinite(value) else None,
    "bool": lambda value: value if isinstance(value, bool) else None,
    "str": lambda value: value if isinstance(value, str) else None,
    "MonitorKinds": MonitorKinds.from_json,
}
"""The readers by the annotation of a field."""


def _opened(path: Path) -> int:
    return open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode=0o600)
