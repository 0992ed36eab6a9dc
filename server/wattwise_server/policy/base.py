"""The protocol of a policy, its choices, its beliefs and the events that it observes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from wattwise_server.domain import EndReason, JobSpec, Observation, Search, Trial, TrialType
from wattwise_server.policy.arm import move_floor, record
from wattwise_server.policy.cost import missed_floor
from wattwise_server.policy.explorer import with_arm


@dataclass(frozen=True, slots=True)
class Choice:
    """The next trial: its type, its batch size and the reason for it."""

    type: TrialType
    batch_size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No next trial: no batch size converged in a whole round."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A trial was dispatched."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A trial ran to a decision; it carries its cost and whether it converged."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Failed:
    """A trial crashed, was lost or was ended by its trainer; it carries its end reason."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Revived:
    """A lost or preempted trial resumes; it carries its state before that."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Reported:
    """A running trial reported an epoch, its `last`; comes before Succeeded if the epoch ends it."""

    trial: Trial


Event = Dispatched | Reported | Succeeded | Failed | Revived


class ArmBelief(NamedTuple):
    """What a policy believes about one batch size, as `GetJob` shows it.

    Attributes:
        batch_size: The batch size.
        mean: Expected reward of a trial, in joules; a reward is a negative cost.
        precision: 1/variance of that mean, in 1/J²; infinite when the policy has no doubt.
        reward_precision: 1/variance of a single reward, in 1/J².
        observations: Trials that the belief rests on.
    """

    batch_size: int
    mean: float
    precision: float
    reward_precision: float
    observations: int


class Policy(Protocol):
    """Chooses batch sizes. Pure: the search is a value, randomness is an argument, nothing is written."""

    @property
    def watches_epochs(self) -> bool:
        """Whether it observes every epoch of every trial, at the cost of writing the job's row with each report."""

    def faults(self, spec: JobSpec) -> Iterable[tuple[str, str]]:
        """What is wrong with the fields that only this policy reads: pairs of a field's name and what to change."""

    def register(self, spec: JobSpec) -> Search:
        """The state of a job without trials."""

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:
        """The choice for the trial of this number; it takes effect when `Dispatched` is observed."""

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """The state after an event. A revived exploration has its slot again if `exploring` is its number."""

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """What it believes about the arms that it chooses from; empty while it has no such belief."""


def counts_as_failure(reason: EndReason | None) -> bool:
    """Whether an end counts against the batch size; a preemption does not."""
    return reason is not EndReason.PREEMPTED


def with_failure_undone(search: Search, trial: Trial) -> Search:
    """The search after a failed trial was revived: if its end was counted as a failure, the count is undone."""
    if not counts_as_failure(trial.end_reason):
        return search
    return with_arm(search, trial.batch_size, lambda arm: replace(arm, failures=max(0, arm.failures - 1)))


def with_success(spec: JobSpec, search: Search, trial: Trial) -> Search:
    """The search with a succeeded trial added to its arm, and with the cheapest cost updated."""
    if trial.cost is None:
        raise ValueError(f"trial {trial.number} has no cost, so it cannot have succeeded")
    floor = search.missed_floor
    seen = Observation(trial.cost, trial.converged)
    search = with_arm(search, trial.batch_size, lambda arm: record(arm, seen, spec.window_size, floor))
    if not trial.converged or (search.min_cost is not None and trial.cost >= search.min_cost):
        return search
    lower = missed_floor(spec, trial.cost)
    arms = tuple(move_floor(arm, floor, lower, spec.window_size) for arm in search.arms)
    return replace(search, arms=arms, min_cost=trial.cost, min_cost_batch_size=trial.batch_size, missed_floor=lower)
