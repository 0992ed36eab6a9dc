"""Trials from before a job was registered, as a CSV file: one row for each epoch, or one for each trial."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from wattwise import v1
from wattwise.commands.csv_file import SEPARATED, CsvFile, number_in
from wattwise.errors import Violation, WattwiseError
from wattwise.files import FileError
from wattwise.monitor.kind import EnergyQuality, MonitorKinds
from wattwise.rules import MAX_ID_LENGTH, MAX_INT32, MAX_MEASUREMENTS, TRAINER_END_REASONS, EndReason
from wattwise.spec import reaches_target

REQUIRED = ("trial", "batch_size", "epoch", "time_seconds", "energy_joules", "metric")
OPTIONAL = ("end_reason", "limit_watts_per_gpu", "start_time", "monitor", "energy_quality")

_KNOWN = (*REQUIRED, *OPTIONAL)
_SUMS: tuple[Literal["time_seconds", "energy_joules"], ...] = ("time_seconds", "energy_joules")
_MEASURED = ("epoch", "time_seconds", "energy_joules", "metric")
_DECIDED = (EndReason.TARGET_REACHED, EndReason.MAX_EPOCHS)
"""What the measurements must show."""
_END_REASONS = {reason.value.lower(): reason for reason in (*TRAINER_END_REASONS, EndReason.LOST, *_DECIDED)}
_QUALITIES = {quality.name.lower(): quality for quality in EnergyQuality}

T = TypeVar("T")


class TrialsFileError(WattwiseError):
    """The file is invalid; `violations` has every fault, with its line and column as the field."""


@dataclass
class FileTrial:
    """A trial of the file.

    Attributes:
        name: what the column `trial` says.
        batch_size: its batch size.
        line: the line of its first row.
        measurements: by ascending epoch; empty if it ended before its first epoch did.
        end_reason: how it ended, unless the measurements decide it.
        start_time: None if unknown.
        monitor: what measured the energy; None if unknown.
    """

    name: str
    batch_size: int
    line: int
    measurements: list[v1.Measurement] = field(default_factory=list)
    end_reason: EndReason = EndReason.COMPLETED
    start_time: datetime | None = None
    monitor: MonitorKinds | None = None


class TrialsFile(NamedTuple):
    """A file without faults.

    Attributes:
        trials: in the order of their first rows.
        ignored: its columns that have no meaning here.
    """

    trials: Sequence[FileTrial]
    ignored: Sequence[str]


def read(path: Path, spec: v1.JobSpec) -> TrialsFile:
    """Reads a file and checks it against its job.

    Args:
        path: the file: UTF-8, with a line of column names, separated by commas, semicolons or tabs.
        spec: the job with all defaults filled in.

    Raises:
        TrialsFileError: with every fault.
    """
    return _Reader(path, spec).read()


class _Row(NamedTuple):
    """A line of the file.

    Attributes:
        line: its number.
        cells: the texts by column, without empty ones.
    """

    line: int
    cells: Mapping[str, str]


class _Reader:
    def __init__(self, path: Path, spec: v1.JobSpec) -> None:
        self._path = path
        self._spec = spec
        self._faults: list[tuple[int, Violation]] = []
        self._ignored: list[str] = []

    def read(self) -> TrialsFile:
        rows: dict[str, list[_Row]] = {}
        for row in self._rows():
            if name := self._value(row, "trial", _name):
                rows.setdefault(name, []).append(row)
        trials = [self._trial(name, found) for name, found in rows.items()]
        if not rows and not self._faults:
            self._fault(1, "", "the file has no trials; write a line for each epoch, or for each trial")
        if self._faults:
            # A file has a few faults, or the same one in every line.
            violations = [violation for _, violation in sorted(self._faults, key=lambda fault: fault[0])]
            text = "; ".join(f"{fault.field}: {fault.description}" for fault in violations)
            raise TrialsFileError(text, violations=violations)
        return TrialsFile(trials, self._ignored)

    def _fault(self, line: int, column: str, text: str) -> None:
        where = f"{self._path}:{line}" + (f": {column}" if column else "")
        self._faults.append((line, Violation(where, text)))

    def _rows(self) -> Iterator[_Row]:
        names: Sequence[str] | None = None
        try:
            file = CsvFile(self._path)
            for line, cells in file.rows():
                if names is None:
                    names = self._columns(line, cells)
                    if any(name not in names for name in REQUIRED):
                        return
                    continue
                if any(cells[len(names) :]):
                    fault = f"has {len(cells)} cells for {len(names)} columns; quote a text that contains"
                    self._fault(line, f"column {len(names) + 1}", f"{fault} {file.delimiter!r}")
                pairs = zip(names, cells, strict=False)
                yield _Row(line, {name: text for name, text in pairs if text})
        except FileNotFoundError as error:
            raise TrialsFileError(f"{self._path} is missing; name another file") from error
        except FileError as error:
            if error.line is None:
                raise TrialsFileError(str(error)) from error
            self._fault(error.line, "", f"{error.fault}; {error.remedy}")

    def _columns(self, line: int, cells: Sequence[str]) -> Sequence[str]:
        """Returns the columns by the first line; its faults are those of required, repeated and misspelt ones."""
        names = ["_".join(cell.lower().split()) for cell in cells]
        if len(names) == 1:
            self._fault(line, "", f"the line is a single column, {cells[0]!r}; {SEPARATED}: {', '.join(REQUIRED)}")
            return names
        for name in REQUIRED:
            if name not in names:
                near = difflib.get_close_matches(name, [each for each in names if each not in _KNOWN], 1)
                hint = f"; is it the column {near[0]!r}?" if near else f"; required are {', '.join(REQUIRED)}"
                self._fault(line, name, f"the column is missing{hint}")
        for place, name in enumerate(names):
            if name in _KNOWN and name in names[:place]:
                self._fault(line, name, "the column occurs twice")
            elif name and name not in _KNOWN:
                near = difflib.get_close_matches(name, [each for each in OPTIONAL if each not in names], 1)
                if near:
                    self._fault(line, name, f"the column is unknown; did you mean {near[0]}?")
                self._ignored.append(cells[place])
        return names

    def _value(self, row: _Row, column: str, parsed: Callable[[str], T], *, required: bool = True) -> T | None:
        """Returns the value of a cell; None with a fault if it is invalid, or required and empty."""
        text = row.cells.get(column)
        if text is None:
            if required:
                self._fault(row.line, column, "is empty")
            return None
        try:
            return parsed(text)
        except ValueError as error:
            self._fault(row.line, column, f"{text!r} {error}")
            return None

    def _trial(self, name: str, rows: Sequence[_Row]) -> FileTrial:
        size = self._same(rows, "batch_size", self._batch_size, required=True)
        trial = FileTrial(name, size or 0, rows[0].line)
        trial.start_time = self._same(rows, "start_time", _time)
        trial.monitor = self._monitor(rows)
        reason = self._same(rows, "end_reason", _end_reason)
        measured = [(row, self._measurement(row)) for row in rows if any(name in row.cells for name in _MEASURED)]
        if not measured and reason in (None, EndReason.COMPLETED, *_DECIDED):
            self._fault(
                rows[0].line,
                "epoch",
                "is empty; fill in epoch, time_seconds, metric and, if it was measured, energy_joules, or say in "
                "end_reason why the trial has none: error, out_of_memory, preempted or lost",
            )
        known = [(row, measurement) for row, measurement in measured if measurement is not None]
        known.sort(key=lambda pair: pair[1].epoch)
        self._check_order(known)
        trial.measurements = [measurement for _, measurement in known]
        if len(known) > MAX_MEASUREMENTS:
            self._fault(
                rows[0].line,
                "epoch",
                f"trial {name!r} has {len(known)} lines; an import takes at most {MAX_MEASUREMENTS} of one trial: "
                "leave out some of its earlier epochs, and keep the last one",
            )
        if reason is not None and reason in _DECIDED and len(known) == len(measured):
            self._check_decided(rows, reason, trial.measurements)
        if reason is not None and reason not in _DECIDED:
            trial.end_reason = reason
        return trial

    def _same(
        self, rows: Sequence[_Row], column: str, parsed: Callable[[str], T], *, required: bool = False
    ) -> T | None:
        """Returns the value of a column that is the same in all rows of a trial; optional cells may be empty."""
        first: tuple[_Row, T] | None = None
        for row in rows:
            value = self._value(row, column, parsed, required=required)
            if value is None:
                continue
            if first is None:
                first = row, value
            elif value != first[1]:
                before = first[0].cells[column]
                fault = f"is {row.cells[column]}, but line {first[0].line} of the same trial has {before}"
                self._fault(row.line, column, fault)
        return None if first is None else first[1]

    def _monitor(self, rows: Sequence[_Row]) -> MonitorKinds | None:
        monitor = self._same(rows, "monitor", MonitorKinds.of_text)
        quality = self._same(rows, "energy_quality", _quality)
        if quality is None:
            return monitor
        if not any("monitor" in row.cells for row in rows):
            (line, *_) = (row.line for row in rows if "energy_quality" in row.cells)
            self._fault(line, "monitor", "is empty, but energy_quality is not; fill in both or neither")
        return None if monitor is None else replace(monitor, quality=quality)

    def _batch_size(self, text: str) -> int:
        size = _whole(text)
        if size not in self._spec.batch_sizes:
            raise ValueError(f"is not a batch size of the job; it has {', '.join(map(str, self._spec.batch_sizes))}")
        return size

    def _measurement(self, row: _Row) -> v1.Measurement | None:
        epoch = self._value(row, "epoch", _whole)
        seconds = self._value(row, "time_seconds", _above_zero)
        joules = self._value(row, "energy_joules", _not_negative, required=False)
        metric = self._value(row, "metric", _metric)
        watts = self._value(row, "limit_watts_per_gpu", _above_zero, required=False)
        if epoch is None or seconds is None or metric is None:
            return None
        measured = v1.Measurement(epoch=epoch, time_seconds=seconds, energy_joules=joules, metric=metric)
        if watts is not None:
            measured.power_setting.limit_watts_per_gpu = watts
        return measured

    def _check_order(self, measured: Sequence[tuple[_Row, v1.Measurement]]) -> None:
        for (before, earlier), (row, later) in pairwise(measured):
            if later.epoch == earlier.epoch:
                self._fault(row.line, "epoch", f"{later.epoch} is also in line {before.line}")
                continue
            for column in _SUMS:
                if earlier.HasField(column) and not later.HasField(column):
                    self._fault(row.line, column, f"is empty, but not in line {before.line}, an earlier epoch")
                elif getattr(later, column) < getattr(earlier, column):
                    self._fault(
                        row.line,
                        column,
                        f"{row.cells[column]} is less than {before.cells[column]} in line {before.line}, an "
                        "earlier epoch; write the sum since the start of the trial",
                    )

    def _check_decided(self, rows: Sequence[_Row], reason: EndReason, measured: Sequence[v1.Measurement]) -> None:
        spec = self._spec
        last = next((each.epoch for each in measured if each.epoch >= spec.max_epochs), None)
        if reason is EndReason.TARGET_REACHED:
            counted = (each for each in measured if last is None or each.epoch <= last)
            shown = any(reaches_target(spec, each.metric) for each in counted)
            why = f"no metric reaches the target {spec.target.value:g}"
        else:
            shown = last is not None
            why = f"the last epoch of the job is {spec.max_epochs}"
        if not shown:
            (line, *_) = (row.line for row in rows if "end_reason" in row.cells)
            self._fault(line, "end_reason", f"is {reason.value.lower()}, but {why}; use completed")


def _name(text: str) -> str:
    if len(text) > MAX_ID_LENGTH:
        raise ValueError(f"has {len(text)} characters; use at most {MAX_ID_LENGTH}")
    if not text.isprintable():
        raise ValueError("contains control characters")
    return text


def _whole(text: str) -> int:
    number = number_in(text)
    if not (number.is_integer() and 0 < number <= MAX_INT32):
        raise ValueError("is not a whole number above 0")
    return int(number)


def _above_zero(text: str) -> float:
    number = number_in(text)
    if not 0 < number < math.inf:
        raise ValueError("is not a finite number above 0")
    return number


def _not_negative(text: str) -> float:
    number = number_in(text)
    if not 0 <= number < math.inf:
        raise ValueError("is not a finite number from 0 on")
    return number


def _metric(text: str) -> float:
    number = number_in(text)
    if math.isinf(number):
        raise ValueError("is infinite; write nan for a metric that has diverged")
    return number


def _end_reason(text: str) -> EndReason:
    reason = _END_REASONS.get("_".join(text.lower().replace("-", " ").split()))
    if reason is None:
        raise ValueError(f"is not an end reason; use one of {', '.join(_END_REASONS)}, or leave it empty")
    return reason


def _quality(text: str) -> EnergyQuality:
    quality = _QUALITIES.get("_".join(text.lower().split()))
    if quality is None:
        raise ValueError(f"is not an energy quality; use one of {', '.join(_QUALITIES)}, or leave it empty")
    return quality


def _time(text: str) -> datetime:
    try:
        # Python 3.10 does not read "Z".
        time = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError("is not a time; write it like 2026-11-21 02:43 (UTC) or 2026-11-21T02:43:05+01:00") from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
