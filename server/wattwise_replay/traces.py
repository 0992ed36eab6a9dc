"""Measured traces of real GPUs, as published with the NSDI 2023 paper (You, Chung, Chowdhury, "Zeus"; Apache-2.0).

A folder holds `summary_train.csv` (dataset, network, batch_size, optimizer, learning_rate, run, target_metric,
target_epoch: a line for each run and target; "nan", nothing or no line where the run never reached it), and for each
GPU `summary_power_<gpu>.csv` (dataset, network, batch_size, optimizer, power_limit in W, time_per_epoch in s,
average_power in W). Other files of this form are read too: `Source` says where they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from wattwise.commands.csv_file import SEPARATED, CsvFile, CsvRow, number_in
from wattwise.files import FileError, resolved

from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import BatchSize, PowerPoint, RecordedRun, Workload, validated

_TRAIN = "summary_train.csv"
_POWER = "summary_power_{}.csv"
_TRAIN_COLUMNS = ("batch_size", "run", "target_metric", "target_epoch")
_POWER_COLUMNS = ("batch_size", "power_limit", "time_per_epoch", "average_power")
COLUMNS: Sequence[str] = tuple(dict.fromkeys(_TRAIN_COLUMNS + _POWER_COLUMNS))
"""The columns that are read, besides those of a filter."""

_NEVER = ("nan", "")

_MOST_OVER_LIMIT = 1.25
"""Average power over the power limit that is taken for a measurement. GPUs exceed low limits: the A40 of the paper's
traces, at 100 W, by a fifth."""

_SHOWN = 5
"""Faults of a file that an error shows, and targets of those that there are."""

_ONE = "keep one, or select lines with a filter"

T = TypeVar("T")


class TraceOptions(NamedTuple):
    """Which traces belong to a workload, and its job in the paper's evaluation (NSDI 2023, table 1)."""

    network: str
    optimizer: str
    target_metric: float
    higher_is_better: bool
    max_epochs: int
    default_batch_size: int


WORKLOADS = {
    "cifar100": TraceOptions("shufflenetv2", "adadelta", 0.60, True, 100, 1024),
    "imagenet": TraceOptions("resnet50", "adadelta", 0.65, True, 100, 256),
    "librispeech": TraceOptions("deepspeech2", "adamw", 40.0, False, 16, 192),
    "squad": TraceOptions("bert_base_uncased", "adamw", 84.0, True, 6, 32),
}


@dataclass(frozen=True)
class Source:
    """A workload's files, its lines in them, and its job.

    Attributes:
        name: Its name.
        gpu: The GPU that it was measured on.
        runs: The file of recorded runs.
        power: The file of measured power.
        target_metric: The metric to reach.
        higher_is_better: Whether a higher metric is better.
        default_batch_size: The batch size before anything was learned.
        max_epochs: Epochs after which a trial is over.
        max_power_watts: The GPU's highest power limit; None for the highest that was measured.
        filter: The values that a line must have, by column; applies to each file with such a column.
        columns: What a column is called in the files, where it has another name.
        remedy: What to do where a file or column is missing.
        nearest_default: Whether the nearest batch size replaces a default without measurements: the largest below it,
            or the smallest if none is below.
    """

    name: str
    gpu: str
    runs: Path
    power: Path
    target_metric: float
    higher_is_better: bool
    default_batch_size: int
    max_epochs: int
    max_power_watts: float | None = None
    filter: Mapping[str, str | float] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    remedy: str = "--traces is the folder that contains it"
    nearest_default: bool = False


def gpus(folder: Path) -> Sequence[str]:
    """Returns the GPUs in a folder of measurements.

    Raises:
        ReplayError: the folder cannot be read.
    """
    try:
        resolved(folder)
    except FileError as error:
        raise ReplayError(str(error)) from error
    prefix, suffix = _POWER.split("{}")
    return sorted(path.name[len(prefix) : -len(suffix)] for path in folder.glob(_POWER.format("*")))


def load(
    folder: Path,
    workload: str,
    gpu: str,
    target_metric: float | None = None,
    known: Mapping[str, TraceOptions] = WORKLOADS,
) -> Workload:
    """Returns a workload on a GPU: the batch sizes that have both recorded runs and measured power.

    Args:
        folder: The folder of traces.
        workload: One of `known`.
        gpu: One of `gpus(folder)`.
        target_metric: The metric to reach; None for the workload's.
        known: Workloads by name.

    Raises:
        ReplayError: the folder, the workload or the GPU does not exist, or a file is invalid.
    """
    if workload not in known:
        raise ReplayError(f"unknown workload {workload!r}; use one of {', '.join(known)}")
    if gpu not in gpus(folder):
        there = f"there are {', '.join(gpus(folder))}" if gpus(folder) else f"there is no {_POWER.format('<gpu>')}"
        raise ReplayError(f"no measurements of GPU {gpu!r} in {folder}: {there}")
    options = known[workload]
    return read(
        Source(
            workload,
            gpu,
            folder / _TRAIN,
            folder / _POWER.format(gpu),
            options.target_metric if target_metric is None else target_metric,
            options.higher_is_better,
            options.default_batch_size,
            options.max_epochs,
            filter={"dataset": workload, "network": options.network, "optimizer": options.optimizer},
            nearest_default=True,
        )
    )


