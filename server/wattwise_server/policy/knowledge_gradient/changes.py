"""Detection of changes of a job: in the epochs to the target, or in the cost of an epoch.

For each quantity there are four alternatives to "nothing has changed": values are a little larger or smaller, or far
larger or smaller. Each has a cumulative sum of the ln of the likelihood ratio of a trial's result, as predicted by the
alternative and by the belief before it; a sum that falls below 0 starts again at 0 (Page, "Continuous Inspection
Schemes", Biometrika 41, 1954). If the predictions are right and trials are independent, a sum exceeds a threshold h
with a probability of about e^−h between two times that it is 0.

How much trials differ is taken from before the sum was last 0, since a change soon looks like noise.

When a sum exceeds it, only the trials since it was 0 count. After a change of the epochs, costs of epochs stay known.
After a change of the cost of an epoch, epochs stay known; what an epoch costs at the batch sizes without a trial since
then is uncertain: it changed as much, or not at all, or something in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from wattwise.rules import ResolvedJob

from wattwise_server.domain import ChangedQuantity, DetectedChange, Moments
from wattwise_server.policy.knowledge_gradient.belief import Belief
from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.evidence import Result, with_results, without_epochs
from wattwise_server.policy.knowledge_gradient.state import (
    CUSUMS,
    Comparison,
    Cusum,
    Expected,
    Knowledge,
    newest,
    recent,
)
from wattwise_server.policy.knowledge_gradient.values import Outlook

_LEAST = -5.0
"""ln of the least likelihood ratio: an alternative that predicts nothing like the result is not ruled out for ever."""

_TINY = 1e-12


class Prediction(NamedTuple):
    """The prediction of a trial in one quantity, if nothing has changed.

    Attributes:
        variance: Of the logarithm in a usual trial, with that of the belief.
        freedom: Degrees of freedom of that variance.
        never: Probability that the trial never reaches the target.
        unusual: Probability that it is unusual, if it reaches the target.
        unusual_variance: What is added to the variance of unusual trials.
        jump, jump_variance: ln of a large change: its size and its variance.
        broken: Probability that a trial never reaches the target after a large change for the worse.
    """

    variance: float
    freedom: float
    never: float
    unusual: float
    unusual_variance: float
    jump: float
    jump_variance: float
    broken: float


def with_detection(outlook: Outlook, result: Result, after: Knowledge) -> Knowledge:
    """Updates the detectors with a trial, and removes what no longer counts if one of them fired.

    Args:
        outlook: What was known before the trial.
        result: The trial.
        after: What is known with the trial, detectors aside.
    """
    spec, before, belief, constants = outlook.spec, outlook.knowledge, outlook.belief, outlook.constants
    place = result.place
    epochs, cost = _epochs(belief, place, constants), _epoch_cost(belief, place, constants)
    now = Comparison(
        result,
        Expected(float(belief.epochs[place]), epochs.variance, epochs.freedom),
        Expected(float(belief.cost[place]), cost.variance, cost.freedom),
    )
    epochs_sums, cost_sums = before.epochs_sums, before.cost_sums
    usual = [_earlier(before, each, now).epochs for each in epochs_sums]
    # Most sums compare with the same spread.
    found = {
        each: _ratios(result.log_epochs, result.reached, now.epochs, each, epochs, constants) for each in set(usual)
    }
    epochs_sums = _with_surprises(epochs_sums, [found[each] for each in usual], constants)
    if result.epoch_cost is not None:
        usual = [_earlier(before, each, now).epoch_cost for each in cost_sums]
        found = {each: _ratios(result.epoch_cost, True, now.epoch_cost, each, cost, constants) for each in set(usual)}
        cost_sums = _with_surprises(cost_sums, [found[each] for each in usual], constants)
    else:
        cost_sums = tuple(each._replace(trials=each.trials + 1) if each.value else each for each in cost_sums)
    trials = recent((*before.recent, now), (*epochs_sums, *cost_sums))
    after = replace(after, epochs_sums=epochs_sums, cost_sums=cost_sums, recent=trials)
    largest = max(epochs_sums)
    if largest.value > constants.threshold:
        after = _with_new_epochs(spec, after, largest.trials, result.number)
    largest = max(cost_sums)
    if largest.value > constants.cost_threshold:
        after = _with_new_costs(spec, after, largest.trials, result.number, constants)
    return after


def _earlier(before: Knowledge, sum_: Cusum, now: Comparison) -> Comparison:
    """Returns the first trial of the same batch size since a sum was 0; or the one of now.

    How much trials differ is taken from it: the newest estimate has already followed a change.
    """
    place = now.result.place
    return next((each for each in newest(before.recent, sum_.trials) if each.result.place == place), now)


def _epochs(belief: Belief, place: int, constants: Constants) -> Prediction:
    _, unusual, reaches = belief.rates
    always = float(belief.edges.always[place])
    return Prediction(
        float(belief.epochs_cov[place, place] + belief.noise[place]),
        float(belief.freedom[place]),
        always + (1 - always) * unusual * (1 - reaches),
        unusual * reaches / (1 - unusual + unusual * reaches),
        constants.unusual_spread**2,
        constants.jump,
        constants.jump_spread**2,
        constants.broken,
    )


def _epoch_cost(belief: Belief, place: int, constants: Constants) -> Prediction:
    return Prediction(
        float(belief.cost_cov[place, place] + belief.cost_noise),
        belief.cost_freedom,
        0.0,
        constants.cost_unusual,
        constants.cost_unusual_spread**2,
        constants.cost_jump,
        constants.cost_jump_spread**2,
        0.0,
    )


def surprises(error: float, reached: bool, expected: Prediction, constants: Constants) -> tuple[float, ...]:
    """Returns ln of the likelihood ratio of each alternative.

    The alternatives are: a little larger, a little smaller, far larger, far smaller.

    Args:
        error: ln of the result, less what was expected.
        reached: Whether the result is known, rather than only to be larger.
        expected: What was expected.
        constants: The constants.
    """
    never, unusual, variance = expected.never, expected.unusual, expected.variance

    def component(mean: float, more: float) -> float:
        deviation = math.sqrt(variance + more)
        z = (error - mean) / deviation
        return _density(z, expected.freedom) / deviation if reached else _above(z, expected.freedom)

    def likelihood(mean: float) -> float:
        some = (1 - unusual) * component(mean, 0.0) + unusual * component(0.0, expected.unusual_variance)
        return _with_misses(some, never, reached=reached)

    shift = constants.shift * math.sqrt(variance)
    larger, smaller = (
        _with_misses(component(jump, expected.jump_variance), misses, reached=reached)
        for jump, misses in ((expected.jump, max(expected.broken, never)), (-expected.jump, never))
    )
    usual = max(likelihood(0.0), _TINY)
    alternatives = likelihood(shift), likelihood(-shift), larger, smaller
    return tuple(math.log(max(each, _TINY) / usual) for each in alternatives)


def _with_misses(likelihood: float, misses: float, *, reached: bool) -> float:
    return (1 - misses) * likelihood if reached else misses + (1 - misses) * likelihood


def _density(t: float, freedom: float) -> float:
    """Returns the density of Student's t distribution: the variance is an estimate."""
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * (freedom + 1) * math.log1p(t * t / freedom)
    return math.exp(log) / math.sqrt(freedom * math.pi)


