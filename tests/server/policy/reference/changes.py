"""Whether a job has changed: likelihood ratios of trials, their sums, and what still counts after a change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from wattwise_server.domain import ChangedQuantity, DetectedChange
from wattwise_server.policy.knowledge_gradient import Constants

from tests.server.policy.reference.belief import KEPT, Belief, Costs, Known, Seen, Sum, Watched

LEAST = -5.0
"""Least ln of the likelihood ratio of a trial."""

NODES, WEIGHTS = np.polynomial.legendre.leggauss(100)
"""Nodes and weights of the numerical integrals."""

RECENT = 64
"""Largest number of trials since the earliest sum was 0."""


@dataclass(frozen=True)
class Job:
    """What of a job matters for a change: its batch sizes, the place of the default, and the last epoch."""

    sizes: Sequence[int]
    default: int
    max_epochs: int


@dataclass(frozen=True)
class Student:
    """Student's t distribution, by numerical integration: with t = √ν·tan θ, its density is ∝ (cos θ)^(ν−1)."""

    freedom: float

    def integral(self, lowest: float) -> float:
        """Of (cos θ)^(ν−1), from an angle to π/2."""
        half = (math.pi / 2 - lowest) / 2
        angles = lowest + half * (NODES + 1)
        return float(half * WEIGHTS @ np.cos(angles) ** (self.freedom - 1))

    def density(self, t: float) -> float:
        """The density."""
        power = (1 + t * t / self.freedom) ** (-(self.freedom + 1) / 2)
        return float(power / (math.sqrt(self.freedom) * self.integral(-math.pi / 2)))

    def above(self, t: float) -> float:
        """P(T > t)."""
        return self.integral(math.atan(t / math.sqrt(self.freedom))) / self.integral(-math.pi / 2)


class Prediction(NamedTuple):
    """See `wattwise_server.policy.knowledge_gradient.changes.Prediction`."""

    mean: float
    variance: float
    freedom: float
    never: float
    unusual: float
    unusual_spread: float
    jump: float
    jump_spread: float
    broken: float

    def like(self, before: tuple[float, float, float]) -> Prediction:
        """With the spread that was expected before a change, unless that is larger."""
        _, variance, freedom = before
        return self._replace(variance=min(self.variance, variance), freedom=freedom)

    def likelihood(self, result: float, reached: bool, mean: float, spread: float) -> float:
        """The density of a result, or the probability of a larger one, with more mean and standard deviation."""
        deviation = math.sqrt(self.variance + spread**2)
        t, student = (result - self.mean - mean) / deviation, Student(self.freedom)
        return student.density(t) / deviation if reached else student.above(t)

    def shifted(self, result: float, reached: bool, shift: float) -> float:
        """The likelihood if usual trials have moved this far; some are unusual, and some never reach the target."""
        usual = self.likelihood(result, reached, shift, 0)
        odd = self.likelihood(result, reached, 0, self.unusual_spread)
        some = (1 - self.unusual) * usual + self.unusual * odd
        return (1 - self.never) * some + (0 if reached else self.never)

    def jumped(self, result: float, reached: bool, jump: float, never: float) -> float:
        """The likelihood after a jump, after which another share never reaches the target."""
        some = self.likelihood(result, reached, jump, self.jump_spread)
        return (1 - never) * some + (0 if reached else never)

    def ratios(self, result: float, reached: bool, constants: Constants) -> Sequence[float]:
        """Ln of the likelihood ratios: a little larger, a little smaller, far larger, far smaller."""
        shift = constants.shift * math.sqrt(self.variance)
        found = [
            self.shifted(result, reached, shift),
            self.shifted(result, reached, -shift),
            self.jumped(result, reached, self.jump, max(self.broken, self.never)),
            self.jumped(result, reached, -self.jump, self.never),
        ]
        usual = self.shifted(result, reached, 0)
        return [float(np.clip(math.log(max(each, 1e-12) / usual), LEAST, constants.most)) for each in found]


