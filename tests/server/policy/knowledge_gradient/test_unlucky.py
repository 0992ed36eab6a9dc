"""Trials that take far more or far fewer epochs than others of their batch size, or miss the target, by bad luck.

Each world has one batch size that is much cheaper than the default, and the first trials of some batch sizes there are
unusual.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from wattwise_server.domain import Moments, Trial
from wattwise_server.policy.knowledge_gradient import Constants, KnowledgeGradient
from wattwise_server.policy.knowledge_gradient.belief import belief
from wattwise_server.policy.knowledge_gradient.evidence import KEPT, Evidence
from wattwise_server.policy.knowledge_gradient.model import model
from wattwise_server.policy.knowledge_gradient.unusual import Rates

from tests.server.policy.knowledge_gradient.jobs import (
    World,
    belief_of,
    bound,
    choice_of,
    kg_job,
    next_size,
    show,
    sizes,
    state_of,
)
from tests.server.policy.simulated import SimulatedJob

OCTAVES = (8, 16, 32, 64, 128, 256, 512)
LATE, LUCKY = 3.0, 0.1
NEVER = None

USUAL, FRAGILE = Constants(), Constants(unusual=1e-9)
"""With the second, every trial is taken at its word."""


def faster(size: int) -> tuple[int, float]:
    """Larger batches need as many epochs, each of which costs less: 512 costs a third of 32."""
    return 10, 100 * (1 + 64 / size)


def curved(size: int) -> tuple[int, float]:
    """128 and 256 cost the same, half of what 32 does."""
    return round(20 * (1 + size / 256)), 100 * (1 + 128 / size)


def slower(size: int) -> tuple[int, float]:
    """Smaller batches need fewer epochs: 8 costs half of what 32 does."""
    return round(5 + 40 * size / 32), 100 * (1 + 4 / size)


def steep(size: int) -> tuple[int, float]:
    """512 costs two thirds of what 256 does."""
    return 12, 100 * (1 + 512 / size)


def small(size: int) -> tuple[int, float]:
    """8 costs half of what 16 does."""
    return round(3 + 40 * size / 16), 100


class Case(NamedTuple):
    """A world, what the epochs of the first trials are multiplied with, and the batch sizes that win in the end."""

    world: World
    first: Mapping[int, Sequence[float | None]]
    best: set[int]


def run(case: Case, constants: Constants = USUAL, count: int = 40) -> tuple[SimulatedJob, list[Trial]]:
    """Launches one after another."""
    job = kg_job(batch_sizes=OCTAVES, max_epochs=150)
    job.policy = KnowledgeGradient(constants)
    left = {size: list(factors) for size, factors in case.first.items()}
    trials = []
    for _ in range(count):
        trial = job.next()
        epochs, cost = case.world(trial.batch_size)
        if left.get(trial.batch_size):
            factor = left[trial.batch_size].pop(0)
            epochs = max(1, round((epochs or 0) * factor)) if factor else None
        trials.append(job.run(trial, epochs, cost))
    return job, trials


CASES = {
    "late above the default": Case(faster, {64: [LATE]}, {256, 512}),
    "late below the default": Case(slower, {16: [LATE]}, {8}),
    "late default": Case(curved, {32: [4.0]}, {128, 256}),
    "two late ones in a row above": Case(faster, {64: [LATE], 128: [LATE]}, {256, 512}),
    "two late ones in a row below": Case(slower, {16: [LATE], 8: [LATE]}, {8}),
    "late on either side": Case(small, {64: [2.5], 16: [2.5]}, {8}),
    "miss above the default": Case(curved, {128: [NEVER]}, {128, 256}),
    "miss of the cheapest, the largest": Case(steep, {512: [NEVER]}, {512}),
    "miss of the cheapest, the smallest": Case(small, {8: [NEVER]}, {8}),
}
"""In all of these the search stays far from the best if every trial is taken at its word."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_unusual_first_trials_do_not_freeze_the_search(case: Case) -> None:
    """The cheapest batch size is used in the end, whatever the first trials were."""
    _, trials = run(case)
    assert set(sizes(trials[-10:])) <= case.best


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_trials_taken_at_their_word_freeze_it(case: Case) -> None:
    """The same worlds are lost if no trial may be unusual, so that these tests would notice."""
    _, trials = run(case, FRAGILE)
    assert not set(sizes(trials[-10:])) & case.best


