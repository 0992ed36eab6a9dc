"""Use cases run again when another server was faster."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason, TrialStatus
from wattwise_server.errors import JobDiffersError, StorageUnavailableError
from wattwise_server.events import EpochReported, JobRegistered, TrialDispatched

from tests.server.rival import Rival
from tests.server.site import Published, Site, draft, report


async def test_use_case_runs_again_after_conflicts(tmp_path: Path) -> None:
    """A job, a trial and an epoch that meet conflicts are saved once, and each is published once."""
    site, published = Site(tmp_path / "store.db"), Published()
    await site.open()
    site.store.observer = published
    rival = Rival(site.store, 3)
    assert (await site.training.register(draft()))[1]
    rival.conflicts = 1
    trial = await site.training.next_trial("j", "launch")
    rival.conflicts = 2
    await report(site, trial.key, 1)
    assert rival.met == 6
    assert trial.number == 1
    assert published.kinds == [JobRegistered, TrialDispatched, EpochReported]
    await site.open()
    assert (await site.administration.job("j")).search.num_trials == 1
    assert list(site.rows().values()) == [[1]]
    await site.close()


async def test_calls_that_share_a_conflict_run_again(tmp_path: Path) -> None:
    """Each trial of a group that met a conflict has a number of its own, without gaps."""
    site, published = Site(tmp_path / "store.db"), Published()
    await site.open()
    await site.training.register(draft(policy="gts"))
    site.store.observer = published
    rival = Rival(site.store, 2)
    found = await asyncio.gather(*(site.training.next_trial("j", f"launch {number}") for number in range(8)))
    assert rival.met == 2
    assert sorted(trial.number for trial in found) == list(range(1, 9))
    assert published.kinds == [TrialDispatched] * 8
    await site.close()


@pytest.mark.parametrize(("conflicts", "ends"), [(19, True), (20, False)])
async def test_conflicts_without_end_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conflicts: int, ends: bool
) -> None:
    """After twenty tries the caller is asked to retry, and nothing was saved; until then the call succeeds."""
    monkeypatch.setattr(random, "random", lambda: 0.0)
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(draft())
    trial = await site.training.next_trial("j", new_id())
    rival = Rival(site.store, conflicts)
    if ends:
        await site.training.end_trial(trial.key, EndReason.ERROR)
    else:
        with pytest.raises(StorageUnavailableError):
            await site.training.end_trial(trial.key, EndReason.ERROR)
    assert rival.met == conflicts
    await site.open()
    status = TrialStatus.FAILED if ends else TrialStatus.RUNNING
    assert (await site.administration.trial(trial.key)).trial.trial.status is status
    await site.close()


async def test_refusals_are_not_repeated(tmp_path: Path) -> None:
    """Only conflicts let a use case run again; every other error reaches the caller."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(draft())
    with pytest.raises(JobDiffersError):
        await site.training.register(draft(max_epochs=11))
    await site.close()
