"""`wattwise jobs export`: the trials of one job or of many, for spreadsheets and programs.

The trials are read and written page by page, so that an export takes no more memory for more of them.
"""

from __future__ import annotations

import argparse
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from wattwise.commands.actions import add_jobs
from wattwise.commands.main import complain
from wattwise.errors import JobNotFoundError, WattwiseError
from wattwise.presentation.sentences import number_of
from wattwise.presentation.states import END_REASONS, TRIAL_STATUSES, JobTrial
from wattwise.presentation.trial_fields import CSV_HEADING, csv_row, json_row
from wattwise.rpc.client import Client
from wattwise.rules import MAX_PAGE
from wattwise.streams import MISUSED, printable

_EPILOG = """csv: RFC 4180, UTF-8, a line of names, then a line for each trial. Numbers have a point and no unit;
units are in the names. What a spreadsheet would take for a formula, since =, +, -, @, a tab or a line break is at the
beginning of a text or behind a semicolon in it, has an apostrophe in front. `wattwise jobs import` takes the file of
one job with its deliveries (--end-reason target-reached), for another job.
json: JSON Lines: an object for each trial on a line of its own, with the same names. Unknown is null,
a metric that is not a number is "NaN", labels are an object, and texts are as they are.
"""


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
    as_json = args.json or args.format == "json"
    written = 0
    with _output(args.output) as file:
        rows = _rows(client, args)
        if not as_json:
            file.write(CSV_HEADING)
        for row in rows:
            file.write(json_row(row) if as_json else csv_row(row))
            written += 1
    if args.output is not None and str(args.output) != "-":
        # On stderr: a pipe behind --output /dev/stdout has rows alone.
        complain(f"wattwise jobs export: wrote {number_of(written, 'trial')} to {args.output}")
    return 0


def _rows(client: Client, args: argparse.Namespace) -> Iterator[JobTrial]:
    """Yields the trials of all jobs, oldest first, a page at a time."""
    statuses = [TRIAL_STATUSES[args.status]] if args.status else []
    reasons = [END_REASONS[args.end_reason]] if args.end_reason else []
    one = args.job_id is not None
    # Called at once, so that nothing is written for an unknown job.
    listed = [client.get_job(args.job_id)] if one else client.jobs(job_id_prefix=args.prefix, page_size=MAX_PAGE)

    def rows() -> Iterator[JobTrial]:
        for job in (row.job for row in listed):
            # Of many jobs, one may be deleted meanwhile.
            with nullcontext() if one else suppress(JobNotFoundError):
                for trial in client.trials(job.spec.job_id, statuses=statuses, end_reasons=reasons, page_size=MAX_PAGE):
                    yield JobTrial(job, trial)

    return rows()


class _Printable:
    """A terminal: what would move its cursor is escaped, except ends of lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write("\n".join(map(printable, text.replace("\r\n", "\n").split("\n"))))


@contextmanager
def _output(path: Path | None) -> Iterator[Any]:
    """Opens the file to write to; one with a name appears only when it is complete.

    Raises:
        WattwiseError: if the file cannot be written.
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
        with path.open("w", encoding="utf-8", newline="") if _is_special(path) else _replacing(path) as file:
            yield file
    except OSError as error:
        raise WattwiseError(f"{path} cannot be written: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    """Returns whether a path is a device or a pipe, which cannot be replaced by a file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


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
