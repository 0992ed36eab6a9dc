"""Which batch size is next, and the reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from wattwise.rules import EndReason
from wattwise_server.cost import with_unit
from wattwise_server.domain import Moments
from wattwise_server.policy.base import Choice, Prior
from wattwise_server.policy.failures import choosable
from wattwise_server.policy.knowledge_gradient import Constants, KnowledgeGradient

from tests.server.policy.knowledge_gradient.jobs import (
    ERROR,
    POLICY,
    SIZES,
    belief_of,
    bound,
    choice_of,
    course,
    exploring_job,
    kg_job,
    next_size,
    run_all,
    show,
)


@pytest.mark.parametrize(("default", "epochs", "other"), [(32, 5, 512), (512, 500, 32)])
def test_distance_does_not_matter_without_one_in_between(default: int, epochs: int, other: int) -> None:
    """However far the next smaller or larger batch size is, a trial may go there."""
    job = kg_job(batch_sizes=(32, 512), default_batch_size=default, max_epochs=1000)
    job.run(job.next(), epochs)
    assert next_size(job) == other


def test_trial_counts_for_what_it_tells_about_the_next_ones() -> None:
    """After many epochs at the default, a smaller batch size is tried first: there may be cheaper ones further down."""
    job = kg_job(batch_sizes=tuple(8 * 2**octave for octave in range(12)), default_batch_size=1024, max_epochs=100)
    job.run(job.next(), 50)
    assert next_size(job) == 512


def test_vague_predictions_do_not_devalue_trials() -> None:
    """Where the cheapest batch sizes are far from the default, trials lead there; an expensive one is not repeated."""
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
    ("default", "epochs", "cheap", "expensive"),
    [(64, 44, 128, 192), (96, 17, 192, 256), (256, 17, 128, 96)],
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
    job.policy = KnowledgeGradient(Constants(soon=1e9))
    assert next_size(job) == expensive


def test_running_trials_tell_enough() -> None:
    """What running trials will tell about the epochs or about the cost of one, a further trial does not find out."""
    job = kg_job(batch_sizes=(16, 32, 64), default_batch_size=64)
    job.run(job.next(), 20, 125.0)
    for _ in range(2):
        job.dispatch(32)
    assert next_size(job) != 32
    # Here a prior job tells the epochs.
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16)
    epochs = {16: Moments(4, math.log(40)), 32: Moments(4, math.log(60))}
    job.search = POLICY.register(job.spec, [Prior(None, epochs, {})])
    job.run(job.next(), 40, 200.0)
    assert next_size(job) == 32
    job.dispatch(32)
    assert next_size(job) != 32


def test_insights_are_used_the_longer_the_older_a_job() -> None:
    """After 300 trials a result is taken to be of use for 300 deliveries more."""
    job = kg_job(batch_sizes=(32, 64))
    for _ in range(300):
        show(job, 32, 10)
    choice = job.choose()
    assert isinstance(choice, Choice)
    found = re.search(r"over the next (\d+) deliveries", choice.reason)
    assert found
    assert int(found[1]) >= 300 + Constants().horizon


def test_near_miss_at_the_default() -> None:
    """A default that misses the target in its last epoch rules out nothing: a neighbour delivers at the next launch."""
    job = kg_job(max_epochs=10)
    missed = job.run(job.next(), None, 100.0)
    assert (missed.batch_size, missed.end_reason) == (32, EndReason.MAX_EPOCHS)
    trial = job.next()
    assert trial.batch_size in (16, 64)
    assert job.run(trial, 9, 110.0).converged
    assert {arm.batch_size for arm in choosable(job.search, 3)} == set(SIZES)


def test_nothing_converges() -> None:
    """While nothing reaches the target, every batch size has its turn before one has a second, and none is dropped."""
    job = kg_job(max_epochs=3)
    chosen = [job.run(job.next(), None, 100.0).batch_size for _ in range(15)]
    assert [Counter(chosen[start : start + 5]) for start in (0, 5, 10)] == [Counter(SIZES)] * 3


@pytest.mark.thorough
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


def test_running_trials_leave_the_belief() -> None:
    """Running trials change the choice, but neither the belief nor the bounds nor the numbers in the reason."""
    job = exploring_job()
    known, bounds = list(POLICY.belief(job.spec, job.search)), [bound(job, size) for size in SIZES]
    chosen, costs = list[int](), dict[int, str]()
    for _ in range(4):
        choice = job.choose()
        assert isinstance(choice, Choice)
        chosen.append(choice.batch_size)
        if found := re.search(r"expected to cost (.*?), ", choice.reason):
            assert costs.setdefault(choice.batch_size, found[1]) == found[1]
        else:
            belief = belief_of(job, choice.batch_size)
            assert belief.expected_cost is not None
            assert belief.deviation is not None
            assert choice.reason.startswith(f"expected {with_unit(belief.expected_cost, belief.deviation)}")
        job.next()
        assert POLICY.belief(job.spec, job.search) == known
        assert [bound(job, size) for size in SIZES] == bounds
    assert len(set(chosen)) > 1


def test_reason_has_the_numbers() -> None:
    """A trial that pays off says what it costs, how much more than the best known, and what it saves in how long."""
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
        rf"batch size 64 may be better: trying it is expected to cost ({number}) kJ, ({number}) kJ more than training "
        rf"with 32, the best known; its result is expected to save ({number}) kJ over the next (\d+) deliveries"
    )
    found = re.fullmatch(pattern, reasons[0])
    assert found
    cost, more, saves = map(float, found.groups()[:3])
    assert 1 < cost < 4
    assert cost - more == pytest.approx(math.prod(course(32)) / 1000, rel=0.15)
    assert more < saves
    # Of one trial the misfit is that before any trial.
    assert int(found[4]) == pytest.approx(Constants().horizon + Constants().misfit_horizon + 1, abs=5)
    settled = rf"expected {number} ± {number} k?J, the least of those tried; no other batch size is worth a trial"
    assert re.fullmatch(settled, reasons[-1])


@pytest.mark.parametrize(("window", "when"), [(0, "yet"), (9, "in the window")])
def test_reason_before_the_first_success(window: int, when: str) -> None:
    """The reason says what happened to the batch size so far, and where it lies."""
    job = kg_job(max_epochs=3, window_size=window)
    job.run(job.next(), None, 100.0)
    reasons = [job.choose()]
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
        f"no available batch size has reached the target {when};",
        "16 is the nearest to the default",
    )
    assert reasons == [
        Choice(size, f"{nothing} {why}")
        for size, why in (
            (16, f"of the least tried, {near}, 32 (no trial of 16 so far)"),
            (16, f"{near}, 32, and is tried again after a failure (of 16, 1 trial failed)"),
            (32, "of the least tried, 32 is the default (of 32, 1 trial missed the target)"),
            (16, f"{near}, 32, and is tried again after a failure (of 16, 1 trial missed the target, 2 trials failed)"),
        )
    ]


def test_reason_has_no_exponents() -> None:
    """A doubt of hundreds of joules beside an expectation of hundreds is written out."""
    job = kg_job(batch_sizes=(16, 32), default_batch_size=16, max_epochs=400)
    job.run(job.next(), 90, 3.0)
    choice = job.choose()
    assert isinstance(choice, Choice)
    pattern = r"batch size 32 may be better: trying it is expected to cost [1-9]\d\d J, [1-9]\d\d J more than"
    assert re.match(pattern, choice.reason)


def settled_launches(epoch_cost: float = 100.0, count: int = 200, **constants: Any) -> list[Choice]:
    """The choices of a job in which no insight is worth a trial, as it has 32 only for long, and others cost more."""
    job = kg_job(window_size=500, max_epochs=20)
    job.policy = KnowledgeGradient(Constants(windows=0.0, **constants))
    for _ in range(6):
        job.run(job.dispatch(32), 10, epoch_cost)
    choices = []
    for _ in range(count):
        choices.append(choice_of(job))
        trial = job.next()
        job.run(trial, 10 if trial.batch_size == 32 else 15, epoch_cost)
    return choices


@pytest.mark.thorough
def test_an_insurance_is_a_small_share_of_all_launches() -> None:
    """A batch size that the model does not recommend is tried once in a long while, the next one on a side first."""
    others = [choice for choice in settled_launches() if choice.batch_size != 32]
    assert 1 <= len(others) <= 8
    assert all(choice.reason.endswith("; never tried, and affordable beside all that was spent") for choice in others)
    order = [choice.batch_size for choice in others]
    assert len(set(order)) == len(order)
    assert set(order[:2]) == {16, 64}


def test_an_insurance_does_not_depend_on_the_unit_of_costs() -> None:
    """What is affordable is a share."""
    counts = [[choice.batch_size for choice in settled_launches(cost, 60)] for cost in (100.0, 1e-6)]
    assert counts[0] == counts[1]


@pytest.mark.thorough
def test_without_insurance_nothing_else_is_tried() -> None:
    """All of these trials are insurances."""
    assert {choice.batch_size for choice in settled_launches(insurance=0.0)} == {32}


def test_more_insurance_tries_more() -> None:
    """The share that is spent is a constant."""
    few, many = (
        sum(choice.batch_size != 32 for choice in settled_launches(count=60, insurance=share)) for share in (0.02, 0.2)
    )
    assert few < many
