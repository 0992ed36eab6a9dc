"""A trainer's report, and its validation."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple

from wattwise_server.domain import JobSpec, Measurement, MonitorKinds, TrialKey
from wattwise_server.errors import InvalidResultError, Violation
from wattwise_server.policy.cost import cost
from wattwise_server.usecases.monitors import monitor_fault

LARGEST_COST = 1e100
"""In joules: far above any real cost, and small enough for its square to be finite."""


class Report(NamedTuple):
    """One epoch's sums as a trainer sent them: seconds and joules since the trial's start.

    Attributes:
        monitor: What the energy comes from; None if the trainer did not say.
    """

    trial: TrialKey
    epoch: int
    time_seconds: float
    energy_joules: float
    metric: float
    monitor: MonitorKinds | None = None


def to_measurement(report: Report, spec: JobSpec, last: Measurement | None, now: datetime) -> Measurement:
    """The report as a measurement, validated against the trial's last one.

    Raises:
        InvalidResultError: with one violation per fault.
    """
    measurement = Measurement(report.epoch, report.time_seconds, report.energy_joules, report.metric, now)
    faults = _number_faults(spec, measurement)
    if last is not None:
        faults += _order_faults(last, measurement)
    if report.monitor is not None and (fault := monitor_fault(report.monitor)):
        faults.append(("monitor", fault))
    if faults:
        raise InvalidResultError(*(Violation(f"result.{name}", fault) for name, fault in faults))
    return measurement


def _number_faults(spec: JobSpec, measurement: Measurement) -> list[tuple[str, str]]:
    epoch, time_seconds, energy_joules, metric, _ = measurement
    faults = []
    if not 0 < time_seconds < math.inf:
        faults.append(("time_seconds", _bad_sum(time_seconds, "above 0")))
    if not 0 <= energy_joules < math.inf:
        faults.append(("energy_joules", _bad_sum(energy_joules, "0 or more")))
    if math.isinf(metric):
        faults.append(("metric", f"is {metric}; report NaN for a metric that has diverged"))
    if epoch < 1:
        faults.append(("current_epoch", f"is {epoch}; count epochs from 1"))
    if not faults and cost(spec, energy_joules, time_seconds) > LARGEST_COST:
        faults.append(("energy_joules", f"makes the cost exceed {LARGEST_COST:g} J; report joules and seconds"))
    return faults


def _bad_sum(value: float, least: str) -> str:
    return f"is {value}; report the finite sum since the trial's first epoch, {least}"


def _order_faults(last: Measurement, measurement: Measurement) -> list[tuple[str, str]]:
    epoch = measurement.epoch
    if epoch == last.epoch and not last.repeats(measurement):
        return [("current_epoch", f"{epoch} was already reported with other numbers; report every epoch once")]
    faults = []
    if epoch < last.epoch:
        faults.append(("current_epoch", f"{epoch} comes after {last.epoch}; epochs must not decrease"))
    if measurement.time_seconds < last.time_seconds:
        faults.append(("time_seconds", _smaller(measurement.time_seconds, last.time_seconds, last.epoch)))
    if measurement.energy_joules < last.energy_joules:
        faults.append(("energy_joules", _smaller(measurement.energy_joules, last.energy_joules, last.epoch)))
    return faults


def _smaller(value: float, before: float, epoch: int) -> str:
    return f"{value} is less than the {before} of epoch {epoch}; report the sum so far"
