"""Launches at the same time, before any trial has ended and later."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest
from wattwise_server.domain import Moments, Trial
from wattwise_server.events import BatchSizeBanned
from wattwise_server.policy.base import Choice, Prior
from wattwise_server.policy.history import observe
from wattwise_server.policy.knowledge_gradient import Constants, KnowledgeGradient

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    SIZES,
    choice_of,
    course,
    exploring_job,
    kg_job,
    next_size,
    run_all,
    show,
    sizes,
)
from tests.server.policy.simulated import SimulatedJob

OCTAVES = (8, 16, 32, 64, 128, 256, 512)


def wave(job: SimulatedJob, count: int = 8) -> tuple[list[Trial], list[Choice]]:
    """Launches at the same time, and their choices."""
    choices, trials = [], []
    for _ in range(count):
        choices.append(choice_of(job))
        trials.append(job.next())
    return trials, choices


def end(job: SimulatedJob, trials: list[Trial]) -> None:
    """Lets them all run their course."""
    for trial in trials:
        job.run(trial, *course(trial.batch_size))


def test_first_wave() -> None:
    """Of eight first launches one tries the default, a few its neighbours, and the rest repeat the default."""
    trials, choices = wave(kg_job(max_epochs=100))
    assert sizes(trials)[:3] == [32, 64, 16]
    assert set(sizes(trials[3:])) == {32}
    assert choices[0].reason == "the default is tried first"
    running = "no trial has reached the target yet, and 1 trial of batch size 32 is running"
    for choice in choices[1:3]:
        found = re.fullmatch(
            rf"{running}; batch size (64|16) is tried as well: a model is expected to cost ([\d.]+) times as much with "
            r"\1 as with 32, and the result may lower the cost of the next (\d+) deliveries",
            choice.reason,
        )
        assert found
        assert 1 < float(found[2]) < 3
        assert int(found[3]) >= Constants().horizon
    for count, choice in enumerate(choices[3:], 1):
        trials_running = "1 trial of batch size 32 is" if count == 1 else f"{count} trials of batch size 32 are"
        assert choice.reason == (
            f"no trial has reached the target yet, and {trials_running} running; "
            "beside the running trials no other batch size is worth a trial"
        )


@pytest.mark.parametrize(("default", "neighbour"), [(8, 16), (512, 256), (32, 64)])
def test_first_wave_goes_to_neighbours(default: int, neighbour: int) -> None:
    """Beside the default the first wave tries the next batch size, and none far away."""
    trials, _ = wave(kg_job(batch_sizes=OCTAVES, default_batch_size=default, max_epochs=100))
    assert sizes(trials)[:2] == [default, neighbour]
    places = {OCTAVES.index(size) for size in sizes(trials)}
    assert all(abs(place - OCTAVES.index(default)) <= 2 for place in places)


@pytest.mark.parametrize("max_epochs", [12, 3])
def test_short_jobs_expect_nothing_strange(max_epochs: int) -> None:
    """While the default runs, no neighbour is expected to cost a tenth of it because the last epoch is near."""
    job = kg_job(max_epochs=max_epochs)
    _, choices = wave(job)
    ratios = [float(found[1]) for choice in choices if (found := re.search(r"cost ([\d.]+) times", choice.reason))]
    assert all(0.5 < ratio < 5 for ratio in ratios)


def test_first_wave_in_any_unit() -> None:
    """Nothing has a cost yet, so that the job's costs and power do not matter."""
    waves = [sizes(wave(kg_job(max_epochs=100, eta_knob=eta))[0]) for eta in (0.0, 0.5, 1.0)]
    assert waves[0] == waves[1] == waves[2]


def test_plan_holds_until_a_trial_has_ended() -> None:
    """Once the only default has run, its result counts; if it failed or missed, the batch sizes take turns."""
    for failed in (True, False):
        job = kg_job(max_epochs=30)
        first = job.next()
        job.next()
        if failed:
            job.fail(first, ERROR)
        else:
            job.run(first, None, 100.0)
        assert "no available batch size has reached the target yet" in choice_of(job).reason
    job = kg_job(max_epochs=100)
    trials, _ = wave(job, 3)
    end(job, trials[:1])
    assert "the best known" in choice_of(job).reason or "no other batch size" in choice_of(job).reason


def test_a_miss_in_the_first_wave_leaves_the_plan() -> None:
    """A miss or a crash of one of five first trials does not send the next launches to the ends of the list."""
    for failed in (True, False):
        job = kg_job(max_epochs=100)
        trials, _ = wave(job, 5)
        last = next(trial for trial in trials[::-1] if trial.batch_size == 32)
        if failed:
            job.fail(last, ERROR)
        else:
            job.run(last, None, 100.0)
        later, choices = wave(job, 5)
        assert sizes(trials).count(32) == 3
        assert set(sizes(later)) == {32}
        assert all(
            choice.reason.startswith("no trial has reached the target yet: 1 trial did not") for choice in choices
        )
        assert "2 trials of batch size 32 are still running" in choices[0].reason


