"""What looks wrong about a trial but is not refused: found in its reports, kept with it and with its job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from wattwise_server.domain import (
    EndReason,
    EventKind,
    Job,
    JobEvent,
    JobSpec,
    Measurement,
    MetricSpan,
    MonitorKinds,
    Trial,
    TrialOrigin,
    TrialWarning,
    UnknownEndReason,
    WarningReason,
)
from wattwise_server.errors import jobs_command
from wattwise_server.policy.cost import with_unit

LEAST_EPOCHS_TO_MOVE_AWAY = 3
"""Epochs of a trial before its metric can be said to move away from the target."""

_GPU_KINDS = frozenset({"nvml", "amdsmi", "zeus"})
_MOST_POWER_OF_GPUS = 2.0
"""Times the job's maximum power, which GPUs exceed for moments."""

_MOST_POWER = 3.0
"""Times the job's maximum power: above it a unit is wrong, since a power plug draws less beside the GPUs."""

_MOST_OTHER_WATTS = 2000.0
"""What other kinds of monitor may measure beside that, such as that of the processors beside a small GPU."""

_CHEAP = 0.1
"""The share of the usual cost of its batch size below which a delivery is doubtful."""

_CHEAPER = 0.5
"""The same of the cheapest cost: cheap deliveries that were confirmed are usual."""


def in_report(
    spec: JobSpec, trial: Trial, before: Measurement | None, measurement: Measurement, *, reached: bool
) -> Iterator[TrialWarning]:
    """The warnings of one report.

    Args:
        spec: The job.
        trial: The trial.
        before: Its measurement before; None for the first one.
        measurement: The new measurement.
        reached: Whether it reaches the target.
    """
    number, epoch, metric = trial.number, measurement.epoch, measurement.metric
    ranges = _of_ranges(spec, number, before, measurement, reached=reached)
    if ranges is not None:
        # Also why the target was reached at once.
        yield ranges
    elif number == epoch == 1 and reached:
        message = (
            f"the job's first trial reached the target {spec.target_metric:g} with {metric:g} in its first epoch: "
            "register the job under a new job_id with a target that takes training, or, if "
            f"{_other_better(spec)} metric is better, with that direction"
        )
        yield TrialWarning(WarningReason.TARGET_REACHED_AT_ONCE, "job.target.value", message, number)
    if before is None and not measurement.energy_joules and spec.eta_knob:
        what = "no energy was measured" if measurement.energy_joules is None else "0 J were reported"
        message = (
            f"{what} up to epoch {epoch} although eta_knob is {spec.eta_knob:g}, so that the cost is that "
            "of the time alone: use a monitor that measures energy, or set eta_knob to 0 under a new job_id"
        )
        yield TrialWarning(WarningReason.NO_ENERGY, "result.measurement.energy_joules", message, number)


def _of_ranges(
    spec: JobSpec, number: int, before: Measurement | None, measurement: Measurement, *, reached: bool
) -> TrialWarning | None:
    """The warning of a metric or a target that seems to be in percent while the other one is not."""
    epoch, metric, target = measurement.epoch, measurement.metric, spec.target_metric
    # A loss above 1 is usual, and NaN is reported by a training that has diverged.
    if not spec.higher_is_better or math.isnan(metric):
        return None
    if 0 <= target <= 1 and not 0 <= metric <= 1:
        message = (
            f"the metric is {metric:g} in epoch {epoch}, outside of [0, 1], while the target {target:g} is inside: "
            "report the metric and set the target in the same unit"
        )
        if before is None and reached:
            message += (
                "; or, if it is a loss, which is to fall to the target, register the job under a new job_id with "
                "the direction DIRECTION_LOWER_IS_BETTER"
            )
        return TrialWarning(WarningReason.METRIC_OUT_OF_RANGE, "result.measurement.metric", message, number)
    # A first epoch below 1 percent is usual, and 0 has no unit.
    later = epoch > 1 or spec.max_epochs == 1
    if target > 1 and later and 0 < metric <= 1 and (before is None or 0 <= before.metric <= 1):
        message = (
            f"the metric is {metric:g} in epoch {epoch}, within [0, 1], while the target {target:g} is above 1, which "
            "such a metric never reaches: report the metric and set the target in the same unit"
        )
        return TrialWarning(WarningReason.METRIC_OUT_OF_RANGE, "job.target.value", message, number)
    return None


def of_power(spec: JobSpec, trial: Trial, before: Measurement | None, measurement: Measurement) -> TrialWarning | None:
    """The warning of a report of more energy than the job's GPUs can draw in its time."""
    joules, seconds = measurement.energy_joules or 0.0, measurement.time_seconds
    # The first energy after epochs without energy may be that of the whole trial.
    if before is not None and before.energy_joules is not None and seconds > before.time_seconds:
        joules, seconds = joules - before.energy_joules, seconds - before.time_seconds
    # For every report.
    if joules <= _MOST_POWER_OF_GPUS * spec.gpu.max_power_watts * seconds:
        return None
    if joules <= _most_watts(spec, trial.monitor) * seconds:
        return None
    what = (
        "import it under another name with joules and seconds since its start"
        if trial.origin is TrialOrigin.IMPORTED
        else "check the monitor, or the units of the report"
    )
    message = (
        f"{joules:g} J in {seconds:g} s of epoch {measurement.epoch} are {joules / seconds:.4g} W, while the job's "
        f"GPUs draw at most {spec.gpu.max_power_watts:g} W together: exclude the trial by "
        f"{jobs_command('exclude-trial', trial.job_id, trial.number)}, and {what}"
    )
    return TrialWarning(WarningReason.POWER_OUT_OF_RANGE, "result.measurement.energy_joules", message, trial.number)


