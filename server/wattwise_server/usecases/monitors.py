"""By what kind of monitor a trial is measured, and what its trainer is told when that is another than before."""

from __future__ import annotations

from dataclasses import replace

from wattwise_server.domain import Decision, Job, Monitor, Trial, TrialStatus

LONGEST_KIND = 50
"""Characters that the name of a kind may have."""

_ESTIMATE = "estimate"
_THEN = " then "
_GAPS = " or estimate"
"""Behind a kind: the monitor failed for a while, and an estimate stands in. It is no other monitor for that."""

_MOST_KINDS = 4
"""That one trial, or what was before it, is said to be of: nobody can make a row that grows without end."""


def kind_fault(kind: str) -> str | None:
    """What is wrong with the name of a kind of monitor; None if nothing is."""
    name = _monitor_of(kind)
    if len(name) <= LONGEST_KIND and name.isprintable() and bool(name) == bool(kind) and not _is_put_together(name):
        return None
    return (
        f"is not the name of a kind of monitor; give at most {LONGEST_KIND} printable characters, such as 'nvml', "
        f"without {_THEN!r} and {_GAPS!r}, which the service puts between and behind names"
    )


def _is_put_together(name: str) -> bool:
    return _THEN in name or name.endswith(_GAPS)


def metered(job: Job, trial: Trial, kind: str) -> tuple[Job, Trial]:
    """A trial and its job once a result of the trial has said its kind of monitor; the same ones if that is known.

    A trial that changes its monitor is of both kinds from then on, for both are in its sums. One that has failed for a
    while is the same monitor still, before which and after which costs are of one kind.
    """
    own = _kinds(trial.monitor.kind)
    if kind in own or f"{kind}{_GAPS}" in own:
        return job, trial
    if _monitor_of(kind) in own:
        return replace(job, monitor=_failed(job.monitor, kind)), trial._replace(monitor=_failed(trial.monitor, kind))
    if len(own) >= _MOST_KINDS:
        return job, trial
    # Before the first trial there was none, and what the job knows is the trial's own.
    before = [*_kinds(job.monitor.other), *_kinds(job.monitor.kind)] if trial.number > 1 else []
    others = [other for other in dict.fromkeys(before) if _monitor_of(other) != _monitor_of(kind)]
    monitor = Monitor(_THEN.join((*own, kind)), _THEN.join(others[:_MOST_KINDS]))
    # That the monitor failed in another trial is nothing to this one, but to what is said of the job's energy.
    of_job = _failed(monitor, f"{kind}{_GAPS}") if f"{kind}{_GAPS}" in before else monitor
    return (job if job.monitor == of_job else replace(job, monitor=of_job)), trial._replace(monitor=monitor)


def _failed(monitor: Monitor, kind: str) -> Monitor:
    """The same once one of its kinds is known to have failed for a while."""

    def marked(text: str) -> str:
        return _THEN.join(kind if each == _monitor_of(kind) else each for each in _kinds(text))

    return Monitor(marked(monitor.kind), marked(monitor.other))


def _monitor_of(kind: str) -> str:
    return kind.removesuffix(_GAPS)


def _kinds(text: str) -> list[str]:
    return text.split(_THEN) if text else []


def with_monitor(trial: Trial, decision: Decision) -> Decision:
    """The decision with what the trial's user should know of its monitor: that it estimates, or that it is another."""
    kind, other = trial.monitor
    if _ESTIMATE in kind and trial.status is not TrialStatus.FAILED and _is_estimate(kind):
        decision = decision._replace(message=f"{decision.message}; the energy is {_how_far(kind)}")
    return decision._replace(warning=_warning(trial)) if other else decision


def _is_estimate(kind: str) -> bool:
    return any(each.endswith(_GAPS) or _ESTIMATE in each.split("+") for each in _kinds(kind))


def _how_far(kind: str) -> str:
    if kind.endswith(_GAPS) and not _is_estimate(_monitor_of(kind)):
        return "an estimate where the monitor failed"
    return "an estimate" if kind == _ESTIMATE else "partly an estimate"


def _warning(trial: Trial) -> str:
    return (
        f"trial {trial.number} is measured by {trial.monitor.kind}, earlier results of job {trial.job_id!r} by "
        f"{trial.monitor.other}: their costs cannot be compared; give what another monitor measures a job_id of its own"
    )
