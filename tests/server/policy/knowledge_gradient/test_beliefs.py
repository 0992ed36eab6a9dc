"""What trials say about the cost of batch sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from wattwise.rules import TrialStatus
from wattwise_server.domain import Measurement, Trial, TrialOrigin
from wattwise_server.policy.base import ArmBelief, Prior
from wattwise_server.policy.history import prior_of
from wattwise_server.policy.knowledge_gradient import Constants
from wattwise_server.policy.knowledge_gradient.edges import Edges, edges

from tests.server.policy.knowledge_gradient.jobs import SIZES, belief_of, beliefs, kg_job, show
from tests.server.policy.simulated import NOW


def test_misses_count_for_the_others_that_reach_the_target() -> None:
    """Misses without a reason at one batch size make models of the others more expensive, but hardly their trials."""
    jobs = [kg_job(), kg_job()]
    for job, missed in zip(jobs, (0, 3), strict=True):
        for _ in range(4):
            show(job, 32, 10)
            show(job, 16, 10)
        for _ in range(missed):
            show(job, 16, 40, reached=False)
            show(job, 16, 10)
    usual, more = ((belief_of(job, 32).expected_cost or 0) / -belief_of(job, 32).mean for job in jobs)
    assert 1 < usual < more
    trial, later = (belief_of(job, 32).mean for job in jobs)
    assert later == pytest.approx(trial, rel=0.03)


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


def test_what_a_job_tells_another_one() -> None:
    """Decided trials tell epochs or misses by batch size, failed ones nothing; the best is one that reached."""

    def trial(size: int, epoch: int, *, reached: bool = True, place: int | None = 1) -> Trial:
        last = Measurement(epoch, 1.0, 1.0, 0.5, NOW)
        done = Trial(
            "j",
            1,
            size,
            TrialOrigin.SEARCH,
            None,
            NOW,
            "launch 1",
            last=last,
            target_reached=reached,
            observation=place,
        )
        return done._replace(status=TrialStatus.DECIDED)

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


def test_a_trial_says_much_about_its_neighbours() -> None:
    """After trials of one batch size the doubt about another one is the greater the farther away it is."""
    job = kg_job(batch_sizes=(8, 16, 32, 64, 128))
    for _ in range(4):
        show(job, 32, 10)
    doubts = {belief.batch_size: (belief.deviation or 0) / (belief.expected_cost or 1) for belief in beliefs(job)}
    assert doubts[32] < doubts[16] < doubts[8]
    assert doubts[32] < doubts[64] < doubts[128]


def test_a_noisy_job_is_in_doubt_for_longer() -> None:
    """The more the trials of a batch size differ, the less certain its cost is, and the more those of others differ."""
    calm, noisy = kg_job(), kg_job()
    for turn in range(8):
        show(calm, 32, 20)
        show(noisy, 32, 28 if turn % 2 else 14)
    for size in (32, 64):
        assert belief_of(noisy, size).reward_precision < 0.5 * belief_of(calm, size).reward_precision
    assert belief_of(noisy, 32).precision < 0.5 * belief_of(calm, 32).precision


def edges_after(reached: set[int], missed: dict[int, int]) -> Edges:
    """The edges at the usual batch sizes after some of them reached the target, and others missed it so many times."""
    logs = np.array([missed.get(size, 0) * math.log(0.05) for size in SIZES])
    return edges(np.log2(SIZES), np.array([float(size in reached) for size in SIZES]), logs, Constants())


def test_no_edge_lies_between_what_has_reached_the_target() -> None:
    """Beyond the batch sizes that have reached the target, the probability that all trials miss never falls."""
    found = edges_after({16, 32}, {64: 1})
    assert list(found.always[1:3]) == [0, 0]
    assert found.above[2] == 0 < found.above[3] <= found.above[4]
    assert 0 < found.below[0] < found.above[3]
    assert found.below[1] == 0


def test_an_edge_comes_at_a_constant_rate_per_octave() -> None:
    """Before any miss, the probability that no edge lies in between falls exponentially with the distance."""
    found, rate = edges_after({16}, {}), Constants().edge
    assert list(found.above) == pytest.approx([0, 0, *(1 - math.exp(-rate * octaves) for octaves in (1, 2, 3))])
    assert list(found.below) == pytest.approx([1 - math.exp(-rate), 0, 0, 0, 0])


def test_misses_make_an_edge_likely() -> None:
    """Each miss makes it more likely that a batch size always misses, and the ones beyond it as well."""
    always = [edges_after({32}, {64: count}).always for count in range(4)]
    assert all(less[3] < more[3] and less[4] < more[4] for less, more in itertools.pairwise(always))
    assert always[0][3] < 0.5 < always[2][3]
    assert always[2][3] > 0.9
    # One far away says little about those in between.
    far = edges_after({32}, {128: 3}).always
    assert always[0][3] < far[3] < 0.7
    assert far[4] > 0.9


def test_a_success_beyond_takes_the_edge_away() -> None:
    """A batch size that missed below one that reached the target has no edge; it may only miss by itself."""
    before, after = edges_after({32}, {64: 2}), edges_after({32, 128}, {64: 2})
    assert after.above[3] == 0
    assert after.always[3] < before.always[3]
    assert 0 < after.always[3] == after.apart[3]


def test_what_a_success_would_say_about_edges() -> None:
    """Once a batch size has reached the target, it does not always miss, and others beyond it do so less likely."""
    found = edges_after({32}, {})
    always = found.always_after(np.array([3, 4]))
    assert (always[0, 3], always[1, 4], always[0, 2]) == (0, 0, 0)
    assert always[0, 4] < found.always[4]
    assert always[1, 3] < found.always[3]
    assert always[0] == pytest.approx(edges_after({32, 64}, {}).always)


def test_more_misses_never_promise_fewer_epochs() -> None:
    """Where a batch size misses again after as many epochs, a trial that reaches the target needs no fewer."""
    job = kg_job(batch_sizes=(8, 16, 32, 64, 128, 256, 512), max_epochs=150)
    for size, epochs in ((32, 45), (64, 13), (16, 25), *[(8, 15)] * 20):
        show(job, size, epochs)
    show(job, 64, 42, reached=False)
    expected = []
    for _ in range(12):
        show(job, 128, 42, reached=False)
        expected.append(-belief_of(job, 128).mean)
    assert all(more > 0.97 * less for less, more in itertools.pairwise(expected))
