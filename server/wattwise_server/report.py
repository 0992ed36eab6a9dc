"""What a trainer reports, and whether it can be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from wattwise_server.domain import JobSpec, Measurement, TrialKey
from wattwise_server.errors import InvalidResultError, Violation
from wattwise_server.policy.cost import cost

LARGEST_COST = 1e100
"""In joules: far above anything, and low enough for its square and its multiples to be numbers."""


@dataclass(frozen=True, slots=True)
class Report:
    """One epoch's sums as a trainer sent them: seconds and joules since the trial's start."""

    trial: TrialKey
    epoch: int
    time_seconds: float
    energy_joules: float
    metric: float


def checked(report: Report, spec: JobSpec, last: Measurement | None, now: datetime) -> Measurement:
    """The report as a measurement of now, given the trial's newest one before.

    Raises:
        InvalidResultError: with one violation per fault.
    """
    faults = [*_number_faults(spec, report), *_order_faults(last, report)]
    if faults:
        raise InvalidResultError(*(Violation(f"result.{name}", fault) for name, fault in faults))
    return Measurement(report.epoch, report.time_seconds, report.energy_joules, report.metric, now)


def _number_faults(spec: JobSpec, report: Report) -> list[tuple[str, str]]:
    faults = []
    for name in ("time_seconds", "energy_joules"):
        value = getattr(report, name)
        if not math.isfinite(value) or value < 0:
            faults.append((name, f"is {value}; report the finite sum since the trial's first epoch, 0 or more"))
    if math.isinf(report.metric):
        faults.append(("metric", f"is {report.metric}; report NaN for a metric that has diverged"))
    if report.epoch < 1:
        faults.append(("current_epoch", f"is {report.epoch}; count epochs from 1"))
    if not faults and cost(spec, report.energy_joules, report.time_seconds) > LARGEST_COST:
        faults.append(("energy_joules", f"makes the cost exceed {LARGEST_COST:g} J; report joules and seconds"))
    return faults


def _order_faults(last: Measurement | None, report: Report) -> list[tuple[str, str]]:
    if last is None:
        return []
    as_sent = Measurement(report.epoch, report.time_seconds, report.energy_joules, report.metric, last.report_time)
    if report.epoch == last.epoch and not last.repeats(as_sent):
        return [("current_epoch", f"{report.epoch} was reported before with other numbers; report every epoch once")]
    faults = []
    if report.epoch < last.epoch:
        faults.append(("current_epoch", f"{report.epoch} comes after {last.epoch}; epochs never go back"))
    for name in ("time_seconds", "energy_joules"):
        value, before = getattr(report, name), getattr(last, name)
        if value < before:
            faults.append((name, f"{value} is less than the {before} of epoch {last.epoch}; report the sum so far"))
    return faults
