"""A trainer's report: its validation, its verdict and its warnings. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeAlias

from wattwise.rules import POWER_FACTOR, ResolvedJob

from wattwise_server.cost import cost
from wattwise_server.domain import (
    ComputedUsage,
    Job,
    Measurement,
    MonitorKinds,
    Trial,
    TrialId,
    TrialOrigin,
    TrialWarning,
    WarningReason,
)
from wattwise_server.errors import InvalidResultError, Violation, jobs_command
from wattwise_server.events import EpochReported
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.search import job_after
from wattwise_server.policy.stopping import Verdict, bound_of, judge
from wattwise_server.usecases.lifecycle import Progress, keep_monitor, revive, warn
from wattwise_server.usecases.monitors import monitor_fault
from wattwise_server.usecases.trial_warnings import other_better

LARGEST_COST = 1e100
"""Joules. No real trial costs as much, and the square does not overflow a float."""

LARGEST_SUM = 1e100
"""Seconds or joules. Sums over all trials stay finite."""

Faults: TypeAlias = list[tuple[str, str]]
"""Pairs of a field's name and what to change."""


_GPU_KINDS = frozenset({"nvml", "amdsmi", "zeus"})

_MOST_POWER = 3.0
"""Times the job's maximum power: above it a unit is wrong, since a power plug draws less beside the GPUs."""

_MOST_OTHER_WATTS = 2000.0
"""What other kinds of monitor may measure beside that, such as that of the processors beside a small GPU."""

NO_METRIC = "is not set; send the validation metric after the epoch, or NaN if training has diverged"


class Report(NamedTuple):
    """One epoch's sums as a trainer sent them: seconds and joules since the trial's start.

    Attributes:
        energy_joules: None if no energy was measured.
        metric: None if it is missing, which is a fault.
        monitor: What the energy comes from; None if the trainer did not say.
        computed: The sums at the cheapest power limit, in observer mode.
        limit_watts_per_gpu: The GPU power limit; None if the trainer did not say.
    """

    trial: TrialId
    epoch: int
    time_seconds: float
    energy_joules: float | None
    metric: float | None
    monitor: MonitorKinds | None = None
    computed: ComputedUsage | None = None
    limit_watts_per_gpu: float | None = None


class AppliedReport(NamedTuple):
    """What follows from a report, before what ends a trial.

    Attributes:
        progress: The job and the trial since.
        measurement: The report's.
        verdict: The verdict about it.
        repeated: Whether the measurement was saved before, so that only the lease is new.
    """

    progress: Progress
    measurement: Measurement
    verdict: Verdict
    repeated: bool


def apply_report(job: Job, trial: Trial, report: Report, now: datetime) -> AppliedReport:
    """Applies a report to a running or lost trial.

    Raises:
        InvalidResultError: with one violation per fault.
    """
    spec, before = job.spec, trial.last
    progress = revive(Progress(job, trial), now) if trial.lost else Progress(job, trial)
    metric = math.nan if report.metric is None else report.metric
    sums = report.time_seconds, report.energy_joules
    measurement = Measurement(report.epoch, *sums, metric, now, report.computed, report.limit_watts_per_gpu)
    verdict = judge(spec, bound_of(progress.job, trial), measurement)
    if faults := _faults(spec, report, before, measurement, verdict.cost):
        raise InvalidResultError(*faults)
    if report.monitor and report.monitor.kinds and report.monitor != trial.monitor:
        progress = keep_monitor(progress, report.monitor)
    repeated = before is not None and before.repeats(measurement)
    trial = progress.trial.renew(measurement, spec.lease_expiry(now))
    if repeated:
        return AppliedReport(progress._replace(trial=trial), measurement, verdict, repeated)
    progress = with_epoch(progress, trial, before)
    if found := warnings_of_report(spec, trial, before, measurement, reached=verdict.target_reached):
        progress = warn(progress, found)
    return AppliedReport(progress, measurement, verdict, repeated)


