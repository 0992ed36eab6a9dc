"""Rebuilding a search from a job's events."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason, GpuGroup
from wattwise_server.domain import Job, Measurement, PowerSample, PruningGtsRole, Search, Trial, TrialId
from wattwise_server.errors import NoBatchSizeLeftError, NotPossibleNowError
from wattwise_server.policy.knowledge_gradient.state import read
from wattwise_server.policy.search import rebuild_search
from wattwise_server.store.base import TrialList
from wattwise_server.store.sqlite.backend import SqliteStore
from wattwise_server.store.sqlite.open import open_sqlite
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.changes import changes
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.imports import ImportedTrial, Importer
from wattwise_server.usecases.power_limits import AcquiredLimit, PowerAction, PowerLimitProfiler
from wattwise_server.usecases.report import Report
from wattwise_server.usecases.training import Training

from tests.changes import USUAL

_GPU = GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0)
_LEASE = 60.0
_REASONS = [EndReason.ERROR, EndReason.OUT_OF_MEMORY, EndReason.PREEMPTED, EndReason.COMPLETED]


class Site:
    """The use cases over a database file, with a clock that is set by hand."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.store: SqliteStore
        self.training: Training
        self.control: Control
        self.importer: Importer

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Site]:
        """The database, open."""
        async with open_sqlite(self.url, lambda: self.now) as store:
            self.store = store
            self.training, self.control = Training(store), Control(store)
            self.importer = Importer(store)
            yield self

    async def register(self, **fields: Any) -> Job:
        """A job named "j"."""
        draft = {
            "job_id_prefix": "j",
            "job_id": "j",
            "batch_sizes": (8, 16, 32, 64, 128),
            "default_batch_size": 32,
            "target_metric": 0.9,
            "higher_is_better": True,
            "max_epochs": 5,
            "eta_knob": 1.0,
            "seed": 1,
            "trial_lease_seconds": _LEASE,
            "gpu": _GPU,
        }
        return (await self.training.register(draft | fields))[0]

    async def next(self, launch_id: str | None = None) -> Trial:
        """The next trial."""
        return await self.training.next_trial("j", launch_id or new_id())

    async def finish(self, trial: Trial, cost: float, metric: float = 0.95) -> None:
        """Reports the last epoch."""
        await self.training.report(Report(trial.key, 5, 1.0, cost, metric))

    async def import_trial(self, launch_id: str, batch_size: int, metric: float, epochs: int = 3) -> None:
        """A trial that ran without the server."""
        measured = Measurement(epochs, 70.0, 70.0, metric, self.now)
        await self.importer.import_trial(
            ImportedTrial("j", launch_id, batch_size, [measured], end_reason=EndReason.ERROR)
        )

    async def job(self) -> Job:
        """The job."""
        async with self.store.transaction("j") as tx:
            assert tx.job is not None
            return tx.job

    async def rebuilt(self) -> Search:
        """The search that follows from the events."""
        async with self.store.transaction("j") as tx:
            assert tx.job is not None
            events = await tx.search_events()
            assert [event.number for event in events] == list(range(1, tx.job.num_search_events + 1))
            return rebuild_search(tx.job, events)

    async def lose_silent_trials(self) -> None:
        """Lets every lease run out."""
        self.now += timedelta(seconds=2 * _LEASE)
        await self.training.expire_leases()


async def drive(site: Site, seed: int, launches: int) -> None:
    """Launches, reports, crashes, losses, revivals, imports and bans in a random order."""
    rng = random.Random(seed)
    running: dict[int, tuple[Trial, int]] = {}
    silent: list[Trial] = []
    for number in range(launches):
        action = rng.random()
        with contextlib.suppress(NoBatchSizeLeftError):
            if action < 0.45 or not running:
                trial = await site.next(f"r{seed}.{number}")
                running[trial.number] = trial, 0
        if running and action < 0.85:
            trial, epoch = running.pop(rng.choice(list(running)))
            metric = 0.95 if rng.random() < 0.4 else 0.1
            spent = (epoch + 1) * (10 + abs(trial.batch_size - 32)) * rng.uniform(0.9, 1.1) + epoch
            decision = await site.training.report(Report(trial.key, epoch + 1, spent, spent, metric))
            if not decision.stop_train:
                running[trial.number] = trial, epoch + 1
        elif running and action < 0.92:
            trial, _ = running.pop(rng.choice(list(running)))
            await site.training.end_trial(trial.key, rng.choice(_REASONS))
            silent.append(trial)
        elif action < 0.95:
            silent += [trial for trial, _ in running.values()]
            running.clear()
            await site.lose_silent_trials()
        elif silent and action < 0.97:
            await site.training.heartbeat(rng.choice(silent).key)
        elif action < 0.98:
            await site.import_trial(f"i{seed}.{number}", rng.choice((8, 16, 64)), rng.choice((0.95, 0.1)))
        else:
            size = rng.choice((8, 16, 64, 128))
            with contextlib.suppress(NotPossibleNowError):
                await change_batch_size(site.control, size, rng)


