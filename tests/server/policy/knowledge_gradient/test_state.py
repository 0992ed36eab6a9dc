"""The state of a job: text, bounded, with or without a window."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wattwise.rules import EndReason, ResolvedJob
from wattwise_server.domain import Search, Stage, TrialOrigin
from wattwise_server.events import BatchSizeBanned, SearchEvent, TrialDispatched
from wattwise_server.policy.base import Choice
from wattwise_server.policy.history import observe
from wattwise_server.policy.knowledge_gradient.evidence import KEPT, Evidence, Result
from wattwise_server.policy.knowledge_gradient.state import Comparison, Cusum, Expected, read, recent

from tests.server.policy.knowledge_gradient.jobs import (
    POLICY,
    SIZES,
    bound,
    bound_without_stops,
    check_belief,
    course,
    fresh,
    kg_job,
    run_all,
    sizes,
    state_of,
)


class Forbidden:
    """Randomness that must not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the policy draws {name}")


def test_choices_depend_on_the_events_alone() -> None:
    """The same events lead to the same choices with any seed, and no randomness is read."""
    jobs = [kg_job(seed=seed) for seed in (1, 2)]
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


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_state_of_another_version_is_refused(version: object) -> None:
    """A state of another format is not read as something else; the error names both formats."""
    job = kg_job()
    run_all(job, 3)
    found = replace(job.search, notes=json.dumps({**state_of(job), "format": version}))
    rng = np.random.default_rng(0)
    for call in (
        lambda: POLICY.next(job.spec, found, 4, rng),
        lambda: POLICY.observe(job.spec, found, TrialDispatched(job.dispatch(32))),
        lambda: POLICY.bound(job.spec, found, 32),
        lambda: POLICY.belief(job.spec, found),
        lambda: POLICY.changes(found),
    ):
        with pytest.raises(ValueError, match=f"has format {version}; this version reads 2.* use "):
            call()


@pytest.mark.thorough
@pytest.mark.parametrize("window", [0, 20])
def test_state_is_bounded(window: int) -> None:
    """Once a batch size has enough trials, or a window is full, more trials make the state no longer; it is compact."""
    job = kg_job(max_epochs=60, window_size=window)

    def more(count: int) -> int:
        for turn in range(count):
            epochs = None if turn % 3 == 2 else 7 + turn % 4
            job.run(job.dispatch(SIZES[turn % 5]), epochs, 1 / 3, steps=[epochs or 60])
            knowledge = read(job.search.notes)
            assert all(max(len(each.reached), len(each.missed)) <= KEPT for each in knowledge.evidence)
            assert len(knowledge.misses) <= KEPT
            assert len(knowledge.window) <= window
        return len(job.search.notes)

    before = more(300)
    # A few digits more, and a few trials that are watched for a change.
    assert more(100) < before + 2_000 < 12_000
    assert " " not in job.search.notes
    assert state_of(job)["prior"] == []


def test_trials_that_are_not_kept_still_count() -> None:
    """Only the newest trials are kept one by one; the earlier ones keep their number, their mean and their misses."""
    known = Evidence()
    for turn in range(3 * KEPT):
        known = known.with_success(10 + turn % 3)
    for _ in range(KEPT + 5):
        known = known.with_miss(40, 0.5)
    assert (len(known.reached), known.earlier.count, known.earlier_unusual) == (KEPT, 2 * KEPT, 0)
    assert (len(known.missed), known.earlier_missed, known.luck) == (KEPT, 5, 0.5 ** (KEPT + 5))
    assert (known.num_reached, known.num_missed) == (3 * KEPT, KEPT + 5)
    assert known.earlier.mean == pytest.approx(math.log(11), abs=0.05)
    assert known.with_success(10).luck == 1


@pytest.mark.parametrize("unusual", [1, 1000])
def test_an_unusual_trial_that_is_not_kept_is_moved_closer(unusual: int) -> None:
    """What is left of an unusual trial is that there was one, and an outlier that is none any more."""
    known = Evidence().with_success(unusual)
    for _ in range(KEPT):
        known = known.with_success(20)
    assert known.earlier_unusual == 1
    assert known.earlier.mean == pytest.approx(math.log(20), abs=0.35)
    assert known.earlier.mean != math.log(20)


def test_trials_that_are_watched_are_few() -> None:
    """Of the trials since a detector was last at 0, the newest are kept; of the others, none."""
    trials = [
        Comparison(Result(number, 0, 10, 0.0, reached=True), Expected(2.3, 0.1, 8.0), Expected(0.0, 0.1, 8.0))
        for number in range(1, 201)
    ]
    kept = recent(trials, [Cusum(), Cusum(1.0, 200), Cusum(1.0, 11)])
    assert kept == tuple(trials[-len(kept) :])
    assert 50 < len(kept) < 100
    assert recent(trials, [Cusum(), Cusum(1.0, 11)]) == tuple(trials[-11:])
    assert recent(trials, [Cusum()] * 4) == ()


class Recorder:
    """The policy, and the events that it observes."""

    def __init__(self) -> None:
        self.events: list[SearchEvent] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(POLICY, name)

    def observe(self, job: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        """Records the event."""
        self.events.append(event)
        return POLICY.observe(job, search, event)


@pytest.mark.parametrize("window", [0, 12])
def test_state_follows_from_the_events(window: int) -> None:
    """Events that are replayed lead to the same state: successes, misses, failures, revivals, bans and a change."""
    job = kg_job(window_size=window, max_epochs=100)
    recorder: Any = Recorder()
    job.policy = recorder
    run_all(job, 12)
    job.fail(job.next(), EndReason.ERROR)
    lost = job.fail(job.next(), EndReason.LOST, cost=10.0)
    job.run(job.dispatch(16, TrialOrigin.IMPORTED), 10)
    job.revive(lost)
    job.run(lost._replace(cost=None, end_reason=None), 11)
    job.search = observe(job.policy, job.spec, job.search, BatchSizeBanned(job.spec, 128))
    for _ in range(15):
        trial = job.next()
        epochs, cost = course(trial.batch_size)
        job.run(trial, 3 * epochs if trial.number % 4 else None, cost)
    again = POLICY.register(job.spec, ())
    for event in recorder.events:
        again = observe(POLICY, job.spec, again, event)
    assert again == job.search
    assert window or POLICY.changes(again)


def test_job_is_in_the_bandit_stage() -> None:
    """There is no pruning: the stage is that of the bandit, and the search chose every trial, also concurrent ones."""
    job = kg_job()
    trials = [job.next() for _ in range(3)]
    assert job.search.stage is Stage.BANDIT
    assert {trial.origin for trial in trials} == {TrialOrigin.SEARCH}


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
    """An insight counts for the deliveries of three windows at most: later, what it rests on is long forgotten."""
    job = kg_job(window_size=10)
    job.run(job.next(), *course(32))
    choice = job.choose()
    assert isinstance(choice, Choice)
    assert choice.reason.endswith("over the next 30 deliveries")


def test_window_follows_a_drift() -> None:
    """With a window, launches move to the batch size that has become the cheapest; the trials before are forgotten."""
    job = kg_job(window_size=10)
    assert Counter(sizes(run_all(job, 30))).most_common(1)[0][0] == 32
    trials = []
    for _ in range(60):
        trial = job.next()
        epochs, epoch_cost = course(trial.batch_size)
        trials.append(job.run(trial, epochs * (3 if trial.batch_size <= 32 else 1), epoch_cost))
    assert sum(size >= 64 for size in sizes(trials[-10:])) >= 8


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
