"""Gaussian Thompson sampling (NSDI 2023, section 4.3 and algorithm 1).

reward            −cost of a trial, in joules
n                 number of an arm's observations
reward precision  1/variance of a single reward, in 1/J²
prior             N(prior mean, 1/prior precision): the belief before the first observation
posterior         N(mean, 1/precision): the belief about the arm's mean reward after n observations
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from wattwise.rules import ResolvedJob

from wattwise_server.cost import with_unit
from wattwise_server.domain import Arm, Moments
from wattwise_server.policy.base import ArmBelief


class Posterior(NamedTuple):
    """Belief about one arm's mean reward: mean in J, both precisions in 1/J², infinite if every reward was the same."""

    mean: float
    precision: float
    reward_precision: float
    observations: int


def posterior(spec: ResolvedJob, costs: Moments, reward_precision: float | None = None) -> Posterior:
    """Updates the belief about a mean (Murphy, "Conjugate Bayesian analysis of the Gaussian", 2007, eq. 29-30).

    Args:
        spec: The job, which has the prior.
        costs: What the arm's trials cost.
        reward_precision: 1/variance of a single reward; None learns it. The learned one is infinite for one observation
            and for equal ones; the posterior is then the mean of the rewards.
    """
    n, mean_reward = costs.count, -costs.mean
    if n == 0:
        return Posterior(spec.prior_mean, spec.prior_precision, 0.0, 0)
    if reward_precision is None:
        reward_precision = 1 / costs.variance if costs.variance else math.inf
    precision = spec.prior_precision + n * reward_precision
    if math.isinf(precision):
        return Posterior(mean_reward, math.inf, reward_precision, n)
    prior_share = spec.prior_precision / precision
    mean = prior_share * spec.prior_mean + (1 - prior_share) * mean_reward
    return Posterior(mean, precision, reward_precision, n)


def belief(spec: ResolvedJob, arm: Arm, floor: float, reward_precision: float | None = None) -> ArmBelief:
    """Returns the posterior of an arm, and what a model costs that is trained with it alone.

    A model costs what its trials cost: a miss counts more only to keep its batch size from being chosen.

    Args:
        spec: The job.
        arm: The arm.
        floor: The least cost that a miss counts as, in joules.
        reward_precision: As for `posterior`.
    """
    known = posterior(spec, arm.costs(floor), reward_precision)
    ended = arm.num_decided + arm.num_failed
    rate = arm.num_failed / ended if ended else None
    if not arm.reached.count:
        return ArmBelief(arm.batch_size, *known, failure_rate=rate)
    costs = arm.costs()
    trial = posterior(spec, costs, reward_precision)
    # A model takes this many decided trials of those that count, each with its share of all the failed ones.
    tries = costs.count / arm.reached.count
    expected = tries * (failure_surcharge(arm) - trial.mean)
    deviation = tries / math.sqrt(trial.precision) if costs.count > 1 else None
    return ArmBelief(arm.batch_size, *known, expected, deviation, rate)


def failure_surcharge(arm: Arm) -> float:
    """Returns the cost of an arm's failed trials per decided one, in joules; all of it while none was decided."""
    return arm.failed_cost / max(1, arm.num_decided)


def generator(spec: ResolvedJob, trial_number: int) -> np.random.Generator:
    """Returns the randomness of one dispatch: a function of the seed and the trial's number, or entropy."""
    if spec.seed is None:
        return np.random.default_rng()
    return np.random.default_rng([spec.seed % 2**64, trial_number])


@dataclass(frozen=True, slots=True)
class Draw:
    """The drawn arm and the reason for it."""

    batch_size: int
    reason: str


def draw(
    spec: ResolvedJob,
    arms: Sequence[Arm],
    floor: float,
    rng: np.random.Generator,
    reward_precision: float | None = None,
) -> Draw:
    """Draws one of the arms: the unexplored first, then those without information, then by sampling.

    While no arm has converged, no miss makes an arm look better than one without any: arms without a decided trial are
    drawn before the others, whatever the prior expects of them.

    Args:
        spec: The job.
        arms: The arms to draw from.
        floor: As for `belief`.
        rng: The randomness.
        reward_precision: As for `posterior`.
    """
    unexplored = [arm for arm in arms if arm.num_decided < spec.num_explorations]
    if unexplored:
        arm = unexplored[rng.integers(len(unexplored))]
        done = f"{arm.num_decided} of {spec.num_explorations} explorations"
        return Draw(arm.batch_size, f"{done}; sampling starts when no arm has fewer")
    beliefs = [posterior(spec, arm.costs(floor), reward_precision) for arm in arms]
    hopeless = not any(arm.num_converged for arm in arms)
    blank = [
        arm
        for arm, belief in zip(arms, beliefs, strict=True)
        if belief.precision == 0 or (hopeless and not arm.num_decided)
    ]
    if blank:
        size = blank[rng.integers(len(blank))].batch_size
        return Draw(size, "none of its trials was decided, so it is tried first")
    return _sample(arms, beliefs, rng)


def _sample(arms: Sequence[Arm], beliefs: Sequence[Posterior], rng: np.random.Generator) -> Draw:
    means = np.array([belief.mean for belief in beliefs])
    deviations = 1 / np.sqrt(np.array([belief.precision for belief in beliefs]))
    surcharges = np.array([failure_surcharge(arm) for arm in arms])
    samples = means + deviations * rng.standard_normal(len(arms)) - surcharges
    best = int(np.argmax(samples))
    size = arms[best].batch_size
    others = f"lowest of {len(arms)} arms" if len(arms) > 1 else "the only arm"
    failed = f", failed trials {with_unit(surcharges[best])} per decided one" if surcharges[best] else ""
    belief = f"mean {with_unit(-means[best])}, std dev {with_unit(deviations[best])}{failed}"
    sample = f"sampled cost {with_unit(-samples[best])} ({belief})"
    return Draw(size, f"Thompson sampling: {sample}, {others}")
