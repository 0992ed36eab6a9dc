"""Jobs that change: what is noticed, what still counts afterwards, and what the next launches get."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import numpy as np
import pytest
from wattwise_server.domain import ChangedQuantity, DetectedChange, Moments, TrialOrigin
from wattwise_server.policy.base import Prior
from wattwise_server.policy.knowledge_gradient.state import Knowledge, read

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    SIZES,
    World,
    belief_of,
    bound,
    check_belief,
    choice_of,
    course,
    fresh,
    kg_job,
    launch,
    launches,
    next_size,
    run_all,
    show,
    sizes,
)
from tests.server.policy.simulated import SimulatedJob

SETTLED = 40
"""Launches after which a job always uses its best batch size."""

UNSTOPPED: dict[str, Any] = {"beta_knob": None, "max_epochs": 300}
"""A job whose trials are never stopped early, so that all of them show their epochs."""


def scaled(epochs: float = 1.0, cost: float = 1.0, affected: tuple[int, ...] = SIZES) -> World:
    """The usual world with other epochs and costs at some batch sizes."""

    def world(size: int) -> tuple[int, float]:
        usual, epoch_cost = course(size)
        if size not in affected:
            return usual, epoch_cost
        return round(usual * epochs), epoch_cost * cost

    return world


def broken(*affected: int) -> World:
    """The usual world in which some batch sizes miss the target."""
    return lambda size: (None if size in affected else course(size)[0], course(size)[1])


def changes_of(job: SimulatedJob) -> dict[ChangedQuantity, DetectedChange]:
    """Its changes, by quantity."""
    found = job.policy.changes(job.search)
    assert len({change.quantity for change in found}) == len(found)
    return {change.quantity: change for change in found}


def knowledge_of(job: SimulatedJob) -> Knowledge:
    """What is known."""
    return read(job.search.notes)


def settled_job(**fields: Any) -> SimulatedJob:
    """A job that uses its best batch size, and has not changed."""
    return copy.copy(_settled(**fields))


@functools.cache
def _settled(**fields: Any) -> SimulatedJob:
    job = kg_job(**fields)
    run_all(job, SETTLED)
    assert not job.policy.changes(job.search)
    return job


def until_noticed(job: SimulatedJob, world: World, most: int = 10) -> DetectedChange:
    """Launches in a world until a change is noticed; returns it."""
    before = job.policy.changes(job.search)
    for _ in range(most):
        launch(job, world)
        if (found := job.policy.changes(job.search)) != before:
            return found[-1]
    raise AssertionError("no change was noticed")


# What is noticed


@pytest.mark.parametrize("factor", [1 / 3, 1.5, 3.0])
def test_change_of_the_epochs(factor: float) -> None:
    """Trials that take more or fewer epochs from some trial on are noticed soon, with their factor."""
    job = settled_job(**UNSTOPPED)
    change = until_noticed(job, scaled(epochs=factor))
    assert change.quantity is ChangedQuantity.EPOCHS
    assert change.factor == pytest.approx(factor, rel=0.15)
    assert (change.since_trial, change.batch_size) == (SETTLED + 1, 32)
    assert change.detected_by_trial == job.trials
    assert list(changes_of(job)) == [ChangedQuantity.EPOCHS]


@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
def test_change_of_the_cost(factor: float) -> None:
    """An epoch that costs more or less from some trial on is noticed soon, with its factor."""
    job = settled_job(**UNSTOPPED)
    change = until_noticed(job, scaled(cost=factor))
    assert change.quantity is ChangedQuantity.EPOCH_COST
    assert change.factor == pytest.approx(factor, rel=0.01)
    assert (change.since_trial, change.batch_size) == (SETTLED + 1, 32)
    assert change.detected_by_trial == job.trials
    assert list(changes_of(job)) == [ChangedQuantity.EPOCH_COST]


def test_change_to_misses() -> None:
    """A job that no longer reaches its target is noticed: the factor is infinite, and nothing reaches it any more."""
    job = settled_job(max_epochs=150)
    # These trainers report once, after the last epoch.
    while not job.policy.changes(job.search):
        trial = job.next()
        job.run(trial, None, course(trial.batch_size)[1], steps=[150])
    (change,) = job.policy.changes(job.search)
    assert (change.quantity, change.factor, change.since_trial) == (ChangedQuantity.EPOCHS, math.inf, SETTLED + 1)
    assert not change.factor_is_lower_limit
    assert "batch size 32 misses the target;" in change.message
    assert not knowledge_of(job).reached.any()
    assert all(bound(job, size) for size in SIZES if size != job.search.min_cost_batch_size)
    assert set(launches(job, broken(*SIZES), 5)) == set(SIZES)


def test_stopped_trials_show_a_change() -> None:
    """Trials that are stopped because they have come to take three times as many epochs show that, too."""
    job = settled_job(max_epochs=150)
    change = until_noticed(job, scaled(epochs=3))
    assert (change.quantity, change.since_trial) == (ChangedQuantity.EPOCHS, SETTLED + 1)
    assert set(launches(job, scaled(epochs=3), 30)[-10:]) == {32}


def test_stopped_trials_tell_a_lower_limit() -> None:
    """Trials that are stopped at their bound after the epochs have doubled take at least as many, and do not miss."""
    job = settled_job(max_epochs=150)
    change = until_noticed(job, scaled(epochs=2))
    assert change.factor_is_lower_limit
    assert 1.2 < change.factor < 2
    assert f"batch size 32 takes at least {change.factor:.1f} times as many epochs;" in change.message


def test_some_stopped_trials_leave_the_factor_known() -> None:
    """If fewer than half of the trials were stopped, the one in the upper middle tells the factor."""
    job = settled_job(**UNSTOPPED)
    seen = iter([30, None, 28, 32, None, 29, 31])
    while ChangedQuantity.EPOCHS not in changes_of(job):
        epochs = next(seen)
        show(job, 32, epochs or 40, reached=epochs is not None)
    change = changes_of(job)[ChangedQuantity.EPOCHS]
    assert (change.since_trial, change.detected_by_trial, change.factor_is_lower_limit) == (
        SETTLED + 1,
        SETTLED + 5,
        False,
    )
    assert change.factor == pytest.approx(32 / course(32)[0], rel=0.02)


def test_both_quantities_change() -> None:
    """A job whose epochs and costs change at the same time has both changes."""
    job = settled_job(**UNSTOPPED)
    for _ in range(10):
        launch(job, scaled(epochs=0.4, cost=2.0))
    found = changes_of(job)
    assert found[ChangedQuantity.EPOCHS].factor == pytest.approx(0.4, rel=0.15)
    assert found[ChangedQuantity.EPOCH_COST].factor == pytest.approx(2.0, rel=0.01)


def test_a_batch_size_that_changes_alone() -> None:
    """If only the best batch size takes fewer epochs, that is noticed; it stays in use."""
    job = settled_job()
    change = until_noticed(job, scaled(epochs=0.4, affected=(32,)))
    assert (change.quantity, change.batch_size) == (ChangedQuantity.EPOCHS, 32)
    assert launches(job, scaled(epochs=0.4, affected=(32,)), 20)[-10:] == [32] * 10


@pytest.mark.parametrize("world", [broken(32), scaled(epochs=4, affected=(32,)), scaled(cost=4, affected=(32,))])
def test_the_best_alone_becomes_worse(world: World) -> None:
    """Whether noticed as a change or not, launches leave a batch size that alone has become much worse."""
    job = settled_job(max_epochs=150)
    chosen = launches(job, world, 30)
    assert chosen.count(32) <= 8
    assert 32 not in chosen[-15:]


def test_smaller_batch_sizes_become_better() -> None:
    """If the order of the batch sizes turns, launches move to the other end."""

    def world(size: int) -> tuple[int, float]:
        return round(2 + size * 1.5), course(size)[1]

    job = settled_job(max_epochs=150)
    assert set(launches(job, world, 40)[-10:]) == {8}
    assert list(changes_of(job)) == [ChangedQuantity.EPOCHS]


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_change(seed: int) -> None:
    """In a job with noise and with unusual trials, but without a change, none is noticed."""
    job, noise = kg_job(max_epochs=200), np.random.default_rng(seed)
    for _ in range(120):
        trial = job.next()
        epochs, cost = course(trial.batch_size)
        kind, error = noise.random(), noise.standard_normal()
        noisy = None if kind < 0.02 else max(1, round(epochs * math.exp((1.0 if kind < 0.05 else 0.12) * error)))
        job.run(trial, noisy, cost * math.exp(0.02 * noise.standard_normal()))
    assert not job.policy.changes(job.search)


@pytest.mark.parametrize("epochs", [1, 200, None])
def test_one_unusual_trial_is_no_change(epochs: int | None) -> None:
    """One trial never reveals a change, whatever it took."""
    job = settled_job(**UNSTOPPED)
    job.run(job.next(), epochs, course(32)[1])
    assert not job.policy.changes(job.search)


@pytest.mark.parametrize("cost", [1e-9, 1e9])
def test_one_unusual_cost_is_no_change(cost: float) -> None:
    """Nor does one cost of an epoch."""
    job = settled_job()
    job.run(job.dispatch(32), 3, cost)
    assert ChangedQuantity.EPOCH_COST not in changes_of(job)


# What still counts


def test_costs_stay_known_after_a_change_of_the_epochs() -> None:
    """Only the trials since the change tell epochs; what an epoch costs is known as before."""
    job = settled_job(**UNSTOPPED)
    costs = [each.epoch_cost for each in knowledge_of(job).evidence]
    change = until_noticed(job, scaled(epochs=3))
    after = knowledge_of(job)
    counted = job.trials - change.since_trial + 1
    assert after.trials == counted
    assert sum(each.num_reached + each.num_missed for each in after.evidence) == counted
    for before, each in zip(costs, after.evidence, strict=True):
        assert each.epoch_cost.count >= before.count
        assert each.epoch_cost.mean == pytest.approx(before.mean)
        assert each.cost_doubt == 0


def test_epochs_stay_known_after_a_change_of_the_cost() -> None:
    """Trials before the change tell epochs as before; where there is none since, an epoch may or may not cost more."""
    job = settled_job(**UNSTOPPED)
    job.run(job.dispatch(8), *course(8))
    before = knowledge_of(job)
    until_noticed(job, scaled(cost=3.0))
    after = knowledge_of(job)
    assert after.trials == job.trials
    for size, was, each in zip(SIZES, before.evidence, after.evidence, strict=True):
        assert each.num_reached >= was.num_reached
        cost = math.exp(each.epoch_cost.mean)
        if each.cost_doubt:
            assert course(size)[1] < cost < 3 * course(size)[1]
        elif each.epoch_cost.count:
            assert cost == pytest.approx(3 * course(size)[1])
    assert after.evidence[0].cost_doubt > 0 == after.evidence[2].cost_doubt
    # A trial ends the doubt.
    job.run(job.dispatch(8), *scaled(cost=3.0)(8))
    assert knowledge_of(job).evidence[0].cost_doubt == 0
    assert math.exp(knowledge_of(job).evidence[0].epoch_cost.mean) == pytest.approx(3 * course(8)[1])


def test_best_survives_a_higher_cost() -> None:
    """Where every epoch has come to cost three times as much, the cheapest batch size is still used in the end."""
    usual = {8: (30, 100.0), 16: (24, 80.0), 32: (20, 60.0), 64: (17, 48.0), 128: (15, 40.0)}
    job = kg_job(default_batch_size=16)
    assert launches(job, lambda size: usual[size], 20)[-10:] == [128] * 10
    later = launches(job, lambda size: (usual[size][0], 3 * usual[size][1]), 40)
    assert list(changes_of(job)) == [ChangedQuantity.EPOCH_COST]
    assert set(later[-10:]) == {128}


def test_prior_jobs_count_no_longer() -> None:
    """After a change of the epochs, prior jobs tell nothing; after one of the cost of an epoch they do."""
    told = {size: Moments(4, math.log(course(size)[0]), 0.01) for size in SIZES}
    for world, kept in ((scaled(epochs=0.3), False), (scaled(cost=2.0), True)):
        job = kg_job(**UNSTOPPED)
        job.search = job.policy.register(job.spec, [Prior(32, told, {})])
        run_all(job, SETTLED)
        until_noticed(job, world)
        assert bool(knowledge_of(job).prior) is kept


def test_insights_are_used_for_as_many_launches_as_those_since_the_change() -> None:
    """The launches before a change say nothing about how many are left."""
    job = settled_job(**UNSTOPPED)
    until_noticed(job, scaled(epochs=3))
    assert knowledge_of(job).trials < 10


@pytest.mark.parametrize("world", [scaled(epochs=3), scaled(cost=2.0)])
def test_window_begins_with_the_change(world: World) -> None:
    """With a window, no trial before a change counts for what has changed, now or later."""
    job = settled_job(window_size=30, **UNSTOPPED)
    change = until_noticed(job, world)
    for _ in range(35):
        for seen in knowledge_of(job).window:
            before = seen.number < change.since_trial
            counts = seen.epochs > 0 if change.quantity is ChangedQuantity.EPOCHS else seen.epoch_cost is not None
            assert not (before and counts)
        launch(job, world)
    assert len(changes_of(job)) == 1


# What the next launches get


@pytest.mark.parametrize(
    ("world", "what"),
    [
        (
            scaled(epochs=3),
            "batch size 32 takes 3.0 times as many epochs; older trials no longer count",
        ),
        (
            scaled(cost=0.5),
            "an epoch of batch size 32 costs 0.5 times as much; older costs no longer count",
        ),
    ],
)
def test_reason_begins_with_the_change(world: World, what: str) -> None:
    """The reason of the next launch begins with the change, whatever ends before it; the reasons of later ones do not.

    A launch that a person requested, and an imported trial, are told nothing.
    """
    job = settled_job(**UNSTOPPED)
    running = [job.dispatch(32) for _ in range(3)]
    until_noticed(job, world)
    since = f"since trial {SETTLED + 4}, {what}; "
    assert choice_of(job).reason.startswith(since)
    for trial in running[:2]:
        job.run(trial, *world(32))
        assert choice_of(job).reason.startswith(since)
    job.fail(running[2], ERROR)
    for kind in (TrialOrigin.REQUESTED, TrialOrigin.IMPORTED):
        job.run(job.dispatch(32, kind), *world(32))
        assert choice_of(job).reason.startswith(since)
    job.search = fresh(job.search)
    assert choice_of(job).reason.startswith(since)
    job.next()
    assert "since trial" not in choice_of(job).reason


def test_reason_names_both_changes() -> None:
    """If both quantities have changed before a launch is told, its reason begins with both."""
    job = settled_job(**UNSTOPPED)
    trials = [job.dispatch(32) for _ in range(10)]
    for trial in trials:
        job.run(trial, *scaled(epochs=0.4, cost=2.0)(32))
    reason = choice_of(job).reason
    assert reason.count(f"since trial {SETTLED + 1}, ") == 2
    assert reason.startswith("; ".join(change.message for change in job.policy.changes(job.search)))
    job.next()
    assert "since trial" not in choice_of(job).reason


def off_the_default() -> SimulatedJob:
    """A job that has settled on 32, whose default is 16, which costs a third more."""
    job = settled_job(default_batch_size=16)
    assert next_size(job) == 32
    return job


def test_default_is_tried_again_after_a_change_of_the_epochs() -> None:
    """The first launch after the change has the default, which no trial since then had; then it is over."""
    job = off_the_default()
    world = scaled(epochs=0.6)
    until_noticed(job, world)
    choice = choice_of(job)
    assert choice.batch_size == 16
    assert choice.reason.endswith("; the job has changed, so the default is tried again")
    running = job.next()
    assert "so the default is tried again" not in choice_of(job).reason, "one at a time"
    job.run(running, *world(16))
    assert "so the default is tried again" not in choice_of(job).reason
    assert launches(job, world, 20)[-10:] == [32] * 10


def test_default_is_not_tried_again_after_a_change_of_the_cost() -> None:
    """What is known about the epochs still tells which batch size is the best."""
    job = off_the_default()
    until_noticed(job, scaled(cost=0.8))
    assert not knowledge_of(job).default_due
    assert next_size(job) != 16


def test_default_that_was_tried_since_the_change_is_known() -> None:
    """If the trials that show the change have the default, nothing else is due."""
    job = settled_job(**UNSTOPPED)
    until_noticed(job, scaled(epochs=0.4))
    assert not knowledge_of(job).default_due
    assert "so the default is tried again" not in choice_of(job).reason


def test_default_is_not_due_if_one_of_several_trials_had_it() -> None:
    """One trial of the default among those that show the change is enough."""
    job, world = off_the_default(), scaled(epochs=0.4)
    launch(job, world)
    job.run(job.dispatch(16), *world(16))
    change = until_noticed(job, world)
    assert change.since_trial == SETTLED + 1
    assert not knowledge_of(job).default_due


def test_launch_after_a_miss_comes_before_the_default() -> None:
    """If the trial that revealed a change delivered no model, the next launch has what works, then the default."""
    job = off_the_default()
    until_noticed(job, scaled(epochs=0.4))
    job.fail(job.dispatch(64), ERROR)
    choice = choice_of(job)
    assert choice.batch_size == 32
    assert "delivered no model" in choice.reason
    launch(job, scaled(epochs=0.4))
    assert next_size(job) == 16


def test_default_is_not_tried_again_at_any_price() -> None:
    """A default that probably costs more than twice as much as the best known batch size is left out after a change."""
    before = scaled(cost=4.0, affected=(8,))

    def after(size: int) -> tuple[int | None, float]:
        epochs, epoch_cost = before(size)
        return round((epochs or 0) * 0.4), epoch_cost

    job = kg_job(default_batch_size=8)
    launches(job, before, SETTLED)
    until_noticed(job, after)
    assert knowledge_of(job).default_due
    assert "so the default is tried again" not in choice_of(job).reason
    assert 8 not in launches(job, after, 20)


# One change after another


def test_a_second_change_replaces_the_first() -> None:
    """Of each quantity only the newest change is kept, with the factor relative to the one before."""
    job = settled_job(**UNSTOPPED)
    first = until_noticed(job, scaled(cost=2.0))
    launches(job, scaled(cost=2.0), 10)
    assert job.policy.changes(job.search) == (first,)
    second = until_noticed(job, scaled(cost=1.0))
    assert job.policy.changes(job.search) == (second,)
    assert second.factor == pytest.approx(0.5, rel=0.01)
    assert second.since_trial > first.detected_by_trial


@pytest.mark.parametrize("world", [scaled(epochs=3), scaled(epochs=1 / 3), scaled(cost=3.0), scaled(cost=1 / 3)])
def test_a_change_is_noticed_once(world: World) -> None:
    """After a change the job is as stationary as before: the same change is not noticed again."""
    job = settled_job(**UNSTOPPED)
    change = until_noticed(job, world)
    launches(job, world, 40)
    assert job.policy.changes(job.search) == (change,)
    check_belief(job)
    epochs, cost = world(32)
    assert epochs
    assert -belief_of(job, 32).mean == pytest.approx(epochs * cost, rel=0.1)


@pytest.mark.parametrize("world", [scaled(epochs=3), scaled(cost=3.0), broken(*SIZES)])
def test_changes_follow_from_the_events(world: World) -> None:
    """A job that is read anew before each launch notices the same change with the same trial."""
    here, there = settled_job(max_epochs=150), settled_job(max_epochs=150)
    for _ in range(12):
        there.search = fresh(there.search)
        assert launch(here, world).batch_size == launch(there, world).batch_size
        assert list(here.policy.changes(here.search)) == list(there.policy.changes(fresh(there.search)))
    assert here.policy.changes(here.search)


def test_running_trials_of_before_the_change() -> None:
    """Trials that were dispatched before a change and end after it count as results of then."""
    job = settled_job(**UNSTOPPED)
    running = [job.next() for _ in range(4)]
    late = scaled(epochs=0.3)
    for trial in running:
        job.run(trial, *late(trial.batch_size))
    assert set(sizes(running)) == {32}
    change = (
        until_noticed(job, late, 4) if not job.policy.changes(job.search) else changes_of(job)[ChangedQuantity.EPOCHS]
    )
    assert change.since_trial == running[0].number


def test_trials_that_end_in_reverse() -> None:
    """As many trials count if they end in the reverse order of their dispatch as if they end in order."""
    kept = []
    for reverse in (False, True):
        job, ended = settled_job(**UNSTOPPED), list[int]()
        running = [job.dispatch(32) for _ in range(5)]
        for trial in running[::-1] if reverse else running:
            job.run(trial, *scaled(epochs=0.3)(32))
            if len(ended) < 4:
                assert bool(job.policy.changes(job.search)) is (len(ended) == 3)
                ended.append(trial.number)
        (change,) = job.policy.changes(job.search)
        assert (change.since_trial, change.detected_by_trial) == (min(ended), ended[-1])
        assert change.since_trial <= change.detected_by_trial
        kept.append((knowledge_of(job).trials, knowledge_of(job).evidence[2].num_reached))
    assert kept == [(5, 5), (5, 5)]


def test_window_after_trials_that_end_in_reverse() -> None:
    """With a window, those that count for what has changed are the trials that ended last, whatever their numbers."""
    job = settled_job(window_size=8, **UNSTOPPED)
    running = [job.dispatch(32) for _ in range(5)]
    old = job.dispatch(32)
    job.run(old, *course(32))
    for trial in running[::-1]:
        job.run(trial, *scaled(epochs=0.3)(32))
    assert changes_of(job)[ChangedQuantity.EPOCHS].since_trial <= running[1].number
    counted = {seen.number for seen in knowledge_of(job).window if seen.epochs}
    assert counted == {trial.number for trial in running}


def test_a_late_old_trial_after_many_without_a_cost() -> None:
    """A trial that was dispatched before 70 others, which cost nothing, and ends after them raises no error."""
    job = settled_job(**UNSTOPPED)
    old = job.dispatch(32)
    for _ in range(3):
        job.run(job.dispatch(32), 12, 3 * course(32)[1])
    for _ in range(70):
        job.run(job.dispatch(32), 12, 0.0)
    assert not job.policy.changes(job.search)
    job.run(old, 12, 3 * course(32)[1])
    (change,) = job.policy.changes(job.search)
    assert (change.quantity, change.detected_by_trial) == (ChangedQuantity.EPOCH_COST, old.number)
    assert change.factor > 1.5
    check_belief(job)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_drift_of_the_cost_is_no_change(seed: int) -> None:
    """Costs that wander by two percent, each like the one before, are followed without a change."""
    job, noise, drift = settled_job(**UNSTOPPED), np.random.default_rng(seed), 0.0
    for _ in range(200):
        drift = 0.95 * drift + 0.02 * math.sqrt(1 - 0.95**2) * noise.standard_normal()
        epochs, cost = course(32)
        job.run(job.dispatch(32), epochs, cost * math.exp(drift))
    assert not job.policy.changes(job.search)
    assert not knowledge_of(job).news


def test_a_small_change_of_the_cost_is_adopted() -> None:
    """Costs that fall by six percent are no change, but soon believed, with the costs before no longer counted."""
    job = settled_job(**UNSTOPPED)
    job.run(job.dispatch(8), *course(8))
    launches(job, scaled(cost=0.94), 20)
    assert not job.policy.changes(job.search)
    known = knowledge_of(job)
    assert math.exp(known.evidence[2].epoch_cost.mean) == pytest.approx(0.94 * course(32)[1], rel=0.002)
    assert known.evidence[2].epoch_cost.count <= 20
    assert known.evidence[0].cost_doubt > 0


def test_costs_in_doubt_survive_a_window() -> None:
    """With a window, a cost in doubt stays known as long as no trial in the window tells it."""
    job = kg_job(window_size=8, batch_sizes=(16, 32), **UNSTOPPED)
    for _ in range(10):
        for size in (16, 32):
            job.run(job.dispatch(size), *course(size))
    doubted = None
    for _ in range(20):
        job.run(job.dispatch(32), *scaled(cost=3.0)(32))
        if ChangedQuantity.EPOCH_COST in changes_of(job):
            doubted = doubted or knowledge_of(job).evidence[0]
            now = knowledge_of(job).evidence[0]
            assert now.cost_doubt > 0
            assert (now.epoch_cost, now.cost_doubt) == (doubted.epoch_cost, doubted.cost_doubt)
            assert course(16)[1] < math.exp(now.epoch_cost.mean) < 3 * course(16)[1]
    assert doubted
    assert {seen.place for seen in knowledge_of(job).window} == {1}
    # A trial ends the doubt.
    job.run(job.dispatch(16), *scaled(cost=3.0)(16))
    assert knowledge_of(job).evidence[0].cost_doubt == 0
    assert math.exp(knowledge_of(job).evidence[0].epoch_cost.mean) == pytest.approx(3 * course(16)[1])


@pytest.mark.parametrize("size", [32, 64])
def test_one_batch_size_changes(size: int) -> None:
    """A job with one batch size notices changes like any other."""
    job = kg_job(batch_sizes=(size,), default_batch_size=size, **UNSTOPPED)
    run_all(job, SETTLED)
    assert until_noticed(job, scaled(epochs=2, affected=(size,))).batch_size == size
    assert until_noticed(job, scaled(epochs=2, cost=2, affected=(size,))).quantity is ChangedQuantity.EPOCH_COST
