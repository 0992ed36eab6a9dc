"""The knowledge-gradient policy through the protocol of policies: its choices, bounds, beliefs and state."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wattwise_server.domain import (
    EndReason,
    JobSpec,
    Measurement,
    Moments,
    MonitorKinds,
    Search,
    Stage,
    Trial,
    TrialStatus,
    TrialType,
)
from wattwise_server.policy.base import ArmBelief, Banned, Choice, Dispatched, Exhausted, Prior
from wattwise_server.policy.cost import with_unit
from wattwise_server.policy.failures import available
from wattwise_server.policy.history import observe, prior_of
from wattwise_server.policy.knowledge_gradient import Constants, KnowledgeGradient
from wattwise_server.policy.registry import POLICIES

from tests.server.policy.simulated import NOW, SimulatedJob, spec

POLICY = POLICIES["KNOWLEDGE_GRADIENT"]
SIZES = (8, 16, 32, 64, 128)
ERROR, OUT_OF_MEMORY = EndReason.ERROR, EndReason.OUT_OF_MEMORY


def kg_spec(**fields: Any) -> JobSpec:
    """A job of five batch sizes with default 32."""
    usual: dict[str, Any] = {"batch_sizes": SIZES, "default_batch_size": 32, "target_metric": 0.9}
    return spec(**(usual | {"policy": "KNOWLEDGE_GRADIENT"} | fields))


def kg_job(**fields: Any) -> SimulatedJob:
    """A job without trials."""
    return SimulatedJob(kg_spec(**fields))


def course(batch_size: int) -> tuple[int, float]:
    """Epochs to the target and the cost of an epoch: 32 costs the least, 1.8 kJ; 8 takes 16 epochs, 128 takes 26."""
    return round(5 + 5 * batch_size / 32 + 80 / batch_size), 100 * (1 + 16 / batch_size)


def run_all(job: SimulatedJob, launches: int) -> list[Trial]:
    """This many launches, one after another, that all run their course."""
    return [job.run(trial, *course(trial.batch_size)) for trial in (job.next() for _ in range(launches))]


def sizes(trials: list[Trial]) -> list[int]:
    """Their batch sizes."""
    return [trial.batch_size for trial in trials]


def show(job: SimulatedJob, batch_size: int, epochs: int, *, reached: bool = True) -> None:
    """Adds a trial of so many epochs of 100 J, whatever the bound."""
    last = Measurement(epochs, 2.0 * epochs, 100.0 * epochs, 1.0 if reached else 0.0, NOW)
    trial = job.dispatch(batch_size)._replace(last=last, target_reached=reached)
    reason = EndReason.TARGET_REACHED if reached else EndReason.MAX_EPOCHS
    job.succeed(trial, 100.0 * epochs, reason, converged=reached)


def next_size(job: SimulatedJob) -> int:
    """The batch size that the next trial would have."""
    choice = job.choose()
    assert isinstance(choice, Choice)
    return choice.batch_size


def belief_of(job: SimulatedJob, batch_size: int) -> ArmBelief:
    """The belief about one batch size."""
    return next(belief for belief in job.policy.belief(job.spec, job.search) if belief.batch_size == batch_size)


def bound(job: SimulatedJob, batch_size: int) -> float | None:
    """The bound of one batch size."""
    return job.policy.bound(job.spec, job.search, batch_size)


def bound_without_stops(job: SimulatedJob, batch_size: int) -> float | None:
    """The same if no trial had been stopped since one converged."""
    return job.policy.bound(job.spec, replace(job.search, bound_stops=0), batch_size)


def least_expected(job: SimulatedJob) -> float:
    """The least expected cost of a trial that reaches the target, over the batch sizes that have reached it."""
    reached = [arm.batch_size for arm in job.search.arms if arm.num_converged]
    return min(-belief_of(job, size).mean for size in reached)


class Forbidden:
    """Randomness that must not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the policy draws {name}")


def fresh(search: Search) -> Search:
    """The search as another process reads it from the database; the other text of its notes is in no cache."""
    return replace(search, notes=json.dumps(json.loads(search.notes)))


# Deterministic, and a state that is text


def test_choices_depend_on_the_events_alone() -> None:
    """The same events lead to the same choices with any seed, and no randomness is read."""
    jobs = [kg_job(mab_seed=seed) for seed in (1, 2)]
    here, there = (run_all(job, 20) for job in jobs)
    assert sizes(here) == sizes(there)
    forbidden: Any = Forbidden()
    assert isinstance(POLICY.next(jobs[0].spec, jobs[0].search, 21, forbidden), Choice)


@pytest.mark.parametrize("window", [0, 5])
def test_state_survives_as_text(window: int) -> None:
    """A job that is read anew before each choice makes the same choices, to the last digit of its numbers."""
    here, there = kg_job(window_size=window), kg_job(window_size=window)
    for _ in range(15):
        there.search = fresh(there.search)
        assert there.choose() == here.choose()
        assert [bound(there, size) for size in SIZES] == [bound(here, size) for size in SIZES]
        assert list(POLICY.belief(there.spec, there.search)) == list(POLICY.belief(here.spec, here.search))
        run_all(here, 1)
        run_all(there, 1)
    assert json.loads(here.search.notes) == json.loads(there.search.notes)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_state_of_another_version_is_refused(version: object) -> None:
    """A state of another format is not read as something else; the error names both formats."""
    job = kg_job()
    run_all(job, 3)
    found = replace(job.search, notes=json.dumps({**state_of(job), "format": version}))
    rng = np.random.default_rng(0)
    for call in (
        lambda: POLICY.next(job.spec, found, 4, rng),
        lambda: POLICY.observe(job.spec, found, Dispatched(job.dispatch(32))),
        lambda: POLICY.bound(job.spec, found, 32),
        lambda: POLICY.belief(job.spec, found),
    ):
        with pytest.raises(ValueError, match=f"has format {version}; this version reads 1.* use "):
            call()


@pytest.mark.parametrize(("window", "launches"), [(0, 64), (30, 60)])
def test_state_is_bounded(window: int, launches: int) -> None:
    """Once 64 batch sizes have a trial, or a window is full, more trials make the state no longer; it is compact."""
    job = kg_job(batch_sizes=tuple(range(8, 72)), default_batch_size=32, window_size=window)
    for turn in range(launches):
        job.run(job.dispatch(8 + turn % 64), 7 + turn % 3, 1 / 3)
    before = len(job.search.notes)
    for turn in range(3 * launches):
        job.run(job.dispatch(8 + turn % 64), 7 + turn % 3, 1 / 3)
    # A few digits more.
    assert len(job.search.notes) < before + 2_000 < 16_000
    assert " " not in job.search.notes
    assert (state_of(job)["prior"], len(state_of(job)["window"])) == ([], window)


def test_job_is_in_the_bandit_stage() -> None:
    """There is no pruning: the stage is MAB, and so is the type of every trial, concurrent ones included."""
    job = kg_job()
    trials = [job.next() for _ in range(3)]
    assert job.search.stage is Stage.MAB
    assert {trial.type for trial in trials} == {TrialType.MAB}


# The window