async def change_batch_size(control: Control, size: int, rng: random.Random) -> None:
    """A person bans a batch size, lifts its ban or readmits it."""
    if rng.random() < 0.6:
        await control.set_banned("j", size, banned=rng.random() < 0.5)
    else:
        await control.readmit("j", size, new_id())


POLICIES = ["knowledge_gradient", "pruning_gts", "gts"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_rebuild_without_changes_reproduces_the_search(tmp_path: Path, policy: str, window: int, seed: int) -> None:
    """Whatever happened to a job, replaying its events gives the same search, bit for bit, also after a restart."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register(policy=policy, window_size=window)
            await drive(site, seed, 120)
            assert await site.rebuilt() == (await site.job()).search
        async with site.opened():
            assert await site.rebuilt() == (await site.job()).search
            await drive(site, seed + 100, 60)
            assert await site.rebuilt() == (await site.job()).search

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        lambda control: control.set_paused("j", paused=True),
        lambda control: control.set_banned("j", 64, banned=True),
        lambda control: control.pin("j", 16),
        lambda control: control.readmit("j", 8, "same"),
        lambda control: control.request_baseline("j", "same"),
        lambda control: control.set_policy("j", {"policy": "gts"}),
    ],
)
def test_change_without_effect_writes_nothing(tmp_path: Path, change: Callable[[Control], Awaitable[Job]]) -> None:
    """What is already so is no event, and nothing is saved or logged."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register()
            for _ in range(3):
                trial = await site.next()
                await site.training.end_trial(trial.key, EndReason.ERROR)
            await change(site.control)
            before = await site.job()
            assert await change(site.control) is before
            assert await site.job() is before
            async with site.store.transaction("j") as tx:
                assert len(await tx.search_events()) == before.num_search_events

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        lambda control, name: control.readmit("j", 8, name),
        lambda control, name: control.request_baseline("j", name),
    ],
)
def test_request_without_effect_saves_its_id_alone(
    tmp_path: Path, change: Callable[[Control, str], Awaitable[Job]]
) -> None:
    """Another request for what is already so is no event, and nothing but its id is saved."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register()
            await change(site.control, "one")
            before = await site.job()
            after = await change(site.control, "another")
            assert after == await site.job()
            different = [each.name for each in fields(Job) if getattr(before, each.name) != getattr(after, each.name)]
            assert different == ["requests"]
            assert [each.split()[-1] for each in after.requests] == ["one", "another"]

    asyncio.run(run())


def test_trial_from_before_a_reset_is_excluded(tmp_path: Path) -> None:
    """An import that began before the reset does not count; one that began then, later or at an unknown time does."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register()
            before = site.now
            site.now += timedelta(hours=1)
            await site.control.reset("j", new_id())
            fresh = (await site.job()).search
            site.now += timedelta(hours=1)
            measured = [Measurement(3, 70.0, 70.0, 0.95, site.now)]
            for number, start in enumerate((before, before + timedelta(hours=1), site.now, None), 1):
                imported = ImportedTrial("j", f"r{number}", 16, measured, EndReason.COMPLETED, start_time=start)
                trial, created = await site.importer.import_trial(imported)
                assert (trial.number, created) == (number, True)
                assert (trial.excluded, trial.start_time) == (number == 1, start)
                if number == 1:
                    assert (await site.job()).search == replace(fresh, num_trials=1)
            assert (await site.job()).search.arm(16).num_converged == 3
            assert await site.rebuilt() == (await site.job()).search
            _, job = await site.control.set_trial_excluded(TrialId("j", trial_number=1), excluded=False)
            assert job.search.arm(16).num_converged == 4
        async with site.opened():
            job = await site.job()
            assert job.reset_time == before + timedelta(hours=1)
            assert job.search.arm(16).num_converged == 4

    asyncio.run(run())


