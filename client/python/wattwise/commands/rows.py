"""The options of actions that list rows, and what they print: a table, or exact values for scripts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from wattwise.commands.parsing import near
from wattwise.presentation.terminal import Column, Mark, Row, print_rows, print_text
from wattwise.rules import MAX_INT32, MAX_PAGE
from wattwise.streams import printable

_FORMATS = ("table", "tsv", "json")


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

    @property
    def page_size(self) -> int:
        """How many rows a page of the list has: one more than are shown, or the most if all rows are read."""
        reads_all = self.limit is None or self.sort is not None or self.reverse
        return MAX_PAGE if self.limit is None or reads_all else min(self.limit + 1, MAX_PAGE)


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
    """Returns the options that `add_table_options` declared."""
    tsv = args.format == "tsv"
    return TableOptions(args.wide, args.columns, args.sort, args.reverse, args.limit, not args.no_headers, tsv)


def unused_without_rows(args: argparse.Namespace) -> str:
    """Returns what is wrong if an option of tables is used where an action lists no rows; else empty."""
    names = ("wide", "columns", "sort", "reverse", "limit", "no_headers")
    used = [name.replace("_", "-") for name in names if getattr(args, name)]
    used += ["format tsv"] * (args.format == "tsv")
    return f"--{used[0]} is for the table of jobs and cannot be combined with an id" if used else ""


def unused_options(args: argparse.Namespace) -> str:
    """Returns what is wrong if an option of tables is used in a format that it has no effect on; else empty."""
    form, json = getattr(args, "format", None), getattr(args, "json", False)
    if json and form in ("table", "tsv"):
        return f"--json cannot be combined with --format {form}"
    without_effect = ("wide", "columns", "no_headers") if json else ("wide",) if form == "tsv" else ()
    names = [name.replace("_", "-") for name in without_effect if getattr(args, name, None)]
    other = "--json" if json else "--format tsv, which has all columns"
    return f"--{names[0]} is for tables and cannot be combined with {other}" if names else ""


def arrange(columns: Sequence[Column[Row]], rows: Iterable[Row], options: TableOptions) -> tuple[list[Row], bool]:
    """Returns the rows in the order that the user wants, up to the limit; and whether there are more."""
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
        marks: the signs before cells.
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
    table = print_rows(shown, found, marks=marks, whole=whole, headers=options.headers)
    if options.headers:
        more_note = ("Only the first rows are shown; there are more.",) if more else ()
        for note in (*table.notes, *notes(found, [column.name for column in table.columns]), *more_note):
            print_text(note, 2)
    return found


def _print_tsv(columns: Sequence[Column[Row]], rows: Iterable[Row], *, headers: bool) -> None:
    """Prints exact values, separated by tabs; a tab or a line break in a value is escaped."""
    if headers:
        print("\t".join(column.field for column in columns))  # noqa: T201 - the command's answer
    values = [column.exact or column.text for column in columns]
    for row in rows:
        print("\t".join(printable(value(row)) for value in values))  # noqa: T201 - the command's answer


def _column_names(columns: Sequence[Column[Any]], typed: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the columns that a user has typed."""
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
    if len(digits) > len(str(MAX_INT32)) or int(digits) > MAX_INT32:
        raise argparse.ArgumentTypeError(f"{digits[:20]!r} is too large; use at most {MAX_INT32}, or no --limit")
    return int(digits)


def _sort(column: Column[Row], rows: Iterable[Row], *, reverse: bool) -> list[Row]:
    """Returns the rows by the values of a column; those without one come last in either direction."""
    keyed = [((column.order or column.text)(row), row) for row in rows]
    known = [pair for pair in keyed if _has_place(pair[0])]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [*(row for _, row in known), *(row for value, row in keyed if not _has_place(value))]


def _has_place(value: Any) -> bool:
    """Returns whether a value has a place in an order: it is there, and not NaN."""
    return value not in (None, "") and not (isinstance(value, float) and math.isnan(value))


def _choose(columns: Sequence[Column[Row]], options: TableOptions) -> Sequence[Column[Row]]:
    """Returns the columns in their order, before those that do not fit are left out."""
    if options.columns is None:
        return columns
    named = {column.name: column for column in columns}
    return [named[name] for name in options.columns]