def _most_watts(spec: JobSpec, monitor: MonitorKinds) -> float:
    most = spec.gpu.max_power_watts
    if not monitor.kinds:
        return _MOST_POWER * most
    if all(kind.removesuffix("-polled") in _GPU_KINDS for kind in monitor.kinds):
        return _MOST_POWER_OF_GPUS * most
    return _MOST_POWER * most + _MOST_OTHER_WATTS


def of_cheap_delivery(job: Job, trial: Trial, cost: float) -> TrialWarning | None:
    """The warning of a trial that reached the target at a small part of the usual cost of its batch size."""
    arm = job.search.arm(trial.batch_size)
    usual, cheapest = arm.reached.mean, arm.cheapest or math.inf
    # A trial that cost nothing is warned of, and lowers nothing.
    if not cost or not arm.reached.count or cost >= _CHEAP * usual or cost >= _CHEAPER * cheapest:
        return None
    return _doubt(
        trial, f"at {with_unit(cost)}, while its batch size {trial.batch_size} usually takes {with_unit(usual)}"
    )


def is_perfect_at_once(spec: JobSpec, last: Measurement) -> bool:
    """Whether the first epoch of a trial ended with the best metric there is."""
    best = (1.0 if spec.target_metric <= 1 else 100.0) if spec.higher_is_better else 0.0
    return last.epoch == 1 and last.metric == best


def is_cheapest(job: Job, cost: float) -> bool:
    """Whether a delivery would lower the cheapest cost of the job."""
    return job.search.min_cost is not None and cost < job.search.min_cost


def of_perfect_delivery(job: Job, trial: Trial, events: Iterable[JobEvent]) -> TrialWarning | None:
    """The warning of a trial with the best metric there is in its first epoch, if the job's deliveries took more."""
    others = [event.trial for event in events if event.trial and event.kind is EventKind.DECIDED]
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


def of_missed_target(spec: JobSpec, trial: Trial, span: MetricSpan, last: Measurement) -> Iterator[TrialWarning]:
    """The warning of a trial that missed the target, if no epoch was better than its first one, and its last worse.

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
            f"{spec.target_metric:g}: if {_other_better(spec)} metric is better, register the job under a new job_id "
            "with that direction"
        )
        yield TrialWarning(WarningReason.METRIC_MOVES_AWAY, "job.target.direction", message, trial.number)


def of_unconnected_ranks(trial: Trial, ranks: int) -> Iterator[TrialWarning]:
    """The warning of a launch of several processes of which each asks for a trial."""
    if ranks > 1:
        message = (
            f"the launch has {ranks} processes that are not connected, so that each trains a trial of its own: connect "
            "them before they ask for a batch size, with torch.distributed.init_process_group() in PyTorch"
        )
        yield TrialWarning(WarningReason.UNCONNECTED_RANKS, "unconnected_ranks", message, trial.number)


def known_reason(stated: EndReason | UnknownEndReason | None) -> EndReason | None:
    """An end reason as it is stored: one that only newer clients know counts as an error."""
    return EndReason.ERROR if isinstance(stated, UnknownEndReason) else stated


def of_unknown_end(trial: Trial, stated: EndReason | UnknownEndReason | None) -> Iterator[TrialWarning]:
    """The warning of a trial that ended for a reason that only newer clients know."""
    if isinstance(stated, UnknownEndReason):
        message = (
            f"the trial ended for reason {stated.number}, which this server does not know, and is recorded as "
            f"END_REASON_{EndReason.ERROR.value}: update the server"
        )
        yield TrialWarning(WarningReason.END_REASON_UNKNOWN, "end_reason", message, trial.number)


def with_warnings(job: Job, trial: Trial, found: Iterable[TrialWarning]) -> tuple[Job, Trial, Sequence[TrialWarning]]:
    """The job and the trial with warnings, and those that are new to the trial: a trial has one for each reason."""
    known = {warning.reason for warning in trial.warnings}
    new = [warning for warning in found if warning.reason not in known]
    if not new:
        return job, trial, ()
    return with_job_warnings(job, trial, new), trial._replace(warnings=(*trial.warnings, *new)), new


def with_job_warnings(job: Job, trial: Trial, new: Sequence[TrialWarning]) -> Job:
    """The job with warnings of a trial that counts, each in place of its earlier one of the same reason."""
    if not job.counts(trial):
        return job
    reasons = {warning.reason for warning in new}
    kept = (warning for warning in job.warnings if warning.reason not in reasons)
    return replace(job, warnings=(*kept, *new))


def without_warnings_of(job: Job, trial: Trial, reason: WarningReason | None = None) -> Job:
    """The job without the warnings about a trial, or without the one of a reason."""
    kept = (known for known in job.warnings if known.trial_number != trial.number or reason not in (None, known.reason))
    return replace(job, warnings=tuple(kept))


def with_warnings_of_imports(job: Job, changed: Trial, trials: Iterable[Trial]) -> Job:
    """The job after a trial was excluded or included: the other imported trials with its warnings still have them."""
    reasons = {warning.reason for warning in changed.warnings} - {warning.reason for warning in job.warnings}
    imports = (trial for trial in trials if trial.origin is TrialOrigin.IMPORTED and job.counts(trial))
    newest = {each.reason: each for trial in imports for each in trial.warnings if each.reason in reasons}
    return replace(job, warnings=(*job.warnings, *newest.values()))


def without_contradicted(job: Job, ended: Trial) -> Job:
    """The job without the warnings that a launch contradicts, which has ended: it had reports, and not the warning.

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


def _other_better(spec: JobSpec) -> str:
    return "a lower" if spec.higher_is_better else "a higher"
