"""The only writer: what arrives during a commit is committed together, next; a lone write does not wait.

All statements of one submission are in the same commit, in order. If a group cannot be committed, its submissions are
tried one by one. If one fails, everything that its owner has submitted since fails too, because it may depend on it;
other owners are not affected, unless the storage itself failed (full, missing, locked), which fails the whole group.
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
from wattwise_server.store.connection import Group, Statement, explain

log = logging.getLogger(__name__)

_CROWD = 16
"""Number of recent owners from which on a commit waits for more submissions."""

_RECENT_SECONDS = 0.05
_STEP_SECONDS, _MAX_STEPS = 0.001, 2
"""The resolution of an event loop's timer, and how many such steps to wait: short compared to a network round trip."""


class Owner(Protocol):
    """What a submission belongs to, such as a cached job; `failed` is set when one of its commits failed."""

    failed: bool


class _NoOwner:
    failed = False


_NO_OWNER = _NoOwner()


class Submission:
    """Statements on their way to the disk.

    Attributes:
        owner: What they belong to.
        statements: The statements, in order.
        done: Whether they are durable or have failed.
        error: Why they failed.
    """

    __slots__ = ("_callback", "_waiters", "done", "error", "owner", "statements")

    def __init__(self, owner: Owner, statements: Sequence[Statement], callback: Callable[[], None] | None) -> None:
        self.owner = owner
        self.statements = statements
        self.done = False
        self.error: Exception | None = None
        self._callback = callback
        self._waiters: list[asyncio.Future[None]] = []

    async def durable(self) -> None:
        """Returns once the statements are durable; cancelling one waiter does not affect the others.

        Raises:
            StorageUnavailableError: they could not be committed.
        """
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            why = explain(self.error)
            raise StorageUnavailableError(
                f"the database could not be written ({why}); nothing was saved, retry"
            ) from self.error

    def succeed(self) -> None:
        """Runs the callback, then wakes the waiters."""
        if self._callback is not None:
            self._callback()
        self._finish()

    def fail(self, error: Exception) -> None:
        """Marks the owner as failed and wakes the waiters."""
        self.owner.failed = True
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        # The owner keeps a reference to this: drop what it holds, and the cycle with the owner.
        self.owner, self.statements, self._callback = _NO_OWNER, (), None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Writer:
    """Commits submissions in order, in groups.

    Attributes:
        on_failure: Called after a commit has failed, before the waiters wake.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._waiting: list[Submission] = []
        self._wake = asyncio.Event()
        self._closing = False
        self.on_failure: Callable[[], None] | None = None
        # Time and owners of the last groups.
        self._groups: deque[tuple[float, set[int]]] = deque(maxlen=8)  # pragma: no mutate: only changes the time
        self._task = asyncio.create_task(self._run())

    def submit(
        self, owner: Owner, statements: Sequence[Statement], callback: Callable[[], None] | None = None
    ) -> Submission:
        """Queues statements; `callback` runs once they are durable, before the waiters wake."""
        submission = Submission(owner, statements, callback)
        if self._closing:
            submission.fail(RuntimeError("the writer is closing"))
        else:
            if not self._waiting:
                self._wake.set()
            self._waiting.append(submission)
        return submission

    async def close(self) -> None:
        """Waits until everything submitted is durable."""
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
        """Waits briefly for more submissions if there are many recent owners; a lone submission does not wait.

        A commit costs about as much processor time for one submission as for thirty. With many recent owners it pays
        to wait for a third of them: they have had their answers and are about to submit again.
        """
        await self._gather_ready()
        crowd = self._crowd()
        if crowd < _CROWD:  # pragma: no mutate: one owner more or less only changes the time
            return
        for _ in range(_MAX_STEPS):
            if len(self._waiting) >= crowd // 3 or self._closing:
                return
            await asyncio.sleep(_STEP_SECONDS)

    async def _gather_ready(self) -> None:
        before = 1  # pragma: no mutate: only changes the time
        while len(self._waiting) > before:
            before = len(self._waiting)
            await asyncio.sleep(0)

    def _crowd(self) -> int:
        oldest = asyncio.get_running_loop().time() - _RECENT_SECONDS
        recent = (owners for time, owners in self._groups if time >= oldest)  # pragma: no mutate: only changes the time
        return len(set().union(*recent))

    async def _commit(self, group: list[Submission]) -> None:
        sound = [submission for submission in group if not submission.owner.failed]
        try:
            if sound:
                await self._group.commit([statement for submission in sound for statement in submission.statements])
        except Exception as error:  # noqa: BLE001 - it is logged, and raised in every waiter
            if self.on_failure is not None:
                self.on_failure()
            if len(sound) > 1:
                await self._commit_singly(sound)
            else:
                _log(error)
                sound[0].fail(error)
        else:
            for submission in sound:
                submission.succeed()
        for submission in group:
            if not submission.done:
                submission.fail(RuntimeError("an earlier submission that it depends on failed"))

    async def _commit_singly(self, group: Sequence[Submission]) -> None:
        rest = iter(group)
        for submission in rest:
            await self._commit([submission])
            if isinstance(submission.error, sqlite3.OperationalError):
                # A full or missing disk affects all of them.
                for other in rest:
                    other.fail(submission.error)


def _log(error: Exception) -> None:
    fields = {"cause": explain(error), "message": "nothing of it was saved"}
    # SQLite's errors need no stack trace, and a full disk causes many of them.
    if isinstance(error, sqlite3.Error):
        log_event(log, logging.ERROR, "commit failed", **fields)
    else:
        log_exception(log, "commit failed", error, **fields)
