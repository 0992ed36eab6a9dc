"""When trials are stopped: the bounds of the best known batch size and of the others."""

from __future__ import annotations

import pytest
from wattwise.rules import EndReason
from wattwise_server.events import BatchSizeBanned
from wattwise_server.policy.base import ArmBelief
from wattwise_server.policy.history import observe

from tests.server.policy.knowledge_gradient.jobs import (
    SIZES,
    belief_of,
    beliefs,
    bound,
    bound_without_stops,
    course,
    kg_job,
    least_expected,
    next_size,
    run_all,
    show,
)


def test_nothing_is_expected_before_a_success() -> None:
    """Until a trial has reached the target, the belief has no numbers and no batch size has a bound."""
    job = kg_job()
    for _ in range(2):
        assert beliefs(job) == [ArmBelief(size, 0.0, 0.0, 0.0, 0) for size in SIZES]
        assert [bound(job, size) for size in SIZES] == [None] * 5
        job.run(job.next(), None, 100.0)


def test_bound_of_others_is_beta_times_the_least_expected_cost() -> None:
    """One cheap trial does not set the bound, which is the same for every batch size but the best."""
    job = kg_job(beta_knob=1.5)
    run_all(job, 8)
    job.run(job.dispatch(32), 2, course(32)[1])
    bounds = [bound(job, size) for size in SIZES if size != 32]
    assert bounds == [pytest.approx(1.5 * least_expected(job), rel=1e-9)] * 4
    assert bound(job, 32) != bounds[0]
    assert job.search.min_cost == 2 * course(32)[1]
    assert 1.5 * least_expected(job) > 2 * 1.5 * job.search.min_cost


def test_a_trial_of_the_best_that_never_ends_is_stopped() -> None:
    """From the first success on, the best known batch size has a bound far below the cost of its last epoch."""
    job = kg_job(batch_sizes=(32,), max_epochs=1000)
    for _ in range(6):
        run_all(job, 1)
        limit = bound(job, 32)
        assert limit is not None
        assert -belief_of(job, 32).mean < limit < 100 * course(32)[1]
    assert job.run(job.dispatch(32), None, course(32)[1]).end_reason is EndReason.COST_BOUND
    assert job.run(job.dispatch(32), *course(32)).converged


def test_bound_of_the_best_does_not_depend_on_beta() -> None:
    """It is the cost at which starting again is cheaper, which beta does not change."""
    jobs = [kg_job(beta_knob=beta) for beta in (1.5, 4.0)]
    for job in jobs:
        for _ in range(6):
            show(job, 32, 10)
    best = {bound(job, 32) for job in jobs}
    assert len(best) == 1
    assert None not in best
    assert bound(jobs[1], 64) == pytest.approx(4.0 / 1.5 * (bound(jobs[0], 64) or 0))


def test_bound_of_the_best_falls_as_trials_repeat() -> None:
    """The better the epochs are known, and the less they vary, the earlier a trial of the best is given up."""
    job = kg_job(max_epochs=1000)
    show(job, 32, 10)
    early = bound(job, 32) or 0.0
    for _ in range(20):
        show(job, 32, 10)
    assert -belief_of(job, 32).mean < (bound(job, 32) or 0.0) < early
    noisy = kg_job(max_epochs=1000)
    for turn in range(21):
        show(noisy, 32, 14 if turn % 2 else 7)
    assert (bound(noisy, 32) or 0.0) > (bound(job, 32) or 0.0)


def test_best_has_no_bound_if_its_last_epoch_is_near() -> None:
    """A trial of the best is not stopped where its last epoch comes before a new trial would pay off."""
    job = kg_job(max_epochs=11)
    for _ in range(6):
        show(job, 32, 10)
    assert bound(job, 32) is None
    assert bound(job, 64) is not None


def test_bound_doubles_after_two_stops_in_a_row() -> None:
    """From the third on each stop in a row doubles the bound, and a trial that converges ends that."""
    job = kg_job()
    run_all(job, 10)
    factors = []
    for _ in range(5):
        limit = bound(job, 8)
        assert limit is not None
        factors.append(limit / (2.0 * least_expected(job)))
        assert job.run(job.dispatch(8), None, 500.0).end_reason is EndReason.COST_BOUND
    assert factors == pytest.approx([1, 1, 2, 4, 8])
    run_all(job, 1)
    assert bound(job, 8) == pytest.approx(2.0 * least_expected(job))


def test_bound_of_the_best_known_batch_size_doubles_too() -> None:
    """Where even the best known batch size is stopped, each stop in a row doubles its bound from the third on."""
    job = kg_job(batch_sizes=(32,), max_epochs=1000)
    run_all(job, 8)
    job.run(job.dispatch(32), None, course(32)[1], steps=[1000])
    run_all(job, 1)
    factors = []
    for _ in range(5):
        usual, limit = bound_without_stops(job, 32), bound(job, 32)
        assert usual is not None
        assert limit is not None
        factors.append(limit / usual)
        assert job.run(job.dispatch(32), None, course(32)[1]).end_reason is EndReason.COST_BOUND
    assert factors == pytest.approx([1, 1, 2, 4, 8])
    assert job.run(job.dispatch(32), 250, course(32)[1]).converged
    assert bound(job, 32) == bound_without_stops(job, 32)


def test_early_stopping_off_stops_nothing() -> None:
    """Without a beta no batch size has a bound, and an expensive trial reaches the target."""
    job = kg_job(beta_knob=None)
    run_all(job, 10)
    assert [bound(job, size) for size in SIZES] == [None] * 5
    assert job.run(job.dispatch(128), 90, 5000.0).converged


def test_what_alone_has_converged_is_banned() -> None:
    """If the only batch size that has reached the target is banned, the others have no bound, and one is chosen."""
    job = kg_job()
    show(job, 32, 10)
    job.search = observe(job.policy, job.spec, job.search, BatchSizeBanned(job.spec, 32))
    assert [bound(job, size) for size in SIZES] == [None] * len(SIZES)
    assert next_size(job) in (16, 64)
