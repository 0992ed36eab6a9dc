"""What trials say about the cost of batch sizes."""

from __future__ import annotations

import math

import pytest
from wattwise_server.domain import (
    Measurement,
    Trial,
    TrialStatus,
    TrialType,
)
from wattwise_server.policy.base import ArmBelief, Prior
from wattwise_server.policy.history import prior_of

from tests.server.policy.knowledge_gradient.jobs import belief_of, kg_job, show
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
