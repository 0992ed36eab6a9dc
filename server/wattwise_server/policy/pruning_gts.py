"""`POLICY_PRUNING_GTS`: pruning rounds first, then the survivors are the arms (NSDI 2023, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattwise_server.domain import JobSpec, Search, Stage, Trial, TrialType
from wattwise_server.policy import explorer
from wattwise_server.policy.base import (
    ArmBelief,
    Choice,
    Dispatched,
    Event,
    Exhausted,
    Failed,
    Revived,
    Succeeded,
)
from wattwise_server.policy.cost import cost_bound
from wattwise_server.policy.failures import counts_as_failure
from wattwise_server.policy.gts import Gts

_BANDIT = Gts(fixable=False)


class PruningGts:
    """The paper's policy."""

    watches_epochs = False

    def faults(self, spec: JobSpec) -> Sequence[tuple[str, str]]:  # noqa: ARG002 - it reads no field that others do not
        """None: it reads no fields of its own."""
        return ()

    def register(self, spec: JobSpec) -> Search:
        """A search at the default batch size of the first round."""
        return explorer.first_round(spec)

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:
        """The walk's next step, a concurrent trial while that step runs, or the bandit's draw."""
        if search.stage is Stage.MAB:
            return _BANDIT.next(spec, search, trial_number, rng)
        size = explorer.next_exploration(search)
        if size is None:
            return Exhausted()
        if search.exploring is not None:
            return _concurrent(spec, search, size)
        where = f"pruning round {search.pruning_round + 1} of {spec.num_pruning_rounds}"
        start = search.round_default
        step = "starts at" if size == start else f"goes {'down' if size < start else 'up'} from {start} to"
        return Choice(TrialType.EXPLORATION, size, f"{where}: the walk {step} batch size {size}")

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Moves the walk on the result of the trial that holds the exploration slot, and on no other."""
        match event:
            case Dispatched(trial):
                taken = trial.type is TrialType.EXPLORATION
                return replace(search, exploring=trial.number) if taken else search
            case Revived(trial) if search.stage is Stage.PRUNING:
                return _revived(search, trial)
            case Succeeded(trial) if search.stage is Stage.PRUNING:
                return _succeeded(spec, search, trial)
            case Failed(trial) if search.stage is Stage.PRUNING:
                return _failed(spec, search, trial)
            case _:
                return _BANDIT.observe(spec, search, event)

    def bound(self, spec: JobSpec, search: Search, batch_size: int) -> float | None:
        """The paper's, in both stages."""
        return cost_bound(spec, search, batch_size)

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """The bandit's posteriors, over the trials of both stages."""
        return _BANDIT.belief(spec, search)


POLICY = PruningGts()


def _concurrent(spec: JobSpec, search: Search, exploring: int) -> Choice:
    why = f"trial {search.exploring} is exploring batch size {exploring}"
    if search.min_cost_batch_size is not None:
        size = search.min_cost_batch_size
        return Choice(TrialType.CONCURRENT, size, f"batch size {size} is the cheapest so far; {why}")
    size = spec.default_batch_size
    if search.arm(size).pruned:
        # A pruned default would fail repeatedly while nothing else has converged.
        return Choice(TrialType.CONCURRENT, exploring, f"nothing has converged and the default is pruned; {why}")
    return Choice(TrialType.CONCURRENT, size, f"batch size {size} is the default; {why}")


def _succeeded(spec: JobSpec, search: Search, trial: Trial) -> Search:
    if search.exploring != trial.number or trial.cost is None:
        return search
    return explorer.explored(spec, search, trial.batch_size, cost=trial.cost, converged=trial.converged)


def _failed(spec: JobSpec, search: Search, trial: Trial) -> Search:
    if search.exploring != trial.number:
        return search
    if not counts_as_failure(trial):
        return replace(search, exploring=None)
    return explorer.failed(spec, search, trial.batch_size)


def _revived(search: Search, trial: Trial) -> Search:
    if trial.type is not TrialType.EXPLORATION or trial.pruning_round != search.pruning_round:
        return search
    free = search.exploring is None and explorer.next_exploration(search) == trial.batch_size
    return replace(search, exploring=trial.number) if free else search
