"""The policy: what each event adds to the state, and what the state leads to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wattwise_server.domain import Arm, DetectedChange, JobSpec, Moments, Search, Stage, Trial, TrialOrigin
from wattwise_server.policy.base import (
    ArmBelief,
    Banned,
    Choice,
    Decided,
    Dispatched,
    Event,
    Exhausted,
    Failed,
    Prior,
    Readmitted,
    Revived,
    Unbanned,
)
from wattwise_server.policy.cost import cost_bound
from wattwise_server.policy.failures import choosable, counts_as_failure, failing
from wattwise_server.policy.knowledge_gradient.belief import Belief, model
from wattwise_server.policy.knowledge_gradient.changes import watched
from wattwise_server.policy.knowledge_gradient.choice import Prospects, first, still_hopeful
from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.evidence import (
    KEPT,
    Evidence,
    Knowledge,
    Seen,
    read,
    read_changes,
    with_seen,
)
from wattwise_server.policy.knowledge_gradient.values import Outlook, guides

LARGEST_WINDOW = 1000
"""The window is part of the state, which is saved with every trial."""

_LEAST_COST = 1e-100
"""Joules; a trial that cost less tells nothing about costs. Squares of costs must not vanish."""


class KnowledgeGradient:
    """The policy.

    Args:
        constants: The model's constants.
    """

    watches_epochs = False

    def __init__(self, constants: Constants = Constants()) -> None:  # noqa: B008 - it is immutable
        self.constants = constants

    def faults(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """The window is part of the state."""
        if spec.window_size > LARGEST_WINDOW:
            yield "window_size", f"is {spec.window_size}; use at most {LARGEST_WINDOW}, or 0 for all trials"

    def register(self, spec: JobSpec, priors: Sequence[Prior] = ()) -> Search:
        """A search that starts at the default batch size, or at the best one of the prior jobs."""
        sizes = spec.batch_sizes
        prior = tuple(self._prior(size, priors) for size in sizes) if priors else ()
        start = next((each.best for each in priors if each.best in sizes), None)
        knowledge = Knowledge((Evidence(),) * len(sizes), prior, start)
        return Search(Stage.BANDIT, tuple(map(Arm, sizes)), 0, spec.default_batch_size, notes=knowledge.to_json())

    def next(
        self,
        spec: JobSpec,
        search: Search,
        trial_number: int,
        rng: np.random.Generator,  # noqa: ARG002 - it draws nothing
    ) -> Choice | Exhausted:
        """The batch size whose trial costs least, less what its result is worth."""
        allowed = {arm.batch_size for arm in choosable(search, trial_number)}
        if not allowed:
            return Exhausted()
        places = np.array([place for place, size in enumerate(spec.batch_sizes) if size in allowed])
        knowledge = read(search.notes)
        place, reason = self._choice(spec, search, knowledge, places)
        news = [change.message for change in knowledge.changes if change.quantity in knowledge.news]
        return Choice(spec.batch_sizes[place], "; ".join((*news, reason)))

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Adds a decided trial to the evidence, and remembers whether the newest launch delivered a model."""
        if isinstance(event, Banned | Unbanned | Readmitted):
            return search
        knowledge, number = read(search.notes), event.trial.number
        match event:
            case Decided(trial) if trial.doubtful:
                knowledge = replace(knowledge, delivered=max(knowledge.delivered, number), retry=None)
            case Decided(trial):
                knowledge = self._learned(spec, search, knowledge, trial)
            case Failed(trial) if counts_as_failure(trial) and _retried(knowledge, trial):
                knowledge = replace(knowledge, retry=number)
            case Dispatched(trial) if knowledge.news and trial.origin is TrialOrigin.SEARCH:
                knowledge = replace(knowledge, news=())
            case Revived() if number == knowledge.retry:
                knowledge = replace(knowledge, retry=None)
            case _:
                return search
        return replace(search, notes=knowledge.to_json())

    def bound(self, spec: JobSpec, search: Search, batch_size: int) -> float | None:
        """β times the least expected cost; for the best known batch size where starting again is cheaper, or None."""
        knowledge = read(search.notes)
        if not knowledge.reached.any():
            # Only trials beyond the window have reached the target, if any: the cheapest of them is the guide.
            return cost_bound(spec, search, batch_size)
        return self._outlook(spec, search, knowledge).bounds[batch_size]

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """Mean and deviation of the cost at every batch size; nothing before a trial has reached the target."""
        knowledge = read(search.notes)
        if not knowledge.reached.any():
            return [ArmBelief(arm.batch_size, 0.0, 0.0, 0.0, 0) for arm in search.arms]
        outlook = self._outlook(spec, search, knowledge)
        belief = outlook.belief
        trials = knowledge.reached + knowledge.missed
        # Of lognormal variables: the variance is expm1(variance of the logarithm) times the squared mean.
        doubt, spread = np.expm1(belief.variance), np.expm1(belief.noise)
        models, crash = outlook.values.model, outlook.values.crash
        return [
            ArmBelief(
                arm.batch_size,
                -float(belief.expected[place]),
                float(1 / (doubt[place] * belief.expected[place] ** 2)),
                float(1 / (spread[place] * belief.expected[place] ** 2)),
                int(trials[place]),
                float(models[place]),
                float(models[place] * math.sqrt(doubt[place])),
                float(crash[place]),
            )
            for place, arm in enumerate(search.arms)
        ]

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        """The newest change of each quantity."""
        return read_changes(search.notes)

    # Choice

    def _choice(
        self, spec: JobSpec, search: Search, knowledge: Knowledge, places: NDArray[np.int64]
    ) -> tuple[int, str]:
        running = np.array([arm.running for arm in search.arms])
        if knowledge.reached[places].any():
            outlook = self._outlook(spec, search, knowledge)
            return Prospects(outlook, places, running, outlook.best_of(places)).choice()
        start = spec.batch_sizes.index(spec.default_batch_size if knowledge.first is None else knowledge.first)
        ended = int(knowledge.missed.sum()) + sum(arm.num_failed for arm in search.arms)
        if self.constants.waves and start in places and running[start] and not ended and not knowledge.known.any():
            belief = model(spec.batch_sizes, self.constants).assumed(knowledge, start, spec.max_epochs)
            outlook = Outlook(spec, search, knowledge, belief, np.array([start]), self.constants)
            return Prospects(outlook, places, running, start).planned()
        converged = any(arm.num_converged for arm in search.arms)
        if self.constants.waves and start in places and running[start] > ended and not converged:
            return start, still_hopeful(spec.batch_sizes[start], int(running[start]), ended)
        return first(spec, search, knowledge, places)

    # Evidence

    def _prior(self, size: int, priors: Sequence[Prior]) -> Evidence:
        """What prior jobs tell about one batch size, with a weight of a few trials."""
        known, missed, longest = Evidence(), 0, 0.0
        for prior in priors:
            if size in prior.epochs:
                known = known._replace(earlier=known.earlier.merge(prior.epochs[size]))
            if size in prior.missed:
                more, length = prior.missed[size]
                missed, longest = missed + more, max(longest, length)
        kept = min(missed, KEPT)
        if missed > kept:
            # In the same proportion.
            share, earlier = kept / missed, known.earlier
            known = known._replace(
                earlier=Moments(round(share * earlier.count), earlier.mean, share * earlier.deviation)
            )
        if not (trials := known.earlier.count + kept):
            return known
        longest_epochs = round(math.exp(longest))
        return known._replace(missed=(longest_epochs,) * kept, weight=min(1.0, self.constants.prior_weight / trials))

    def _learned(self, spec: JobSpec, search: Search, knowledge: Knowledge, trial: Trial) -> Knowledge:
        if trial.last is None or trial.cost is None:
            return knowledge
        place, epochs = spec.batch_sizes.index(trial.batch_size), trial.last.epoch
        epoch_cost = math.log(trial.cost / epochs) if trial.cost > _LEAST_COST else None
        seen = Seen(trial.number, place, epochs, epoch_cost, trial.target_reached)
        outlook = self._outlook(spec, search, knowledge) if knowledge.reached.any() else None
        if outlook is not None and not seen.reached:
            seen = seen._replace(chance=outlook.chance(place, seen.log_epochs))
        after = _added(spec, knowledge, seen)
        if outlook is not None:
            after = watched(outlook, seen, after)
        if trial.target_reached:
            newest = max(after.delivered, trial.number) if _launched(trial) else after.delivered
            return replace(after, delivered=newest, retry=None, luck=1.0, misses=())
        after = replace(after, luck=after.luck * seen.chance, misses=(*after.misses, place)[-KEPT:])
        return replace(after, retry=trial.number) if _retried(after, trial) else after

    # Belief

    def _belief(self, spec: JobSpec, knowledge: Knowledge) -> Belief:
        learned = model(spec.batch_sizes, self.constants)
        if learned not in knowledge.derived:
            knowledge.derived[learned] = learned.belief(knowledge)
        belief: Belief = knowledge.derived[learned]
        return belief

    def _outlook(self, spec: JobSpec, search: Search, knowledge: Knowledge) -> Outlook:
        """What the search leads to, once a trial has reached the target; computed once, whatever is running."""
        # All that it depends on besides the knowledge.
        seen = (
            self,
            spec,
            search.bound_stops,
            *(
                (arm.num_failed, arm.num_decided, arm.failed_cost, arm.excluded, arm.pruned, arm.banned, failing(arm))
                for arm in search.arms
            ),
        )
        known: tuple[object, Outlook] | None = knowledge.derived.get(Outlook)
        if known is None or known[0] != seen:
            belief = self._belief(spec, knowledge)
            outlook = Outlook(spec, search, knowledge, belief, guides(search, knowledge), self.constants)
            known = knowledge.derived[Outlook] = seen, outlook
        return known[1]


