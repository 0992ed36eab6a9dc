"""Output files."""

from __future__ import annotations

from pathlib import Path

from wattwise_replay.errors import ReplayError


def check_writable(path: Path) -> None:
    """Checks that a file can be written; leaves it unchanged.

    Raises:
        ReplayError: It cannot be written.
    """
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error
