"""The walk: properties that hold for any job and any outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise.rules import EndReason, ResolvedJob
from wattwise_server.domain import Arm, Moments, PruningGtsRole, PruningGtsTrial, Search, Stage
from wattwise_server.policy.base import Choice, Exhausted
from wattwise_server.policy.explorer import next_exploration, with_next_round
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.thompson import generator

from tests.server.policy.simulated import SimulatedJob, spec


@st.composite
def jobs(draw: st.DrawFn) -> ResolvedJob:
    """Jobs of up to eight batch sizes and three rounds."""
    sizes = draw(st.lists(st.integers(1, 4096), min_size=1, max_size=8, unique=True))
    default, rounds = draw(st.sampled_from(sizes)), draw(st.integers(1, 3))
    return spec(batch_sizes=tuple(sorted(sizes)), default_batch_size=default, num_pruning_rounds=rounds)


def test_walk_returns_to_a_batch_size_when_its_pause_ends() -> None:
    """One that is set aside until trial 7 is walked past for trial 7, and is the next for trial 8."""
    arms = (Arm(8), Arm(16, failed_trials=(1, 2, 3, 5)))
    for num_trials, size in ((6, 8), (7, 16)):
        found = next_exploration(Search(Stage.PRUNING, arms, 0, 16, num_trials=num_trials))
        assert found is not None
        assert found.batch_size == size


def test_round_is_complete_without_those_that_are_set_aside() -> None:
    """A round ends while a batch size pauses, and goes on once it may be tried again."""
    arms = (Arm(8, round_cost=5.0), Arm(16, failed_trials=(1, 2, 3, 5)))
    for num_trials, done in ((6, 1), (7, 0)):
        search = with_next_round(spec(), Search(Stage.PRUNING, arms, 0, 8, num_trials=num_trials))
        assert search.pruning_round == done
        assert {arm.round_cost for arm in search.arms} == ({None} if done else {5.0, None})


def test_concurrent_trial_without_its_default_takes_the_next_of_the_walk() -> None:
    """While nothing has converged it is the default; if that may not be tried, what the walk waits for."""
    arms = (Arm(8), Arm(16), Arm(32), Arm(64))
    search = Search(Stage.PRUNING, arms, 0, 32, exploring=1, num_trials=1)
    policy, job = POLICIES["pruning_gts"], spec(batch_sizes=(8, 16, 32, 64), default_batch_size=32)

    def chosen(search: Search) -> tuple[PruningGtsRole | None, int]:
        choice = policy.next(job, search, 2, generator(job, 2))
        assert not isinstance(choice, Exhausted)
        return choice.policy_role and choice.policy_role.role, choice.batch_size

    assert chosen(search) == (PruningGtsRole.CONCURRENT, 32)
    banned = replace(search, round_default=16, arms=(Arm(8), Arm(16), Arm(32, banned=True), Arm(64)))
    assert chosen(banned) == (PruningGtsRole.CONCURRENT, 16)
    assert chosen(replace(banned, exploring=None)) == (PruningGtsRole.EXPLORATION, 16)
    costly = replace(Arm(8), num_converged=1, reached=Moments(1, 5.0))
    cheap = replace(Arm(64), num_converged=1, reached=Moments(1, 3.0))
    known = replace(banned, arms=(costly, Arm(16), Arm(32, banned=True), cheap), min_cost=1.0, min_cost_batch_size=32)
    assert chosen(known) == (PruningGtsRole.CONCURRENT, 64)
    assert chosen(replace(known, min_cost_batch_size=8)) == (PruningGtsRole.CONCURRENT, 8)


decided = st.tuples(st.floats(1, 1e6), st.booleans())
outcomes = st.one_of(
    decided,
    st.sampled_from([EndReason.ERROR, EndReason.OUT_OF_MEMORY, EndReason.LOST, EndReason.COMPLETED]),
)


@given(jobs(), st.data())
def test_walk_ends(job: ResolvedJob, data: st.DataObject) -> None:
    """Whatever failed before, the walk ends after one decided exploration per batch size and round."""
    walk = SimulatedJob(job)
    for _ in range(data.draw(st.integers(0, 40))):
        if ended(walk):
            return
        step(walk, data)
    for _ in range(len(job.batch_sizes) * job.num_pruning_rounds):
        if ended(walk):
            return
        step(walk, data, decided)
    assert ended(walk)


@given(jobs(), st.data())
def test_walk_never_revisits_what_it_pruned(job: ResolvedJob, data: st.DataObject) -> None:
    """The walk never returns to a pruned batch size nor goes to an excluded one; neither is an arm of the bandit."""
    walk, out = SimulatedJob(job), set[int]()
    for _ in range(60):
        if ended(walk):
            return
        before = {arm.batch_size for arm in walk.search.available}
        assert step(walk, data) in before
        assert not out & {arm.batch_size for arm in walk.search.available}
        out = {arm.batch_size for arm in walk.search.arms if arm.pruned}


def test_walk_returns_to_what_fits_after_all() -> None:
    """A decided trial of a smaller batch size refutes one of two out-of-memory trials that excluded a larger one."""
    job = SimulatedJob(spec(batch_sizes=(8, 16), num_pruning_rounds=2))
    for _ in range(2):
        job.decide(job.next(), 100)
    fits = job.dispatch(8, PruningGtsRole.CONCURRENT)
    for size in (8, 16):
        job.fail(job.dispatch(size, PruningGtsRole.CONCURRENT), EndReason.OUT_OF_MEMORY)
    assert [arm.batch_size for arm in job.search.available] == [8]
    job.decide(fits, 100)
    assert [arm.batch_size for arm in job.search.available] == [8, 16]
    job.decide(job.next(), 100)
    assert job.next().batch_size == 16


@given(jobs(), st.data())
def test_survivors_converged_in_the_last_round_or_are_set_aside(job: ResolvedJob, data: st.DataObject) -> None:
    """The bandit's arms are what converged in the last round and still fits, and what has only failed since then."""
    walk, converged = SimulatedJob(job), set[int]()
    for _ in range(60):
        if ended(walk):
            break
        last, before = walk.search.pruning_round == job.num_pruning_rounds - 1, walk.search
        size = step(walk, data)
        if last and walk.search.arm(size).num_converged > before.arm(size).num_converged:
            converged.add(size)
    if walk.search.stage is Stage.BANDIT:
        survivors = {arm.batch_size for arm in walk.search.available}
        failing = {arm.batch_size for arm in walk.search.available if len(arm.failed_trials) >= 3}
        excluded = {arm.batch_size for arm in walk.search.arms if arm.excluded}
        assert survivors == (converged - excluded) | failing


