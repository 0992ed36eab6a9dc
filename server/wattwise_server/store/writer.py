"""The one writer: what arrives while a commit is under way is committed together, next; a lone write waits for nobody.

Every statement of one submission is in the same commit, in order. When a group cannot be committed, its submissions are
tried one by one; one that fails takes along all that its owner has submitted since, which may rest on what was not
kept, and nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

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


class Owner(Protocol):
    """Whose memory a submission is a part of; `lost` once a submission of his was not kept."""

    lost: bool


@dataclass(frozen=True, slots=True)
class _Submission:
    owner: Owner
    statements: Sequence[Statement]
    committed: asyncio.Future[None]
    then: Callable[[], None]

    def succeed(self) -> None:
        self.then()
        if not self.committed.done():
            self.committed.set_result(None)

    def fail(self) -> None:
        self.owner.lost = True
        if not self.committed.done():
            self.committed.set_exception(
                StorageUnavailableError("the database could not be written; nothing was kept, retry")
            )
            # A caller that was cancelled never looks at its future.
            self.committed.exception()


class Writer:
    """Commits submissions in order, in groups."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        """Writes through a connection in autocommit mode that nobody else uses."""
        self._connection = connection
        self._waiting: list[_Submission] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="wattwise-writer")

    def submit(self, owner: Owner, statements: Sequence[Statement], then: Callable[[], None]) -> asyncio.Future[None]:
        """Queues statements; the future is done once they are durable, `then` is called just before."""
        submission = _Submission(owner, statements, asyncio.get_running_loop().create_future(), then)
        if self._closing:
            submission.fail()
        else:
            self._waiting.append(submission)
            self._wake.set()
        return submission.committed

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
        sound = []
        for submission in group:
            if submission.owner.lost:
                submission.fail()
            else:
                sound.append(submission)
        if not sound:
            return
        # Whatever goes wrong, those who wait must hear of it.
        try:
            await self._write([statement for submission in sound for statement in submission.statements])
        except Exception:
            if len(sound) > 1:
                for submission in sound:
                    await self._commit([submission])
            else:
                log.exception("a commit failed; nothing of it was kept")
                sound[0].fail()
            return
        for submission in sound:
            submission.succeed()

    async def _write(self, statements: list[Statement]) -> None:
        # Left open only if an earlier rollback failed; nothing may be committed as part of it.
        if self._connection.in_transaction:
            await self._connection.execute_fetchall("ROLLBACK")
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
        except BaseException:
            if self._connection.in_transaction:
                await self._connection.execute_fetchall("ROLLBACK")
            raise
