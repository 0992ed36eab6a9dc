"""`wattwise spool`: list, send and drop the trials on this machine that the server does not know yet."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from wattwise.commands.actions import add_yes, print_json, refusal
from wattwise.commands.main import complain, say
from wattwise.commands.options import add_credential_options, credentials_of
from wattwise.commands.parsing import sentence
from wattwise.commands.rows import add_table_options, arrange, print_table, table_options, unused_options
from wattwise.drafts import resolved
from wattwise.files import FileError
from wattwise.presentation.sentences import number_of
from wattwise.presentation.states import end_reason
from wattwise.presentation.terminal import Column, ages, numbers, times
from wattwise.rpc.address import check_address, server_of
from wattwise.rpc.client import Client
from wattwise.streams import FAILED, MISUSED
from wattwise.training.delivery import deliver_files
from wattwise.training.journal import DATABASE, Journal, TrialRecord, read_record
from wattwise.training.spool import Spool, drop, safe_name

_TIMEOUT_SECONDS = 10.0
_RUNNING = "running"
_EPILOG = """\
A trial is in the spool from its start until the server knows how it ended. The folder is $WATTWISE_SPOOL (off: none),
by default $XDG_STATE_HOME/wattwise or ~/.local/state/wattwise. The next launch of a job delivers its trials as well.
"""


class SpooledTrial(NamedTuple):
    """A file of the spool.

    Attributes:
        path: the file.
        record: what it says; None if it cannot be read.
        running: whether the trial's process is alive.
        fault: why it cannot be read; empty if it can.
    """

    path: Path
    record: TrialRecord | None
    running: bool
    fault: str = ""

    @classmethod
    def read(cls, path: Path) -> SpooledTrial | None:
        """Reads a file; None if it is gone."""
        try:
            journal = Journal.open(path)
            if journal is not None:
                journal.release()
                return cls(path, journal.record, running=False)
            return cls(path, read_record(path), running=True)
        except FileNotFoundError:
            return None
        except (OSError, FileError) as error:
            return cls(path, None, running=False, fault=str(error))

    @property
    def end(self) -> str:
        """How the trial ended, such as "target reached"; "not reported" if its process was killed before."""
        if self.running or self.record is None:
            return _RUNNING if self.running else "unreadable"
        reason = self.record.outcome(resolved(self.record.job))
        return end_reason(reason) if reason else "not reported"

    def document(self) -> dict[str, object]:
        """Returns the trial as JSON."""
        record = self.record
        if record is None:
            return {"path": str(self.path), "end": self.end, "running": False, "fault": self.fault}
        return {
            "path": str(self.path),
            "server": record.server,
            "job_id": record.job.job_id,
            "launch_id": record.launch_id,
            "trial_number": record.trial_number,
            "batch_size": record.batch_size,
            "epochs": len(record.results),
            "start_time": record.start_time,
            "end": self.end,
            "running": self.running,
            "refusal": record.refusal,
        }


class SpoolCommand:
    """The `spool` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares list, send and drop."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        common = argparse.ArgumentParser(add_help=False)
        common.add_argument(
            "--server", metavar="ADDRESS", help="only trials for this server, as `list` shows it (default: for all)"
        )
        common.add_argument("--job", metavar="ID", help="only trials of this job")
        actions = parser.add_subparsers(metavar="ACTION", required=True)

        def add(name: str, text: str, handler: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
            action = actions.add_parser(name, help=text, description=sentence(text), parents=[common])
            action.set_defaults(handler=handler)
            return action

        listing = add("list", "list the trials, oldest first", _list)
        listing.add_argument("--json", action="store_true", help="print a JSON document")
        add_table_options(listing, COLUMNS)
        sending = add("send", "deliver the trials, also those that the server has refused before", _send)
        sending.add_argument("--to", metavar="ADDRESS", help="the server's new address (default: that of each trial)")
        add_credential_options(sending)
        dropping = add("drop", "delete the trials without delivering them", _drop)
        add_yes(dropping)

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the action; returns 1 if something could not be sent, 2 for wrong usage, else 0.

        Raises:
            WattwiseError: if the address or the credentials cannot be used.
        """
        if wrong := unused_options(args):
            complain(f"wattwise spool: {wrong}")
            return MISUSED
        for address in (args.server, getattr(args, "to", None)):
            if address is not None and not _is_database(address):
                check_address(address)
        handler: Callable[[argparse.Namespace], int] = args.handler
        return handler(args)


COMMAND = SpoolCommand()


def _list(args: argparse.Namespace) -> int:
    found, options = _found(args), table_options(args)
    if args.json:
        print_json([each.document() for each in arrange(COLUMNS, found, options)[0]])
        return 0
    print_table(COLUMNS, found, options, empty="no trials", notes=_notes)
    return 0


def _notes(found: Sequence[SpooledTrial], names: Sequence[str]) -> Iterator[str]:
    """Yields why trials are still here, unless a column says it."""
    for each in found:
        if each.record is None:
            yield f"unreadable: {each.fault}"
        elif each.record is not None and each.record.refusal and "refusal" not in names:
            yield f"refused: {each.path}: {each.record.refusal}"


def _start(trial: SpooledTrial) -> Timestamp | None:
    """Returns when a trial began; None if that is unknown."""
    if trial.record is None:
        return None
    found = Timestamp()
    found.FromMicroseconds(int(trial.record.start_time * 1e6))
    return found


COLUMNS: Sequence[Column[SpooledTrial]] = (
    Column("server", lambda each: each.record.server if each.record else "", priority=4),
    Column("job", lambda each: each.record.job.job_id if each.record else ""),
    Column(
        "trial",
        lambda each: str(each.record.trial_number or "fallback") if each.record else "",
        order=lambda each: each.record.trial_number if each.record else None,
        priority=2,
    ),
    numbers("batch size", lambda each: each.record.batch_size if each.record else None, priority=3),
    numbers("epochs", lambda each: len(each.record.results) if each.record else None, priority=5),
    Column("end", lambda each: each.end, priority=1),
    ages("age", _start, priority=6),
    times("started", _start, priority=7),
    Column("refusal", lambda each: each.record.refusal if each.record else "", priority=9),
    Column("file", lambda each: str(each.path), priority=8),
)
"""The columns of the list of trials in the spool."""


def _send(args: argparse.Namespace) -> int:
    found = list(_found(args))
    unreadable = [each for each in found if each.record is None]
    for each in unreadable:
        complain(f"wattwise spool send: {each.fault}")
    waiting = [each for each in found if not each.running and each.record is not None]
    waiting.sort(key=_server_of)
    groups = {server: [each.path for each in group] for server, group in groupby(waiting, key=_server_of)}
    credentials = credentials_of(args)
    if len(groups) > 1 and (args.to or credentials.token or credentials.token_file):
        what = "--to is" if args.to else "a token is"
        complain(
            f"wattwise spool send: the spool has trials for several servers, and {what} for those of one: name it with "
            f"--server: {', '.join(groups)}"
        )
        return MISUSED
    delivered = refused = 0
    for server, paths in groups.items():
        if not args.to and _is_database(server):
            complain(
                f"wattwise spool send: {server} belongs to a `wattwise run` with its own server: run it again, or run "
                f"`wattwise serve --database {shlex.quote(server)}` and name its address with --to"
            )
            continue
        with Client(args.to or server, timeout=_TIMEOUT_SECONDS, retry=False, credentials=credentials) as client:
            done = deliver_files(client, paths, math.inf, server=server, refused_before=True)
        delivered, refused = delivered + done.delivered, refused + done.refused
        if done.failure is not None:
            complain(f"wattwise spool send: {done.failure}")
    left = len(waiting) - delivered + len(unreadable)
    say(f"Delivered: {delivered}; refused: {refused}; left: {left}.")
    return FAILED if left else 0


def _drop(args: argparse.Namespace) -> int:
    waiting = [each for each in _found(args) if not each.running]
    many = number_of(len(waiting), "undelivered trial")
    status = refusal(args, "wattwise spool drop", f"drop {many}", lambda: f"Drop {many}?") if waiting else None
    if status is not None:
        return status
    dropped = sum(drop(each.path) for each in waiting)
    say(f"Dropped: {dropped}.")
    return 0


def _found(args: argparse.Namespace) -> Iterator[SpooledTrial]:
    """Yields the trials that the options select; those of a file that cannot be read are known from its folders."""
    for path in Spool.named().paths():
        trial = SpooledTrial.read(path)
        if trial is None:
            continue
        if (record := trial.record) is None:
            wanted = None if args.server is None else safe_name(server_of(args.server))
            job = None if args.job is None else safe_name(args.job)
            if wanted in (None, path.parent.parent.name) and job in (None, path.parent.name):
                yield trial
        elif args.server is not None and server_of(args.server) != server_of(record.server):
            continue
        elif args.job in (None, record.job.job_id):
            yield trial


def _server_of(trial: SpooledTrial) -> str:
    return server_of(trial.record.server) if trial.record else ""


def _is_database(server: str) -> bool:
    """Returns whether a trial's server was that of its `wattwise run`."""
    return server.startswith(DATABASE)
