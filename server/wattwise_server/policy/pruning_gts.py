"""`pruning_gts`: pruning rounds first, then the available batch sizes are the arms (NSDI 2023, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from wattwise.rules import ResolvedJob

from wattwise_server.domain import Arm, DetectedChange, PruningGtsRole, PruningGtsTrial, Search, Stage, Trial
from wattwise_server.events import SearchEvent, TrialDecided, TrialRevived, TrialStarted, TrialUndecided
from wattwise_server.policy import explorer
from wattwise_server.policy.base import ArmBelief, Choice, Exhausted, Prior
from wattwise_server.policy.bounds import cost_bound, missed_floor
from wattwise_server.policy.failures import choosable
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.history import with_arm


class _SecondStage(Gts):
    alone = False


_BANDIT = _SecondStage()


class PruningGts:
    """The paper's policy."""

    watches_epochs = False

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:  # noqa: ARG002 - it has no such parameter
        """Returns a search at the default batch size of the first round."""
        return explorer.first_round(spec)

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        """Returns the walk's next step, a concurrent trial while that step runs, or the bandit's draw."""
        if search.stage is Stage.BANDIT:
            choice = _BANDIT.next(spec, search, trial_number, rng)
            return choice if isinstance(choice, Exhausted) else _as(PruningGtsRole.BANDIT, search, choice)
        if not search.available:
            return Exhausted()
        arm = explorer.next_exploration(search)
        if arm is None or search.exploring is not None:
            return _concurrent(spec, search, trial_number)
        where = f"pruning round {search.pruning_round + 1} of {spec.num_pruning_rounds}"
        choice = Choice(arm.batch_size, f"{where}: {_step(search, arm)}")
        return _as(PruningGtsRole.EXPLORATION, search, choice)

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        """Moves the walk on the result of the trial that holds the exploration slot, and on no other."""
        if search.stage is Stage.BANDIT:
            return search
        match event:
            case TrialStarted(trial) if trial.role is PruningGtsRole.EXPLORATION:
                search = replace(search, exploring=trial.number)
            case TrialRevived(ended=trial):
                search = _revived(search, trial)
            case TrialDecided(trial) if search.exploring == trial.number and not trial.doubtful:
                search = explorer.with_exploration(search, trial)
            case TrialDecided(trial) | TrialUndecided(trial) if search.exploring == trial.number:
                search = replace(search, exploring=None)
        return explorer.with_next_round(spec, search)

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        """Returns the bound of the paper, in both stages."""
        return cost_bound(spec, search, batch_size)

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        """Returns the bandit's posteriors, over the trials of both stages."""
        return _BANDIT.belief(spec, search)

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        """Returns nothing, because this policy does not look for changes."""
        return _BANDIT.changes(search)


POLICY = PruningGts()


def _as(role: PruningGtsRole, search: Search, choice: Choice) -> Choice:
    return replace(choice, policy_role=PruningGtsTrial(role, search.pruning_round))


def _step(search: Search, arm: Arm) -> str:
    """Returns the step of the walk, as the reason of an exploration."""
    size, start = arm.batch_size, search.round_default
    if size < start:
        step = f"the walk goes down from {start} to batch size {size}"
    elif size > start:
        step = f"the walk goes up from {start} to batch size {size}"
    else:
        step = f"the walk starts at batch size {size}"
    match len(arm.failed_trials):
        case 0:
            return step
        case 1:
            return f"{step}, whose last trial failed"
        case failed:
            return f"{step}, whose last {failed} trials failed"


def _concurrent(spec: ResolvedJob, search: Search, trial_number: int) -> Choice:
    """Chooses the cheapest batch size known, else the default, else the first of the walk; one is available."""

    def choice(arm: Arm, why: str) -> Choice:
        chosen = Choice(arm.batch_size, f"{why}; trial {search.exploring} is exploring")
        return _as(PruningGtsRole.CONCURRENT, search, chosen)

    allowed = choosable(search, trial_number)
    if search.min_cost_batch_size is not None:
        cheapest = search.arm(search.min_cost_batch_size)
        if cheapest in allowed:
            return choice(cheapest, "the cheapest so far")
    converged = [arm for arm in allowed if arm.num_converged]
    if converged:
        floor = missed_floor(spec, search.min_cost)
        cheapest = min(converged, key=lambda arm: arm.costs(floor).mean)
        return choice(cheapest, "the cheapest of those that may be tried")
    default = search.arm(spec.default_batch_size)
    if default in allowed:
        return choice(default, "the default")
    # None of those allowed has converged, so that all of them wait for a result in this round.
    first = next(arm for arm in explorer.walk(search) if arm in allowed)
    return choice(first, "the next in the walk, while neither the default nor a cheaper one may be tried")


def _revived(search: Search, trial: Trial) -> Search:
    """Returns the search with a revived exploration in its slot, if the walk would choose its batch size now."""
    known = trial.policy_role
    if search.exploring is not None or known is None or known.role is not PruningGtsRole.EXPLORATION:
        return search
    without = with_arm(search, trial.batch_size, lambda arm: replace(arm, running=arm.running - 1))
    step = explorer.next_exploration(without)
    free = known.pruning_round == search.pruning_round and step is not None and step.batch_size == trial.batch_size
    return replace(search, exploring=trial.number) if free else search
