"""Values become messages by the names of their attributes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from wattwise import v1
from wattwise.rules import EndReason
from wattwise_server.domain import TrialId, TrialOrigin
from wattwise_server.rpc.by_name import INSIDE, Copier

COPIER = Copier({v1.DetectedChange: {"message": "seen.sentence"}, v1.TrialId: {INSIDE: "named"}}, {})
TIME = datetime(1969, 12, 31, 23, 59, 58, 250_000, tzinfo=timezone.utc)


def test_fields_are_copied_by_name() -> None:
    """Scalars, repeated messages, enums and spans are copied; what is None, and a list without items, stays unset."""
    warning = SimpleNamespace(reason=None, field="f", message="m", trial_number=3)
    value = SimpleNamespace(
        stop_train=True,
        converged=False,
        target_reached=False,
        end_reason=EndReason.LOST,
        message="",
        last_epoch=2,
        cost=0.0,
        cost_bound=None,
        heartbeat_interval=timedelta(seconds=1.5),
        warnings=[warning, warning],
    )
    copied = COPIER.message(v1.Decision, value)
    assert [(field.name, value) for field, value in copied.ListFields() if field.name != "warnings"] == [
        ("stop_train", True),
        ("end_reason", v1.END_REASON_LOST),
        ("last_epoch", 2),
        ("cost", 0.0),
        ("heartbeat_interval", copied.heartbeat_interval),
    ]
    assert copied.heartbeat_interval.ToTimedelta() == timedelta(seconds=1.5)
    assert list(copied.warnings) == [v1.TrialWarning(field="f", message="m", trial_number=3)] * 2


@pytest.mark.parametrize("time", [TIME, datetime(2026, 2, 28, 12, 0, 0, 1, tzinfo=timezone.utc)])
def test_times_are_exact(time: datetime) -> None:
    """A time keeps its microseconds, before 1970 too."""
    unset = {"spent": None, "spent_per_delivery": None, "change": None}
    copied = COPIER.message(
        v1.MonthStatistics, SimpleNamespace(start_time=time, num_trials=1, num_deliveries=0, **unset)
    )
    assert copied.start_time.ToDatetime(timezone.utc) == time
    assert not any(copied.HasField(name) for name in unset)  # type: ignore[arg-type]


def test_names_may_differ() -> None:
    """A field may come from an attribute of another name, or of an attribute."""
    change = SimpleNamespace(
        quantity=None,
        since_trial=1,
        batch_size=8,
        factor=None,
        detected_by_trial=2,
        seen=SimpleNamespace(sentence="slower"),
        factor_is_lower_limit=False,
    )
    assert COPIER.message(v1.DetectedChange, change).message == "slower"
    copied = COPIER.message(v1.TrialId, SimpleNamespace(named=TrialId("j", "l", 1)))
    assert copied == v1.TrialId(job_id="j", launch_id="l", trial_number=1)


def test_missing_attribute_is_an_error() -> None:
    """A field that a value lacks is not left out silently: the value must follow the contract."""
    with pytest.raises(AttributeError, match="recurrence"):
        COPIER.message(v1.Trial, SimpleNamespace(origin=TrialOrigin.SEARCH, **_without("recurrence")))


def _without(missing: str) -> dict[str, None]:
    return dict.fromkeys(field.name for field in v1.Trial.DESCRIPTOR.fields if field.name not in (missing, "origin"))
