"""What PostgreSQL's errors mean."""

from __future__ import annotations

import asyncio

import asyncpg

from wattwise_server.store.writer import InDoubtError

_FULL, _STOPPED, _SYSTEM = "53", "57", "58"
_READ_ONLY = "25006"


class DatabaseAwayError(Exception):
    """The database cannot be reached; the message says why."""


class RefusedError(DatabaseAwayError):
    """A host refuses this user, database or option: waiting does not help."""


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


def is_lost(error: BaseException) -> bool:
    """Whether the connection is of no more use, so that it is unknown what became of the call."""
    if isinstance(error, (asyncpg.PostgresConnectionError, asyncpg.InternalClientError)):
        # The latter is asyncpg's own, when a connection ends at a moment that it does not expect.
        return True
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        # Of a former primary; one that stops ends its connections.
        return code == _READ_ONLY or code.startswith("57P")
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)
    return isinstance(error, (OSError, asyncio.TimeoutError))


def affects_all(error: BaseException) -> bool:
    """Whether other calls fail as well: the connection, the disk or the memory."""
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in (_FULL, _STOPPED, _SYSTEM):
        return True
    return isinstance(error, (DatabaseAwayError, InDoubtError)) or is_lost(error)


def explain(error: BaseException) -> str:
    """An error with its kind, where that says more than its message."""
    message = str(error) or type(error).__name__
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        return f"{message} (SQLSTATE {error.sqlstate})"
    return message


def summary(error: BaseException) -> str:
    """An error as callers see it: without hosts, users and tables, which the log names."""
    code = (error.sqlstate if isinstance(error, asyncpg.PostgresError) else "") or ""
    if code[:2] == _FULL:
        return f"it is full or out of connections, SQLSTATE {code}"
    if isinstance(error, InDoubtError):
        return "the connection was lost during the commit"
    if isinstance(error, DatabaseAwayError) or is_lost(error):
        return "it is away"
    return f"SQLSTATE {code}" if code else type(error).__name__
