"""The recurrences of a replay, and the baselines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from wattwise_replay.compare import AT_BEST_LIMIT, DEFAULT, GRID, HINDSIGHT, compare
from wattwise_replay.engines import Dispatch, Fixed, GridSearch, TrialEnd
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import play
from wattwise_replay.statistics import mean_of, quantile
from wattwise_replay.workload import BatchSize, RecordedRun
from wattwise_replay.world import MAX_TRIES, TrialCourse, World, overlaps

from tests.replay.worlds import POINTS, job, workload, world


def test_a_recurrence_is_tried_until_the_target_is_reached() -> None:
    """A recurrence costs as much as all its trials; only the last of them reached the target."""
    half = workload(3)
    half = replace(half, batch_sizes=(BatchSize(8, (RecordedRun(3), RecordedRun(None)), POINTS),))
    ledger = play(Fixed(half, 8), World(half, 1.0), seed=3, recurrences=30)
    for recurrence in range(30):
        tries = [trial for trial in ledger.trials if trial.recurrence == recurrence]
        assert [trial.target_reached for trial in tries] == [False] * (len(tries) - 1) + [True]
        assert ledger.costs[recurrence] == 100.0 * (10 * (len(tries) - 1) + 3)
    assert {trial.attempt for trial in ledger.trials} > {0, 1}


def test_a_recurrence_that_never_reaches_its_target_is_given_up() -> None:
    """After twenty trials the next recurrence begins."""
    ledger = play(Fixed(workload(None), 8), world(None), seed=0, recurrences=2)
    assert [trial.recurrence for trial in ledger.trials] == [0] * MAX_TRIES + [1] * MAX_TRIES


def test_overlapping_recurrences_are_dispatched_before_any_of_them_ends() -> None:
    """Overlapping recurrences dispatch their first trials together; further trials wait for the end of those."""
    seed, recurrences = 1, 12
    joins = overlaps(seed, recurrences, 0.5)
    calls: list[str] = []

    class Telling(Fixed):
        def dispatch(self) -> Dispatch:
            calls.append("dispatch")
            return super().dispatch()

        def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
            calls.append("run")
            return super().run(trial, epochs)

    play(Telling(workload(1), 8), world(1), seed, recurrences, overlap=0.5)
    starts = [place for place in range(recurrences) if place == 0 or not joins[place]]
    groups = [range(start, end) for start, end in pairwise((*starts, recurrences))]
    assert {len(group) for group in groups} > {1}
    assert calls == [word for group in groups for word in ["dispatch"] * len(group) + ["run"] * len(group)]


def test_the_grid_tries_each_batch_size_once_and_keeps_the_cheapest() -> None:
    """Three batch sizes, of which the middle one is cheapest: it is the fourth choice and every one after."""
    ledger = play(GridSearch(workload(5, 2, None), 1.0), world(5, 2, None), seed=0, recurrences=6)
    assert [trial.batch_size for trial in ledger.trials] == [8, 16, 32, 16, 16, 16, 16]


def test_baselines_have_the_expected_costs() -> None:
    """The default costs 4 epochs of 150 J at the highest limit and of 100 J at the best; hindsight 2 of 100 J."""
    found = compare(
        world(4, 2),
        lambda its, policy, seed: InProcess(job(its.workload, policy, eta=1.0, seed=seed)),
        ["gts"],
        seeds=2,
        recurrences=10,
    )
    assert found.totals(DEFAULT, "costs").tolist() == [6000.0, 6000.0]
    assert found.totals(AT_BEST_LIMIT, "costs").tolist() == [4000.0, 4000.0]
    assert found.totals(HINDSIGHT, "costs").tolist() == [2000.0, 2000.0]
    assert found.best_sizes == [16]
    assert found.totals(GRID, "costs").tolist() == [2200.0, 2200.0]
    assert found.regret(GRID)[0].tolist() == [200.0] * 10


def test_after_a_drift_another_batch_size_is_the_best() -> None:
    """The best in hindsight is chosen before and after the drift separately."""
    found = compare(
        world(1, 5, drift_at=4),
        lambda its, policy, seed: InProcess(job(its.workload, policy, seed=seed)),
        ["gts"],
        seeds=1,
        recurrences=6,
    )
    assert found.best_sizes == [8, 16]
    assert found.totals(HINDSIGHT, "costs").tolist() == [600.0]


@pytest.mark.parametrize(
    ("degrees", "known"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093), (99, 1.984)]
)
def test_intervals_are_students(degrees: int, known: float) -> None:
    """The quantiles agree with a published table."""
    assert quantile(degrees) == pytest.approx(known, abs=5e-3)


def test_a_mean_has_the_interval_of_its_values() -> None:
    """1, 2, 3: standard error 1/√3, two degrees of freedom."""
    assert mean_of([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.303 / 3**0.5), abs=1e-3)
