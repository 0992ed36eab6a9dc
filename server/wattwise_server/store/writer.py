"""The one writer: what arrives while a commit is under way is committed together, next; a lone write waits for nobody.

Every statement of one submission is in the same commit, in order. Once a commit fails, all that was submitted until
then fails with it, since it may rest on what was not kept.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import aiosqlite

from wattwise_server.errors import StorageUnavailableError


class Statement(NamedTuple):
    """SQL with its parameters.

    Statements of one commit that all have a rank are sorted by it, so that equal SQL runs as one; one without a rank
    keeps the whole commit in the order of submission.
    """

    rank: int | None
    sql: str
    parameters: tuple[object, ...]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Submission:
    statements: Sequence[Statement]
    committed: asyncio.Future[None]
    then: Callable[[], None]


class Writer:
    """Commits submissions in order, in groups.

    Attributes:
        losses: How many commits have failed; what was read before one of them may rest on what was not kept.
    """

    def __init__(self, connection: aiosqlite.Connection) -> None:
        """Writes through a connection in autocommit mode that nobody else uses."""
        self._connection = connection
        self.losses = 0
        self._waiting: list[_Submission] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="wattwise-writer")

    def submit(self, statements: Sequence[Statement], then: Callable[[], None]) -> asyncio.Future[None]:
        """Queues statements; the future is done once they are durable, `then` is called just before."""
        committed = asyncio.get_running_loop().create_future()
        if self._closing:
            committed.set_exception(StorageUnavailableError("the database is being closed; retry"))
            return committed
        self._waiting.append(_Submission(statements, committed, then))
        self._wake.set()
        return committed

    async def close(self) -> None:
        """Waits until everything that was submitted is durable."""
        self._closing = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        while self._waiting or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._commit(group)

    async def _commit(self, group: list[_Submission]) -> None:
        # Whatever goes wrong, those who wait must hear of it.
        try:
            await self._write([statement for submission in group for statement in submission.statements])
        except Exception as error:
            log.exception("a commit of %d calls failed; none of them was kept", len(group))
            self._fail(group, error)
            return
        for submission in group:
            submission.then()
            if not submission.committed.done():
                submission.committed.set_result(None)

    def _fail(self, group: list[_Submission], error: Exception) -> None:
        lost, self._waiting = [*group, *self._waiting], []
        self.losses += 1
        for submission in lost:
            if not submission.committed.done():
                refusal = StorageUnavailableError(
                    f"the database could not be written ({error}); nothing was kept, retry"
                )
                submission.committed.set_exception(refusal)
                # A caller that was cancelled never looks at its future.
                submission.committed.exception()

    async def _write(self, statements: list[Statement]) -> None:
        if len(statements) == 1:
            await self._connection.execute_fetchall(statements[0].sql, statements[0].parameters)
            return
        if all(statement.rank is not None for statement in statements):
            statements = sorted(statements, key=lambda statement: statement.rank or 0)
        await self._connection.execute_fetchall("BEGIN IMMEDIATE")
        try:
            for sql, same in groupby(statements, key=lambda statement: statement.sql):
                await self._connection.executemany(sql, [statement.parameters for statement in same])
            await self._connection.execute_fetchall("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                await self._connection.execute_fetchall("ROLLBACK")
            raise
