"""What PostgreSQL's errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from wattwise_server.store.writer import InDoubtError

_FULL, _STOPPED, _SYSTEM = "53", "57", "58"
_READ_ONLY = "25006"

_STATEMENT_ENDED = "it canceled the statement, because of a timeout or for an administrator"
_CONNECTION_ENDED = "it ended the connection because of a timeout"
# For callers.
_SUMMARIES = {
    _READ_ONLY: "it is read-only",
    "25P03": _CONNECTION_ENDED,
    "25P04": _CONNECTION_ENDED,
    "53100": "its disk is full",
    "53200": "it is out of memory",
    "53300": "it has no connection left",
    "55P03": "a lock was not free in time",
    "57014": _STATEMENT_ENDED,
    "57P05": _CONNECTION_ENDED,
}
# For operators. The timeouts of PostgreSQL are off for every connection of a server.
_REMEDIES = {
    _READ_ONLY: "promote it if it is a standby; else turn off default_transaction_read_only",
    "53100": "free disk space",
    "53300": "raise max_connections, or the CONNECTION LIMIT of the role or database: a server opens 11, a migration 2",
    "57014": "see PostgreSQL's log for what canceled it: a call of pg_cancel_backend, or a proxy's limit",
}
_ENDED_CONNECTION = ("57P", "25P03", "25P04")


class DatabaseAwayError(Exception):
    """The database cannot be reached; the message says why.

    Attributes:
        summary: The same for callers, without hosts.
        answered: Whether something answered, so that no host has to be started.
    """

    def __init__(self, message: str, summary: str = "it is away", *, answered: bool = False) -> None:
        super().__init__(message)
        self.summary, self.answered = summary, answered


class RefusedError(DatabaseAwayError):
    """A host refuses this user, database, option or any write: waiting does not help."""


ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    DatabaseAwayError,
    InDoubtError,
    OSError,
    asyncio.TimeoutError,
)
"""What may be raised by a call of the database."""


@contextmanager
def may_be_terminated(connection: asyncpg.Connection[Any]) -> Iterator[None]:
    """Makes asyncpg's `AttributeError`, if terminate() comes between two messages of a statement, one of ERRORS."""
    try:
        yield
    except AttributeError as error:
        if not connection.is_closed():
            raise
        raise DatabaseAwayError("the connection was terminated") from error


def is_lost(error: BaseException) -> bool:
    """Returns whether the connection is of no more use, so that it is unknown what became of the call."""
    if isinstance(error, (asyncpg.PostgresConnectionError, asyncpg.InternalClientError)):
        # The latter is asyncpg's own, when a connection ends at a moment that it does not expect.
        return True
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        # An error of a former primary; one that stops ends its connections.
        return code == _READ_ONLY or code.startswith(_ENDED_CONNECTION)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)
    return isinstance(error, (OSError, asyncio.TimeoutError))


def affects_all(error: BaseException) -> bool:
    """Returns whether other calls fail as well: the connection, the disk or the memory."""
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in (_FULL, _STOPPED, _SYSTEM):
        return True
    return isinstance(error, (DatabaseAwayError, InDoubtError)) or is_lost(error)


def is_read_only(error: BaseException) -> bool:
    """Returns whether the database refused to write, so that nothing was saved."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _READ_ONLY


def explain(error: BaseException) -> str:
    """Returns an error in one line, with its kind, where that says more than its message, and what to do about it."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        remedy = _REMEDIES.get(error.sqlstate)
        return f"{message} (SQLSTATE {error.sqlstate}){f': {remedy}' if remedy else ''}"
    return message


def summary(error: BaseException) -> str:
    """Returns an error as callers see it: without hosts, users and tables, which the log names."""
    if isinstance(error, DatabaseAwayError):
        return error.summary
    if isinstance(error, InDoubtError):
        return "the connection was lost during the commit"
    code = (error.sqlstate if isinstance(error, asyncpg.PostgresError) else "") or ""
    if code[:2] == _FULL or code in _SUMMARIES:
        return _SUMMARIES.get(code, f"it is out of resources, SQLSTATE {code}")
    if is_lost(error):
        return "no answer in time" if isinstance(error, asyncio.TimeoutError) else "it is away"
    return f"SQLSTATE {code}" if code else type(error).__name__
