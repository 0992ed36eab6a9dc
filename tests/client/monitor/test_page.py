"""docs/monitors.md is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/monitors.md"


@pytest.mark.parametrize(
    "kind",
    ["nvml", "nvml-polled", "amdsmi", "amdsmi-polled", "rapl", "nvml+rapl", "estimate", "zeus", "custom"],
)
def test_every_kind_is_explained(kind: str) -> None:
    """The page has every kind that tables and metrics show."""
    assert f"`{kind}`" in PAGE.read_text()
