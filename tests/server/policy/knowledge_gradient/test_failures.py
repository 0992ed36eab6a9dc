"""Trials that fail or miss the target: what they say, and what the next launch gets."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from wattwise.rules import EndReason
from wattwise_server.domain import Trial, TrialOrigin
from wattwise_server.policy.base import Choice, Exhausted
from wattwise_server.policy.failures import choosable

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    OUT_OF_MEMORY,
    POLICY,
    SIZES,
    belief_of,
    bound,
    course,
    crash,
    exploring_job,
    kg_job,
    miss,
    next_size,
    run_all,
    show,
    sizes,
    state_of,
)
from tests.server.policy.simulated import SimulatedJob


def test_what_keeps_failing_is_not_the_best_known() -> None:
    """Three failures in a row make the next cheapest batch size the best known, until a trial succeeds."""
    job = kg_job()
    job.run(job.dispatch(16), 40, 100.0)
    for _ in range(3):
        job.run(job.dispatch(32), 4, 100.0)
    for _ in range(3):
        assert bound(job, 16) == pytest.approx(-2 * belief_of(job, 32).mean)
        job.fail(job.dispatch(32), ERROR, cost=10.0)
    assert (belief_of(job, 32).expected_cost or 0) < (belief_of(job, 16).expected_cost or 0)
    assert bound(job, 32) == bound(job, 64) == pytest.approx(-2 * belief_of(job, 16).mean)
    assert job.next().batch_size == 16
    job.run(job.dispatch(32), 4, 100.0)
    assert bound(job, 16) == pytest.approx(-2 * belief_of(job, 32).mean)


def test_launch_after_a_miss_gets_what_does_not_keep_failing() -> None:
    """After a miss the next launch delivers with a batch size that works, though a cheaper failing one is due again."""
    job = kg_job()
    job.run(job.dispatch(16), 40, 100.0)
    for _ in range(3):
        job.run(job.dispatch(32), 4, 100.0)
    for _ in range(3):
        job.fail(job.dispatch(32), ERROR, cost=1.0)
    for _ in range(4):
        job.run(job.dispatch(16), 40, 100.0)
    assert 32 in {arm.batch_size for arm in choosable(job.search, job.trials + 2)}
    assert (belief_of(job, 32).expected_cost or 0) < (belief_of(job, 16).expected_cost or 0)
    job.fail(job.dispatch(64), ERROR, cost=1.0)
    assert next_size(job) == 16


def test_what_fails_is_the_best_known_if_nothing_else_has_converged() -> None:
    """If only a batch size that keeps failing has reached the target, it sets the bound of the others."""
    job = kg_job()
    run_all(job, 1)
    for _ in range(4):
        job.fail(job.dispatch(32), ERROR, cost=10.0)
    assert bound(job, 32) != bound(job, 16)
    assert bound(job, 16) == bound(job, 64) == pytest.approx(-2 * belief_of(job, 32).mean)


def test_what_does_not_fit_is_not_the_best_known() -> None:
    """A batch size that reached the target and then ran out of memory twice is not what others are compared with."""
    job = kg_job()
    job.run(job.dispatch(32), 20, 100.0)
    for _ in range(2):
        job.run(job.dispatch(128), 4, 100.0)
    assert bound(job, 32) == pytest.approx(-2 * belief_of(job, 128).mean)
    for _ in range(2):
        job.fail(job.dispatch(128), OUT_OF_MEMORY)
    assert bound(job, 128) == bound(job, 8) == pytest.approx(-2 * belief_of(job, 32).mean)
    assert job.next().batch_size == 32


def test_out_of_memory_excludes_larger_batch_sizes_for_good() -> None:
    """A batch size that ran out of memory never comes again, nor does a larger one; the others do."""
    job = kg_job()
    run_all(job, 1)
    job.fail(job.dispatch(64), OUT_OF_MEMORY)
    assert set(sizes(run_all(job, 120))) <= {8, 16, 32}
    assert [belief.expected_cost is not None for belief in POLICY.belief(job.spec, job.search)] == [True] * 5


def test_out_of_memory_everywhere_leaves_nothing() -> None:
    """If the smallest batch size runs out of memory before any trial has converged, no trial is left."""
    job = kg_job()
    for size in (32, 16, 8):
        assert job.choose() == Choice(size, job.choose().reason)  # type: ignore[union-attr]
        job.fail(job.next(), OUT_OF_MEMORY)
    assert isinstance(job.choose(), Exhausted)


def test_out_of_memory_is_no_crash_of_others() -> None:
    """A batch size that does not fit into memory makes no other one look as if it crashed."""
    job = kg_job()
    run_all(job, 2)
    known = belief_of(job, 32)
    job.fail(job.dispatch(128), OUT_OF_MEMORY, cost=1000.0)
    assert belief_of(job, 32) == known
    assert known.failure_rate == 0


def test_untried_batch_size_crashes_as_often_as_the_others() -> None:
    """Crashes at one batch size are expected at the others too, less where trials have ended without one."""
    job = kg_job()
    for _ in range(2):
        show(job, 32, 10)
        show(job, 16, 10)
        job.fail(job.dispatch(16), ERROR, cost=500.0)
    rates = {size: belief_of(job, size).failure_rate or 0.0 for size in SIZES}
    assert 0 < rates[32] < rates[128] == rates[8] < rates[16]


def test_crashes_at_the_end_of_training_count() -> None:
    """Of two batch sizes that cost the same, the one that crashes half of the time after its last epoch loses."""
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16)
    chosen = []
    for _ in range(60):
        trial = job.next()
        chosen.append(trial.batch_size)
        if trial.batch_size == 16 and chosen.count(16) % 2 == 0:
            job.fail(trial, ERROR, cost=1000.0)
        else:
            job.run(trial, 10, 100.0)
    assert chosen[-20:] == [32] * 20
    assert (belief_of(job, 16).failure_rate or 0) > (belief_of(job, 32).failure_rate or 0)
    assert (belief_of(job, 16).expected_cost or 0) > (belief_of(job, 32).expected_cost or 0)


def test_three_bugs_at_the_default_do_not_end_the_job() -> None:
    """After three crashes in a row the default pauses, another batch size delivers, and the default comes back."""
    job = kg_job()
    for _ in range(3):
        trial = job.next()
        assert trial.batch_size == 32
        job.fail(trial, ERROR)
    after = run_all(job, 30)
    assert after[0].batch_size != 32
    assert after[0].converged
    assert 32 in sizes(after)


def test_reason_counts_failures() -> None:
    """A batch size that was set aside comes after those with fewer trials; one that failed once is tried again."""
    job = kg_job()
    trials: list[int] = []
    for _ in range(20):
        choice = job.choose()
        assert isinstance(choice, Choice)
        before = {arm.batch_size: arm.num_failed for arm in job.search.arms}
        able = [arm.batch_size for arm in choosable(job.search, job.trials + 1)]
        assert ("of the least tried" in choice.reason) is (
            len(trials) > 0 and before[choice.batch_size] == min(before[size] for size in able)
        )
        trial = job.next()
        trials.append(trial.batch_size)
        job.fail(trial, ERROR)
    assert Counter(trials[:15]) == dict.fromkeys(SIZES, 3)


def test_three_failures_count_as_three_misses() -> None:
    """While nothing has reached the target, what was set aside has its next turn when another one has missed thrice."""
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16)
    for _ in range(3):
        job.fail(job.dispatch(16), ERROR)
    assert [job.run(job.next(), None, 100.0).batch_size for _ in range(4)] == [32, 32, 32, 16]


@pytest.mark.parametrize("end", [miss, crash])
def test_launch_after_one_without_a_model_delivers(end: Callable[[SimulatedJob, Trial], None]) -> None:
    """After a trial that missed the target or crashed, the next one has the best known batch size; then it explores."""
    job = exploring_job()
    for _ in range(2):
        end(job, job.dispatch(64))
        assert next_size(job) == 32
    run_all(job, 1)
    assert next_size(job) != 32


@pytest.mark.parametrize("end", [miss, crash])
def test_late_success_is_a_model(end: Callable[[SimulatedJob, Trial], None]) -> None:
    """After a miss or a crash, the success of a trial that was dispatched before it lets the next launch explore."""
    job = exploring_job()
    early = job.dispatch(16)
    end(job, job.dispatch(128))
    assert next_size(job) == 32
    job.run(early, *course(16))
    assert next_size(job) != 32


@pytest.mark.parametrize("end", [miss, crash])
def test_late_end_of_an_older_trial(end: Callable[[SimulatedJob, Trial], None]) -> None:
    """A trial that ends without a model after a newer one has delivered does not stop the exploration."""
    job = exploring_job()
    early = job.dispatch(64)
    job.run(job.dispatch(32), *course(32))
    end(job, early)
    assert next_size(job) != 32


def test_preempted_launch_is_no_failed_one() -> None:
    """A preempted trial is resumed by its trainer, so the next launch explores."""
    job = exploring_job()
    expected = job.choose()
    job.fail(job.dispatch(64), EndReason.PREEMPTED, cost=100.0)
    assert job.choose() == expected


def test_revived_trial_may_still_deliver() -> None:
    """Once a lost trial is alive again, the next launch explores, as if it had never been lost."""
    job = exploring_job()
    trial = job.dispatch(16)
    expected = job.choose()
    lost = job.fail(trial, EndReason.LOST, cost=100.0)
    assert next_size(job) == 32
    job.revive(lost)
    assert job.choose() == expected


def test_revival_of_an_older_trial() -> None:
    """An older trial that is alive again says nothing about the one that ended last without a model."""
    job = exploring_job()
    older, newer = job.dispatch(16), job.dispatch(64)
    lost = job.fail(older, EndReason.LOST, cost=100.0)
    crash(job, newer)
    job.revive(lost)
    assert next_size(job) == 32


def test_revived_trial_counts_once() -> None:
    """A trial that was lost, is revived and succeeds changes belief, choice and bounds as one that just succeeds."""
    job, other = exploring_job(), exploring_job()
    lost = job.fail(job.dispatch(16), EndReason.LOST, cost=300.0)
    job.revive(lost)
    for each, trial in ((job, lost), (other, other.dispatch(16))):
        each.run(trial._replace(cost=None, end_reason=None), *course(16))
    assert POLICY.belief(job.spec, job.search) == POLICY.belief(other.spec, other.search)
    assert [bound(job, size) for size in SIZES] == [bound(other, size) for size in SIZES]
    assert job.choose() == other.choose()


@pytest.mark.parametrize("reason", [ERROR, OUT_OF_MEMORY])
def test_late_end_reason_counts_once(reason: EndReason) -> None:
    """A trial that was lost before its trainer says why it ended counts as one that ended for that reason only."""
    job, other = exploring_job(), exploring_job()
    lost = job.fail(job.dispatch(64), EndReason.LOST, cost=300.0)
    job.revive(lost)
    job.fail(lost, reason, cost=300.0)
    other.fail(other.dispatch(64), reason, cost=300.0)
    assert job.search.arm(64).num_failed == 1
    assert POLICY.belief(job.spec, job.search) == POLICY.belief(other.spec, other.search)
    assert job.choose() == other.choose()
    assert sizes(run_all(job, 10)) == sizes(run_all(other, 10))


def test_pauses_of_what_keeps_failing_grow() -> None:
    """The cheapest batch size that has begun to fail pauses for the others' turns, then for 2, 4, 8… trials."""
    job = kg_job()
    for _ in range(4):
        job.run(job.dispatch(32), 4, 100.0)
    failed = []
    for _ in range(120):
        trial = job.next()
        if trial.batch_size == 32:
            failed.append(job.fail(trial, ERROR, cost=1.0).number)
        else:
            job.run(trial, 80, 100.0)
    pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(failed)]
    assert all(now >= least for now, least in zip(pauses, [0, 0, 4, 2, 4, 8, 16, 32, 64], strict=False))
    # It is the cheapest by far, so that it is tried again soon after each pause.
    assert len(pauses) >= 7


def test_reason_after_a_failure() -> None:
    """After a trial that delivered no model the best known batch size is chosen, and the reason says so."""
    job = kg_job()
    run_all(job, 8)
    job.fail(job.dispatch(64), ERROR)
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert choice.batch_size == 32
    assert choice.reason.startswith("expected ")
    assert "delivered no model" in choice.reason
    job.run(job.dispatch(64, TrialOrigin.IMPORTED), None)
    again = job.choose()
    assert isinstance(again, Choice)
    assert "delivered no model" in again.reason


def test_imported_model_ends_the_retry() -> None:
    """After a trial that ran without the server delivered, the next one is chosen as if nothing had failed."""
    job = kg_job()
    run_all(job, 2)
    job.fail(job.next(), ERROR)
    assert state_of(job)["retry"] == 3
    job.run(job.dispatch(16, TrialOrigin.IMPORTED), 10)
    assert state_of(job)["retry"] is None
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert "delivered no model" not in choice.reason
    # A launch that ran meanwhile and fails now is a failure as before.
    late = job.next()
    job.run(job.dispatch(16, TrialOrigin.IMPORTED), 10)
    job.fail(late, ERROR)
    assert state_of(job)["retry"] == late.number
