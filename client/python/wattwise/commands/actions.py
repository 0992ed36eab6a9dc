"""What the actions of `wattwise jobs` have in common: how they are declared, their arguments and their JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeAlias

from google.protobuf.message import Message

from wattwise import v1
from wattwise.commands.main import complain
from wattwise.commands.parsing import near
from wattwise.errors import JobNotFoundError, WattwiseError
from wattwise.rpc.client import Client
from wattwise.rules import MAX_INT32, MAX_PAGE
from wattwise.streams import MISUSED, printable

Handler: TypeAlias = Callable[[Client, argparse.Namespace], int]
"""Calls the server, prints its answer, and returns the exit status."""


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Declares the option that answers the question of `refusal`."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def refusal(args: argparse.Namespace, command: str, deed: str, question: Callable[[], str]) -> int | None:
    """Asks before something is done that cannot be undone, unless --yes is used.

    Args:
        args: with the option of `add_yes`.
        command: the words of the command, such as "wattwise jobs delete".
        deed: what it would do, such as "delete mnist-nightly".
        question: the question, whose answer is yes or no; called only if it is asked.

    Returns:
        None to do it; else the exit status, after a line that says why it is not done.
    """
    if args.yes:
        return None
    if not sys.stdin.isatty():
        complain(f"{command}: stdin is not a terminal; add --yes to {deed}")
        return MISUSED
    # On stderr: stdout is for the answer.
    print(printable(f"{question()} [y/N] "), end="", file=sys.stderr, flush=True)  # noqa: T201 - a question to the user
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return None
    complain("Nothing was changed.")
    return 0


def add_id(parser: argparse.ArgumentParser) -> None:
    """Declares the job id."""
    parser.add_argument("job_id", metavar="ID", help="the job id, as in `wattwise jobs list`")


def add_jobs(parser: argparse.ArgumentParser, without_id: str = "all jobs") -> None:
    """Declares which jobs an action is about: one, those with a prefix, or `without_id`."""
    jobs = parser.add_mutually_exclusive_group()
    jobs.add_argument("job_id", metavar="ID", nargs="?", type=_job_id, help=f"this job alone; without ID, {without_id}")
    jobs.add_argument("--prefix", default="", help="only jobs whose id has this prefix")


def add_trial_number(parser: argparse.ArgumentParser) -> None:
    """Declares the number of a trial."""
    parser.add_argument("trial_number", type=positive, metavar="N", help="its number in `wattwise jobs trials ID`")


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Declares the batch size."""
    parser.add_argument("batch_size", type=positive, metavar="BATCH_SIZE", help="one of the job's batch sizes")


def _job_id(text: str) -> str:
    # A variable of a script that is empty must not mean all jobs.
    if not text:
        raise argparse.ArgumentTypeError("the job id is empty")
    return text


def positive(text: str) -> int:
    """Returns an integer above 0, such as a batch size or a trial number."""
    if (number := whole_number(text)) is None or not 0 < number <= MAX_INT32:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid; use an integer from 1 to {MAX_INT32}")
    return number


def whole_number(text: str) -> int | None:
    """Returns the integer that digits write; None for other texts, and for numbers too large for the API."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def plain(message: Message) -> dict[str, Any]:
    """Returns the message as JSON objects, including fields that are zero."""
    # Imported here because tables do not need it.
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


@contextmanager
def near_ids(client: Client, job_id: str | None) -> Iterator[None]:
    """Names the job with the nearest id in the error for a job that does not exist.

    Raises:
        JobNotFoundError: with that id.
    """
    try:
        yield
    except JobNotFoundError as error:
        hint = near(job_id, _candidates(client, job_id)) if job_id else ""
        if not hint:
            raise
        raise JobNotFoundError(f"{error}; {hint}", reason=error.reason, metadata=error.metadata) from None


def _candidates(client: Client, job_id: str) -> Iterator[str]:
    """Yields ids that may be meant: those that contain what was typed, and those of the jobs that were active last."""
    # What helps an error must not fail, nor take long where there are many jobs.
    with suppress(WattwiseError):
        recent = client.jobs(order=v1.JOB_ORDER_LAST_ACTIVITY, page_size=MAX_PAGE)
        for row in (*islice(client.jobs(contains=job_id, page_size=1), 1), *islice(recent, MAX_PAGE)):
            yield row.job.spec.job_id


def print_json(document: object) -> None:
    """Prints a JSON document."""
    print(json.dumps(document, indent=2, allow_nan=False))  # noqa: T201 - the command's answer
