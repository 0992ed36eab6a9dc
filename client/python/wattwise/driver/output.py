"""What a run prints: its progress (a live table on a terminal, plain lines elsewhere), and a summary at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.commands.humanize import COMPUTED_MARK, duration, estimate_mark, joules
from wattwise.driver.folder import LaunchRecord
from wattwise.driver.history import TrialRecord
from wattwise.driver.outcome import OUTPUT, described, last_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_ROWS = 12
"""Leaves room for the command's output on an ordinary terminal."""
_COLUMNS = ("recurrence", "try", "trial", "batch size", "epochs", "time", "energy", "cost", "ended by", "target")


class Board:
    """Shows the progress of a run.

    Args:
        job_id: the run's job id.
        recurrences: the number of recurrences.
    """

    def __init__(self, job_id: str, recurrences: int) -> None:
        self._job_id = job_id
        self._recurrences = recurrences
        self._rows: list[tuple[str, ...]] = []
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
        """Prints a line of text."""
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
            f"trial {trial.id.trial_number} with batch size {trial.id.batch_size}"
        )
        if self._live is None:
            self.say(f"{self._status}: {reason}")
        self.refresh()

    def refresh(self) -> None:
        """Shows the command's new output, on a terminal."""
        if self._live is None:
            return
        if self._output is not None and self._output.exists():
            self._follow(self._output)
        self._update()

    def _follow(self, output: Path) -> None:
        with output.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        lines = new[: new.rfind(b"\n") + 1]
        self._offset += len(lines)
        for line in lines.decode(errors="replace").split("\n")[:-1]:
            # Of a progress bar, which overwrites itself, only its last state.
            self.say(line.rstrip("\r").rpartition("\r")[2])

    def wait(self) -> None:
        """Shows that other drivers have all launches that are left."""
        if not self._waiting:
            self._waiting = True
            self._status = "waiting for other drivers of this folder, which run all remaining launches"
            self.say(self._status)
        self._update()

    def end(self, record: TrialRecord) -> None:
        """Shows that a launch has ended."""
        self._status, self._output = "", None
        mark = estimate_mark(record.monitor)
        computed = "" if record.computed_energy_joules is None else COMPUTED_MARK
        row = (
            str(record.recurrence),
            str(record.try_number),
            str(record.trial),
            str(record.batch_size),
            str(record.epochs),
            "unknown" if record.time_seconds is None else duration(record.time_seconds),
            "unknown" if record.energy_joules is None else joules(record.energy_joules) + mark,
            "unknown" if record.cost is None else joules(record.cost) + mark + computed,
            record.end_reason,
            "reached" if record.reached else "missed",
        )
        self._rows.append(row)
        if self._live is None:
            self.say(", ".join(f"{name} {cell}" for name, cell in zip(_COLUMNS, row, strict=True)))
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
            self._live.update(self._table())

    def _table(self) -> Group:
        from rich.console import Group  # noqa: PLC0415 - not installed with the bare package
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("ended by", "target") else "right", no_wrap=True)
        for row in self._rows[-_ROWS:]:
            table.add_row(*row)
        elapsed = f", running for {duration(time.monotonic() - self._began)}" if self._output else ""
        # Job ids come from users: "[red]" in one is text.
        return Group(Text(f"run {self._job_id}"), table, Text(f"{self._status}{elapsed}"))


def _live() -> Live | None:
    """A live display, if there is a terminal, and rich is installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - not installed with the bare package
        from rich.live import Live  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    console = Console()
    return Live(console=console, refresh_per_second=4) if console.is_terminal and sys.stdout.isatty() else None


def summary(records: Sequence[TrialRecord], default_batch_size: int, monitor: str) -> Iterator[str]:
    """The closing lines: what a run used, compared with the default batch size.

    Args:
        records: the history of the run.
        default_batch_size: what it is compared with.
        monitor: describes the driver's monitor.
    """
    mark = estimate_mark(*(record.monitor for record in records))
    recurrences = len({record.recurrence for record in records if record.reached})
    yield f"{_counted(recurrences, 'recurrence')} reached the target, in {_counted(len(records), 'trial')}:"
    used = _sums(records)
    yield f"  all trials: {_amounts(used, mark)}"
    unknown = sum(record.cost is None for record in records)
    if unknown:
        yield f"  not included: {_counted(unknown, 'trial')} of unknown time and energy"
    default = [r for r in records if r.batch_size == default_batch_size and r.reached and r.cost is not None]
    if not default:
        yield f"  no comparison: no trial of the default batch size {default_batch_size} reached the target"
    else:
        factor = recurrences / len(default)
        mean = "its only trial" if len(default) == 1 else f"mean of {len(default)} trials"
        energy, time_seconds, cost = (factor * value for value in _sums(default))
        expected = (energy, time_seconds, cost)
        yield (
            f"  default batch size {default_batch_size} alone: {_amounts(expected, mark)} ({mean}, times {recurrences})"
        )
        shares = zip(("energy", "time", "cost"), used, expected, strict=True)
        yield f"  compared with it: {', '.join(f'{_change(now, before)} {name}' for name, now, before in shares)}"
    yield f"Energy monitor: {monitor}"


def _sums(records: Sequence[TrialRecord]) -> tuple[float, float, float]:
    """Energy in joules, time in seconds and cost in joules, as far as they are known."""
    return (
        sum(record.energy_joules or 0.0 for record in records),
        sum(record.time_seconds or 0.0 for record in records),
        sum(record.cost or 0.0 for record in records),
    )


def _amounts(sums: tuple[float, float, float], mark: str) -> str:
    energy, seconds, cost = sums
    return f"energy {joules(energy)}{mark}, time {duration(seconds)}, cost {joules(cost)}{mark}"


def _change(used: float, expected: float) -> str:
    if expected <= 0:
        return "unknown"
    share = 1 - used / expected
    return f"{abs(share):.0%} {'less' if share >= 0 else 'MORE'}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