def read(source: Source) -> Workload:
    """Returns a workload from its files: the batch sizes that have both recorded runs and measured power.

    Raises:
        ReplayError: a file cannot be read; with every fault of both files; or no batch size has both.
    """
    train, power = _File(source.runs, source, _TRAIN_COLUMNS), _File(source.power, source, _POWER_COLUMNS)
    runs, points = _runs(train, source), _points(power, source)
    columns = list(dict.fromkeys((*train.names, *power.names)))
    if unknown := [column for column in source.filter if column not in columns]:
        raise ReplayError(
            f"neither {source.runs} nor {source.power} has a column {', '.join(unknown)} to filter by; "
            f"there are {', '.join(columns)}"
        )
    if faults := [file.faults for file in (train, power) if file.faults]:
        raise ReplayError("; ".join(faults))
    sizes = [BatchSize(size, tuple(runs[size]), tuple(points[size])) for size in sorted(set(runs) & set(points))]
    highest = max((point.limit_watts_per_gpu for each in points.values() for point in each), default=0.0)
    default = _default(source, [each.size for each in sizes])
    return validated(
        Workload(
            source.name,
            source.gpu,
            tuple(sizes),
            default,
            source.target_metric,
            source.higher_is_better,
            source.max_epochs,
            highest if source.max_power_watts is None else source.max_power_watts,
            unmeasured_default=None if default == source.default_batch_size else source.default_batch_size,
        )
    )


def _default(source: Source, sizes: Sequence[int]) -> int:
    wanted = source.default_batch_size
    if not source.nearest_default or not sizes:
        return wanted
    return max((size for size in sizes if size <= wanted), default=min(sizes))


class _LineError(Exception):
    """A fault of a line."""


