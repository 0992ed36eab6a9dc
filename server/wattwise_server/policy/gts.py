"""`gts`: every batch size is an arm; the default one is tried first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from wattwise.rules import ResolvedJob

from wattwise_server.domain import Arm, DetectedChange, Search, Stage
from wattwise_server.events import SearchEvent
from wattwise_server.policy import thompson
from wattwise_server.policy.base import ArmBelief, Choice, Exhausted, Prior
from wattwise_server.policy.bounds import cost_bound, missed_floor
from wattwise_server.policy.failures import choosable, has_trials


class Gts:
    """Gaussian Thompson sampling; also the second stage of `PruningGts`.

    Attributes:
        alone: Whether it is the whole policy: the default batch size is then the first trial, and a job may fix the
            reward precision, which is otherwise always learned.
    """

    watches_epochs = False
    alone = True

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:  # noqa: ARG002 - it has no such parameter
        """Returns a bandit with an arm per batch size."""
        return Search(Stage.BANDIT, tuple(map(Arm, spec.batch_sizes)), 0, spec.default_batch_size)

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        """Returns the default batch size; afterwards draws one of the arms that may be chosen."""
        arms = choosable(search, trial_number)
        if not arms:
            return Exhausted()
        default = spec.default_batch_size
        if self.alone and not has_trials(search) and any(arm.batch_size == default for arm in arms):
            return Choice(default, "the default, which is tried first")
        drawn = thompson.draw(spec, arms, missed_floor(spec, search.min_cost), rng, self._fixed(spec))
        return Choice(drawn.batch_size, drawn.reason)

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:  # noqa: ARG002 - the protocol's
        """Returns the search unchanged: the history is all that this policy needs."""
        return search

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        """Returns the bound of the paper."""
        return cost_bound(spec, search, batch_size)

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        """Returns the posterior of every arm."""
        floor, fixed = missed_floor(spec, search.min_cost), self._fixed(spec)
        return [thompson.belief(spec, arm, floor, fixed) for arm in search.arms]

    def changes(self, search: Search) -> Sequence[DetectedChange]:  # noqa: ARG002 - the protocol's
        """Returns nothing, because this policy does not look for changes."""
        return ()

    def _fixed(self, spec: ResolvedJob) -> float | None:
        return spec.reward_precision if self.alone and not spec.learn_reward_precision else None


POLICY = Gts()