def test_largest_window() -> None:
    """A window of 1000 trials may be asked for, not one of 1001."""
    assert not list(POLICY.faults(kg_spec(window_size=1000)))
    assert [field for field, _ in POLICY.faults(kg_spec(window_size=1001))] == ["window_size"]


def test_window_is_of_the_job() -> None:
    """With a window of six, a job that has changed believes what one believes that has only the newest six trials."""
    job, only = kg_job(window_size=6), kg_job(window_size=6)
    for turn in range(30):
        job.run(job.dispatch(SIZES[(2 + turn) % 5]), 40 + turn % 4, 300.0)
    for size in (32, 16, 32, 64, 32, 16):
        for each in (job, only):
            each.run(each.dispatch(size), *course(size))
    assert [belief.observations for belief in POLICY.belief(only.spec, only.search)] == [0, 2, 3, 1, 0]
    assert list(POLICY.belief(job.spec, job.search)) == list(POLICY.belief(only.spec, only.search))


def test_window_limits_what_an_insight_is_worth() -> None:
    """An insight counts for the launches of three windows at most: later, what it rests on is long forgotten."""
    job = kg_job(window_size=10)
    job.run(job.next(), *course(32))
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert "serves the next 30 launches" in choice.reason


def test_window_follows_a_drift() -> None:
    """With a window, launches move to the batch size that has become the cheapest; the trials before are forgotten."""
    job = kg_job(window_size=10)
    assert Counter(sizes(run_all(job, 30))).most_common(1)[0][0] == 32
    trials = []
    for _ in range(60):
        trial = job.next()
        epochs, epoch_cost = course(trial.batch_size)
        trials.append(job.run(trial, epochs * (3 if trial.batch_size < 128 else 1), epoch_cost))
    assert set(sizes(trials[-10:])) <= {64, 128}


def test_window_without_a_success() -> None:
    """If all trials in the window missed, the batch sizes take turns, and the cheapest trial still known is the guide.

    That one is in the window of its batch size; once there is none either, nothing is stopped.
    """
    job = kg_job(window_size=4, max_epochs=60)
    run_all(job, 6)
    for size in (16, 64, 128, 8):
        job.run(job.dispatch(size), None, course(size)[1])
    chosen, known = [], []
    for _ in range(20):
        cheapest, best = job.search.min_cost, job.search.min_cost_batch_size
        known.append(cheapest)
        limits = {size: None if cheapest is None or size == best else 2 * cheapest for size in SIZES}
        assert {size: bound_without_stops(job, size) for size in SIZES} == limits
        check_belief(job)
        trial = job.next()
        chosen.append(trial.batch_size)
        assert not job.run(trial, None, course(trial.batch_size)[1]).converged
    assert known[0] == math.prod(course(32))
    assert known[-1] is None
    assert all(set(chosen[start : start + 6]) == set(SIZES) for start in range(15))
    assert Counter(sizes(run_all(job, 20))).most_common(1)[0][0] == 32


# The bound


def test_nothing_is_expected_before_a_success() -> None:
    """Until a trial has reached the target, the belief has no numbers and no batch size has a bound."""
    job = kg_job()
    for _ in range(2):
        assert beliefs(job) == [ArmBelief(size, 0.0, 0.0, 0.0, 0) for size in SIZES]
        assert [bound(job, size) for size in SIZES] == [None] * 5
        job.run(job.next(), None, 100.0)


def test_bound_of_others_is_beta_times_the_least_expected_cost() -> None:
    """One cheap trial does not set the bound, which is the same for every batch size but the best."""
    job = kg_job(beta_knob=1.5)
    run_all(job, 8)
    job.run(job.dispatch(32), 2, course(32)[1])
    expected = pytest.approx(1.5 * least_expected(job), rel=1e-9)
    assert [bound(job, size) for size in SIZES] == [expected, expected, None, expected, expected]
    assert job.search.min_cost == 2 * course(32)[1]
    assert 1.5 * least_expected(job) > 2 * 1.5 * job.search.min_cost


def test_best_known_batch_size_is_stopped_once_trials_are_seen_to_miss() -> None:
    """It has no bound at first; after misses at it, it has one between its expected cost and its last epoch."""
    job = kg_job(batch_sizes=(32,), max_epochs=1000)
    run_all(job, 8)
    assert bound(job, 32) is None
    for _ in range(3):
        missed = job.run(job.dispatch(32), None, course(32)[1], steps=[1000])
        assert missed.end_reason in (EndReason.MAX_EPOCHS, EndReason.COST_BOUND)
        run_all(job, 2)
    limit = bound(job, 32)
    assert limit is not None
    assert -belief_of(job, 32).mean < limit < 500 * course(32)[1]
    assert job.run(job.dispatch(32), None, course(32)[1]).end_reason is EndReason.COST_BOUND
    assert job.run(job.dispatch(32), *course(32)).converged


def test_bound_doubles_after_two_stops_in_a_row() -> None:
    """From the third on each stop in a row doubles the bound, and a trial that converges ends that."""
    job = kg_job()
    run_all(job, 10)
    factors = []
    for _ in range(5):
        limit = bound(job, 8)
        assert limit is not None
        factors.append(limit / (2.0 * least_expected(job)))
        assert job.run(job.dispatch(8), None, 500.0).end_reason is EndReason.COST_BOUND
    assert factors == pytest.approx([1, 1, 2, 4, 8])
    run_all(job, 1)
    assert bound(job, 8) == pytest.approx(2.0 * least_expected(job))


def test_misses_where_nothing_is_reached_stop_no_other_batch_size() -> None:
    """Misses of a batch size that never reaches the target are no sign that trials of the best known one fail."""
    job = kg_job()
    for _ in range(4):
        show(job, 32, 10)
    for _ in range(3):
        show(job, 128, 50, reached=False)
    assert bound(job, 32) is None
    show(job, 32, 50, reached=False)
    assert bound(job, 32) is not None


def test_bound_of_the_best_known_batch_size_doubles_too() -> None:
    """Where even the best known batch size is stopped, each stop in a row doubles its bound from the third on."""
    job = kg_job(batch_sizes=(32,), max_epochs=1000)
    run_all(job, 8)
    job.run(job.dispatch(32), None, course(32)[1], steps=[1000])
    run_all(job, 1)
    factors = []
    for _ in range(5):
        usual, limit = bound_without_stops(job, 32), bound(job, 32)
        assert usual is not None
        assert limit is not None
        factors.append(limit / usual)
        assert job.run(job.dispatch(32), None, course(32)[1]).end_reason is EndReason.COST_BOUND
    assert factors == pytest.approx([1, 1, 2, 4, 8])
    assert job.run(job.dispatch(32), 250, course(32)[1]).converged
    assert bound(job, 32) == bound_without_stops(job, 32)


