"""`POLICY_GTS`: every batch size is an arm from the first trial on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattwise_server.domain import ArmState, EndReason, JobSpec, Search, Stage, Trial, TrialType
from wattwise_server.policy import thompson
from wattwise_server.policy.base import (
    Choice,
    Dispatched,
    Event,
    Failed,
    Measured,
    Revived,
    Succeeded,
    counts_as_failure,
    with_failure_taken_back,
    with_success,
)
from wattwise_server.policy.explorer import MAX_FAILURES, with_arm

_LONGEST_ABSENCE = 10
"""Cap of the exponent below: an arm put aside is tried again after 1024 trials at the latest."""


class Gts:
    """Gaussian Thompson sampling; also the second stage of pruning."""

    watches_epochs = False

    def register(self, spec: JobSpec) -> Search:
        """A bandit whose arms are all the batch sizes."""
        return Search(Stage.MAB, tuple(map(ArmState, spec.batch_sizes)), 0, spec.default_batch_size)

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice:
        """Draws one of the arms that are not put aside."""
        drawn = thompson.draw(spec, candidates(search, trial_number), rng)
        return Choice(TrialType.MAB, drawn.batch_size, drawn.reason)

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Adds a success to its arm's observations, counts failures in a row."""
        match event:
            case Dispatched() | Measured():
                return search
            case Succeeded(trial):
                search = with_arm(search, trial.batch_size, lambda arm: replace(arm, failures=0))
                return with_success(spec, search, trial)
            case Failed(trial):
                return _with_failure(search, trial)
            case Revived(trial):
                # What was lost before the bandit began was not counted, and what failed since stays as it is.
                counted = search.arm(trial.batch_size).last_failure == trial.number
                return with_failure_taken_back(search, trial) if counted else search


POLICY = Gts()


def candidates(search: Search, trial_number: int) -> Sequence[ArmState]:
    """The surviving arms without those put aside, or all of them if that leaves none.

    An arm that failed three times in a row, or ran out of memory, is put aside for 2^failures trials, so that the
    bandit never hands out for ever what kills the trainer, and a passing fault costs no arm its place for good.
    """
    able = [arm for arm in search.surviving if not _put_aside(arm, trial_number)]
    return able or search.surviving


def _put_aside(arm: ArmState, trial_number: int) -> bool:
    return arm.failures >= MAX_FAILURES and trial_number <= arm.last_failure + 2 ** min(arm.failures, _LONGEST_ABSENCE)


def _with_failure(search: Search, trial: Trial) -> Search:
    if not counts_as_failure(trial.end_reason):
        return search
    least = MAX_FAILURES if trial.end_reason is EndReason.OUT_OF_MEMORY else 1

    def change(arm: ArmState) -> ArmState:
        return replace(arm, failures=max(least, arm.failures + 1), last_failure=trial.number)

    return with_arm(search, trial.batch_size, change)
