"""The stopping rule, and the decisions that follow from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from wattwise.rules import STATUS_AFTER, EndReason, GpuGroup, ResolvedJob, TrialStatus
from wattwise_server.domain import ENDS, Decision, Job, Measurement, Trial, TrialOrigin
from wattwise_server.policy.decisions import decision, decision_for, explanation
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import bound_of, judge, with_current_cost

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SPEC = ResolvedJob(
    "job",
    (8, 16),
    8,
    GpuGroup(gpu_model="V100", count=1, max_power_watts_per_gpu=300.0),
    target_metric=0.9,
    higher_is_better=True,
)


def a_trial(**fields: Any) -> Trial:
    """A running trial."""
    return Trial("job", 3, 16, TrialOrigin.SEARCH, None, NOW, "launch 3")._replace(**fields)


def a_job(**fields: Any) -> Job:
    """A job of gts without trials, whose cost is its energy."""
    spec = replace(SPEC, eta_knob=1.0, policy="gts", **fields)
    return Job(spec, POLICIES["gts"].register(spec, ()), NOW)


def answer(spec: ResolvedJob, bound: float | None, measurement: Measurement) -> Decision:
    """The decision on a trial with this newest measurement."""
    cost, _, converged, target_reached, end_reason = judge(spec, bound, measurement)
    trial = a_trial(
        last=measurement,
        cost=cost,
        cost_bound=bound,
        converged=converged,
        target_reached=target_reached,
        end_reason=end_reason,
        status=TrialStatus.DECIDED if end_reason else TrialStatus.RUNNING,
    )
    return decision(spec, trial)


def message_at(metric: float, bound: float | None = None) -> str:
    """The message of the decision on a first epoch with this metric."""
    return answer(SPEC, bound, Measurement(1, 1.0, 1.0, metric, NOW)).message


def test_metric_just_below_the_target_is_not_shown_as_the_target() -> None:
    """A metric that rounds to the target is printed with all its digits; any other with six."""
    assert "metric 0.8999999999999999, target 0.9 " in message_at(0.8999999999999999)
    assert "metric 0.8999999, target 0.9 " in message_at(0.8999999)
    assert "metric 0.123457, target 0.9 in epoch 1 of 100;" in message_at(0.123456789)


def test_target_over_the_bound_is_said_to_be_reached() -> None:
    """A trial over its bound says first whether its model is good."""
    assert message_at(0.95, bound=1.0).startswith("target reached, but cost bound exceeded: cost ")
    assert message_at(0.85, bound=1.0).startswith("cost bound exceeded: cost ")


@pytest.mark.parametrize(
    ("metric", "epoch", "bound", "end"),
    [
        (0.9, 1, None, EndReason.TARGET_REACHED),
        (0.9, 1, 1.0, EndReason.TARGET_REACHED),
        (0.9, 1, 0.999, EndReason.COST_BOUND),
        (0.8, 1, 1.0, None),
        (0.8, 1, 0.999, EndReason.COST_BOUND),
        (0.8, 9, None, None),
        (0.8, 10, None, EndReason.MAX_EPOCHS),
        (0.9, 10, 1.0, EndReason.TARGET_REACHED),
        (0.8, 10, 0.999, EndReason.COST_BOUND),
        (float("nan"), 1, None, None),
        (float("nan"), 10, None, EndReason.MAX_EPOCHS),
    ],
)
@pytest.mark.parametrize("higher", [True, False])
def test_order_of_the_rule(metric: float, epoch: int, bound: float | None, end: EndReason | None, higher: bool) -> None:
    """The target at a cost up to the bound, then the bound, then the last epoch; the limits themselves are inside."""
    sign = 1 if higher else -1
    spec = replace(SPEC, eta_knob=1.0, max_epochs=10, target_metric=0.9 * sign, higher_is_better=higher)
    measurement = Measurement(epoch, 1.0, 1.0, metric * sign, NOW)
    verdict = judge(spec, bound, measurement)
    reached = metric == 0.9
    assert verdict == (1.0, bound, reached and end is EndReason.TARGET_REACHED, reached, end)
    found = answer(spec, bound, measurement)
    assert found[:3] == (end is not None, verdict.converged, reached)
    assert found[4:8] == (end, epoch, 1.0, bound)


def test_trial_has_the_cost_of_its_newest_measurement() -> None:
    """A trial without a measurement has no cost, but a bound; one with, has the cost and whether it reached."""
    measurement = Measurement(2, 1.0, 4.0, 0.95, NOW)
    job = a_job()
    known = replace(job, search=replace(job.search, min_cost=3.5, min_cost_batch_size=8))
    new = with_current_cost(known, a_trial())
    assert (new.cost, new.cost_bound, new.best_known, new.target_reached) == (None, 7.0, True, False)
    old = with_current_cost(job, a_trial(last=measurement))
    assert (old.cost, old.cost_bound, old.best_known, old.target_reached) == (4.0, None, False, True)
    assert decision_for(known, a_trial())[:3] == (False, False, False)
    assert decision_for(known, a_trial())[4:8] == (None, 0, None, 7.0)
    assert bound_of(known, a_trial(origin=TrialOrigin.REQUESTED)) is None
    ended = a_trial(status=TrialStatus.DECIDED, cost=1.0)
    assert with_current_cost(known, ended) is ended


def test_known_verdict_is_not_computed_again() -> None:
    """A decision with the verdict of a report is the one that follows from the trial."""
    job, trial = a_job(), a_trial(last=Measurement(2, 1.0, 4.0, 0.5, NOW))
    job = replace(job, search=replace(job.search, min_cost=3.5, min_cost_batch_size=8))
    verdict = judge(job.spec, bound_of(job, trial), Measurement(2, 1.0, 4.0, 0.5, NOW))
    assert decision_for(job, trial, verdict) == decision_for(job, trial)
    assert decision_for(job, trial, verdict._replace(cost=5.0)).cost == 5.0


def test_decision_of_an_ended_trial_does_not_change() -> None:
    """A trial that was decided says so with the numbers of then; one that failed stops with its cost."""
    ended = {"cost": 4.0, "cost_bound": 7.0, "target_reached": True}
    measurement = Measurement(2, 1.0, 1.0, 0.95, NOW)
    decided = a_trial(
        status=TrialStatus.DECIDED, end_reason=EndReason.TARGET_REACHED, converged=True, last=measurement, **ended
    )
    assert decision(SPEC, decided)[:3] == (True, True, True)
    assert decision(SPEC, decided)[4:9] == (EndReason.TARGET_REACHED, 2, 4.0, 7.0, None)
    failed = a_trial(status=TrialStatus.FAILED, end_reason=EndReason.ERROR, last=measurement, **ended)
    assert decision(SPEC, failed)[:3] == (True, False, True)
    assert decision(SPEC, failed)[4:9] == (EndReason.ERROR, 2, 4.0, 7.0, None)
    for reason, resumes in ((EndReason.PREEMPTED, True), (EndReason.ERROR, False)):
        message = decision(SPEC, failed._replace(status=STATUS_AFTER[reason], end_reason=reason)).message
        assert message.startswith(f"stop: trial 3 of job 'job' {ENDS[reason]}")
        asked = "ask for a new batch size"
        assert message.endswith(f"; {asked}, or resume it from a checkpoint" if resumes else f"; {asked}")


def test_nobody_has_ended_a_lost_trial() -> None:
    """A lost trial says what may have happened, to its trainer and in the history, which has no advice."""
    lost = a_trial(status=TrialStatus.INTERRUPTED, end_reason=EndReason.LOST)
    why = "its process ended without saying why, or its lease expired without a report or a heartbeat"
    assert explanation(SPEC, lost) == f"it was lost: {why}"
    assert decision(SPEC, lost).message.startswith(f"stop: trial 3 of job 'job' was lost: {why}; ask for a new batch")


@pytest.mark.parametrize(
    ("fields", "best_known", "why"),
    [
        ({"origin": TrialOrigin.REQUESTED}, True, "set by a person"),
        ({"origin": TrialOrigin.IMPORTED}, True, "imported"),
        ({}, True, "16 is the best known"),
    ],
)
def test_message_says_why_there_is_no_bound(fields: dict[str, Any], best_known: bool, why: str) -> None:
    """The reason belongs to the trial; before anything reached the target there is none, only no bound yet."""
    trial = a_trial(last=Measurement(1, 1.0, 1.0, 0.1, NOW), cost=1.0, best_known=best_known, **fields)
    message = decision(SPEC, trial).message
    assert "no bound: " in message
    assert why in message.partition("no bound: ")[2]
    unknown = trial._replace(origin=TrialOrigin.SEARCH, best_known=False)
    assert "no cost bound yet" in decision(SPEC, unknown).message
    assert "bound 5 kJ" in decision(SPEC, trial._replace(cost_bound=5000.0)).message
    assert decision(replace(SPEC, beta_knob=None), trial).message.endswith("no cost bound")