def test_what_keeps_failing_is_not_the_best_known() -> None:
    """Three failures in a row make the next cheapest batch size the best known, until a trial succeeds."""
    job = kg_job()
    job.run(job.dispatch(16), 40, 100.0)
    job.run(job.dispatch(32), 4, 100.0)
    for _ in range(3):
        assert bound(job, 32) is None
        assert bound(job, 16) == pytest.approx(-2 * belief_of(job, 32).mean)
        job.fail(job.dispatch(32), ERROR, cost=10.0)
    assert (belief_of(job, 32).expected_cost or 0) < (belief_of(job, 16).expected_cost or 0)
    assert bound(job, 16) is None
    assert bound(job, 32) == bound(job, 64) == pytest.approx(-2 * belief_of(job, 16).mean)
    assert job.next().batch_size == 16
    job.run(job.dispatch(32), 4, 100.0)
    assert bound(job, 32) is None


def test_launch_after_a_miss_gets_what_does_not_keep_failing() -> None:
    """After a miss the next launch delivers with a batch size that works, though a cheaper failing one is due again."""
    job = kg_job()
    job.run(job.dispatch(16), 40, 100.0)
    job.run(job.dispatch(32), 4, 100.0)
    for _ in range(3):
        job.fail(job.dispatch(32), ERROR, cost=1.0)
    for _ in range(4):
        job.run(job.dispatch(16), 40, 100.0)
    assert 32 in {arm.batch_size for arm in available(job.search, job.trials + 2)}
    assert (belief_of(job, 32).expected_cost or 0) < (belief_of(job, 16).expected_cost or 0)
    job.fail(job.dispatch(64), ERROR, cost=1.0)
    assert next_size(job) == 16


def test_what_fails_is_the_best_known_if_nothing_else_has_converged() -> None:
    """If only a batch size that keeps failing has reached the target, it sets the bound of the others."""
    job = kg_job()
    run_all(job, 1)
    for _ in range(4):
        job.fail(job.dispatch(32), ERROR, cost=10.0)
    assert bound(job, 32) is None
    assert bound(job, 16) == pytest.approx(-2 * belief_of(job, 32).mean)


def test_what_alone_has_converged_is_banned() -> None:
    """If the only batch size that has reached the target is banned, the others have no bound, and one is chosen."""
    job = kg_job()
    show(job, 32, 10)
    job.search = observe(job.policy, job.spec, job.search, Banned(32))
    assert [bound(job, size) for size in SIZES] == [None] * len(SIZES)
    assert next_size(job) in (16, 64)


def test_what_does_not_fit_is_not_the_best_known() -> None:
    """A batch size that reached the target and then ran out of memory twice is not what others are compared with."""
    job = kg_job()
    job.run(job.dispatch(32), 20, 100.0)
    job.run(job.dispatch(128), 4, 100.0)
    assert bound(job, 128) is None
    for _ in range(2):
        job.fail(job.dispatch(128), OUT_OF_MEMORY)
    assert bound(job, 32) is None
    assert bound(job, 128) == bound(job, 8) == pytest.approx(-2 * belief_of(job, 32).mean)
    assert job.next().batch_size == 32


def test_early_stopping_off_stops_nothing() -> None:
    """Without a beta no batch size has a bound, and an expensive trial reaches the target."""
    job = kg_job(beta_knob=None, disable_early_stopping=True)
    run_all(job, 10)
    assert [bound(job, size) for size in SIZES] == [None] * 5
    assert job.run(job.dispatch(128), 90, 5000.0).converged


@pytest.mark.parametrize("cost", [5e-324, 1e-170, 1e-99, 1e99])
def test_extreme_costs(cost: float) -> None:
    """Any cost that a report may have gives a belief without infinite numbers, and a next batch size."""
    job = kg_job()
    for size in (32, 64):
        ended = job.dispatch(size)._replace(last=Measurement(2, 1e-3, cost, 1.0, NOW), target_reached=True)
        job.succeed(ended, cost, EndReason.TARGET_REACHED)
    for belief in job.policy.belief(job.spec, job.search):
        numbers = (belief.mean, belief.precision, belief.reward_precision, belief.expected_cost)
        assert all(number is not None and math.isfinite(number) for number in numbers)
    assert next_size(job) in SIZES


def test_costs_of_next_to_nothing_tell_nothing() -> None:
    """A cost of 1e-100 J or less says as little about the cost of an epoch as none."""
    jobs = [kg_job() for _ in range(3)]
    for job, cost in zip(jobs, (0.0, 1e-100, 1e-99), strict=True):
        ended = job.dispatch(32)._replace(last=Measurement(10, 20.0, 1000.0, 1.0, NOW), target_reached=True)
        job.succeed(ended, cost, EndReason.TARGET_REACHED)
        job.run(job.dispatch(64), 10, 1e-98)
    nothing, little, more = (belief_of(job, 32).mean for job in jobs)
    assert nothing == pytest.approx(little, abs=0)
    assert nothing != pytest.approx(more, abs=0)


# Which batch size is next


@pytest.mark.parametrize(("octaves", "larger", "smaller"), [(1, 32, 256), (2, 64, 128), (3, 128, 64)])
def test_reach_is_in_octaves(octaves: int, larger: int, smaller: int) -> None:
    """A trial goes as far from what has reached the target as the reach allows, in either direction."""
    found = []
    for default, epochs in ((16, 5), (512, 500)):
        job = kg_job(batch_sizes=(16, 32, 64, 128, 256, 512), default_batch_size=default, max_epochs=1000)
        job.policy = KnowledgeGradient(Constants(reach=octaves, soon=math.inf))
        job.run(job.next(), epochs)
        found.append(next_size(job))
    assert found == [larger, smaller]


@pytest.mark.parametrize(("default", "epochs", "other"), [(32, 5, 512), (512, 500, 32)])
def test_next_batch_size_is_within_reach(default: int, epochs: int, other: int) -> None:
    """However far the next smaller or larger batch size is, a trial may go there."""
    job = kg_job(batch_sizes=(32, 512), default_batch_size=default, max_epochs=1000)
    job.run(job.next(), epochs)
    assert next_size(job) == other


def test_trial_counts_for_what_it_tells_beyond_reach() -> None:
    """After many epochs at the default, a smaller batch size is tried first: there may be cheaper ones further down.

    By what a trial tells about the batch sizes that are within reach already, a larger one would be.
    """
    job = kg_job(batch_sizes=tuple(8 * 2**octave for octave in range(12)), default_batch_size=1024, max_epochs=100)
    job.run(job.next(), 50)
    assert next_size(job) == 512


def test_batch_sizes_beyond_reach_do_not_devalue_trials() -> None:
    """Where the cheapest batch sizes are far from the default, trials lead there; an expensive one is not repeated.

    Far predictions are vague. While they cannot be acted upon, a trial that corrects one downwards is no loss.
    """
    sizes = tuple(8 * 2**octave for octave in range(9))
    job = kg_job(batch_sizes=sizes, default_batch_size=32, max_epochs=60)
    noise, launched = np.random.default_rng(3), list[int]()
    for _ in range(30):
        trial = job.next()
        epochs = round(50 * math.exp(0.1 * noise.standard_normal()))
        launched.append(trial.batch_size)
        job.run(trial, epochs, 100 * (1 + 1024 / trial.batch_size))
    assert launched.count(16) <= 2
    assert max(launched) >= 512


