"""What the actions of `wattwise jobs` have in common: how they are declared, their arguments and their JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from wattwise.rpc.client import Client

Handler: TypeAlias = Callable[[Client, argparse.Namespace], int]
"""Calls the server, prints its answer, and returns the exit status."""


class AddAction(Protocol):
    """Declares an action with its help text and its handler; returns its parser, for its arguments."""

    def __call__(self, name: str, text: str, handler: Handler, /) -> argparse.ArgumentParser:
        """Declares it."""


def add_id(parser: argparse.ArgumentParser) -> None:
    """Declares the job id."""
    parser.add_argument("job_id", metavar="ID", help="the job id, as in `wattwise jobs list`")


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Declares the batch size."""
    parser.add_argument("batch_size", type=positive, metavar="BATCH_SIZE", help="one of the job's batch sizes")


def positive(text: str) -> int:
    """An integer above 0, such as a batch size or a trial number."""
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; use an integer above 0")
    return int(text)


def plain(message: Message) -> dict[str, Any]:
    """The message as JSON objects, including fields that are zero."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def print_json(document: object) -> None:
    """Prints a JSON document."""
    print(json.dumps(document, indent=2, allow_nan=False))  # noqa: T201 - the command's answer
