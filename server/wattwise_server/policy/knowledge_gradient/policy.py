"""The policy: what each event adds to the state, and what the state leads to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from wattwise.rules import ResolvedJob

from wattwise_server.domain import Arm, DetectedChange, Search, Stage, Trial, TrialOrigin
from wattwise_server.events import (
    SearchEvent,
    SearchEventOfBatchSize,
    TrialDecided,
    TrialRevived,
    TrialStarted,
    TrialUndecided,
)
from wattwise_server.policy.base import (
    ArmBelief,
    Choice,
    Exhausted,
    Prior,
)
from wattwise_server.policy.bounds import cost_bound, relaxation
from wattwise_server.policy.failures import choosable, counts_as_failure
from wattwise_server.policy.knowledge_gradient.belief import Belief, assumed_belief, belief
from wattwise_server.policy.knowledge_gradient.changes import with_detection
from wattwise_server.policy.knowledge_gradient.choice import Prospects, waiting_reason, without_success
from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.evidence import KEPT, Evidence, Result, of_priors
from wattwise_server.policy.knowledge_gradient.model import Model, model
from wattwise_server.policy.knowledge_gradient.state import Knowledge, read, read_changes
from wattwise_server.policy.knowledge_gradient.stopping import bounds
from wattwise_server.policy.knowledge_gradient.values import Outlook, Situation, guides

K = TypeVar("K")
V = TypeVar("V")

_LEAST_COST = 1e-100
"""Joules; a trial that cost less tells nothing about costs. Squares of costs must not vanish."""


class Newest(Generic[K, V]):
    """The value of the newest key, computed once."""

    def __init__(self) -> None:
        self._entry: tuple[K, V] | None = None

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """Returns the value of a key."""
        entry = self._entry
        if entry is None or entry[0] != key:
            entry = self._entry = key, compute()
        return entry[1]


class Memory:
    """The knowledge of a job, and what follows from it, computed once.

    Args:
        knowledge: The knowledge.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.belief: Newest[Model, Belief] = Newest()
        self.situation: Newest[tuple[ResolvedJob, tuple[Arm, ...]], Situation] = Newest()
        self.outlook: Newest[tuple[KnowledgeGradient, Situation], Outlook] = Newest()
        self.bounds: Newest[Outlook, Mapping[int, float | None]] = Newest()


# Large enough for the jobs that are launched at the same time; a state with what follows from it takes up to 300 KB.
@lru_cache(maxsize=64)
def _memory(notes: str) -> Memory:
    return Memory(read(notes))


