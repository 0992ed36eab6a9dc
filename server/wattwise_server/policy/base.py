"""The protocol of a policy, its choices and its beliefs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from wattwise.rules import ResolvedJob

from wattwise_server.domain import DetectedChange, Moments, PruningGtsTrial, Search, TrialOrigin
from wattwise_server.events import SearchEvent


@dataclass(frozen=True, slots=True)
class Choice:
    """The next trial: its batch size and the reason for it, who chose it, and what the policy knows of it besides."""

    batch_size: int
    reason: str
    origin: TrialOrigin = TrialOrigin.SEARCH
    policy_role: PruningGtsTrial | None = None


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No next trial: no batch size is left that may be chosen."""


class ArmBelief(NamedTuple):
    """A policy's belief about one batch size, as `GetJob` shows it.

    Attributes:
        batch_size: The batch size.
        mean: Expected reward of a trial, in joules; a reward is a negative cost.
        precision: 1/variance of that mean, in 1/J²; infinite when the policy has no doubt.
        reward_precision: 1/variance of a single reward, in 1/J².
        observations: Trials that the belief rests on.
        expected_cost: Of a model that reaches the target if only this batch size is used, in joules, including trials
            that miss the target or fail; None while unknown.
        deviation: Standard deviation of the belief about `expected_cost`; None while unknown.
        failure_rate: Share of trials that are expected to fail before a decision; one that misses the target does not.
            None while unknown.
    """

    batch_size: int
    mean: float
    precision: float
    reward_precision: float
    observations: int
    expected_cost: float | None = None
    deviation: float | None = None
    failure_rate: float | None = None


class PriorMisses(NamedTuple):
    """The trials of one batch size that missed the target: how many, and the largest logarithm of their epochs."""

    number: int
    longest: float


class Prior(NamedTuple):
    """The evidence of a prior job about the epochs of a new one.

    Computed from the trials of the prior job, because its own policy may keep no epochs, or fewer.

    Attributes:
        best: The batch size with the least expected cost; None if none reached the target.
        epochs: Natural logarithm of the epochs to the target, by batch size, of the trials that reached it.
        missed: The trials that missed it, by batch size.
    """

    best: int | None
    epochs: Mapping[int, Moments]
    missed: Mapping[int, PriorMisses]


class Policy(Protocol):
    """Chooses batch sizes. Pure: the search is a value, randomness is an argument, nothing is written."""

    @property
    def watches_epochs(self) -> bool:
        """Whether it observes every epoch of every trial, at the cost of writing the job's row with each report."""

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:
        """Returns the state of a job without trials; `priors` are those of `prior_job_ids`, in their order."""

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        """Returns the choice for the trial of this number; it takes effect when `TrialDispatched` is observed."""

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        """Returns the state after an event, which `history.with_event` has recorded already.

        A revived exploration has its slot again if `exploring` is its number.
        """

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        """Returns the cost in joules at which a running trial of this batch size is stopped; None: it has no bound."""

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        """Returns its belief about every batch size, ascending."""

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        """Returns the newest change of each quantity, ascending by `detected_by_trial`; empty if none was detected.

        Reads only `search.notes`: lists of jobs have no more of a search. Must be quick: it is called for many jobs.
        """
