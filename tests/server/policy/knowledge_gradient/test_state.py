"""The state of a job: text, bounded, with or without a window."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wattwise_server.domain import (
    Stage,
    TrialType,
)
from wattwise_server.policy.base import Choice, Dispatched

from tests.server.policy.knowledge_gradient.jobs import (
    POLICY,
    SIZES,
    bound,
    bound_without_stops,
    check_belief,
    course,
    fresh,
    kg_job,
    kg_spec,
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


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
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
        lambda: POLICY.changes(found),
    ):
        with pytest.raises(ValueError, match=f"has format {version}; this version reads 2.* use "):
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
