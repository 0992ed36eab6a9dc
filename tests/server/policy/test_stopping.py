"""The stopping rule, as its decisions word it."""

from __future__ import annotations

from datetime import datetime, timezone

from wattwise_server.domain import GpuConfig, JobSpec, Measurement
from wattwise_server.policy.stopping import decide, judge

SPEC = JobSpec("job", "job", (8, 16), 8, GpuConfig(300, 1, "V100"), target_metric=0.9)


def message_at(metric: float, bound: float | None = None) -> str:
    """The message of the decision on a first epoch with this metric."""
    measurement = Measurement(1, 1.0, 1.0, metric, datetime.now(timezone.utc))
    return decide(SPEC, measurement, judge(SPEC, bound, measurement), "").message


def test_metric_just_below_the_target_is_not_shown_as_the_target() -> None:
    """A metric that rounds to the target is printed with all its digits; any other with six."""
    assert "metric 0.8999999999999999, target 0.9 " in message_at(0.8999999999999999)
    assert "metric 0.123457, target 0.9 " in message_at(0.123456789)


def test_target_over_the_bound_is_said_to_be_reached() -> None:
    """A trial over its bound says first whether its model is good."""
    assert message_at(0.95, bound=1.0).startswith("target reached, but cost bound exceeded: cost ")
    assert message_at(0.85, bound=1.0).startswith("cost bound exceeded: cost ")
