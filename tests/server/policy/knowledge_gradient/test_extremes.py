"""Extreme inputs, and any sequence of events."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wattwise.rules import EndReason
from wattwise_server.domain import Measurement, Moments, Trial
from wattwise_server.policy.base import Choice, Exhausted, Prior, PriorMisses
from wattwise_server.policy.failures import choosable

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    OUT_OF_MEMORY,
    POLICY,
    SIZES,
    belief_of,
    beliefs,
    check_belief,
    choice_of,
    course,
    fresh,
    kg_job,
    lasts,
    next_size,
    run_all,
    show,
    sizes,
)
from tests.server.policy.simulated import NOW


@pytest.mark.parametrize("cost", [5e-324, 1e-170, 1e-99, 1e99, 1e100])
def test_extreme_costs(cost: float) -> None:
    """Any cost that a report may have gives a belief without infinite numbers, and a next batch size."""
    job = kg_job()
    for size in (32, 64):
        ended = job.dispatch(size)._replace(last=Measurement(2, 1e-3, cost, 1.0, NOW), target_reached=True)
        job.decide(ended, cost, EndReason.TARGET_REACHED)
    for belief in job.policy.belief(job.spec, job.search):
        numbers = (belief.mean, belief.precision, belief.reward_precision, belief.expected_cost)
        assert all(number is not None and math.isfinite(number) for number in numbers)
    assert next_size(job) in SIZES


def test_costs_of_next_to_nothing_tell_nothing() -> None:
    """A cost of 1e-100 J or less says as little about the cost of an epoch as none."""
    jobs = [kg_job() for _ in range(3)]
    for job, cost in zip(jobs, (0.0, 1e-100, 1e-99), strict=True):
        ended = job.dispatch(32)._replace(last=Measurement(10, 20.0, 1000.0, 1.0, NOW), target_reached=True)
        job.decide(ended, cost, EndReason.TARGET_REACHED)
        job.run(job.dispatch(64), 10, 1e-98)
    nothing, little, more = (belief_of(job, 32).mean for job in jobs)
    assert nothing == pytest.approx(little, abs=0)
    assert nothing != pytest.approx(more, abs=0)


def test_trials_that_cost_nothing() -> None:
    """With a cost of 0 every launch gets an allowed batch size, and the belief has no nonsense."""
    job = kg_job()
    assert {trial.batch_size for trial in lasts(job, 12, 4, 0.0)} <= set(SIZES)
    check_belief(job)
    run_all(job, 12)
    check_belief(job)


def test_one_batch_size() -> None:
    """A job with one batch size gets it every time, whatever happens."""
    job = kg_job(batch_sizes=(32,))
    job.fail(job.next(), ERROR)
    job.run(job.next(), None, 10.0)
    assert set(sizes(run_all(job, 5))) == {32}
    for _ in range(4):
        job.fail(job.next(), ERROR)
    assert job.next().batch_size == 32
    check_belief(job)


def test_64_batch_sizes_close_together() -> None:
    """With 64 neighbours, few are tried before the launches settle near the best."""
    job = kg_job(batch_sizes=tuple(range(32, 96)), default_batch_size=90, max_epochs=100)
    trials = []
    for _ in range(40):
        trial = job.next()
        trials.append(job.run(trial, round(20 + trial.batch_size / 4), 100.0))
    assert max(sizes(trials[-10:])) < 70
    check_belief(job)


def test_largest_number_of_epochs() -> None:
    """Billions of epochs are no problem, neither as the limit nor as a miss."""
    last = 2**31 - 1
    job = kg_job(max_epochs=last, beta_knob=None)
    lasts(job, 3, None, 1e-3, last)
    check_belief(job)
    lasts(job, 3, 10**9, 1e-3, 10**9)
    lasts(job, 3, 3, 1.0)
    check_belief(job)
    assert isinstance(job.choose(), Choice)


@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_smallest_and_largest_beta(beta: float) -> None:
    """Whatever the beta, a job delivers: the best known batch size reaches its target."""
    job = kg_job(beta_knob=beta)
    trials = run_all(job, 30)
    assert trials[0].converged
    assert sum(trial.converged for trial in trials[-10:]) >= 9
    check_belief(job)


def test_target_in_the_first_epoch() -> None:
    """Trials of one epoch are told apart by what an epoch costs."""
    job = kg_job()
    trials = []
    for _ in range(15):
        trial = job.next()
        trials.append(job.run(trial, 1, 1000.0 / trial.batch_size))
    assert sizes(trials)[-5:] == [128] * 5
    check_belief(job)


@pytest.mark.parametrize("epoch_cost", [1e-12, 1e15])
def test_tiny_and_huge_costs(epoch_cost: float) -> None:
    """The unit of costs does not matter."""
    job, usual = kg_job(), kg_job()
    for _ in range(10):
        trial, other = job.next(), usual.next()
        assert trial.batch_size == other.batch_size
        epochs, _ = course(trial.batch_size)
        job.run(trial, epochs, epoch_cost)
        usual.run(other, epochs, 100.0)
    for here, there in zip(beliefs(job), beliefs(usual), strict=True):
        assert here.expected_cost == pytest.approx((there.expected_cost or 0) / 100 * epoch_cost, rel=1e-9)
    check_belief(job)


def test_extreme_changes() -> None:
    """Costs that go from the least to the greatest, and epochs from one to billions and back, give finite numbers."""
    last = 2**31 - 1
    job = kg_job(max_epochs=last, beta_knob=None)
    for epochs, cost in ((1, 1e-99), (last, 1e-99), (1, 1e90), (10**9, 0.0), (2, 1e90)):
        lasts(job, 12, epochs, cost, epochs)
        check_belief(job)
        assert choice_of(job).batch_size in SIZES
        for change in job.policy.changes(job.search):
            assert change.factor > 0
            assert change.message


@pytest.mark.thorough
@pytest.mark.parametrize("reached", [True, False])
def test_64_batch_sizes_with_all_trials_kept(reached: bool) -> None:
    """With two trials of each of 64 batch sizes, up to 2^31, a choice is made and all numbers are finite."""
    listed = tuple(sorted({round(2 ** (place * 31 / 64)) + place for place in range(64)}))
    job = kg_job(batch_sizes=listed, default_batch_size=listed[0], max_epochs=50)
    show(job, listed[0], 10)
    for size in listed * 2:
        show(job, size, 10 if reached else 50, reached=reached)
    check_belief(job)
    assert choice_of(job).batch_size in listed


OUTCOMES = st.tuples(
    st.sampled_from(
        ["reach", "reach", "reach", "miss", "error", "lost", "memory", "preempted", "revive", "wait", "free"]
    ),
    st.integers(1, 20),
    st.sampled_from([0.0, 1e-9, 0.5, 10.0, 1e4, 1e12]),
    st.integers(0, 5),
)


REASONS = {
    "error": ERROR,
    "lost": EndReason.LOST,
    "memory": OUT_OF_MEMORY,
    "preempted": EndReason.PREEMPTED,
}


TOLD = st.tuples(
    st.integers(0, 5),
    st.builds(
        # Epochs are below 2^31, so that the variance of their logarithm is at most 116.
        lambda count, mean, variance: Moments(count, mean, count * variance if count > 1 else 0.0),
        st.sampled_from([0, 1, 5, 10**6]),
        st.floats(0, 21),
        st.floats(0, 100),
    ),
    st.builds(PriorMisses, st.sampled_from([0, 1, 5, 10**6]), st.floats(0, 21)),
)
"""What a prior job tells about the batch size at this place."""


@pytest.mark.thorough
@settings(max_examples=60)
@given(
    outcomes=st.lists(OUTCOMES, max_size=25),
    batch_sizes=st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=6),
    window=st.sampled_from([0, 1, 4]),
    beta=st.sampled_from([None, 0.01, 2.0]),
    told=st.one_of(st.just([]), st.lists(TOLD, max_size=6)),
)
def test_any_events(
    outcomes: list[Any], batch_sizes: set[int], window: int, beta: float | None, told: list[Any]
) -> None:
    """After any events: allowed batch sizes only, finite numbers, bounds above 0, and a state that survives as text."""
    listed = tuple(sorted(batch_sizes))
    job = kg_job(
        batch_sizes=listed,
        default_batch_size=listed[0],
        window_size=window,
        beta_knob=beta,
        max_epochs=20,
    )
    priors = []
    for place, reached, missed in told:
        size = listed[place % len(listed)]
        priors.append(Prior(size if reached.count else None, {size: reached}, {size: missed} if missed.number else {}))
    job.search = POLICY.register(job.spec, priors)
    running: list[Trial] = []
    resumable: list[Trial] = []
    for outcome, epochs, epoch_cost, place in outcomes:
        choice = job.choose()
        left = {arm.batch_size for arm in choosable(job.search, job.trials + 1)}
        assert isinstance(choice, Exhausted) if not left else isinstance(choice, Choice) and choice.batch_size in left
        if not left:
            break
        if outcome == "free":
            # A trial of any batch size, such as one that was dispatched earlier and is revived.
            running.append(job.dispatch(listed[place % len(listed)]))
            continue
        running.append(job.next())
        if outcome == "wait":
            continue
        trial = running.pop(place % len(running))
        if outcome == "revive" and resumable:
            revived = resumable.pop(place % len(resumable))
            job.revive(revived)
            running += [trial, revived]
        elif outcome in REASONS:
            failed = job.fail(trial, REASONS[outcome], cost=epochs * epoch_cost)
            if outcome in ("lost", "preempted"):
                resumable.append(failed)
        else:
            job.run(trial, epochs if outcome == "reach" else None, epoch_cost)
        check_belief(job)
        again = fresh(job.search)
        assert json.loads(again.notes) == json.loads(job.search.notes)
        rng = np.random.default_rng(0)
        number = job.trials + 1
        assert POLICY.next(job.spec, again, number, rng) == POLICY.next(job.spec, job.search, number, rng)
