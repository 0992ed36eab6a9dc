"""The pauses between attempts to reach a server."""

from __future__ import annotations

from itertools import islice

import pytest
from wattwise.rpc.backoff import pauses

FIRST, LONGEST = 0.5, 5.0
BOUNDS = [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


@pytest.fixture(scope="module")
def trainers() -> list[list[float]]:
    """The pauses of many trainers that lost the server at the same moment."""
    return [list(islice(pauses(FIRST, LONGEST), len(BOUNDS))) for _ in range(200)]


def test_pauses_grow_up_to_a_bound(trainers: list[list[float]]) -> None:
    """The longest pause of many trainers doubles with each attempt, up to the bound."""
    longest = [max(pause) for pause in zip(*trainers, strict=True)]
    # The probability that none of 200 is in the upper half is 2^-200.
    assert all(bound / 2 < pause <= bound for pause, bound in zip(longest, BOUNDS, strict=True)), longest


def test_pauses_are_spread_out(trainers: list[list[float]]) -> None:
    """Each pause is drawn between 0 and its bound, so that trainers do not all call a restarted server at once."""
    shortest = [min(pause) for pause in zip(*trainers, strict=True)]
    assert all(0 <= pause < bound / 2 for pause, bound in zip(shortest, BOUNDS, strict=True)), shortest
    assert len({tuple(each) for each in trainers}) == len(trainers)
