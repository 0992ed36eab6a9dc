"""Command lines: parsers that declare their arguments when they are used, and that say briefly what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_PART = 3
"""The shortest part of a known word that is taken for the word."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors have a usage of one line, and the nearest known word for an unknown one.

    Attributes:
        declare: declares its arguments, once the parser is used, so that other commands are not imported for it.
    """

    declare: Callable[[Parser], None] | None = None

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses; an unknown argument is an error already here, in the parser that knows the similar ones."""
        if self.declare is not None:
            declare, self.declare = self.declare, None
            declare(self)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            hint = near(unknown[0].partition("=")[0], options)
            self.error(f"unknown arguments: {' '.join(unknown)}{hint and f'; {hint}'}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, and ends with status 2."""
        needed = [action for action in self._actions if action.required or not action.option_strings]
        usage = self.formatter_class(prog=f"{self.prog} [OPTIONS]")
        usage.add_usage(None, needed, [])
        self.exit(2, f"{usage.format_help().strip()}\n{self.prog}: {message}\n`{self.prog} --help` explains it\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is none of the choices, as argparse does, but names the nearest one."""
        if action.choices is None or value in action.choices:
            return
        hint = near(str(value), action.choices) or f"use one of {', '.join(map(str, action.choices))}"
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the class has no public name
            self.error(f"unknown {str(action.metavar).lower()} {value!r}; {hint}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")


class Entry(NamedTuple):
    """A subcommand that is not imported yet.

    Attributes:
        target: the module and the name of what declares it, such as "wattwise.commands.jobs:COMMAND".
        help: a short description.
        extra: the extra with its packages; empty if it needs none.
    """

    target: str
    help: str
    extra: str = ""

    def load(self) -> Any:
        """Imports what the target names."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


def add_entries(
    parser: argparse.ArgumentParser,
    metavar: str,
    entries: Mapping[str, Entry],
    declare: Callable[[str, Entry, Parser], None],
) -> None:
    """Declares subcommands, each of which declares its arguments when it is used.

    Args:
        parser: gets the subcommands.
        metavar: what they are in its help, such as "ACTION".
        entries: the subcommands by name.
        declare: imports a subcommand and declares its arguments in its parser.
    """
    subparsers = parser.add_subparsers(metavar=metavar, required=True, parser_class=Parser)
    for name, entry in entries.items():
        subparser = subparsers.add_parser(name, help=entry.help, description=sentence(entry.help))
        subparser.declare = lambda used, name=name, entry=entry: declare(name, entry, used)


def near(word: str, known: Iterable[object]) -> str:
    """A question with the known word that is nearest to a word, such as "did you mean 'jobs'?"; empty without one."""
    import difflib  # noqa: PLC0415 - only errors need it

    words = list(map(str, known))
    longer = [each for each in words if len(word) >= _LEAST_PART and word.lower() in each.lower()]
    nearest = difflib.get_close_matches(word, words, n=1) or sorted(longer, key=len)[:1]
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def sentence(text: str) -> str:
    """A short description as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
