"""What prior jobs say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from wattwise.rules import EndReason
from wattwise_server.domain import Moments
from wattwise_server.policy.base import Choice, Prior, PriorMisses
from wattwise_server.policy.knowledge_gradient import Constants
from wattwise_server.policy.knowledge_gradient.belief import LEAST_TRUST, belief
from wattwise_server.policy.knowledge_gradient.model import model
from wattwise_server.policy.knowledge_gradient.state import read

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    OUT_OF_MEMORY,
    POLICY,
    SIZES,
    belief_of,
    beliefs,
    choice_of,
    kg_job,
    next_size,
    run_all,
    show,
    sizes,
)
from tests.server.policy.simulated import SimulatedJob


def with_prior(trials: int, spread: float = 0.0, **fields: Any) -> SimulatedJob:
    """A job with a prior in which each batch size has this many trials, of this variance, and 128 is the best."""
    epochs = dict(zip(SIZES, (60, 40, 30, 20, 10), strict=True))
    told = {size: Moments(trials, math.log(epochs[size]), spread * trials) for size in SIZES}
    job = kg_job(**fields)
    job.search = POLICY.register(job.spec, [Prior(128, told, {})])
    return job


def test_prior_weighs_at_most_four_trials() -> None:
    """Own trials outvote a prior with a hundred times as many trials as fast, and one with a single trial faster."""
    costs = {}
    for trials in (1, 4, 400):
        job = with_prior(trials, spread=0.5)
        assert job.choose() == Choice(128, "the best of the prior jobs is tried first")
        show(job, 128, 16)
        costs[trials] = -belief_of(job, 128).mean
    # After 10 epochs in the prior.
    assert 1100 < costs[400] == pytest.approx(costs[4], rel=0.1)
    assert costs[1] > 1.1 * costs[4]


def test_priors_add_up() -> None:
    """What two prior jobs tell counts together; the first trial has the best batch size of the first one named."""
    eight, large = {8: Moments(4, math.log(100))}, {128: Moments(4, math.log(3))}
    jobs = [kg_job() for _ in range(4)]
    priors = [Prior(8, eight, {}), Prior(128, large, {})]
    for job, known in zip(jobs, (priors, priors[::-1], priors[:1], priors[1:]), strict=True):
        job.search = POLICY.register(job.spec, known)
    assert [next_size(job) for job in jobs] == [8, 128, 8, 128]
    for job in jobs:
        show(job, 32, 20)
    both, reverse, first, second = ([belief_of(job, size).expected_cost or 0 for size in (8, 128)] for job in jobs)
    assert both == reverse
    assert both[0] > 2 * second[0]
    assert both[1] < 0.5 * first[1]


def test_prior_that_knows_a_batch_size_not_adds_nothing() -> None:
    """Of two prior jobs only one tells something: the belief is that of a job that names only this one."""
    jobs = [kg_job(), kg_job()]
    missed = Prior(None, {}, {8: PriorMisses(2, 0.0)})
    for job, priors in zip(jobs, ([missed], [missed, Prior(None, {}, {})]), strict=True):
        job.search = POLICY.register(job.spec, priors)
        show(job, 32, 20)
    assert beliefs(jobs[0]) == beliefs(jobs[1])


def test_default_has_no_right_of_its_own_without_a_prior() -> None:
    """A default that failed and is far from what has reached the target is not the next one."""
    job = kg_job(default_batch_size=128)
    job.fail(job.next(), ERROR)
    show(job, 16, 10)
    assert next_size(job) != 128


def test_prior_without_a_success_starts_at_the_default() -> None:
    """A prior whose trials all missed names no batch size; what it says about the epochs is used."""
    job = kg_job()
    missed = dict.fromkeys((8, 16), PriorMisses(2, math.log(100)))
    job.search = POLICY.register(job.spec, [Prior(None, {}, missed)])
    assert job.next().batch_size == 32
    other = kg_job()
    other.search = POLICY.register(other.spec, [Prior(7, {7: Moments(3, 1.0)}, {})])
    assert other.next().batch_size == 32


def wrong_prior(**fields: Any) -> SimulatedJob:
    """A job whose prior's best batch size misses; trials of another one take three times the prior's epochs."""
    job = with_prior(4, default_batch_size=8, **fields)
    miss_all = job.run(job.next(), None, 100.0)
    assert (miss_all.batch_size, miss_all.end_reason) == (128, EndReason.MAX_EPOCHS)
    assert job.run(job.next(), 70, 100.0).batch_size == 64
    for _ in range(2):
        show(job, 64, 70)
    return job


def test_default_is_tried_if_the_prior_was_wrong() -> None:
    """Once the trials contradict the prior, the default gets its trial, although it is far from all that was tried."""
    job = wrong_prior()
    assert next_size(job) == 8
    assert choice_of(job).reason.endswith("; the prior jobs were wrong, so the default is tried")
    job.run(job.next(), 60, 100.0)
    assert "the prior jobs were wrong" not in choice_of(job).reason


def test_default_is_tried_once_at_a_time_if_the_prior_was_wrong() -> None:
    """Launches at the same time do not all try the default."""
    job = wrong_prior()
    assert sizes([job.next() for _ in range(3)]).count(8) == 1


def test_default_that_may_not_be_chosen_is_not_tried() -> None:
    """If the prior was wrong and the default does not fit into memory, another batch size is chosen."""
    job = with_prior(4, default_batch_size=128)
    job.search = POLICY.register(job.spec, [Prior(8, {size: Moments(4, math.log(10 + size)) for size in SIZES}, {})])
    assert job.run(job.next(), None, 100.0).batch_size == 8
    job.fail(job.dispatch(128), OUT_OF_MEMORY)
    for _ in range(3):
        show(job, 16, 90)
    assert trust_of(job) < LEAST_TRUST
    assert belief_of(job, 128).observations == 0
    assert next_size(job) != 128


def missed_prior(*missed: int) -> SimulatedJob:
    """A job with a prior in which these batch sizes missed the target twice, after 40 epochs, and none reached it."""
    job = kg_job()
    job.search = POLICY.register(job.spec, [Prior(None, {}, dict.fromkeys(missed, PriorMisses(2, math.log(40))))])
    return job


@pytest.mark.parametrize("missed", [(8, 16), (64, 128)])
def test_misses_of_a_prior_count(missed: tuple[int, int]) -> None:
    """Batch sizes that only missed the target in the prior are expected to cost more, and others are tried first."""
    cold, warm = kg_job(), missed_prior(*missed)
    for job in (cold, warm):
        run_all(job, 1)
    for size in missed:
        assert (belief_of(warm, size).expected_cost or 0) > 1.3 * (belief_of(cold, size).expected_cost or 0)
    assert next_size(job) not in {32, *missed}


@pytest.mark.parametrize(("missed", "order"), [((), [32, 16, 64, 8, 128]), ((8, 16, 32), [32, 64, 128, 16, 8])])
def test_misses_of_a_prior_come_last(missed: tuple[int, ...], order: list[int]) -> None:
    """While nothing reaches the target, batch sizes that missed it in the prior have their turn after the others."""
    job = missed_prior(*missed)
    reasons = []
    for size in order * 2:
        choice = job.choose()
        assert isinstance(choice, Choice)
        assert choice.batch_size == size
        reasons.append("come later" in choice.reason)
        job.run(job.next(), None, 100.0)
    assert reasons == [bool(missed) and size not in missed for size in order * 2]


def test_what_also_reached_the_target_in_a_prior_is_no_miss() -> None:
    """A batch size with misses in the prior has its usual turn if it reached the target there as well."""
    job = kg_job()
    reached = Moments(1, math.log(20))
    job.search = POLICY.register(job.spec, [Prior(32, {16: reached, 32: reached}, {16: PriorMisses(2, math.log(40))})])
    assert [job.run(job.next(), None, 100.0).batch_size for _ in range(5)] == [32, 16, 64, 8, 128]


def test_unusual_trials_of_a_prior_do_not_freeze_the_search() -> None:
    """A batch size that missed once in the prior, between two that reached the target, is still used if it is best."""
    job = kg_job()
    reached = {size: Moments(3, math.log(each), 0.01) for size, each in ((16, 12), (64, 12))}
    job.search = POLICY.register(job.spec, [Prior(16, reached, {32: PriorMisses(1, math.log(40))})])
    epochs = {8: 30, 16: 12, 32: 6, 64: 12, 128: 30}
    trials = [job.run(trial, epochs[trial.batch_size], 100.0) for trial in (job.next() for _ in range(40))]
    assert {trial.batch_size for trial in trials[-10:]} == {32}


def test_prior_that_fits_survives_a_late_first_trial() -> None:
    """A first trial that takes four times the epochs of the prior casts doubt; the next one, which fits, ends it."""
    job = with_prior(4)
    show(job, 128, 40)
    assert 0.05 < trust_of(job) < 0.9
    show(job, 128, 10)
    assert trust_of(job) > 0.9


def test_prior_that_contradicts_two_batch_sizes_is_not_trusted() -> None:
    """Trials of two batch sizes that take four times the prior's epochs make it unlikely, as those of one do."""
    one, two = with_prior(4), with_prior(4)
    for job, seen in ((one, [(128, 40), (128, 40)]), (two, [(128, 40), (64, 70)])):
        for size, epochs in seen:
            show(job, size, epochs)
    assert trust_of(one) < 0.1
    assert trust_of(two) < 0.3


def trust_of(job: SimulatedJob) -> float:
    """Probability that the prior jobs tell the epochs."""
    known = read(job.search.notes)
    return belief(model(SIZES, Constants()), known.evidence, known.prior).prior_trust
