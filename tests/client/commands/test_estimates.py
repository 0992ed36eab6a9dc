"""Which joules are marked as estimates."""

from __future__ import annotations

import pytest
from wattwise import v1
from wattwise.commands.estimates import estimate_mark
from wattwise.monitor import MonitorKinds

from tests.jobs import monitor_of

FAILED = v1.Monitor(kinds=["nvml"], estimated=True, partly=True)


@pytest.mark.parametrize(
    ("monitors", "mark"),
    [
        ((monitor_of("estimate"),), " (estimate)"),
        ((monitor_of("estimate"), v1.Monitor()), " (estimate)"),
        ((monitor_of("nvml"), monitor_of("estimate")), " (partly estimate)"),
        ((monitor_of("nvml", "estimate"),), " (partly estimate)"),
        ((FAILED,), " (partly estimate)"),
        ((FAILED, monitor_of("estimate")), " (partly estimate)"),
        ((monitor_of("nvml", "rapl"), monitor_of("zeus")), ""),
        ((monitor_of("estimated by eye"),), ""),
        ((v1.Monitor(),), ""),
        ((), ""),
    ],
)
def test_mark(monitors: tuple[v1.Monitor, ...], mark: str) -> None:
    """Joules are marked by whether all, some or none of their sources estimate."""
    assert estimate_mark(*monitors) == mark


@pytest.mark.parametrize(
    ("monitor", "text"),
    [
        (MonitorKinds(), ""),
        (MonitorKinds.of(["nvml", "rapl"]), "nvml+rapl"),
        (MonitorKinds.of(["nvml", "estimate"]), "nvml+estimate"),
        (MonitorKinds.of(["nvml"]).with_failure(), "nvml (partly estimated)"),
        (MonitorKinds.of(["estimate"]).with_failure(), "estimate"),
        (MonitorKinds(("wall",), estimated=True), "wall (estimated)"),
    ],
)
def test_text(monitor: MonitorKinds, text: str) -> None:
    """A monitor is shown by its kinds, and by whether it was estimated where the kinds do not tell."""
    assert str(monitor) == text
