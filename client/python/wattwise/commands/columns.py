"""Tables of text: their columns, the options that choose among them, and how they fit a terminal or go to a script.

A table is a sequence of `Column`s; its rows are any objects that the columns' functions read. `print_table` prints it.
On a terminal it fits the width: long headings are broken, and columns are left out, the least important first. Into a
pipe or a file go the same words, with every column. `--format tsv` is for scripts: exact values, separated by tabs.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wattwise.commands.parsing import near
from wattwise.presentation.quantities import age, duration, energy, joules
from wattwise.streams import printable

if TYPE_CHECKING:
    from rich.console import Console

Row = TypeVar("Row")

KEY = 0
"""The priority of the column that names a row."""
KEPT = 4
"""Up to this priority, columns stay if a long key can go on a line of its own instead."""
_LEAST_KEY = 10
_LEAST_TEXT = 30
"""Columns for a text on a narrow terminal."""
_GAP = 2
_MOST_ROWS = 2**31 - 1
_FORMATS = ("table", "tsv", "json")
_UNITS: Mapping[Callable[[float], str], str] = {joules: "joules", energy: "joules", duration: "seconds", age: "seconds"}
"""The units of the numbers that these functions write as texts."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        name: its heading, by which --columns and --sort know it; spaces are typed as hyphens or underscores there.
        text: the text of a row's cell.
        right: whether it is aligned to the right.
        priority: which columns a narrow terminal leaves out: those with the highest number first, `KEY` never.
        exact: the value of a row's cell for scripts, if that is not the text.
        order: what rows are sorted by; None is sorted last. Without it, the text is.
        unit: of the exact values.
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
    """A right-aligned column of numbers, which are the exact values. The cell of a row whose value is None is empty.

    Args:
        name: as of `Column`.
        value: the number of a row, by which rows are sorted.
        text: the text of a number.
        priority: as of `Column`.
        unit: as of `Column`; without it, the unit that the text has.
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


@dataclass(frozen=True)
class Mark(Generic[Row]):
    """What is said once about cells, such as that they are estimates.

    Attributes:
        columns: the names of the columns that it is about.
        suffix: what is said of a row's cells, such as " (estimate)"; empty if nothing is.
        sign: what precedes a cell if only some rows are marked.
        some: what the sign marks.
        every: by suffix, the note below a table whose rows all have this one; their cells have no sign.
    """

    columns: Sequence[str]
    suffix: Callable[[Row], str]
    sign: str
    some: str
    every: Mapping[str, str]


@dataclass(frozen=True)
class TableOptions:
    """How a user wants a table.

    Attributes:
        wide: all columns, whatever the width.
        columns: the names of the only columns, in this order; None for those that fit.
        sort: the name of the column that rows are sorted by; None for the order in which they come.
        reverse: whether that order is reversed.
        limit: how many rows are shown; None for all.
        headers: whether the first line has the names, and notes follow the rows.
        tsv: whether the table is for scripts.
    """

    wide: bool = False
    columns: tuple[str, ...] | None = None
    sort: str | None = None
    reverse: bool = False
    limit: int | None = None
    headers: bool = True
    tsv: bool = False


@dataclass
class Lines:
    """A table as lines.

    Attributes:
        names: of the columns that are shown.
        heading: the lines with the names.
        body: the lines of the rows.
        notes: texts that explain marks, not wrapped.
    """

    names: list[str] = field(default_factory=list)
    heading: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Format(argparse.Action):
    """Sets the format; `--format json` is `--json`."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, value: object, _option: object = None) -> None:
        namespace.format = value
        namespace.json = namespace.json or value == "json"


def add_table_options(parser: argparse.ArgumentParser, columns: Sequence[Column[Any]]) -> None:
    """Declares the options of an action that lists rows with these columns."""
    known = ", ".join(column.option for column in columns)
    group = parser.add_argument_group("table", "A terminal shows the columns that fit, a pipe or a file all of them.")
    group.add_argument(
        "--format",
        action=_Format,
        choices=_FORMATS,
        help="table (default); tsv, for scripts: a line of names, then exact values, separated by tabs; json is --json",
    )
    chosen = group.add_mutually_exclusive_group()
    chosen.add_argument("--wide", action="store_true", help="show all columns, whatever the width of the terminal")
    chosen.add_argument(
        "--columns",
        type=lambda text: _column_names(columns, text.split(",")),
        metavar="A,B,C",
        help=f"show these columns, in this order: {known}",
    )
    group.add_argument(
        "--sort",
        type=lambda text: _column_names(columns, [text])[0],
        metavar="COLUMN",
        help="sort by a column, ascending, or descending with --reverse; rows without a value come last",
    )
    group.add_argument("--reverse", action="store_true", help="reverse the order")
    group.add_argument("--limit", type=_limit, metavar="N", help="show the first N rows")
    group.add_argument(
        "--no-headers", action="store_true", help="print the rows alone, without the names of the columns and notes"
    )


