"""What measures the trials of a job, and the warning where that differs between trials."""

from __future__ import annotations

from dataclasses import replace

from wattwise.rules import MAX_KIND_LENGTH, MAX_KINDS, is_kind

from wattwise_server.domain import EnergyQuality, Job, MonitorKinds, Trial

MOST_OTHERS = 8
"""Other monitors that are kept of one trial or job, so that no row grows without end."""


def monitor_fault(monitor: MonitorKinds) -> str | None:
    """Returns what is wrong with a reported monitor; None if nothing is."""
    if not all(map(is_kind, monitor.kinds)):
        return f"has an invalid kind; use 1 to {MAX_KIND_LENGTH} printable characters, such as 'nvml'"
    if len(monitor.kinds) > MAX_KINDS:
        return f"has {len(monitor.kinds)} kinds; use at most {MAX_KINDS}"
    if monitor.quality is not EnergyQuality.MEASURED and not monitor.kinds:
        return (
            f"has the quality ENERGY_QUALITY_{monitor.quality.value} but no kinds; use at least one, such as 'estimate'"
        )
    return None


def with_monitor(job: Job, trial: Trial, reported: MonitorKinds) -> tuple[Job, Trial]:
    """Returns the trial and its job after a result that names its monitor.

    A trial that changes its monitor has the kinds of both, since its sums come from both. A trial whose monitor failed
    for a while keeps its kinds, so its costs remain comparable.
    """
    monitor = trial.monitor.joined(reported)
    monitor = monitor._replace(kinds=monitor.kinds[:MAX_KINDS])
    if monitor == trial.monitor:
        return job, trial
    if monitor.kinds == trial.monitor.kinds:
        others = tuple(known.joined(monitor) if known.same_kinds(monitor) else known for known in job.other_monitors)
        of_job = replace(job, monitor=_marked(job.monitor, monitor), other_monitors=others)
        return of_job, trial._replace(monitor=monitor)
    others = trial.other_monitors
    if not trial.monitor.kinds:
        others = _others(monitor, *job.other_monitors, job.monitor)
    elif not others and trial.number > 1:
        # Until now the trial had the same kinds as those before it.
        others = (trial.monitor,)
    # An estimate in an earlier trial concerns the job's sums, but not this trial's.
    known = (job.monitor, *job.other_monitors)
    estimated = next((each for each in known if each.same_kinds(monitor)), monitor)
    # What only this trial had is part of its monitor now.
    replaced = () if job.monitor.same_kinds(trial.monitor) else (job.monitor,)
    of_job = replace(
        job,
        monitor=monitor.joined(estimated),
        other_monitors=_others(monitor, *job.other_monitors, *others, *replaced),
    )
    return of_job, trial._replace(monitor=monitor, other_monitors=others)


def _others(monitor: MonitorKinds, *known: MonitorKinds) -> tuple[MonitorKinds, ...]:
    """Returns the known monitors, once each, whose kinds are not those of `monitor`."""
    others: list[MonitorKinds] = []
    for each in known:
        if each.kinds and not any(each.same_kinds(other) for other in (monitor, *others)):
            others.append(each)
    return tuple(others[-MOST_OTHERS:])


def _marked(known: MonitorKinds, failed: MonitorKinds) -> MonitorKinds:
    """Returns the same kinds, partly estimated if the monitor that failed for a while is among them."""
    return known.joined(failed) if set(failed.kinds) <= set(known.kinds) else known
