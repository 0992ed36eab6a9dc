"""What looks wrong about a trial but is not refused: found when it starts or ends, kept with it and with its job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from wattwise.rules import EndReason, ResolvedJob

from wattwise_server.cost import with_unit
from wattwise_server.domain import (
    Job,
    Measurement,
    MetricSpan,
    RecordedSearchEvent,
    Trial,
    TrialOrigin,
    TrialWarning,
    UnknownEndReason,
    WarningReason,
)
from wattwise_server.errors import jobs_command
from wattwise_server.events import TrialDecided

LEAST_EPOCHS_TO_MOVE_AWAY = 3
"""Epochs of a trial before its metric can be said to move away from the target."""

_CHEAP = 0.1
"""The share of the usual cost of its batch size below which a delivery is doubtful."""

_CHEAPER = 0.5
"""The same of the cheapest cost: cheap deliveries that were confirmed are usual."""


def of_cheap_delivery(job: Job, trial: Trial, cost: float) -> TrialWarning | None:
    """Returns the warning of a trial that reached the target at a small part of the usual cost of its batch size."""
    arm = job.search.arm(trial.batch_size)
    usual, cheapest = arm.reached.mean, arm.cheapest or math.inf
    # A trial that cost nothing is warned of, and lowers nothing.
    if not cost or not arm.reached.count or cost >= _CHEAP * usual or cost >= _CHEAPER * cheapest:
        return None
    return _doubt(
        trial, f"at {with_unit(cost)}, while its batch size {trial.batch_size} usually takes {with_unit(usual)}"
    )


def is_perfect_at_once(spec: ResolvedJob, last: Measurement) -> bool:
    """Returns whether the first epoch of a trial ended with the best possible metric."""
    best = (1.0 if spec.target_metric <= 1 else 100.0) if spec.higher_is_better else 0.0
    return last.epoch == 1 and last.metric == best


def is_cheapest(job: Job, cost: float) -> bool:
    """Returns whether a delivery would lower the cheapest cost of the job."""
    return job.search.min_cost is not None and cost < job.search.min_cost


def of_perfect_delivery(job: Job, trial: Trial, events: Iterable[RecordedSearchEvent]) -> TrialWarning | None:
    """Returns the warning of a perfect metric in a trial's first epoch, if the job's other deliveries took longer."""
    others = [event.trial for event in events if event.trial and event.kind == TrialDecided.kind]
    epochs = [
        other.last.epoch
        for other in others
        if other.last and other.target_reached and not other.doubtful and job.counts(other)
    ]
    if not epochs or min(epochs) == 1:
        return None
    metric = trial.last.metric if trial.last else math.nan
    return _doubt(
        trial, f"with {metric:g} in its first epoch, while the job's other deliveries took {min(epochs)} or more"
    )


def _doubt(trial: Trial, how: str) -> TrialWarning:
    message = (
        f"trial {trial.number} reached the target {how}: it does not count until a second such trial of its batch size "
        f"confirms it; if it was no complete training, exclude it by "
        f"{jobs_command('exclude-trial', trial.job_id, trial.number)}"
    )
    return TrialWarning(
        WarningReason.DELIVERY_UNUSUALLY_CHEAP, "result.measurement.energy_joules", message, trial.number
    )


def of_missed_target(spec: ResolvedJob, trial: Trial, span: MetricSpan, last: Measurement) -> Iterator[TrialWarning]:
    """Yields the warning of a missed target, if no epoch was better than the first one and the last one is worse.

    Args:
        spec: The job.
        trial: The trial.
        span: Its metrics, the last one included.
        last: Its last measurement.
    """
    first = span.first
    if first is None or span.epochs < LEAST_EPOCHS_TO_MOVE_AWAY:
        return
    if spec.higher_is_better:
        away = span.most is not None and span.most <= first and last.metric < first
    else:
        away = span.least is not None and span.least >= first and last.metric > first
    if away:
        message = (
            f"in {span.epochs} epochs the metric went from {first:g} to {last.metric:g}, away from the target "
            f"{spec.target_metric:g}: if {other_better(spec)} metric is better, register the job under a new job_id "
            "with that direction"
        )
        yield TrialWarning(WarningReason.METRIC_MOVES_AWAY, "job.target.direction", message, trial.number)


def of_unconnected_ranks(trial: Trial, ranks: int) -> Iterator[TrialWarning]:
    """Yields the warning of a launch of several processes of which each asks for a trial."""
    if ranks > 1:
        message = (
            f"the launch has {ranks} processes that are not connected, so that each trains a trial of its own: connect "
            "them before they ask for a batch size, with torch.distributed.init_process_group() in PyTorch"
        )
        yield TrialWarning(WarningReason.UNCONNECTED_RANKS, "unconnected_ranks", message, trial.number)


def known_reason(stated: EndReason | UnknownEndReason | None) -> EndReason | None:
    """Returns an end reason as it is stored: one that only newer clients know counts as an error."""
    return EndReason.ERROR if isinstance(stated, UnknownEndReason) else stated


def of_unknown_end(trial: Trial, stated: EndReason | UnknownEndReason | None) -> Iterator[TrialWarning]:
    """Yields the warning of a trial that ended for a reason that only newer clients know."""
    if isinstance(stated, UnknownEndReason):
        message = (
            f"the trial ended for reason {stated.number}, which this server does not know, and is recorded as "
            f"END_REASON_{EndReason.ERROR.value}: update the server"
        )
        yield TrialWarning(WarningReason.END_REASON_UNKNOWN, "end_reason", message, trial.number)


def with_warnings(job: Job, trial: Trial, found: Iterable[TrialWarning]) -> tuple[Job, Trial, Sequence[TrialWarning]]:
    """Returns the job and the trial with warnings, and the new ones: a trial has one for each reason."""
    known = {warning.reason for warning in trial.warnings}
    new = [warning for warning in found if warning.reason not in known]
    if not new:
        return job, trial, ()
    return with_job_warnings(job, trial, new), trial._replace(warnings=(*trial.warnings, *new)), new


def with_job_warnings(job: Job, trial: Trial, new: Sequence[TrialWarning]) -> Job:
    """Returns the job with warnings of a trial that counts, each in place of its earlier one of the same reason."""
    if not job.counts(trial):
        return job
    reasons = {warning.reason for warning in new}
    kept = (warning for warning in job.warnings if warning.reason not in reasons)
    return replace(job, warnings=(*kept, *new))


def without_warnings_of(job: Job, trial: Trial, reason: WarningReason | None = None) -> Job:
    """Returns the job without the warnings about a trial, or without the one of a reason."""
    kept = (known for known in job.warnings if known.trial_number != trial.number or reason not in (None, known.reason))
    return replace(job, warnings=tuple(kept))


def with_warnings_of_imports(job: Job, changed: Trial, trials: Iterable[Trial]) -> Job:
    """Returns the job after a trial was excluded or included: imported trials with the same warnings keep them."""
    reasons = {warning.reason for warning in changed.warnings} - {warning.reason for warning in job.warnings}
    imports = (trial for trial in trials if trial.origin is TrialOrigin.IMPORTED and job.counts(trial))
    newest = {each.reason: each for trial in imports for each in trial.warnings if each.reason in reasons}
    return replace(job, warnings=(*job.warnings, *newest.values()))


def without_contradicted(job: Job, ended: Trial) -> Job:
    """Returns the job without the warnings that an ended launch contradicts: it had reports, and not the warning.

    An imported trial contradicts nothing: the numbers of another one stay wrong.
    """
    if not job.warnings or ended.last is None or ended.origin is TrialOrigin.IMPORTED or not job.counts(ended):
        return job
    kept = tuple(warning for warning in job.warnings if not _contradicts(ended, ended.last, warning))
    return replace(job, warnings=kept)


def _contradicts(ended: Trial, last: Measurement, warning: TrialWarning) -> bool:
    match warning.reason:
        case WarningReason.TARGET_REACHED_AT_ONCE:
            return last.epoch > 1
        case WarningReason.POWER_OUT_OF_RANGE | WarningReason.DELIVERY_UNUSUALLY_CHEAP:
            # The trial stays wrong.
            return False
        case WarningReason.MONITORS_DIFFER:
            has = bool(ended.other_monitors)
        case WarningReason.METRIC_MOVES_AWAY if not ended.target_reached and last.epoch < LEAST_EPOCHS_TO_MOVE_AWAY:
            return False
        case _:
            has = any(own.reason is warning.reason for own in ended.warnings)
    return ended.number > warning.trial_number and not has


def other_better(spec: ResolvedJob) -> str:
    """Returns the kind of metric that a job of the other direction has."""
    return "a lower" if spec.higher_is_better else "a higher"
