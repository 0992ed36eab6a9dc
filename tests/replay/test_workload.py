"""Workloads: the cheapest power limit, traces in files, synthetic ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise_replay import traces
from wattwise_replay.errors import ReplayError
from wattwise_replay.synthetic import synthetic
from wattwise_replay.workload import Change, PowerPoint, RecordedRun, cheapest

from tests.replay.conftest import TRAIN
from tests.replay.worlds import POINTS, workload


def test_a_limit_is_cheapest_by_energy_and_time_together() -> None:
    """Energy alone prefers the lower limit, time alone the higher; between them the formula of the paper decides."""
    low, high = POINTS
    assert cheapest(POINTS, 1.0, 200.0) == low
    assert cheapest(POINTS, 0.0, 200.0) == high
    # (0.5 · 50 + 0.5 · 200) · 2 = 250 against (0.5 · 150 + 0.5 · 200) · 1 = 175.
    assert cheapest(POINTS, 0.5, 200.0) == high


def test_of_equal_limits_the_lower_one_is_taken() -> None:
    """Two limits at which an epoch costs the same: the tie goes to the lower."""
    equal = (PowerPoint(200.0, 1.0, 100.0), PowerPoint(100.0, 1.0, 100.0))
    assert cheapest(equal, 0.5, 200.0).limit_watts_per_gpu == 100.0


def test_the_horizon_is_the_papers() -> None:
    """2 · |batch sizes| · |power limits|."""
    assert workload(1, 2, 3).horizon == 12


def test_traces_are_read_by_workload(folder: Path) -> None:
    """Batch sizes with runs and power count; a run without a line for the target, or with "nan", never reached it."""
    read = traces.load(folder, "squad", "t4")
    assert read.sizes == [32]
    assert read.of(32).runs == (RecordedRun(3), RecordedRun(None), RecordedRun(None))
    assert [point.limit_watts_per_gpu for point in read.of(32).points] == [100, 250]
    assert (read.max_power_watts, read.default_batch_size, read.max_epochs) == (250, 32, 6)
    assert read.unmeasured_default is None


@pytest.mark.parametrize(
    ("workload_name", "gpu", "message"),
    [
        ("mnist", "t4", "'mnist'.* cifar100, imagenet"),
        ("squad", "h100", "no measurements of GPU 'h100' in .*: there are t4"),
        ("imagenet", "t4", "no batch size of imagenet/t4 has both recorded runs and measured power"),
    ],
)
def test_missing_workload_or_gpu_is_named(folder: Path, workload_name: str, gpu: str, message: str) -> None:
    """An unknown workload or GPU is refused with the known ones."""
    with pytest.raises(ReplayError, match=message):
        traces.load(folder, workload_name, gpu)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("84.0,3\n", "84.0,soon\n", "line 3: target_epoch is 'soon', not a whole number above 0"),
        ("target_epoch\n", "epoch\n", "has no column target_epoch"),
    ],
)
def test_invalid_file_is_named_with_its_line(folder: Path, old: str, new: str, message: str) -> None:
    """Invalid traces are refused with file and line."""
    path = folder / "summary_train.csv"
    path.write_text(TRAIN.replace(old, new))
    with pytest.raises(ReplayError, match=message):
        traces.load(folder, "squad", "t4")


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    """The error of a folder without traces names the expected file."""
    with pytest.raises(ReplayError, match=r"there is no summary_power_<gpu>\.csv"):
        traces.load(tmp_path, "squad", "t4")


def test_mirrored_measurements_belong_to_other_batch_sizes() -> None:
    """Mirroring gives the largest batch size the measurements of the smallest."""
    mirrored = workload(1, 2, None).mirrored()
    assert mirrored.sizes == [8, 16, 32]
    assert [each.runs[0].target_epoch for each in mirrored.batch_sizes] == [None, 2, 1]


def test_a_workload_changes_at_its_recurrences() -> None:
    """Each change holds from its recurrence to the next one; a replay that ends before does not see it."""
    first, second, third = workload(1), workload(2), workload(3)
    made = replace(first, changes=(Change(2, second), Change(5, third)))
    assert [made.at(recurrence).of(8).runs[0].target_epoch for recurrence in (0, 1, 2, 4, 5, 9)] == [1, 1, 2, 2, 3, 3]
    assert list(made.stages(7)) == [(slice(0, 2), made), (slice(2, 5), second), (slice(5, 7), third)]
    assert list(made.stages(2)) == [(slice(0, 2), made)]


def test_a_default_without_measurements_is_replaced(folder: Path) -> None:
    """By the largest measured batch size below it, or else by the smallest; the workload says which one is missing."""
    train, power = folder / "summary_train.csv", folder / "summary_power_t4.csv"
    lines = power.read_text()
    smaller = TRAIN.replace(",32,", ",16,").replace(",64,", ",24,")
    train.write_text(TRAIN + smaller.partition("\n")[2])
    power.write_text(lines.replace(",32,", ",24,"))
    made = traces.load(folder, "squad", "t4")
    assert (made.sizes, made.default_batch_size, made.unmeasured_default) == ([16, 24], 24, 32)
    power.write_text(lines.replace(",32,", ",64,").replace(",16,", ",128,"))
    made = traces.load(folder, "squad", "t4")
    assert (made.sizes, made.default_batch_size, made.unmeasured_default) == ([64], 64, 32)


@given(st.integers(0, 10_000), st.integers(3, 12))
def test_a_synthetic_workload_has_one_cheapest_batch_size_and_ends_that_fail(seed: int, sizes: int) -> None:
    """Without noise, the cost over the batch size falls, then rises; the smallest and the largest never converge."""
    made = synthetic(seed, sizes, noise=0.0)
    first, *_, last = made.batch_sizes
    assert {run.target_epoch for run in (*first.runs, *last.runs)} == {None}
    costs = [_cost(made.of(size).points, made.of(size).runs) for size in made.sizes[1:-1]]
    best = costs.index(min(costs))
    assert costs[: best + 1] == sorted(costs[: best + 1], reverse=True)
    assert costs[best:] == sorted(costs[best:])


def _cost(points: Sequence[PowerPoint], runs: Sequence[RecordedRun]) -> float:
    point = cheapest(points, 0.5, 250.0)
    epochs = [run.target_epoch for run in runs if run.target_epoch is not None]
    assert epochs, "a batch size between the ends reaches the target"
    return (0.5 * point.average_watts + 0.5 * 250.0) * point.epoch_seconds * sum(epochs)
