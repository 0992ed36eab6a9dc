"""The nouns."""

from __future__ import annotations

from typing import Any

from wattwise_server.domain import Trial

OUTCOME = {
    *("status", "end_reason", "end_time", "end_event", "cost", "cost_bound", "converged", "target_reached"),
    *("observation", "best_known", "heartbeat_interval"),
}


def test_a_renewed_trial_loses_its_outcome_and_nothing_else() -> None:
    """Each field has its value, the new one, or its default if it belongs to the outcome."""
    values: list[Any] = [f"the {name}" for name in Trial._fields]
    last: Any = "the new last"
    lease: Any = "the new lease"
    renewed = Trial(*values).renew(last, lease)
    for name, value in zip(Trial._fields, renewed, strict=True):
        if name in OUTCOME:
            assert value == Trial._field_defaults[name]
        else:
            assert value == {"last": last, "lease_expire_time": lease}.get(name, f"the {name}")
