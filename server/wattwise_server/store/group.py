"""Many statements, one visit to aiosqlite's thread.

Every visit costs two changes of thread and every step inside it gives Python's lock away and waits to have it back: a
commit that takes a visit per statement would spend most of its time waiting.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import aiosqlite

_LARGEST_INSERT = 64
"""Rows; fewer than the statements that a connection keeps prepared, as there is one for each number of rows."""


class Sql:
    """The text of a statement; made once, and told from others by being itself.

    Attributes:
        text: The statement.
        rank: Statements of one commit that all have a rank are sorted by it, so that equal ones come together; one
            without a rank keeps the whole commit in the order of submission.
        row: The text of its last row of VALUES, if the statement may insert several rows at once.
    """

    __slots__ = ("_texts", "rank", "row", "text")

    def __init__(self, text: str, rank: int | None = None, row: str = "") -> None:
        self.text = text
        self.rank = rank
        self.row = row
        self._texts: dict[int, str] = {}

    def of_rows(self, count: int) -> str:
        """The text that inserts as many rows."""
        text = self._texts.get(count)
        if text is None:
            text = self._texts[count] = self.text + f", {self.row}" * (count - 1)
        return text


_Parameters = tuple[object, ...]


class Statement(NamedTuple):
    """SQL with the parameters for its question marks."""

    sql: Sql
    parameters: _Parameters


class GroupConnection(sqlite3.Connection):
    """A connection in autocommit mode whose `commit` runs and commits the whole of `group`."""

    group: Sequence[Statement] = ()

    def commit(self) -> None:
        """Makes the group durable, or changes nothing."""
        # Left open only if an earlier rollback failed; nothing may be committed as part of it.
        if self.in_transaction:
            self.rollback()
        steps = list(_steps(self.group))
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


def _steps(group: Sequence[Statement]) -> Iterator[tuple[str, Sequence[Any]]]:
    for sql, alike in _in_order(group) if any(each.sql.rank is None for each in group) else _by_rank(group):
        if sql.row:
            yield from _inserts(sql, alike)
        else:
            yield from ((sql.text, parameters) for parameters in alike)


def _by_rank(group: Sequence[Statement]) -> Iterator[tuple[Sql, list[_Parameters]]]:
    kinds: defaultdict[Sql, list[_Parameters]] = defaultdict(list)
    for sql, parameters in group:
        kinds[sql].append(parameters)
    yield from sorted(kinds.items(), key=lambda kind: kind[0].rank or 0)


def _in_order(group: Sequence[Statement]) -> Iterator[tuple[Sql, list[_Parameters]]]:
    for sql, alike in groupby(group, key=itemgetter(0)):
        yield sql, [parameters for _, parameters in alike]


def _inserts(sql: Sql, alike: list[_Parameters]) -> Iterator[tuple[str, Sequence[Any]]]:
    for begin in range(0, len(alike), _LARGEST_INSERT):
        rows = alike[begin : begin + _LARGEST_INSERT]
        yield sql.of_rows(len(rows)), list(chain.from_iterable(rows))


class Group:
    """What commits groups through a connection that nobody else uses."""

    def __init__(self, connection: aiosqlite.Connection, raw: GroupConnection) -> None:
        """`raw` is what `connection` runs in its thread."""
        self.connection = connection
        self._raw = raw

    async def commit(self, statements: Sequence[Statement]) -> None:
        """Returns once the statements are durable.

        Raises:
            sqlite3.Error, ValueError, OverflowError: if nothing was changed.
        """
        self._raw.group = statements
        await self.connection.commit()


def recorder() -> tuple[Callable[..., GroupConnection], list[GroupConnection]]:
    """A factory for `sqlite3.connect`, and where the connection that it made is to be found."""
    made: list[GroupConnection] = []

    def make(*args: Any, **options: Any) -> GroupConnection:
        made.append(GroupConnection(*args, **options))
        return made[-1]

    return make, made
