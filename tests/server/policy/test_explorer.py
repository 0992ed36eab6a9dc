"""The walk: properties that hold for any job and any outcome."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wattwise_server.domain import EndReason, JobSpec, Stage, TrialType
from wattwise_server.policy.base import Exhausted

from tests.server.policy.simulated import SimulatedJob, spec


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Jobs of up to eight batch sizes and three rounds."""
    sizes = draw(st.lists(st.integers(1, 4096), min_size=1, max_size=8, unique=True))
    default, rounds = draw(st.sampled_from(sizes)), draw(st.integers(1, 3))
    return spec(batch_sizes=tuple(sorted(sizes)), default_batch_size=default, num_pruning_rounds=rounds)


outcomes = st.one_of(
    st.tuples(st.floats(1, 1e6), st.booleans()),
    st.sampled_from([EndReason.ERROR, EndReason.OUT_OF_MEMORY, EndReason.LOST, EndReason.COMPLETED]),
)


@given(jobs(), st.data())
def test_walk_ends(job: JobSpec, data: st.DataObject) -> None:
    """Whatever the outcomes, the walk ends after at most three explorations per batch size and round."""
    walk = SimulatedJob(job)
    most = 3 * len(job.batch_sizes) * job.num_pruning_rounds
    for _ in range(most):
        if walk.search.stage is Stage.MAB or isinstance(walk.choose(), Exhausted):
            return
        step(walk, data)
    assert walk.search.stage is Stage.MAB or isinstance(walk.choose(), Exhausted)


@given(jobs(), st.data())
def test_walk_never_revisits_what_it_pruned(job: JobSpec, data: st.DataObject) -> None:
    """The walk never returns to a pruned batch size, and it is no arm of the bandit."""
    walk, pruned = SimulatedJob(job), set[int]()
    while walk.search.stage is Stage.PRUNING and not isinstance(walk.choose(), Exhausted):
        size = step(walk, data)
        assert size not in pruned
        surviving = {arm.batch_size for arm in walk.search.surviving}
        assert not pruned & surviving
        pruned = set(job.batch_sizes) - surviving


@given(jobs(), st.data())
def test_survivors_converged_in_the_last_round_and_lie_side_by_side(job: JobSpec, data: st.DataObject) -> None:
    """The bandit's arms are exactly what converged in the last round, without a gap among the batch sizes."""
    walk, converged = SimulatedJob(job), set[int]()
    while walk.search.stage is Stage.PRUNING and not isinstance(walk.choose(), Exhausted):
        last, before = walk.search.pruning_round == job.num_pruning_rounds - 1, walk.search
        size = step(walk, data)
        pruned = walk.search.arm(size).pruned and not before.arm(size).pruned
        finished = walk.search.exploring is None and not walk.search.arm(size).failed_trials and not pruned
        if last and finished:
            converged.add(size)
    if walk.search.stage is Stage.MAB:
        survivors = [arm.batch_size for arm in walk.search.surviving]
        assert set(survivors) == converged
        first = job.batch_sizes.index(survivors[0])
        assert list(job.batch_sizes[first : first + len(survivors)]) == survivors


@given(jobs(), st.data())
def test_concurrent_results_never_move_the_walk(job: JobSpec, data: st.DataObject) -> None:
    """What is explored next is the same with and without the results of concurrent trials."""
    alone, crowded = SimulatedJob(job), SimulatedJob(job)
    while alone.search.stage is Stage.PRUNING and not isinstance(alone.choose(), Exhausted):
        mine, theirs = alone.next(), crowded.next()
        assert mine.batch_size == theirs.batch_size
        extra = crowded.next()
        assert extra.type is TrialType.CONCURRENT
        crowded.succeed(extra, data.draw(st.floats(1, 1e6)), converged=data.draw(st.booleans()))
        cost, converged = data.draw(st.floats(1, 1e6)), data.draw(st.booleans())
        alone.succeed(mine, cost, converged=converged)
        crowded.succeed(theirs, cost, converged=converged)


def step(walk: SimulatedJob, data: st.DataObject) -> int:
    """One exploration with any outcome; returns its batch size."""
    trial, outcome = walk.next(), data.draw(outcomes)
    assert trial.type is TrialType.EXPLORATION
    if isinstance(outcome, EndReason):
        walk.fail(trial, outcome)
    else:
        walk.succeed(trial, outcome[0], converged=outcome[1])
    return trial.batch_size


def test_revived_exploration_gets_its_free_slot_back() -> None:
    """A lost trial that is revived before its exploration is dispatched again keeps it, without a failure."""
    job = SimulatedJob(spec())
    lost = job.fail(job.next(), EndReason.LOST)
    assert job.search.arm(16).failed_trials == (1,)
    assert job.revive(lost)
    assert not job.search.arm(16).failed_trials
    assert job.next().type is TrialType.CONCURRENT
    job.succeed(lost, 100)
    assert job.next().batch_size == 8


def test_revived_exploration_does_not_take_an_occupied_slot() -> None:
    """A revived trial whose exploration another trial has gets no slot, and its result does not move the walk."""
    job = SimulatedJob(spec())
    lost = job.fail(job.next(), EndReason.LOST)
    again = job.next()
    assert again.batch_size == 16
    assert not job.revive(lost)
    job.succeed(lost, 100)
    assert job.search.exploring == again.number


def test_lost_exploration_of_an_earlier_round_gets_no_slot_in_a_later_one() -> None:
    """A trial lost in round one does not get the exploration of round two."""
    job = SimulatedJob(spec(batch_sizes=(16,)))
    lost = job.fail(job.next(), EndReason.LOST)
    job.succeed(job.next(), 100)
    assert job.search.pruning_round == 1
    assert not job.revive(lost)


def test_preempted_exploration_is_not_counted() -> None:
    """Any number of preemptions leaves the batch size in the walk."""
    job = SimulatedJob(spec())
    for _ in range(10):
        trial = job.next()
        assert trial.batch_size == 16
        job.fail(trial, EndReason.PREEMPTED)
