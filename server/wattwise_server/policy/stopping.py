"""The stopping rule: whether a trial continues (NSDI 2023, section 4.4)."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattwise_server.cost import cost, with_unit
from wattwise_server.domain import Decision, EndReason, JobSpec, Measurement, Trial, TrialOrigin


class Verdict(NamedTuple):
    """The judgement of a measurement. `end_reason` is None when training continues."""

    cost: float
    bound: float | None
    converged: bool
    target_reached: bool
    end_reason: EndReason | None


def judge(spec: JobSpec, bound: float | None, measurement: Measurement) -> Verdict:
    """Compares a measurement with the target, the cost bound and the last epoch, in that order."""
    counted = measurement.counted
    price = cost(spec, counted.energy_joules, counted.time_seconds)
    affordable = bound is None or price <= bound
    if spec.higher_is_better:
        reached = measurement.metric >= spec.target_metric
    else:
        reached = measurement.metric <= spec.target_metric
    if reached and affordable:
        end = EndReason.TARGET_REACHED
    elif not affordable:
        end = EndReason.COST_BOUND
    elif measurement.epoch >= spec.max_epochs:
        end = EndReason.MAX_EPOCHS
    else:
        end = None
    return Verdict(price, bound, reached and affordable, reached, end)


def stopped_early(spec: JobSpec, bound: float | None, measurement: Measurement) -> Verdict:
    """The judgement of the last measurement of a trial whose trainer stopped before a decision: a miss."""
    return judge(spec, bound, measurement)._replace(converged=False, end_reason=EndReason.STOPPED_EARLY)


def with_cost(spec: JobSpec, bound: float | None, trial: Trial, *, best_known: bool) -> Trial:
    """A running trial with the cost of its newest measurement and its current bound."""
    trial = trial._replace(cost_bound=bound, best_known=best_known, heartbeat_interval=spec.heartbeat_interval)
    if trial.last is None:
        return trial
    verdict = judge(spec, None, trial.last)
    return trial._replace(cost=verdict.cost, target_reached=verdict.target_reached)


def decision(spec: JobSpec, trial: Trial) -> Decision:
    """The answer to the trainer of a trial that has its current cost; once the trial has ended it does not change."""
    if trial.undecided:
        message = _failed(trial)
    elif trial.last is None or trial.cost is None:
        message = "continue: nothing has been reported yet"
    else:
        verdict = Verdict(trial.cost, trial.cost_bound, trial.converged, trial.target_reached, trial.end_reason)
        return decide(spec, trial.last, verdict, why_unbounded(trial, best_known=trial.best_known))
    ended = not trial.running
    return Decision(
        ended,
        trial.converged,
        trial.target_reached,
        message,
        trial.end_reason,
        trial.last.epoch if trial.last else 0,
        trial.cost,
        trial.cost_bound,
        None if ended else spec.heartbeat_interval,
    )


def why_unbounded(trial: Trial, *, best_known: bool) -> str:
    """Why a trial has no bound if it has none; empty if that is because nothing has reached the target."""
    if trial.origin is TrialOrigin.REQUESTED:
        return "it was requested"
    if trial.origin is TrialOrigin.IMPORTED:
        return "it was imported"
    return f"{trial.batch_size} is the best known batch size" if best_known else ""


def decide(spec: JobSpec, measurement: Measurement, verdict: Verdict, unbounded: str) -> Decision:
    """The answer to a measurement.

    Args:
        spec: The job.
        measurement: The measurement.
        verdict: Its verdict.
        unbounded: Why the trial has no bound, if it has none; see `why_unbounded`.
    """
    ended = verdict.end_reason is not None
    message = _message(spec, measurement, verdict, unbounded)
    return Decision(
        ended,
        verdict.converged,
        verdict.target_reached,
        message,
        verdict.end_reason,
        measurement.epoch,
        verdict.cost,
        verdict.bound,
        None if ended else spec.heartbeat_interval,
    )


def _message(spec: JobSpec, measurement: Measurement, verdict: Verdict, unbounded: str) -> str:
    if not verdict.target_reached and math.isclose(measurement.metric, spec.target_metric, rel_tol=1e-5):
        # Rounded, a metric just short of the target looks as if it had reached it.
        metric = f"metric {measurement.metric!r}, target {spec.target_metric!r}"
    else:
        metric = f"metric {measurement.metric:.6g}, target {spec.target_metric:.6g}"
    price = f"cost {with_unit(verdict.cost)}, {_bound(spec, verdict.bound, unbounded)}"
    epoch = f"epoch {measurement.epoch} of {spec.max_epochs}"
    match verdict.end_reason:
        case None:
            return f"continue: {metric} in {epoch}; {price}"
        case EndReason.TARGET_REACHED:
            return f"target reached: {metric} in {epoch}; {price}"
        case EndReason.COST_BOUND if verdict.target_reached:
            return f"target reached, but cost bound exceeded: {price} in {epoch}; {metric}"
        case EndReason.COST_BOUND:
            return f"cost bound exceeded: {price} in {epoch}; {metric}"
        case EndReason.STOPPED_EARLY:
            return f"stopped early by the trainer: {metric} in {epoch}; {price}"
        case _:
            return f"max epochs reached: {epoch}; {metric}; {price}"


def _bound(spec: JobSpec, bound: float | None, unbounded: str) -> str:
    if spec.beta_knob is None:
        return "no cost bound"
    if bound is not None:
        return f"bound {with_unit(bound)}"
    return f"no bound: {unbounded}" if unbounded else "no cost bound yet"


def _failed(trial: Trial) -> str:
    name = f"trial {trial.number} of job {trial.job_id!r}"
    reason = f"END_REASON_{trial.end_reason.value}" if trial.end_reason else "no reason"
    ended = f"was ended by its trainer ({reason})"
    if trial.end_reason is EndReason.LOST and trial.origin is not TrialOrigin.IMPORTED:
        ended = "is lost: no report or heartbeat came before its lease expired"
    resume = ", or resume it from a checkpoint" if trial.resumable else ""
    return f"stop: {name} {ended}; ask for a new batch size{resume}"
