"""How many inputs are sent: few in a normal test run, many in a soak."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Fire = Callable[[st.DataObject], None]

_QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
_SHORT = settings(max_examples=120, derandomize=True, deadline=None, suppress_health_check=_QUIET, database=None)
_LONG_EXAMPLES = 1_000 if os.environ.get("SOAK") == "short" else 20_000
_LONG = settings(max_examples=_LONG_EXAMPLES, deadline=None, suppress_health_check=_QUIET, print_blob=True)

depths = pytest.mark.parametrize(
    "depth", [_SHORT, pytest.param(_LONG, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["short", "long"]
)


def bombard(fire: Fire, depth: settings) -> None:
    """Sends as many inputs as the depth says."""
    depth(given(st.data())(fire))()
