"""Deletes measurements of trials that ended long ago, a few at a time, so that no call waits behind them.

Policies do not need them: costs and outcomes are in the rows of the trials and the arms. A running trial keeps all of
its measurements, and a lost or preempted one its newest, from which it may resume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from wattwise_server.store.changes import PruneMeasurements
from wattwise_server.store.columns import to_micros
from wattwise_server.store.reads import Reads

_ROWS = 500
_TRIALS = 200
_PAUSE_SECONDS = 0.05

PRUNE_MEASUREMENTS = """
    DELETE FROM measurements WHERE job_key = $1 AND trial_number = $2 AND epoch IN (
        SELECT epoch FROM measurements WHERE job_key = $1 AND trial_number = $2 AND epoch <= $3 ORDER BY epoch LIMIT $4)
"""
"""The statement of a `PruneMeasurements`, whose values are the parameters."""

PRUNE_EVENTS = """
    DELETE FROM events WHERE entry IN (SELECT entry FROM events WHERE time < $1 ORDER BY time LIMIT $2)
"""
"""The statement of a `PruneEvents`, whose values are the parameters."""

Prune = Callable[[Sequence[PruneMeasurements]], Awaitable[None]]
"""Commits all of them."""


class _Place(NamedTuple):
    job_key: int = -1
    trial_number: int = -1


class Retention:
    """Deletes old measurements of one store."""

    def __init__(self, reads: Reads, prune: Prune) -> None:
        self._reads = reads
        self._prune = prune

    async def prune(self, ended_before: datetime) -> None:
        """Goes through all measurements once.

        Raises:
            StorageUnavailableError: the database cannot be read or written; the next call deletes the rest.
        """
        place = await self._step(_Place(), to_micros(ended_before))
        while place is not None:
            await asyncio.sleep(_PAUSE_SECONDS)
            place = await self._step(place, to_micros(ended_before))

    async def _step(self, place: _Place, ended_before: int) -> _Place | None:
        """Deletes some rows, in one commit; returns where to continue, None at the end."""
        found = await self._reads.measured_trials(place, _TRIALS, ended_before)
        todo: list[PruneMeasurements] = []
        room, more = _ROWS, len(found) == _TRIALS
        for row in found:
            trial = _Place(row["job_key"], row["trial_number"])
            through = row["newest"] - 1 if row["resumable"] else row["newest"]
            if row["over"] and row["oldest"] <= through:
                todo.append(PruneMeasurements(*trial, through, room))
                room -= min(room, through - row["oldest"] + 1)
            if not room:
                # This trial may have rows left: the next step starts with it.
                more = True
                break
            place = trial
        if todo:
            await self._prune(todo)
        return place if more else None
