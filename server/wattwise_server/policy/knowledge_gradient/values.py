"""The value of a trial: what trials and models are expected to cost, and the best known batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from wattwise.rules import ResolvedJob

from wattwise_server.domain import Arm, Search
from wattwise_server.policy.failures import failing
from wattwise_server.policy.knowledge_gradient.belief import Belief
from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats
from wattwise_server.policy.knowledge_gradient.state import Knowledge
from wattwise_server.policy.knowledge_gradient.unusual import later

_MOST_CERTAIN = 0.9999
"""Largest probability of a miss or a crash: some trial delivers."""


class Reliability(NamedTuple):
    """The failures of a batch size, and whether it may be chosen.

    The counts are those of `Arm`, whatever the window: the rules for failures need all trials. They are 0 for a batch
    size that does not fit into memory, which says nothing about how often the others crash.
    """

    num_decided: int
    num_failed: int
    failed_cost: float
    available: bool
    failing: bool

    @classmethod
    def of(cls, arm: Arm) -> Reliability:
        """Returns the reliability of an arm."""
        counts = (0, 0, 0.0) if arm.excluded else (arm.num_decided, arm.num_failed, arm.failed_cost)
        return cls(*counts, arm.available, failing(arm))


class Situation(NamedTuple):
    """All that an outlook depends on besides what is known: the job, and its batch sizes, ascending."""

    spec: ResolvedJob
    arms: tuple[Reliability, ...]

    @classmethod
    def of(cls, spec: ResolvedJob, search: Search) -> Situation:
        """Returns the situation of a search."""
        return cls(spec, tuple(map(Reliability.of, search.arms)))


@dataclass(frozen=True)
class Values:
    """See the glossary of the package. All arrays by batch size, at the end (…, n).

    Attributes:
        ok, miss, crash: Expected cost of a trial that reaches the target, in joules; q; r.
        crash_share: What a crash costs, as a share of `ok`.
        log_limit: ln of the cost at which a trial ends without reaching the target.
    """

    ok: Floats
    miss: Floats
    crash: Floats
    crash_share: float
    log_limit: Floats

    @cached_property
    def trial(self) -> Floats:
        """A: expected cost of a trial, in joules."""
        ended = (1 - self.miss) * self.ok + self.miss * np.exp(self.log_limit)
        return (1 - self.crash) * ended + self.crash * self.crash_share * self.ok

    @cached_property
    def model(self) -> Floats:
        """R: expected cost of a model if only this batch size is used, in joules."""
        return self.trial / self.delivers

    @cached_property
    def delivers(self) -> Floats:
        """Probability that a trial delivers a model."""
        return (1 - self.crash) * (1 - self.miss)


@dataclass(frozen=True, eq=False)
class Outlook:
    """The value of trials in a situation, whatever is running.

    Attributes:
        situation, knowledge, belief: The job.
        guides: Indices of the batch sizes that set the bound of the others; see `guides`.
        constants: The constants.
    """

    situation: Situation
    knowledge: Knowledge
    belief: Belief
    guides: NDArray[np.int64]
    constants: Constants

    @property
    def spec(self) -> ResolvedJob:
        """The job."""
        return self.situation.spec

    @cached_property
    def values(self) -> Values:
        """The values of all batch sizes."""
        belief = self.belief
        ok, miss = self.ends(slice(None), belief.mean, belief.variance + belief.noise, self.always)
        arms = self.situation.arms
        failed = np.array([float(arm.num_failed) for arm in arms])
        # A batch size without trials is expected to crash as often as the others, after the same share of its cost.
        decided = np.array([float(arm.num_decided) for arm in arms])
        weight = self.constants.crash_weight
        usual = failed.sum() / (failed.sum() + decided.sum() + weight)
        crash = np.minimum((failed + weight * usual) / (failed + decided + weight), _MOST_CERTAIN)
        lost = sum(arm.failed_cost for arm in arms)
        share = min(1.0, lost / float(failed @ ok)) if lost else 0.0
        return Values(ok, miss, crash, share, self.log_limit)

    def ends(
        self,
        places: NDArray[np.int64] | slice,
        mean: Floats,
        spread: Floats,
        always: Floats,
        again: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Returns ok and q at some batch sizes (m,), for a mean and a variance of ln C (…, m).

        q is the share of trials that miss the target. A trial is too slow, is unusual, or its batch size always misses.
        Too slow by `max_epochs` is too expensive at the expected cost of an epoch, which overrates such a miss a little
        while that cost is uncertain. At batch sizes that reach the target their own unlucky misses count as well.

        Args:
            places: The batch sizes.
            mean: Mean of ln C.
            spread: Its variance.
            always: Probability that a batch size always misses (…, m).
            again: Probability that one that has only missed misses again, if it does not always (…, m); None: what is
                believed.
        """
        log_limit, weight = self.log_limit[places], self.constants.model_weight
        usual = later(log_limit - mean, spread, self.belief.rates, self.constants)
        reached, unlucky = self.knowledge.reached[places], self.belief.unlucky[places]
        counted = (unlucky + weight * usual) / (unlucky + reached + weight)
        share = np.where(reached > 0, counted, np.maximum(usual, self.again[places] if again is None else again))
        miss = np.minimum(always + (1 - always) * share, _MOST_CERTAIN)
        return np.exp(np.minimum(mean + 0.5 * spread, log_limit)), miss

    @cached_property
    def limit(self) -> float:
        """The cost at which trials are stopped: β times the least expected cost of a trial that reaches the target."""
        if self.spec.beta_knob is None or not len(self.guides):
            return math.inf
        return self.spec.beta_knob * float(self.belief.expected[self.guides].min())

    @cached_property
    def log_limit(self) -> Floats:
        """Ln of the cost at which a trial ends without reaching the target, by batch size (n,)."""
        return np.minimum(np.log(self.limit), self.belief.cost + math.log(self.spec.max_epochs + 0.5))

    @cached_property
    def again(self) -> Floats:
        """The probability that a batch size that has only missed misses again, if it does not always do (n,)."""
        belief, misses = self.belief, self.belief.misses
        if not misses.only.any():
            return np.zeros(len(misses.only))
        late = self.log_limit - belief.cost - misses.epochs
        variance = misses.variance + belief.noise + belief.cost_cov.diagonal()
        return np.where(misses.only, later(late, variance, belief.rates, self.constants), 0.0)

    @cached_property
    def unlucky_rate(self) -> Floats:
        """The share of trials that miss the target although they were expected to reach it, by batch size (n,)."""
        belief, knowledge, weight = self.belief, self.knowledge, self.constants.model_weight
        counted = belief.unlucky + weight * belief.rates.unusual
        return np.asarray(counted / (knowledge.missed + knowledge.reached + weight))

    def chance(self, place: int, log_epochs: float) -> float:
        """Returns the probability that a trial of a batch size misses the target for so long."""
        belief = self.belief
        variance = belief.epochs_cov[place, place] + belief.noise[place]
        late = np.array([log_epochs - belief.epochs[place]])
        slow = float(later(late, variance, belief.rates, self.constants)[0])
        always = float(belief.edges.always[place])
        return always + (1 - always) * max(slow, float(self.unlucky_rate[place]))

    @cached_property
    def begun(self) -> Floats:
        """The probability that a batch size that has reached the target always misses it by now (n,).

        Like an unusual trial, that is the rarer the longer it has not happened.
        """
        constants, weight = self.constants, self.constants.unusual_weight
        luck = np.array([each.luck for each in self.knowledge.evidence])
        begins = constants.begins * weight / (weight + self.knowledge.trials)
        return np.where(luck < 1, begins / (begins + (1 - begins) * luck), 0.0)

    @cached_property
    def always(self) -> Floats:
        """The probability that a batch size always misses the target (n,)."""
        edges = self.belief.edges
        return np.where(edges.reached, self.begun, edges.always)

    def best_of(self, places: NDArray[np.int64]) -> int:
        """Returns the batch size with the least R, of some of which at least one has reached the target.

        One that keeps failing and is due again is the best only if all of those that reached the target do.
        """
        reached = places[self.belief.edges.reached[places]]
        working = np.array([place for place in reached if not self.situation.arms[place].failing], np.int64)
        candidates = working if len(working) else reached
        return int(candidates[np.argmin(self.values.model[candidates])])

    @cached_property
    def best(self) -> int:
        """The best known batch size, at best one that may be chosen."""
        return self.best_of(self.guides if len(self.guides) else np.flatnonzero(self.knowledge.reached))


def guides(situation: Situation, knowledge: Knowledge) -> NDArray[np.int64]:
    """Returns the indices of the batch sizes that have reached the target and may be chosen, failing ones last."""
    arms = situation.arms
    reached = [place for place in np.flatnonzero(knowledge.reached).tolist() if arms[place].available]
    working = [place for place in reached if not arms[place].failing]
    return np.array(working or reached, np.int64)
