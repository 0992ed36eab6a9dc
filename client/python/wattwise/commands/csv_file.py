"""CSV files: read as spreadsheets of all countries write them, and written so that none of them runs a text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wattwise.files import LARGE, FileError, read_text

_DELIMITERS = ",;\t"
SEPARATED = "separate the columns with commas, semicolons or tabs"
"""What to do about a file whose first line is a single cell."""
_QUOTED = re.compile('"[^"]*"')


class CsvRow(NamedTuple):
    """A line that is not empty.

    Attributes:
        line: the number of its first line in the file.
        cells: its texts, without the spaces around them.
    """

    line: int
    cells: Sequence[str]


class CsvFile:
    """A CSV file in UTF-8.

    Args:
        path: the file.

    Attributes:
        delimiter: what separates the cells of the first line: a comma, a semicolon or a tab.

    Raises:
        FileNotFoundError: if there is no such file.
        FileError: if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = read_text(path, LARGE)
        except FileError as error:
            if path.is_fifo() or path.is_char_device():
                remedy = "write its content to a regular file, and name that file"
                raise FileError(path, error.fault, remedy) from None
            raise
        heading = _QUOTED.sub("", self._text.lstrip().partition("\n")[0])
        self.delimiter = max(_DELIMITERS, key=heading.count)

    def rows(self) -> Iterator[CsvRow]:
        """Yields the rows; the first one has the names.

        Raises:
            FileError: if a line is not CSV.
        """
        # Not str.splitlines(), which also splits at characters that may be in a cell.
        lines = io.StringIO(self._text, newline="")
        reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
        next_line = 1
        try:
            for texts in reader:
                line, next_line = next_line, reader.line_num + 1
                cells = [text.strip() for text in texts]
                if any(cells):
                    yield CsvRow(line, cells)
        except csv.Error as error:
            raise FileError(self._path, f"is not CSV: {error}", "correct the line", next_line) from None


def number_in(text: str) -> float:
    """Returns the number in a cell.

    Raises:
        ValueError: if it is none.
    """
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise ValueError("is not a number; write it like 1234.5, with a point and without a unit")