def table_options(args: argparse.Namespace) -> TableOptions:
    """The options that `add_table_options` declared."""
    tsv = args.format == "tsv"
    return TableOptions(args.wide, args.columns, args.sort, args.reverse, args.limit, not args.no_headers, tsv)


def unused_without_rows(args: argparse.Namespace) -> str:
    """What is wrong if an option of tables is used where an action lists no rows; else empty."""
    names = ("wide", "columns", "sort", "reverse", "limit", "no_headers")
    used = [name.replace("_", "-") for name in names if getattr(args, name)]
    used += ["format tsv"] * (args.format == "tsv")
    return f"--{used[0]} is for the table of jobs and cannot be combined with an id" if used else ""


def unused_options(args: argparse.Namespace) -> str:
    """What is wrong if an option of tables is used in a format that it has no effect on; else empty."""
    form, json = getattr(args, "format", None), getattr(args, "json", False)
    if json and form in ("table", "tsv"):
        return f"--json cannot be combined with --format {form}"
    without_effect = ("wide", "columns", "no_headers") if json else ("wide",) if form == "tsv" else ()
    names = [name.replace("_", "-") for name in without_effect if getattr(args, name, None)]
    other = "--json" if json else "--format tsv, which has all columns"
    return f"--{names[0]} is for tables and cannot be combined with {other}" if names else ""


def arrange(columns: Sequence[Column[Row]], rows: Iterable[Row], options: TableOptions) -> tuple[list[Row], bool]:
    """The rows in the order that the user wants, up to the limit; and whether there are more."""
    if options.sort is not None:
        (column,) = (column for column in columns if column.name == options.sort)
        rows = _sort(column, rows, reverse=options.reverse)
    elif options.reverse:
        rows = reversed(list(rows))
    if options.limit is None:
        return list(rows), False
    # One more than shown; the pages behind are not read.
    found = list(islice(rows, options.limit + 1))
    return found[: options.limit], len(found) > options.limit


def print_table(
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    options: TableOptions | None = None,
    *,
    empty: str = "",
    marks: Sequence[Mark[Row]] = (),
    notes: Callable[[Sequence[Row], Sequence[str]], Iterable[str]] = lambda _rows, _names: (),
) -> Sequence[Row]:
    """Prints a table; returns the rows that it has.

    Args:
        columns: all columns, in the order of a terminal.
        rows: what the columns read; with a limit, no more than one row beyond it is taken.
        options: what the user wants.
        empty: what is printed instead of a table without rows, unless --no-headers asks for rows only.
        marks: what is said once about cells.
        notes: what is shown below the table, from its rows and the names of its columns.
    """
    options = options or TableOptions()
    found, more = arrange(columns, rows, options)
    shown = _choose(columns, options)
    if options.tsv:
        _print_tsv(shown, found, headers=options.headers)
        return found
    if not found:
        if empty and options.headers:
            print(empty)  # noqa: T201 - the command's answer
        return found
    whole = options.wide or options.columns is not None
    lines = drawn(shown, found, terminal_width(), marks=marks, whole=whole)
    for line in (*(lines.heading if options.headers else ()), *lines.body):
        print(line)  # noqa: T201 - the command's answer
    if not options.headers:
        return found
    more_note = ("Only the first rows are shown; there are more.",) if more else ()
    for note in (*lines.notes, *notes(found, lines.names), *more_note):
        print_text(note, 2)
    return found


def _print_tsv(columns: Sequence[Column[Row]], rows: Iterable[Row], *, headers: bool) -> None:
    """Prints exact values, separated by tabs; a tab or a line break in a value is escaped."""
    if headers:
        print("\t".join(column.field for column in columns))  # noqa: T201 - the command's answer
    values = [column.exact or column.text for column in columns]
    for row in rows:
        print("\t".join(printable(value(row)) for value in values))  # noqa: T201 - the command's answer


def drawn(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    width: int | None,
    *,
    marks: Sequence[Mark[Row]] = (),
    whole: bool = False,
) -> Lines:
    """Draws a table.

    Args:
        columns: its columns, in this order.
        rows: what the columns read.
        width: the columns of the terminal; None for a pipe or a file.
        marks: what is said once about cells.
        whole: whether no column is left out.
    """
    texts, notes = _cells(columns, rows, marks)
    places, widths = _layout(columns, texts, width, whole=whole)
    rights = [columns[place].right for place in places]
    parts = [textwrap.wrap(columns[place].name, widths[place], break_long_words=False) or [""] for place in places]
    height = max(map(len, parts))
    sizes = [widths[place] for place in places]
    lines = Lines(names=[columns[place].name for place in places], notes=notes)
    for line in zip(*([""] * (height - len(each)) + each for each in parts), strict=True):
        lines.heading.append(_line(line, sizes, rights))
    for cells in texts:
        shown = [cells[place] for place in places]
        for at, cell in enumerate(shown):
            if width_of(cell) > sizes[at]:
                lines.body.append(cell)
                shown[at] = ""
        lines.body.append(_line(shown, sizes, rights))
    return lines


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


