"""Tables on a terminal, by `rich` and as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from wattwise.presentation.quantities import age, seconds_since
from wattwise.presentation.terminal import Column, Mark, Table, ages, fit, numbers, times, width_of

COLUMNS: Sequence[Column[str]] = (
    Column("key", str),
    Column("a long heading", lambda _: "aaa", priority=1),
    numbers("least", lambda _: 12_345, priority=9),
    Column("b", lambda _: "bbb", priority=6),
)


def rich_lines(table: Table, width: int) -> list[str]:
    """Returns what `rich` prints of a table, without spaces at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(table.rich())
    text = capture.get().replace("\x1b[1m", "").replace("\x1b[0m", "")
    return [line.rstrip() for line in text.splitlines()]


def test_widths_of_characters() -> None:
    """Wide characters take two columns, combining ones none."""
    assert [width_of(text) for text in ("abc", "日本", "\uff46", "e\u0301", "±", "")] == [3, 4, 2, 1, 1, 0]


def test_columns_that_fit() -> None:
    """The least important columns are left out first and the key never; `rich` breaks headings before that."""
    plain = {width: fit(COLUMNS, ["row"], width=width) for width in range(1, 60)}
    assert list(plain[31].lines()) == ["key  a long heading  least  b", "row  aaa             12345  bbb"]
    assert next(plain[30].lines()) == "key  a long heading  b"
    assert list(plain[1].lines()) == ["key", "row"]
    broken = {width: fit(COLUMNS, ["row"], width=width, breaks=True) for width in range(1, 60)}
    assert rich_lines(broken[26], 26) == ["     a long", "key  heading  least  b", "row  aaa      12345  bbb"]
    assert rich_lines(broken[31], 31)[0] == "key  a long heading  least  b"
    assert rich_lines(broken[18], 18)[:2] == ["     a long", "key  heading  b"]
    assert rich_lines(broken[1], 3) == ["key", "row"]
    for tables in (plain, broken):
        for width, table in tables.items():
            assert sum(table.widths) + 2 * (len(table.widths) - 1) <= max(3, width)
        assert all(len(one.columns) <= len(other.columns) for one, other in pairwise(tables.values()))


@pytest.mark.parametrize("width", [20, 40, 80])
def test_long_keys_are_folded(width: int) -> None:
    """`rich` folds a key that is wider than its column rather than leaving out an important column."""
    key = "".join(map(chr, range(ord("a"), ord("z") + 1))) * 4
    table = fit(COLUMNS, [key, "日本語の仕事" * 5], width=width, breaks=True)
    lines = rich_lines(table, width)
    assert max(map(width_of, lines)) <= width
    assert "a long heading" in [column.name for column in table.columns]
    folded = "".join(line.split()[0] for line in lines if line.split())
    assert key in folded
    assert "日本語の仕事" * 5 in folded


def test_cells_are_text() -> None:
    """Control characters are escaped, and markup is shown as it is."""
    rows = ["\x1b[31mred", "[red]x[/red]:smile:", "a\tb\nc", "\u202eright"]
    table = fit([COLUMNS[0]], rows, width=80, breaks=True)
    shown = ["\\x1b[31mred", "[red]x[/red]:smile:", "a\\tb\\nc", "\\u202eright"]
    assert [line.rstrip() for line in table.lines(headers=False)] == shown
    assert rich_lines(table, 80)[1:] == shown


def test_times_and_ages() -> None:
    """A row without a time has an empty age, for scripts too, and the text of an unknown time; it is sorted last."""
    time = Timestamp(seconds=1_800_000_000)
    for column, text, exact in (
        (times("t", lambda row: row, unknown="unknown"), "2027-01-15 08:00:00 UTC", "2027-01-15T08:00:00Z"),
        (ages("t", lambda row: row), age(seconds_since(time)), None),
    ):
        assert column.exact is not None
        assert column.order is not None
        assert (column.text(time), column.order(time) is None) == (text, False)
        assert exact is None or column.exact(time) == exact
        assert (column.exact(None), column.order(None)) == ("", None)
    assert times("t", lambda row: row, unknown="unknown").text(None) == "unknown"
    assert ages("t", lambda row: row).text(None) == ""


def test_marks() -> None:
    """Cells are marked, also in a pipe; empty ones never are."""
    columns = [numbers("n", lambda n: n), numbers("half", lambda n: n / 2 if n % 2 == 0 else None, "{:g}".format)]
    mark = Mark[int](["half"], lambda n: n > 3, "!", "big ones")
    some = fit(columns, [1, 2, 4], marks=[mark], width=80)
    assert ([line.split() for line in some.lines(headers=False)], some.notes) == (
        [["1"], ["2", "1"], ["4", "!2"]],
        ["! marks big ones."],
    )
    every = fit(columns, [1, 4, 6], marks=[mark], width=80)
    assert ([line.split() for line in every.lines(headers=False)], every.notes) == (
        [["1"], ["4", "!2"], ["6", "!3"]],
        ["! marks big ones."],
    )
    assert fit(columns, [1, 2], marks=[mark]).notes == []
    assert fit(columns, [1, 2, 4], marks=[mark]) == some
