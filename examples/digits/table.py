"""The progress of the demo: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from wattwise.presentation.quantities import estimate_mark
from wattwise.rpc import v1

from examples.digits.recurrence import DemoLaunch

SHOWN = 18
"""Rows that fit an ordinary terminal together with the heading."""

_ENDS = {
    v1.END_REASON_TARGET_REACHED: "target reached",
    v1.END_REASON_COST_BOUND: "cost bound",
    v1.END_REASON_MAX_EPOCHS: "max epochs",
}
_OVER_BUDGET = "target, over budget"
"""The same epoch reached the target and exceeded the cost bound."""

_COLUMNS = ("recurrence", "trial", "batch size", "epochs", "cost", "decision", "reason")
_SHORT = {"recurrence": "run", "batch size": "batch"}
"""Short names, for narrow terminals."""


class DemoTable:
    """Shows trials as they end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._rows: list[tuple[str, ...]] = []
        self._newest: DemoLaunch | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the table within the block, on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4) as self._live:
            yield

    def add(self, launch: DemoLaunch) -> None:
        """Shows one more trial of the job."""
        self._newest = launch
        self._show(_cells(launch, str(launch.recurrence), launch.reason))

    def add_baseline(self, launch: DemoLaunch) -> None:
        """Shows a run of the default batch size that was requested."""
        self._show(_cells(launch, "baseline", "the default batch size, for comparison"))

    def _show(self, row: tuple[str, ...]) -> None:
        self._rows.append(row)
        if self._live is not None:
            self._live.update(self._table())
        else:
            self.say(", ".join(f"{name} {cell}" for name, cell in zip(_COLUMNS, row, strict=True)))

    def say(self, text: str) -> None:
        """Prints a line of text."""
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _table(self) -> Group:
        table = Table(expand=True, padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
        for name in _COLUMNS[:-1]:
            numeric = name in ("recurrence", "trial", "batch size", "epochs", "cost")
            table.add_column(_SHORT.get(name, name), justify="right" if numeric else "left", no_wrap=True)
        table.add_column(_COLUMNS[-1], no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self._rows[-SHOWN:]:
            table.add_row(*row)
        if self._newest is None:
            return Group(table)
        why = f"newest: trial {self._newest.trial.id.trial_number}, {self._newest.reason}"
        return Group(Text(_heading(self._newest.job)), table, Text(why))


def _heading(job: v1.Job) -> str:
    mark = estimate_mark(job.monitor, *job.other_monitors)
    best = "unknown"
    if job.HasField("best_known_cost"):
        best = f"{mark}{job.best_known_cost:.1f} J with batch size {job.best_known_batch_size}"
    return f"{job.spec.job_id}: lowest expected cost of a model {best}"


def _cells(launch: DemoLaunch, recurrence: str, why: str) -> tuple[str, ...]:
    trial = launch.trial
    over_budget = trial.end_reason == v1.END_REASON_COST_BOUND and launch.target_reached
    return (
        recurrence,
        str(trial.id.trial_number),
        str(trial.batch_size),
        str(trial.newest.epoch),
        f"{estimate_mark(trial.monitor)}{trial.cost:.1f} J",
        _OVER_BUDGET if over_budget else _ENDS.get(trial.end_reason, "failed"),
        why,
    )