def terminal_width() -> int | None:
    """The columns of the terminal, or $COLUMNS; None if the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def live_console() -> Console | None:
    """A console for a display that is drawn again; None unless there is a terminal that can, and rich is installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - not installed with the bare package
    except ModuleNotFoundError:
        return None
    console = Console()
    return console if console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty() else None


def width_of(text: str) -> int:
    """The columns that a text takes on a terminal, of which a Chinese, Japanese or Korean character takes two."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of_character, text))


def _width_of_character(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _column_names(columns: Sequence[Column[Any]], typed: Iterable[str]) -> tuple[str, ...]:
    """The names of the columns that a user has typed."""
    known = {tuple(name.replace("_", " ").split()): each.name for each in columns for name in (each.field, each.name)}
    names = []
    for text in typed:
        name = known.get(tuple(text.lower().replace("_", " ").replace("-", " ").split()))
        if name is None:
            options = [column.option for column in columns]
            hint = " ".join((near(text.strip(), options), f"use {', '.join(options)}")).strip()
            raise argparse.ArgumentTypeError(f"unknown column {text.strip()!r}; {hint}")
        if name in names:
            raise argparse.ArgumentTypeError(f"{text.strip()!r} is there twice; name each column once")
        names.append(name)
    return tuple(names)


def _limit(text: str) -> int:
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdecimal() and digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows; use an integer above 0")
    # The length first: Python does not convert thousands of digits.
    if len(digits) > len(str(_MOST_ROWS)) or int(digits) > _MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{digits[:20]!r} is too large; use at most {_MOST_ROWS}, or no --limit")
    return int(digits)


def _sort(column: Column[Row], rows: Iterable[Row], *, reverse: bool) -> list[Row]:
    """The rows by the values of a column; those without one come last in either direction."""
    keyed = [((column.order or column.text)(row), row) for row in rows]
    known = [pair for pair in keyed if _has_place(pair[0])]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [*(row for _, row in known), *(row for value, row in keyed if not _has_place(value))]


def _has_place(value: Any) -> bool:
    """Whether a value has a place in an order: it is there, and not NaN."""
    return value not in (None, "") and not (isinstance(value, float) and math.isnan(value))


def _choose(columns: Sequence[Column[Row]], options: TableOptions) -> Sequence[Column[Row]]:
    """The columns in their order, before those that do not fit are left out."""
    if options.columns is None:
        return columns
    named = {column.name: column for column in columns}
    return [named[name] for name in options.columns]


def _cells(
    columns: Sequence[Column[Row]], rows: Sequence[Row], marks: Sequence[Mark[Row]]
) -> tuple[list[list[str]], list[str]]:
    """The texts of all cells with their marks, and the notes that explain these."""
    texts = [[printable(column.text(row)) for column in columns] for row in rows]
    notes = []
    for mark in marks:
        places = [place for place, column in enumerate(columns) if column.name in mark.columns]
        filled = [(cells, place, mark.suffix(row)) for cells, row in zip(texts, rows, strict=True) for place in places]
        filled = [(cells, place, suffix) for cells, place, suffix in filled if cells[place]]
        suffixes = {suffix for _, _, suffix in filled}
        if not suffixes - {""}:
            continue
        if len(suffixes) == 1:
            notes.append(mark.every[suffixes.pop()])
            continue
        notes.append(f"{mark.sign} marks {mark.some}.")
        for cells, place, suffix in filled:
            if suffix:
                cells[place] = mark.sign + cells[place]
    return texts, notes


def _layout(
    columns: Sequence[Column[Any]], texts: Sequence[Sequence[str]], width: int | None, *, whole: bool
) -> tuple[list[int], list[int]]:
    """The places of the columns that are shown, and the widths of all; a wider key gets a line of its own."""
    cells = [max((width_of(row[place]) for row in texts), default=0) for place in range(len(columns))]
    full = [max(cell, width_of(column.name)) for cell, column in zip(cells, columns, strict=True)]
    places = list(range(len(columns)))
    if width is None or _sum(full) <= width:
        return places, full
    broken = [max(cell, _longest_word(column.name)) for cell, column in zip(cells, columns, strict=True)]
    while not whole and (excess := _sum([broken[place] for place in places]) - width) > 0:
        others = [place for place in places if columns[place].priority != KEY]
        if not others:
            break
        last = max(others, key=lambda place: columns[place].priority)
        key = next((place for place in places if columns[place].priority == KEY), last)
        if columns[last].priority <= KEPT and broken[key] - excess >= max(_LEAST_KEY, _longest_word(columns[key].name)):
            broken[key] -= excess
            return places, broken
        places.remove(last)
    fits = _sum([full[place] for place in places]) <= width
    return places, full if fits else broken


def _sum(widths: Sequence[int]) -> int:
    """The width of a row."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _longest_word(heading: str) -> int:
    return max(map(width_of, heading.split()), default=0)


def _line(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, rights, strict=True):
        space = " " * (width - width_of(cell))
        padded.append(space + cell if right else cell + space)
    return (" " * _GAP).join(padded).rstrip()
