"""Tables and texts on a terminal: by `rich` if it is installed, else as plain text; a pipe or a file gets plain text.

A table is a sequence of `Column`s; its rows are any objects that the columns' functions read. On a terminal the least
important columns are left out until the table fits.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from wattwise.presentation.quantities import (
    COMPUTED_NOTE,
    ESTIMATE_MARK,
    ESTIMATE_NOTE,
    age,
    duration,
    energy,
    exact_moment,
    joules,
    moment,
    seconds_since,
)
from wattwise.streams import printable

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.console import Console, RenderableType

Row = TypeVar("Row")

KEY = 0
"""The priority of the column that names a row."""
_KEPT = 4
"""Up to this priority, columns stay while a long key can be folded."""
_LEAST_KEY = 10
_LEAST_TEXT = 30
"""Columns for a text on a narrow terminal."""
_GAP = 2
_UNITS: Mapping[Callable[[float], str], str] = {joules: "joules", energy: "joules", duration: "seconds", age: "seconds"}
"""The units of the numbers that these functions write as texts."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        name: Its heading, by which --columns and --sort know it; spaces are typed as hyphens or underscores there.
        text: Returns the text of a row's cell.
        right: Whether it is aligned to the right.
        priority: Columns with the highest number are left out first on a narrow terminal, `KEY` never.
        exact: Returns the value of a row's cell for scripts, if that is not the text.
        order: Returns what rows are sorted by; None is sorted last. Without it, rows are sorted by the text.
        unit: The unit of the exact values.
    """

    name: str
    text: Callable[[Row], str]
    right: bool = False
    priority: int = KEY
    exact: Callable[[Row], str] | None = None
    order: Callable[[Row], Any] | None = None
    unit: str = ""

    @property
    def option(self) -> str:
        """The name as it is typed."""
        return self.name.replace(" ", "-")

    @property
    def field(self) -> str:
        """The name for scripts, with the unit, such as "min_cost_joules"."""
        return "_".join(filter(None, (*self.name.split(), self.unit)))


def numbers(
    name: str,
    value: Callable[[Row], Any],
    text: Callable[[Any], str] = str,
    *,
    priority: int = KEY,
    unit: str = "",
) -> Column[Row]:
    """Returns a right-aligned column of numbers, which are the exact values. The cell of a row without one is empty.

    Args:
        name: As of `Column`.
        value: Returns the number of a row, by which rows are sorted; None without one.
        text: Returns the text of a number.
        priority: As of `Column`.
        unit: As of `Column`; without it, the unit that the text has.
    """

    def shown(row: Row, text: Callable[[Any], str]) -> str:
        return "" if (number := value(row)) is None else text(number)

    return Column(
        name,
        lambda row: shown(row, text),
        right=True,
        priority=priority,
        exact=lambda row: shown(row, str),
        order=value,
        unit=unit or _UNITS.get(text, ""),
    )


def times(name: str, time: Callable[[Row], Timestamp | None], *, unknown: str = "", priority: int = KEY) -> Column[Row]:
    """Returns a column of times in UTC, with a text for a row without one."""

    def shown(row: Row, text: Callable[[Timestamp], str], missing: str) -> str:
        return missing if (found := time(row)) is None else text(found)

    return Column(
        name,
        lambda row: shown(row, moment, unknown),
        priority=priority,
        exact=lambda row: shown(row, exact_moment, ""),
        order=lambda row: None if (found := time(row)) is None else found.ToNanoseconds(),
    )


def ages(name: str, time: Callable[[Row], Timestamp | None], *, priority: int = KEY) -> Column[Row]:
    """Returns a column of the time since a time; the cell of a row without one is empty."""

    def seconds(row: Row) -> float | None:
        return None if (found := time(row)) is None else seconds_since(found)

    found = numbers(name, seconds, age, priority=priority)
    return replace(found, exact=lambda row: "" if (since := seconds(row)) is None else f"{since:.3f}")


@dataclass(frozen=True)
class Mark(Generic[Row]):
    """A sign before cells, and the note that explains the sign below the table.

    Attributes:
        columns: The names of the columns with such cells.
        is_marked: Returns whether a row's cells have the sign.
        sign: The sign.
        meaning: What the sign marks, such as "estimates".
    """

    columns: Sequence[str]
    is_marked: Callable[[Row], bool]
    sign: str
    meaning: str


def estimate_marks(columns: Sequence[str], mark: Callable[[Row], str]) -> Mark[Row]:
    """Returns the mark of estimates, for rows with an `estimate_mark`."""
    return Mark(columns, lambda row: bool(mark(row)), ESTIMATE_MARK, ESTIMATE_NOTE)


def computed_marks(columns: Sequence[str], is_computed: Callable[[Row], bool]) -> Mark[Row]:
    """Returns the mark of costs that follow from computed usage."""
    return Mark(columns, is_computed, "*", f"costs {COMPUTED_NOTE}")


class Table(NamedTuple):
    """A table of texts.

    Attributes:
        columns: Its columns.
        widths: Their widths on a terminal or in a pipe.
        cells: The texts of its rows.
        notes: Sentences that explain marks.
    """

    columns: Sequence[Column[Any]]
    widths: Sequence[int]
    cells: Sequence[Sequence[str]]
    notes: Sequence[str]

    def lines(self, *, headers: bool = True) -> Iterator[str]:
        """Yields the lines of the table as plain text: one for each row, with aligned columns."""
        names = [column.name for column in self.columns]
        for row in (names, *self.cells) if headers else self.cells:
            padded = []
            for text, width, column in zip(row, self.widths, self.columns, strict=True):
                space = " " * (width - width_of(text))
                padded.append(space + text if column.right else text + space)
            yield (" " * _GAP).join(padded).rstrip()

    def rich(self, *, headers: bool = True) -> RenderableType:
        """Returns the table for `rich`, which breaks headings and folds keys. Texts are not parsed as markup."""
        from rich.table import Table as RichTable  # noqa: PLC0415 - not installed with the bare package
        from rich.text import Text  # noqa: PLC0415 - likewise

        style = "" if os.environ.get("NO_COLOR") else "bold"
        found = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=headers, header_style=style)
        for column, width in zip(self.columns, self.widths, strict=True):
            heading = Text(column.name)
            found.add_column(
                heading,
                justify="right" if column.right else "left",
                width=width,
                overflow="fold",
                vertical="bottom",
            )
        for row in self.cells:
            found.add_row(*map(Text, row))
        return found


def fit(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    marks: Sequence[Mark[Row]] = (),
    width: int | None = None,
    breaks: bool = False,
) -> Table:
    """Returns a table with the columns that fit.

    Args:
        columns: All columns, in their order.
        rows: What the columns read.
        marks: The signs before cells.
        width: The columns of the terminal; None to leave none out.
        breaks: Whether headings and keys are broken, as `rich` does.
    """
    cells, notes = _cells(columns, rows, marks)
    texts = [max((width_of(row[at]) for row in cells), default=0) for at in range(len(columns))]
    sizes = [max(size, width_of(column.name)) for size, column in zip(texts, columns, strict=True)]
    shown = list(range(len(columns)))
    if width is not None and _total(sizes, shown) > width:
        words = [max(map(width_of, column.name.split()), default=0) for column in columns]
        least = list(map(max, texts, words)) if breaks else list(sizes)
        shown = _choose(columns, least, width)
        if breaks and _total(sizes, shown) > width:
            for at in shown:
                if columns[at].priority == KEY:
                    least[at] = min(sizes[at], least[at] + max(0, width - _total(least, shown)))
            sizes = least
    return Table(
        [columns[at] for at in shown], [sizes[at] for at in shown], [[row[at] for at in shown] for row in cells], notes
    )


def _choose(columns: Sequence[Column[Any]], sizes: list[int], width: int) -> list[int]:
    """Returns the places of the columns that fit, some of them only if keys are folded, which `sizes` then say."""
    shown = list(range(len(columns)))
    for kept in (_KEPT, KEY):
        while _total(sizes, shown) > width and (others := [at for at in shown if columns[at].priority > kept]):
            shown.remove(max(others, key=lambda at: columns[at].priority))
        if _total(sizes, shown) > width:
            for at, column in enumerate(columns):
                sizes[at] = min(sizes[at], _LEAST_KEY) if column.priority == KEY else sizes[at]
    return shown


def _total(sizes: Sequence[int], shown: Sequence[int]) -> int:
    return sum(sizes[at] for at in shown) + _GAP * (len(shown) - 1)


def _cells(
    columns: Sequence[Column[Row]], rows: Sequence[Row], marks: Sequence[Mark[Row]]
) -> tuple[list[list[str]], list[str]]:
    """Returns the texts of all cells with their marks, and the notes that explain these."""
    texts = [[printable(column.text(row)) for column in columns] for row in rows]
    notes = []
    for mark in marks:
        places = [place for place, column in enumerate(columns) if column.name in mark.columns]
        signed = [cells for cells, row in zip(texts, rows, strict=True) if mark.is_marked(row)]
        filled = [(cells, place) for cells in signed for place in places if cells[place]]
        for cells, place in filled:
            cells[place] = f"{mark.sign}{cells[place]}"
        if filled:
            notes.append(f"{mark.sign} marks {mark.meaning}.")
    return texts, notes


def print_rows(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    marks: Sequence[Mark[Row]] = (),
    whole: bool = False,
    headers: bool = True,
) -> Table:
    """Prints a table without its notes, and returns it.

    Args:
        columns: Its columns.
        rows: What they read.
        marks: The signs before cells.
        whole: Whether no column is left out on a terminal.
        headers: Whether the names of the columns are shown.
    """
    width = terminal_width()
    console = None if width is None else _console()
    table = fit(columns, rows, marks=marks, width=None if whole else width, breaks=console is not None)
    if console is None or whole:
        for line in table.lines(headers=headers):
            print(line)  # noqa: T201 - the command's answer
    else:
        console.print(table.rich(headers=headers))
    return table


def print_text(text: str, indent: int) -> None:
    """Prints a line, which a terminal gets as several lines that are indented after the first."""
    text, width = printable(text), terminal_width()
    if width is not None:
        width = max(width, indent + _LEAST_TEXT)
        # The spaces behind a name are those of a column.
        text = textwrap.fill(
            text,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    print(text)  # noqa: T201 - the command's answer


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints texts with their names in front, one below the other, without empty ones."""
    filled = [(name, text) for name, text in facts if text]
    indent = max(len(name) for name, _ in filled) + _GAP
    for name, text in filled:
        print_text(f"{name:{indent}}{text}", indent)


def terminal_width() -> int | None:
    """Returns the columns of the terminal, or $COLUMNS; None if the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def live_console() -> Console | None:
    """Returns a console for a display that is drawn again; None without `rich` or a terminal that can do so."""
    console = _console() if sys.stdout.isatty() else None
    return console if console is not None and console.is_terminal and not console.is_dumb_terminal else None


def _console() -> Console | None:
    try:
        from rich.console import Console  # noqa: PLC0415 - not installed with the bare package
    except ModuleNotFoundError:
        return None
    return Console(highlight=False, markup=False, emoji=False)


def width_of(text: str) -> int:
    """Returns the columns that a text takes on a terminal; a Chinese, Japanese or Korean character takes two."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in {"W", "F"} for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in {"Mn", "Me"} for character in text)
