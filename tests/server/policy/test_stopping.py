"""The stopping rule, as its decisions word it."""

from __future__ import annotations

from datetime import datetime, timezone

from wattwise_server.domain import GpuConfig, JobSpec, Measurement
from wattwise_server.policy.stopping import decide, judge

SPEC = JobSpec("job", "job", (8, 16), 8, GpuConfig(300, 1, "V100"), target_metric=0.9)


def message_at(metric: float) -> str:
    """The message of the decision on a first epoch with this metric."""
    measurement = Measurement(1, 1.0, 1.0, metric, datetime.now(timezone.utc))
    return decide(SPEC, measurement, judge(SPEC, None, measurement), None).message


def test_metric_just_below_the_target_is_not_shown_as_the_target() -> None:
    """A metric that rounds to the target is printed with all its digits; any other with six."""
    assert "metric 0.8999999999999999, target 0.9 " in message_at(0.8999999999999999)
    assert "metric 0.123457, target 0.9 " in message_at(0.123456789)