class _Row:
    """A line: its number in the file, and its fields by the columns' own names.

    Args:
        line: The number.
        fields: By the names in the file.
        columns: What a column is called in the file, where it has another name.
    """

    def __init__(self, line: int, fields: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self.line = line
        self._fields = fields
        self._columns = columns

    def column(self, name: str) -> str:
        """Returns the name of a column in the file."""
        return self._columns.get(name, name)

    def text(self, name: str) -> str:
        """Returns a field as it is written."""
        return self._fields[self.column(name)]

    def whole(self, name: str) -> int:
        """Returns a whole number above 0."""
        return int(self._number(name, "a whole number above 0", lambda value: value > 0 and value == int(value)))

    def positive(self, name: str) -> float:
        """Returns a number above 0."""
        return self._number(name, "a number above 0", lambda value: value > 0)

    def finite(self, name: str) -> float:
        """Returns a number."""
        return self._number(name, "a number", lambda _: True)

    def _number(self, name: str, kind: str, holds: Callable[[float], bool]) -> float:
        text = self.text(name)
        value = _number(text)
        if value is None or not math.isfinite(value) or not holds(value):
            raise _LineError(f"{self.column(name)} is {text!r}, not {kind}")
        return value


class _Run(NamedTuple):
    """A line of the file of recorded runs."""

    size: int
    run: str
    metric: float
    epoch: int | None


def _runs(file: _File, source: Source) -> dict[int, list[RecordedRun]]:
    """Returns the recorded runs by batch size; a run without a line for the target never reached it."""
    reached: dict[int, dict[str, int | None]] = defaultdict(dict)
    first: dict[tuple[int, str, float], int] = {}
    for line, (size, run, metric, epoch) in file.parsed(_run):
        if (before := first.setdefault((size, run, metric), line)) != line:
            file.fault(line, f"batch size {size}, run {run} and target {metric:g} are in line {before} already; {_ONE}")
        reached[size].setdefault(run, None)
        if metric == source.target_metric:
            reached[size][run] = epoch
    targets = {metric for _, _, metric in first}
    if targets and source.target_metric not in targets and not file.faults:
        nearest = sorted(targets, key=lambda target: abs(target - source.target_metric))[:_SHOWN]
        known = ", ".join(f"{target:g}" for target in sorted(nearest))
        raise ReplayError(f"{source.runs}: no line has the target {source.target_metric:g}; there are {known}")
    return {size: [RecordedRun(epoch) for _, epoch in sorted(by_run.items())] for size, by_run in reached.items()}


def _run(row: _Row) -> _Run:
    epoch = None if row.text("target_epoch").lower() in _NEVER else row.whole("target_epoch")
    return _Run(row.whole("batch_size"), row.text("run"), row.finite("target_metric"), epoch)


def _points(file: _File, source: Source) -> dict[int, list[PowerPoint]]:
    """Returns the measured power by batch size, by ascending limit."""
    points: dict[int, list[PowerPoint]] = defaultdict(list)
    first: dict[tuple[int, float], int] = {}
    highest = math.inf if source.max_power_watts is None else source.max_power_watts
    for line, (size, point) in file.parsed(_point):
        limit = point.limit_watts_per_gpu
        if (before := first.setdefault((size, limit), line)) != line:
            file.fault(line, f"batch size {size} at {limit:g} W is in line {before} already; {_ONE}")
        if limit > highest:
            file.fault(line, f"{file.column('power_limit')} is {limit:g}, above max_power_watts, which is {highest:g}")
        points[size].append(point)
    return {size: sorted(each, key=lambda point: point.limit_watts_per_gpu) for size, each in points.items()}


def _point(row: _Row) -> tuple[int, PowerPoint]:
    point = PowerPoint(row.positive("power_limit"), row.positive("time_per_epoch"), row.positive("average_power"))
    if point.average_watts > _MOST_OVER_LIMIT * point.limit_watts_per_gpu:
        over = f"{_MOST_OVER_LIMIT - 1:.0%}"
        limit = f"{row.column('power_limit')}, {point.limit_watts_per_gpu:g}"
        raise _LineError(
            f"{row.column('average_power')} is {point.average_watts:g}, more than {over} above its {limit}; "
            "both are in watts"
        )
    return row.whole("batch_size"), point


class _File:
    """A CSV file of a workload.

    Args:
        path: The file.
        source: The workload.
        columns: The columns that it must have, under their own names.
    """

    def __init__(self, path: Path, source: Source, columns: Sequence[str]) -> None:
        self.names: Sequence[str] = ()
        self._path = path
        self._source = source
        self._columns = columns
        self._faults: list[str] = []

    @property
    def faults(self) -> str:
        """The file's faults; empty if there are none."""
        more = len(self._faults) - _SHOWN
        shown = [*self._faults[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        return f"{self._path}, {'; '.join(shown)}" if shown else ""

    def fault(self, line: int, text: str) -> None:
        """Notes what is wrong with a line."""
        self._faults.append(f"line {line}: {text}")

    def column(self, name: str) -> str:
        """Returns the name of a column in the file."""
        return self._source.columns.get(name, name)

    def parsed(self, parse: Callable[[_Row], T]) -> Iterator[tuple[int, T]]:
        """Yields the workload's lines without a fault, with their numbers."""
        for row in self._rows():
            try:
                found = parse(row)
            except _LineError as fault:  # noqa: PERF203 - all faulty lines are found
                self.fault(row.line, str(fault))
            else:
                yield row.line, found

    def _rows(self) -> Iterator[_Row]:
        """Yields the workload's lines."""
        try:
            file = CsvFile(self._path)
            rows = file.rows()
            self.names = next(rows, CsvRow(1, ())).cells
            if not self.names:
                raise ReplayError(
                    f"{self._path} is empty; its columns are {', '.join(map(self.column, self._columns))}"
                )
            if missing := [name for name in map(self.column, self._columns) if name not in self.names]:
                single = f" (its first line is a single column; {SEPARATED})" if len(self.names) == 1 else ""
                raise ReplayError(
                    f"{self._path} has no column {', '.join(sorted(missing))}{single}; {self._source.remedy}"
                )
            for line, fields in rows:
                # Spreadsheets write empty cells behind the last column.
                if len(fields) < len(self.names) or any(fields[len(self.names) :]):
                    found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
                    how = f", which are separated by {file.delimiter!r}" if len(fields) == 1 else ""
                    self.fault(line, f"has {found}, and the header has {len(self.names)}{how}")
                elif self._is_chosen(by_name := dict(zip(self.names, fields, strict=False))):
                    yield _Row(line, by_name, self._source.columns)
        except FileNotFoundError as error:
            raise ReplayError(f"{self._path} is missing; {self._source.remedy}") from error
        except FileError as error:
            raise ReplayError(str(error)) from error

    def _is_chosen(self, fields: Mapping[str, str]) -> bool:
        return all(_is(fields[name], value) for name, value in self._source.filter.items() if name in fields)


def _is(text: str, value: str | float) -> bool:
    return text == value if isinstance(value, str) else _number(text) == value


def _number(text: str) -> float | None:
    try:
        return number_in(text)
    except ValueError:
        return None
