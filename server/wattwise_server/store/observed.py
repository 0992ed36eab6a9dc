"""Commits that somebody watches."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import aiosqlite

from wattwise_server.observability.events import Observer
from wattwise_server.store.group import Group, GroupConnection, Statement


class ObservedGroup(Group):
    """A Group that tells an observer how every commit went."""

    def __init__(self, connection: aiosqlite.Connection, raw: GroupConnection, observer: Observer) -> None:
        """Like Group; and whom to tell."""
        super().__init__(connection, raw)
        self._observer = observer

    async def commit(self, statements: Sequence[Statement]) -> None:
        """Returns once the statements, each of which writes a row, are durable."""
        began = perf_counter()
        try:
            await super().commit(statements)
        except BaseException:
            self._observer.commit_failed()
            raise
        self._observer.committed(len(statements), perf_counter() - began)
