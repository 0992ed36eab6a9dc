"""The answer to a trial's trainer: whether to stop, and why."""

from __future__ import annotations

from wattwise_server.domain import Decision, EnergyQuality, Job, JobSpec, Trial, TrialOrigin
from wattwise_server.errors import jobs_command
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import Verdict, decide, decision, why_unbounded, with_cost

_HOW_FAR = {EnergyQuality.PARTLY_ESTIMATED: "partly an estimate", EnergyQuality.ESTIMATED: "an estimate"}


def bound_of(job: Job, trial: Trial) -> float | None:
    """The cost at which a running trial is stopped; None if it has no bound.

    One that a person requested has none: the launch is to deliver, or to compare with.
    """
    if trial.origin is TrialOrigin.REQUESTED:
        return None
    return POLICIES[job.spec.policy].bound(job.spec, job.search, trial.batch_size)


def is_best_known(job: Job) -> bool:
    """Whether a trial that the search gave no bound has none because its batch size is the best known one."""
    return job.search.min_cost is not None


def with_current_cost(job: Job, trial: Trial) -> Trial:
    """A trial; a running one with its current cost and bound."""
    if not trial.running:
        return trial
    return with_cost(job.spec, bound_of(job, trial), trial, best_known=is_best_known(job))


def decision_for(job: Job, trial: Trial) -> Decision:
    """The answer to a trial's trainer."""
    return current_decision(job.spec, with_current_cost(job, trial))


def current_decision(spec: JobSpec, trial: Trial) -> Decision:
    """The answer to the trainer of a trial, which has its current cost and bound."""
    return _with_notes(trial, decision(spec, trial))


def decision_on_report(job: Job, trial: Trial, verdict: Verdict) -> Decision:
    """The answer to the trainer of a running trial, with the verdict about its newest measurement."""
    unbounded = why_unbounded(trial, best_known=is_best_known(job))
    return (
        _with_notes(trial, decide(job.spec, trial.last, verdict, unbounded)) if trial.last else decision_for(job, trial)
    )


def _with_notes(trial: Trial, decision: Decision) -> Decision:
    """The decision with its warnings, whether its energy is an estimate and, if the target was missed, what to do next.

    All of it follows from the trial, so that a repetition gets the same decision.
    """
    if trial.monitor.quality is not EnergyQuality.MEASURED and not trial.undecided:
        decision = decision._replace(message=f"{decision.message}; the energy is {_HOW_FAR[trial.monitor.quality]}")
    if trial.warnings or trial.other_monitors:
        decision = decision._replace(warnings=trial.all_warnings)
    if not decision.stop_train or decision.target_reached or trial.undecided:
        return decision
    # It may be followed by another attempt, or by the job's advice, and must not contradict them.
    todo = f"{jobs_command('show', trial.job_id)} says whether to change something before the next launch"
    return decision._replace(message=f"{decision.message}; {todo}")
