"""Consistent reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from wattwise.rpc.calls import new_id

from tests.server.site import Site, draft, report


async def test_epochs_are_at_least_as_new_as_the_trial_read_before(tmp_path: Path) -> None:
    """Measurements that are read after a trial, while it reports, include the epoch that the trial has shown."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(draft(max_epochs=1000))
    trial = await site.training.next_trial("j", new_id())

    async def look() -> None:
        last = (await site.administration.trial(trial.key)).trial.trial.last
        found = await site.administration.measurements(trial.key, 0, 1000, newest_first=False)
        assert [measured.epoch for measured in found] == list(range(1, len(found) + 1))
        assert len(found) >= (last.epoch if last else 0)

    for first in range(1, 100, 3):
        looks, reports = [], []
        for epoch in range(first, first + 3):
            looks.append(asyncio.create_task(look()))
            reports.append(asyncio.create_task(report(site, trial.key, epoch)))
        await asyncio.gather(*looks, *reports)
    await site.close()
