"""The answer to a trial's trainer: whether to stop, and why."""

from __future__ import annotations

import math
from typing import TypeAlias

from wattwise.rules import EndReason, ResolvedJob

from wattwise_server.cost import with_unit
from wattwise_server.domain import ENDS, Decision, EnergyQuality, Job, Measurement, Trial, TrialOrigin
from wattwise_server.errors import jobs_command
from wattwise_server.policy.stopping import Verdict, has_best_known, with_current_cost

_HOW_FAR = {EnergyQuality.PARTLY_ESTIMATED: "partly an estimate", EnergyQuality.ESTIMATED: "an estimate"}


Outcome: TypeAlias = Verdict | Trial
"""How a trial goes: the verdict about a running one, or what a trial with its current cost says itself."""


def decision_for(job: Job, trial: Trial, verdict: Verdict | None = None) -> Decision:
    """Returns the answer to a trial's trainer.

    Args:
        job: The job.
        trial: The trial.
        verdict: The verdict about the newest measurement of a running trial, if it is known already.
    """
    if verdict is None:
        return decision(job.spec, with_current_cost(job, trial))
    # Without a copy of the trial: for every report.
    return _decision(job.spec, trial, verdict, best_known=has_best_known(job))


def decision(spec: ResolvedJob, trial: Trial) -> Decision:
    """Returns the answer to the trainer of a trial that has its current cost and bound.

    All of it follows from the trial, so that a repetition gets the same answer.
    """
    return _decision(spec, trial, trial, best_known=trial.best_known)


def _decision(spec: ResolvedJob, trial: Trial, outcome: Outcome, *, best_known: bool) -> Decision:
    running = trial.running
    return Decision(
        not running,
        outcome.converged,
        outcome.target_reached,
        _message(spec, trial, outcome, best_known=best_known) + _advice(trial, outcome),
        outcome.end_reason,
        trial.last.epoch if trial.last else 0,
        outcome.cost,
        outcome.cost_bound,
        spec.heartbeat_interval if running else None,
        trial.all_warnings,
    )


def explanation(spec: ResolvedJob, trial: Trial) -> str:
    """Returns the message of a trial's decision without advice, for those who look at it later."""
    return f"it {_end(trial)}" if trial.undecided else _message(spec, trial, trial, best_known=trial.best_known)


def _end(trial: Trial) -> str:
    """Returns how an undecided trial ended."""
    return ENDS[trial.end_reason] if trial.end_reason else "ended"


def _message(spec: ResolvedJob, trial: Trial, outcome: Outcome, *, best_known: bool) -> str:
    """Returns why the trial ends or continues, and whether its energy is an estimate."""
    if trial.undecided:
        return f"stop: trial {trial.number} of job {trial.job_id!r} {_end(trial)}"
    if trial.last is None or outcome.cost is None:
        message = "continue: nothing has been reported yet"
    else:
        bound = _bound(spec, trial, outcome.cost_bound, best_known=best_known)
        message = _numbers(spec, trial.last, outcome, f"cost {with_unit(outcome.cost)}, {bound}")
    if trial.monitor.quality is not EnergyQuality.MEASURED:
        message = f"{message}; the energy is {_HOW_FAR[trial.monitor.quality]}"
    return message


def _advice(trial: Trial, outcome: Outcome) -> str:
    """Returns what its trainer can do next if a trial failed or missed the target."""
    if trial.undecided:
        return f"; ask for a new batch size{', or resume it from a checkpoint' if trial.resumable else ''}"
    if trial.running or outcome.target_reached:
        return ""
    # It may be followed by another attempt, or by the job's advice, and must not contradict them.
    return f"; {jobs_command('show', trial.job_id)} says whether to change something before the next launch"


def _numbers(spec: ResolvedJob, last: Measurement, outcome: Outcome, price: str) -> str:
    if not outcome.target_reached and math.isclose(last.metric, spec.target_metric, rel_tol=1e-5):
        # Rounded, a metric just short of the target looks as if it had reached it.
        metric = f"metric {last.metric!r}, target {spec.target_metric!r}"
    else:
        metric = f"metric {last.metric:.6g}, target {spec.target_metric:.6g}"
    epoch = f"epoch {last.epoch} of {spec.max_epochs}"
    match outcome.end_reason:
        case None:
            return f"continue: {metric} in {epoch}; {price}"
        case EndReason.TARGET_REACHED:
            return f"target reached: {metric} in {epoch}; {price}"
        case EndReason.COST_BOUND if outcome.target_reached:
            return f"target reached, but cost bound exceeded: {price} in {epoch}; {metric}"
        case EndReason.COST_BOUND:
            return f"cost bound exceeded: {price} in {epoch}; {metric}"
        case EndReason.STOPPED_EARLY:
            return f"stopped early by the trainer: {metric} in {epoch}; {price}"
        case _:
            return f"max epochs reached: {epoch}; {metric}; {price}"


def _bound(spec: ResolvedJob, trial: Trial, bound: float | None, *, best_known: bool) -> str:
    """Returns the bound of a trial, or why it has none; before anything has reached the target, there is none yet."""
    if spec.beta_knob is None:
        return "no cost bound"
    if bound is not None:
        return f"bound {with_unit(bound)}"
    if trial.origin is TrialOrigin.REQUESTED:
        return "no bound: its batch size was set by a person"
    if trial.origin is TrialOrigin.IMPORTED:
        return "no bound: it was imported"
    return f"no bound: {trial.batch_size} is the best known batch size" if best_known else "no cost bound yet"