def with_epoch(progress: Progress, trial: Trial, before: Measurement | None) -> Progress:
    """Adds the newest measurement to a trial; the policy observes it if it watches epochs.

    Args:
        progress: The trial before.
        trial: The trial with its newest measurement.
        before: The measurement before; None for the first one.
    """
    job, _, events = progress
    event = EpochReported(trial, job.spec, before)
    if POLICIES[job.spec.policy].watches_epochs:
        event = replace(event, number=job.num_search_events + 1)
        job = job_after(job, event)
    return Progress(job, trial, (*events, event))


def _faults(
    spec: ResolvedJob, report: Report, last: Measurement | None, measurement: Measurement, cost_joules: float
) -> Sequence[Violation]:
    """Returns what is wrong with a report."""
    faults = number_faults(spec, measurement, cost_joules)
    if report.metric is None:
        faults.append(("metric", NO_METRIC))
    if last is not None:
        faults += _order_faults(last, measurement)
    if not (faults or report.monitor):
        return ()
    violations = [Violation(f"result.measurement.{name}", fault) for name, fault in faults]
    if report.monitor is not None and (fault := monitor_fault(report.monitor)):
        violations.append(Violation("result.monitor", fault))
    return violations


def number_faults(spec: ResolvedJob, measurement: Measurement, cost_joules: float = math.inf) -> Faults:
    """Returns what is wrong with a measurement by itself.

    Args:
        spec: The job.
        measurement: The measurement.
        cost_joules: What its counted sums cost, if that is known.
    """
    faults = _sum_faults("", measurement.time_seconds, measurement.energy_joules)
    if math.isinf(measurement.metric):
        faults.append(("metric", f"is {measurement.metric}; report NaN for a metric that has diverged"))
    if measurement.epoch < 1:
        faults.append(("epoch", f"is {measurement.epoch}; count epochs from 1"))
    limit, computed = measurement.limit_watts_per_gpu, measurement.computed
    if limit is not None and (fault := power_limit_fault(limit)):
        faults.append(("power_setting.limit_watts_per_gpu", fault))
    if computed is not None:
        faults += _sum_faults("computed.", computed.time_seconds, computed.energy_joules)
        if fault := power_limit_fault(computed.limit_watts_per_gpu):
            faults.append(("computed.power_setting.limit_watts_per_gpu", fault))
    if not faults and (computed is not None or cost_joules > LARGEST_COST):
        if cost(spec, measurement.energy_joules, measurement.time_seconds) > LARGEST_COST:
            faults.append(("energy_joules", _TOO_LARGE))
        if computed and cost(spec, computed.energy_joules, computed.time_seconds) > LARGEST_COST:
            faults.append(("computed.energy_joules", _TOO_LARGE))
    return faults


def shrink_faults(last: Measurement, measurement: Measurement) -> Faults:
    """Returns what is wrong with the sums of a measurement after an earlier one."""
    faults = _smaller("", last, measurement, last.epoch)
    if last.computed is None:
        return faults
    if measurement.computed is None:
        fault = f"is not set, but was for epoch {last.epoch}; set it in all later measurements of the trial"
        return [*faults, ("computed", fault)]
    return faults + _smaller("computed.", last.computed, measurement.computed, last.epoch)


def power_limit_fault(watts: float) -> str | None:
    """Returns what is wrong with a power limit; None if nothing is."""
    return (
        None if 0 < watts < math.inf else f"is {_number(watts)}; use the limit of one GPU in watts, above 0 and finite"
    )


_TOO_LARGE = f"makes the cost exceed {LARGEST_COST:g} J; report joules and seconds"


def _sum_faults(where: str, time_seconds: float, energy_joules: float | None) -> Faults:
    faults = []
    if not 0 < time_seconds <= LARGEST_SUM:
        faults.append((f"{where}time_seconds", _bad_sum(time_seconds, "above 0")))
    if energy_joules is not None and not 0 <= energy_joules <= LARGEST_SUM:
        faults.append((f"{where}energy_joules", _bad_sum(energy_joules, "0 or more")))
    return faults


