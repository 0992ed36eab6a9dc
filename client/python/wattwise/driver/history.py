"""What a run has done: a line per trial, each on the disk before the next trial begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattwise.driver.durable import sync_folder
from wattwise.errors import WattwiseError

BY_COMMAND, BY_DRIVER = "command", "driver"
"""Who measured a trial: a client in the command, or the driver from outside."""


class HistoryError(WattwiseError):
    """The history of a run cannot be read."""


@dataclass(frozen=True)
class Record:
    """One trial that is over.

    Attributes:
        launch: the launch's number within the run, from 0; its seed is the run's and this.
        recurrence: the recurrence that it belongs to, from 1.
        try_number: which try of its recurrence it was, from 1; `try` in the file.
        trial: its number within the job, as the server counts.
        batch_size: what it trained with.
        power_limit_watts: the GPUs' power limit, if the command left one in its result or a `PowerLimitOptimizer` in
            it set one for good; None says that nobody told.
        learning_rate: what the driver told it; None if nothing.
        seed: likewise.
        epochs: how many it reported.
        time_seconds: how long it trained.
        energy_joules: what that took.
        cost: η·energy + (1-η)·max power·time, in joules.
        measured_by: "command" if a client in it reported these numbers, "driver" if they are of its whole life, seen
            from outside, or None if nobody knows.
        monitor: the kind of monitor that measured it, as the server shows it; the driver's where nobody measured.
        reached: whether the metric reached its target, however dearly.
        end_reason: why it ended, in the server's words.
        exit_code: of the command, 128 + N if a signal N ended it; None if that is not known.
    """

    launch: int
    recurrence: int
    try_number: int
    trial: int
    batch_size: int
    power_limit_watts: float | None
    learning_rate: float | None
    seed: int
    epochs: int
    time_seconds: float | None
    energy_joules: float | None
    cost: float | None
    measured_by: str | None
    monitor: str
    reached: bool
    end_reason: str
    exit_code: int | None

    @property
    def in_vain(self) -> bool:
        """Whether it counts as a try that did not reach the target: not if it was merely taken away."""
        return not self.reached and self.end_reason != "preempted"


_NAMES = {"try_number": "try"}


class History:
    """The file `history.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: Record) -> None:
        """Adds a trial; it is on the disk when this returns.

        A line that a kill tore is ended first, so that it spoils no other.
        """
        line = {_NAMES.get(name, name): value for name, value in asdict(record).items()}
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
                file.write(b"\n" if torn else b"")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._path.parent)

    def read(self) -> list[Record]:
        """All trials, in the order in which they ended; torn lines, of trials that were not recorded, are left out.

        Raises:
            HistoryError: if a whole line is not one of a history.
        """
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [record for number, line in enumerate(lines, 1) for record in self._records(number, line)]

    def _records(self, number: int, line: bytes) -> Iterator[Record]:
        try:
            found = json.loads(line)
        except ValueError:
            return
        names = {_NAMES.get(field.name, field.name): field.name for field in fields(Record)}
        if not isinstance(found, dict) or not set(names) <= set(found):
            raise HistoryError(
                f"line {number} of {self._path} is not one of a history: restore the file, or begin anew with --fresh"
            )
        given: dict[str, Any] = {names[key]: value for key, value in found.items() if key in names}
        yield Record(**given)
