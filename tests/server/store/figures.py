"""Tests of the storage contract: lists, figures and the history, which every backend's tests inherit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from wattwise.rules import EndReason, GpuGroup, ResolvedJob, TrialStatus
from wattwise_server.domain import (
    ComputedUsage,
    Job,
    Launch,
    Measurement,
    PowerSample,
    RecordedEvent,
    Trial,
    TrialOrigin,
    TrialWarning,
    Usage,
    WarningReason,
)
from wattwise_server.events import JobDeleted, JobRegistered, TrialFailed
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import judge
from wattwise_server.store.base import (
    Bucket,
    EventList,
    JobList,
    JobOrder,
    JobState,
    Place,
    Prices,
    Spent,
    TrialGroup,
    TrialList,
)
from wattwise_server.store.transactions import Store

Opener = Callable[[], AbstractAsyncContextManager[Store]]

BEGIN = datetime(2026, 1, 2, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


def minutes(number: float) -> datetime:
    """A time after the beginning."""
    return BEGIN + number * MINUTE


def figured_job(job_id: str = "j", *, num_trials: int = 0, reset_after: int = 0) -> Job:
    """A job of two GPUs that was registered at the beginning; its default batch size is 8."""
    spec = ResolvedJob(
        job_id,
        (8, 16),
        8,
        GpuGroup(gpu_model="Test GPU", count=2, max_power_watts_per_gpu=50.0),
        0.5,
        True,
        job_id,
        eta_knob=0.5,
    )
    search = replace(POLICIES[spec.policy].register(spec, ()), num_trials=num_trials)
    return Job(spec, search, BEGIN, num_search_events=num_trials, reset_after=reset_after)


def ended_trial(
    number: int,
    batch_size: int = 8,
    cost: float | None = 100.0,
    end: EndReason = EndReason.TARGET_REACHED,
    **fields: object,
) -> Trial:
    """A trial of four epochs that ran for a minute, from the minute of its number on; its energy is twice its cost."""
    decided = end in (EndReason.TARGET_REACHED, EndReason.COST_BOUND, EndReason.MAX_EPOCHS)
    trial = Trial(
        "j",
        number,
        batch_size,
        TrialOrigin.SEARCH,
        None,
        minutes(number),
        f"launch {number}",
        status=TrialStatus.DECIDED if decided else TrialStatus.FAILED,
        end_reason=end,
        end_time=minutes(number + 1),
        last=None if cost is None else Measurement(4, 60.0, 2 * cost, 0.9, minutes(number + 1)),
        cost=cost,
        converged=end is EndReason.TARGET_REACHED,
        target_reached=end is EndReason.TARGET_REACHED,
        observation=number if end is EndReason.TARGET_REACHED else None,
        dispatch_event=number,
        end_event=number,
    )
    return trial._replace(**fields)  # type: ignore[arg-type]


async def save(store: Store, job: Job, *trials: Trial) -> int:
    """Saves a job with trials, of which the running ones have their last measurement; returns its key."""
    job_id = job.spec.job_id
    async with store.transaction(job_id) as tx:
        tx.save_job(job)
        for trial in trials:
            tx.save_trial(trial._replace(job_id=job_id))
            if trial.launch != Launch():
                tx.add_launch(trial)
            if trial.running and trial.last is not None:
                tx.add_measurement(trial._replace(job_id=job_id))
    return (await store.reads.job_versions("", job_id))[0].key


def running_trial(
    number: int, batch_size: int = 8, last: Measurement | None = None, start_time: datetime | None = None
) -> Trial:
    """A trial that runs since the minute of its number, or since a start."""
    start = start_time or minutes(number)
    return Trial("j", number, batch_size, TrialOrigin.SEARCH, None, start, f"launch {number}", last=last)


def only(groups: Sequence[TrialGroup], **wanted: object) -> TrialGroup:
    """The only group with these fields."""
    (found,) = [group for group in groups if all(getattr(group, name) == value for name, value in wanted.items())]
    return found


class FigureTests:
    """Every backend answers the same."""

    async def test_groups_add_up_what_counts(self, opener: Opener) -> None:
        """Sums are by batch size, type and delivery; excluded trials, running ones and those before a reset are out."""
        trials = [
            ended_trial(1, cost=7e9),
            ended_trial(2, cost=100.0),
            ended_trial(3, cost=200.0),
            ended_trial(4, cost=1e9, excluded=True),
            ended_trial(5, 16, cost=300.0, end=EndReason.COST_BOUND),
            ended_trial(6, 16, cost=None, end=EndReason.ERROR),
            running_trial(7),
            ended_trial(8, 16, cost=None, end=EndReason.PREEMPTED, status=TrialStatus.INTERRUPTED),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=8, reset_after=1), *trials)
            groups = (await store.reads.trial_groups([key], Prices(joule=0.5, gpu_second=0.375), {}))[key]
            assert len(groups) == 2
            delivered = only(groups, batch_size=8, delivered=True)
            assert (delivered.num_trials, delivered.num_undecided, delivered.own) == (2, 0, True)
            assert delivered.usage == Usage(120.0, 600.0, 300.0)
            assert delivered.money == 0.5 * 600.0 + 2 * 0.375 * 120.0
            assert (delivered.epochs, delivered.least_epochs, delivered.most_epochs) == (8, 4, 4)
            assert delivered.newest_end == minutes(4)
            logs = delivered.logs.cost
            assert logs.count == 2
            assert logs.mean == pytest.approx((math.log(100) + math.log(200)) / 2)
            assert logs.deviation == pytest.approx(2 * (math.log(2) / 2) ** 2)
            assert delivered.logs.time.deviation == 0.0
            others = only(groups, batch_size=16)
            assert (others.num_trials, others.num_undecided, others.num_interrupted) == (3, 2, 1)
            assert not others.delivered
            assert (others.usage.cost, others.logs.cost.count) == (300.0, 0)
            (version,) = await store.reads.job_versions()
            assert version.excluded == (4,)
            assert await store.reads.trial_groups([], Prices(), {}) == {}

    async def test_groups_are_split_at_a_trial(self, opener: Opener) -> None:
        """Sums before and since a trial of a job are apart, by its number; those of other jobs are together."""
        trials = [
            ended_trial(1, cost=100.0),
            ended_trial(2, cost=200.0),
            ended_trial(3, cost=300.0),
            ended_trial(4, 16, cost=400.0),
        ]
        async with opener() as store:
            split, whole, other = [
                await save(store, figured_job(job_id, num_trials=4), *trials) for job_id in ("split", "whole", "other")
            ]
            found = await store.reads.trial_groups([split, whole, other], Prices(), {split: 3, other: 2})
            sums = {
                key: sorted((group.batch_size, group.first_trial, group.usage.cost) for group in groups)
                for key, groups in found.items()
            }
            assert sums == {
                split: [(8, 1, 300.0), (8, 3, 300.0), (16, 4, 400.0)],
                whole: [(8, 1, 600.0), (16, 4, 400.0)],
                other: [(8, 1, 100.0), (8, 2, 500.0), (16, 4, 400.0)],
            }
            logs = [group.logs.cost.count for group in found[split] if group.first_trial == 1]
            assert logs == [2]

    async def test_policies_are_told_with_their_notes(self, opener: Opener) -> None:
        """That of today, also where a person has changed it; jobs that do not exist are left out."""
        plain = figured_job("plain")
        noted = replace(plain, search=replace(plain.search, notes="{}"))
        other = replace(figured_job("other"), registered=figured_job("other").spec)
        other = replace(other, spec=replace(other.spec, policy="gts"), search=replace(other.search, notes=""))
        async with opener() as store:
            key = await save(store, plain)
            async with store.transaction("plain") as tx:
                tx.save_job(noted)
            await save(store, figured_job("other"))
            other_key = await save(store, other)
            found = await store.reads.policy_states([key, other_key, 10**9])
            assert found == {key: ("knowledge_gradient", "{}"), other_key: ("gts", "")}
            assert await store.reads.policy_states([]) == {}
            policies = {version.key: version.policy.partition("{")[0] for version in await store.reads.job_versions()}
            assert policies == {key: "knowledge_gradient", other_key: "gts"}

    async def test_energy_of_nothing_has_no_logarithm(self, opener: Opener) -> None:
        """A delivery that took no energy counts, but not among those that have a logarithm."""
        free = Measurement(4, 60.0, 0.0, 0.9, minutes(2))
        async with opener() as store:
            key = await save(store, figured_job(num_trials=2), ended_trial(1, last=free), ended_trial(2))
            (group,) = (await store.reads.trial_groups([key], Prices(), {}))[key]
            assert (group.num_without_cost, group.num_without_energy) == (0, 0)
            assert (group.num_trials, group.logs.energy.count, group.logs.money.count) == (2, 1, 0)
            assert group.logs.energy.mean == pytest.approx(math.log(200.0))
            assert group.logs.energy.deviation == 0.0

    async def test_deliveries_without_energy_are_counted(self, opener: Opener) -> None:
        """Energy that was not measured is not 0 J; the cost is unknown if it is that of the energy alone."""
        silent, free = (Measurement(4, 60.0, joules, 0.9, minutes(2)) for joules in (None, 0.0))
        trials = [
            ended_trial(1, last=silent, cost=0.0),
            ended_trial(2, last=silent),
            ended_trial(3, last=free, cost=0.0),
            ended_trial(4),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=4), *trials)
            (group,) = (await store.reads.trial_groups([key], Prices(), {}))[key]
            assert (group.num_trials, group.num_without_cost, group.num_without_energy) == (4, 1, 2)

    async def test_history_from_before_the_job_is_not_its_own(self, opener: Opener) -> None:
        """An imported trial that started before the registration is apart, and so is one whose start is unknown."""
        starts = (BEGIN - MINUTE, None, BEGIN + MINUTE)
        trials = [
            ended_trial(number, origin=TrialOrigin.IMPORTED, start_time=start) for number, start in enumerate(starts, 1)
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=3), *trials)
            groups = (await store.reads.trial_groups([key], Prices(), {}))[key]
            assert {group.own: group.num_trials for group in groups} == {False: 2, True: 1}
            spent = await store.reads.spent(key, 1, 1, 0)
            assert [(each.num_deliveries, each.cost) for each in spent] == [(0, 0.0), (0, 0.0), (1, 100.0)]

    async def test_running_trials_have_what_they_took_so_far(self, opener: Opener) -> None:
        """The newest measurement of each running trial counts, with the cost of the job's eta."""
        async with opener() as store:
            other = await save(store, figured_job("other", num_trials=1), ended_trial(1))
            key = await save(store, figured_job(num_trials=2), running_trial(1), running_trial(2))
            async with store.transaction("j") as tx:
                tx.add_measurement(running_trial(1, last=Measurement(1, 10.0, 100.0, 0.1, minutes(1))))
            async with store.transaction("j") as tx:
                tx.add_measurement(running_trial(1, last=Measurement(2, 20.0, 300.0, 0.2, minutes(2))))
            for keys in ([key, other], None):
                found = await store.reads.running_groups(keys)
                first, second = sorted(found[key], key=lambda group: group.first_trial)
                assert other not in found
                assert (first.first_trial, first.num_trials, first.running) == (1, 1, True)
                assert first.usage == Usage(20.0, 300.0, 0.5 * 300.0 + 0.5 * 100.0 * 20.0)
                assert (second.first_trial, second.num_trials, second.usage) == (2, 1, Usage())
            assert await store.reads.running_groups([other]) == {}

    async def test_energy_that_no_trial_measured_is_unknown(self, opener: Opener) -> None:
        """Energy is summed over ended trials, running trials and days; trials without energy are left out."""
        without = Measurement(1, 10.0, None, 0.1, minutes(1))
        async with opener() as store:
            ended = ended_trial(1)._replace(last=without), ended_trial(2, 16)._replace(last=without), ended_trial(3, 16)
            running = running_trial(4, last=without)
            key = await save(store, figured_job(num_trials=4), *ended, running)
            groups = (await store.reads.trial_groups([key], Prices(), {}))[key]
            assert only(groups, batch_size=8).usage.energy_joules is None
            assert ended[2].last is not None
            assert only(groups, batch_size=16).usage.energy_joules == ended[2].last.energy_joules
            (group,) = (await store.reads.running_groups([key]))[key]
            assert group.usage.energy_joules is None

    async def test_cost_of_a_running_trial_is_the_computed_one(self, opener: Opener) -> None:
        """In observer mode the cost is the computed one, also without computed energy; time and energy are measured."""
        last = Measurement(1, 20.0, 300.0, 0.1, minutes(1), ComputedUsage(30.0, 200.0, 40.0))
        without = last._replace(computed=ComputedUsage(30.0, None, 40.0))
        async with opener() as store:
            trials = running_trial(1, last=last), running_trial(2, last=without)
            key = await save(store, figured_job(num_trials=2), *trials)
            found = {group.first_trial: group.usage for group in (await store.reads.running_groups([key]))[key]}
            assert found[1] == Usage(20.0, 300.0, 0.5 * 200.0 + 0.5 * 100.0 * 30.0)
            assert found[2] == Usage(20.0, 300.0, 0.5 * 100.0 * 30.0)
            spec = figured_job().spec
            for number, measurement in enumerate((last, without), 1):
                assert found[number].cost == judge(spec, None, measurement).cost

    async def test_buckets_have_the_median_and_the_range(self, opener: Opener) -> None:
        """Each range has its trials by batch size; of an even number of them the median is between the middle ones.

        What a claim compares may begin within a range.
        """
        costs = {1: 10.0, 2: 30.0, 3: 20.0, 4: 50.0, 5: 40.0}
        trials = [ended_trial(number, cost=cost) for number, cost in costs.items()]
        trials.append(ended_trial(6, 16, cost=60.0, end=EndReason.ERROR))
        trials.append(ended_trial(7, 16, cost=None, end=EndReason.LOST))
        async with opener() as store:
            key = await save(store, figured_job(num_trials=7), *trials)
            reached = EndReason.TARGET_REACHED
            assert await store.reads.buckets(key, 1, 4, with_excluded=False) == [
                Bucket(0, 8, 4, 4, 0, 10.0, 25.0, 50.0, 4, minutes(5), 4.0, reached, "", excluded=False),
                Bucket(1, 8, 1, 1, 0, 40.0, 40.0, 40.0, 5, minutes(6), 4.0, reached, "", excluded=False),
                Bucket(1, 16, 1, 0, 1, 60.0, 60.0, 60.0, 6, minutes(7), 4.0, EndReason.ERROR, "", excluded=False),
            ]
            assert await store.reads.spent(key, 1, 4, 4) == [Spent(0, 4, 110.0, 1, 50.0), Spent(1, 1, 100.0, 1, 100.0)]

    async def test_single_buckets_say_why_their_trial_was_chosen(self, opener: Opener) -> None:
        """A range of one trial has its reason; one of several has none, nor an end reason unless it is that of all."""
        trials = [
            ended_trial(1, launch=Launch("the default")),
            ended_trial(2, end=EndReason.COST_BOUND, launch=Launch("untried")),
            ended_trial(3),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=3), *trials)
            single = await store.reads.buckets(key, 1, 1, with_excluded=False)
            assert [each.reason for each in single] == ["the default", "untried", ""]
            (joint,) = await store.reads.buckets(key, 1, 3, with_excluded=False)
            assert (joint.reason, joint.end_reason) == ("", None)

    async def test_excluded_trials_have_buckets_of_their_own(self, opener: Opener) -> None:
        """They are in them only if they are requested, apart from trials that count, and in no sum."""
        trials = [ended_trial(1, cost=10.0), ended_trial(2, cost=7e9, excluded=True), ended_trial(3, cost=20.0)]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=3), *trials)
            without = await store.reads.buckets(key, 1, 3, with_excluded=False)
            both = await store.reads.buckets(key, 1, 3, with_excluded=True)
            assert [(each.num_trials, each.median_cost, each.excluded) for each in both] == [
                (2, 15.0, False),
                (1, 7e9, True),
            ]
            assert both[:1] == without
            assert await store.reads.spent(key, 1, 3, 0) == [Spent(0, 2, 30.0, 2, 30.0)]

    async def test_trials_are_listed_by_their_labels(self, opener: Opener) -> None:
        """A trial is listed if it has all pairs, whatever else it has and whatever characters they hold."""
        hostile = '"], ["host", "a'
        trials = [
            ended_trial(1, launch=Launch("", (("commit", "5f0"), ("host", "a")))),
            ended_trial(2, launch=Launch("", (("host", "b"),))),
            ended_trial(3, launch=Launch("", (("a", "host"), ("note", hostile)))),
            ended_trial(4),
        ]
        async with opener() as store:
            await save(store, figured_job(num_trials=4), *trials)

            async def listed(*labels: tuple[str, str]) -> list[int]:
                wanted = TrialList("j", labels=labels)
                found = [each.trial.number for each in await store.reads.trials(wanted, (), 10)]
                assert await store.reads.count_trials(wanted) == len(found)
                return found

            assert await listed(("host", "a")) == [1]
            assert await listed(("host", "a"), ("commit", "5f0")) == [1]
            assert await listed(("host", "a"), ("commit", "other")) == []
            assert await listed(("note", hostile)) == [3]
            assert await listed() == [1, 2, 3, 4]
            several = await store.reads.trials(TrialList(labels=(("host", "b"),)), (), 10)
            assert [each.trial.number for each in several] == [2]

    async def test_break_even_is_where_the_saving_stays_positive(self, opener: Opener) -> None:
        """The trial after the last one at which deliveries were worth no more than what was spent."""
        trials = [
            ended_trial(1, cost=5.0),
            ended_trial(2, cost=500.0, end=EndReason.COST_BOUND),
            ended_trial(3, cost=5.0),
            ended_trial(4, cost=5.0),
            ended_trial(5, cost=5.0),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=5), *trials)
            assert await store.reads.break_even(key, 200.0, 0) == 4
            # Two deliveries by the third trial: 510.0 spent.
            assert await store.reads.break_even(key, 255.25, 0) == 3
            assert await store.reads.break_even(key, 254.75, 0) == 4
            assert await store.reads.break_even(key, 100.0, 0) is None
            assert await store.reads.break_even(key, 1000.0, 0) == 1
            # Without the expensive trial, as if the job had begun with the next one.
            assert await store.reads.break_even(key, 100.0, 3) == 3
            assert await store.reads.break_even(key, 4.0, 3) is None

    async def test_profiles_are_the_newest_of_each_batch_size(self, opener: Opener) -> None:
        """A trial's samples count, by limit, until a newer trial that is not excluded has some; a reset keeps them."""
        high, low = PowerSample(300.0, 1.0, 100.0, 10), PowerSample(200.0, 1.5, 90.0, 10)
        async with opener() as store:
            trials = [ended_trial(1), ended_trial(2), ended_trial(3, 16), ended_trial(4, excluded=True)]
            key = await save(store, figured_job(num_trials=4), *trials)
            async with store.transaction("j") as tx:
                tx.save_samples(trials[0], [high])
                tx.save_samples(trials[1], [high])
                tx.save_samples(trials[1], [high, low])
                tx.save_samples(trials[2], [low])
                tx.save_samples(trials[3], [low])
            assert await store.reads.profiles(key) == [(2, 8, [low, high]), (3, 16, [low])]
            async with store.transaction("j") as tx:
                assert await tx.samples(2) == [low, high]
                assert await tx.samples(9) == []
                tx.save_job(figured_job(num_trials=4, reset_after=2))
            assert await store.reads.profiles(key) == [(2, 8, [low, high]), (3, 16, [low])]

    async def test_trials_are_listed_in_both_directions(self, opener: Opener) -> None:
        """One job's by number, from a place on; by end reason too."""
        trials = [ended_trial(1), ended_trial(2, end=EndReason.LOST), ended_trial(3), running_trial(4)]
        async with opener() as store:
            await save(store, figured_job(num_trials=4), *trials)

            async def numbers(after: Place = (), limit: int = 9, **wanted: object) -> list[int]:
                found = await store.reads.trials(TrialList("j", **wanted), after, limit)  # type: ignore[arg-type]
                return [each.trial.number for each in found]

            assert await numbers(newest_first=True, limit=2) == [4, 3]
            assert await numbers((3,), newest_first=True) == [2, 1]
            assert await numbers((2,)) == [3, 4]
            assert await numbers(end_reasons=(EndReason.TARGET_REACHED,), newest_first=True) == [3, 1]
            assert await store.reads.count_trials(TrialList("j", end_reasons=(EndReason.LOST,))) == 1
            assert await store.reads.count_trials(TrialList("j")) == 4

    async def test_trials_of_several_jobs_are_listed_by_start(self, opener: Opener) -> None:
        """Those that started at the same time are told apart by job and number, over the border of a page too."""
        async with opener() as store:
            for job_id in ("a-1", "a-2", "b"):
                trials = [running_trial(1), ended_trial(2), running_trial(3)]
                await save(store, figured_job(job_id, num_trials=3), *trials)
            for newest_first in (False, True):
                wanted = TrialList(prefix="a-", newest_first=newest_first)
                seen: list[tuple[str, int]] = []
                place: Place = ()
                while page := await store.reads.trials(wanted, place, 2):
                    seen += [(each.trial.job_id, each.trial.number) for each in page]
                    place = page[-1].place
                expected = [(job_id, number) for number in (1, 2, 3) for job_id in ("a-1", "a-2")]
                assert seen == (expected[::-1] if newest_first else expected)
            running = TrialList(statuses=(TrialStatus.RUNNING,))
            assert len(await store.reads.trials(running, (), 99)) == await store.reads.count_trials(running) == 6
            assert await store.reads.count_trials(TrialList(prefix="a-")) == 6

    async def test_jobs_are_listed_by_what_their_trials_do(self, opener: Opener) -> None:
        """Every order and state of a list of jobs."""
        warning = TrialWarning(WarningReason.NO_ENERGY, "result.measurement.energy_joules", "is 0", 1)
        async with opener() as store:
            await save(store, figured_job("new"))
            running = running_trial(1, last=Measurement(1, 10.0, 100.0, 0.1, minutes(30)))
            await save(store, figured_job("Runs", num_trials=1), running)
            await save(store, figured_job("idle", num_trials=2), ended_trial(1), ended_trial(2))
            crashed = [ended_trial(number, end=EndReason.ERROR) for number in (1, 2, 3)]
            await save(store, figured_job("fails", num_trials=3), *crashed)
            preempted = [*crashed[:2], ended_trial(3, end=EndReason.PREEMPTED)]
            await save(store, figured_job("preempted", num_trials=3), *preempted)
            await save(store, replace(figured_job("warned", num_trials=1), warnings=(warning,)), ended_trial(1))
            stuck = figured_job("stuck")
            arms = tuple(replace(arm, excluded=True) for arm in stuck.search.arms)
            await save(store, replace(stuck, search=replace(stuck.search, arms=arms), pinned=8))

            async def ids(**wanted: object) -> list[str]:
                listed = JobList(**wanted)  # type: ignore[arg-type]
                found = [each.job.spec.job_id for each in await store.reads.jobs(listed, 0, 99)]
                assert await store.reads.count_jobs(listed) == len(found)
                return found

            every = ["new", "Runs", "idle", "fails", "preempted", "warned", "stuck"]
            assert await ids() == every
            assert await ids(order=JobOrder.NEWEST) == every[::-1]
            assert await ids(order=JobOrder.ID) == sorted(every)
            by_activity = await ids(order=JobOrder.LAST_ACTIVITY)
            assert by_activity == ["Runs", "preempted", "fails", "idle", "warned", "stuck", "new"]
            assert await ids(order=JobOrder.ATTENTION) == [
                *("fails", "warned", "stuck"),
                *("Runs", "preempted", "idle", "new"),
            ]
            assert await ids(states=(JobState.RUNNING,)) == ["Runs"]
            assert await ids(states=(JobState.IDLE,)) == ["idle", "fails", "preempted", "warned"]
            assert await ids(states=(JobState.NEW,)) == ["new", "stuck"]
            assert await ids(states=(JobState.HELD,)) == ["stuck"]
            assert await ids(states=(JobState.ATTENTION,)) == ["fails", "warned", "stuck"]
            assert await ids(contains="UN") == ["Runs"]
            assert await ids(contains="%") == []
            assert await ids(prefix="s", contains="k") == ["stuck"]
            first = await store.reads.jobs(JobList(order=JobOrder.ATTENTION), 0, 4)
            rest = await store.reads.jobs(JobList(order=JobOrder.ATTENTION), first[-1].position, 4)
            assert [each.job.spec.job_id for each in rest] == ["preempted", "idle", "new"]
            newest = await store.reads.jobs(JobList(order=JobOrder.NEWEST), 0, 2)
            rest = await store.reads.jobs(JobList(order=JobOrder.NEWEST), newest[-1].position, 2)
            assert [each.job.spec.job_id for each in rest] == ["preempted", "fails"]
            by_id = {each.job.spec.job_id: each for each in await store.reads.jobs(JobList(with_activity=True), 0, 9)}
            assert by_id["Runs"].activity == (1, minutes(30), False)
            assert by_id["idle"].activity == (0, minutes(3), False)
            assert by_id["stuck"].activity == (0, None, True)
            attentive = {each.key for each in await store.reads.job_versions("") if each.needs_attention}
            assert attentive == {by_id[name].key for name in ("fails", "warned", "stuck")}

    @pytest.mark.parametrize(
        ("others", "attentive"),
        [
            ({"num_decided": 1}, True),
            ({"num_failed": 3}, True),
            ({"banned": True}, True),
            ({"num_failed": 2}, False),
            ({"num_decided": 2, "num_converged": 1}, False),
            ({"num_decided": 2, "num_converged": 1, "pruned": True}, False),
        ],
    )
    async def test_a_job_that_only_misses_needs_attention(
        self, opener: Opener, others: dict[str, Any], *, attentive: bool
    ) -> None:
        """A job needs attention once each batch size that may be chosen has missed, and none has reached the target."""
        job = figured_job("misses")
        first, *rest = job.search.arms
        arms = (replace(first, num_decided=2), *(replace(arm, **others) for arm in rest))
        async with opener() as store:
            await save(store, replace(job, search=replace(job.search, arms=arms)))
            assert bool(await store.reads.jobs(JobList(states=(JobState.ATTENTION,)), 0, 9)) is attentive

    @pytest.mark.parametrize("order", [JobOrder.OLDEST, JobOrder.NEWEST, JobOrder.ID])
    async def test_deletion_moves_no_other_job_of_a_list(self, opener: Opener, order: JobOrder) -> None:
        """A page begins behind the last job of the page before, though jobs up to it were deleted, itself too."""
        async with opener() as store:
            for job_id in ("b", "a", "d", "c", "e"):
                await save(store, figured_job(job_id))
            wanted = JobList(order=order)
            every = [each.job.spec.job_id for each in await store.reads.jobs(wanted, 0, 9)]
            page = await store.reads.jobs(wanted, 0, 2)
            for each in page:
                async with store.transaction(each.job.spec.job_id) as tx:
                    tx.delete_job()
            rest = await store.reads.jobs(wanted, page[-1].position, 9)
            assert [each.job.spec.job_id for each in rest] == every[2:]

    @pytest.mark.parametrize("num_more", [0, 100])
    async def test_failures_before_a_reset_need_no_attention(self, opener: Opener, num_more: int) -> None:
        """Only the newest three ends since the reset count, whether few trials or many came since."""
        crashed = [ended_trial(number, end=EndReason.ERROR) for number in (1, 2, 3)]
        old = {"origin": TrialOrigin.IMPORTED, "end": EndReason.ERROR, "end_time": minutes(-1)}
        since = [ended_trial(number, **old) for number in range(4, 5 + num_more)]  # type: ignore[arg-type]
        last = since[-1].number
        reset = figured_job("j", num_trials=last, reset_after=3)
        more = figured_job("j", num_trials=last + 2, reset_after=3)
        async with opener() as store:

            async def needs_attention() -> bool:
                (found,) = await store.reads.jobs(JobList(with_activity=True), 0, 9)
                assert found.activity is not None
                return found.activity.needs_attention

            await save(store, figured_job("j", num_trials=3), *crashed)
            assert await needs_attention()
            delivered = [each._replace(status=TrialStatus.DECIDED, end_reason=EndReason.MAX_EPOCHS) for each in since]
            await save(store, reset, *delivered)
            assert not await needs_attention()
            newest = [ended_trial(number, end=EndReason.ERROR) for number in (last + 1, last + 2)]
            await save(store, more, *newest)
            assert not await needs_attention()
            await save(store, more, *since)
            assert await needs_attention()

    async def test_an_import_hides_no_activity(self, opener: Opener) -> None:
        """A job was last active when its running trial was dispatched, whatever has been imported since."""
        old = ended_trial(2, origin=TrialOrigin.IMPORTED, start_time=minutes(-99), end_time=minutes(-98))
        async with opener() as store:
            await save(store, figured_job("later", num_trials=1), ended_trial(1, end_time=minutes(3)))
            await save(store, figured_job("j", num_trials=2), running_trial(1, start_time=minutes(5)), old)
            by_activity = JobList(order=JobOrder.LAST_ACTIVITY, with_activity=True)
            found = [(each.job.spec.job_id, each.activity) for each in await store.reads.jobs(by_activity, 0, 9)]
            assert found == [("j", (1, minutes(5), False)), ("later", (0, minutes(3), False))]

    async def test_deliveries_are_counted_by_time(self, opener: Opener) -> None:
        """Those that had ended at each of several times."""
        trials = [ended_trial(1), ended_trial(2, end=EndReason.MAX_EPOCHS), ended_trial(3), ended_trial(4)]
        async with opener() as store:
            await save(store, figured_job(num_trials=4), *trials)
            times = [minutes(-1e6), minutes(1.5), minutes(2), minutes(4), minutes(4.5), minutes(9)]
            assert await store.reads.deliveries_before("j", times) == [0, 0, 1, 2, 2, 3]
            assert await store.reads.deliveries_before("j", [minutes(4)]) == [2]
            assert await store.reads.deliveries_before("j", []) == []
            assert await store.reads.deliveries_before("other", times[:2]) == [0, 0]

    async def test_only_deliveries_that_count_age_a_baseline(self, opener: Opener) -> None:
        """Deliveries from before a reset, excluded ones and history from before the job are not among those counted."""
        trials = [
            ended_trial(1, end_time=minutes(20)),
            ended_trial(2),
            ended_trial(3),
            ended_trial(4, end=EndReason.MAX_EPOCHS),
            ended_trial(5, excluded=True),
            ended_trial(6, origin=TrialOrigin.IMPORTED, start_time=BEGIN - MINUTE),
            ended_trial(7, origin=TrialOrigin.IMPORTED),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=7, reset_after=1), *trials)
            assert await store.reads.deliveries_since(key, minutes(3), 0) == 2
            assert await store.reads.deliveries_since(key, minutes(8), 0) == 0
            assert await store.reads.deliveries_since(key, minutes(3), 4) == 1

    async def test_days_have_what_ended_on_them(self, opener: Opener) -> None:
        """Own trials that count, by the day in UTC on which they ended; what still runs has no day."""
        trials = [
            ended_trial(1),
            ended_trial(2, end_time=minutes(2)),
            ended_trial(3, end_time=minutes(3), end=EndReason.MAX_EPOCHS),
            ended_trial(4, end_time=minutes(24 * 60)),
            ended_trial(5, excluded=True),
            ended_trial(6, origin=TrialOrigin.IMPORTED, start_time=BEGIN - MINUTE),
        ]
        async with opener() as store:
            key = await save(store, figured_job(num_trials=6, reset_after=1), *trials)
            days = await store.reads.days(key, BEGIN)
            later = await store.reads.days(key, minutes(60))
        assert [(day.start.date(), day.num_trials, day.num_deliveries) for day in days] == [
            (minutes(2).date(), 2, 1),
            (minutes(24 * 60).date(), 1, 1),
        ]
        assert later == days[1:]
        assert all((day.start.hour, day.start.minute, day.start.second) == (0, 0, 0) for day in days)
        assert days[1].usage.cost == days[0].usage.cost / 2 > 0

    async def test_history_outlives_its_job(self, opener: Opener) -> None:
        """Entries, some about no trial, are listed newest first, by job, prefix and kind; old ones are forgotten."""
        kinds = [JobRegistered.kind, TrialFailed.kind, JobDeleted.kind]
        entries = [
            RecordedEvent(
                minutes(number), kind, job_id, f"said {number}", number or None, 8 if number else None, "5f0c2a9be1d4"
            )
            for job_id in ("a", "ab")
            for number, kind in enumerate(kinds)
        ]
        async with opener() as store:
            for job_id in ("a", "ab"):
                await save(store, figured_job(job_id))
                async with store.transaction(job_id) as tx:
                    tx.delete_job()
                    for entry in entries:
                        if entry.job_id == job_id:
                            tx.add_event(entry)
        async with opener() as store:

            async def listed(after: Place = (), limit: int = 99, **wanted: object) -> list[RecordedEvent]:
                found = await store.reads.events(EventList(**wanted), after, limit)  # type: ignore[arg-type]
                return [each.event for each in found]

            assert await listed() == entries[::-1]
            assert await listed(job_id="a") == entries[2::-1]
            assert await listed(prefix="ab") == entries[:2:-1]
            assert await listed(kinds=(TrialFailed.kind,)) == [entries[4], entries[1]]
            (page,) = await store.reads.events(EventList(), (), 1)
            assert await listed(page.place, 2) == [entries[4], entries[3]]
            await store.forget_events(minutes(1))
            assert await listed(job_id="a") == entries[2:0:-1]

    async def test_subscribers_of_several_jobs_learn_which_have_changed(self, opener: Opener) -> None:
        """A subscriber to a prefix learns which of its jobs change, also by an epoch, and of no other job.

        A server whose notices do not arrive yet says instead that any job may have changed.
        """
        async with opener() as store:
            for job_id in ("a-1", "a-2", "b"):
                await save(store, figured_job(job_id, num_trials=1), running_trial(1))
            with store.subscribe_jobs("a-") as changes:
                for job_id in ("b", "a-2"):
                    async with store.transaction(job_id) as tx:
                        last = Measurement(1, 10.0, 100.0, 0.1, minutes(2))
                        tx.add_measurement(running_trial(1, last=last)._replace(job_id=job_id))
                found, any_job = set[str](), False
                while "a-2" not in found and not any_job:
                    await changes.wait()
                    named, any_job = changes.take()
                    found |= named
                assert found <= {"a-2"}
