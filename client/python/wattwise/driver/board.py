"""What happens, as it happens: a live table and the command's output on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.commands.estimates import estimate_mark
from wattwise.commands.humanize import duration, joules
from wattwise.driver.folder import Launch
from wattwise.driver.history import Record

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_SHOWN = 12
"""Rows that leave room for the command's output on an ordinary terminal."""
_COLUMNS = ("recurrence", "try", "trial", "batch size", "epochs", "time", "energy", "cost", "ended by", "target")


class Board:
    """Shows a run.

    Args:
        job_id: the run's job.
        recurrences: how many there will be.
    """

    def __init__(self, job_id: str, recurrences: int) -> None:
        self._job_id = job_id
        self._recurrences = recurrences
        self._rows: list[tuple[str, ...]] = []
        self._now = ""
        self._began = 0.0
        self._followed: Path | None = None
        self._read = 0
        self._live: Live | None = None
        self._waits = False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the table for as long as the block lasts, if there is a terminal and rich to show it with."""
        live = _live()
        if live is None:
            yield
            return
        with live:
            self._live = live
            try:
                yield
            finally:
                self._now, self._followed = "", None
                self._refresh()
                self._live = None

    def say(self, text: str) -> None:
        """A line of text."""
        if self._live is None:
            print(text, flush=True)  # noqa: T201 - the command's answer
        else:
            self._live.console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def begin(self, launch: Launch, trial: v1.Trial, reason: str, output: Path) -> None:
        """A launch begins."""
        self._waits = False
        self._began, self._followed, self._read = time.monotonic(), output, 0
        self._now = (
            f"recurrence {launch.recurrence} of {self._recurrences}, try {launch.try_number}: "
            f"trial {trial.id.trial_number} with batch size {trial.id.batch_size}"
        )
        if self._live is None:
            self.say(f"{self._now}: {reason}")
        self.look()

    def look(self) -> None:
        """Shows what the command has said since the last look, where there is a terminal."""
        if self._live is None:
            return
        if self._followed is not None and self._followed.exists():
            self._follow(self._followed)
        self._refresh()

    def _follow(self, output: Path) -> None:
        with output.open("rb") as file:
            file.seek(self._read)
            said = file.read()
        whole = said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").split("\n")[:-1]:
            # Of a progress bar, which writes over itself, what would be left to see.
            self.say(line.rstrip("\r").rpartition("\r")[2])

    def wait(self) -> None:
        """There is nothing to do: others have it."""
        if not self._waits:
            self._waits = True
            self._now = "other drivers of this folder have what is left; waiting for them"
            self.say(self._now)
        self._refresh()

    def end(self, record: Record) -> None:
        """A launch is over."""
        self._now, self._followed = "", None
        row = self._cells(record)
        self._rows.append(row)
        if self._live is None:
            self.say(", ".join(f"{name} {cell}" for name, cell in zip(_COLUMNS, row, strict=True)))
        self._refresh()

    def _cells(self, record: Record) -> tuple[str, ...]:
        mark = estimate_mark(record.monitor)
        return (
            str(record.recurrence),
            str(record.try_number),
            str(record.trial),
            str(record.batch_size),
            str(record.epochs),
            "unknown" if record.time_seconds is None else duration(record.time_seconds),
            "unknown" if record.energy_joules is None else joules(record.energy_joules) + mark,
            "unknown" if record.cost is None else joules(record.cost) + mark,
            record.end_reason,
            "reached" if record.reached else "missed",
        )

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Group:
        from rich.console import Group  # noqa: PLC0415 - a trainer's install does not have it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("ended by", "target") else "right", no_wrap=True)
        for row in self._rows[-_SHOWN:]:
            table.add_row(*row)
        passed = f", for {duration(time.monotonic() - self._began)} now" if self._followed else ""
        # Names come from users: "[red]" in one is text.
        return Group(Text(f"run {self._job_id}"), table, Text(f"{self._now}{passed}"))


def _live() -> Live | None:
    """A live display; None where nobody would see it."""
    try:
        from rich.console import Console  # noqa: PLC0415 - a trainer's install does not have it
        from rich.live import Live  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    console = Console()
    return Live(console=console, refresh_per_second=4) if console.is_terminal and sys.stdout.isatty() else None