def _above(t: float, freedom: float) -> float:
    """Returns P(T > t) of Student's t distribution (Wallace, Ann. Math. Stat. 30(4), 1959; off by a few percent)."""
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 0.5 * math.erfc(math.copysign(z, t) / math.sqrt(2))


def _ratios(  # noqa: PLR0917 - the result, what was expected of it, and how
    log: float, reached: bool, now: Expected, usual: Expected, prediction: Prediction, constants: Constants
) -> tuple[float, ...]:
    """Returns the surprises beside the newest mean, with the spread that was expected when a sum was last 0."""
    spread = prediction._replace(variance=min(prediction.variance, usual.variance), freedom=usual.freedom)
    return surprises(log - now.mean, reached, spread, constants)


def _with_surprises(sums: Sequence[Cusum], found: Sequence[Sequence[float]], constants: Constants) -> tuple[Cusum, ...]:
    """Returns the sums with the surprises of a trial; each sum has its own."""

    def added(before: Cusum, ratio: float) -> Cusum:
        value = before.value + min(max(ratio, _LEAST), constants.most)
        return Cusum(value, before.trials + 1) if value > 0 else Cusum()

    return tuple(added(sums[index], found[index][index]) for index in range(len(sums)))


def _with_new_epochs(spec: ResolvedJob, knowledge: Knowledge, count: int, number: int) -> Knowledge:
    """Returns the knowledge after a change of the epochs: only the newest trials tell them, and no prior job."""
    kept = newest(knowledge.recent, count)
    numbers = {each.result.number for each in kept}
    clearest = _clearest(kept)
    default = spec.batch_sizes.index(spec.default_batch_size)
    changed = replace(
        knowledge,
        evidence=with_results(without_epochs(knowledge.evidence), [each.result for each in kept], costs=False),
        prior=(),
        first=None,
        trials=len(kept),
        default_due=all(each.result.place != default for each in kept),
        window=tuple(each if each.number in numbers else each._replace(epochs=0) for each in knowledge.window),
        epochs_sums=CUSUMS,
    )
    change = DetectedChange(
        ChangedQuantity.EPOCHS, min(numbers), _size(spec, clearest), *_factor(spec, clearest), number
    )
    return _with_change(changed, change)


