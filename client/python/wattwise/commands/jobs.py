"""`wattwise jobs`: list, show and delete jobs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from wattwise import v1
from wattwise.commands.main import MISUSED, complain, sentence
from wattwise.commands.options import add_credential_options, credentials_of
from wattwise.commands.tables import print_job, print_jobs, print_trials
from wattwise.rpc.client import Client

_STATUSES = {
    "dispatched": v1.TRIAL_STATUS_DISPATCHED,
    "succeeded": v1.TRIAL_STATUS_SUCCEEDED,
    "failed": v1.TRIAL_STATUS_FAILED,
}
_TIMEOUT_SECONDS = 10.0
_EXAMPLES = """examples:
  wattwise jobs list --prefix team-a-
  wattwise jobs trials mnist-nightly --status dispatched
  wattwise jobs show mnist-nightly --server cluster:50051 --json
"""


class JobsCommand:
    """The `jobs` subcommand of `wattwise`."""

    help = "list, show and delete jobs"

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares list, show, trials and delete."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EXAMPLES
        common = _common_options()
        actions = parser.add_subparsers(metavar="ACTION", required=True)

        def add(name: str, text: str, handler: Callable[[Client, argparse.Namespace], int]) -> argparse.ArgumentParser:
            action = actions.add_parser(name, help=text, description=sentence(text), parents=[common])
            action.set_defaults(handler=handler)
            return action

        add("list", "list all jobs, oldest first", _list).add_argument(
            "--prefix", default="", help="only jobs whose id has this prefix"
        )
        _add_id(add("show", "show a job: its configuration, its progress and the state of every batch size", _show))
        trials = add("trials", "list a job's trials by number", _trials)
        _add_id(trials)
        trials.add_argument("--status", choices=_STATUSES, help="only trials with this status")
        trials.add_argument(
            "--batch-size", type=_positive, default=0, metavar="N", help="only trials with this batch size"
        )
        delete = add("delete", "delete a job and its trials; running trials are stopped", _delete)
        _add_id(delete)
        delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    def run(self, args: argparse.Namespace, /) -> int:
        """Calls the server and prints its answer; returns 2 if a deletion needs --yes, else 0.

        Raises:
            WattwiseError: the server refuses or is away.
        """
        # A user is waiting: no retries, so that a server that is away is reported at once.
        with Client(args.server, timeout=_TIMEOUT_SECONDS, retry=False, credentials=credentials_of(args)) as client:
            handler: Callable[[Client, argparse.Namespace], int] = args.handler
            return handler(client, args)


COMMAND = JobsCommand()


def _list(client: Client, args: argparse.Namespace) -> int:
    jobs = client.list_jobs(job_id_prefix=args.prefix)
    if args.json:
        _print_json([_plain(job) for job in jobs])
    else:
        print_jobs(jobs)
    return 0


def _show(client: Client, args: argparse.Namespace) -> int:
    job = client.get_job(args.job_id)
    if args.json:
        _print_json(_plain(job))
    else:
        print_job(job)
    return 0


def _trials(client: Client, args: argparse.Namespace) -> int:
    status = _STATUSES.get(args.status, v1.TRIAL_STATUS_UNSPECIFIED)
    trials = client.list_trials(args.job_id, status=status, batch_size=args.batch_size)
    if args.json:
        _print_json([_plain(trial) for trial in trials])
    else:
        print_trials(client.get_job(args.job_id).spec, trials)
    return 0


def _delete(client: Client, args: argparse.Namespace) -> int:
    if not args.yes:
        if not sys.stdin.isatty():
            complain(f"wattwise jobs delete: stdin is not a terminal; add --yes to delete {args.job_id}")
            return MISUSED
        question = f"Delete {args.job_id} and its {client.get_job(args.job_id).num_trials} trials? [y/N] "
        # On stderr: stdout is for the answer.
        print(question, end="", file=sys.stderr, flush=True)  # noqa: T201 - a question to the user
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            complain("Not deleted.")
            return 0
    response = client.delete_job(args.job_id)
    if args.json:
        _print_json(_plain(response))
    else:
        stopped = len(response.stopped_trials)
        print(f"Deleted {args.job_id}; running trials stopped: {stopped}.")  # noqa: T201 - the command's answer
    return 0


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job_id", metavar="ID", help="the job id, as in `wattwise jobs list`")


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--server",
        default=os.environ.get("WATTWISE_SERVER") or "localhost:50051",
        metavar="ADDRESS",
        help="the server's host:port ($WATTWISE_SERVER; default: localhost:50051)",
    )
    add_credential_options(common)
    common.add_argument("--json", action="store_true", help="print a JSON document with the fields of the API")
    return common


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a batch size; use an integer above 0")
    return int(text)


def _plain(message: Message) -> dict[str, Any]:
    """The message as JSON objects, including fields that are zero."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))  # noqa: T201 - the command's answer