def test_profile_goes_with_its_trial(tmp_path: Path) -> None:
    """The power limit that an excluded trial found is unknown again, and known again once the trial is included."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            profiler = PowerLimitProfiler(site.store)
            await site.register()
            bogus = await site.next()
            await profiler.report(bogus.key, [PowerSample(100.0, 1.0, 0.1, 10), PowerSample(200.0, 1.0, 0.2, 10)])
            await site.finish(bogus, 10.0)
            known = await profiler.acquire(bogus.key)
            await site.control.set_trial_excluded(bogus.key, excluded=True)
            assert await profiler.acquire(bogus.key) == AcquiredLimit(PowerAction.WAIT)
        async with site.opened():
            profiler = PowerLimitProfiler(site.store)
            assert await profiler.acquire(bogus.key) == AcquiredLimit(PowerAction.WAIT)
            await site.control.pin("j", bogus.batch_size)
            again = await site.next()
            assert await profiler.acquire(again.key) == AcquiredLimit(PowerAction.PROFILE)
            await profiler.report(again.key, [PowerSample(300.0, 1.0, 30.0, 10)])
            best = await profiler.acquire(again.key)
            assert best.cheapest == best.highest == PowerSample(300.0, 1.0, 30.0, 10)
            for excluded in (False, True):
                await site.control.set_trial_excluded(bogus.key, excluded=excluded)
            assert await profiler.acquire(again.key) == best, "of a trial that still runs"
            await site.control.set_trial_excluded(bogus.key, excluded=False)
            assert await profiler.acquire(again.key) == known
            await site.control.set_trial_excluded(again.key, excluded=True)
            assert await profiler.acquire(again.key) == known
            await profiler.report(again.key, [PowerSample(50.0, 1.0, 0.0, 10)])
            assert await profiler.acquire(again.key) == known

    asyncio.run(run())


def test_import_is_no_launch(tmp_path: Path) -> None:
    """An imported trial counts as one, but delivers no launch's model."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register(policy="knowledge_gradient")
            await site.finish(await site.next(), 5.0)
            await site.import_trial("a", 128, 0.95)
            knowledge = read((await site.job()).search.notes)
            assert knowledge.trials == 2
            assert (knowledge.delivered, knowledge.retry) == (1, None)

    asyncio.run(run())


def test_warm_start_is_kept(tmp_path: Path) -> None:
    """A rebuilt search of a job with prior jobs still knows what they told."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.training.register(
                {
                    "job_id": "p",
                    "job_id_prefix": "p",
                    "batch_sizes": (8, 16),
                    "default_batch_size": 8,
                    "target_metric": 0.5,
                    "higher_is_better": True,
                    "gpu": _GPU,
                }
            )
            trial = await site.training.next_trial("p", new_id())
            await site.training.report(Report(trial.key, 3, 1.0, 1.0, 0.9))
            job = await site.register(prior_job_ids=("p",))
            before = job.search
            assert "8" in job.first_notes
            async with site.store.transaction("p") as tx:
                assert tx.job is not None
                assert not tx.job.first_notes, "without prior jobs they follow from the configuration"
            assert await site.rebuilt() == before
            await site.control.reset("j", new_id())
            assert (await site.job()).search.notes == before.notes
            for policy in ("gts", "knowledge_gradient"):
                await site.control.set_policy("j", {"policy": policy})
            assert (await site.job()).search.notes == before.notes

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_excluded_trial_leaves_no_trace(tmp_path: Path, policy: str) -> None:
    """Excluding and including a trial restores the search; excluding it leaves its cost out of everything."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register(policy=policy)
            for _ in range(6):
                await site.finish(await site.next(), 100.0)
            bogus = await site.next()
            await site.finish(bogus, 20.0)
            before = (await site.job()).search
            assert before.min_cost == 20.0
            trial, job = await site.control.set_trial_excluded(bogus.key, excluded=True)
            assert trial.excluded
            assert job.search.min_cost == 100.0
            assert sum(arm.num_decided for arm in job.search.arms) == 6
            assert job.search == await site.rebuilt()
            assert (await site.next()).number == 8
        async with site.opened():
            assert (await site.job()).search == await site.rebuilt()
            await site.finish((await site.store.reads.trials(TrialList("j"), (7,), 1))[0].trial, 90.0)
            _, job = await site.control.set_trial_excluded(bogus.key, excluded=False)
            assert job.search.min_cost == 20.0
            assert sum(arm.num_decided for arm in job.search.arms) == 8

    asyncio.run(run())