@given(jobs(), st.sampled_from([EndReason.ERROR, EndReason.LOST, EndReason.COMPLETED]))
def test_failures_alone_never_end_the_job(job: ResolvedJob, reason: EndReason) -> None:
    """However often every batch size fails, there is a next trial, and each batch size is tried again."""
    walk, tries = SimulatedJob(job), Counter[int]()
    for _ in range(6 * len(job.batch_sizes)):
        trial = walk.next()
        walk.fail(trial, reason)
        tries[trial.batch_size] += 1
    assert min(tries[size] for size in job.batch_sizes) > 3


@given(jobs(), st.data())
def test_concurrent_results_never_move_the_walk(job: ResolvedJob, data: st.DataObject) -> None:
    """What is explored next is the same with and without the results of concurrent trials."""
    alone, crowded = SimulatedJob(job), SimulatedJob(job)
    while alone.search.stage is Stage.PRUNING and not isinstance(alone.choose(), Exhausted):
        mine, theirs = alone.next(), crowded.next()
        assert mine.batch_size == theirs.batch_size
        extra = crowded.next()
        assert extra.role is PruningGtsRole.CONCURRENT
        crowded.decide(extra, data.draw(st.floats(1, 1e6)), converged=data.draw(st.booleans()))
        cost, converged = data.draw(st.floats(1, 1e6)), data.draw(st.booleans())
        alone.decide(mine, cost, converged=converged)
        crowded.decide(theirs, cost, converged=converged)


def ended(walk: SimulatedJob) -> bool:
    """Whether the bandit has started or nothing is left."""
    return walk.search.stage is Stage.BANDIT or isinstance(walk.choose(), Exhausted)


def step(walk: SimulatedJob, data: st.DataObject, possible: st.SearchStrategy[Any] = outcomes) -> int:
    """One exploration with a possible outcome; returns its batch size."""
    trial, outcome = walk.next(), data.draw(possible)
    assert trial.role is PruningGtsRole.EXPLORATION
    if isinstance(outcome, EndReason):
        walk.fail(trial, outcome)
    else:
        walk.decide(trial, outcome[0], converged=outcome[1])
    return trial.batch_size


def test_revived_exploration_gets_its_free_slot_back() -> None:
    """A lost trial that is revived before its exploration is dispatched again keeps it, without a failure."""
    job = SimulatedJob(spec())
    lost = job.fail(job.next(), EndReason.LOST)
    assert job.search.arm(16).failed_trials == (1,)
    assert job.revive(lost)
    assert not job.search.arm(16).failed_trials
    assert job.next().role is PruningGtsRole.CONCURRENT
    job.decide(lost, 100)
    assert job.next().batch_size == 8


def test_revived_exploration_does_not_take_an_occupied_slot() -> None:
    """A revived trial whose exploration another trial has gets no slot, and its result does not move the walk."""
    job = SimulatedJob(spec())
    lost = job.fail(job.next(), EndReason.LOST)
    again = job.next()
    assert again.batch_size == 16
    assert not job.revive(lost)
    job.decide(lost, 100)
    assert job.search.exploring == again.number


