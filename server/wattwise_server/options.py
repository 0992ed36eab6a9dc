"""Options of commands; each can be set by an environment variable: WATTWISE_ and its name.

A dataclass of settings declares its options with its fields: `setting` has the default, the kind and the help of an
option. `add_settings` and `settings_of` derive the parser and read the settings from its arguments.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from wattwise.files import SMALL, FileError, read_text
from wattwise.variables import NO, YES, control_fault

SETTING = "setting"
"""The key of a field's metadata with its Setting."""

_LONGEST_LABEL = 200


Settings = TypeVar("Settings")


class Options(Protocol):
    """A parser, or a group of a parser."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Adds an option."""


class Kind(NamedTuple):
    """The kind of value that an option has.

    Attributes:
        metavar: Its name in the help.
        parse: Converts the text; raises argparse.ArgumentTypeError if it is invalid.
    """

    metavar: str
    parse: Callable[[str], Any]


class Group(NamedTuple):
    """A group of options in the help."""

    title: str
    text: str | None = None


class Setting(NamedTuple):
    """The option of a field of settings.

    Attributes:
        kind: The kind of its value; None for a switch, which is on or off.
        text: Its help.
        group: Its group.
    """

    kind: Kind | None
    text: str
    group: Group


def setting(group: Group, default: Any, kind: Kind | None, text: str) -> Any:
    """Returns a field of a dataclass of settings; its option has the field's name. `kind` is None for a switch."""
    return field(default=default, metadata={SETTING: Setting(kind, text, group)})


def add_settings(parser: argparse.ArgumentParser, settings: type[Any]) -> None:
    """Declares the options of a dataclass of settings, and of the dataclasses in it."""
    groups: dict[Group, Options] = {}
    for declared in declared_settings(settings):
        known: Setting = declared.metadata[SETTING]
        if known.group not in groups:
            groups[known.group] = parser.add_argument_group(known.group.title, known.group.text)
        if known.kind is None:
            add_switch(groups[known.group], declared.name, known.text)
        else:
            add_option(groups[known.group], declared.name, known.kind, declared.default, known.text)


def settings_of(settings: type[Settings], args: argparse.Namespace) -> Settings:
    """Returns the settings of parsed arguments."""
    values = {
        each.name: settings_of(type(each.default), args) if is_dataclass(each.default) else getattr(args, each.name)
        for each in fields(settings)  # type: ignore[arg-type]
    }
    return settings(**values)


def declared_settings(settings: type[Any]) -> Iterator[Field[Any]]:
    """Yields the fields with an option of a dataclass, and of the dataclasses in it."""
    for each in fields(settings):
        if is_dataclass(each.default):
            yield from declared_settings(type(each.default))
        else:
            yield each


def add_option(options: Options, name: str, kind: Kind, default: object, text: str, *, variable: str = "") -> None:
    """Declares an option.

    Args:
        options: What it is added to.
        name: As an attribute of the arguments, such as `log_level`.
        kind: The kind of its value.
        default: Its value if neither the option nor the variable is set; None for no value.
        text: Its help.
        variable: Its variable, if that is not WATTWISE_ and its name.
    """
    variable = variable or _variable(name)
    shown_default = "" if default is None else str(default)
    # argparse parses a default that is a string: an invalid variable is refused like an invalid option.
    value = os.environ.get(variable) or shown_default
    shown = f"${variable}; default: {shown_default or 'none'}"
    parse = _checked(kind.parse, variable)
    options.add_argument(_flag(name), type=parse, default=value, metavar=kind.metavar, help=f"{text} ({shown})")


def add_switch(options: Options, name: str, text: str, *, variable: str = "") -> None:
    """Declares an option without a value; its variable is 1 or 0."""
    variable = variable or _variable(name)
    value = os.environ.get(variable) or "0"
    shown = f"${variable}=1"
    parse = _checked(_yes_or_no, variable)
    options.add_argument(_flag(name), action=_StoreTrue, nargs=0, type=parse, default=value, help=f"{text} ({shown})")


def one_of(metavar: str, values: Sequence[str]) -> Kind:
    """Returns a kind whose values are these words."""

    def parse(text: str) -> str:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text!r} is invalid; use one of {', '.join(values)}")
        return text

    return Kind(metavar, parse)


def whole_number(metavar: str, least: int, most: int, more: str = "") -> Kind:
    """Returns a kind whose values are integers within bounds; `more` is added to the error."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) < 20
        if not (digits and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is invalid; use an integer from {least} to {most}{more}")
        return int(text)

    return Kind(metavar, parse)


def optional(kind: Kind) -> Kind:
    """Returns a kind that also accepts an empty text, which is no value, such as that of a variable set to nothing."""
    return Kind(kind.metavar, lambda text: kind.parse(text) if text else None)


def amount(metavar: str, most: float, unit: str, more: str = "", least: float = 0) -> Kind:
    """Returns a kind whose values are numbers from `least` to `most`; `more` is added to the error."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            bounds = f"{least:g} to {most:g} {unit}".rstrip()
            raise argparse.ArgumentTypeError(f"{text!r} is invalid; use {bounds}{more}")
        return value

    return Kind(metavar, parse)


def _checked(parse: Callable[[str], Any], variable: str) -> Callable[[str], Any]:
    """Refuses control characters in a variable; those in arguments were refused before."""

    def parsed(text: str) -> Any:
        if fault := control_fault(text):
            raise argparse.ArgumentTypeError(f"{variable} {fault}")
        return parse(text)

    return parsed


def _label(text: str) -> str:
    if not text.isprintable() or len(text) > _LONGEST_LABEL:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid; use at most {_LONGEST_LABEL} printable characters")
    return text


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _url(text: str) -> str:
    """Returns a URL, or that in the file behind an @, which keeps passwords out of command lines and variables."""
    if not text.startswith("@"):
        return text
    try:
        url = read_text(Path(text[1:]), SMALL).strip()
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such file") from None
    except FileError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if fault := control_fault(url):
        raise argparse.ArgumentTypeError(f"{text!r}: the URL in the file {fault}")
    return url


ADDRESS, URL, FILE, LABEL = Kind("HOST:PORT", str), Kind("URL", _url), Kind("FILE", _path), Kind("TEXT", _label)
"""Addresses and URLs are checked where they are used; an empty file name means no file."""

DATABASE_HELP = "the database, as sqlite:///FILE, postgresql://USER@HOST/DATABASE, or @FILE for a file with the URL"


class _StoreTrue(argparse.Action):
    """`store_true`, with a default that is parsed by `type`."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, _values: object, _option: object = None) -> None:
        setattr(namespace, self.dest, True)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in YES | NO:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid; use 1 or 0")
    return text.lower() in YES


def _variable(name: str) -> str:
    return f"WATTWISE_{name.upper()}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
