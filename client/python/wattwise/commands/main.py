"""The `wattwise` command: knows its subcommands, and imports and runs one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import wattwise
from wattwise.commands.parsing import Entry, Parser, add_entries
from wattwise.streams import FAILED, MISUSED, printable, run_command, write_line

ENTRIES: Mapping[str, Entry] = {
    "backup": Entry(
        "wattwise_server.commands.backup:BACKUP",
        "copy the server's database to a file; the server may be running",
        "server",
    ),
    "copy": Entry(
        "wattwise_server.commands.copy:COMMAND",
        "copy a database to another one, such as from SQLite to PostgreSQL; no server may be using either",
        "server",
    ),
    "health": Entry(
        "wattwise.commands.health:COMMAND",
        "check whether a server is serving; the exit status is 0 if it is, and each of several, else 1",
        "server",
    ),
    "jobs": Entry("wattwise.commands.jobs:COMMAND", "list, show, watch, export, control and delete jobs"),
    "migrate": Entry(
        "wattwise_server.commands.migrate:COMMAND",
        "create or migrate a database; `wattwise serve` does the same when it starts",
        "server",
    ),
    "replay": Entry(
        "wattwise_replay.command:COMMAND", "run the policies over recorded traces and compare their costs", "server"
    ),
    "restore": Entry(
        "wattwise_server.commands.backup:RESTORE",
        "replace the server's database with a backup; no server may be running",
        "server",
    ),
    "run": Entry(
        "wattwise.driver.arguments:COMMAND",
        "launch a training command repeatedly, with batch sizes that the server chooses",
        "run",
    ),
    "serve": Entry("wattwise_server.commands.serve:COMMAND", "run the server", "server"),
    "spool": Entry("wattwise.commands.spool:COMMAND", "list, send and drop trials that the server does not know yet"),
    "token": Entry(
        "wattwise_server.commands.token:COMMAND", "create, list and revoke the tokens of a server's clients", "server"
    ),
    "web": Entry("wattwise_web.command:COMMAND", "run the web page, which shows jobs and what they save", "web"),
}
"""The subcommands. What an entry names is imported once its command is used, since imports are slow."""
_NEEDED = {"server": "aiosqlite", "web": "starlette"}
"""A package of each extra without which its commands do nothing."""


class Command(Protocol):
    """A subcommand: an object that an entry of `ENTRIES` names."""

    def add_arguments(self, parser: Parser, /) -> None:
        """Declares its arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the command. What only a run needs is imported here.

        Returns:
            The exit status: 0 for success, 1 if the server refuses or is away, 2 for wrong usage.

        Raises:
            WattwiseError: printed as one line; the exit status is 1.
        """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `wattwise`.

    Args:
        argv: the arguments; None for those of the process.

    Returns:
        The command's exit status; otherwise as `run_command`; 1 if the server refuses or is away.

    Raises:
        SystemExit: with status 2 for wrong usage, and 0 after --help and --version.
    """
    return run_command("wattwise", sys.argv[1:] if argv is None else argv, _run)


def complain(message: str) -> None:
    """Prints a message on stderr, as one line."""
    # Job ids and other texts come from other users.
    write_line(printable(" ".join(message.split())))


def say(line: str) -> None:
    """Prints a line on stdout."""
    print(printable(line))  # noqa: T201 - the command's answer


def _run(arguments: Sequence[str]) -> int:
    with_help = not arguments or arguments[0].startswith("-")
    parser = _parser({name: _shown(entry) for name, entry in ENTRIES.items()} if with_help else ENTRIES)
    if not arguments:
        parser.print_help(sys.stderr)
        return MISUSED
    args = parser.parse_args(arguments)
    from wattwise.errors import WattwiseError  # noqa: PLC0415 - `--help` has no errors

    try:
        with importing(args.command):
            status: int = args.run(args)
            return status
    except WattwiseError as error:
        complain(f"wattwise {args.command}: {error}")
        return FAILED


@contextmanager
def importing(command: str) -> Iterator[None]:
    """Runs the block, which imports what a command needs.

    Raises:
        SystemExit: if an import has failed, after a line that says why: packages are not installed, or the module is
            faulty.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        complain(f"wattwise {command} {_needs(ENTRIES[command].extra or 'server')} ({error.name or error} is missing)")
        raise SystemExit(MISUSED) from error
    except ImportError as error:
        complain(f"wattwise {command}: {error}")
        raise SystemExit(FAILED) from error


def _needs(extra: str) -> str:
    return f'needs: pip install "wattwise[{extra}]"'


def _declare(name: str, entry: Entry, parser: Parser) -> None:
    with importing(name):
        command: Command = entry.load()
    command.add_arguments(parser)
    parser.set_defaults(command=name, run=command.run)


def _parser(entries: Mapping[str, Entry]) -> Parser:
    parser = Parser(
        prog="wattwise",
        description="Learns which batch size trains a recurring deep-learning job at the lowest cost.",
        epilog="See `wattwise COMMAND --help` for details.",
    )
    parser.add_argument("--version", action="version", version=f"wattwise {wattwise.__version__}")
    add_entries(parser, "COMMAND", entries, _declare)
    return parser


def _shown(entry: Entry) -> Entry:
    """Returns the entry; its help names the extra if the extra is not installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - most commands print no help

    package = _NEEDED.get(entry.extra)
    return entry if package is None or find_spec(package) else entry._replace(help=_needs(entry.extra))
