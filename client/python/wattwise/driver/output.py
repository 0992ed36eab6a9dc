"""What a run prints: its progress (a live table on a terminal, plain lines elsewhere), and a summary at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.driver.folder import LaunchRecord
from wattwise.driver.history import HistoryRecord
from wattwise.driver.outcome import OUTPUT, described, last_lines, shown_line
from wattwise.files import FileError, open_file
from wattwise.presentation.quantities import (
    COMPUTED_MARK,
    ESTIMATE_NOTE,
    duration,
    energy,
    estimate_mark,
    joules,
    marked,
)
from wattwise.presentation.sentences import number_of
from wattwise.presentation.states import trial_result
from wattwise.presentation.terminal import Column, Mark, computed_marks, estimate_marks, fit, live_console, numbers
from wattwise.streams import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_MOST_SHOWN = 2**20
"""Bytes of the command's output that are shown at once."""
_ROWS = 12
"""Leaves room for the command's output on an ordinary terminal."""
_TABLE: Sequence[Column[HistoryRecord]] = (
    numbers("recurrence", lambda record: record.recurrence),
    numbers("try", lambda record: record.try_number, priority=7),
    numbers("trial", lambda record: record.trial, priority=6),
    numbers("batch size", lambda record: record.batch_size, priority=1),
    Column("result", lambda record: trial_result(record.end_reason, reached=record.reached), priority=1),
    numbers("epochs", lambda record: record.epochs, priority=4),
    Column("time", lambda record: _known(record.time_seconds, duration), right=True, priority=3),
    Column("energy", lambda record: _known(record.energy_joules, energy), right=True, priority=5),
    Column("cost", lambda record: _known(record.cost, joules), right=True, priority=2),
)
_MARKS: Sequence[Mark[HistoryRecord]] = (
    estimate_marks(
        ("energy", "cost"), lambda record: "" if record.energy_joules is None else estimate_mark(record.monitor)
    ),
    computed_marks(("cost",), lambda record: record.computed_time_seconds is not None),
)


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "unknown" if value is None else text(value)


class Board:
    """Shows the progress of a run.

    Args:
        job_id: the run's job id.
        recurrences: the number of recurrences.
    """

    def __init__(self, job_id: str, recurrences: int) -> None:
        self._job_id = job_id
        self._recurrences = recurrences
        self._rows: list[HistoryRecord] = []
        self._status = ""
        self._began = 0.0
        self._output: Path | None = None
        self._offset = 0
        self._live: Live | None = None
        self._waiting = False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the table within the block, if there is a terminal, and rich is installed."""
        live = _live()
        if live is None:
            yield
            return
        with live:
            self._live = live
            try:
                yield
            finally:
                self._status, self._output = "", None
                self._update()
                self._live = None

    def say(self, text: str) -> None:
        """Prints a line of text, which may have names and sentences of others."""
        self._print(printable(text))

    def _print(self, text: str) -> None:
        if self._live is None:
            print(text, flush=True)  # noqa: T201 - the command's answer
        else:
            self._live.console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def begin(self, launch: LaunchRecord, trial: v1.Trial, reason: str, output: Path) -> None:
        """Shows that a launch begins."""
        self._waiting = False
        self._began, self._output, self._offset = time.monotonic(), output, 0
        self._status = (
            f"recurrence {launch.recurrence} of {self._recurrences}, try {launch.try_number}: "
            f"trial {trial.id.trial_number} with batch size {trial.batch_size}"
        )
        if self._live is None:
            self.say(f"{self._status}: {reason}")
        self.refresh()

    def refresh(self) -> None:
        """Shows the command's new output, on a terminal."""
        if self._live is None:
            return
        if self._output is not None:
            self.follow(self._output)
        self._update()

    def follow(self, output: Path) -> None:
        """Prints the lines that were added to the command's output."""
        # The command may have deleted or replaced its own log, of which reports are the reader's.
        with suppress(OSError, FileError), open_file(output, "rb", within=output.parent) as file:
            file.seek(self._offset)
            new = file.read(_MOST_SHOWN)
            # A line that is longer than that is shown in parts.
            lines = new if len(new) == _MOST_SHOWN and b"\n" not in new else new[: new.rfind(b"\n") + 1]
            self._offset += len(lines)
            for line in lines.decode(errors="replace").removesuffix("\n").split("\n") if lines else ():
                self._print(shown_line(line))

    def wait(self) -> None:
        """Shows that other drivers have all launches that are left."""
        if not self._waiting:
            self._waiting = True
            self._status = "waiting for other drivers of this folder, which run all remaining launches"
            self.say(self._status)
        self._update()

    def end(self, record: HistoryRecord) -> None:
        """Shows that a launch has ended."""
        self._status, self._output = "", None
        self._rows.append(record)
        if self._live is None:
            self.say(_line(record))
        self._update()

    def quote(self, folder: Path, exit_code: int) -> None:
        """Prints the last lines of a failed command, unless a terminal has shown its output already."""
        if self._live is not None:
            return
        lines = last_lines(folder)
        what = "the last lines of" if lines else "it printed nothing to"
        self.say(
            f"the command exited with status {described(exit_code)}; {what} {folder / OUTPUT}{':' if lines else ''}"
        )
        for line in lines:
            self.say(f"  | {line}")

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self._table(self._live.console.width))

    def _table(self, width: int) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415 - not installed with the bare package
        from rich.text import Text  # noqa: PLC0415 - likewise

        table = fit(_TABLE, self._rows[-_ROWS:], marks=_MARKS, width=width, breaks=True)
        elapsed = f", running for {duration(time.monotonic() - self._began)}" if self._output else ""
        status = (f"{self._status}{elapsed}",) if self._status else ()
        # Job ids come from users: "[red]" in one is text.
        return Group(Text(f"run {printable(self._job_id)}"), table.rich(), *map(Text, (*table.notes, *status)))


