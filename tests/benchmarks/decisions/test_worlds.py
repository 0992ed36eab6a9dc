"""The synthetic worlds of the table of decisions."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest
from wattwise_replay.workload import Workload, cheapest, epoch_cost

from benchmarks.decisions.cases import NOWHERE, Case, Folders, measured_settings, workload_files
from benchmarks.decisions.record_demo import Run, save
from benchmarks.decisions.scores import model_cost
from benchmarks.decisions.worlds import CHANGING, UNLUCKY
from examples.digits.__main__ import BATCH_SIZES, DEFAULT
from examples.digits.job import job_spec


def _best(workload: Workload) -> int:
    return min(workload.sizes, key=lambda size: model_cost(workload, size, 0.5))


def _epochs(workload: Workload, size: int) -> list[float]:
    return [math.inf if run.target_epoch is None else run.target_epoch for run in workload.of(size).runs]


def test_unlucky_worlds_stay_the_same() -> None:
    """Published figures rest on their runs: the sums of the epochs are those of the first evaluation."""
    assert len(UNLUCKY) == 24
    sums = {}
    for name in ("left-5-x3", "valley-10-never", "steep-20-x3", "left-t3", "steep-clean"):
        made = Case(name).load()
        sums[name] = sum(epoch for size in made.sizes for epoch in _epochs(made, size) if epoch <= made.max_epochs)
    assert sums == {
        "left-5-x3": 33571,
        "valley-10-never": 96691,
        "steep-20-x3": 311937,
        "left-t3": 31406,
        "steep-clean": 297407,
    }


@pytest.mark.parametrize(("rate", "factor"), [(5, 3.0), (20, math.inf)])
def test_a_share_of_runs_is_unlucky(rate: int, factor: float) -> None:
    """About as many runs as stated take three times the epochs or never reach the target."""
    made = Case(f"valley-{rate}-{'never' if factor == math.inf else 'x3'}").load()
    usual = Case("valley-clean").load()
    long = [each for size in made.sizes for each in _epochs(made, size) if each > 2 * median(_epochs(usual, size))]
    assert 100 * len(long) / (200 * len(made.sizes)) == pytest.approx(rate, rel=0.15)
    assert (max(long) == math.inf) == (factor == math.inf)


@pytest.mark.parametrize("name", CHANGING)
def test_a_world_changes_once_or_slowly(name: str) -> None:
    """All have 100 recurrences; the best batch size or its cost is another one at the end."""
    made = Case(name).load()
    assert made.horizon == 100
    assert [change.at for change in made.changes] == ([50] if "slowly" not in name else list(range(5, 100, 5)))
    last = made.at(99)
    before, after = _best(made), _best(last)
    assert before != after or model_cost(made, before, 0.5) != model_cost(last, after, 0.5)


def test_the_cost_of_an_epoch_doubles() -> None:
    """The cost of an epoch changes at all batch sizes, or below 200 alone; the epochs stay the same."""
    for name, sizes in (("epoch-cost-doubles", range(5000)), ("epoch-cost-of-small-doubles", range(200))):
        made = Case(name).load()
        later = made.at(50)
        for before, after in zip(made.batch_sizes, later.batch_sizes, strict=True):
            costs = [epoch_cost(cheapest(each.points, 0.5, 250.0), 0.5, 250.0) for each in (before, after)]
            assert costs[1] == pytest.approx(costs[0] * (2 if before.size in sizes else 1))
            assert before.runs == after.runs


def test_small_batches_begin_to_diverge() -> None:
    """Below 200, no run reaches the target from the 50th recurrence on."""
    later = Case("small-begin-to-diverge").load().at(50)
    assert [size for size in later.sizes if min(_epochs(later, size)) == math.inf] == [8, 16, 32, 64, 128]


def test_a_case_may_be_mirrored_later() -> None:
    """The measurements are reversed from its recurrence on."""
    made = Case("1", mirrored_at=3).load()
    assert made.at(2).batch_sizes == Case("1").load().batch_sizes
    assert made.at(3) == Case("1").load().mirrored()


def test_the_demo_is_recorded_as_it_runs() -> None:
    """The batch sizes, the default, the target and the epochs of the demo's job, with 32 runs of each batch size."""
    made = Case("demo").load()
    job = job_spec("demo", list(BATCH_SIZES), DEFAULT)
    assert (made.sizes, made.default_batch_size) == (list(job.batch_sizes), job.default_batch_size)
    assert (made.target_metric, made.higher_is_better) == (job.target_metric, job.higher_is_better)
    assert (made.max_epochs, job.beta_knob) == (job.max_epochs, 3.0)
    assert {len(each.runs) for each in made.batch_sizes} == {32}


def test_recorded_runs_are_a_workload_file(tmp_path: Path) -> None:
    """A run that missed the target has no epoch, and an epoch takes the median time."""
    runs = [Run(size, seed, None if seed else 3, [0.5, 0.1, 0.2]) for seed in (1, 0) for size in BATCH_SIZES]
    save(tmp_path / "new" / "demo.toml", runs)
    folders = Folders(None, tmp_path)
    assert workload_files(tmp_path) == ["new/demo.toml"]
    made = Case("new/demo.toml").load(folders)
    assert made.sizes == list(BATCH_SIZES)
    assert [run.target_epoch for run in made.of(DEFAULT).runs] == [3, None]
    assert [point.epoch_seconds for point in made.of(DEFAULT).points] == [0.2]


def test_settings_are_those_that_were_measured(folder: Path) -> None:
    """One of the six workloads has recorded runs and power on the only GPU."""
    assert measured_settings(folder) == ["squad/t4"]
    assert measured_settings(folder / "none") == []


def test_a_case_has_its_prior(folder: Path) -> None:
    """The workload on another GPU with the same target, or its measurements reversed."""
    (folder / "summary_power_v1.csv").write_text((folder / "summary_power_t4.csv").read_text().replace(",100,", ",80,"))
    case = Case("squad/t4", target=83.5, prior="v1")
    prior = case.load_prior(Folders(folder))
    assert prior is not None
    assert (prior.gpu, prior.target_metric) == ("v1", 83.5)
    mirrored = Case("1", prior="mirrored").load_prior()
    assert mirrored == Case("1").load().mirrored() != Case("1").load()
    assert Case("squad/t4").load_prior(NOWHERE) is None
