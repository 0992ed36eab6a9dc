"""A policy that learns from every epoch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wattwise.rpc.calls import new_id
from wattwise.rules import ResolvedJob
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import play
from wattwise_server.domain import DetectedChange, Search
from wattwise_server.errors import InvalidJobSpecError
from wattwise_server.events import EpochReported, SearchEvent
from wattwise_server.policy.base import ArmBelief, Choice, Prior
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.search import rebuild_search

from tests.replay.worlds import job, workload, world
from tests.server.site import Site, draft, report


class Careful:
    """Chooses the default until its trials have trained five epochs, then the largest batch size."""

    watches_epochs = True

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:
        return Gts().register(spec, priors)

    def next(self, spec: ResolvedJob, search: Search, _trial_number: int, _rng: np.random.Generator) -> Choice:
        seen = json.loads(search.notes or "[]")
        size = spec.default_batch_size if len(seen) < 5 else spec.batch_sizes[-1]
        return Choice(size, f"{len(seen)} epochs were seen")

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        if isinstance(event, EpochReported) and event.trial.last is not None:
            return replace(search, notes=json.dumps([*json.loads(search.notes or "[]"), event.trial.last.epoch]))
        return Gts().observe(spec, search, event)

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        return Gts().bound(spec, search, batch_size)

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        return Gts().belief(spec, search)

    def changes(self, _search: Search) -> Sequence[DetectedChange]:
        return ()


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """The use cases with the policy registered."""
    monkeypatch.setitem(POLICIES, "CAREFUL", Careful())
    site = Site(tmp_path / "policy.db")
    await site.open()
    yield site
    await site.close()


async def test_policy_observes_every_epoch_and_its_notes_are_stored(site: Site) -> None:
    """The epochs of one trial decide the next batch size; restarts and repeated reports change nothing."""
    await site.training.register(draft(policy="CAREFUL"))
    first = await site.training.next_trial("j", new_id())
    for epoch in (1, 2, 2, 3):
        await report(site, first.key, epoch)
    second = await site.training.next_trial("j", new_id())
    assert (second.batch_size, second.launch.reason) == (16, "3 epochs were seen")
    await site.open()
    for epoch in (4, 6):
        await report(site, first.key, epoch)
    await site.open()
    third = await site.training.next_trial("j", new_id())
    assert (third.batch_size, third.launch.reason) == (32, "5 epochs were seen")
    async with site.store.transaction("j") as tx:
        assert tx.job is not None
        assert rebuild_search(tx.job, await tx.search_events()) == tx.job.search


async def test_last_epoch_is_observed_before_the_end(site: Site) -> None:
    """The newest epoch is among those that the policy has seen when the trial is decided."""
    await site.training.register(draft(policy="CAREFUL"))
    trial = await site.training.next_trial("j", new_id())
    assert (await report(site, trial.key, 1, metric=0.95)).stop_train
    assert (await site.training.next_trial("j", new_id())).launch.reason == "1 epochs were seen"


async def test_unknown_policy_is_refused_with_the_known_ones(site: Site) -> None:
    """The refusal names the policies of this server, its own one among them."""
    with pytest.raises(InvalidJobSpecError) as refused:
        await site.training.register(draft(policy="BEST"))
    (violation,) = refused.value.violations
    assert violation.field == "job.policy"
    names = ", ".join(POLICIES)
    assert names in violation.description
    assert {"gts", "pruning_gts", "CAREFUL"} <= set(names.split(", "))


def test_replay_lets_a_policy_observe_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In process every epoch is observed, as on a server."""
    monkeypatch.setitem(POLICIES, "gts", Careful())
    there = world(3, 1)
    trials = play(InProcess(job(workload(3, 1), "gts")), there, seed=0, recurrences=4).trials
    assert [trial.batch_size for trial in trials] == [8, 8, 16, 16]
