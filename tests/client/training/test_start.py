"""The table of how a trial starts."""

from __future__ import annotations

from itertools import product

import pytest
from wattwise.training.start import STARTS, Reply, Source, Start
from wattwise.training.state import Link

ERROR, NEVER = None, "never"
EXPECTED = {
    # where the trial comes from: trial, over, no answer, not found, deleted, not asked
    Source.SERVER: (Start.NEW, NEVER, Start.FALLBACK, NEVER, ERROR, NEVER),
    Source.CHECKPOINT: (Start.RESUMED, Start.OVER, Start.RESUMED_AWAY, Start.LOST, ERROR, NEVER),
    Source.FALLBACK_CHECKPOINT: (NEVER, NEVER, NEVER, NEVER, NEVER, Start.CONTINUED),
    Source.DRIVER: (Start.JOINED, NEVER, Start.JOINED_AWAY, Start.JOINED_LOST, ERROR, NEVER),
}
PROPERTIES = {
    # link, whether it needs a fallback, whether it counts alone
    Start.NEW: (Link.TRACKED, False, False),
    Start.FALLBACK: (Link.DETACHED, True, False),
    Start.RESUMED: (Link.TRACKED, False, False),
    Start.OVER: (Link.TRACKED, False, False),
    Start.RESUMED_AWAY: (Link.AWAY, True, True),
    Start.CONTINUED: (Link.DETACHED, False, True),
    Start.LOST: (Link.DETACHED, True, True),
    Start.JOINED: (Link.TRACKED, False, False),
    Start.JOINED_AWAY: (Link.AWAY, False, True),
    Start.JOINED_LOST: (Link.DETACHED, False, False),
}


@pytest.mark.parametrize(("source", "reply"), list(product(Source, Reply)))
def test_start(source: Source, reply: Reply) -> None:
    """What is known and what the server says lead to one start or to the server's error; other pairs never occur."""
    assert STARTS.get((source, reply), NEVER) is EXPECTED[source][list(Reply).index(reply)]


@pytest.mark.parametrize("start", Start)
def test_properties(start: Start) -> None:
    """Each start has its link to the server, needs a fallback or not, and counts alone or not."""
    assert (start.link, start.needs_fallback, start.counts_alone) == PROPERTIES[start]
