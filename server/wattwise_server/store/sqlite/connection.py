"""The writing connection: groups of statements in one commit, and what SQLite's errors mean for an operator.

A group runs in one visit to aiosqlite's thread. Every visit costs two thread switches, and every step inside it
releases Python's lock and waits to get it back. With a visit per statement, a commit would mostly wait.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

import aiosqlite

from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.observability.observers import Observer
from wattwise_server.store.changes import Change
from wattwise_server.store.sqlite.database_file import DatabaseFile
from wattwise_server.store.sqlite.statements import statements
from wattwise_server.store.writer import Owner, Submission

log = logging.getLogger(__name__)


class GroupConnection(sqlite3.Connection):
    """A connection in autocommit mode whose `commit` runs and commits the whole of `group`."""

    group: Sequence[Change] = ()

    def commit(self) -> None:
        """Makes the group durable, or changes nothing."""
        # Open only if an earlier rollback failed; it must not be committed with this group.
        if self.in_transaction:
            self.rollback()
        steps = list(statements(self.group))
        if len(steps) == 1:
            self.execute(*steps[0])
            return
        self.execute("BEGIN IMMEDIATE")
        try:
            for sql, parameters in steps:
                self.execute(sql, parameters)
            super().commit()
        except BaseException:
            if self.in_transaction:
                self.rollback()
            raise


class Group:
    """Commits groups through a connection that nothing else uses, and reports every commit to an observer."""

    def __init__(
        self, connection: aiosqlite.Connection, raw: GroupConnection, file: DatabaseFile, observer: Observer
    ) -> None:
        """Takes `raw`, which `connection` runs in its thread, and `file`, which it writes."""
        self.connection = connection
        self._raw = raw
        self._file = file
        self._observer = observer

    async def commit(self, group: Sequence[Submission]) -> Collection[Owner]:
        """Returns once the changes of the group, each of which writes a row, are durable; no owner is outdated.

        Raises:
            sqlite3.Error, ValueError, OverflowError: nothing was changed.
        """
        changes = [change for submission in group for change in submission.changes]
        began = perf_counter()
        self._raw.group = changes
        try:
            self._file.check_after_pause()
            await self.connection.commit()
            # It may have been deleted just before the commit, which says nothing of it.
            self._file.check()
        except BaseException:
            self._observer.commit_failed()
            raise
        self._observer.committed(len(changes), perf_counter() - began)
        return ()

    def explain(self, error: BaseException) -> str:
        """Returns SQLite's message with what to do about it."""
        return f"the database could not be written ({explain(error)}); nothing was saved, retry"

    def affects_all(self, error: BaseException) -> bool:
        """Returns whether the file itself failed: a full or missing disk affects all submissions."""
        return isinstance(error, sqlite3.OperationalError)

    def log_failure(self, error: BaseException) -> None:
        """Logs a submission that could not be committed."""
        fields = {"cause": explain(error), "message": "nothing of it was saved"}
        # SQLite's errors need no stack trace, and a full disk causes many of them.
        if isinstance(error, sqlite3.Error):
            log_event(log, logging.ERROR, "commit failed", **fields)
        else:
            log_exception(log, "commit failed", error, **fields)


def recording_factory() -> tuple[Callable[..., GroupConnection], list[GroupConnection]]:
    """Returns a factory for `sqlite3.connect`, and the list to which it appends the connection that it makes."""
    made: list[GroupConnection] = []

    def make(*args: Any, **options: Any) -> GroupConnection:
        made.append(GroupConnection(*args, **options))
        return made[-1]

    return make, made


# By SQLite's messages: Python has its error codes from 3.11 on.
_ADVICE = {
    "deleted, moved or replaced": (
        "put it back where it was, with its -wal and -shm; if it was deleted, stop the server, restore a backup and "
        "start it again"
    ),
    "disk is full": "free some space on its disk",
    "disk I/O error": "check its disk: it may be full or failing",
    "readonly database": "check that this user may write the file and its folder, and that the disk is writable",
    "unable to open": "check that this user may read and write the file and its folder",
    "malformed": "the file is damaged: stop the server and restore a backup",
    "not a database": "the file is damaged, or is not a Wattwise database: restore a backup, or name another file",
}


def explain(error: BaseException) -> str:
    """Returns SQLite's message with what to do about it; nothing about any other error."""
    if not isinstance(error, sqlite3.Error):
        return "its connection failed"
    message = str(error)
    advice = next((advice for words, advice in _ADVICE.items() if words in message), None)
    return f"{message}: {advice}" if advice else message
