"""Consistent reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.site import Site, draft, report


async def test_trial_and_its_epochs_are_consistent(tmp_path: Path) -> None:
    """A read during reports never returns a trial that is older or newer than its measurements."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.optimizer.register(draft(max_epochs=1000))
    trial, _ = await site.optimizer.next_trial("j", "")
    for first in range(1, 100, 3):
        looks, reports = [], []
        for epoch in range(first, first + 3):
            looks.append(asyncio.create_task(site.administration.trial(trial.key)))
            reports.append(asyncio.create_task(report(site, trial.key, epoch)))
        for found in await asyncio.gather(*looks):
            last = found.shown.trial.last
            assert (last.epoch if last else 0) == len(found.measurements)
        await asyncio.gather(*reports)
    await site.close()
