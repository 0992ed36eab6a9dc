"""Measured traces of real GPUs, as published with the NSDI 2023 paper (You, Chung, Chowdhury, "Zeus"; Apache-2.0).

A folder holds `summary_train.csv` (dataset, network, batch_size, optimizer, learning_rate, run, target_metric,
target_epoch: a line for each run and target; "nan", or no line, where the run never reached it), and for each GPU
`summary_power_<gpu>.csv` (dataset, network, batch_size, optimizer, power_limit in W, time_per_epoch in s, average_power
in W).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import BatchSize, PowerPoint, RecordedRun, Workload, validated

_TRAIN = "summary_train.csv"
_POWER = "summary_power_{}.csv"
_TRAIN_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "run", "target_metric", "target_epoch")
_POWER_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")

_NEVER = "nan"

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
    if target_metric is not None:
        options = options._replace(target_metric=target_metric)
    runs = _runs(folder / _TRAIN, workload, options)
    points = _points(folder / _POWER.format(gpu), workload, options)
    sizes = [BatchSize(size, tuple(runs[size]), tuple(points[size])) for size in sorted(set(runs) & set(points))]
    return validated(
        Workload(
            workload,
            gpu,
            tuple(sizes),
            options.default_batch_size,
            options.target_metric,
            options.higher_is_better,
            options.max_epochs,
            max((point.power_limit_watts for each in points.values() for point in each), default=0.0),
        )
    )


def _runs(path: Path, workload: str, options: TraceOptions) -> dict[int, list[RecordedRun]]:
    """The recorded runs by batch size; a run without a line for the target never reached it."""
    reached: dict[int, dict[str, int | None]] = defaultdict(dict)
    for line, row in _rows(path, _TRAIN_COLUMNS, workload, options):
        size, run = _number(path, line, row, "batch_size"), row["run"]
        reached[int(size)].setdefault(run, None)
        reaches = row["target_epoch"].lower() != _NEVER
        if reaches and _number(path, line, row, "target_metric") == options.target_metric:
            reached[int(size)][run] = int(_number(path, line, row, "target_epoch"))
    return {size: [RecordedRun(epoch) for _, epoch in sorted(by_run.items())] for size, by_run in reached.items()}


def _points(path: Path, workload: str, options: TraceOptions) -> dict[int, list[PowerPoint]]:
    points: dict[int, list[PowerPoint]] = defaultdict(list)
    for line, row in _rows(path, _POWER_COLUMNS, workload, options):
        numbers = (_number(path, line, row, name) for name in ("power_limit", "time_per_epoch", "average_power"))
        points[int(_number(path, line, row, "batch_size"))].append(PowerPoint(*numbers))
    return {size: sorted(each, key=lambda point: point.power_limit_watts) for size, each in points.items()}


def _rows(path: Path, columns: Sequence[str], workload: str, options: TraceOptions) -> Iterator[tuple[int, _Row]]:
    """A workload's lines of a file, with their numbers."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := set(columns) - set(reader.fieldnames or ()):
                raise ReplayError(f"{path} has no column {', '.join(sorted(missing))}")
            for row in reader:
                if (row["dataset"], row["network"], row["optimizer"]) == (
                    workload,
                    options.network,
                    options.optimizer,
                ):
                    yield reader.line_num, row
    except OSError as error:
        raise ReplayError(f"cannot read {path}: {error.strerror}; --traces is the folder that contains it") from error


def _number(path: Path, line: int, row: _Row, name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise ReplayError(f"{path}, line {line}: {name} is {row[name]!r}, not a number above 0")
    return value
