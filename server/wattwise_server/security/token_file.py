"""The token file: one line per token. Changes replace the whole file, so that readers never see half of one.

Empty lines and lines that start with # are kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from wattwise.files import FileError, read_text, replacing, resolved

from wattwise_server.errors import StartError
from wattwise_server.security.tokens import Token, from_line, to_line

_LOCK_SECONDS = 10.0


def read_tokens(path: Path) -> dict[str, Token]:
    """Returns the tokens of a file by their ids.

    Raises:
        StartError: the file cannot be read, or a line is malformed.
    """
    return _parsed(path, _lines(path))


def add_token(path: Path, token: Token) -> None:
    """Adds a token, durably; creates the file with mode 0600 if it does not exist.

    Raises:
        StartError: the file cannot be written, or a line is malformed.
    """
    with _changing(path):
        lines = _lines(path) if path.exists() else []
        _parsed(path, lines)
        _replace(path, [*lines, to_line(token)])


def remove_token(path: Path, token_id: str) -> Token:
    """Removes the token with an id, durably, and returns it.

    Raises:
        StartError: there is no such token, the file cannot be written, or a line is malformed.
    """
    # A mistyped name fails here, before a lock file is made for it.
    _lines(path)
    with _changing(path):
        lines = _lines(path)
        token = _parsed(path, lines).get(token_id)
        if token is None:
            raise StartError(f"{path} has no token {token_id!r}; wattwise token list shows its tokens")
        _replace(path, [line for line in lines if not _is_token(line) or from_line(line).id != token_id])
        return token


def _lines(path: Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except FileNotFoundError:
        raise StartError(f"there is no token file {path}: create one with wattwise token create") from None
    except FileError as error:
        raise StartError(f"cannot read the token file: {error}") from None


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
            raise StartError(f"{path}, line {number} {error}; correct or remove the line") from None
        if token.id in tokens:
            raise StartError(
                f"{path}, line {number} has the same id as an earlier line, {token.id}; remove one of them"
            )
        tokens[token.id] = token
    return tokens


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Excludes other writers; turns errors of the file into StartErrors."""
    try:
        real = resolved(path)
    except FileError as error:
        raise StartError(str(error)) from None
    # FileLock would create a missing folder, even a mistyped one.
    if not real.parent.is_dir():
        raise StartError(f"there is no folder {real.parent} for {path}: create it, or name another file")
    try:
        with FileLock(f"{real}.lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout:
        raise StartError(f"another process has held the lock of {path} ({path}.lock) for too long; try again") from None
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}; check the permissions of its folder") from None


def _replace(path: Path, lines: Sequence[str]) -> None:
    path = path.resolve()
    with replacing(path, f".{{}}.{os.getpid()}.part", mode=0o600) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
        if path.exists():
            _copy_owner_and_mode(path, Path(file.name))


def _copy_owner_and_mode(path: Path, fresh: Path) -> None:
    old, new = path.stat(), fresh.stat()
    fresh.chmod(stat.S_IMODE(old.st_mode))
    # If root adds a token, the file must stay readable for the server's user.
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(fresh, old.st_uid, old.st_gid)
