"""Records the runs of the demo's job: trains every batch size with many seeds, and writes what a replay of it needs.

    python -m benchmarks.decisions.record_demo

The workload file and its two CSV files are in `demo/` beside this module. A run is trained as the demo does, to the
target or to its last epoch; the time of an epoch is processor time, as that of the demo's monitor.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.decisions.cases import RECORDED
from examples.digits.__main__ import BATCH_SIZES, DEFAULT
from examples.digits.job import job_spec
from examples.digits.monitor import ESTIMATED_WATTS

_JOB = job_spec("recorded", list(BATCH_SIZES), DEFAULT)


class Run(NamedTuple):
    """A run: its batch size and seed, the epoch that reached the target, and the processor seconds of each epoch."""

    batch_size: int
    seed: int
    target_epoch: int | None
    seconds: Sequence[float]


def main() -> int:
    """Trains and writes the three files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions.record_demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=32, help="runs of each batch size (default: %(default)s)")
    args = parser.parse_args()
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - a second that only training needs

    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    # Side by side, so that a slower minute of the machine affects all batch sizes.
    save(RECORDED, [trained(size, seed) for seed in range(args.seeds) for size in BATCH_SIZES])
    return 0


def trained(batch_size: int, seed: int) -> Run:
    """Trains once."""
    from examples.digits.train import losses, split  # noqa: PLC0415 - as above

    seconds: list[float] = []
    epochs = losses(split(seed), batch_size, seed)
    began = time.process_time()
    for epoch, loss in enumerate(islice(epochs, _JOB.max_epochs), 1):
        now = time.process_time()
        seconds.append(now - began)
        began = now
        if loss <= _JOB.target_metric:
            print(f"batch size {batch_size}, seed {seed}: {epoch} epochs", flush=True)
            return Run(batch_size, seed, epoch, seconds)
    print(f"batch size {batch_size}, seed {seed}: target missed", flush=True)
    return Run(batch_size, seed, None, seconds)


def save(file: Path, runs: Sequence[Run]) -> None:
    """Writes a workload file and its two CSV files beside it."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(_workload(), encoding="utf-8")
    _write(file.with_name("runs.csv"), ("batch_size", "run", "target_metric", "target_epoch"), _runs(sorted(runs)))
    columns = ("batch_size", "power_limit", "time_per_epoch", "average_power")
    _write(file.with_name("power.csv"), columns, _epochs(runs))


def _workload() -> str:
    return f"""# Written by python -m benchmarks.decisions.record_demo.
[workload]
name = "demo"
gpu = "processor"
runs = "runs.csv"
power = "power.csv"
target_metric = {_JOB.target_metric}
higher_is_better = {str(_JOB.higher_is_better).lower()}
default_batch_size = {DEFAULT}
max_epochs = {_JOB.max_epochs}
max_power_watts = {ESTIMATED_WATTS:g}
"""


def _runs(runs: Sequence[Run]) -> Iterator[Sequence[object]]:
    for run in runs:
        yield run.batch_size, run.seed, _JOB.target_metric, "" if run.target_epoch is None else run.target_epoch


def _epochs(runs: Sequence[Run]) -> Iterator[Sequence[object]]:
    """Yields the median time of an epoch, which a busy moment of the machine does not change."""
    for size in BATCH_SIZES:
        seconds = median(each for run in runs if run.batch_size == size for each in run.seconds)
        yield size, f"{ESTIMATED_WATTS:g}", f"{seconds:.5f}", f"{ESTIMATED_WATTS:g}"


def _write(path: Path, columns: Sequence[str], lines: Iterator[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(lines)


if __name__ == "__main__":
    sys.exit(main())
