"""Bounds, and the cheapest cost that they follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wattwise.rules import EndReason
from wattwise_server.cost import cost as cost_of
from wattwise_server.cost import with_unit
from wattwise_server.domain import PruningGtsRole
from wattwise_server.policy.bounds import missed_floor

from tests.server.policy.simulated import SimulatedJob, spec


def bounds(job: SimulatedJob) -> list[float | None]:
    """The bound of a trial of each batch size."""
    return [job.policy.bound(job.spec, job.search, size) for size in job.spec.batch_sizes]


def bandit(**fields: object) -> SimulatedJob:
    """A job of gts with two batch sizes."""
    return SimulatedJob(spec(policy="gts", batch_sizes=(8, 16), **fields))


def mean_cost(job: SimulatedJob, batch_size: int) -> float:
    """The mean cost of the trials of a batch size, where a miss costs at least the floor."""
    return job.search.arm(batch_size).costs(missed_floor(job.spec, job.search.min_cost)).mean


def test_bound_doubles_from_the_second_stop_in_a_row_until_a_trial_converges() -> None:
    """Stops at the bound in a row double it; a trial in between that ran to its last epoch does not matter."""
    job, seen = bandit(), []
    job.decide(job.dispatch(8), 100)
    for _ in range(4):
        seen.append(bounds(job)[1])
        job.decide(job.dispatch(16), 900, EndReason.COST_BOUND, converged=False)
        job.decide(job.dispatch(8), 10, EndReason.MAX_EPOCHS, converged=False)
    assert seen == [200, 200, 400, 800]
    job.decide(job.dispatch(8), 120)
    assert bounds(job) == [None, 200]


def test_stops_of_the_pruning_stage_do_not_raise_the_bound() -> None:
    """Only trials of the bandit count."""
    job = bandit()
    job.decide(job.dispatch(8), 100)
    for kind in (PruningGtsRole.EXPLORATION, PruningGtsRole.CONCURRENT, PruningGtsRole.EXPLORATION):
        job.decide(job.dispatch(16, kind), 900, EndReason.COST_BOUND, converged=False)
    assert bounds(job)[1] == 200


def test_no_bound_without_early_stopping_or_a_converged_trial() -> None:
    """Before the first converged trial, and with early stopping off, no trial is bounded."""
    assert bounds(bandit()) == [None, None]
    job = bandit(beta_knob=None)
    job.decide(job.dispatch(8), 100)
    assert bounds(job) == [None, None]


def test_cheapest_cost_follows_the_window() -> None:
    """With a window the cheapest is among the observations that count; its holder stays while its own is there."""
    job = bandit(window_size=2)
    job.decide(job.dispatch(8), 50)
    job.decide(job.dispatch(16), 60)
    job.decide(job.dispatch(8), 70)
    assert (job.search.min_cost, job.search.min_cost_batch_size) == (50, 8)
    job.decide(job.dispatch(8), 80)
    assert (job.search.min_cost, job.search.min_cost_batch_size) == (60, 16)
    assert missed_floor(job.spec, job.search.min_cost) == 120
    for _ in range(2):
        job.decide(job.dispatch(16), 10, converged=False)
    assert (job.search.min_cost, job.search.min_cost_batch_size) == (70, 8)
    for _ in range(2):
        job.decide(job.dispatch(8), 10, converged=False)
    assert (job.search.min_cost, job.search.min_cost_batch_size) == (None, None)
    assert bounds(job) == [None, None]
    assert mean_cost(job, 8) == 10


def test_trial_that_cost_nothing_is_not_the_cheapest() -> None:
    """It converges and is an observation, but bounds nothing."""
    job = bandit()
    job.decide(job.dispatch(8), 0)
    assert (job.search.min_cost, job.search.arm(8).num_converged) == (None, 1)
    job.decide(job.dispatch(16), 30)
    assert (job.search.min_cost, bounds(job)) == (30, [60, None])


@pytest.mark.parametrize("policy", ["pruning_gts", "gts"])
def test_every_launch_delivers_once_the_cheapest_batch_size_does_not_fit(policy: str) -> None:
    """The best known batch size is one that may be chosen: its trials are never stopped for what cannot run."""
    job = SimulatedJob(spec(policy=policy, batch_sizes=(16, 32), num_pruning_rounds=1))
    for cost, size in ((500, 16), (100, 32)):
        job.decide(job.dispatch(size, PruningGtsRole.CONCURRENT), cost)
    for _ in range(2):
        job.fail(job.dispatch(32, PruningGtsRole.CONCURRENT), EndReason.OUT_OF_MEMORY)
    ended = [job.run(job.next(), 50).end_reason for _ in range(20)]
    assert set(ended) == {EndReason.TARGET_REACHED}


def test_pruned_batch_size_is_not_the_best_known() -> None:
    """A late success of a pruned batch size is an observation, but no bound of those that survive."""
    job = SimulatedJob(spec(batch_sizes=(16, 32), num_pruning_rounds=1))
    late = job.dispatch(16, PruningGtsRole.CONCURRENT)
    job.decide(job.next(), 10, converged=False)
    job.decide(job.next(), 300)
    job.decide(late, 100)
    assert (job.search.min_cost, job.search.min_cost_batch_size) == (300, 32)
    assert [job.run(job.next(), 30).converged for _ in range(3)] == [True] * 3


def test_batch_size_that_keeps_failing_is_best_known_only_if_no_other_has_converged() -> None:
    """Three failures in a row end it, a decided trial brings it back, and misses count by the cost that is known."""
    job = bandit()
    job.decide(job.dispatch(8), 100)
    for _ in range(3):
        job.fail(job.dispatch(8), EndReason.ERROR)
    assert (job.search.min_cost, bounds(job)) == (100, [None, 200])
    job.decide(job.dispatch(16), 150, converged=False)
    assert mean_cost(job, 16) == 200
    job.decide(job.dispatch(16), 300)
    assert (job.search.min_cost, job.search.min_cost_batch_size, bounds(job)) == (300, 16, [600, None])
    assert mean_cost(job, 16) == (300 + 600) / 2
    job.decide(job.dispatch(8), 110)
    assert (job.search.min_cost, job.search.min_cost_batch_size, bounds(job)) == (100, 8, [None, 200])
    assert mean_cost(job, 16) == (300 + 200) / 2


@pytest.mark.parametrize(
    ("joules", "deviation", "text"),
    [
        (0.0, None, "0 J"),
        (0.51234, None, "0.512 J"),
        (999.4, None, "999 J"),
        (1000.0, None, "1 kJ"),
        (1234.5, None, "1.23 kJ"),
        (1e6, None, "1 MJ"),
        (1e9, None, "1 GJ"),
        (5e12, None, "5000 GJ"),
        (123456.0, 78.9, "123 ± 0.0789 kJ"),
        (2e9, 1.26e8, "2 ± 0.126 GJ"),
        (190.0, 0.0, "190 ± 0 J"),
    ],
)
def test_cost_is_readable(joules: float, deviation: float | None, text: str) -> None:
    """Three digits, also of the deviation, in the largest unit of which there is one at least; no exponents."""
    assert with_unit(joules, deviation) == text


def test_missed_target_costs_what_the_bound_allows() -> None:
    """A trial that missed counts as β·min_cost at least; as twice the cheapest where early stopping is off."""
    assert missed_floor(spec(beta_knob=1.5), 10.0) == 15.0
    assert missed_floor(spec(beta_knob=None), 10.0) == 20.0
    assert missed_floor(spec(), None) == 0.0


@pytest.mark.parametrize(("eta", "joules"), [(0.0, 2000.0), (0.25, 1502.5), (1.0, 10.0)])
def test_cost_weighs_energy_and_time(eta: float, joules: float) -> None:
    """The cost is η·E + (1−η)·P·T, all GPUs together."""
    job = spec(eta_knob=eta)
    job = replace(job, gpu=replace(job.gpu, count=5))
    assert cost_of(job, 10.0, 4.0) == joules