def _line(record: HistoryRecord) -> str:
    """Returns an ended launch as a line of a log."""
    mark = estimate_mark(record.monitor)
    computed = "" if record.computed_time_seconds is None else COMPUTED_MARK
    parts = (
        f"recurrence {record.recurrence}",
        f"try {record.try_number}",
        f"trial {record.trial}",
        f"batch size {record.batch_size}",
        f"epochs {record.epochs}",
        f"time {_known(record.time_seconds, duration)}",
        f"energy {_known(record.energy_joules, marked(energy, mark))}",
        f"cost {_known(record.cost, marked(joules, mark))}{computed}",
        trial_result(record.end_reason, reached=record.reached),
    )
    return ", ".join(parts)


def _live() -> Live | None:
    """Returns a live display, if there is a terminal that can move its cursor, and rich is installed."""
    console = live_console()
    if console is None:
        return None
    from rich.live import Live  # noqa: PLC0415 - not installed with the bare package

    return Live(console=console, refresh_per_second=4)


def summary(records: Sequence[HistoryRecord], claim: str, monitor: str) -> Iterator[str]:
    """Yields the closing lines: what a run used, and what the server's figures show of its savings.

    Args:
        records: the history of the run.
        claim: what the job saved or lost compared with its default batch size, or why that is not known.
        monitor: describes the driver's monitor.
    """
    mark = estimate_mark(*(record.monitor for record in records))
    recurrences = len({record.recurrence for record in records if record.reached})
    yield f"{number_of(recurrences, 'recurrence')} reached the target, in {number_of(len(records), 'trial')}:"
    table = fit(_SUMMARY, [("all trials", *_sums(records, mark))])
    yield from (f"  {line}" for line in table.lines())
    if unknown := sum(record.cost is None for record in records):
        yield f"Not included: {number_of(unknown, 'trial')} of unknown time and energy."
    if mark:
        yield f"{mark} marks {ESTIMATE_NOTE}."
    yield f"Compared with the default batch size: {claim}"
    yield f"Energy monitor: {monitor}"


_SUMMARY: Sequence[Column[tuple[str, str, str, str]]] = (
    Column("", lambda row: row[0]),
    Column("energy", lambda row: row[1], right=True),
    Column("time", lambda row: row[2], right=True),
    Column("cost", lambda row: row[3], right=True),
)


def _sums(records: Sequence[HistoryRecord], mark: str) -> tuple[str, str, str]:
    """Returns the energy, time and cost of all records as texts, as far as they are known."""
    energies = [record.energy_joules for record in records if record.energy_joules is not None]
    known = sum(energies) if energies or not records else None
    return (
        _known(known, marked(energy, mark)),
        duration(sum(record.time_seconds or 0.0 for record in records)),
        marked(joules, mark)(sum(record.cost or 0.0 for record in records)),
    )
