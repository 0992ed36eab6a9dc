"""Another server that changes jobs: what a store sees of it is a commit that says so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wattwise_server.store.transactions import Store
from wattwise_server.store.writer import Owner, Submission


class Rival:
    """Makes the next commits of a store fail, as if another server had changed all of their jobs.

    Attributes:
        conflicts: How many commits are still to fail.
        met: How many have failed.
    """

    def __init__(self, store: Store, conflicts: int) -> None:
        self.conflicts, self.met = conflicts, 0
        self.committer = store.writer.committer
        store.writer.committer = self

    async def commit(self, group: Sequence[Submission]) -> Collection[Owner]:
        """Saves nothing of the group while there are conflicts."""
        if not self.conflicts:
            return await self.committer.commit(group)
        self.conflicts -= 1
        self.met += 1
        return {submission.owner for submission in group}

    def explain(self, error: Exception) -> str:
        """As the store does."""
        return self.committer.explain(error)

    def affects_all(self, error: Exception) -> bool:
        """As the store does."""
        return self.committer.affects_all(error)

    def log_failure(self, error: Exception) -> None:
        """As the store does."""
        self.committer.log_failure(error)
