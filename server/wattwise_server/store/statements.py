"""What a transaction writes: statements, by whose identity a backend knows what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sql:
    """A statement; made once, compared by identity.

    Attributes:
        text: The statement for SQLite.
        rank: From 1. If all statements of a commit have a rank, they are sorted by it, so that equal ones come
            together; one without a rank, 0, keeps the whole commit in the order of submission.
        row: The text of its last row of VALUES, if the statement may insert several rows at once.
        name: What PostgreSQL's function for commits calls its rows; empty if that function has no use for it.
        columns: The names of its parameters.
        keys: How many columns, of the first, identify a row; of rows that are equal in them only the last counts.
    """

    __slots__ = ("columns", "keys", "name", "rank", "row", "text")

    def __init__(
        self, text: str, rank: int = 0, row: str = "", *, name: str = "", columns: Sequence[str] = (), keys: int = 0
    ) -> None:
        self.text = text
        self.rank = rank
        self.row = row
        self.name = name
        self.columns = tuple(columns)
        self.keys = keys

    def of_rows(self, count: int) -> str:
        """The text that inserts this many rows."""
        return self.text + f", {self.row}" * (count - 1)


Parameters = tuple[object, ...]


class Statement(NamedTuple):
    """SQL with its parameters."""

    sql: Sql
    parameters: Parameters
