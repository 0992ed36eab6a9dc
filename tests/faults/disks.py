"""Disks with real faults: full or read-only. Tests are skipped if the required privileges are missing."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """Mounts a small file system on a folder."""
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", at)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A file or folder that cannot be written, not even by root."""
    if os.geteuid():
        mode = path.stat().st_mode
        path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    _mount("--bind", path, path)
    try:
        _mount("-o", "remount,bind,ro", path)
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def _mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount file systems: {done.stderr.strip()}")


def fill(folder: Path) -> Path:
    """Fills the disk; returns the file to delete to free space again."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler
