"""The bandit: posteriors against closed forms, and which arm is drawn."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise_server.domain import Arm, Moments, Observation
from wattwise_server.policy.base import Choice
from wattwise_server.policy.history import with_observation
from wattwise_server.policy.thompson import draw, generator, posterior

from tests.server.policy.simulated import SimulatedJob, spec

costs = st.lists(st.floats(1, 1e7), min_size=1, max_size=30)


def moments(values: list[float]) -> Moments:
    """The moments of some costs."""
    return reduce(Moments.add, values, Moments())


@given(costs, st.floats(-1e7, 1e7), st.floats(0, 1))
def test_posterior_is_the_closed_form(seen: list[float], prior_mean: float, prior_precision: float) -> None:
    """Precisions add up, and the mean is weighted by them; without variance it is the mean of the rewards."""
    job = spec(prior_mean=prior_mean, prior_precision=prior_precision)
    belief, rewards = posterior(job, moments(seen)), -np.array(seen)
    assert belief.observations == len(seen)
    if min(seen) == max(seen):
        assert (belief.mean, belief.precision, belief.reward_precision) == (rewards[0], math.inf, math.inf)
        return
    if rewards.var() < 1e-6:
        return  # two ways to compute such a small variance differ by more than any tolerance
    precision = 1 / rewards.var()
    total = prior_precision + len(seen) * precision
    assert belief.reward_precision == pytest.approx(precision, rel=1e-6)
    assert belief.precision == pytest.approx(total, rel=1e-6)
    expected = (prior_precision * prior_mean + precision * rewards.sum()) / total
    assert belief.mean == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_arm_without_observations_is_the_prior() -> None:
    """Before the first observation the belief is the prior, whatever the reward precision."""
    belief = posterior(spec(prior_mean=-5.0, prior_precision=2.0), Moments())
    assert belief == (-5.0, 2.0, 0.0, 0)


observations = st.lists(st.builds(Observation, st.floats(1, 1e6), st.booleans()), max_size=40)


@given(observations, st.integers(0, 5), st.floats(0.5, 3))
def test_running_sums_are_the_sums_over_the_history(seen: list[Observation], window: int, beta: float) -> None:
    """Running sums equal the sums over the whole history, while the floor appears and falls."""
    arm = Arm(16)
    for number, one in enumerate(seen, 1):
        arm = with_observation(arm, one, window)
        assert arm.num_decided == number
        floor = beta * min((each.cost for each in seen[:number] if each.converged), default=0.0)
        newest = seen[max(0, number - window) : number] if window else seen[:number]
        costs = [each.cost if each.converged else max(each.cost, floor) for each in newest]
        known = arm.costs(floor)
        assert known.count == len(costs)
        assert known.mean == pytest.approx(np.mean(costs), rel=1e-9)
        assert known.variance == pytest.approx(np.var(costs), rel=1e-6, abs=np.mean(costs) ** 2 * 1e-12)
        assert arm.cheapest == min((each.cost for each in newest if each.converged), default=None)


def test_equal_costs_have_no_variance() -> None:
    """A thousand equal costs have a deviation of exactly zero, with and without a window."""
    for window in (0, 10):
        arm = Arm(16)
        for _ in range(1000):
            arm = with_observation(arm, Observation(0.1 + 0.2, converged=True), window)
        assert arm.costs().deviation == 0
        assert arm.costs().mean == 0.1 + 0.2


def arm_with(size: int, *values: float) -> Arm:
    """An arm that has seen some costs."""
    return replace(Arm(size), num_decided=len(values), reached=moments(list(values)))


def drawn(arms: list[Arm], times: int = 400, **fields: object) -> Counter[int]:
    """How often each arm is drawn."""
    job = spec(**fields)
    return Counter(draw(job, arms, 0.0, generator(job, number)).batch_size for number in range(times))


def test_arms_short_of_explorations_come_first_in_random_order() -> None:
    """While arms have too few decided trials, only those are drawn, each of them sometimes."""
    counts = drawn([arm_with(8, 1.0, 2.0), arm_with(16, 900.0), arm_with(32)])
    assert set(counts) == {16, 32}
    assert min(counts.values()) > 100
    alone = draw(spec(num_explorations=3), [arm_with(16, 900.0)], 0.0, np.random.default_rng(1))
    assert alone.reason.startswith("1 of 3 explorations;")


def test_explorations_count_decided_trials_outside_the_window() -> None:
    """An arm with enough decided trials counts as explored, even if its window keeps fewer."""
    arm = replace(arm_with(8, 5.0), num_decided=2)
    assert set(drawn([arm, arm_with(16, 1.0)], num_explorations=2, window_size=1)) == {16}


def test_arm_without_information_is_drawn_before_any_other() -> None:
    """Without explorations and without a prior, an arm of precision zero is drawn before the cheapest arm."""
    for converged in (0, 2):
        known = replace(arm_with(8, 1.0, 2.0), num_converged=converged)
        assert set(drawn([known, arm_with(16)], num_explorations=0)) == {16}


def test_a_miss_is_no_reason_to_draw_an_arm_while_nothing_has_converged() -> None:
    """However cheap it was beside what the prior expects, arms without a decided trial come first."""
    job = SimulatedJob(
        spec(
            policy="gts",
            batch_sizes=(8, 16, 32),
            num_explorations=0,
            prior_mean=-1000.0,
            prior_precision=1.0,
        )
    )
    tried = []
    for _ in range(3):
        trial = job.next()
        tried.append(trial.batch_size)
        job.decide(trial, 5 + trial.batch_size, converged=False)
    assert sorted(tried) == [8, 16, 32]
    assert job.next().batch_size == 8


def test_samples_spread_by_the_standard_deviation() -> None:
    """Two arms one standard deviation of their difference apart: the cheaper one wins in 84% of the draws."""
    # Means 100 and 100 + sqrt(2)·2: each belief N(mean, 4), their difference has a deviation of sqrt(8).
    near, far = arm_with(8, 98.0, 102.0, 98.0, 102.0), arm_with(16, 98.0, 102.0, 98.0, 102.0)
    near = replace(near, reached=Moments(1, 100.0, 4.0))
    far = replace(far, reached=Moments(1, 100.0 + math.sqrt(8), 4.0))
    share = drawn([near, far], times=4000)[8] / 4000
    assert share == pytest.approx(0.8413, abs=0.02)


def test_sample_is_the_mean_and_the_generators_deviation() -> None:
    """The arm is drawn whose mean reward and so many standard deviations as the generator's normal number are most."""
    job, costs = spec(), np.array([100.0, 101.0, 102.0])
    arms = [
        replace(arm_with(size, 1.0, 2.0), reached=Moments(1, cost, 4.0))
        for size, cost in zip((8, 16, 32), costs, strict=True)
    ]
    for number in range(50):
        sampled = -costs + 2.0 * generator(job, number).standard_normal(3)
        assert draw(job, arms, 0.0, generator(job, number)).batch_size == (8, 16, 32)[sampled.argmax()]


def test_fixed_reward_precision_keeps_an_arm_in_doubt() -> None:
    """Of two arms with equal costs each the more expensive one is drawn too if a reward is known to vary."""
    job = SimulatedJob(
        spec(
            policy="gts",
            batch_sizes=(8, 16),
            num_explorations=1,
            learn_reward_precision=False,
            reward_precision=0.25,
        )
    )
    for size, cost in ((8, 5.0), (8, 5.0), (16, 4.9), (16, 4.9)):
        job.decide(job.dispatch(size), cost)
    counts: Counter[int] = Counter()
    for number in range(100):
        choice = job.policy.next(job.spec, job.search, number, generator(job.spec, number))
        assert isinstance(choice, Choice)
        counts[choice.batch_size] += 1
    assert min(counts[8], counts[16]) > 20
    assert [arm.reward_precision for arm in job.policy.belief(job.spec, job.search)] == [0.25, 0.25]


def test_reason_of_a_sampled_arm_has_its_numbers() -> None:
    """It has the sampled cost, what that was drawn from, and how many arms it was compared with."""
    cheap, expensive = arm_with(8, 5.0, 5.0), arm_with(16, 7.0, 7.0)
    sampled = "Thompson sampling: sampled cost 5 J (mean 5 J, std dev 0 J)"
    for arms, others in (([cheap], "the only arm"), ([expensive, cheap], "lowest of 2 arms")):
        assert draw(spec(), arms, 0.0, np.random.default_rng(1)).reason == f"{sampled}, {others}"


def test_arm_without_variance_is_sampled_at_its_mean() -> None:
    """An arm with equal costs is sampled at exactly their mean, so of two such arms the cheaper always wins."""
    assert set(drawn([arm_with(8, 5.0, 5.0), arm_with(16, 4.999, 4.999)])) == {16}


def test_same_seed_and_number_give_the_same_draw() -> None:
    """The randomness is a function of the seed, negative ones too, and the trial's number."""
    for seed in (7, -7):
        job = spec(seed=seed)
        assert generator(job, 3).random() == generator(job, 3).random()
        assert generator(job, 3).random() != generator(job, 4).random()
    assert generator(spec(seed=7), 1).random() != generator(spec(seed=-7), 1).random()


@pytest.mark.parametrize(("seed", "unsigned"), [(7, 7), (-7, 2**64 - 7), (2**63 - 1, 2**63 - 1)])
def test_seed_means_the_same_in_every_version(seed: int, unsigned: int) -> None:
    """A generator has the seed, as an unsigned number of 64 bits, and the trial's number."""
    assert generator(spec(seed=seed), 3).random() == np.random.default_rng([unsigned, 3]).random()


def test_without_a_seed_draws_differ() -> None:
    """An unset seed means entropy."""
    assert generator(spec(seed=None), 1).random() != generator(spec(seed=None), 1).random()


def test_bandit_finds_the_cheapest_arm() -> None:
    """After two hundred trials with noisy costs, most of the last fifty use the cheapest batch size."""
    rng, job, mean = (
        np.random.default_rng(5),
        SimulatedJob(spec(policy="gts")),
        {8: 130, 16: 120, 32: 90, 64: 110},
    )
    chosen = []
    for _ in range(200):
        trial = job.next()
        chosen.append(trial.batch_size)
        job.decide(trial, mean[trial.batch_size] * rng.normal(1, 0.1))
    assert Counter(chosen[-50:])[32] > 40
