"""The history of a run: one line per ended trial, durable before the next trial begins."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from wattwise.driver.files import values_of, writing
from wattwise.errors import WattwiseError, warn_once
from wattwise.files import LARGE, FileError, open_file, parse_json, read_bytes, sync_folder
from wattwise.monitor.kind import MonitorKinds

BY_COMMAND, BY_DRIVER = "command", "driver"
"""Who measured a trial: a client in the command, or the driver from outside."""


class HistoryError(WattwiseError):
    """The history of a run cannot be read."""


@dataclass(frozen=True)
class HistoryRecord:
    """An ended trial.

    Attributes:
        launch: the launch's number within the run, from 0; also what is added to the run's seed.
        recurrence: the recurrence that it belongs to, from 1.
        try_number: the try within its recurrence, from 1; `try` in the file.
        trial: its number within the job, on the server.
        batch_size: the batch size that it trained with.
        limit_watts_per_gpu: the GPUs' power limit, if the command's result or its `PowerLimitOptimizer` names one.
        learning_rate: what the command was passed; None if nothing.
        seed: what the command was passed.
        epochs: how many were reported.
        time_seconds: its training time; None if unknown.
        energy_joules: the energy that it used; None if unknown.
        cost: η·energy + (1-η)·max power·time, in joules; None if unknown.
        measured_by: "command" if a client in the command measured it, "driver" if the driver measured the whole
            execution; None if it was not measured.
        monitor: what its energy comes from; the driver's monitor if it was not measured.
        reached: whether the metric reached the target, at any cost.
        end_reason: why it ended, as the server names it.
        exit_code: of the command, 128 + N if signal N ended it; None if unknown.
        computed_time_seconds: in observer mode, the time at the cheapest power limit, of which the cost is; otherwise
            None, like the next two.
        computed_energy_joules: the energy at that limit.
        computed_limit_watts_per_gpu: that limit.
    """

    launch: int
    recurrence: int
    try_number: int
    trial: int
    batch_size: int
    limit_watts_per_gpu: float | None
    learning_rate: float | None
    seed: int
    epochs: int
    time_seconds: float | None
    energy_joules: float | None
    cost: float | None
    measured_by: str | None
    monitor: MonitorKinds
    reached: bool
    end_reason: str
    exit_code: int | None
    computed_time_seconds: float | None = None
    computed_energy_joules: float | None = None
    computed_limit_watts_per_gpu: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it counts towards max_tries: it missed the target and was not preempted."""
        return not self.reached and self.end_reason != "preempted"


_KEYS = {field.name: "try" if field.name == "try_number" else field.name for field in fields(HistoryRecord)}
"""The key in the file for each field."""


class History:
    """The file `history.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: HistoryRecord) -> None:
        """Adds a trial durably; ends a line that was only partly written first.

        Raises:
            WriteError: if the file cannot be written.
        """
        line = {_KEYS[name]: value for name, value in asdict(record).items()}
        with writing(self._path), open_file(self._path, "a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
                file.write(b"\n" if torn else b"")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._path.parent)

    def read(self) -> list[HistoryRecord]:
        """Returns all trials in the order of their ends, without lines that were only partly written.

        Raises:
            HistoryError: if the file cannot be read, or a complete line is malformed.
        """
        try:
            lines = read_bytes(self._path, LARGE).split(b"\n")
        except FileNotFoundError:
            return []
        except FileError as error:
            raise HistoryError(f"{error}, or start a new run with --fresh") from error
        records = []
        for number, line in enumerate(lines, 1):
            try:
                document: Any = parse_json(line.decode("utf-8-sig"))
            except ValueError as error:
                if line.strip():
                    warn_once(f"line {number} of {self._path} is incomplete, and its trial is left out: {error}")
                continue
            try:
                records.append(_record_in(document))
            except ValueError as error:
                raise HistoryError(
                    f"line {number} of {self._path} is malformed: it {error}; restore the file, or start a new run "
                    "with --fresh"
                ) from error
        return records


def _record_in(document: Any) -> HistoryRecord:
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - of a file, not of a caller
    named = {name: document[key] for name, key in _KEYS.items() if key in document}
    return HistoryRecord(**values_of(HistoryRecord, named))