def of_epochs(belief: Belief, place: int) -> Prediction:
    """What is expected of the epochs of a trial."""
    constants, (noise, unusual, reaches) = belief.constants, belief.rates
    always = float(belief.edges.always[place])
    return Prediction(
        float(belief.epochs.mean[place]),
        float(belief.epochs.cov[place, place] + noise[place]),
        float(belief.freedom[place]),
        always + (1 - always) * unusual * (1 - reaches),
        unusual * reaches / (1 - unusual * (1 - reaches)),
        constants.unusual_spread,
        constants.jump,
        constants.jump_spread,
        constants.broken,
    )


def of_cost(belief: Belief, place: int) -> Prediction:
    """What is expected of the cost of an epoch."""
    constants = belief.constants
    return Prediction(
        float(belief.cost.mean[place]),
        float(belief.cost.cov[place, place] + belief.cost_noise),
        belief.cost_freedom,
        0.0,
        constants.cost_unusual,
        constants.cost_unusual_spread,
        constants.cost_jump,
        constants.cost_jump_spread,
        0.0,
    )


def added(sums: Sequence[Sum], ratios: Sequence[float]) -> Sequence[Sum]:
    """The sums with one more trial; a sum that falls to 0 or below starts again."""
    values = [each.value + ratio for each, ratio in zip(sums, ratios, strict=True)]
    return [Sum(value, each.count + 1) if value > 0 else Sum() for each, value in zip(sums, values, strict=True)]


def skipped(sums: Sequence[Sum]) -> Sequence[Sum]:
    """The sums with one more trial that says nothing about them."""
    return [Sum(each.value, each.count + 1) if each.value > 0 else each for each in sums]


def ended_last(trials: Sequence[Watched], count: int) -> Sequence[Watched]:
    """The trials that ended last, so many."""
    return [*trials][len(trials) - min(count, len(trials)) :]


def earlier(known: Known, of: Sum, now: Watched) -> Watched:
    """The first trial of the same batch size since a sum was 0; otherwise the one of now."""
    same = [each for each in ended_last(known.recent, of.count) if each.seen.place == now.seen.place]
    return same[0] if same else now


def since_zero(trials: Sequence[Watched], *sums: Sequence[Sum]) -> Sequence[Watched]:
    """The trials since the earliest sum above 0 was 0, at most so many."""
    return ended_last(trials, min(RECENT, max(each.count for some in sums for each in some)))


def clearest(kept: Sequence[Watched]) -> Sequence[Watched]:
    """The trials of the batch size with most of them, of several the one that comes first."""
    place, _ = Counter(each.seen.place for each in kept).most_common(1)[0]
    return [each for each in kept if each.seen.place == place]


