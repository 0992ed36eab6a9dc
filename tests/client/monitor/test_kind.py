"""The kinds of monitors."""

from __future__ import annotations

import pytest
from wattwise.monitor import EnergyQuality, MonitorKinds


@pytest.mark.parametrize(
    ("monitor", "text"),
    [
        (MonitorKinds(), ""),
        (MonitorKinds.of(["nvml", "rapl"]), "nvml+rapl"),
        (MonitorKinds.of(["nvml", "estimate"]), "nvml+estimate"),
        (MonitorKinds.of(["nvml"]).with_failure(), "nvml (partly estimated)"),
        (MonitorKinds.of(["estimate"]).with_failure(), "estimate"),
        (MonitorKinds(("wall",), EnergyQuality.ESTIMATED), "wall (estimated)"),
    ],
)
def test_text(monitor: MonitorKinds, text: str) -> None:
    """The text has all kinds, and says whether energy was estimated unless the kinds say so."""
    assert str(monitor) == text
