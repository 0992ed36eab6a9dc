"""The fields of a trial in a file for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wattwise import v1
from wattwise.monitor.kind import energy_quality, monitor_text
from wattwise.presentation.quantities import instant, optional
from wattwise.presentation.states import JobTrial
from wattwise.spec import enum_name

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


def csv_line(cells: Iterable[str]) -> str:
    """Returns a line of a CSV file, as in RFC 4180."""
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()


def as_text(text: str) -> str:
    """Returns a text for a cell, with an apostrophe before what a spreadsheet would take for a formula."""
    return _FORMULA.sub(r"\1'", text)


_FORMULA = re.compile("(^|[;\t\r\n])(?=[ '\"]*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")
"""The beginning of what a spreadsheet takes for a formula, also in the full width of East Asian characters.

Where the decimal sign is a comma, a spreadsheet separates cells at semicolons and does not see the quotes of this file.
"""


Field = Callable[[JobTrial], Any]


def _trial(name: str) -> Field:
    return lambda row: optional(row.trial, name)


def _newest(name: str) -> Field:
    """Returns a field of the newest measurement."""
    return lambda row: optional(row.trial.newest, name)


def _time(name: str) -> Field:
    def value(row: JobTrial) -> str | None:
        found: Timestamp | None = optional(row.trial, name)
        return None if found is None else instant(found)

    return value


def _report_time(row: JobTrial) -> str | None:
    newest = row.trial.newest
    return instant(newest.report_time) if newest.HasField("report_time") else None


def _enum(enum: Any, value: int) -> str | None:
    """Returns a value by its short name, such as "out_of_memory"; None for the one that says nothing."""
    if not value:
        return None
    return enum_name(enum, value).replace(" ", "_")


def _reason(warning: v1.TrialWarning) -> str:
    return _enum(v1.WarningReason, warning.reason) or "unknown"


def _of_pruning_gts(value: Callable[[v1.PruningGtsTrial], object]) -> Field:
    return lambda row: value(row.trial.pruning_gts) if row.trial.HasField("pruning_gts") else None


def _limit(setting: v1.PowerSetting) -> float | None:
    return setting.limit_watts_per_gpu if setting.HasField("limit_watts_per_gpu") else None


FIELDS: Mapping[str, Field] = {
    "job": lambda row: row.job.spec.job_id,
    "trial": lambda row: row.trial.id.trial_number,
    "batch_size": lambda row: row.trial.batch_size,
    "origin": lambda row: _enum(v1.TrialOrigin, row.trial.origin),
    "status": lambda row: _enum(v1.TrialStatus, row.trial.status),
    "end_reason": lambda row: _enum(v1.EndReason, row.trial.end_reason),
    "target_reached": lambda row: row.trial.target_reached,
    "converged": lambda row: row.trial.converged,
    "epoch": lambda row: row.trial.newest.epoch or None,
    "metric": _newest("metric"),
    "target_metric": lambda row: row.job.spec.target.value,
    "time_seconds": _newest("time_seconds"),
    "energy_joules": _newest("energy_joules"),
    "cost_joules": _trial("cost"),
    "cost_bound_joules": _trial("cost_bound"),
    "limit_watts_per_gpu": lambda row: _limit(row.trial.newest.power_setting),
    "computed_time_seconds": lambda row: row.trial.newest.computed.time_seconds or None,
    "computed_energy_joules": lambda row: optional(row.trial.newest.computed, "energy_joules"),
    "computed_limit_watts_per_gpu": lambda row: _limit(row.trial.newest.computed.power_setting),
    "monitor": lambda row: monitor_text(row.trial.monitor) or None,
    "energy_quality": lambda row: energy_quality(row.trial.monitor).name.lower() if row.trial.monitor.kinds else None,
    "start_time": _time("start_time"),
    "end_time": _time("end_time"),
    "last_report_time": _report_time,
    "recurrence": lambda row: optional(row.trial, "recurrence"),
    "role": _of_pruning_gts(lambda of: _enum(v1.PruningGtsRole, of.role)),
    "pruning_round": _of_pruning_gts(lambda of: of.pruning_round),
    "excluded": lambda row: row.trial.excluded,
    "before_reset": lambda row: row.trial.id.trial_number <= row.job.reset_after,
    "reason": lambda row: row.trial.reason or None,
    "decision": lambda row: row.trial.decision_message or None,
    "warnings": lambda row: " ".join(map(_reason, row.trial.warnings)) or None,
    "labels": lambda row: dict(row.trial.labels),
    "host": lambda row: row.trial.labels.get("host") or None,
    "token_id": lambda row: row.trial.token_id or None,
    "launch_id": lambda row: row.trial.id.launch_id or None,
}
"""The columns by name, in their order; a later version adds more at the end. Units are in the names."""


CSV_HEADING = csv_line(FIELDS)
"""The first line of an export."""


def csv_row(row: JobTrial) -> str:
    """Returns the line of a trial, with a cell for each of `FIELDS`."""
    return csv_line(_cell(value(row)) for value in FIELDS.values())


def _cell(value: Any) -> str:
    """Returns a value of `FIELDS` as the text of a cell; only texts, not numbers, are kept from being formulas."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Mapping():
            return _cell(json.dumps(dict(sorted(value.items())), ensure_ascii=False) if value else None)
    return as_text(str(value))


def json_row(row: JobTrial) -> str:
    """Returns the line of a trial in JSON Lines, with the names of `FIELDS`."""
    return json.dumps({name: _json(value(row)) for name, value in FIELDS.items()}, allow_nan=False) + "\n"


def _json(value: Any) -> Any:
    """Returns a value as JSON has it: texts for numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        # As in the JSON of protobuf.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
