"""Tests of the storage contract, which every backend's tests inherit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from wattwise.rules import EndReason, GpuGroup, ResolvedJob, TrialStatus
from wattwise_server.domain import (
    ComputedUsage,
    EnergyQuality,
    Job,
    Launch,
    Measurement,
    MetricSpan,
    Moments,
    MonitorKinds,
    Observation,
    PowerLimitState,
    PowerSample,
    ProfileResult,
    PruningGtsRole,
    PruningGtsTrial,
    RecordedSearchEvent,
    Trial,
    TrialId,
    TrialOrigin,
    TrialWarning,
    WarningReason,
)
from wattwise_server.errors import TooManyJobsError
from wattwise_server.events import (
    BatchSizeBanned,
    EpochReported,
    JobDeleted,
    JobPaused,
    JobRegistered,
    PriorUnused,
    TrialDecided,
    TrialDispatched,
    TrialLost,
    TrialRevived,
)
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.base import EventList, JobList, TrialList
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.retries import retried

from tests.server.site import Published, values_of
from tests.server.store.figures import FigureTests

Opener = Callable[[], AbstractAsyncContextManager[Store]]

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


def a_job(job_id: str = "j", **fields: Any) -> Job:
    """A job without trials."""
    spec = ResolvedJob(
        job_id, (8, 16), 8, GpuGroup(gpu_model="Test GPU", count=2, max_power_watts_per_gpu=125.25), 0.5, True, "j"
    )
    spec = replace(spec, **fields)
    return Job(spec, POLICIES[spec.policy].register(spec, ()), NOW)


def with_trials(job: Job, number: int) -> Job:
    """The job with this many dispatched trials."""
    return replace(job, search=replace(job.search, num_trials=number))


def a_trial(number: int, job_id: str = "j", **fields: object) -> Trial:
    """A dispatched trial."""
    trial = Trial(
        job_id,
        number,
        8,
        TrialOrigin.SEARCH,
        PruningGtsTrial(PruningGtsRole.EXPLORATION, 0),
        NOW,
        launch_id=f"launch {number}",
    )
    return trial._replace(**fields)  # type: ignore[arg-type]


async def save_with_trial(store: Store, job_id: str, left: asyncio.Event | None = None) -> None:
    """Saves a job with its first trial; sets the event as the last thing in the block."""
    async with store.transaction(job_id) as tx:
        tx.save_job(with_trials(a_job(job_id), 1))
        tx.save_trial(a_trial(1, job_id))
        if left is not None:
            left.set()


async def was_launch_deleted(store: Store, job_id: str, launch_id: str, started: datetime | None) -> bool:
    """Whether the store knows of a launch that was deleted with its job."""
    async with store.transaction(job_id) as tx:
        return await tx.was_launch_deleted(launch_id, started)


async def save_with_leases(store: Store, job_id: str, count: int) -> None:
    """Saves a job with running trials whose leases last an hour."""
    async with store.transaction(job_id) as tx:
        tx.save_job(with_trials(a_job(job_id, trial_lease_seconds=3600.0), count))
        for number in range(1, count + 1):
            tx.save_trial(a_trial(number, job_id, lease_expire_time=store.clock() + timedelta(hours=1)))


async def look_for_room(store: Store, prefix: str, limit: int) -> None:
    """Looks for room for one more job, and creates none."""
    with suppress(ZeroDivisionError):
        async with store.transaction("one more") as tx:
            await tx.make_room(prefix, limit)
            raise ZeroDivisionError


class StoreConformance(FigureTests):
    """The contract. A backend's test class defines `opener`, which opens the same storage each time."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Opens the storage."""
        raise TypeError("a backend defines its own opener")

    async def pass_time(self, store: Store | None, seconds: float) -> None:
        """Lets leases grow older, as if this time had passed; without a store, while none is open.

        What the store has cached may still be renewed from an older lease: a backend that cannot move the store's
        clock moves the leases back in the database, and lets the store read its jobs again.
        """
        raise TypeError(f"a backend lets {seconds} s pass in its own way for {store}")

    async def test_saved_data_is_read_after_reopening(self, opener: Opener) -> None:
        """A job, its arms and its trials are read as they were saved, to the last bit and microsecond."""
        fields: dict[str, Any] = {
            "seed": -(2**63),
            "beta_knob": None,
            "prior_job_ids": ("ü,", "b"),
        }
        job = a_job(**fields)
        failed: dict[str, Any] = {
            "num_failed": 4,
            "failed_cost": 0.1,
            "failed_trials": (2, 300),
            "num_out_of_memory": 2,
            "out_of_memory": 1,
            "cheapest": 1 / 3,
            "excluded": True,
            "banned": True,
        }
        arms = tuple(
            replace(arm, reached=Moments(3, 0.1 + 0.2, 1e-300), num_converged=3, **failed) for arm in job.search.arms
        )
        known: dict[str, Any] = {
            "exploring": 1,
            "min_cost": 1 / 3,
            "min_cost_batch_size": 8,
            "bound_stops": 5,
        }
        search = replace(job.search, arms=arms, **known)
        nvml, mixed = MonitorKinds(("nvml",)), MonitorKinds(("rapl", '"wall" + ü'), EnergyQuality.PARTLY_ESTIMATED)
        changed: dict[str, Any] = {
            "num_search_events": 7,
            "num_observations": 5,
            "first_notes": "ü",
            "registered": job.spec,
            "spec": replace(job.spec, policy="pruning_gts", window_size=0, num_pruning_rounds=3, seed=7),
            "set_fields": frozenset({"eta_knob", "policy", "seed"}),
            "reset_after": 3,
            "reset_time": NOW + timedelta(days=1),
            "paused": True,
            "pinned": 16,
            "requests": ("reset ü", "readmit 16 x"),
            "baseline_requested": True,
        }
        job = replace(job, search=replace(search, num_trials=2), monitor=nvml, other_monitors=(mixed, nvml), **changed)
        sample = PowerSample(225.5, 1 / 3, 0.1 + 0.2, 40)
        highest = PowerSample(300.5, 0.1, 0.2, 41)
        for state in (PowerLimitState(8, sample, highest=highest), PowerLimitState(16, profiling=1)):
            job = job.with_power_limit(state)
        moves, energy = (
            TrialWarning(reason, "result.ü", 'a "message"', number)
            for number, reason in enumerate((WarningReason.METRIC_MOVES_AWAY, WarningReason.NO_ENERGY), 1)
        )
        job = replace(job, warnings=(moves, energy))
        not_stored = {"lease_expire_time", "heartbeat_interval"}
        ended_as: dict[str, Any] = {
            "number": 1,
            "batch_size": 8,
            "job_id": "j",
            "launch_id": "launch 1",
            "status": TrialStatus.DECIDED,
            "end_reason": EndReason.MAX_EPOCHS,
            "last": Measurement(3, 1.5, 0.1 + 0.2, 0.25, NOW, ComputedUsage(1 / 3, 0.1 + 0.2, 225.5), 300.1),
            "warnings": (energy, moves),
            "cost_bound": 2 / 3,
            "observation": 1,
            "profile": ProfileResult(sample, highest),
            "monitor": mixed,
            "other_monitors": (nvml, mixed),
            "dispatch_event": 4,
            "launch": Launch("the walk starts", (("host", "node-7"), ("note", "é")), "5f0c2a9be1d4"),
        }
        values = {name: value for name, value in values_of(Trial).items() if name not in not_stored}
        ended = Trial(**values | ended_as)
        unset = {name for name, value in Trial._field_defaults.items() if getattr(ended, name) == value}
        assert unset == not_stored
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(replace(a_job(**fields), set_fields=job.set_fields))
            async with store.transaction("j") as tx:
                tx.save_trial(ended)
                tx.add_launch(ended)
                tx.save_job(job)
        async with opener() as store, store.transaction("j") as tx:
            assert tx.job == job
            assert await tx.trial(1) == ended
            assert await tx.trial_of_launch("launch 1") == ended
            assert [await tx.trial(number) for number in (0, 2, 3)] == [None, None, None]

    async def test_launch_ids_are_told_apart_however_often_they_are_asked(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A launch id that dispatched a trial is found, running or ended, and no other is; of many trials too."""
        monkeypatch.setattr("wattwise_server.store.transactions._MOST_CHECKSUMS", 6)
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(a_job())
            for number in range(1, 10):
                async with store.transaction("j") as tx:
                    assert tx.job is not None
                    assert await tx.trial_of_launch(f"launch {number}") is None
                    tx.save_job(with_trials(tx.job, number))
                    tx.save_trial(a_trial(number, launch_id=f"launch {number}"))
                async with store.transaction("j") as tx:
                    if number % 3:
                        tx.save_trial(a_trial(number, status=TrialStatus.FAILED, launch_id=f"launch {number}"))
                for _ in range(2):
                    async with store.transaction("j") as tx:
                        found = [await tx.trial_of_launch(f"launch {each}") for each in range(number + 2)]
                        assert [trial and trial.number for trial in found] == [None, *range(1, number + 1), None]

    @pytest.mark.parametrize("status", [TrialStatus.RUNNING, TrialStatus.INTERRUPTED])
    async def test_trial_of_launch_has_the_changes_of_its_transaction(
        self, opener: Opener, status: TrialStatus
    ) -> None:
        """A trial that a transaction has changed is found by its launch as it was saved, running or ended before."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(a_trial(1, status=status, launch_id="launch 1"))
            async with store.transaction("j") as tx:
                for now in (TrialStatus.FAILED, TrialStatus.RUNNING):
                    changed = a_trial(1, status=now, launch_id="launch 1")
                    tx.save_trial(changed)
                    assert await tx.trial_of_launch("launch 1") == changed == await tx.trial(1)

    async def test_events_are_numbered_and_tell_every_state(self, opener: Opener) -> None:
        """Dispatches and ends come from the trials, the rest from the events, in their order and with every number."""
        first = Measurement(2, 1.5, 0.1 + 0.2, math.nan, NOW, ComputedUsage(1 / 3, 0.1 + 0.2, 225.5))
        lost = a_trial(1, status=TrialStatus.INTERRUPTED, end_reason=EndReason.LOST, last=first, cost=1 / 3)
        lost = lost._replace(dispatch_event=1, end_event=3)
        ended = lost._replace(
            status=TrialStatus.DECIDED,
            policy_role=PruningGtsTrial(PruningGtsRole.CONCURRENT, 0),
            end_reason=EndReason.TARGET_REACHED,
            end_time=NOW,
            last=first._replace(epoch=3, metric=0.9),
            cost=0.5,
            converged=True,
            observation=1,
            end_event=6,
        )
        async with opener() as store:
            await save_with_trial(store, "another")
            async with store.transaction("j") as tx:
                tx.save_job(replace(with_trials(a_job(), 2), num_search_events=6))
                tx.add_search_event(RecordedSearchEvent(2, BatchSizeBanned.kind, 16))
                tx.add_search_event(RecordedSearchEvent(3, TrialLost.kind, 8, lost))
                tx.add_search_event(RecordedSearchEvent(4, TrialRevived.kind, 8, lost))
                tx.save_trial(ended)
                tx.save_trial(a_trial(2, dispatch_event=5))
        async with opener() as store, store.transaction("j") as tx:
            events = await tx.search_events()
        assert [(event.number, event.kind, event.batch_size) for event in events] == [
            (1, TrialDispatched.kind, 8),
            (2, BatchSizeBanned.kind, 16),
            (3, TrialLost.kind, 8),
            (4, TrialRevived.kind, 8),
            (5, TrialDispatched.kind, 8),
            (6, TrialDecided.kind, 8),
        ]
        trials = [event.trial for event in events]
        assert trials[1] is None
        for event, kind in (
            (0, PruningGtsRole.EXPLORATION),
            (2, PruningGtsRole.EXPLORATION),
            (5, PruningGtsRole.CONCURRENT),
        ):
            trial = trials[event]
            assert trial is not None
            assert trial.role is kind
        assert [trial and trial.observation for trial in trials] == [None, None, None, None, None, 1]
        dispatched, failed = trials[0], trials[2]
        assert dispatched is not None
        assert failed is not None
        assert (dispatched.status, dispatched.last, dispatched.cost) == (TrialStatus.RUNNING, None, None)
        assert (failed.status, failed.end_reason, failed.cost) == (TrialStatus.INTERRUPTED, EndReason.LOST, 1 / 3)
        assert failed.last is not None
        assert failed.last.repeats(first)
        assert trials[5] == ended

    async def test_measurements_keep_what_was_computed(self, opener: Opener) -> None:
        """Computed sums are read with the measurements that have them, and with a running trial after a restart."""
        measured = Measurement(1, 1.5, 2.5, 0.25, NOW)
        computed = measured._replace(epoch=2, computed=ComputedUsage(1 / 3, 0.1 + 0.2, 225.5))
        async with opener() as store:
            await save_with_trial(store, "j")
            async with store.transaction("j") as tx:
                for each in (measured, computed):
                    tx.add_measurement(a_trial(1, last=each))
        async with opener() as store, store.transaction("j") as tx:
            assert await tx.measurements(1) == [measured, computed]
            (trial,) = tx.running()
            assert trial.last == computed

    async def test_metric_span_leaves_out_nan(self, opener: Opener) -> None:
        """The first, least and greatest metric of a trial are known; a NaN is an epoch without a metric."""
        async with opener() as store:
            await save_with_trial(store, "j")
            async with store.transaction("j") as tx:
                assert await tx.metric_span(1) == MetricSpan()
                for epoch, metric in enumerate((0.5, math.nan, 0.25, 0.75), 1):
                    tx.add_measurement(a_trial(1, last=Measurement(epoch, 1, 1, metric, NOW)))
            async with store.transaction("j") as tx:
                assert await tx.metric_span(1) == MetricSpan(4, 0.5, 0.25, 0.75)

    async def test_block_left_by_an_exception_changes_nothing(self, opener: Opener) -> None:
        """An exception rolls back the whole block, for this process and the next."""
        async with opener() as store:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is left
                async with store.transaction("j") as tx:
                    tx.save_job(a_job())
                    tx.save_trial(a_trial(1))
                    raise ZeroDivisionError
            async with store.transaction("j") as tx:
                assert tx.job is None
                assert tx.running() == []
        async with opener() as store:
            assert await store.reads.jobs(JobList(), 0, 10) == []

    async def test_transactions_of_one_job_are_serialized(self, opener: Opener) -> None:
        """A hundred concurrent read-and-increment blocks lose no increment."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(a_job())

            @retried
            async def increment() -> None:
                async with store.transaction("j") as tx:
                    assert tx.job is not None
                    before = tx.job
                    await asyncio.sleep(0)
                    tx.save_job(replace(before, num_observations=before.num_observations + 1))

            await asyncio.gather(*(increment() for _ in range(100)))
            async with store.transaction("j") as tx:
                assert tx.job is not None
                assert tx.job.num_observations == 100

    async def test_transactions_of_a_new_job_are_serialized(self, opener: Opener) -> None:
        """A block that creates a job is alone with its id, even after a block that found no such job."""
        async with opener() as store:
            inside, more = asyncio.Event(), asyncio.Event()

            async def read() -> Job | None:
                async with store.transaction("j") as tx:
                    return tx.job

            async def create() -> None:
                async with store.transaction("j") as tx:
                    inside.set()
                    await more.wait()
                    tx.save_job(a_job())

            early, creating = asyncio.create_task(read()), asyncio.create_task(create())
            assert await early is None
            await inside.wait()
            late = asyncio.create_task(read())
            async with store.transaction("another"):
                more.set()
            await creating
            assert await late == a_job()

    async def test_block_sees_what_it_has_saved(self, opener: Opener) -> None:
        """A trial that started, went on or ended in this block is seen so, not as before the block."""
        begun = a_trial(1)
        ended = begun._replace(status=TrialStatus.FAILED, end_reason=EndReason.ERROR)
        async with opener() as store:
            await save_with_trial(store, "j")
            async with store.transaction("j") as tx:
                assert (tx.running_trial(1), tx.running_trial(2)) == (begun, None)
                for changed in (begun._replace(excluded=True), a_trial(2)):
                    tx.save_trial(changed)
                    assert tx.running_trial(changed.number) == await tx.trial(changed.number) == changed
                tx.save_trial(ended)
                assert (tx.running_trial(1), await tx.trial(1)) == (None, ended)
                assert tx.running() == [a_trial(2)]

    async def test_jobs_do_not_wait_for_each_other(self, opener: Opener) -> None:
        """A transaction of one job can be finished inside one of another."""
        async with opener() as store, store.transaction("j1") as one:
            one.save_job(a_job("j1"))
            async with store.transaction("j2") as two:
                two.save_job(a_job("j2"))
            assert [each.job.spec.job_id for each in await store.reads.jobs(JobList(), 0, 10)] == ["j2"]

    async def test_cancelled_caller_leaves_a_complete_transaction(self, opener: Opener) -> None:
        """Callers cancelled at any moment leave each job and its first trial both there or both absent."""
        async with opener() as store:
            tasks = [asyncio.create_task(save_with_trial(store, f"j{number}")) for number in range(50)]
            for turns, task in enumerate(tasks):
                for _ in range(turns % 10):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait(tasks)
        async with opener() as store:
            for each in await store.reads.jobs(JobList(), 0, 100):
                assert len(await store.reads.trials(TrialList(each.job.spec.job_id), (), 10)) == 1

    async def test_cancelling_the_wait_for_durability_keeps_the_transaction(self, opener: Opener) -> None:
        """A caller that is cancelled between its block and the commit does not undo what it saved."""
        async with opener() as store:
            for number in range(20):
                left = asyncio.Event()
                task = asyncio.create_task(save_with_trial(store, f"j{number}", left))
                await left.wait()
                assert not task.done()
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled()
        async with opener() as store:
            assert len(await store.reads.jobs(JobList(), 0, 100)) == 20
            for number in range(20):
                assert [each.trial.number for each in await store.reads.trials(TrialList(f"j{number}"), (), 10)] == [1]

    async def test_measurements_are_read_by_epoch(self, opener: Opener) -> None:
        """Every measurement is stored, the newest with the running trial, and its outcome only once it has one."""
        trial = a_trial(1)
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(trial)
            for epoch in (1, 2, 5):
                trial = trial._replace(last=Measurement(epoch, epoch * 1.5, epoch * 2.5, 0.1 * epoch, NOW))
                async with store.transaction("j") as tx:
                    tx.save_trial(trial._replace(cost=1.0, cost_bound=2.0, converged=True, best_known=True))
                    tx.add_measurement(trial)
        async with opener() as store, store.transaction("j") as tx:
            kept = await tx.measurements(1)
            assert [m.epoch for m in kept] == [1, 2, 5]
            assert kept[-1] == trial.last
            assert [each._replace(lease_expire_time=None) for each in tx.running()] == [trial]

    async def test_newest_measurements_are_kept(self, opener: Opener) -> None:
        """All but the newest are deleted, by their number whatever their epochs; one of the same block counts."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(a_trial(1))
            for epoch in (1, 2, 500, 6000):
                async with store.transaction("j") as tx:
                    trial = a_trial(1, last=Measurement(epoch, 1, 1, 1, NOW))
                    tx.add_measurement(trial)
                    tx.keep_measurements(trial, 2)
                    if epoch == 6000:
                        assert [m.epoch for m in await tx.measurements(1)] == [2, 500]
            async with store.transaction("j") as tx:
                assert [m.epoch for m in await tx.measurements(1)] == [500, 6000]

    async def test_jobs_are_counted_by_prefix(self, opener: Opener) -> None:
        """There is room below a limit of the jobs whose ids start with a prefix, however their prefixes are cut."""
        async with opener() as store:
            for job_id, prefix in (("a-1", "a"), ("a-2", "a"), ("a-b-1", "a-b"), ("b", "b"), ("a\U0010ffff", "a")):
                async with store.transaction(job_id) as tx:
                    tx.save_job(a_job(job_id, job_id_prefix=prefix))
            for prefix, found in (("a", 4), ("a-", 3), ("a-b", 1), ("", 5), ("x", 0)):
                await look_for_room(store, prefix, found + 1)
                with pytest.raises(TooManyJobsError):
                    await look_for_room(store, prefix, found)

    async def test_jobs_created_at_once_respect_the_limit(self, opener: Opener) -> None:
        """Of jobs that are created together only as many are saved as there is room for; a deletion makes room."""

        @retried
        async def create(store: Store, number: int) -> None:
            async with store.transaction(f"j-{number}") as tx:
                await tx.make_room("j-", 3)
                # Others look for room meanwhile.
                await asyncio.sleep(0)
                tx.save_job(a_job(f"j-{number}"))

        async with opener() as store:
            await create(store, 0)
            outcomes = await asyncio.gather(*(create(store, number) for number in range(1, 9)), return_exceptions=True)
            assert outcomes.count(None) == 2
            assert sum(isinstance(outcome, TooManyJobsError) for outcome in outcomes) == 6
            assert len(await store.reads.jobs(JobList("j-"), 0, 10)) == 3
            async with store.transaction("j-0") as tx:
                tx.delete_job()
            await create(store, 9)
            with pytest.raises(TooManyJobsError):
                await create(store, 10)

    async def test_content_is_counted(self, opener: Opener) -> None:
        """The number of jobs, and of the trials that run."""
        async with opener() as store:
            store.check()
            assert await store.reads.content() == (0, 0)
            await save_with_trial(store, "one")
            async with store.transaction("two") as tx:
                tx.save_job(with_trials(a_job("two"), 2))
                tx.save_trial(a_trial(1, "two"))
                tx.save_trial(a_trial(2, "two", status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
            assert await store.reads.content() == (2, 2)

    async def test_history_of_an_arm_is_read(self, opener: Opener) -> None:
        """A window has the newest observations in order; without one, the missed costs are kept in order."""
        outcomes = [(5.0, True), (3.0, False), (9.0, True), (4.0, False)]
        for window, job_id in ((2, "jw"), (0, "jh")):
            async with opener() as store:
                job = a_job(job_id, window_size=window)
                arms = tuple(replace(a, num_decided=4 if a.batch_size == 8 else 1) for a in job.search.arms)
                search = replace(job.search, arms=arms)
                async with store.transaction(job_id) as tx:
                    tx.save_job(with_trials(replace(job, search=search), 4))
                    for number, (cost, converged) in enumerate(outcomes, 1):
                        done = {"status": TrialStatus.DECIDED, "observation": number, "converged": converged}
                        tx.save_trial(a_trial(number, job_id, cost=cost, **done))
            async with opener() as store, store.transaction(job_id) as tx:
                assert tx.job is not None
                arm = tx.job.search.arm(8)
                if window:
                    assert arm.kept == (Observation(9.0, converged=True), Observation(4.0, converged=False))
                else:
                    assert arm.kept == (Observation(3.0, converged=False), Observation(4.0, converged=False))

    async def test_leases_expire_unless_they_are_renewed(self, opener: Opener) -> None:
        """A trial whose lease was not renewed is returned, once in a moment, and can be given up."""
        async with opener() as store:
            await save_with_leases(store, "j", 2)
            await self.pass_time(store, 3000)
            async with store.transaction("j") as tx:
                first, second = tx.running()
                assert not tx.lease_expired(first)
                tx.renew_lease(first._replace(lease_expire_time=store.clock() + timedelta(hours=1)))
            await self.pass_time(store, 500)
            assert await store.expired_leases() == []
            await self.pass_time(store, 200)
            assert await store.expired_leases() == [TrialId("j", trial_number=2)]
            assert await store.expired_leases() == []
            async with store.transaction("j") as tx:
                first, second = tx.running()
                assert [tx.lease_expired(trial) for trial in (first, second)] == [False, True]
                tx.save_trial(second._replace(status=TrialStatus.INTERRUPTED, end_reason=EndReason.LOST))
            await self.pass_time(store, 500)
            assert await store.expired_leases() == []
            async with store.transaction("j") as tx:
                assert [trial.number for trial in tx.running()] == [1]

    async def test_leases_are_full_after_a_time_without_a_server(self, opener: Opener) -> None:
        """A trial whose trainer never calls again loses its lease, counted from the start, not from the first read."""
        async with opener() as store:
            await save_with_leases(store, "j", 1)
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(trial_lease_seconds=3600.0), 2))
                tx.save_trial(a_trial(2, status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
        await self.pass_time(None, 7200)
        async with opener() as store:
            await self.pass_time(store, 3500)
            assert await store.expired_leases() == []
            await self.pass_time(store, 200)
            assert await store.expired_leases() == [TrialId("j", trial_number=1)]
            async with store.transaction("j") as tx:
                (trial,) = tx.running()
                assert tx.lease_expired(trial)
        await self.pass_time(None, 7200)
        async with opener() as store, store.transaction("j") as tx:
            (trial,) = tx.running()
            assert not tx.lease_expired(trial)
            assert trial.lease_expire_time is not None
            assert abs(trial.lease_expire_time - store.clock() - timedelta(hours=1)) < timedelta(minutes=5)

    async def test_lists_count_batch_sizes_without_the_search(self, opener: Opener) -> None:
        """A listed job has its batch sizes and the surviving ones, by ids that begin with the prefix and no others."""
        ids = ["a", "a-1", "A-1", "b", "a%", "a\U0010ffff-2", "a_"]
        async with opener() as store:
            for job_id in ids:
                async with store.transaction(job_id) as tx:
                    job = a_job(job_id)
                    pruned = replace(job.search.arms[0], pruned=True)
                    tx.save_job(replace(job, search=replace(job.search, arms=(pruned, *job.search.arms[1:]))))
            listed = await store.reads.jobs(JobList("a"), 0, 10)
            assert [each.job.spec.job_id for each in listed] == ["a", "a-1", "a%", "a\U0010ffff-2", "a_"]
            assert listed[0].job.spec == a_job("a").spec
            assert listed[0].available == a_job("a").spec.batch_sizes[1:]
            assert [each.position for each in await store.reads.jobs(JobList("a"), listed[1].position, 2)] == [
                each.position for each in listed[2:4]
            ]

    async def test_leases_of_a_deleted_job_do_not_expire(self, opener: Opener) -> None:
        """Deleting a job ends the leases of its trials only."""
        async with opener() as store:
            for job_id in ("gone", "stays"):
                await save_with_leases(store, job_id, 1)
            async with store.transaction("gone") as tx:
                tx.delete_job()
            await self.pass_time(store, 3700)
            assert [key.job_id for key in await store.expired_leases()] == ["stays"]

    async def test_deleted_job_is_gone_but_its_launches_are_known(self, opener: Opener) -> None:
        """Deleting removes job, trials and measurements; all launches that were dispatched are known."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 4))
                tx.save_trial(a_trial(1, status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
                tx.save_trial(a_trial(3, status=TrialStatus.INTERRUPTED, end_reason=EndReason.LOST))
                tx.save_trial(
                    a_trial(4, status=TrialStatus.INTERRUPTED, origin=TrialOrigin.IMPORTED, end_reason=EndReason.LOST)
                )
                tx.save_trial(a_trial(2))
                tx.add_measurement(a_trial(2, last=Measurement(1, 1, 1, 1, NOW)))
            async with store.transaction("j") as tx:
                assert [trial.number for trial in tx.delete_job()] == [2]
        async with opener() as store:
            async with store.transaction("j") as tx:
                assert tx.job is None
                assert await tx.measurements(2) == []
            known = [await was_launch_deleted(store, "j", f"launch {number}", None) for number in range(6)]
            assert known == [False, True, True, True, False, False]
            moment = timedelta(seconds=1)
            assert await was_launch_deleted(store, "j", "", NOW + moment)
            assert not await was_launch_deleted(store, "j", "", NOW - moment)
            assert not await was_launch_deleted(store, "j", "", NOW + timedelta(days=36500))
            assert not await was_launch_deleted(store, "j", "", None)
            assert not await was_launch_deleted(store, "another", "launch 2", NOW + moment)

    async def test_every_lifetime_of_a_deleted_job_is_known(self, opener: Opener) -> None:
        """A job id that was deleted twice: launches that started in either lifetime were deleted, others were not."""
        day = timedelta(days=1)
        async with opener() as store:
            now = datetime.now(timezone.utc)
            for age in (20, 10):
                async with store.transaction("j") as tx:
                    tx.save_job(replace(a_job(), create_time=now - age * day))
                async with store.transaction("j") as tx:
                    tx.delete_job()
            known = [await was_launch_deleted(store, "j", "", now - age * day) for age in (21, 19, 9)]
        assert known == [False, True, True]

    async def test_launches_of_a_deleted_job_are_known_to_the_next_job_of_its_id(self, opener: Opener) -> None:
        """Also if nothing had been deleted when the store was asked before; the launches of the next job are not."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(a_trial(1))
            assert not await was_launch_deleted(store, "j", "launch 1", None)
            async with store.transaction("j") as tx:
                tx.delete_job()
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(a_trial(1, launch_id="launch 2"))
            known = [await was_launch_deleted(store, "j", f"launch {number}", None) for number in range(3)]
            assert known == [False, True, False]
        async with opener() as store:
            known = [await was_launch_deleted(store, "j", f"launch {number}", None) for number in range(3)]
            assert known == [False, True, False]

    async def test_events_are_published_once_the_changes_are_durable(self, opener: Opener) -> None:
        """Events are published in their order before the block exits, and not if the block raised or only read."""
        job, published = a_job(), Published()
        async with opener() as store:
            store.observer = published
            async with store.transaction("j") as tx:
                tx.record(job, JobRegistered(job.spec), PriorUnused(job.spec, job.spec, "a test"))
                await asyncio.sleep(0)
                assert not published.kinds
            assert published.kinds == [JobRegistered, PriorUnused]
            with suppress(KeyError):
                async with store.transaction("j") as tx:
                    tx.record(replace(job, paused=True), JobPaused(job.spec))
                    raise KeyError
            async with store.transaction("j") as tx:
                tx.record(tx.job, PriorUnused(job.spec, job.spec, "a test"))
        assert published.kinds == [JobRegistered, PriorUnused]

    async def test_recorded_events_save_what_they_say(self, opener: Opener) -> None:
        """A recorded job and its events are saved with their sentences; a job of None deletes it, with its trials."""
        trial = a_trial(1, dispatch_event=1)
        measured = trial._replace(last=Measurement(1, 2.0, 3.0, 0.5, NOW))
        job, registered = with_trials(a_job(), 1), a_job()
        events = TrialDispatched(trial), EpochReported(measured, job.spec)
        async with opener() as store, store.transaction("j") as tx:
            tx.record(registered, JobRegistered(registered.spec))
            tx.record(job, *events)
            tx.record(replace(job, num_search_events=2), BatchSizeBanned(job.spec, 16, 2))
        async with opener() as store:
            async with store.transaction("j") as tx:
                saved, measurements, rows = await tx.trial(1), await tx.measurements(1), await tx.search_events()
                assert (tx.job and tx.job.num_search_events, saved and saved.last) == (2, measured.last)
                assert list(measurements) == [measured.last]
                assert [row.kind for row in rows] == [TrialDispatched.kind, BatchSizeBanned.kind]
                tx.record(None, JobDeleted(job.spec, 1, 1))
            async with store.transaction("j") as tx:
                assert tx.job is None
            history = await store.reads.events(EventList(job_id="j"), (), 9)
        assert [(entry.kind, entry.message, entry.batch_size) for _, entry in history] == [
            ("JOB_DELETED", "deleted with its trial; running ones that were stopped: 1", None),
            ("BATCH_SIZE_BANNED", "batch size banned: batch size 16", 16),
            ("JOB_REGISTERED", JobRegistered(registered.spec).message, None),
        ]

    async def test_work_follows_up_before_the_block_exits(self, opener: Opener) -> None:
        """Work that follows up finds the changes durable and the job free; it does not run for a block that raised."""
        found: list[Job | None] = []
        async with opener() as store:

            async def look() -> None:
                async with store.transaction("j") as tx:
                    found.append(tx.job)

            async with store.transaction("j") as tx:
                tx.record(a_job())
                tx.follow_up(look)
                assert not found
            assert found == [a_job()]
            with suppress(KeyError):
                async with store.transaction("j") as tx:
                    tx.follow_up(look)
                    raise KeyError
        assert found == [a_job()]

    async def test_subscribers_are_notified_once_changes_are_durable(self, opener: Opener) -> None:
        """A subscriber of a job is notified of the job, one of a trial only of that trial."""
        async with opener() as store:
            with store.subscribe("j") as job, store.subscribe("j", 1) as first, store.subscribe("j", 2) as second:
                async with store.transaction("j") as tx:
                    tx.save_job(with_trials(a_job(), 1))
                    tx.save_trial(a_trial(1))
                await asyncio.wait_for(job.wait(), 10)
                await asyncio.wait_for(first.wait(), 10)
                other = asyncio.ensure_future(second.wait())
                await asyncio.sleep(0)
                # A poll of the database may notify of everything.
                assert store.shared or not other.done()
                other.cancel()
