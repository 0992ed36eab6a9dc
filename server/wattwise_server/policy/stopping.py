"""The stopping rule: the cost, the bound and the verdict of a trial (NSDI 2023, section 4.4)."""

from __future__ import annotations

from typing import NamedTuple

from wattwise.rules import EndReason, ResolvedJob, reaches_target

from wattwise_server.cost import cost
from wattwise_server.domain import Job, Measurement, Trial, TrialOrigin
from wattwise_server.policy.registry import POLICIES


class Verdict(NamedTuple):
    """The judgement of a measurement. `end_reason` is None when training continues."""

    cost: float
    cost_bound: float | None
    converged: bool
    target_reached: bool
    end_reason: EndReason | None


def bound_of(job: Job, trial: Trial) -> float | None:
    """Returns the cost in joules at which a running trial is stopped; None if it has no bound.

    One that a person requested has none: the launch is to deliver, or to compare with.
    """
    if trial.origin is TrialOrigin.REQUESTED:
        return None
    return POLICIES[job.spec.policy].bound(job.spec, job.search, trial.batch_size)


def has_best_known(job: Job) -> bool:
    """Returns whether a batch size has reached the target; then a trial of the search without a bound has the best."""
    return job.search.min_cost is not None


def judge(spec: ResolvedJob, bound: float | None, measurement: Measurement) -> Verdict:
    """Compares a measurement with the target, the cost bound and the last epoch, in that order."""
    counted = measurement.counted
    price = cost(spec, counted.energy_joules, counted.time_seconds)
    affordable = bound is None or price <= bound
    reached = reaches_target(measurement.metric, spec.target_metric, higher_is_better=spec.higher_is_better)
    if reached and affordable:
        end = EndReason.TARGET_REACHED
    elif not affordable:
        end = EndReason.COST_BOUND
    elif measurement.epoch >= spec.max_epochs:
        end = EndReason.MAX_EPOCHS
    else:
        end = None
    return Verdict(price, bound, reached and affordable, reached, end)


def stopped_early(spec: ResolvedJob, bound: float | None, measurement: Measurement) -> Verdict:
    """Judges the last measurement of a trial whose trainer stopped before a decision: it is a miss."""
    return judge(spec, bound, measurement)._replace(converged=False, end_reason=EndReason.STOPPED_EARLY)


def with_current_cost(job: Job, trial: Trial) -> Trial:
    """Returns a trial; a running one with its current cost and bound."""
    if not trial.running:
        return trial
    bound, interval = bound_of(job, trial), job.spec.heartbeat_interval
    trial = trial._replace(cost_bound=bound, best_known=has_best_known(job), heartbeat_interval=interval)
    if trial.last is None:
        return trial
    verdict = judge(job.spec, bound, trial.last)
    return trial._replace(cost=verdict.cost, target_reached=verdict.target_reached)