def _factor(spec: ResolvedJob, clearest: Sequence[Comparison]) -> tuple[float, bool]:
    """Returns how many times as many epochs the trials of a batch size take, and whether that is a lower limit.

    A trial that missed the target before `max_epochs` was stopped: it tells a lower limit.
    """
    ordered = sorted(clearest, key=lambda each: each.result.log_epochs)
    middle = ordered[len(ordered) // 2]
    missed = [each for each in clearest if not each.result.reached]
    if 2 * len(missed) > len(clearest) and sum(each.result.epochs >= spec.max_epochs for each in missed) * 2 > len(
        missed
    ):
        return math.inf, False
    factor = math.exp(middle.result.log_epochs - clearest[0].epochs.mean)
    return factor, not middle.result.reached


def _with_new_costs(
    spec: ResolvedJob, knowledge: Knowledge, count: int, number: int, constants: Constants
) -> Knowledge:
    """Returns the knowledge after a change of the cost of an epoch: the newest trials tell it; others are in doubt.

    A small change is adopted without a word: the speed of a machine drifts.
    """
    kept = [each for each in newest(knowledge.recent, count) if each.result.epoch_cost is not None]
    numbers = {each.result.number for each in kept}
    clearest = _clearest(kept)
    log_factor = median((each.result.epoch_cost or 0.0) - clearest[0].epoch_cost.mean for each in clearest)
    places = {each.result.place for each in kept}
    earlier = [
        known._replace(epoch_cost=Moments(), cost_doubt=0.0) if place in places else known.with_doubt(log_factor)
        for place, known in enumerate(knowledge.evidence)
    ]
    fresh = with_results(earlier, [each.result for each in kept], epochs=False)
    window = tuple(each if each.number in numbers else each._replace(epoch_cost=None) for each in knowledge.window)
    changed = replace(knowledge, evidence=fresh, window=window, cost_sums=CUSUMS)
    if abs(log_factor) < constants.cost_least:
        return _trimmed(changed)
    factor = math.exp(log_factor)
    return _with_change(
        changed, DetectedChange(ChangedQuantity.EPOCH_COST, min(numbers), _size(spec, clearest), factor, False, number)
    )


def _clearest(kept: Sequence[Comparison]) -> Sequence[Comparison]:
    """Returns the trials of the batch size that has most of them."""
    place, _ = Counter(each.result.place for each in kept).most_common(1)[0]
    return [each for each in kept if each.result.place == place]


def _size(spec: ResolvedJob, clearest: Sequence[Comparison]) -> int:
    return spec.batch_sizes[clearest[0].result.place]


def _with_change(knowledge: Knowledge, change: DetectedChange) -> Knowledge:
    """Returns the knowledge with a change, in place of an earlier one of the same quantity."""
    others = tuple(each for each in knowledge.changes if each.quantity is not change.quantity)
    news = tuple(dict.fromkeys((*knowledge.news, change.quantity)))
    return _trimmed(replace(knowledge, changes=(*others, change), news=news))


def _trimmed(knowledge: Knowledge) -> Knowledge:
    """Returns the knowledge without the trials that no sum has added up."""
    return replace(knowledge, recent=recent(knowledge.recent, (*knowledge.epochs_sums, *knowledge.cost_sums)))
