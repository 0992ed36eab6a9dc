"""The logins: tokens by random ids. The browser holds only its id."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

IDLE_SECONDS = 12 * 3600
_MOST = 10_000
MOST_OF_TOKEN = 500
"""The most sessions of one token: a visitor who logs in again and again ends only sessions of the same token."""


_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,1000}")


def is_token(text: str) -> bool:
    """Returns whether a text may be a token."""
    return _TOKEN.fullmatch(text) is not None


@dataclass
class Session:
    """A visitor's login.

    Attributes:
        token: the Wattwise token, which is kept only in the memory of this process.
        used_at: the time of the last use, by the clock of `Sessions`.
    """

    token: str
    used_at: float

    def __repr__(self) -> str:
        return "Session(token=…)"


class Sessions:
    """The sessions of this process. They end with a logout, after twelve idle hours, or when the process ends.

    The browser gets a random id rather than the encrypted token: a stolen cookie is useless once its session has ended,
    a logout takes effect at once, and there is no key to keep.

    Args:
        ended: called with the token of each session that ends.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, ended: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ended = ended
        self._clock = clock
        # By the hash of the id, the least recently used first: a lookup's time says nothing about an id.
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def open(self, token: str) -> str:
        """Begins a session; returns its id."""
        session_id = secrets.token_urlsafe(32)
        self._sessions[_key(session_id)] = Session(token, self._clock())
        own = [key for key, session in self._sessions.items() if session.token == token]
        for key in own[:-MOST_OF_TOKEN]:
            self._end(key)
        while len(self._sessions) > _MOST:
            self._end(next(iter(self._sessions)))
        return session_id

    def token(self, session_id: str) -> str | None:
        """Returns the token of a session and extends the session; None if the session does not exist or has ended."""
        if not self.is_open(session_id):
            return None
        key = _key(session_id)
        session = self._sessions[key]
        session.used_at = self._clock()
        self._sessions.move_to_end(key)
        return session.token

    def is_open(self, session_id: str) -> bool:
        """Returns whether a session has not ended."""
        now = self._clock()
        while self._sessions and now - next(iter(self._sessions.values())).used_at > IDLE_SECONDS:
            self._end(next(iter(self._sessions)))
        return _key(session_id) in self._sessions

    def close(self, session_id: str) -> None:
        """Ends a session, if there is one."""
        if (key := _key(session_id)) in self._sessions:
            self._end(key)

    def _end(self, key: bytes) -> None:
        self._ended(self._sessions.pop(key).token)


def _key(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