def test_a_miss_of_a_neighbour_does_not_draw_the_plan_to_it() -> None:
    """Beside running trials of the default, a neighbour that has missed is not what all next launches get."""
    job = kg_job(max_epochs=100)
    for _ in range(3):
        job.dispatch(32)
    show(job, 64, 99, reached=False)
    later, _ = wave(job, 5)
    assert sizes(later).count(64) <= 1


def test_plan_does_not_depend_on_the_unit_of_a_crash() -> None:
    """Costs in a plan are relative to an epoch of the default, so that what a crash cost in joules does not matter."""
    waves = []
    for cost in (1e-3, 1e3):
        job = kg_job(max_epochs=100)
        trials = [job.dispatch(32) for _ in range(4)]
        job.fail(trials[0], ERROR, cost)
        waves.append(sizes(wave(job, 5)[0]))
    assert waves[0] == waves[1]


def test_plan_is_only_for_jobs_that_never_reached_the_target() -> None:
    """A job whose only known batch size was banned has reached the target: its reason does not say otherwise."""
    job = kg_job(max_epochs=100)
    for _ in range(5):
        show(job, 16, 20)
    job.dispatch(32)
    job.search = observe(job.policy, job.spec, job.search, BatchSizeBanned(job.spec, 16))
    assert not choice_of(job).reason.startswith("no trial has reached the target yet")


def test_plan_ends_with_the_last_of_the_default() -> None:
    """Once as many first trials have missed as are still running, the batch sizes take turns."""
    job = kg_job(max_epochs=30)
    trials = [job.dispatch(32) for _ in range(4)]
    for trial in trials[:2]:
        assert "of batch size 32 " in choice_of(job).reason
        job.run(trial, None, 100.0)
    assert "no available batch size has reached the target yet" in choice_of(job).reason


def test_without_plans_the_wave_spreads() -> None:
    """Without plans each first launch has another batch size, the nearest to the default first."""
    job = kg_job(max_epochs=100)
    job.policy = KnowledgeGradient(Constants(waves=False))
    assert sizes(wave(job, 5)[0]) == [32, 16, 64, 8, 128]


def told(*epochs: int, best: int = 128) -> Prior:
    """A prior job with four trials of each batch size."""
    return Prior(best, {size: Moments(4, math.log(each), 0.01) for size, each in zip(SIZES, epochs, strict=True)}, {})


def test_first_wave_with_a_prior() -> None:
    """With a prior job the first wave is planned around its best batch size, by what it says about the others."""
    fields: dict[str, Any] = {"max_epochs": 200}
    job = kg_job(**fields)
    job.search = job.policy.register(job.spec, [told(60, 40, 30, 20, 10)])
    trials, choices = wave(job)
    assert trials[0].batch_size == 128
    assert choices[0].reason == "the best of the prior jobs is tried first"
    assert set(sizes(trials)) <= {64, 128}
    assert "1 trial of batch size 128 is running" in choices[1].reason


def test_later_waves_use_what_is_known() -> None:
    """From the second wave on most launches have a batch size that is nearly as cheap as the best, then all do."""
    job = kg_job(max_epochs=100)
    for _ in range(4):
        trials, _ = wave(job)
        end(job, trials)
    assert set(sizes(trials)) == {32}


@pytest.mark.parametrize("default", [8, 512])
def test_waves_lead_away_from_a_default_at_the_end(default: int) -> None:
    """Wherever the default is, the fourth wave has the cheapest batch size."""
    job = kg_job(batch_sizes=OCTAVES, default_batch_size=default, max_epochs=100)
    for _ in range(4):
        trials, _ = wave(job)
        end(job, trials)
    assert Counter(sizes(trials)).most_common(1)[0][0] == 32


def test_running_trials_leave_few_insights() -> None:
    """After a first result, launches at the same time do not all explore."""
    job = exploring_job()
    trials, _ = wave(job)
    assert 0 < sizes(trials).count(32) < 8


def test_wave_of_a_settled_job() -> None:
    """Where no insight is worth a trial, all launches at the same time have the best batch size."""
    job = kg_job()
    run_all(job, 20)
    assert sizes(wave(job)[0]) == [32] * 8
    assert next_size(job) == 32


def test_one_batch_size_has_no_plan() -> None:
    """With one batch size every launch of a wave has it."""
    trials, _ = wave(kg_job(batch_sizes=(32,)))
    assert set(sizes(trials)) == {32}
