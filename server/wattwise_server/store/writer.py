"""The one writer: what arrives while a commit is under way is committed together, next; a lone write waits for nobody.

Every statement of one submission is in the same commit, in order. When a group cannot be committed, its submissions are
tried one by one; one that fails takes along all that its owner has submitted since, which may rest on what was not
kept, and nobody else's, unless it failed of the storage (full, gone, locked), which would fail the others alike.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from wattwise_server.errors import StorageUnavailableError
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.store.group import Group, Statement
from wattwise_server.store.trouble import trouble

log = logging.getLogger(__name__)

_CROWD = 16
"""Owners; where so many have submitted in the last moments, a commit that few are waiting for does not hurry."""

_LATELY_SECONDS = 0.05
_STEP_SECONDS, _PATIENCE_STEPS = 0.001, 2
"""The least that an event loop's timer can tell, and how often: little beside an answer's way through a network."""


class Owner(Protocol):
    """Whose memory a submission is a part of; `lost` once a submission of his was not kept."""

    lost: bool


class _Nobody:
    """The owner of what has been dealt with."""

    lost = False


_NOBODY = _Nobody()


class Submission:
    """Statements on their way to the disk.

    Attributes:
        owner: Whose they are.
        statements: The statements, in order.
        done: Whether they are durable, or given up.
        error: Why they were given up.
    """

    __slots__ = ("_then", "_waiters", "done", "error", "owner", "statements")

    def __init__(self, owner: Owner, statements: Sequence[Statement], then: Callable[[], None] | None) -> None:
        self.owner = owner
        self.statements = statements
        self.done = False
        self.error: Exception | None = None
        self._then = then
        self._waiters: list[asyncio.Future[None]] = []

    async def durable(self) -> None:
        """Returns once the statements are durable; a waiter that is cancelled changes nothing for the others.

        Raises:
            StorageUnavailableError: if they were not kept.
        """
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            why = trouble(self.error)
            raise StorageUnavailableError(
                f"the database was not written ({why}); nothing was kept, retry"
            ) from self.error

    def succeed(self) -> None:
        """Tells all who wait, and before them whoever follows changes."""
        if self._then is not None:
            self._then()
        self._finish()

    def fail(self, error: Exception) -> None:
        """Tells all who wait, and that the owner's memory is worth nothing."""
        self.owner.lost = True
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        # Its owner remembers it: what it held on to must not stay as long, nor be a cycle for the collector to find.
        self.owner, self.statements, self._then = _NOBODY, (), None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Writer:
    """Commits submissions in order, in groups."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._waiting: list[Submission] = []
        self._wake = asyncio.Event()
        self._closing = False
        # When each of the last groups was committed, and for whom.
        self._groups: deque[tuple[float, set[int]]] = deque(maxlen=8)
        self._task = asyncio.create_task(self._run(), name="wattwise-writer")

    def submit(
        self, owner: Owner, statements: Sequence[Statement], then: Callable[[], None] | None = None
    ) -> Submission:
        """Queues statements; `then` is called once they are durable, before those who wait."""
        submission = Submission(owner, statements, then)
        if self._closing:
            submission.fail(RuntimeError("the writer is closing"))
        else:
            if not self._waiting:
                self._wake.set()
            self._waiting.append(submission)
        return submission

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
                await self._gather()
                group, self._waiting = self._waiting, []
                owners = {id(submission.owner) for submission in group}
                self._groups.append((asyncio.get_running_loop().time(), owners))
                await self._commit(group)

    async def _gather(self) -> None:
        """Lets those who are about to submit do so, while there are any; a lone submission waits for nobody.

        A commit costs the processor about as much for one as for thirty. Where many have submitted in the last moments
        it is worth waiting for a third of them: they have had their answers and are about to be back.
        """
        await self._gather_ready()
        crowd = self._crowd()
        if crowd < _CROWD:
            return
        for _ in range(_PATIENCE_STEPS):
            if len(self._waiting) >= crowd // 3 or self._closing:
                return
            await asyncio.sleep(_STEP_SECONDS)

    async def _gather_ready(self) -> None:
        before = 1
        while len(self._waiting) > before:
            before = len(self._waiting)
            await asyncio.sleep(0)

    def _crowd(self) -> int:
        """How many owners have submitted in the last moments."""
        oldest = asyncio.get_running_loop().time() - _LATELY_SECONDS
        while self._groups and self._groups[0][0] < oldest:
            self._groups.popleft()
        return len(set().union(*(owners for _, owners in self._groups)))

    async def _commit(self, group: list[Submission]) -> None:
        sound = [submission for submission in group if not submission.owner.lost]
        try:
            if sound:
                await self._group.commit([statement for submission in sound for statement in submission.statements])
        except Exception as error:  # noqa: BLE001 - the log gets all of it, and those who wait hear of it
            if len(sound) > 1:
                await self._commit_singly(sound)
            else:
                _tell(error)
                sound[0].fail(error)
        else:
            for submission in sound:
                submission.succeed()
        for submission in group:
            if not submission.done:
                submission.fail(RuntimeError("it rests on what could not be kept"))

    async def _commit_singly(self, group: Sequence[Submission]) -> None:
        for place, submission in enumerate(group, 1):
            await self._commit([submission])
            if isinstance(submission.error, sqlite3.OperationalError):
                # A disk that is full or gone is so for all of them.
                for other in group[place:]:
                    other.fail(submission.error)
                return


def _tell(error: Exception) -> None:
    fields = {"cause": trouble(error), "message": "nothing of it was kept"}
    # SQLite's errors are known: on a full disk there are many of them.
    if isinstance(error, sqlite3.Error):
        log_event(log, logging.ERROR, "commit failed", **fields)
    else:
        log_exception(log, "commit failed", error, **fields)
