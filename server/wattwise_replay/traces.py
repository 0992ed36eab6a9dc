"""Measured traces of real GPUs, as published with the NSDI 2023 paper (You, Chung, Chowdhury, "Zeus"; Apache-2.0).

A folder holds `summary_train.csv` (dataset, network, batch_size, optimizer, learning_rate, run, target_metric,
target_epoch: a line for each run and target; "nan", nothing or no line where the run never reached it), and for each
GPU `summary_power_<gpu>.csv` (dataset, network, batch_size, optimizer, power_limit in W, time_per_epoch in s,
average_power in W). Other files of this form are read too: `Source` says where they are.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import BatchSize, PowerPoint, RecordedRun, Workload, validated

_TRAIN = "summary_train.csv"
_POWER = "summary_power_{}.csv"
_TRAIN_COLUMNS = ("batch_size", "run", "target_metric", "target_epoch")
_POWER_COLUMNS = ("batch_size", "power_limit", "time_per_epoch", "average_power")
COLUMNS: Sequence[str] = tuple(dict.fromkeys(_TRAIN_COLUMNS + _POWER_COLUMNS))
"""The columns that are read, besides those of a filter."""

_NEVER = ("nan", "")

_Row = dict[str, str]


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


def gpus(folder: Path) -> Sequence[str]:
    """The GPUs in a folder of measurements."""
    prefix, suffix = _POWER.split("{}")
    return sorted(path.name[len(prefix) : -len(suffix)] for path in folder.glob(_POWER.format("*")))


def load(folder: Path, workload: str, gpu: str, target_metric: float | None = None) -> Workload:
    """A workload on a GPU: the batch sizes that have both recorded runs and measured power.

    Args:
        folder: The folder of traces.
        workload: One of `WORKLOADS`.
        gpu: One of `gpus(folder)`.
        target_metric: The metric to reach; None for the paper's.

    Raises:
        ReplayError: the folder, the workload or the GPU does not exist, or a file is invalid.
    """
    if workload not in WORKLOADS:
        raise ReplayError(f"unknown workload {workload!r}; use one of {', '.join(WORKLOADS)}")
    if gpu not in gpus(folder):
        known = f"there are {', '.join(gpus(folder))}" if gpus(folder) else f"there is no {_POWER.format('<gpu>')}"
        raise ReplayError(f"no measurements of GPU {gpu!r} in {folder}: {known}")
    options = WORKLOADS[workload]
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
        )
    )


def read(source: Source) -> Workload:
    """A workload from its files: the batch sizes that have both recorded runs and measured power.

    Raises:
        ReplayError: a file cannot be read or is invalid, or no batch size has both.
    """
    runs, run_columns = _runs(source)
    points, power_columns = _points(source)
    if unknown := [column for column in source.filter if column not in {*run_columns, *power_columns}]:
        raise ReplayError(
            f"neither {source.runs} nor {source.power} has a column {', '.join(unknown)} to filter by; "
            f"there are {', '.join(dict.fromkeys((*run_columns, *power_columns)))}"
        )
    sizes = [BatchSize(size, tuple(runs[size]), tuple(points[size])) for size in sorted(set(runs) & set(points))]
    highest = max((point.power_limit_watts for each in points.values() for point in each), default=0.0)
    return validated(
        Workload(
            source.name,
            source.gpu,
            tuple(sizes),
            source.default_batch_size,
            source.target_metric,
            source.higher_is_better,
            source.max_epochs,
            highest if source.max_power_watts is None else source.max_power_watts,
        )
    )


def _runs(source: Source) -> tuple[dict[int, list[RecordedRun]], Sequence[str]]:
    """The recorded runs by batch size; a run without a line for the target never reached it. And the file's columns."""
    file = _File(source.runs, source, _TRAIN_COLUMNS)
    reached: dict[int, dict[str, int | None]] = defaultdict(dict)
    for line, row in file.rows():
        size, run = file.number(line, row, "batch_size"), row[file.column("run")]
        reached[int(size)].setdefault(run, None)
        reaches = row[file.column("target_epoch")].lower() not in _NEVER
        if reaches and file.number(line, row, "target_metric") == source.target_metric:
            reached[int(size)][run] = int(file.number(line, row, "target_epoch"))
    runs = {size: [RecordedRun(epoch) for _, epoch in sorted(by_run.items())] for size, by_run in reached.items()}
    return runs, file.names


def _points(source: Source) -> tuple[dict[int, list[PowerPoint]], Sequence[str]]:
    """The measured power by batch size, by ascending limit, and the file's columns."""
    file = _File(source.power, source, _POWER_COLUMNS)
    points: dict[int, list[PowerPoint]] = defaultdict(list)
    for line, row in file.rows():
        numbers = (file.number(line, row, name) for name in ("power_limit", "time_per_epoch", "average_power"))
        points[int(file.number(line, row, "batch_size"))].append(PowerPoint(*numbers))
    by_limit = {size: sorted(each, key=lambda point: point.power_limit_watts) for size, each in points.items()}
    return by_limit, file.names


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

    def column(self, name: str) -> str:
        """What a column is called in the file."""
        return self._source.columns.get(name, name)

    def rows(self) -> Iterator[tuple[int, _Row]]:
        """The workload's lines, with their numbers."""
        try:
            with self._path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, restval="(nothing)")
                self.names = list(reader.fieldnames or ())
                if missing := [name for name in map(self.column, self._columns) if name not in self.names]:
                    raise ReplayError(f"{self._path} has no column {', '.join(sorted(missing))}; {self._source.remedy}")
                for row in reader:
                    if all(_is(row[name], value) for name, value in self._source.filter.items() if name in row):
                        yield reader.line_num, row
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a CSV file in UTF-8"
            raise ReplayError(f"cannot read {self._path}: {reason}; {self._source.remedy}") from error

    def number(self, line: int, row: _Row, name: str) -> float:
        """A number above 0."""
        text = row[self.column(name)]
        value = _number(text)
        if value is None or not 0 < value < float("inf"):
            raise ReplayError(f"{self._path}, line {line}: {self.column(name)} is {text!r}, not a number above 0")
        return value


def _is(text: str, value: str | float) -> bool:
    return text == value if isinstance(value, str) else _number(text) == value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
