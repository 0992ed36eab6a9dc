"""CSV files: the dialects that are read, and what is written for spreadsheets."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import pytest
from wattwise.commands.csv_file import CsvFile, number_in
from wattwise.files import FileError
from wattwise.presentation.trial_fields import as_text, csv_line

from tests.client.test_files import SPECIAL

TABLE = [["name", "size", "note"], ["a b", "1.5", "x, y; z\ttab"], ["", "2", "two\nlines"], ["é", "3", 'a "word"']]


def rows_of(path: Path) -> list[list[str]]:
    """The cells of a file."""
    return [list(row.cells) for row in CsvFile(path).rows()]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_dialects(tmp_path: Path, delimiter: str, end: str, encoding: str) -> None:
    """Separators, line ends and a byte order mark of spreadsheets are found out; texts may contain other separators."""
    path = tmp_path / "file.csv"
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator="\n").writerows(TABLE)
    path.write_bytes(buffer.getvalue().replace("\n", end).encode(encoding))
    assert CsvFile(path).delimiter == delimiter
    assert rows_of(path) == [[cell.replace("\n", end) for cell in row] for row in TABLE]


@pytest.mark.parametrize("delimiter", [", ", "; ", "\t ", " ,", ",  "])
def test_spaces_beside_separators(tmp_path: Path, delimiter: str) -> None:
    """Spaces around a cell do not count, also before a quoted text; empty lines are left out."""
    path = tmp_path / "file.csv"
    quoted = '"b c"' if delimiter.startswith((",", ";", "\t")) else "b c"
    path.write_text(f"\n{delimiter.join(('one', 'two'))} \n  \n{delimiter.join(('a', quoted))}\n{delimiter}\n")
    assert [(row.line, list(row.cells)) for row in CsvFile(path).rows()] == [(2, ["one", "two"]), (4, ["a", "b c"])]


@pytest.mark.parametrize("heading", ['"a,b,c";d;e', "a,b,c;d", "single", '"a;b"'])
def test_separator_is_that_of_the_first_line(tmp_path: Path, heading: str) -> None:
    """A separator in quotes does not count; the most frequent one is taken, and a comma if there is none."""
    path = tmp_path / "file.csv"
    path.write_text(f"{heading}\n")
    assert CsvFile(path).delimiter == (";" if heading.startswith('"a,b') else ",")


@pytest.mark.parametrize("fault", ['x,"y\nz', 'x,"y"z', "x," + "y" * 200_000])
def test_line_that_is_not_csv(tmp_path: Path, fault: str) -> None:
    """A fault has the number of the line where its row begins."""
    path = tmp_path / "file.csv"
    path.write_text(f"a,b\n1,2\n{fault}\n")
    with pytest.raises(FileError) as refused:
        rows_of(path)
    assert (refused.value.path, refused.value.line) == (path, 3)


@pytest.mark.parametrize("kind", SPECIAL)
def test_file_that_is_none(tmp_path: Path, kind: str) -> None:
    """A pipe, a device or a folder is refused."""
    SPECIAL[kind](tmp_path / "file.csv")
    with pytest.raises(FileError):
        CsvFile(tmp_path / "file.csv")


@pytest.mark.parametrize("text", ["", "x", "1,5", "1_000", "1.234,5", "0x10", "1 000"])
def test_text_that_is_no_number(text: str) -> None:
    """A decimal comma may as well separate thousands, so that it is refused."""
    with pytest.raises(ValueError, match="with a point"):
        number_in(text)


class Unquoted(csv.excel):
    """A reader that does not know the quotes of a line."""

    quoting = csv.QUOTE_NONE


SIGNS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("before", ["", "a;", "a;b; ", "a\t", "a\n", "a\r\n", 'a;"', "a;'", ";;", "a; \t"])
def test_no_text_becomes_a_formula(sign: str, before: str) -> None:
    """However a spreadsheet separates the cells of a line, none begins like a formula, with or without its quotes."""
    line = csv_line(["1", as_text(f"{before}{sign}1+1"), "2"])
    for delimiter, dialect in itertools.product(",;\t", (csv.excel, Unquoted)):
        for row in csv.reader(io.StringIO(line, newline=""), dialect, delimiter=delimiter):
            assert not [cell for cell in row if cell.strip(' "\r\n\t').startswith(SIGNS)]


@pytest.mark.parametrize("text", ["", "a", "a-b", "a; b", "1=2", "mail@example.org", "a;b=c", '{"a": "-"}'])
def test_other_texts_stay(text: str) -> None:
    """A sign within a text is no formula."""
    assert as_text(text) == text