OTHERS = {
    "miss of a neighbour": Case(faster, {64: [NEVER]}, {256, 512}),
    "two misses of a neighbour": Case(faster, {64: [NEVER, NEVER]}, {256, 512}),
    "misses of both neighbours": Case(faster, {16: [NEVER], 64: [NEVER]}, {256, 512}),
    "miss of a neighbour below": Case(slower, {16: [NEVER]}, {8}),
    "miss of the default": Case(slower, {32: [NEVER]}, {8}),
    "lucky twice at the default": Case(faster, {32: [LUCKY, LUCKY]}, {256, 512}),
    "lucky default": Case(curved, {32: [LUCKY]}, {128, 256}),
    "lucky neighbour above": Case(curved, {64: [0.2]}, {128, 256}),
    "lucky neighbour below": Case(slower, {16: [0.2]}, {8}),
    "nothing unusual": Case(slower, {}, {8}),
}
"""Of these the laws alone make good."""


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_other_unusual_first_trials(case: Case) -> None:
    """Nor do these keep the launches from the cheapest batch size."""
    _, trials = run(case)
    assert set(sizes(trials[-10:])) <= case.best


def test_a_batch_size_that_always_misses_is_left() -> None:
    """A lucky trial of a neighbour does not make launches try a batch size again and again that always misses."""
    _, trials = run(Case(slower, {64: [0.15]}, {8}), count=60)
    assert set(sizes(trials[-20:])) == {8}


@pytest.mark.parametrize("edge", [16, 64])
def test_misses_beyond_an_edge_are_few(edge: int) -> None:
    """Where all batch sizes beyond a neighbour of the default miss the target, few launches find that out."""

    def world(size: int) -> tuple[int | None, float]:
        beyond = size >= edge if edge > 32 else size <= edge
        return (None if beyond else 10), 100 * (1 + (64 / size if edge > 32 else size / 64))

    job = kg_job(batch_sizes=OCTAVES, max_epochs=150)
    trials = [job.run(trial, *world(trial.batch_size)) for trial in (job.next() for _ in range(80))]
    missed = Counter(trial.batch_size for trial in trials if not trial.target_reached)
    assert missed.total() <= 8
    assert missed[edge] <= 4
    assert all(trial.target_reached for trial in trials[-20:])


def test_one_late_trial_moves_the_belief_little() -> None:
    """After four trials of ten epochs one of thirty is unusual, and as one of twelve changes little; five are not."""

    def expected(late: int, count: int) -> float:
        job = kg_job()
        for _ in range(4):
            show(job, 32, 10)
        for _ in range(count):
            show(job, 32, late)
        return -belief_of(job, 32).mean

    assert expected(30, 1) < 1.08 * expected(10, 1)
    assert expected(30, 6) > 1.5 * expected(10, 1)


def test_an_unusual_trial_widens_no_noise() -> None:
    """One trial of three times the usual epochs leaves the deviation between trials nearly as it was."""
    deviations = []
    for last in (10, 30):
        job = kg_job()
        for epochs in (10, 11, 9, 10, 11, 9, 10, last):
            show(job, 32, epochs)
        belief = belief_of(job, 32)
        deviations.append(1 / math.sqrt(belief.reward_precision) / -belief.mean)
    assert deviations[1] < 1.5 * deviations[0]


def test_bad_luck_makes_models_more_expensive() -> None:
    """A batch size that misses every fourth time costs more for each model, and its neighbours a little more."""
    jobs = [kg_job(max_epochs=100), kg_job(max_epochs=100)]
    for job, missing in zip(jobs, (False, True), strict=True):
        for turn in range(20):
            show(job, 32, 100 if missing and turn % 4 == 3 else 10, reached=not missing or turn % 4 != 3)
            show(job, 64, 10)
    for size, least in ((32, 1.15), (64, 1.01)):
        usual, more = (belief_of(job, size).expected_cost or 0 for job in jobs)
        assert more > least * usual


def in_a_row(*epochs: int | None) -> SimulatedJob:
    """A job that settled on 64, after some trials of it; None: it missed the target after 50 epochs."""
    job = kg_job(max_epochs=50)
    for _ in range(6):
        for size, usual in {8: 30, 16: 18, 32: 12, 64: 8, 128: 12}.items():
            show(job, size, usual)
    for each in epochs:
        show(job, 64, each or 50, reached=each is not None)
    return job


