"""The only writer: what arrives during a commit is committed together, next; a lone write does not wait.

All changes of one submission are in the same commit, in order. If a group cannot be committed, its submissions are
tried one by one, unless it may have been saved. If one fails, everything that its owner has submitted since fails too,
because it may depend on it; other owners are not affected, unless the storage itself failed (full, missing, locked),
which fails the whole group. An owner that another server has changed is outdated: its submissions end in a
ConflictError, and nothing of them is saved.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from wattwise_server.errors import ConflictError, StorageUnavailableError
from wattwise_server.store.changes import Change

_MANY_OWNERS = 16
"""Number of recent owners from which on a commit waits for more submissions."""

_RECENT_SECONDS = 0.05
_STEP_SECONDS, _MAX_STEPS = 0.001, 2
"""The resolution of an event loop's timer, and how many such steps to wait: short compared to a network round trip."""


class Owner(Protocol):
    """What a submission belongs to, such as a cached job.

    Attributes:
        failed: Set when one of its commits failed.
        outdated: Set when another server has changed it.
    """

    failed: bool
    outdated: bool


class InDoubtError(Exception):
    """It is unknown whether a group was committed."""


class NoOwner:
    """An owner on which no cached job depends."""

    failed = False
    outdated = False


class Committer(Protocol):
    """What commits the groups."""

    async def commit(self, group: Sequence[Submission]) -> Collection[Owner]:
        """Returns once the submissions are durable, except those of the returned owners, which are outdated.

        Raises:
            InDoubtError: it is unknown whether the group was saved.
            Exception: nothing was saved.
        """

    def explain(self, error: Exception) -> str:
        """Returns the message to a caller about an error of `commit`."""

    def affects_all(self, error: Exception) -> bool:
        """Returns whether every submission would fail as this one did."""

    def log_failure(self, error: Exception) -> None:
        """Logs a submission that could not be committed."""


_NO_OWNER = NoOwner()


class Submission:
    """Changes on their way to the disk.

    Attributes:
        owner: What they belong to.
        changes: The changes, in order.
        done: Whether they are durable or have failed.
        error: Why they failed; what its waiters are to raise.
    """

    __slots__ = ("_callback", "_waiters", "changes", "done", "error", "owner")

    def __init__(self, owner: Owner, changes: Sequence[Change], callback: Callable[[], None] | None) -> None:
        self.owner = owner
        self.changes = changes
        self.done = False
        self.error: Exception | None = None
        self._callback = callback
        self._waiters: list[asyncio.Future[None]] = []

    async def durable(self) -> None:
        """Returns once the changes are durable; cancelling one waiter does not affect the others.

        Raises:
            StorageUnavailableError: they could not be committed.
            ConflictError: another server has changed their owner; nothing was saved.
        """
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if isinstance(self.error, ConflictError):
            # One for each waiter: a traceback belongs to one of them.
            raise ConflictError
        if self.error is not None:
            raise StorageUnavailableError(str(self.error)) from self.error.__cause__

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
        self.owner, self.changes, self._callback = _NO_OWNER, (), None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Writer:
    """Commits submissions in order, in groups.

    Attributes:
        on_failure: Called after a commit has failed, before the waiters wake.
    """

    def __init__(self, committer: Committer) -> None:
        self.committer = committer
        self.waiting: list[Submission] = []
        self._wake = asyncio.Event()
        self._closing = False
        self.on_failure: Callable[[], None] | None = None
        # Time and owners of the last groups.
        self.groups: deque[tuple[float, set[int]]] = deque(maxlen=8)  # pragma: no mutate: only changes the time
        self._task = asyncio.create_task(self._run())

    def submit(self, owner: Owner, changes: Sequence[Change], callback: Callable[[], None] | None = None) -> Submission:
        """Queues changes; `callback` runs once they are durable, before the waiters wake."""
        submission = Submission(owner, changes, callback)
        if self._closing:
            submission.fail(StorageUnavailableError("the server is stopping; nothing was saved, retry"))
        else:
            if not self.waiting:
                self._wake.set()
            self.waiting.append(submission)
        return submission

    async def close(self) -> None:
        """Waits until everything submitted is durable."""
        self._closing = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        while self.waiting or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self.waiting:
                await self._gather()
                group, self.waiting = self.waiting, []
                owners = {id(submission.owner) for submission in group}
                self.groups.append((asyncio.get_running_loop().time(), owners))
                await self._commit(group)

    async def _gather(self) -> None:
        """Waits briefly for more submissions if there are many recent owners; a lone submission does not wait.

        A commit costs about as much processor time for one submission as for thirty. With many recent owners it pays
        to wait for a third of them: they have had their answers and are about to submit again.
        """
        await self._gather_ready()
        recent = self._num_recent_owners()
        if recent < _MANY_OWNERS:  # pragma: no mutate: one owner more or less only changes the time
            return
        for _ in range(_MAX_STEPS):
            if len(self.waiting) >= recent // 3 or self._closing:
                return
            await asyncio.sleep(_STEP_SECONDS)

    async def _gather_ready(self) -> None:
        before = 1  # pragma: no mutate: only changes the time
        while len(self.waiting) > before:
            before = len(self.waiting)
            await asyncio.sleep(0)

    def _num_recent_owners(self) -> int:
        oldest = asyncio.get_running_loop().time() - _RECENT_SECONDS
        recent = (owners for time, owners in self.groups if time >= oldest)  # pragma: no mutate: only changes the time
        return len(set().union(*recent))

    async def _commit(self, group: list[Submission]) -> None:
        sound = [submission for submission in group if not submission.owner.failed]
        try:
            outdated = await self.committer.commit(sound) if sound else ()
        except Exception as error:  # noqa: BLE001 - it is logged, and raised in every waiter
            if self.on_failure is not None:
                self.on_failure()
            # What may have been saved must not be sent again.
            if len(sound) > 1 and not isinstance(error, InDoubtError):
                await self._commit_singly(sound)
            else:
                self.committer.log_failure(error)
                for submission in sound:
                    submission.fail(self._refusal(error))
        else:
            for submission in sound:
                if submission.owner in outdated:
                    submission.owner.outdated = True
                    submission.fail(ConflictError())
                else:
                    submission.succeed()
        for submission in group:
            if not submission.done:
                submission.fail(failure_of(submission.owner))

    async def _commit_singly(self, group: Sequence[Submission]) -> None:
        rest = iter(group)
        for submission in rest:
            await self._commit([submission])
            cause = submission.error.__cause__ if submission.error else None
            if isinstance(cause, Exception) and self.committer.affects_all(cause):
                for other in rest:
                    other.fail(self._refusal(cause))

    def _refusal(self, error: Exception) -> StorageUnavailableError:
        refusal = StorageUnavailableError(self.committer.explain(error))
        refusal.__cause__ = error
        return refusal


def failure_of(owner: Owner) -> ConflictError | StorageUnavailableError:
    """Returns why nothing more of an owner that has failed can be saved."""
    if owner.outdated:
        return ConflictError()
    return StorageUnavailableError("a commit that this call depends on failed; nothing was saved, retry")