@pytest.mark.parametrize("window", [0, 40])
def test_change_follows_from_the_events(tmp_path: Path, window: int) -> None:
    """Without the trials that show a change the search is that from before them; with them again, that with it."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            fresh = (await site.register(max_epochs=50, window_size=window)).search
            for number in range(USUAL):
                await site.import_trial(f"usual {number}", 32, 0.95, epochs=10)
            usual = (await site.job()).search
            while not changes(await site.job()):
                await site.import_trial(f"slow {(await site.job()).num_trials}", 32, 0.95, epochs=30)
            changed = await site.job()
            assert await site.rebuilt() == changed.search
            showing = range(USUAL + 1, changed.num_trials + 1)
            for number in showing:
                await site.control.set_trial_excluded(TrialId("j", trial_number=number), excluded=True)
                job = await site.job()
                assert not changes(job)
                assert not job.warnings
            assert job.search == replace(usual, num_trials=changed.num_trials)
        async with site.opened():
            assert await site.rebuilt() == (await site.job()).search
            for number in showing:
                await site.control.set_trial_excluded(TrialId("j", trial_number=number), excluded=False)
            assert (await site.job()).search == changed.search
            assert (await site.job()).warnings == changed.warnings
            for policy in ("gts", "knowledge_gradient"):
                job = await site.control.set_policy("j", {"policy": policy})
                assert job.search == await site.rebuilt()
            assert job.search == changed.search
            await site.control.reset("j", new_id())
            assert (await site.job()).search == replace(fresh, num_trials=changed.num_trials)
            assert await site.rebuilt() == (await site.job()).search
            await Administration(site.store).delete_job("j")
            assert (await site.register(max_epochs=50, window_size=window)).search == fresh

    asyncio.run(run())


def test_excluded_running_trial_does_not_count_when_it_ends(tmp_path: Path) -> None:
    """A trial may be excluded while it runs: it frees the exploration slot, and its result changes nothing."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register(policy="pruning_gts")
            exploring = await site.next()
            _, job = await site.control.set_trial_excluded(exploring.key, excluded=True)
            assert job.search.exploring is None
            assert not any(arm.running for arm in job.search.arms)
            assert (await site.next()).role is PruningGtsRole.EXPLORATION
            before = (await site.job()).search
            await site.finish(exploring, 1.0)
            assert (await site.job()).search == before

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", [0, 4])
def test_reset_begins_again(tmp_path: Path, policy: str, window: int) -> None:
    """After a reset the search is that of a new job, except for its trial numbers; earlier trials never count again."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            first = (await site.register(policy=policy, window_size=window)).search
            await drive(site, 1, 40)
            late = await site.next()
            job = await site.control.reset("j", new_id())
            bans = {arm.batch_size for arm in job.search.arms if arm.banned}
            assert job.num_trials == late.number
            assert job.search.min_cost is None
            assert [arm.num_decided + arm.num_failed + arm.running for arm in job.search.arms] == [0] * 5
            assert job.search.notes == first.notes
            await site.finish(late, 1.0)
            assert (await site.job()).search == job.search
            after = await site.next()
            assert after.number == late.number + 1
            assert after.batch_size == 32 or 32 in bans
            await site.finish(after, 50.0)
        async with site.opened():
            job = await site.job()
            assert job.search == await site.rebuilt()
            assert job.search.min_cost == 50.0

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_changed_policy_knows_the_trials(tmp_path: Path, policy: str) -> None:
    """The search under another policy has the costs of all trials, and changing back restores the first one."""

    async def run() -> None:
        site = Site(tmp_path / "w.db")
        async with site.opened():
            await site.register(policy=policy)
            await drive(site, 5, 80)
            before = await site.job()
            for other in POLICIES:
                job = await site.control.set_policy("j", {"policy": other})
                assert job.spec.policy == other
                assert [arm.num_decided for arm in job.search.arms] == [arm.num_decided for arm in before.search.arms]
                await site.next()
            async with site.store.transaction("j") as tx:
                assert len(await tx.search_events()) == before.num_search_events + len(POLICIES)
            job = await site.control.set_policy("j", {"policy": policy})
            assert job.registered is None
        async with site.opened():
            assert (await site.job()).search == await site.rebuilt()

    asyncio.run(run())
