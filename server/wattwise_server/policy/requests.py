"""Choices that a person has made instead of the policy: a pinned batch size, a pause, a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from wattwise.rules import ResolvedJob

from wattwise_server.domain import Job, Search, TrialOrigin
from wattwise_server.policy.base import ArmBelief, Choice, Policy
from wattwise_server.policy.failures import choosable


def choice_on_request(policy: Policy, job: Job, trial_number: int) -> Choice | None:
    """Returns the choice of a person for the trial of this number; None if the policy chooses.

    A pinned batch size comes before a pause, and both before a baseline.
    """
    spec, search = job.spec, job.search
    if job.pinned is not None:
        return Choice(job.pinned, "pinned", TrialOrigin.REQUESTED)
    if job.paused:
        best, _ = best_known(search, policy.belief(spec, search), trial_number)
        if best is not None:
            return Choice(best, "the best known batch size; the search is paused", TrialOrigin.REQUESTED)
        return _unknown(spec, search, trial_number)
    due = job.baseline_every and trial_number % job.baseline_every == 0
    if (job.baseline_requested or due) and _default_available(spec, search, trial_number):
        often = "" if job.baseline_requested else f" for one launch in {job.baseline_every}"
        return Choice(spec.default_batch_size, f"the default; requested as a baseline{often}", TrialOrigin.REQUESTED)
    return None


class BaselineWait(Enum):
    """What a launch with the default batch size waits for."""

    PINNED = "PINNED"
    PAUSED = "PAUSED"
    NOT_CHOOSABLE = "NOT_CHOOSABLE"


def baseline_wait(job: Job) -> BaselineWait | None:
    """Returns what a baseline waits for; None if the next launch can be one."""
    if job.pinned is not None:
        return BaselineWait.PINNED
    if job.paused:
        return BaselineWait.PAUSED
    able = _default_available(job.spec, job.search, job.num_trials + 1)
    return None if able else BaselineWait.NOT_CHOOSABLE


def best_known(
    search: Search, beliefs: Sequence[ArmBelief], trial_number: int
) -> tuple[int, float] | tuple[None, None]:
    """Returns the batch size with the least expected cost of those that may be chosen and converged, and that cost."""
    allowed = {arm.batch_size for arm in choosable(search, trial_number) if arm.num_converged}
    costs = {
        belief.batch_size: belief.expected_cost
        for belief in beliefs
        if belief.batch_size in allowed and belief.expected_cost is not None
    }
    if costs:
        best = min(costs, key=costs.__getitem__)
        return best, costs[best]
    if search.min_cost_batch_size is None or search.min_cost is None:
        return None, None
    return search.min_cost_batch_size, search.min_cost


def _unknown(spec: ResolvedJob, search: Search, trial_number: int) -> Choice | None:
    """Chooses for a paused search that knows nothing yet: the default, else the nearest that may be chosen."""
    sizes = [arm.batch_size for arm in choosable(search, trial_number)]
    if not sizes:
        return None
    default = spec.default_batch_size
    size = min(sizes, key=lambda each: (abs(each - default), each))
    which = "the default" if size == default else f"the nearest to the default, {default}"
    return Choice(size, f"{which}; the search is paused and nothing is known yet", TrialOrigin.REQUESTED)


def _default_available(spec: ResolvedJob, search: Search, trial_number: int) -> bool:
    return any(arm.batch_size == spec.default_batch_size for arm in choosable(search, trial_number))