def test_revived_exploration_is_not_passed_over_for_its_own_failures() -> None:
    """Where all have failed three times, a revived fourth trial of the first keeps its slot unless another runs."""
    for others in (0, 1):
        job = SimulatedJob(spec(batch_sizes=(8, 16)))
        for _ in range(6):
            job.fail(job.next(), EndReason.ERROR)
        lost = job.next()
        assert (lost.batch_size, lost.role) == (16, PruningGtsRole.EXPLORATION)
        for _ in range(others):
            job.dispatch(16, PruningGtsRole.CONCURRENT)
        assert job.revive(job.fail(lost, EndReason.LOST)) is (not others)
        assert job.search.arm(16).running == 1 + others


@pytest.mark.parametrize(
    ("size", "failed", "step"),
    [
        (32, (), "the walk starts at batch size 32"),
        (16, (), "the walk goes down from 32 to batch size 16"),
        (64, (), "the walk goes up from 32 to batch size 64"),
        (64, (5,), "the walk goes up from 32 to batch size 64, whose last trial failed"),
        (32, (4, 5), "the walk starts at batch size 32, whose last 2 trials failed"),
    ],
)
def test_reason_says_where_the_walk_is(size: int, failed: tuple[int, ...], step: str) -> None:
    """The reason of an exploration names the round, the step of the walk, and failures that it repeats."""
    arms = [Arm(each, round_cost=1.0) for each in (16, 32, 64)]
    arms[(16, 32, 64).index(size)] = Arm(size, failed_trials=failed)
    search = Search(Stage.PRUNING, tuple(arms), 1, 32, num_trials=5)
    job = spec(batch_sizes=(16, 32, 64), default_batch_size=64, num_pruning_rounds=3)
    choice = POLICIES["pruning_gts"].next(job, search, 6, generator(job, 6))
    assert choice == Choice(
        size, f"pruning round 2 of 3: {step}", policy_role=PruningGtsTrial(PruningGtsRole.EXPLORATION, 1)
    )


def test_lost_exploration_of_an_earlier_round_gets_no_slot_in_a_later_one() -> None:
    """A trial lost in round one does not get the exploration of round two."""
    job = SimulatedJob(spec(batch_sizes=(16,)))
    lost = job.fail(job.next(), EndReason.LOST)
    job.decide(job.next(), 100)
    assert job.search.pruning_round == 1
    assert not job.revive(lost)


def test_preempted_exploration_is_not_counted() -> None:
    """Any number of preemptions leaves the batch size in the walk."""
    job = SimulatedJob(spec())
    for _ in range(10):
        trial = job.next()
        assert trial.batch_size == 16
        job.fail(trial, EndReason.PREEMPTED)


def test_concurrent_trials_avoid_the_cheapest_while_it_is_set_aside() -> None:
    """While the only batch size that has converged pauses, concurrent trials get another one."""
    job = SimulatedJob(spec())
    job.decide(job.next(), 100)
    for _ in range(3):
        job.fail(job.dispatch(16, PruningGtsRole.CONCURRENT), EndReason.ERROR)
    assert job.next().batch_size == 8
    assert job.search.min_cost_batch_size == 16
    assert job.next().batch_size == 8


def test_concurrent_trials_get_the_cheapest_converged_one_that_may_be_tried() -> None:
    """While the cheapest of all is set aside, they get the one that is cheapest of the others."""
    job = SimulatedJob(spec(default_batch_size=64))
    for cost in (120, 90, 110):
        job.decide(job.next(), cost)
    exploring = job.next()
    assert exploring.batch_size == 8
    assert job.next().batch_size == 32
    for _ in range(3):
        job.fail(job.dispatch(32, PruningGtsRole.CONCURRENT), EndReason.ERROR)
    assert job.next().batch_size == 16


def test_trial_that_cost_nothing_does_not_start_the_next_round() -> None:
    """The next round starts at the cheapest batch size that cost anything."""
    job = SimulatedJob(spec(batch_sizes=(8, 16, 32)))
    for cost in (100, 0, 90):
        job.decide(job.next(), cost)
    assert (job.search.pruning_round, job.search.round_default) == (1, 32)


def test_concurrent_trials_get_what_was_cheapest_if_the_windows_have_nothing_that_converged() -> None:
    """Of the batch sizes that have converged once, the one whose newest trials cost least."""
    job = SimulatedJob(spec(default_batch_size=64, window_size=1))
    for cost in (120, 90):
        job.decide(job.next(), cost)
    for size, cost in ((64, 20), (32, 50)):
        job.decide(job.dispatch(size, PruningGtsRole.CONCURRENT), cost, converged=False)
    assert job.search.min_cost is None
    assert (job.next().batch_size, job.next().batch_size) == (16, 64)
