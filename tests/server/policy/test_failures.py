"""Failures that are counted and undone, and those that are not counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from wattwise_server.domain import EndReason, Search, Trial, TrialStatus, TrialType
from wattwise_server.policy import gts
from wattwise_server.policy.base import Failed, Revived
from wattwise_server.policy.explorer import MAX_FAILURES, crashed, untried

from tests.server.policy.simulated import spec

SPEC = spec(batch_sizes=(8, 16, 32), default_batch_size=16)


def failed(number: int, reason: EndReason, size: int = 16) -> Trial:
    """A failed trial."""
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    trial = Trial("j", number, size, TrialType.MAB, 0, begin, None)
    return trial._replace(status=TrialStatus.FAILED, end_reason=reason)


def failures(search: Search, size: int = 16) -> int:
    """The failures in a row of a batch size."""
    return search.arm(size).failures


def test_revived_trial_is_not_a_failure() -> None:
    """Reviving the trial undoes its failure."""
    search = gts.POLICY.register(SPEC)
    search = gts.POLICY.observe(SPEC, search, Failed(failed(1, EndReason.LOST)))
    assert failures(search) == 1
    assert failures(gts.POLICY.observe(SPEC, search, Revived(failed(1, EndReason.LOST)))) == 0


def test_uncounted_loss_undoes_nothing() -> None:
    """Reviving a trial lost before the bandit stage does not undo a later out-of-memory of its arm."""
    search = gts.POLICY.register(SPEC)
    search = gts.POLICY.observe(SPEC, search, Failed(failed(5, EndReason.OUT_OF_MEMORY)))
    search = gts.POLICY.observe(SPEC, search, Revived(failed(1, EndReason.LOST)))
    assert failures(search) == MAX_FAILURES


def test_crashed_and_untried_batch_sizes_are_distinguished() -> None:
    """Of those that were pruned: which failed, which were never tried, and which missed the target."""
    search = gts.POLICY.register(SPEC)
    arms = {arm.batch_size: replace(arm, pruned=True) for arm in search.arms}
    arms[16] = replace(arms[16], failures=MAX_FAILURES)
    arms[32] = replace(arms[32], num_succeeded=1)
    search = replace(search, arms=tuple(arms.values()))
    assert (crashed(search), untried(search)) == ([16], [8])
