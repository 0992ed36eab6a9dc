"""The evidence: results of trials, and the sufficient statistics of the trials of each batch size.

These differ from the sums of `domain.Arm`: they are of epochs instead of costs, a trial that reached the target above
its bound has reached it, and they leave out what no longer counts after a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from wattwise_server.domain import Moments
from wattwise_server.policy.base import Prior
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats

KEPT = 16
"""Trials of a batch size that are kept one by one, of those that reached the target and of those that missed it."""

_UNUSUAL = 3.0
"""Standard deviations from the median at which a trial that is no longer kept by itself counts as unusual."""

_LEAST_SPREAD = 0.1
"""Least standard deviation of ln E for that."""


class Result(NamedTuple):
    """The result of a trial that ran to a decision.

    Attributes:
        number: Its number.
        place: Index of its batch size.
        epochs: Epochs that it trained; 0 if they no longer count.
        epoch_cost: ln of the cost of one; None if it cost nothing, or if that no longer counts.
        reached: Whether it reached the target.
        chance: Of a trial that missed the target, the probability that it would; 1 while nothing was known.
    """

    number: int
    place: int
    epochs: int
    epoch_cost: float | None
    reached: bool
    chance: float = 1.0

    @property
    def log_epochs(self) -> float:
        """Ln E, or ln of a lower bound of E: after n epochs without the target, E is at least n + 1."""
        return math.log(self.epochs if self.reached else self.epochs + 0.5)


class Evidence(NamedTuple):
    """The sufficient statistics of the trials of one batch size.

    Attributes:
        reached, missed: Epochs of the newest trials that reached the target, and of the newest that missed it.
        earlier: ln E of the earlier ones that reached it, unusual ones moved closer.
        earlier_unusual: The number of these unusual ones.
        earlier_missed: The number of earlier ones that missed it.
        luck: Probability of the misses since a trial last reached the target.
        epoch_cost: ln c of all trials.
        cost_doubt: Variance of a systematic error of `epoch_cost`, after the cost of other batch sizes has changed.
        weight: What a trial counts; less than 1 for prior jobs with many trials.
    """

    reached: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    earlier: Moments = Moments()
    earlier_unusual: int = 0
    earlier_missed: int = 0
    luck: float = 1.0
    epoch_cost: Moments = Moments()
    cost_doubt: float = 0.0
    weight: float = 1.0

    @property
    def num_reached(self) -> int:
        """The number of trials that reached the target."""
        return len(self.reached) + self.earlier.count

    @property
    def num_missed(self) -> int:
        """The number of trials that missed it."""
        return len(self.missed) + self.earlier_missed

    def with_miss(self, epochs: int, chance: float) -> Evidence:
        """Adds a trial that missed the target, with the probability that it would."""
        missed = (*self.missed, epochs)
        more = max(0, len(missed) - KEPT)
        luck = self.luck * chance
        return self._replace(missed=missed[more:], earlier_missed=self.earlier_missed + more, luck=luck)

    def with_success(self, epochs: int) -> Evidence:
        """Adds a trial that reached the target."""
        reached = (*self.reached, epochs)
        if len(reached) <= KEPT:
            return self._replace(reached=reached, luck=1.0)
        logs = [math.log(each) for each in reached]
        middle = median(logs)
        # 1.4826 times the median absolute deviation of normal values is their standard deviation.
        reach = _UNUSUAL * max(_LEAST_SPREAD, 1.4826 * median(abs(each - middle) for each in logs))
        oldest = min(max(logs[0], middle - reach), middle + reach)
        unusual = self.earlier_unusual + (oldest != logs[0])
        return self._replace(reached=reached[1:], earlier=self.earlier.add(oldest), earlier_unusual=unusual, luck=1.0)

    def with_cost(self, epoch_cost: float) -> Evidence:
        """Adds the ln c of a trial."""
        before = Moments() if self.cost_doubt else self.epoch_cost
        return self._replace(epoch_cost=before.add(epoch_cost), cost_doubt=0.0)

    def with_doubt(self, log_factor: float) -> Evidence:
        """Doubts the cost of an epoch after it changed at other batch sizes: it may have changed here, or not."""
        if not self.epoch_cost.count:
            return self
        moved = Moments(1, self.epoch_cost.mean + 0.5 * log_factor, 0.0)
        return self._replace(epoch_cost=moved, cost_doubt=self.cost_doubt + 0.25 * log_factor**2)


def num_reached(evidence: Iterable[Evidence]) -> Floats:
    """Returns the number of trials that reached the target, by batch size (n,)."""
    return np.array([each.num_reached for each in evidence], float)


def with_results(
    evidence: Sequence[Evidence], results: Iterable[Result], *, epochs: bool = True, costs: bool = True
) -> tuple[Evidence, ...]:
    """Returns the evidence with more trials, or with only their epochs or only their costs."""
    every = list(evidence)
    for result in results:
        known = every[result.place]
        if costs and result.epoch_cost is not None:
            known = known.with_cost(result.epoch_cost)
        if epochs and result.epochs:
            if result.reached:
                known = known.with_success(result.epochs)
            else:
                known = known.with_miss(result.epochs, result.chance)
        every[result.place] = known
    return tuple(every)


def without_epochs(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Returns what is left if the epochs are no longer known."""
    return tuple(Evidence(epoch_cost=known.epoch_cost, cost_doubt=known.cost_doubt) for known in evidence)


def with_doubts(evidence: Sequence[Evidence], before: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Returns the evidence of a window, with the doubted costs of an epoch where no trial in the window tells it."""
    return tuple(
        now._replace(epoch_cost=old.epoch_cost, cost_doubt=old.cost_doubt)
        if old.cost_doubt and not now.epoch_cost.count
        else now
        for now, old in zip(evidence, before, strict=True)
    )


def of_priors(batch_size: int, priors: Sequence[Prior], largest_weight: float) -> Evidence:
    """Returns the evidence of prior jobs about the epochs of one batch size, with a weight of a few trials."""
    reached, missed, longest = Moments(), 0, 0.0
    for prior in priors:
        if batch_size in prior.epochs:
            reached = reached.merge(prior.epochs[batch_size])
        if batch_size in prior.missed:
            misses = prior.missed[batch_size]
            missed, longest = missed + misses.number, max(longest, misses.longest)
    kept = min(missed, KEPT)
    if missed > kept:
        # In the same proportion.
        share = kept / missed
        reached = Moments(round(share * reached.count), reached.mean, share * reached.deviation)
    trials = reached.count + kept
    weight = min(1.0, largest_weight / trials) if trials else 1.0
    return Evidence(missed=(round(math.exp(longest)),) * kept, earlier=reached, weight=weight)
