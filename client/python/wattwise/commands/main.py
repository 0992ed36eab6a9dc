"""The `wattwise` command: finds its subcommands by their entry points, and runs one."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Protocol

from wattwise.errors import WattwiseError, printable

GROUP = "wattwise.commands"
_EXTRAS = {"run": "run", "web": "web"}
"""The extra that installs a command's packages, where it is not `server`."""
FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


class Command(Protocol):
    """A subcommand: an object that an entry point of the group `wattwise.commands` names."""

    @property
    def help(self) -> str:
        """A short description."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares its arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the command.

        Returns:
            The exit status: 0 for success, 1 if the server refuses or is away, 2 for wrong usage.

        Raises:
            WattwiseError: printed as one line; the exit status is 1.
        """


class UnavailableCommand:
    """Stands in for a command that cannot be loaded: its packages are not installed, or its import fails.

    Args:
        name: the command's name.
        error: why.
    """

    def __init__(self, name: str, error: ImportError) -> None:
        if isinstance(error, ModuleNotFoundError):
            self.help = f'needs: pip install "wattwise[{_EXTRAS.get(name, "server")}]"'
            self._message = f"wattwise {name} {self.help} ({error.name or error} is missing)"
            self._status = MISUSED
        else:
            self.help = "cannot be loaded"
            self._message = f"wattwise {name}: {error}"
            self._status = FAILED

    def add_arguments(self, _parser: argparse.ArgumentParser, /) -> None:
        """Declares none: the command's arguments are unknown."""

    def run(self, _args: argparse.Namespace, /) -> int:
        """Prints why the command is not available."""
        complain(self._message)
        return self._status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `wattwise`.

    Args:
        argv: the arguments; None for those of the process.

    Returns:
        The command's exit status; 1 if the server refuses or is away, 130 after Ctrl-C.

    Raises:
        SystemExit: with status 2 for wrong usage, and 0 after --help and --version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe is gone; Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def complain(message: str) -> None:
    """Prints a message on stderr, as one line."""
    # Job ids and other texts come from other users.
    print(printable(" ".join(message.split())), file=sys.stderr)  # noqa: T201 - the command's answer


def say(line: str) -> None:
    """Prints a line on stdout."""
    print(printable(line))  # noqa: T201 - the command's answer


def _run(arguments: list[str]) -> int:
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    name = next((word for word in arguments if not word.startswith("-")), None)
    # Only the requested command is imported, because imports may be slow; --help imports all.
    wanted = {name: points[name]} if name in points else points
    commands = {name: load(point) for name, point in sorted(wanted.items())}
    parser = _parser(commands)
    if not arguments:
        parser.print_help(sys.stderr)
        return MISUSED
    if name is not None and name not in points:
        parser.error(_unknown(name, points))
    if isinstance(unavailable := commands.get(name or ""), UnavailableCommand):
        return unavailable.run(argparse.Namespace())
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown arguments: {' '.join(unknown)}; see `wattwise {args.command} --help`")
    try:
        status = commands[args.command].run(args)
    except WattwiseError as error:
        complain(f"wattwise {args.command}: {error}")
        return FAILED
    sys.stdout.flush()
    return status


def load(point: metadata.EntryPoint) -> Command:
    """The command of an entry point, or its stand-in if it cannot be imported."""
    try:
        command: Command = point.load()
    except ImportError as error:
        return UnavailableCommand(point.name, error)
    return command


def _unknown(name: str, names: Mapping[str, object]) -> str:
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the commands are {', '.join(sorted(names))}"
    return f"unknown command {name!r}; {hint}"


def sentence(text: str) -> str:
    """A short description as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def _parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wattwise",
        description="Learns which batch size trains a recurring deep-learning job at the lowest cost.",
        epilog="See `wattwise COMMAND --help` for details.",
    )
    parser.add_argument("--version", action="version", version=f"wattwise {metadata.version('wattwise')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in commands.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=sentence(command.help)))
    return parser
