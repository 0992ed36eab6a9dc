"""Failures that are counted and undone, and those that are not counted."""

from __future__ import annotations

from datetime import datetime, timezone

from wattwise_server.domain import EndReason, Search, Trial, TrialStatus, TrialType
from wattwise_server.policy import gts
from wattwise_server.policy.base import Event, Failed, Revived
from wattwise_server.policy.history import observe

from tests.server.policy.simulated import spec

SPEC = spec(batch_sizes=(8, 16, 32), default_batch_size=16)


def failed(number: int, reason: EndReason, size: int = 16) -> Trial:
    """A failed trial."""
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    trial = Trial("j", number, size, TrialType.MAB, 0, begin, None)
    return trial._replace(status=TrialStatus.FAILED, end_reason=reason)


def after(search: Search, *events: Event) -> Search:
    """The search after some events."""
    for event in events:
        search = observe(gts.POLICY, SPEC, search, event)
    return search


def test_revived_trial_is_not_a_failure() -> None:
    """Reviving the trial undoes its failure."""
    search = after(gts.POLICY.register(SPEC), Failed(failed(1, EndReason.LOST)))
    assert (search.arm(16).failed_trials, search.arm(16).num_failed) == ((1,), 1)
    search = after(search, Revived(failed(1, EndReason.LOST)))
    assert (search.arm(16).failed_trials, search.arm(16).num_failed) == ((), 0)
