"""A policy that detects changes by a simple rule, in place of the default one.

Where behaviour changes by a factor of two or more, the default policy finds a change, too. Tests take the numbers of
trials from the answers, so that they need not know the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from wattwise_server.domain import Change, JobSpec, Quantity, Search
from wattwise_server.policy.base import Event, Succeeded
from wattwise_server.policy.gts import Gts

from tests.live_server import LiveServer

_ROOT = Path(__file__).parents[1]
_PATCH = """
from tests.changes import Noticing
from wattwise_server.policy.registry import POLICIES

POLICIES["KNOWLEDGE_GRADIENT"] = Noticing()
"""

_IN_A_ROW = 2
_FACTOR = 1.5


class _Seen(NamedTuple):
    """A decided trial; `epochs` is None if it missed the target."""

    number: int
    batch_size: int
    epochs: int | None
    epoch_cost: float


class Noticing(Gts):
    """`POLICY_GTS`, which notices when two trials of a batch size in a row differ from those before by half.

    It is used as the default policy.
    """

    def faults(self, _spec: JobSpec) -> Iterator[tuple[str, str]]:
        """None."""
        return iter(())

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Notes every decided trial."""
        search = super().observe(spec, search, event)
        if not isinstance(event, Succeeded) or event.trial.last is None:
            return search
        trial, epochs = event.trial, event.trial.last.epoch
        reached = epochs if trial.target_reached else None
        seen = _Seen(trial.number, trial.batch_size, reached, (trial.cost or 0.0) / epochs)
        return replace(search, notes=json.dumps([*json.loads(search.notes or "[]"), seen]))

    def changes(self, search: Search) -> Sequence[Change]:
        """The newest change of each quantity."""
        seen = [_Seen(*row) for row in json.loads(search.notes or "[]")]
        if not all(isinstance(each.number, int) for each in seen):
            raise ValueError("the notes are of another format")
        found = [*_changes(seen, Quantity.EPOCHS), *_changes(seen, Quantity.EPOCH_COST)]
        newest = {change.quantity: change for change in found}
        return sorted(newest.values(), key=lambda change: change.detected_by)


def _changes(seen: Sequence[_Seen], quantity: Quantity) -> Iterator[Change]:
    """All changes of a quantity; after each one only the trials since then count."""
    since = 0
    for place in range(len(seen)):
        for change in _of_newest([each for each in seen[: place + 1] if each.number >= since], quantity):
            since = change.since_trial
            yield change


def _of_newest(seen: Sequence[_Seen], quantity: Quantity) -> Iterator[Change]:
    """The change that the newest trial shows together with the one before of its batch size."""
    newest = seen[-1]
    of_size = [each for each in seen if each.batch_size == newest.batch_size]
    if quantity is Quantity.EPOCHS:
        values = [math.inf if each.epochs is None else float(each.epochs) for each in of_size]
    else:
        values = [each.epoch_cost for each in of_size]
    before, after = values[:-_IN_A_ROW], values[-_IN_A_ROW:]
    if before and math.isfinite(usual := median(before)) and usual > 0:
        factors = [value / usual for value in after]
        if all(factor >= _FACTOR for factor in factors) or all(factor <= 1 / _FACTOR for factor in factors):
            factor = median(after) / usual
            yield Change(quantity, of_size[-_IN_A_ROW].number, newest.batch_size, factor, newest.number)


def use(server: LiveServer, folder: Path) -> None:
    """Lets a server that is not yet started use the policy as its default one.

    Args:
        server: The server.
        folder: An empty folder, for what its process imports first.
    """
    (folder / "sitecustomize.py").write_text(_PATCH)
    server.environment["PYTHONPATH"] = f"{folder}:{_ROOT}"
