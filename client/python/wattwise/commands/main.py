"""The `wattwise` command: finds its subcommands by their entry points and runs one."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Protocol

from wattwise.errors import WattwiseError

GROUP = "wattwise.commands"
_EXTRAS = {"run": "run"}
"""By command: the extra that brings its packages, where that is not the server's."""
FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


class Command(Protocol):
    """A subcommand: any object of this shape that an entry point of the group `wattwise.commands` names."""

    @property
    def help(self) -> str:
        """What it does, in a few words."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares its arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Does it.

        Returns:
            The process's exit status: 0 when all went well, 1 when the server refused or is away, 2 for wrong usage.

        Raises:
            WattwiseError: What went wrong; it is shown in one line, and the exit status is 1.
        """


class MissingCommand:
    """Stands for a command whose packages are not installed.

    Args:
        name: The command's name.
        module: The module that is missing.
    """

    def __init__(self, name: str, module: str) -> None:
        self.help = f'needs: pip install "wattwise[{_EXTRAS.get(name, "server")}]"'
        self._message = f"wattwise {name} {self.help} ({module} is missing)"

    def add_arguments(self, _parser: argparse.ArgumentParser, /) -> None:
        """Declares none: what its arguments mean is not known here."""

    def run(self, _args: argparse.Namespace, /) -> int:
        """Says what to install."""
        complain(self._message)
        return MISUSED


class BrokenCommand:
    """Stands for a command that is installed and cannot be loaded, such as one that a faulty policy is in the way of.

    Args:
        name: The command's name.
        error: Why.
    """

    def __init__(self, name: str, error: ImportError) -> None:
        self.help = "cannot be loaded"
        self._message = f"wattwise {name}: {error}"

    def add_arguments(self, _parser: argparse.ArgumentParser, /) -> None:
        """Declares none: what its arguments mean is not known here."""

    def run(self, _args: argparse.Namespace, /) -> int:
        """Says why."""
        complain(self._message)
        return FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `wattwise`.

    Args:
        argv: The arguments; None for those of the process.

    Returns:
        The exit status: that of the command; 1 when the server refused or is away, 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2 for wrong usage, and 0 after --help and --version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone; Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def complain(message: str) -> None:
    """Prints one line on stderr, whatever the message looks like."""
    print(" ".join(message.split()), file=sys.stderr)  # noqa: T201 - the command's answer


def _run(arguments: list[str]) -> int:
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    name = next((word for word in arguments if not word.startswith("-")), None)
    # Only the command that is run is imported: the others may be slow to import, and --help wants them all.
    wanted = {name: points[name]} if name in points else points
    commands = {name: load(point) for name, point in sorted(wanted.items())}
    parser = _parser(commands)
    if not arguments:
        parser.print_help(sys.stderr)
        return MISUSED
    if name is not None and name not in points:
        parser.error(unknown(name, points))
    if isinstance(stand_in := commands.get(name or ""), MissingCommand | BrokenCommand):
        return stand_in.run(argparse.Namespace())
    args, strange = parser.parse_known_args(arguments)
    if strange:
        parser.error(f"unknown arguments: {' '.join(strange)}; see `wattwise {args.command} --help`")
    try:
        status = commands[args.command].run(args)
    except WattwiseError as error:
        complain(f"wattwise {args.command}: {error}")
        return FAILED
    sys.stdout.flush()
    return status


def load(point: metadata.EntryPoint) -> Command:
    """The command of an entry point, or its stand-in when what it imports is not installed or cannot be loaded."""
    try:
        command: Command = point.load()
    except ModuleNotFoundError as error:
        return MissingCommand(point.name, error.name or str(error))
    except ImportError as error:
        return BrokenCommand(point.name, error)
    return command


def unknown(name: str, names: Mapping[str, object]) -> str:
    """Says that a command does not exist, and which one may have been meant."""
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(sorted(names))}"
    return f"unknown command {name!r}; {hint}"


def sentence(text: str) -> str:
    """A command's few words as they stand by themselves."""
    return f"{text[0].upper()}{text[1:]}."


def _parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wattwise",
        description="Learns which batch size trains a recurring deep-learning job most cheaply.",
        epilog="`wattwise COMMAND --help` says more about each.",
    )
    parser.add_argument("--version", action="version", version=f"wattwise {metadata.version('wattwise')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in commands.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=sentence(command.help)))
    return parser
