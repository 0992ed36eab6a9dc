"""`POLICY_GTS`: every batch size is an arm from the first trial on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from wattwise_server.domain import Arm, EndReason, JobSpec, Search, Stage, Trial, TrialType
from wattwise_server.policy import thompson
from wattwise_server.policy.base import (
    ArmBelief,
    Choice,
    Dispatched,
    Event,
    Failed,
    Reported,
    Revived,
    Succeeded,
    counts_as_failure,
    with_failure_undone,
    with_success,
)
from wattwise_server.policy.explorer import MAX_FAILURES, with_arm

_MAX_EXPONENT = 10
"""Largest exponent below: a suspended arm is tried again after at most 1024 trials."""


class Gts:
    """Gaussian Thompson sampling; also the second stage of `PruningGts`.

    Args:
        fixable: Whether a job may fix the reward precision; otherwise it is always learned.
    """

    watches_epochs = False

    def __init__(self, *, fixable: bool = True) -> None:
        self._fixable = fixable

    def faults(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """A fixed reward precision must be set."""
        if not spec.learn_reward_precision and not spec.reward_precision:
            yield "reward_precision", "is 0 while learn_reward_precision is false; set it to 1/variance of a cost"

    def register(self, spec: JobSpec) -> Search:
        """A bandit with an arm per batch size."""
        return Search(Stage.MAB, tuple(map(Arm, spec.batch_sizes)), 0, spec.default_batch_size)

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice:
        """Draws one of the arms that are not suspended."""
        drawn = thompson.draw(spec, candidates(search, trial_number), rng, self._fixed(spec))
        return Choice(TrialType.MAB, drawn.batch_size, drawn.reason)

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Adds a success to its arm's observations, counts failures in a row."""
        match event:
            case Dispatched() | Reported():
                return search
            case Succeeded(trial):
                search = with_arm(search, trial.batch_size, lambda arm: replace(arm, failures=0))
                return with_success(spec, search, trial)
            case Failed(trial):
                return _with_failure(search, trial)
            case Revived(trial):
                # Losses before the bandit stage were not counted; newer failures stay counted.
                counted = search.arm(trial.batch_size).last_failure == trial.number
                return with_failure_undone(search, trial) if counted else search

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """The posterior of every surviving arm."""
        fixed = self._fixed(spec)
        return [ArmBelief(arm.batch_size, *thompson.posterior(spec, arm.counted, fixed)) for arm in search.surviving]

    def _fixed(self, spec: JobSpec) -> float | None:
        return spec.reward_precision if self._fixable and not spec.learn_reward_precision else None


POLICY = Gts()


def candidates(search: Search, trial_number: int) -> Sequence[Arm]:
    """The surviving arms without the suspended ones, or all surviving arms if that leaves none.

    An arm that failed three times in a row, or ran out of memory, is suspended for 2^failures trials: the bandit does
    not keep choosing a batch size that kills the trainer, and a temporary fault does not exclude an arm permanently.
    """
    able = [arm for arm in search.surviving if not _suspended(arm, trial_number)]
    return able or search.surviving


def _suspended(arm: Arm, trial_number: int) -> bool:
    return arm.failures >= MAX_FAILURES and trial_number <= arm.last_failure + 2 ** min(arm.failures, _MAX_EXPONENT)


def _with_failure(search: Search, trial: Trial) -> Search:
    if not counts_as_failure(trial.end_reason):
        return search
    least = MAX_FAILURES if trial.end_reason is EndReason.OUT_OF_MEMORY else 1

    def change(arm: Arm) -> Arm:
        return replace(arm, failures=max(least, arm.failures + 1), last_failure=trial.number)

    return with_arm(search, trial.batch_size, change)
