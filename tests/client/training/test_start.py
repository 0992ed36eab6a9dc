"""The table of how a trial starts."""

from __future__ import annotations

from itertools import product

import pytest
from wattwise.training.start import STARTS, Known, Reply, Start
from wattwise.training.state import Link

ERROR = None
EXPECTED = {
    # what is known: given, no answer, not found, deleted
    Known.NOTHING: (Start.NEW, Start.FALLBACK, ERROR, ERROR),
    Known.CHECKPOINT: (Start.RESUMED, Start.RESUMED_AWAY, Start.LOST, ERROR),
    Known.FALLBACK_CHECKPOINT: (ERROR, ERROR, Start.CONTINUED, ERROR),
    Known.ASSIGNED: (Start.JOINED, Start.JOINED_AWAY, Start.JOINED_AWAY, ERROR),
}
PROPERTIES = {
    # link, whether it needs a fallback, whether it counts alone
    Start.NEW: (Link.TRACKED, False, False),
    Start.FALLBACK: (Link.DETACHED, True, False),
    Start.RESUMED: (Link.TRACKED, False, False),
    Start.RESUMED_AWAY: (Link.AWAY, True, True),
    Start.CONTINUED: (Link.DETACHED, False, True),
    Start.LOST: (Link.DETACHED, True, True),
    Start.JOINED: (Link.TRACKED, False, False),
    Start.JOINED_AWAY: (Link.AWAY, False, False),
}


@pytest.mark.parametrize(("known", "reply"), list(product(Known, Reply)))
def test_start(known: Known, reply: Reply) -> None:
    """What is known and what the server says lead to one start, or to the server's error."""
    assert STARTS.get((known, reply)) is EXPECTED[known][list(Reply).index(reply)]


@pytest.mark.parametrize("start", Start)
def test_properties(start: Start) -> None:
    """Each start has its link to the server, needs a fallback or not, and asks the server first or not."""
    assert (start.link, start.needs_fallback, start.continues_unasked) == PROPERTIES[start]
