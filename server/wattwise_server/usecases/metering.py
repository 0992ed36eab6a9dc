"""By what kind of meter a trial is measured, and what its trainer is told when that is another than before."""

from __future__ import annotations

from dataclasses import replace

from wattwise_server.domain import Decision, Job, Meter, Trial, TrialStatus

LONGEST_KIND = 50
"""Characters that the name of a kind may have."""

_ESTIMATE = "estimate"
_THEN = " then "
_GAPS = " or estimate"
"""Behind a kind: the meter failed for a while, and an estimate stands in. It is no other meter for that."""

_MOST_KINDS = 4
"""That one trial, or what was before it, is said to be of: nobody can make a row that grows without end."""


def kind_fault(kind: str) -> str | None:
    """What is wrong with the name of a kind of meter; None if nothing is."""
    name = _meter_of(kind)
    if len(name) <= LONGEST_KIND and name.isprintable() and bool(name) == bool(kind) and not _is_put_together(name):
        return None
    return (
        f"is not the name of a kind of meter; give at most {LONGEST_KIND} printable characters, such as 'nvml', "
        f"without {_THEN!r} and {_GAPS!r}, which the service puts between and behind names"
    )


def _is_put_together(name: str) -> bool:
    return _THEN in name or name.endswith(_GAPS)


def metered(job: Job, trial: Trial, kind: str) -> tuple[Job, Trial]:
    """A trial and its job once a result of the trial has said its kind of meter; the same ones if that is known.

    A trial that changes its meter is of both kinds from then on, for both are in its sums. One that has failed for a
    while is the same meter still, before which and after which costs are of one kind.
    """
    own = _kinds(trial.meter.kind)
    if kind in own or f"{kind}{_GAPS}" in own:
        return job, trial
    if _meter_of(kind) in own:
        return replace(job, meter=_failed(job.meter, kind)), trial._replace(meter=_failed(trial.meter, kind))
    if len(own) >= _MOST_KINDS:
        return job, trial
    # Before the first trial there was none, and what the job knows is the trial's own.
    before = [*_kinds(job.meter.other), *_kinds(job.meter.kind)] if trial.number > 1 else []
    others = [other for other in dict.fromkeys(before) if _meter_of(other) != _meter_of(kind)]
    meter = Meter(_THEN.join((*own, kind)), _THEN.join(others[:_MOST_KINDS]))
    # That the meter failed in another trial is nothing to this one, but to what is said of the job's energy.
    of_job = _failed(meter, f"{kind}{_GAPS}") if f"{kind}{_GAPS}" in before else meter
    return (job if job.meter == of_job else replace(job, meter=of_job)), trial._replace(meter=meter)


def _failed(meter: Meter, kind: str) -> Meter:
    """The same once one of its kinds is known to have failed for a while."""

    def marked(text: str) -> str:
        return _THEN.join(kind if each == _meter_of(kind) else each for each in _kinds(text))

    return Meter(marked(meter.kind), marked(meter.other))


def _meter_of(kind: str) -> str:
    return kind.removesuffix(_GAPS)


def _kinds(text: str) -> list[str]:
    return text.split(_THEN) if text else []


def with_meter(trial: Trial, decision: Decision) -> Decision:
    """The decision with what the trial's user should know of its meter: that it estimates, or that it is another."""
    kind, other = trial.meter
    if _ESTIMATE in kind and trial.status is not TrialStatus.FAILED and _is_estimate(kind):
        decision = decision._replace(message=f"{decision.message}; the energy is {_how_far(kind)}")
    return decision._replace(warning=_warning(trial)) if other else decision


def _is_estimate(kind: str) -> bool:
    return any(each.endswith(_GAPS) or _ESTIMATE in each.split("+") for each in _kinds(kind))


def _how_far(kind: str) -> str:
    if kind.endswith(_GAPS) and not _is_estimate(_meter_of(kind)):
        return "an estimate where the meter failed"
    return "an estimate" if kind == _ESTIMATE else "partly an estimate"


def _warning(trial: Trial) -> str:
    return (
        f"trial {trial.number} is measured by {trial.meter.kind}, earlier results of job {trial.job_id!r} by "
        f"{trial.meter.other}: their costs cannot be compared; give what another meter measures a job_id of its own"
    )
