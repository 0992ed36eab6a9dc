"""The file of tokens: a line for each, added and removed so that nobody ever reads half a file.

Empty lines, and those that begin with #, are left alone.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from wattwise_server.errors import StartError
from wattwise_server.security.tokens import Token, from_line, to_line

_LOCK_SECONDS = 10.0


def read_tokens(path: Path) -> dict[str, Token]:
    """The tokens of a file by their ids.

    Raises:
        StartError: the file cannot be read, or a line of it is no token; names the line.
    """
    return _parsed(path, _lines(path))


def add_token(path: Path, token: Token) -> None:
    """Adds a token; the file is made if there is none, for its owner alone. On disk when this returns.

    Raises:
        StartError: the file cannot be written, or it holds something else than tokens.
    """
    with _changing(path):
        lines = _lines(path) if path.exists() else []
        _parsed(path, lines)
        _replace(path, [*lines, to_line(token)])


def remove_token(path: Path, token_id: str) -> Token:
    """Removes the token with an id, and returns it. On disk when this returns.

    Raises:
        StartError: there is no such token, or the file cannot be written, or it holds something else than tokens.
    """
    # Nor is a lock left of a name that was mistyped.
    _lines(path)
    with _changing(path):
        lines = _lines(path)
        token = _parsed(path, lines).get(token_id)
        if token is None:
            raise StartError(f"{path} has no token {token_id!r}; wattwise token list shows those that it has")
        _replace(path, [line for line in lines if not _is_token(line) or from_line(line).id != token_id])
        return token


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise StartError(f"there is no token file {path}: make one with wattwise token create") from None
    except OSError as error:
        raise StartError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"{path} is no token file: it holds bytes that are not UTF-8") from None


def _is_token(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _parsed(path: Path, lines: Sequence[str]) -> dict[str, Token]:
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not _is_token(line):
            continue
        try:
            token = from_line(line)
        except ValueError as error:
            raise StartError(f"{path}, line {number} {error}; correct it, or remove it and its token with it") from None
        if token.id in tokens:
            raise StartError(f"{path}, line {number} has the id {token.id} of an earlier line; remove one of them")
        tokens[token.id] = token
    return tokens


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """One writer at a time; what goes wrong with the file becomes a StartError."""
    real = path.resolve()
    # The lock would make the folder, also of a name that was mistyped.
    if not real.parent.is_dir():
        raise StartError(f"there is no folder {real.parent} for {path}: make it first, or name another file")
    try:
        with FileLock(f"{real}.lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout:
        raise StartError(f"another process changes {path} and does not come to an end ({path}.lock)") from None
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}; may you write in its folder?") from None


def _replace(path: Path, lines: Sequence[str]) -> None:
    """Puts a new file in the place of the old one, with its owner and its mode."""
    path = path.resolve()
    # For its owner alone from its first moment on.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - it is open already
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            _take_after(handle, path)
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _take_after(handle: int, path: Path) -> None:
    if path.exists():
        old, new = path.stat(), os.fstat(handle)
        os.fchmod(handle, stat.S_IMODE(old.st_mode))
        # Root that adds a token to the file of the server's user must not take it away from the server.
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(handle, old.st_uid, old.st_gid)
