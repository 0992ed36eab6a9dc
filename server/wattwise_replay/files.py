"""Files that a replay is to leave."""

from __future__ import annotations

from pathlib import Path

from wattwise_replay.errors import ReplayError


def check_writable(path: Path) -> None:
    """Whether a file can be written; leaves it as it was.

    Raises:
        ReplayError: It cannot; says why.
    """
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error
