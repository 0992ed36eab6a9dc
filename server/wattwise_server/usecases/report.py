"""A trainer's report, and its validation."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple, TypeAlias

from wattwise_server.domain import ComputedUsage, Job, JobSpec, Measurement, MonitorKinds, Trial, TrialId
from wattwise_server.errors import InvalidResultError, Violation
from wattwise_server.observability.events import EpochReported
from wattwise_server.policy.cost import cost
from wattwise_server.usecases.monitors import monitor_fault

LARGEST_COST = 1e100
"""Joules. No real trial costs as much, and the square does not overflow a float."""

LARGEST_SUM = 1e100
"""Seconds or joules. Sums over all trials stay finite."""

Faults: TypeAlias = list[tuple[str, str]]
"""Pairs of a field's name and what to change."""


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


def to_measurement(report: Report, spec: JobSpec, last: Measurement | None, now: datetime) -> Measurement:
    """The report as a measurement, validated against the trial's last one.

    Raises:
        InvalidResultError: with one violation per fault.
    """
    sums = report.time_seconds, report.energy_joules
    metric = math.nan if report.metric is None else report.metric
    measurement = Measurement(report.epoch, *sums, metric, now, report.computed, report.limit_watts_per_gpu)
    faults = number_faults(spec, measurement)
    if report.metric is None:
        faults.append(("metric", NO_METRIC))
    if last is not None:
        faults += _order_faults(last, measurement)
    violations = [Violation(f"result.measurement.{name}", fault) for name, fault in faults]
    if report.monitor is not None and (fault := monitor_fault(report.monitor)):
        violations.append(Violation("result.monitor", fault))
    if violations:
        raise InvalidResultError(*violations)
    return measurement


def epoch_reported(job: Job, trial: Trial, before: Measurement | None, measurement: Measurement) -> EpochReported:
    """The event of a measurement after another one, or after the trial's start."""
    seconds = measurement.time_seconds - (before.time_seconds if before else 0.0)
    joules = _joules(measurement) - _joules(before)
    now, then = measurement.counted, before.counted if before else None
    # The cost is linear: the difference of two costs is the cost of the differences, which rounding cannot make
    # negative. The first computed sums of a trial may be less than what was measured before.
    counted_joules = max(0.0, _joules(now) - _joules(then))
    counted_seconds = max(0.0, now.time_seconds - (then.time_seconds if then else 0.0))
    return EpochReported(trial, seconds, joules, cost(job.spec, counted_joules, counted_seconds))


def _joules(sums: Measurement | ComputedUsage | None) -> float:
    return sums.energy_joules or 0.0 if sums else 0.0


def number_faults(spec: JobSpec, measurement: Measurement) -> Faults:
    """What is wrong with a measurement by itself."""
    epoch, time_seconds, energy_joules, metric, _, computed, limit_watts_per_gpu = measurement
    faults = _sum_faults("", time_seconds, energy_joules)
    if math.isinf(metric):
        faults.append(("metric", f"is {metric}; report NaN for a metric that has diverged"))
    if epoch < 1:
        faults.append(("epoch", f"is {epoch}; count epochs from 1"))
    if limit_watts_per_gpu is not None and (fault := power_limit_fault(limit_watts_per_gpu)):
        faults.append(("power_setting.limit_watts_per_gpu", fault))
    if computed is not None:
        faults += _sum_faults("computed.", computed.time_seconds, computed.energy_joules)
        if fault := power_limit_fault(computed.limit_watts_per_gpu):
            faults.append(("computed.power_setting.limit_watts_per_gpu", fault))
    if not faults:
        if cost(spec, energy_joules, time_seconds) > LARGEST_COST:
            faults.append(("energy_joules", _TOO_LARGE))
        if computed and cost(spec, computed.energy_joules, computed.time_seconds) > LARGEST_COST:
            faults.append(("computed.energy_joules", _TOO_LARGE))
    return faults


def shrink_faults(last: Measurement, measurement: Measurement) -> Faults:
    """What is wrong with the sums of a measurement after an earlier one."""
    faults = _smaller("", last, measurement, last.epoch)
    if last.computed is None:
        return faults
    if measurement.computed is None:
        fault = f"is not set, but was for epoch {last.epoch}; set it in all later measurements of the trial"
        return [*faults, ("computed", fault)]
    return faults + _smaller("computed.", last.computed, measurement.computed, last.epoch)


def power_limit_fault(watts: float) -> str | None:
    """What is wrong with a power limit; None if nothing is."""
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
