"""By what kind of meter a trial is measured, and what its trainer is told when that is another than before."""

from __future__ import annotations

from dataclasses import replace

from wattwise_server.domain import Decision, Job, Meter, Trial

LONGEST_KIND = 50
"""Characters that the name of a kind may have."""

_THEN = " then "
_MOST_KINDS = 4
"""Of one trial: what changes with every report is not worth a row each time."""


def kind_fault(kind: str) -> str | None:
    """What is wrong with the name of a kind of meter; None if nothing is."""
    if len(kind) <= LONGEST_KIND and kind.isprintable():
        return None
    return f"is not the name of a kind of meter; give at most {LONGEST_KIND} printable characters, such as 'nvml'"


def metered(job: Job, trial: Trial, kind: str) -> tuple[Job, Trial]:
    """A trial and its job once a result of the trial has said its kind of meter; the same ones if that is known."""
    own = _own(trial.meter.kind, kind)
    if own == trial.meter.kind:
        return job, trial
    meter = Meter(own, job.meter.other if job.meter.kind in ("", own) else job.meter.kind)
    return (job if job.meter == meter else replace(job, meter=meter)), trial._replace(meter=meter)


def _own(known: str, said: str) -> str:
    """What a trial's sums are measured by: every kind that it has said, for all of them are in the sums."""
    kinds = known.split(_THEN) if known else []
    if said in kinds or len(kinds) == _MOST_KINDS:
        return known
    return _THEN.join([*kinds, said])


def warned(trial: Trial, decision: Decision) -> Decision:
    """The decision with what the trial's user should know of its meter."""
    if not trial.meter.other:
        return decision
    said = (
        f"trial {trial.number} is measured by {trial.meter.kind}, earlier results of job {trial.job_id!r} by "
        f"{trial.meter.other}: their costs cannot be compared; give what another meter measures a job_id of its own"
    )
    return decision._replace(warning=said)
