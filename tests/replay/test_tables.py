"""The tables of `wattwise replay` on a terminal and in a pipe."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from wattwise_replay.statistics import Mean
from wattwise_replay.tables import Table, _text

from tests.terminal import on_terminal, wattwise

_COMPARED = ("replay", "--synthetic", "1", "--seeds", "2", "--recurrences", "41")


def cells(line: str) -> list[str]:
    """The cells of a line of plain text."""
    return re.split(r" {2,}", line.strip())


def test_a_comparison_fits_80_columns() -> None:
    """On a terminal wide tables come in blocks, each with the names of the rows, with all numbers of the pipe."""
    status, text = on_terminal(_COMPARED, missing=("rich",))
    assert (status, max(map(len, text.splitlines()))) == (0, 80)
    blocks = [part.splitlines() for part in text.split("\n\n")]
    whole = subprocess.run(wattwise(*_COMPARED, missing=("rich",)), capture_output=True, text=True, check=True).stdout
    (table,) = (part.splitlines() for part in whole.split("\n\n") if part.startswith("| all recurrences"))
    names, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    found = [[cells(line) for line in block] for block in blocks if block[0].startswith("all recurrences")]
    assert [name for heading, *_ in found for name in heading[1:]] == names[1:]
    for place, row in enumerate(rows):
        assert [cell for block in found for cell in block[place + 1][1:]] == row[1:]
        assert {block[place + 1][0] for block in found} == {row[0]}


def test_a_belief_fits_80_columns(tmp_path: Path) -> None:
    """The reasons of the next choices, which are texts, are wrapped below the numbers."""
    words = ("--synthetic", "large-optimum", "--recurrences", "4", "--belief", str(tmp_path / "belief.svg"))
    status, text = on_terminal(("replay", *words))
    assert status == 0
    assert max(map(len, text.splitlines())) <= 80
    _, numbers, reasons = text.split("\n\n")
    assert [line.split()[0] for line in numbers.splitlines()] == ["recurrences", "1", "4"]
    assert re.search(r"^ +1  \d+: ", reasons, re.MULTILINE)


def test_numbers_have_no_exponents() -> None:
    """Sums of large and of small jobs are written out."""
    assert [_text(Mean(value, 0.0), 3) for value in (12_345.0, 0.5, 2e-5)] == ["12,345", "0.5", "0.0000200"]
    assert _text(Mean(12_345.0, 1_234.0), 4) == "12,345 ± 1,234"


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_groups_of_rows(width: int) -> None:
    """Where they do not fit as a column, the names of groups stand above their rows."""
    table = Table("setting", "", *(f"*number {place}" for place in range(6)), grouped=True)
    for row in range(4):
        table.add_row("" if row % 2 else f"a setting {row}", f"name {row}", *(f"{place}.{row}" for place in range(6)))
    lines = list(table.lines(width))
    assert max(map(len, lines)) <= width
    numbers = {cell for line in lines for cell in re.findall(r"\d\.\d", line)}
    assert numbers == {f"{place}.{row}" for place in range(6) for row in range(4)}
    assert lines[0].startswith("|") is (width == 200)
    if width < 200:
        assert [line for line in lines if line.startswith("a setting")][:2] == ["a setting 0", "a setting 2"]
        assert lines[lines.index("a setting 2") + 1].split()[:2] == ["name", "2"]
