"""Many statements, one visit to aiosqlite's thread.

Every visit costs two changes of thread and every step inside it gives Python's lock away and waits to have it back: a
commit that takes a visit per statement would spend most of its time waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import aiosqlite

_LARGEST_INSERT = 64
"""Rows; fewer than the statements that a connection keeps prepared, as there is one for each number of rows."""


_Alike = tuple[str, str, list[tuple[object, ...]]]
"""SQL, the text of a row of it, and the parameters of each of the statements."""


class Statement(NamedTuple):
    """SQL with its parameters.

    Attributes:
        rank: Statements of one commit that all have a rank are sorted by it, so that equal SQL comes together; one
            without a rank keeps the whole commit in the order of submission.
        sql: The statement.
        parameters: For its question marks.
        row: The text of its last row of VALUES, if the statement may insert several rows at once.
    """

    rank: int | None
    sql: str
    parameters: tuple[object, ...]
    row: str = ""


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
    for sql, row, parameters in _in_order(group) if any(each.rank is None for each in group) else _by_rank(group):
        if row:
            yield from _inserts(sql, row, parameters)
        else:
            yield from ((sql, each) for each in parameters)


def _by_rank(group: Sequence[Statement]) -> Iterator[_Alike]:
    kinds: dict[tuple[int | None, str, str], list[tuple[object, ...]]] = {}
    for rank, sql, parameters, row in group:
        kinds.setdefault((rank, sql, row), []).append(parameters)
    for kind in sorted(kinds) if len(kinds) > 1 else kinds:
        yield kind[1], kind[2], kinds[kind]


def _in_order(group: Sequence[Statement]) -> Iterator[_Alike]:
    for (sql, row), alike in groupby(group, key=lambda statement: (statement.sql, statement.row)):
        yield sql, row, [statement.parameters for statement in alike]


def _inserts(sql: str, row: str, parameters: list[tuple[object, ...]]) -> Iterator[tuple[str, Sequence[Any]]]:
    for begin in range(0, len(parameters), _LARGEST_INSERT):
        rows = parameters[begin : begin + _LARGEST_INSERT]
        yield _insert(sql, row, len(rows)), [value for each in rows for value in each]


@cache
def _insert(sql: str, row: str, count: int) -> str:
    return sql + f", {row}" * (count - 1)


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