def test_one_miss_does_not_make_the_job_doubtful() -> None:
    """After one miss of the best known batch size the job is in no doubt, and soon has that batch size again."""
    job = in_a_row(None)
    assert "hardly bad luck" not in choice_of(job).reason
    trials = [job.run(trial, 8 if trial.batch_size == 64 else 12, 100.0) for trial in (job.next() for _ in range(6))]
    assert sizes(trials[-4:]) == [64] * 4


def test_one_miss_after_many_good_launches() -> None:
    """After 150 good launches, one miss makes a model of the best batch size less than a third more expensive."""
    job = kg_job(max_epochs=50)
    for _ in range(150):
        job.run(job.dispatch(64), 8, 100.0)
    before = belief_of(job, 64).expected_cost or 0
    job.run(job.dispatch(64), None, 100.0)
    assert before < (belief_of(job, 64).expected_cost or 0) < 1.3 * before
    assert "hardly bad luck" not in choice_of(job).reason
    assert next_size(job) == 64


def test_misses_that_are_no_longer_kept_are_like_those_that_are() -> None:
    """Slow misses do not count as unusual trials once they are no longer kept: their rate does not jump."""
    usual = Moments(100, math.log(20.5), 1.0)
    kept = Evidence((20, 22, 19, 21) * 4, (21,) * KEPT, earlier=usual)
    before, *later = (rates_of([kept._replace(earlier_missed=more)]).unusual for more in (0, 1, 4))
    assert before < later[0] < 1.1 * before
    assert before < later[1] < 1.3 * before


def test_misses_of_a_batch_size_that_always_misses_leave_others_usual() -> None:
    """How often trials are unusual is not estimated from misses of a batch size that always misses."""
    reached = Evidence((20, 21, 19, 22, 90, 20))
    for count in (5, KEPT, KEPT + 20):
        missing = Evidence((), (60,) * min(count, KEPT), earlier_missed=max(0, count - KEPT))
        assert rates_of([reached, missing]).unusual >= rates_of([reached, Evidence()]).unusual


def rates_of(known: Sequence[Evidence]) -> Rates:
    """How the trials of a job differ, at 32 and larger batch sizes."""
    return belief(model((32, 64, 128), USUAL), (*known, *[Evidence()] * (3 - len(known))), ()).rates


def test_misses_in_a_row_lead_to_the_default() -> None:
    """After misses that are hardly bad luck the default is tried, then its neighbours, until one delivers."""
    job = in_a_row(None, None, None)
    tried = []
    for _ in range(3):
        assert "hardly bad luck" in choice_of(job).reason
        trial = job.next()
        tried.append(trial.batch_size)
        job.run(trial, None, 100.0)
    assert tried == [32, 16, 8]
    show(job, 16, 10)
    assert "hardly bad luck" not in choice_of(job).reason
    assert state_of(job)["luck"] == 1.0


def test_running_trials_count_as_tries_while_the_job_is_in_doubt() -> None:
    """Launches at the same time are spread over the default and its neighbours."""
    job = in_a_row(None, None, None)
    assert len(set(sizes([job.next() for _ in range(4)]))) == 4


def test_repeating_the_best_batch_size_ends() -> None:
    """A best known batch size that has begun to miss the target always is left after a few launches."""
    job = in_a_row()
    world: dict[int, int | None] = {8: 30, 16: 18, 32: 12, 64: None, 128: 14}
    trials = [job.run(trial, world[trial.batch_size], 100.0) for trial in (job.next() for _ in range(30))]
    assert trials[0].batch_size == 64
    assert sizes(trials).count(64) <= 6
    assert all(trial.target_reached for trial in trials[-10:])
    assert (belief_of(job, 64).expected_cost or 0) > 1.5 * (belief_of(job, 32).expected_cost or 0)


def test_a_success_ends_the_row() -> None:
    """Misses with successes in between are bad luck: the batch size stays the best known."""
    job = in_a_row(None, 8, None, 8, None, 8)
    assert next_size(job) == 64
    assert (bound(job, 64) or 0) < 50 * 100.0


def test_ordinary_misses_are_no_doubt() -> None:
    """Where the last epoch is as near as the target, misses in a row are expected, and launches go on as before."""
    job = kg_job(max_epochs=10)
    for turn in range(12):
        show(job, 64, 10 if turn % 2 else 9)
        show(job, 32, 10)
    for _ in range(2):
        show(job, 64, 10, reached=False)
    assert "hardly bad luck" not in choice_of(job).reason