@pytest.mark.parametrize(
    ("default", "epochs", "cheap", "expensive"), [(64, 44, 128, 192), (128, 17, 256, 384), (192, 14, 96, 64)]
)
def test_of_two_trials_that_pay_off_the_cheaper_comes_first(
    default: int, epochs: int, cheap: int, expensive: int
) -> None:
    """Although the result of the expensive one is worth a little more, it may turn out to be unnecessary."""
    batch_sizes = (32, 64, 96, 128, 192, 256, 384, 512)
    job = kg_job(batch_sizes=batch_sizes, default_batch_size=default, max_epochs=400)
    job.run(job.next(), epochs)
    assert (belief_of(job, cheap).expected_cost or 0) < (belief_of(job, expensive).expected_cost or 0)
    assert next_size(job) == cheap
    job.policy = KnowledgeGradient(Constants(soon=math.inf))
    assert next_size(job) == expensive


def test_concurrent_launches_spread() -> None:
    """Running trials count: four first launches at once are four batch sizes, and later ones are not all the same."""
    job = kg_job()
    first = [job.next() for _ in range(4)]
    assert first[0].batch_size == 32
    assert len(set(sizes(first))) == 4
    job = kg_job()
    run_all(job, 1)
    assert len({job.next().batch_size for _ in range(3)}) > 1


def test_running_trials_tell_enough() -> None:
    """What running trials will tell about the epochs or about the cost of one, a further trial does not find out."""
    job = kg_job(batch_sizes=(16, 32, 64), default_batch_size=64)
    job.run(job.next(), 20, 125.0)
    for _ in range(2):
        job.dispatch(32)
    assert next_size(job) != 32
    # Here a prior job tells the epochs.
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16)
    epochs = {16: Moments(4, math.log(40)), 32: Moments(4, math.log(10))}
    job.search = POLICY.register(job.spec, [Prior(None, epochs, {})])
    job.run(job.next(), 9, 200.0)
    job.dispatch(32)
    assert next_size(job) != 32


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
        assert job.choose() == Choice(TrialType.MAB, size, job.choose().reason)  # type: ignore[union-attr]
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


def test_misses_count_for_the_others_that_reach_the_target() -> None:
    """Misses without a reason at one batch size make models of the others more expensive, but not their trials."""
    jobs = [kg_job(), kg_job()]
    for job, missed in zip(jobs, (0, 3), strict=True):
        for _ in range(4):
            show(job, 32, 10)
            show(job, 16, 10)
        for _ in range(missed):
            show(job, 16, 11, reached=False)
    usual, more = ((belief_of(job, 32).expected_cost or 0) / -belief_of(job, 32).mean for job in jobs)
    assert usual == pytest.approx(1, abs=1e-3)
    assert more > 1.05


def test_longest_miss_counts() -> None:
    """Of two trials that missed the target the longer one tells more, in whatever order they ended."""
    jobs = [kg_job() for _ in range(3)]
    for job, missed in zip(jobs, ((20, 5), (5, 20), (5, 5)), strict=True):
        show(job, 32, 10)
        for epochs in missed:
            show(job, 64, epochs, reached=False)
    first, second, short = (belief_of(job, 64).expected_cost or 0 for job in jobs)
    assert first == pytest.approx(second, rel=1e-9)
    assert short < 0.8 * first


def settled_job(**fields: Any) -> SimulatedJob:
    """A job with six trials of 32, in which no insight is worth a trial, nor an insurance."""
    job = kg_job(window_size=100, **fields)
    job.policy = KnowledgeGradient(Constants(windows=0.0, insurance=0.0, second_look=3.0))
    for _ in range(6):
        show(job, 32, 10)
    return job


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(("end", "opposite", "beyond"), [(16, 64, "smaller"), (64, 16, "larger")])
def test_one_bad_draw_closes_no_direction(end: int, opposite: int, beyond: str, others: int) -> None:
    """A neighbour of the best batch size with a single success is tried again if better ones may lie beyond it."""
    job = settled_job()
    for _ in range(others):
        show(job, opposite, 20)
    show(job, end, 12)
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert choice.batch_size == end
    assert choice.reason.endswith(f"; tried only once, and {beyond} batch sizes depend on it")
    job.next()
    assert next_size(job) == 32
    show(job, end, 12)
    assert next_size(job) == 32


def test_ends_of_the_list_get_no_second_look() -> None:
    """No batch size depends on the smallest and the largest one."""
    job = settled_job(batch_sizes=(16, 32, 64))
    show(job, 16, 12)
    show(job, 64, 12)
    assert next_size(job) == 32


def test_insights_are_used_the_longer_the_older_a_job() -> None:
    """After 300 trials a result is taken to be of use for 300 launches more."""
    job = kg_job(batch_sizes=(32, 64))
    for _ in range(300):
        show(job, 32, 10)
    choice = job.choose()
    assert isinstance(choice, Choice)
    found = re.search(r"serves the next (\d+) launches", choice.reason)
    assert found
    assert int(found[1]) >= 300 + Constants().horizon


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
        able = [arm.batch_size for arm in available(job.search, job.trials + 1)]
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


def test_near_miss_at_the_default() -> None:
    """A default that misses the target in its last epoch rules out nothing: a neighbour delivers at the next launch."""
    job = kg_job(max_epochs=10)
    missed = job.run(job.next(), None, 100.0)
    assert (missed.batch_size, missed.end_reason) == (32, EndReason.MAX_EPOCHS)
    trial = job.next()
    assert trial.batch_size in (16, 64)
    assert job.run(trial, 9, 110.0).converged
    assert {arm.batch_size for arm in available(job.search, 3)} == set(SIZES)


def test_nothing_converges() -> None:
    """While nothing reaches the target, every batch size has its turn before one has a second, and none is dropped."""
    job = kg_job(max_epochs=3)
    chosen = [job.run(job.next(), None, 100.0).batch_size for _ in range(15)]
    assert [Counter(chosen[start : start + 5]) for start in (0, 5, 10)] == [Counter(SIZES)] * 3