class KnowledgeGradient:
    """The policy.

    Args:
        constants: The model's constants.

    Attributes:
        outlook_type: What computes the value of trials; a variant may have another one.
    """

    watches_epochs = False
    outlook_type = Outlook

    def __init__(self, constants: Constants = Constants()) -> None:  # noqa: B008 - it is immutable
        self.constants = constants

    def register(self, spec: ResolvedJob, priors: Sequence[Prior] = ()) -> Search:
        """Returns a search that starts at the default batch size, or at the best one of the prior jobs."""
        sizes = spec.batch_sizes
        weight = self.constants.prior_weight
        prior = tuple(of_priors(size, priors, weight) for size in sizes) if priors else ()
        start = next((each.best for each in priors if each.best in sizes), None)
        knowledge = Knowledge((Evidence(),) * len(sizes), prior, start)
        return Search(Stage.BANDIT, tuple(map(Arm, sizes)), 0, spec.default_batch_size, notes=knowledge.to_json())

    def next(
        self,
        spec: ResolvedJob,
        search: Search,
        trial_number: int,
        rng: np.random.Generator,  # noqa: ARG002 - it draws nothing
    ) -> Choice | Exhausted:
        """Returns the batch size whose trial costs least, less what its result is worth."""
        allowed = {arm.batch_size for arm in choosable(search, trial_number)}
        if not allowed:
            return Exhausted()
        places = np.array([place for place, size in enumerate(spec.batch_sizes) if size in allowed])
        memory = _memory(search.notes)
        place, reason = self._choice(spec, search, memory, places)
        knowledge = memory.knowledge
        news = [change.message for change in knowledge.changes if change.quantity in knowledge.news]
        return Choice(spec.batch_sizes[place], "; ".join((*news, reason)))

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        """Adds a decided trial to the evidence, and remembers whether the newest launch delivered a model."""
        if isinstance(event, SearchEventOfBatchSize):
            return search
        memory, number = _memory(search.notes), event.trial.number
        knowledge = memory.knowledge
        match event:
            case TrialDecided(trial) if trial.doubtful:
                knowledge = replace(knowledge, delivered=max(knowledge.delivered, number), retry=None)
            case TrialDecided(trial):
                knowledge = self._with_trial(spec, search, memory, trial)
            case TrialUndecided(trial) if counts_as_failure(trial) and _retried(knowledge, trial):
                knowledge = replace(knowledge, retry=number)
            case TrialStarted(trial) if knowledge.news and trial.origin is TrialOrigin.SEARCH:
                knowledge = replace(knowledge, news=())
            case TrialRevived() if number == knowledge.retry:
                knowledge = replace(knowledge, retry=None)
            case _:
                return search
        return replace(search, notes=knowledge.to_json())

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        """Returns β times the least expected cost; of the best known one, where starting again is cheaper, or None."""
        memory = _memory(search.notes)
        if not memory.knowledge.reached.any():
            # Only trials beyond the window have reached the target, if any: the cheapest of them is the guide.
            return cost_bound(spec, search, batch_size)
        outlook = self._outlook(spec, search, memory)
        bound = memory.bounds.get(outlook, lambda: bounds(outlook))[batch_size]
        return None if bound is None else relaxation(search.bound_stops) * bound

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        """Returns mean and deviation of the cost at every batch size; nothing before a trial has reached the target."""
        memory = _memory(search.notes)
        knowledge = memory.knowledge
        if not knowledge.reached.any():
            return [ArmBelief(arm.batch_size, 0.0, 0.0, 0.0, 0) for arm in search.arms]
        outlook = self._outlook(spec, search, memory)
        expected, trials = outlook.belief.expected, knowledge.reached + knowledge.missed
        # The variance of a lognormal variable is expm1(variance of the logarithm) times the squared mean.
        doubt, spread = np.expm1(outlook.belief.variance), np.expm1(outlook.belief.noise)
        models, crash = outlook.values.model, outlook.values.crash
        return [
            ArmBelief(
                arm.batch_size,
                -float(expected[place]),
                float(1 / (doubt[place] * expected[place] ** 2)),
                float(1 / (spread[place] * expected[place] ** 2)),
                int(trials[place]),
                float(models[place]),
                float(models[place] * math.sqrt(doubt[place])),
                float(crash[place]),
            )
            for place, arm in enumerate(search.arms)
        ]

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        """Returns the newest change of each quantity."""
        return read_changes(search.notes)

    def _choice(self, spec: ResolvedJob, search: Search, memory: Memory, places: NDArray[np.int64]) -> tuple[int, str]:
        knowledge, running = memory.knowledge, np.array([arm.running for arm in search.arms])
        if knowledge.reached[places].any():
            outlook = self._outlook(spec, search, memory)
            return Prospects(outlook, places, running, outlook.best_of(places)).choice()
        start = spec.batch_sizes.index(spec.default_batch_size if knowledge.first is None else knowledge.first)
        ended = int(knowledge.missed.sum()) + sum(arm.num_failed for arm in search.arms)
        if self.constants.waves and start in places and running[start] and not ended and not knowledge.known.any():
            prior = model(spec.batch_sizes, self.constants)
            assumed = assumed_belief(prior, knowledge.prior, start, spec.max_epochs)
            situation = Situation.of(spec, search)
            outlook = self.outlook_type(situation, knowledge, assumed, np.array([start]), self.constants)
            return Prospects(outlook, places, running, start).plan()
        converged = any(arm.num_converged for arm in search.arms)
        if self.constants.waves and start in places and running[start] > ended and not converged:
            return start, waiting_reason(spec.batch_sizes[start], int(running[start]), ended)
        return without_success(spec, search, knowledge, places)

    def _with_trial(self, spec: ResolvedJob, search: Search, memory: Memory, trial: Trial) -> Knowledge:
        """Returns the knowledge with a trial that ran to a decision, changes detected."""
        knowledge = memory.knowledge
        if trial.last is None or trial.cost is None:
            return knowledge
        place, epochs = spec.batch_sizes.index(trial.batch_size), trial.last.epoch
        epoch_cost = math.log(trial.cost / epochs) if trial.cost > _LEAST_COST else None
        result = Result(trial.number, place, epochs, epoch_cost, trial.target_reached)
        outlook = self._outlook(spec, search, memory) if knowledge.reached.any() else None
        if outlook is not None and not result.reached:
            result = result._replace(chance=outlook.chance(place, result.log_epochs))
        due = knowledge.default_due and trial.batch_size != spec.default_batch_size
        after = replace(knowledge.with_result(result, spec.window_size), default_due=due)
        if outlook is not None:
            after = with_detection(outlook, result, after)
        if trial.target_reached:
            newest = max(after.delivered, trial.number) if _launched(trial) else after.delivered
            return replace(after, delivered=newest, retry=None, luck=1.0, misses=())
        after = replace(after, luck=after.luck * result.chance, misses=(*after.misses, place)[-KEPT:])
        return replace(after, retry=trial.number) if _retried(after, trial) else after

    def _outlook(self, spec: ResolvedJob, search: Search, memory: Memory) -> Outlook:
        """Returns the value of trials, once a trial has reached the target."""
        # While a trial runs, the arms are the same object; what is running does not matter otherwise.
        situation = memory.situation.get((spec, search.arms), lambda: Situation.of(spec, search))
        return memory.outlook.get((self, situation), lambda: self._new_outlook(situation, memory))

    def _new_outlook(self, situation: Situation, memory: Memory) -> Outlook:
        prior, known = model(situation.spec.batch_sizes, self.constants), memory.knowledge
        now = memory.belief.get(prior, lambda: belief(prior, known.evidence, known.prior))
        return self.outlook_type(situation, known, now, guides(situation, known), self.constants)


def _launched(trial: Trial) -> bool:
    """Returns whether a trial is a launch of the job, of which the next one may be a retry."""
    return trial.origin is not TrialOrigin.IMPORTED


def _retried(knowledge: Knowledge, trial: Trial) -> bool:
    """Returns whether the next launch repeats a trial: a launch without a model, since which none has delivered."""
    newest = trial.number > knowledge.delivered  # pragma: no mutate: the one that delivered has ended
    return newest and _launched(trial)


POLICY = KnowledgeGradient()