def factor_of(clear: Sequence[Watched], max_epochs: int) -> tuple[float, bool]:
    """How many times as many epochs the trials of a batch size take, and whether it is at least as many.

    That of the trial in the upper middle, by epochs. It is infinite if most trials missed, most of these at the end.
    """
    in_order = sorted(clear, key=lambda each: each.seen.log_epochs)
    middle = in_order[len(in_order) // 2]
    missed = [each for each in clear if not each.seen.reached]
    to_the_end = [each for each in missed if each.seen.epochs >= max_epochs]
    if len(missed) > len(clear) / 2 and len(to_the_end) > len(missed) / 2:
        return math.inf, False
    expected, *_ = clear[0].epochs
    return math.exp(middle.seen.log_epochs - expected), not middle.seen.reached


def with_epochs_changed(known: Known, count: int, number: int, job: Job) -> Known:
    """Only the epochs of the trials that ended last count, neither the prior jobs nor the first ones; costs stay."""
    kept = ended_last(known.recent, count)
    clear = clearest(kept)
    factor, at_least = factor_of(clear, job.max_epochs)
    since = min(each.seen.number for each in kept)
    return with_change(
        replace(
            known,
            epochs=[each.seen for each in kept],
            trusted=False,
            trials=len(kept),
            default_due=all(each.seen.place != job.default for each in kept),
            epochs_sums=(Sum(),) * 4,
        ),
        DetectedChange(ChangedQuantity.EPOCHS, since, job.sizes[clear[0].seen.place], factor, at_least, number),
    )


def with_cost_changed(known: Known, count: int, number: int, job: Job, constants: Constants) -> Known:
    """Only the costs of the trials that ended last count; without one, a batch size's cost is in doubt."""
    kept = [each for each in ended_last(known.recent, count) if each.seen.log_cost is not None]
    clear, numbers = clearest(kept), {each.seen.number for each in kept}
    log_factor = median((each.seen.log_cost or 0.0) - clear[0].log_cost[0] for each in clear)
    costs = []
    for place, old in enumerate(known.costs):
        logs = [each.seen.log_cost for each in kept if each.seen.place == place and each.seen.log_cost is not None]
        costs.append(Costs(logs) if logs else old.doubted(log_factor))
    window = [each if each.number in numbers else replace(each, log_cost=None) for each in known.window]
    after = replace(known, costs=costs, window=window, cost_sums=(Sum(),) * 4)
    size = job.sizes[clear[0].seen.place]
    # A small change is no news.
    if -constants.cost_least < log_factor < constants.cost_least:
        return without_old(after)
    return with_change(
        after, DetectedChange(ChangedQuantity.EPOCH_COST, min(numbers), size, math.exp(log_factor), False, number)
    )


def with_change(known: Known, change: DetectedChange) -> Known:
    """With a change that the next launch is to be told."""
    changes = [each for each in known.changes if each.quantity is not change.quantity]
    news = [*known.news] if change.quantity in known.news else [*known.news, change.quantity]
    return without_old(replace(known, changes=[*changes, change], news=news))


def without_old(known: Known) -> Known:
    """With only the trials that the sums still need."""
    return replace(known, recent=since_zero(known.recent, known.epochs_sums, known.cost_sums))


def with_trial(belief: Belief, seen: Seen, after: Known, job: Job) -> Known:
    """What is known after a trial: its luck, the sums, and without what no longer counts.

    Args:
        belief: The belief before the trial.
        seen: The trial.
        after: What is known with it, all of that aside.
        job: The job.
    """
    constants, before, place = belief.constants, belief.known, seen.place
    luck = before.luck * seen.chance
    if before.epochs and belief.reached.any():
        epochs, cost = of_epochs(belief, place), of_cost(belief, place)
        now = Watched(seen, epochs[:3], cost[:3])
        epochs_sums = added(
            before.epochs_sums,
            [
                epochs.like(earlier(before, each, now).epochs).ratios(seen.log_epochs, seen.reached, constants)[index]
                for index, each in enumerate(before.epochs_sums)
            ],
        )
        if seen.log_cost is None:
            cost_sums = skipped(before.cost_sums)
        else:
            cost_sums = added(
                before.cost_sums,
                [
                    cost.like(earlier(before, each, now).log_cost).ratios(seen.log_cost, True, constants)[index]
                    for index, each in enumerate(before.cost_sums)
                ],
            )
        recent = since_zero([*before.recent, now], epochs_sums, cost_sums)
        after = replace(after, epochs_sums=epochs_sums, cost_sums=cost_sums, recent=recent)
        largest = max(epochs_sums, key=lambda each: each.value)
        if largest.value > constants.threshold:
            after = with_epochs_changed(after, largest.count, seen.number, job)
        largest = max(cost_sums, key=lambda each: each.value)
        if largest.value > constants.cost_threshold:
            after = with_cost_changed(after, largest.count, seen.number, job, constants)
    misses = [*before.misses, place][-KEPT:]
    return replace(after, luck=1.0 if seen.reached else luck, misses=[] if seen.reached else misses)