def test_every_batch_size_is_tried_in_the_long_run() -> None:
    """No allowed batch size is left untried for ever, though the model expects nothing from it."""
    job = kg_job()
    untried = set(SIZES)
    launches = 0
    while untried:
        launches += 1
        assert launches < 2000, untried
        trial = job.next()
        untried.discard(trial.batch_size)
        epochs, epoch_cost = course(trial.batch_size)
        job.run(trial, epochs, epoch_cost, steps=(epochs // 2, epochs))
    assert launches > 100


def test_a_second_valley_is_found() -> None:
    """A batch size behind a hill, cheaper than the default, is found in the long run, and from then on it is used."""
    job = kg_job(batch_sizes=(8, 16, 32, 64, 128, 256), default_batch_size=16)
    epochs = {8: 14, 16: 10, 32: 16, 64: 24, 128: 12, 256: 6}
    launches = 0
    while not job.search.arm(256).num_converged:
        launches += 1
        assert launches < 2000
        trial = job.next()
        job.run(trial, epochs[trial.batch_size], 100.0)
    assert [job.run(trial, 6, 100.0).batch_size for trial in (job.next() for _ in range(10))] == [256] * 10


def exploring_job() -> SimulatedJob:
    """A job whose only trial had 32; another batch size is worth the next one."""
    job = kg_job()
    run_all(job, 1)
    assert next_size(job) != 32
    return job


def miss(job: SimulatedJob, trial: Trial) -> None:
    """Ends a trial at its bound."""
    assert job.run(trial, None, course(trial.batch_size)[1]).end_reason is EndReason.COST_BOUND


def crash(job: SimulatedJob, trial: Trial) -> None:
    """Ends a trial with a crash that costs as much as an epoch."""
    job.fail(trial, ERROR, cost=course(trial.batch_size)[1])


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
    end(job, job.dispatch(64))
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


def test_running_trials_leave_the_belief() -> None:
    """Running trials change the choice, but neither the belief nor the bounds nor the numbers in the reason."""
    job = exploring_job()
    known, bounds = list(POLICY.belief(job.spec, job.search)), [bound(job, size) for size in SIZES]
    chosen = []
    for _ in range(4):
        choice = job.choose()
        assert isinstance(choice, Choice)
        chosen.append(choice.batch_size)
        belief = belief_of(job, choice.batch_size)
        assert belief.expected_cost is not None
        assert belief.deviation is not None
        assert choice.reason.startswith(f"expected {with_unit(belief.expected_cost, belief.deviation)}")
        job.next()
        assert POLICY.belief(job.spec, job.search) == known
        assert [bound(job, size) for size in SIZES] == bounds
    assert len(set(chosen)) > 1


# What power says


def measured_job(watts: float, *, estimated: bool = False, trials: int = 1) -> SimulatedJob:
    """A job after trials with 32, each of 10 epochs and 1 kJ in all; a GPU of 100 W drew this much in the last one."""
    job = kg_job()
    for left in reversed(range(trials)):
        joules = 1000.0 if watts else 0.0
        last = Measurement(10, 1000.0 / (50.0 if left else watts or 50.0), joules, 1.0, NOW)
        monitor = MonitorKinds(("made",), estimated=estimated)
        trial = job.dispatch(32)._replace(last=last, target_reached=True, monitor=monitor)
        job.succeed(trial, 1000.0, EndReason.TARGET_REACHED)
    return job


def beliefs(job: SimulatedJob) -> Sequence[ArmBelief]:
    """The belief about every batch size."""
    return POLICY.belief(job.spec, job.search)


def test_low_power_speaks_for_larger_batch_sizes() -> None:
    """A GPU that drew little power was not busy, so that larger batch sizes are expected to be cheaper."""
    idle, busy = (belief_of(measured_job(watts), 128).expected_cost or 0 for watts in (25.0, 95.0))
    assert 0 < idle < 0.9 * busy


def test_estimated_power_is_no_hint() -> None:
    """Estimated energy, none, or energy in no time, tells nothing about how busy a GPU was."""
    neutral = beliefs(measured_job(25.0, estimated=True))
    assert beliefs(measured_job(95.0, estimated=True)) == neutral
    assert beliefs(measured_job(0.0)) == neutral
    assert beliefs(measured_job(math.inf)) == neutral
    assert beliefs(measured_job(95.0)) != neutral


def test_power_of_the_first_trial_is_the_hint() -> None:
    """How much power later trials draw changes no belief."""
    later = beliefs(measured_job(25.0, trials=2))
    assert later == beliefs(measured_job(95.0, trials=2))
    assert later != beliefs(measured_job(0.0, trials=2))


# Priors


def with_prior(trials: int, spread: float = 0.0, **fields: Any) -> SimulatedJob:
    """A job with a prior in which each batch size has this many trials, of this variance, and 128 is the best."""
    epochs = dict(zip(SIZES, (60, 40, 30, 20, 10), strict=True))
    told = {size: Moments(trials, math.log(epochs[size]), spread * trials) for size in SIZES}
    job = kg_job(**fields)
    job.search = POLICY.register(job.spec, [Prior(128, told, {})])
    return job


def test_prior_weighs_at_most_four_trials() -> None:
    """Own trials outvote a prior with a hundred times as many trials as fast, and one with a single trial faster."""
    costs = {}
    for trials in (1, 4, 400):
        job = with_prior(trials, spread=0.5)
        assert job.choose() == Choice(TrialType.MAB, 128, "the best of the prior jobs is tried first")
        show(job, 128, 16)
        costs[trials] = -belief_of(job, 128).mean
    # After 10 epochs in the prior.
    assert 1100 < costs[400] == pytest.approx(costs[4], rel=0.1)
    assert costs[1] > 1.1 * costs[4]


def test_priors_add_up() -> None:
    """What two prior jobs tell counts together; the first trial has the best batch size of the first one named."""
    eight, large = {8: Moments(4, math.log(100))}, {128: Moments(4, math.log(3))}
    jobs = [kg_job() for _ in range(4)]
    priors = [Prior(8, eight, {}), Prior(128, large, {})]
    for job, known in zip(jobs, (priors, priors[::-1], priors[:1], priors[1:]), strict=True):
        job.search = POLICY.register(job.spec, known)
    assert [next_size(job) for job in jobs] == [8, 128, 8, 128]
    for job in jobs:
        show(job, 32, 20)
    both, reverse, first, second = ([belief_of(job, size).expected_cost or 0 for size in (8, 128)] for job in jobs)
    assert both == reverse
    assert both[0] > 2 * second[0]
    assert both[1] < 0.5 * first[1]


def test_prior_that_knows_a_batch_size_not_adds_nothing() -> None:
    """Of two prior jobs only one tells something: the belief is that of a job that names only this one."""
    jobs = [kg_job(), kg_job()]
    missed = Prior(None, {}, {8: (2, 0.0)})
    for job, priors in zip(jobs, ([missed], [missed, Prior(None, {}, {})]), strict=True):
        job.search = POLICY.register(job.spec, priors)
        show(job, 32, 20)
    assert beliefs(jobs[0]) == beliefs(jobs[1])


def test_default_has_no_right_of_its_own_without_a_prior() -> None:
    """A default that failed and is far from what has reached the target is not the next one."""
    job = kg_job(default_batch_size=128)
    job.fail(job.next(), ERROR)
    show(job, 16, 10)
    assert next_size(job) != 128


def test_prior_without_a_success_starts_at_the_default() -> None:
    """A prior whose trials all missed names no batch size; what it says about the epochs is used."""
    job = kg_job()
    missed = dict.fromkeys((8, 16), (2, math.log(100)))
    job.search = POLICY.register(job.spec, [Prior(None, {}, missed)])
    assert job.next().batch_size == 32
    other = kg_job()
    other.search = POLICY.register(other.spec, [Prior(7, {7: Moments(3, 1.0)}, {})])
    assert other.next().batch_size == 32


def wrong_prior(**fields: Any) -> SimulatedJob:
    """A job whose prior's best batch size misses; its second trial, with 64, takes three times the prior's epochs."""
    job = with_prior(4, default_batch_size=8, **fields)
    miss_all = job.run(job.next(), None, 100.0)
    assert (miss_all.batch_size, miss_all.end_reason) == (128, EndReason.MAX_EPOCHS)
    assert job.run(job.next(), 70, 100.0).batch_size == 64
    return job


def test_default_is_tried_if_the_prior_was_wrong() -> None:
    """Once the trials contradict the prior, the default gets its trial, although it is far from all that was tried."""
    job = wrong_prior()
    assert next_size(job) == 8
    job.run(job.next(), 60, 100.0)
    assert next_size(job) != 8


def test_default_is_tried_once_at_a_time_if_the_prior_was_wrong() -> None:
    """Launches at the same time do not all try the default."""
    job = wrong_prior()
    assert sizes([job.next() for _ in range(3)]).count(8) == 1


def test_default_that_may_not_be_chosen_is_not_tried() -> None:
    """If the prior was wrong and the default does not fit into memory, another batch size is chosen."""
    job = with_prior(4, default_batch_size=128)
    job.search = POLICY.register(job.spec, [Prior(8, {size: Moments(4, math.log(10 + size)) for size in SIZES}, {})])
    assert job.run(job.next(), None, 100.0).batch_size == 8
    job.fail(job.dispatch(128), OUT_OF_MEMORY)
    assert job.run(job.dispatch(16), 90, 100.0).converged
    assert belief_of(job, 128).observations == 0
    assert next_size(job) != 128


def missed_prior(*missed: int) -> SimulatedJob:
    """A job with a prior in which these batch sizes missed the target twice, after 40 epochs, and none reached it."""
    job = kg_job()
    job.search = POLICY.register(job.spec, [Prior(None, {}, dict.fromkeys(missed, (2, math.log(40))))])
    return job


@pytest.mark.parametrize("missed", [(8, 16), (64, 128)])
def test_misses_of_a_prior_count(missed: tuple[int, int]) -> None:
    """Batch sizes that only missed the target in the prior are expected to cost more, and others are tried first."""
    cold, warm = kg_job(), missed_prior(*missed)
    for job in (cold, warm):
        run_all(job, 1)
    for size in missed:
        assert (belief_of(warm, size).expected_cost or 0) > 1.3 * (belief_of(cold, size).expected_cost or 0)
    assert next_size(job) not in {32, *missed}


@pytest.mark.parametrize(("missed", "order"), [((), [32, 16, 64, 8, 128]), ((8, 16, 32), [32, 64, 128, 16, 8])])
def test_misses_of_a_prior_come_last(missed: tuple[int, ...], order: list[int]) -> None:
    """While nothing reaches the target, batch sizes that missed it in the prior have their turn after the others."""
    job = missed_prior(*missed)
    reasons = []
    for size in order * 2:
        choice = job.choose()
        assert isinstance(choice, Choice)
        assert choice.batch_size == size
        reasons.append("come later" in choice.reason)
        job.run(job.next(), None, 100.0)
    assert reasons == [bool(missed) and size not in missed for size in order * 2]


def test_what_also_reached_the_target_in_a_prior_is_no_miss() -> None:
    """A batch size with misses in the prior has its usual turn if it reached the target there as well."""
    job = kg_job()
    reached = Moments(1, math.log(20))
    job.search = POLICY.register(job.spec, [Prior(32, {16: reached, 32: reached}, {16: (2, math.log(40))})])
    assert [job.run(job.next(), None, 100.0).batch_size for _ in range(5)] == [32, 16, 64, 8, 128]


# Reasons


def test_reason_has_the_numbers() -> None:
    """A trial that is worth its cost says what it expects, against what, and for how many launches that is worth it."""
    job = kg_job()
    first = job.choose()
    assert isinstance(first, Choice)
    assert first.reason == "the default is tried first"
    run_all(job, 1)
    reasons = []
    for _ in range(10):
        choice = job.choose()
        assert isinstance(choice, Choice)
        reasons.append(choice.reason)
        run_all(job, 1)
    number = r"[\d.]+"
    pattern = (
        rf"expected ({number}) ± {number} kJ; batch size (\d+), the best known, costs {number} kJ; "
        r"a trial pays off, as its result serves the next (\d+) launches"
    )
    found = re.fullmatch(pattern, reasons[0])
    assert found
    assert found[2] == "32"
    # Of one trial the misfit is that before any trial.
    assert int(found[3]) == pytest.approx(Constants().horizon + Constants().misfit_horizon + 1, abs=5)
    assert 1 < float(found[1]) < 4
    settled = rf"expected {number} ± {number} k?J, the least of those tried; no other batch size is worth a trial"
    assert re.fullmatch(settled, reasons[-1])


@pytest.mark.parametrize(("window", "when"), [(0, "yet"), (9, "in the window")])
def test_reason_before_the_first_success(window: int, when: str) -> None:
    """The reason says what happened to the batch size so far, and where it lies."""
    job = kg_job(max_epochs=3, window_size=window)
    running = job.next()
    reasons = [job.choose()]
    job.run(running, None, 100.0)
    job.fail(job.dispatch(16), ERROR)
    reasons.append(job.choose())
    job.fail(job.dispatch(16), ERROR)
    for size in (8, 64, 128):
        job.run(job.dispatch(size), None, 100.0)
    job.run(job.dispatch(16), None, 100.0)
    reasons.append(job.choose())
    job.next()
    reasons.append(job.choose())
    nothing, near = (
        f"no allowed batch size has reached the target {when};",
        "this is the nearest to the default",
    )
    assert reasons == [
        Choice(TrialType.MAB, size, f"{nothing} {why}")
        for size, why in (
            (16, f"of the least tried, {near}, 32 (no trial so far)"),
            (16, f"{near}, 32, tried again after a failure (1 trial failed)"),
            (32, "of the least tried, this is the default (1 trial missed the target)"),
            (16, f"{near}, 32, tried again after a failure (1 trial missed the target, 2 trials failed)"),
        )
    ]


def test_reason_has_no_exponents() -> None:
    """A doubt of hundreds of joules beside an expectation below a kilojoule is written out."""
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16, max_epochs=10)
    job.fail(job.next(), ERROR, cost=100.0)
    job.run(job.next(), 10, 10.0)
    choice = job.choose()
    assert isinstance(choice, Choice)
    pattern = r"expected [1-9]\d\d ± [1-9]\d\d J; batch size 16, the best known, costs [1-9]\d\d J;"
    assert re.match(pattern, choice.reason)


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
    job.run(job.dispatch(64, TrialType.IMPORTED), None)
    again = job.choose()
    assert isinstance(again, Choice)
    assert "delivered no model" in again.reason


def test_imported_model_ends_the_retry() -> None:
    """After a trial that ran without the server delivered, the next one is chosen as if nothing had failed."""
    job = kg_job()
    run_all(job, 2)
    job.fail(job.next(), ERROR)
    assert state_of(job)["retry"] == 3
    job.run(job.dispatch(16, TrialType.IMPORTED), 10)
    assert state_of(job)["retry"] is None
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert "delivered no model" not in choice.reason
    # A launch that ran meanwhile and fails now is a failure as before.
    late = job.next()
    job.run(job.dispatch(16, TrialType.IMPORTED), 10)
    job.fail(late, ERROR)
    assert state_of(job)["retry"] == late.number


# Insurance


def state_of(job: SimulatedJob) -> Any:
    """What the policy keeps."""
    return json.loads(job.search.notes)


def rich(job: SimulatedJob) -> None:
    """Sets what was spent so high that an insurance is affordable, instead of running that many launches."""
    job.search = replace(job.search, notes=json.dumps({**state_of(job), "total": 1e12}))


def insured_job() -> tuple[SimulatedJob, Trial]:
    """A settled job, and its running trial of a batch size that the model does not recommend."""
    job = kg_job()
    for _ in range(20):
        trial = job.next()
        job.run(trial, round(5 + trial.batch_size / 4))
    rich(job)
    trial = job.next()
    assert job.search.arm(trial.batch_size).num_succeeded == 0
    return job, trial


def test_recommended_trials_are_no_insurance() -> None:
    """First trials that the model recommends cost the insurance nothing, one after another or at the same time."""
    job = kg_job()
    run_all(job, 1)
    running = [job.next() for _ in range(2)]
    assert len({trial.batch_size for trial in running} - {32}) == 2
    assert state_of(job)["insuring"] == []
    for trial in running:
        job.run(trial, *course(trial.batch_size))
    assert state_of(job)["insured"] == 0.0


def test_repeated_launch_is_no_insurance() -> None:
    """A launch that is repeated with the best known batch size costs the insurance nothing."""
    job = exploring_job()
    crash(job, job.dispatch(64))
    assert job.next().batch_size == 32
    assert state_of(job)["insuring"] == []


def test_an_insurance_is_charged_once() -> None:
    """A trial that the model does not recommend is charged with what it cost beyond the best known batch size."""
    job, trial = insured_job()
    assert state_of(job)["insuring"] == [trial.number]
    ended = job.run(trial, round(5 + trial.batch_size / 4))
    assert state_of(job)["insuring"] == []
    assert 0 < state_of(job)["insured"] < (ended.cost or 0)


def test_an_insurance_that_pays_is_not_charged() -> None:
    """A trial that the model does not recommend, but which costs less than the best known batch size, is free."""
    job, trial = insured_job()
    job.run(trial, 1)
    assert (state_of(job)["insuring"], state_of(job)["insured"]) == ([], 0.0)


@pytest.mark.parametrize("cost", [7.0, None])
@pytest.mark.parametrize("reason", [ERROR, EndReason.LOST, EndReason.PREEMPTED])
def test_a_failed_insurance_is_forgotten_and_charged(reason: EndReason, cost: float | None) -> None:
    """The state does not grow with insured trials that fail; what they cost is charged, if they have a cost."""
    job, trial = insured_job()
    job.fail(trial, reason, cost)
    assert (state_of(job)["insuring"], state_of(job)["insured"]) == ([], cost or 0.0)


def only_insured_job(*prior: Prior, epoch_cost: float = 100.0, **fields: Any) -> SimulatedJob:
    """A job after six trials of 32, in which an insurance is the only reason to try another batch size."""
    job = kg_job(window_size=100, beta_knob=None, max_epochs=10**6, **fields)
    job.policy = KnowledgeGradient(Constants(windows=0.0, second_look=-100.0))
    job.search = job.policy.register(job.spec, prior)
    for _ in range(6):
        job.run(job.dispatch(32), 10, epoch_cost)
    return job


def misfit_of(job: SimulatedJob) -> float:
    """How badly the law fits, from the launches for which an insight counts if nothing but the misfit says so."""
    policy = KnowledgeGradient(Constants(horizon=0.0, misfit_horizon=1e6, windows=1e9))
    choice = policy.next(job.spec, job.search, job.trials + 1, np.random.default_rng(1))
    assert isinstance(choice, Choice)
    found = re.search(r"serves the next (\d+) launches", choice.reason)
    assert found, choice
    return (int(found[1]) - job.trials) / 1e6


@pytest.mark.parametrize("epoch_cost", [100.0, 1e-6])
def test_an_insurance_is_a_small_share_of_what_was_spent(epoch_cost: float) -> None:
    """It waits until its extra cost is a share of all cost, which grows with the misfit and with the trials."""
    job = only_insured_job(epoch_cost=epoch_cost)
    costs = {size: belief_of(job, size).expected_cost or 0.0 for size in (16, 32, 64)}
    size = min(16, 64, key=costs.__getitem__)
    constants = Constants()
    share = constants.insurance * misfit_of(job) * job.trials / (job.trials + constants.insured_later)
    needed = (costs[size] - costs[32]) / share
    chosen = []
    for total in (0.99 * needed, 1.01 * needed):
        job.search = replace(job.search, notes=json.dumps({**state_of(job), "total": total}))
        chosen.append(next_size(job))
    assert chosen == [32, size]


def test_an_insurance_goes_no_farther_than_the_next_batch_size() -> None:
    """The next smaller batch size is tried, although the one beyond it is expected to cost less."""
    epochs = {8: Moments().add(math.log(5)), 32: Moments().add(math.log(10))}
    job = only_insured_job(Prior(None, epochs, {16: (4, math.log(100))}), batch_sizes=(8, 16, 32))
    rich(job)
    costs = [belief_of(job, size).expected_cost or 0.0 for size in (32, 8, 16)]
    assert costs == sorted(costs)
    assert next_size(job) == 16


# Extremes


def lasts(job: SimulatedJob, launches: int, epochs: int | None, epoch_cost: float, *steps: int) -> list[Trial]:
    """This many launches, all with the same course."""
    return [job.run(job.next(), epochs, epoch_cost, steps or None) for _ in range(launches)]


def check_belief(job: SimulatedJob) -> None:
    """Every number of the belief is finite, and costs are positive; a bound is None or above 0."""
    for belief in job.policy.belief(job.spec, job.search):
        numbers = [belief.mean, belief.precision, belief.reward_precision, float(belief.observations)]
        numbers += [each for each in (belief.expected_cost, belief.deviation, belief.failure_rate) if each is not None]
        assert all(map(math.isfinite, numbers)), belief
        assert belief.expected_cost is None or belief.expected_cost > 0
        assert belief.failure_rate is None or 0 <= belief.failure_rate < 1
        limit = bound(job, belief.batch_size)
        assert limit is None or 0 < limit < math.inf


def test_trials_that_cost_nothing() -> None:
    """With a cost of 0 every launch gets an allowed batch size, and the belief has no nonsense."""
    job = kg_job()
    assert {trial.batch_size for trial in lasts(job, 12, 4, 0.0)} <= set(SIZES)
    check_belief(job)
    run_all(job, 12)
    check_belief(job)


def test_one_batch_size() -> None:
    """A job with one batch size gets it every time, whatever happens."""
    job = kg_job(batch_sizes=(32,))
    job.fail(job.next(), ERROR)
    job.run(job.next(), None, 10.0)
    assert set(sizes(run_all(job, 5))) == {32}
    for _ in range(4):
        job.fail(job.next(), ERROR)
    assert job.next().batch_size == 32
    check_belief(job)


def test_64_batch_sizes_close_together() -> None:
    """With 64 neighbours, few are tried before the launches settle near the best."""
    job = kg_job(batch_sizes=tuple(range(32, 96)), default_batch_size=90, max_epochs=100)
    trials = []
    for _ in range(40):
        trial = job.next()
        trials.append(job.run(trial, round(20 + trial.batch_size / 4), 100.0))
    assert max(sizes(trials[-10:])) < 70
    check_belief(job)


def test_largest_number_of_epochs() -> None:
    """Billions of epochs are no problem, neither as the limit nor as a miss."""
    last = 2**31 - 1
    job = kg_job(max_epochs=last, beta_knob=None, disable_early_stopping=True)
    lasts(job, 3, None, 1e-3, last)
    check_belief(job)
    lasts(job, 3, 10**9, 1e-3, 10**9)
    lasts(job, 3, 3, 1.0)
    check_belief(job)
    assert isinstance(job.choose(), Choice)


@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_smallest_and_largest_beta(beta: float) -> None:
    """Whatever the beta, a job delivers: the best known batch size reaches its target."""
    job = kg_job(beta_knob=beta)
    trials = run_all(job, 30)
    assert trials[0].converged
    assert sum(trial.converged for trial in trials[-10:]) >= 9
    check_belief(job)


def test_target_in_the_first_epoch() -> None:
    """Trials of one epoch are told apart by what an epoch costs."""
    job = kg_job()
    trials = []
    for _ in range(15):
        trial = job.next()
        trials.append(job.run(trial, 1, 1000.0 / trial.batch_size))
    assert sizes(trials)[-5:] == [128] * 5
    check_belief(job)


@pytest.mark.parametrize("epoch_cost", [1e-12, 1e15])
def test_tiny_and_huge_costs(epoch_cost: float) -> None:
    """The unit of costs does not matter; only power, which is the same, tells something beforehand."""
    job, usual = kg_job(), kg_job()
    for _ in range(10):
        trial, other = job.next(), usual.next()
        assert trial.batch_size == other.batch_size
        epochs, _ = course(trial.batch_size)
        job.run(trial, epochs, epoch_cost)
        usual.run(other, epochs, 100.0)
    for here, there in zip(beliefs(job), beliefs(usual), strict=True):
        assert here.expected_cost == pytest.approx((there.expected_cost or 0) / 100 * epoch_cost, rel=1e-9)
    check_belief(job)


OUTCOMES = st.tuples(
    st.sampled_from(
        ["reach", "reach", "reach", "miss", "error", "lost", "memory", "preempted", "revive", "wait", "free"]
    ),
    st.integers(1, 20),
    st.sampled_from([0.0, 1e-9, 0.5, 10.0, 1e4, 1e12]),
    st.integers(0, 5),
)
REASONS = {
    "error": ERROR,
    "lost": EndReason.LOST,
    "memory": OUT_OF_MEMORY,
    "preempted": EndReason.PREEMPTED,
}


TOLD = st.tuples(
    st.integers(0, 5),
    st.builds(
        # Epochs are below 2^31, so that the variance of their logarithm is at most 116.
        lambda count, mean, variance: Moments(count, mean, count * variance if count > 1 else 0.0),
        st.sampled_from([0, 1, 5, 10**6]),
        st.floats(0, 21),
        st.floats(0, 100),
    ),
    st.tuples(st.sampled_from([0, 1, 5, 10**6]), st.floats(0, 21)),
)
"""What a prior job tells about the batch size at this place."""


@settings(max_examples=60)
@given(
    outcomes=st.lists(OUTCOMES, max_size=25),
    batch_sizes=st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=6),
    window=st.sampled_from([0, 1, 4]),
    beta=st.sampled_from([None, 0.01, 2.0]),
    told=st.one_of(st.just([]), st.lists(TOLD, max_size=6)),
)
def test_any_events(
    outcomes: list[Any], batch_sizes: set[int], window: int, beta: float | None, told: list[Any]
) -> None:
    """After any events: allowed batch sizes only, finite numbers, bounds above 0, and a state that survives as text."""
    listed = tuple(sorted(batch_sizes))
    job = kg_job(
        batch_sizes=listed,
        default_batch_size=listed[0],
        window_size=window,
        beta_knob=beta,
        max_epochs=20,
        disable_early_stopping=beta is None,
    )
    priors = []
    for place, reached, missed in told:
        size = listed[place % len(listed)]
        priors.append(Prior(size if reached.count else None, {size: reached}, {size: missed} if missed[0] else {}))
    job.search = POLICY.register(job.spec, priors)
    running: list[Trial] = []
    resumable: list[Trial] = []
    for outcome, epochs, epoch_cost, place in outcomes:
        choice = job.choose()
        left = {arm.batch_size for arm in available(job.search, job.trials + 1)}
        assert isinstance(choice, Exhausted) if not left else isinstance(choice, Choice) and choice.batch_size in left
        if not left:
            break
        if outcome == "free":
            # A trial of any batch size, such as one that was dispatched earlier and is revived.
            running.append(job.dispatch(listed[place % len(listed)]))
            continue
        running.append(job.next())
        if outcome == "wait":
            continue
        trial = running.pop(place % len(running))
        if outcome == "revive" and resumable:
            revived = resumable.pop(place % len(resumable))
            job.revive(revived)
            running += [trial, revived]
        elif outcome in REASONS:
            failed = job.fail(trial, REASONS[outcome], cost=epochs * epoch_cost)
            if outcome in ("lost", "preempted"):
                resumable.append(failed)
        else:
            job.run(trial, epochs if outcome == "reach" else None, epoch_cost)
        check_belief(job)
        again = fresh(job.search)
        assert json.loads(again.notes) == json.loads(job.search.notes)
        rng = np.random.default_rng(0)
        number = job.trials + 1
        assert POLICY.next(job.spec, again, number, rng) == POLICY.next(job.spec, job.search, number, rng)


