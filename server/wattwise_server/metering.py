"""By what kind of meter a trial is measured, and what its trainer is told when that is another than before."""

from __future__ import annotations

from dataclasses import replace

from wattwise_server.domain import Decision, Job, Meter, Trial, TrialStatus

LONGEST_KIND = 50
"""Characters that the name of a kind may have."""

_ESTIMATE = "estimate"
_THEN = " then "
_MOST_KINDS = 4
"""That one trial, or what was before it, is said to be of: nobody can make a row that grows without end."""


def kind_fault(kind: str) -> str | None:
    """What is wrong with the name of a kind of meter; None if nothing is."""
    if len(kind) <= LONGEST_KIND and kind.isprintable():
        return None
    return f"is not the name of a kind of meter; give at most {LONGEST_KIND} printable characters, such as 'nvml'"


def metered(job: Job, trial: Trial, kind: str) -> tuple[Job, Trial]:
    """A trial and its job once a result of the trial has said its kind of meter; the same ones if that is known.

    A trial that changes its meter is of both kinds from then on, for both are in its sums.
    """
    own = _kinds(trial.meter.kind)
    if kind in own or len(own) == _MOST_KINDS:
        return job, trial
    # Before the first trial there was none, and what the job knows is the trial's own.
    before = dict.fromkeys((*_kinds(job.meter.other), *_kinds(job.meter.kind))) if trial.number > 1 else {}
    others = [other for other in before if other != kind]
    meter = Meter(_THEN.join((*own, kind)), _THEN.join(others[:_MOST_KINDS]))
    return (job if job.meter == meter else replace(job, meter=meter)), trial._replace(meter=meter)


def _kinds(text: str) -> list[str]:
    return text.split(_THEN) if text else []


def with_meter(trial: Trial, decision: Decision) -> Decision:
    """The decision with what the trial's user should know of its meter: that it estimates, or that it is another."""
    kind, other = trial.meter
    if _ESTIMATE in kind and trial.status is not TrialStatus.FAILED and _is_estimate(kind):
        partly = "" if kind == _ESTIMATE else "partly "
        decision = decision._replace(message=f"{decision.message}; the energy is {partly}an estimate")
    return decision._replace(warning=_warning(trial)) if other else decision


def _is_estimate(kind: str) -> bool:
    return any(_ESTIMATE in each.split("+") for each in _kinds(kind))


def _warning(trial: Trial) -> str:
    return (
        f"trial {trial.number} is measured by {trial.meter.kind}, earlier results of job {trial.job_id!r} by "
        f"{trial.meter.other}: their costs cannot be compared; give what another meter measures a job_id of its own"
    )
