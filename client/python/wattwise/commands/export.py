"""`wattwise jobs export`: the trials of one job or of many, for spreadsheets and programs.

The trials are read and written page by page, so that an export takes no more memory for more of them.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wattwise import v1
from wattwise.commands.actions import PAGE, add_jobs
from wattwise.commands.csv_file import as_text, csv_line
from wattwise.commands.humanize import instant
from wattwise.commands.main import complain
from wattwise.commands.tables import END_REASONS, TRIAL_STATUSES, JobTrial
from wattwise.errors import JobNotFoundError, WattwiseError
from wattwise.monitor.kind import energy_quality, monitor_text
from wattwise.rpc.client import Client
from wattwise.spec import enum_name
from wattwise.streams import MISUSED, printable

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


_EPILOG = """csv: RFC 4180, UTF-8, a line of names, then a line for each trial. Numbers have a point and no unit;
units are in the names. What a spreadsheet would take for a formula, since =, +, -, @, a tab or a line break is at the
beginning of a text or behind a semicolon in it, has an apostrophe in front. `wattwise jobs import` takes the file of
one job with its deliveries (--end-reason target-reached), for another job.
json: JSON Lines: an object for each trial on a line of its own, with the same names. Unknown is null,
a metric that is not a number is "NaN", labels are an object, and texts are as they are.
"""

Field = Callable[[JobTrial], Any]


def add_export(parser: argparse.ArgumentParser) -> None:
    """Declares the action."""
    parser.set_defaults(handler=_export)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_jobs(parser)
    parser.add_argument("--format", choices=("csv", "json"), help="csv (default) or json; --json is --format json")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file, which is replaced once the export is complete; without it, or with -, stdout",
    )
    parser.add_argument("--status", choices=TRIAL_STATUSES, help="only trials with this status")
    parser.add_argument("--end-reason", choices=END_REASONS, help="only trials that ended for this reason")


def _export(client: Client, args: argparse.Namespace) -> int:
    if args.json and args.format == "csv":
        complain("wattwise jobs: --json cannot be combined with --format csv")
        return MISUSED
    number = itertools.count()
    as_json = args.json or args.format == "json"
    with _output(args.output) as file:
        # One number for each row that is written.
        rows = (row for row, _ in zip(_rows(client, args), number, strict=False))
        _write_json(file, rows) if as_json else _write_csv(file, rows)
    if args.output is not None and str(args.output) != "-":
        written = next(number)
        # On stderr: a pipe behind --output /dev/stdout has rows alone.
        complain(f"wattwise jobs export: wrote {written} {'trial' if written == 1 else 'trials'} to {args.output}")
    return 0


def _rows(client: Client, args: argparse.Namespace) -> Iterator[JobTrial]:
    """The trials of all jobs, oldest first, a page at a time."""
    statuses = [TRIAL_STATUSES[args.status]] if args.status else []
    reasons = [END_REASONS[args.end_reason]] if args.end_reason else []
    one = args.job_id is not None
    # Called at once, so that nothing is written for an unknown job.
    listed = [client.get_job(args.job_id)] if one else client.list_jobs(job_id_prefix=args.prefix, page_size=PAGE)

    def rows() -> Iterator[JobTrial]:
        for job in (row.job for row in listed):
            # Of many jobs, one may be deleted meanwhile.
            with nullcontext() if one else suppress(JobNotFoundError):
                for trial in client.list_trials(
                    job.spec.job_id, statuses=statuses, end_reasons=reasons, page_size=PAGE
                ):
                    yield JobTrial(job, trial)

    return rows()


def _write_csv(file: IO[str], rows: Iterable[JobTrial]) -> None:
    file.write(CSV_HEADING)
    for row in rows:
        file.write(csv_row(row))


def csv_row(row: JobTrial) -> str:
    """The line of a trial, with a cell for each of `FIELDS`."""
    return csv_line(_cell(value(row)) for value in FIELDS.values())


def _write_json(file: IO[str], rows: Iterable[JobTrial]) -> None:
    for row in rows:
        document = {name: _json(value(row)) for name, value in FIELDS.items()}
        file.write(json.dumps(document, allow_nan=False) + "\n")


def _cell(value: Any) -> str:
    """A value of `FIELDS` as the text of a cell; only texts, not numbers, are kept from being formulas."""
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


def _json(value: Any) -> Any:
    """A value that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        # As in the JSON of protobuf.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class _Printable:
    """A terminal: what would move its cursor is escaped, except ends of lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write("\n".join(map(printable, text.replace("\r\n", "\n").split("\n"))))


@contextmanager
def _output(path: Path | None) -> Iterator[Any]:
    """The file to write to; one with a name appears only when it is complete.

    Raises:
        WattwiseError: the file cannot be written.
    """
    if path is None or str(path) == "-":
        # Not closed: it is the process's.
        if sys.stdout.isatty():
            yield _Printable(sys.stdout)
            return
        if isinstance(sys.stdout, io.TextIOWrapper):
            # As in a file, whatever the language of the terminal.
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    try:
        with _special(path) if _is_special(path) else _replacing(path) as file:
            yield file
    except OSError as error:
        raise WattwiseError(f"{path} cannot be written: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    """Whether it is a device or a pipe, which cannot be replaced by a file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _special(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", newline="")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[str]]:
    # The file that a link names is replaced, not the link.
    path = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _optional(message: Any, name: str) -> Any:
    """An optional field; None if it is unset."""
    return getattr(message, name) if message.HasField(name) else None


def _trial(name: str) -> Field:
    return lambda row: _optional(row.trial, name)


def _newest(name: str) -> Field:
    """A field of the newest measurement."""
    return lambda row: _optional(row.trial.newest, name)


def _time(name: str) -> Field:
    def value(row: JobTrial) -> str | None:
        found: Timestamp | None = _optional(row.trial, name)
        return None if found is None else instant(found)

    return value


def _report_time(row: JobTrial) -> str | None:
    newest = row.trial.newest
    return instant(newest.report_time) if newest.HasField("report_time") else None


def _enum(enum: Any, value: int) -> str | None:
    """A value by its short name, such as "out_of_memory"; None for the one that says nothing."""
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
    "computed_energy_joules": lambda row: _optional(row.trial.newest.computed, "energy_joules"),
    "computed_limit_watts_per_gpu": lambda row: _limit(row.trial.newest.computed.power_setting),
    "monitor": lambda row: monitor_text(row.trial.monitor) or None,
    "energy_quality": lambda row: energy_quality(row.trial.monitor).name.lower() if row.trial.monitor.kinds else None,
    "start_time": _time("start_time"),
    "end_time": _time("end_time"),
    "last_report_time": _report_time,
    "recurrence": lambda row: _optional(row.trial, "recurrence"),
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
