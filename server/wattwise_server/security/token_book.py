"""The tokens that a running server accepts: those of its token file, read again when it changes."""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from wattwise_server.errors import StartError, UnauthenticatedError
from wattwise_server.observability.logs import log_event
from wattwise_server.security.token_file import read_tokens
from wattwise_server.security.tokens import Token, verified

log = logging.getLogger(__name__)

_ADVICE = (
    "send one in the metadata 'authorization: Bearer TOKEN'; the clients take it from WATTWISE_TOKEN or from the file "
    "WATTWISE_TOKEN_FILE"
)


class _FileState(NamedTuple):
    """What changes when a file changes."""

    mtime_ns: int
    size: int
    inode: int
    mode: int


class TokenBook:
    """The valid tokens. If the file cannot be read again later, the current tokens stay valid and the log says so.

    Args:
        path: The token file.

    Raises:
        StartError: the file cannot be read, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _file_state(path)
        self._tokens: Mapping[str, Token] = read_tokens(path)
        self._log()

    def verify(self, authorization: str) -> Token:
        """Returns the token of a call.

        Args:
            authorization: The value of that metadata key; empty if the call has none.

        Raises:
            UnauthenticatedError: there is no token, or it is unknown or expired.
        """
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise UnauthenticatedError(f"this server requires a token: {_ADVICE}")
        token = verified(self._tokens, text.strip())
        if token is None:
            raise UnauthenticatedError(
                "unknown token: it was copied incompletely or has been revoked; ask for another one"
            )
        _check_time(token)
        return token

    def check(self, token: Token) -> None:
        """Checks that a verified token is still valid.

        Raises:
            UnauthenticatedError: it has expired, or was revoked or changed.
        """
        if self._tokens.get(token.id) != token:
            raise UnauthenticatedError(f"{token} has been revoked or changed; call again, or ask for another one")
        _check_time(token)

    def reread(self) -> None:
        """Reads the file again."""
        self._seen = _file_state(self._path)
        try:
            self._tokens = read_tokens(self._path)
        except StartError as error:
            message = f"{error}; the current tokens stay valid, and none is revoked"
            log_event(log, logging.ERROR, "tokens not read", message=message)
        else:
            self._log()

    def reread_if_changed(self) -> None:
        """Reads the file again if its size, time, inode or mode changed."""
        if _file_state(self._path) != self._seen:
            self.reread()

    def _log(self) -> None:
        log_event(log, logging.INFO, "tokens read", file=self._path, tokens=len(self._tokens))
        if not self._tokens:
            log_event(
                log,
                logging.WARNING,
                "no tokens",
                file=self._path,
                message="every call is refused: create a token with wattwise token create",
            )
        if self._seen and stat.S_IMODE(self._seen.mode) & (stat.S_IWGRP | stat.S_IWOTH):
            log_event(
                log,
                logging.WARNING,
                "token file writable by others",
                file=self._path,
                message="anyone who can write it can add a token: run chmod 600",
            )


def _check_time(token: Token) -> None:
    if token.expires is None:
        return
    if token.expires <= datetime.now(timezone.utc):  # pragma: no mutate: it is never that very moment
        raise UnauthenticatedError(f"{token} expired at {token.expires:%Y-%m-%d %H:%M} UTC; ask for another one")


def _file_state(path: Path) -> _FileState | None:
    """Returns the state of a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return _FileState(found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
