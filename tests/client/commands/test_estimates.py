"""Which joules are marked as estimates."""

from __future__ import annotations

import pytest
from wattwise.commands.estimates import estimate_mark


@pytest.mark.parametrize(
    ("monitors", "mark"),
    [
        (("estimate",), " (estimate)"),
        (("estimate", ""), " (estimate)"),
        (("nvml", "estimate"), " (partly estimate)"),
        (("nvml+estimate",), " (partly estimate)"),
        (("nvml then estimate",), " (partly estimate)"),
        (("nvml or estimate",), " (partly estimate)"),
        (("nvml+rapl", "zeus"), ""),
        (("estimated by eye",), ""),
        (("",), ""),
    ],
)
def test_mark(monitors: tuple[str, ...], mark: str) -> None:
    """An estimate is told from a measurement, alone or within a sum; a trainer's own word is its own."""
    assert estimate_mark(*monitors) == mark
