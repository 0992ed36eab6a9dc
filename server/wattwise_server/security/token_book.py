"""The tokens that a running server knows: those of its file, read again when it changes."""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from wattwise_server.errors import StartError, UnauthenticatedError
from wattwise_server.observability.logs import log_event
from wattwise_server.security.token_file import read_tokens
from wattwise_server.security.tokens import Token, recognised

log = logging.getLogger(__name__)

_ADVICE = (
    "send one as metadata 'authorization: Bearer TOKEN', which the Python client does with what it finds in "
    "WATTWISE_TOKEN or in the file WATTWISE_TOKEN_FILE"
)
_Look: TypeAlias = tuple[int, ...]


class TokenBook:
    """Who is known. A file that cannot be read later on leaves everything as it was, and the log says so.

    Args:
        path: The token file.

    Raises:
        StartError: the file cannot be read, or a line of it is no token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _look(path)
        self._tokens: Mapping[str, Token] = read_tokens(path)
        self._tell()

    def recognise(self, authorization: str) -> Token:
        """Whose token a call brought.

        Args:
            authorization: The value of that metadata key; empty when the call has none.

        Raises:
            UnauthenticatedError: nobody's.
        """
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise UnauthenticatedError(f"this server answers nobody without a token: {_ADVICE}")
        token = recognised(self._tokens, text.strip())
        if token is None:
            raise UnauthenticatedError(
                "this token is not known here: was it copied whole, or has it been revoked? Ask for another one"
            )
        _check_time(token)
        return token

    def check(self, token: Token) -> None:
        """Whether a token that was recognised is good still.

        Raises:
            UnauthenticatedError: it has expired, or was revoked or changed meanwhile.
        """
        if self._tokens.get(token.id) != token:
            raise UnauthenticatedError(f"{token} has been revoked or changed; ask for another one, or call again")
        _check_time(token)

    def reread(self) -> None:
        """Reads the file again."""
        self._seen = _look(self._path)
        try:
            self._tokens = read_tokens(self._path)
        except StartError as error:
            message = f"{error}; those in use stay, and none is revoked"
            log_event(log, logging.ERROR, "tokens not read", message=message)
        else:
            self._tell()

    def reread_if_changed(self) -> None:
        """Reads the file again if it is not the one that was read last; otherwise only looks at its folder entry."""
        if _look(self._path) != self._seen:
            self.reread()

    def _tell(self) -> None:
        log_event(log, logging.INFO, "tokens read", file=self._path, tokens=len(self._tokens))
        if not self._tokens:
            advice = "every call is refused: create a token with wattwise token create"
            log_event(log, logging.WARNING, "no tokens", file=self._path, message=advice)
        if self._seen and stat.S_IMODE(self._seen[-1]) & (stat.S_IWGRP | stat.S_IWOTH):
            advice = "anyone who can write it can add a token: run chmod 600"
            log_event(log, logging.WARNING, "token file writable by others", file=self._path, message=advice)


def _check_time(token: Token) -> None:
    if token.expires is not None and token.expires <= datetime.now(timezone.utc):
        raise UnauthenticatedError(f"{token} expired at {token.expires:%Y-%m-%d %H:%M} UTC; ask for another one")


def _look(path: Path) -> _Look:
    """Tells one state of the file from another; empty while there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