def test_what_a_job_tells_another_one() -> None:
    """Decided trials tell epochs or misses by batch size, failed ones nothing; the best is one that reached."""

    def trial(size: int, epoch: int, *, reached: bool = True, place: int | None = 1) -> Trial:
        last = Measurement(epoch, 1.0, 1.0, 0.5, NOW)
        done = Trial("j", 1, size, TrialType.MAB, 0, NOW, last=last, target_reached=reached, observation=place)
        return done._replace(status=TrialStatus.SUCCEEDED)

    beliefs = [ArmBelief(size, -cost, 1.0, 1.0, 1, cost, 1.0) for size, cost in ((8, 9.0), (16, 5.0), (32, 1.0))]
    trials = [
        trial(8, 100, place=None),
        trial(8, 1)._replace(last=None),
        trial(8, 4),
        trial(16, 2),
        trial(16, 8),
        trial(32, 5, reached=False),
        trial(32, 9, reached=False),
        trial(32, 7, reached=False),
    ]
    prior = prior_of([*beliefs, ArmBelief(64, 0.0, 0.0, 0.0, 0)], trials)
    assert prior.best == 16
    assert prior.missed == {32: (3, math.log(9))}
    assert {size: epochs.count for size, epochs in prior.epochs.items()} == {8: 1, 16: 2}
    assert prior.epochs[16].mean == pytest.approx(math.log(4))
    assert prior_of([], []) == Prior(None, {}, {})