def _added(spec: JobSpec, knowledge: Knowledge, seen: Seen) -> Knowledge:
    """The knowledge with one more trial, detectors aside."""
    window = (*knowledge.window, seen)[-spec.window_size :] if spec.window_size else ()
    if spec.window_size:
        evidence = _with_doubted(with_seen((Evidence(),) * len(spec.batch_sizes), window), knowledge.evidence)
    else:
        evidence = with_seen(knowledge.evidence, [seen])
    due = knowledge.default_due and spec.batch_sizes[seen.place] != spec.default_batch_size
    return replace(
        knowledge,
        evidence=evidence,
        window=window,
        trials=knowledge.trials + 1,
        default_due=due,
    )


def _with_doubted(evidence: Sequence[Evidence], before: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The evidence of a window, with the doubted costs of an epoch where no trial in the window tells it."""
    return tuple(
        now._replace(epoch_cost=old.epoch_cost, cost_doubt=old.cost_doubt)
        if old.cost_doubt and not now.epoch_cost.count
        else now
        for now, old in zip(evidence, before, strict=True)
    )


def _launched(trial: Trial) -> bool:
    """Whether a trial is a launch of the job, of which the next one may be a retry."""
    return trial.origin is not TrialOrigin.IMPORTED


def _retried(knowledge: Knowledge, trial: Trial) -> bool:
    """Whether the next launch repeats a trial that delivered no model: a launch, since which none has delivered."""
    newest = trial.number > knowledge.delivered  # pragma: no mutate: the one that delivered has ended
    return newest and _launched(trial)


POLICY = KnowledgeGradient()