def _bad_sum(value: float, least: str) -> str:
    return f"is {_number(value)}; report the sum since the trial's first epoch, {least} and at most {LARGEST_SUM:g}"


def _number(value: float) -> str:
    return str(value) if value else "not set, or 0"


def _order_faults(last: Measurement, measurement: Measurement) -> Faults:
    epoch = measurement.epoch
    if epoch == last.epoch and not last.repeats(measurement):
        return [("epoch", f"{epoch} was already reported with other numbers; report every epoch once")]
    faults: Faults = []
    if epoch < last.epoch:
        faults.append(("epoch", f"{epoch} comes after {last.epoch}; epochs must not decrease"))
    return faults + shrink_faults(last, measurement)


def _smaller(
    where: str, last: Measurement | ComputedUsage, measurement: Measurement | ComputedUsage, epoch: int
) -> Faults:
    faults = []
    for name in ("time_seconds", "energy_joules"):
        value, before = getattr(measurement, name), getattr(last, name)
        if before is None:
            continue
        if value is None:
            fault = f"is not set, but was for epoch {epoch}; set it in all later measurements of the trial"
            faults.append((f"{where}{name}", fault))
        elif value < before:
            fault = f"{value} is less than the {before} of epoch {epoch}; report the sum so far"
            faults.append((f"{where}{name}", fault))
    return faults


def warnings_of_report(
    spec: ResolvedJob, trial: Trial, before: Measurement | None, measurement: Measurement, *, reached: bool
) -> Sequence[TrialWarning]:
    """Returns the warnings of one report.

    Args:
        spec: The job.
        trial: The trial.
        before: Its measurement before; None for the first one.
        measurement: The new measurement.
        reached: Whether it reaches the target.
    """
    excess = _of_power(spec, trial, before, measurement)
    # In every other case nothing else is found.
    if before is not None and 0 <= measurement.metric <= 1 and spec.target_metric <= 1:  # pragma: no mutate
        return [excess] if excess else ()
    found = _of_metric_and_energy(spec, trial, before, measurement, reached=reached)
    return [*found, excess] if excess else [*found]


def _of_metric_and_energy(
    spec: ResolvedJob, trial: Trial, before: Measurement | None, measurement: Measurement, *, reached: bool
) -> Iterator[TrialWarning]:
    number, epoch, metric = trial.number, measurement.epoch, measurement.metric
    ranges = _of_ranges(spec, number, before, measurement, reached=reached)
    if ranges is not None:
        # Also why the target was reached at once.
        yield ranges
    elif number == epoch == 1 and reached:
        message = (
            f"the job's first trial reached the target {spec.target_metric:g} with {metric:g} in its first epoch: "
            "register the job under a new job_id with a target that takes training, or, if "
            f"{other_better(spec)} metric is better, with that direction"
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
    spec: ResolvedJob, number: int, before: Measurement | None, measurement: Measurement, *, reached: bool
) -> TrialWarning | None:
    """Returns the warning of a metric or a target that seems to be in percent while the other one is not."""
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


def _of_power(
    spec: ResolvedJob, trial: Trial, before: Measurement | None, measurement: Measurement
) -> TrialWarning | None:
    """Returns the warning of a report of more energy than the job's GPUs can draw in its time."""
    joules, seconds = measurement.energy_joules or 0.0, measurement.time_seconds
    # The first energy after epochs without energy may be that of the whole trial.
    if before is not None and before.energy_joules is not None and seconds > before.time_seconds:
        joules, seconds = joules - before.energy_joules, seconds - before.time_seconds
    # For every report.
    if joules <= POWER_FACTOR * spec.gpu.max_power_watts * seconds:
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


def _most_watts(spec: ResolvedJob, monitor: MonitorKinds) -> float:
    most = spec.gpu.max_power_watts
    if not monitor.kinds:
        return _MOST_POWER * most
    if all(kind.removesuffix("-polled") in _GPU_KINDS for kind in monitor.kinds):
        return POWER_FACTOR * most
    return _MOST_POWER * most + _MOST_OTHER_WATTS
