"""Command lines: parsers that declare their arguments when they are used, and that say briefly what is wrong."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTION = re.compile(r"--?[^\W\d_][^\s]*")
_LEAST_PART = 3
"""The shortest part of a known word that is taken for the word."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors have a usage of one line, and the nearest known word for an unknown one.

    Attributes:
        declare: declares its arguments, once the parser is used, so that other commands are not imported for it.
    """

    declare: Callable[[Parser], None] | None = None
    _typed: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses, and refuses unknown arguments here already, in the parser that knows the similar ones."""
        if self.declare is not None:
            declare, self.declare = self.declare, None
            declare(self)
        self._typed = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(_unknown_text(unknown, self._hint(unknown)))
        return found, unknown

    def _options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _hint(self, unknown: Sequence[str]) -> str:
        return near(unknown[0].partition("=")[0], self._options())

    def _unknown_options(self, end: str) -> list[str]:
        """Returns the unknown options before a word, also as abbreviations."""
        found, options = [], self._options()
        for word in takewhile(lambda word: word not in ("--", end), self._typed):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if _OPTION.fullmatch(word) and not any(option.startswith(name) for option in options):
                found.append(word)
        return found

    def _of_unknown_options(self, end: str = "--") -> str:
        """Returns what is wrong if there are unknown options before a word.

        A parser with subcommands tells only those that are similar to a known option: others may be its subcommand's.
        """
        unknown = self._unknown_options(end)
        hint = self._hint(unknown) if unknown else ""
        return _unknown_text(unknown, hint) if hint or (unknown and self._subparsers is None) else ""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong, and ends with status 2."""
        # A misspelt option is often the one that is missing, and argparse reports only that.
        if message.endswith("required") or "are required: " in message:
            message = self._of_unknown_options() or message
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
            # The value of an unknown option looks like a subcommand.
            self.error(
                self._of_unknown_options(str(value)) or f"unknown {str(action.metavar).lower()} {value!r}; {hint}"
            )
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")


def _unknown_text(unknown: Sequence[str], hint: str) -> str:
    return f"unknown arguments: {' '.join(unknown)}{hint and f'; {hint}'}"


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
    """Returns a question with the nearest known word, such as "did you mean 'jobs'?"; empty without one."""
    import difflib  # noqa: PLC0415 - only errors need it

    words = list(map(str, known))
    longer = [each for each in words if len(word) >= _LEAST_PART and word.lower() in each.lower()]
    nearest = difflib.get_close_matches(word, words, n=1) or sorted(longer, key=len)[:1]
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def sentence(text: str) -> str:
    """Returns a short description as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
