"""Replaces files atomically and durably."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new file, with mode 0600, to write; it becomes the target, durably, unless the block raises.

    Readers see the old file or the new one, never a part of it.

    Raises:
        OSError: the file cannot be written; the target is unchanged.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    fresh = Path(name)
    try:
        yield fresh
        _sync(fresh)
        fresh.replace(target)
        _sync(target.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
