"""Options of the server's commands; each can be given as a variable instead: WATTWISE_ and its name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Options(Protocol):
    """What options are added to: a parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Declares one."""


class Kind(NamedTuple):
    """What the value of an option is.

    Attributes:
        metavar: What stands for it in the help.
        read: Makes it of what is written; raises argparse.ArgumentTypeError, saying what to write.
    """

    metavar: str
    read: Callable[[str], Any]


def add_option(options: Options, name: str, kind: Kind, default: object, text: str) -> None:
    """Declares an option.

    Args:
        options: What it is added to.
        name: As an attribute of the arguments, such as `log_level`.
        kind: What its value is.
        default: Its value when neither it nor its variable is given; None is none.
        text: What it does.
    """
    usual = "" if default is None else str(default)
    # As a string the default is read too, so that a bad variable is refused like a bad option.
    given = os.environ.get(_variable(name)) or usual
    shown = f"${_variable(name)}; default: {usual or 'none'}"
    options.add_argument(_flag(name), type=kind.read, default=given, metavar=kind.metavar, help=f"{text} ({shown})")


def add_switch(options: Options, name: str, text: str) -> None:
    """Declares an option without a value, which is given or not; its variable is 1 or 0."""
    given = os.environ.get(_variable(name)) or "0"
    shown = f"${_variable(name)}=1"
    options.add_argument(_flag(name), action=_Given, nargs=0, type=_yes_or_no, default=given, help=f"{text} ({shown})")


def one_of(metavar: str, values: Sequence[str]) -> Kind:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown; use {', '.join(values)}")
        return text

    return Kind(metavar, read)


def whole_number(metavar: str, least: int, most: int, more: str = "") -> Kind:
    """A whole number within bounds; `more` is what else to know of them."""

    def read(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) < 20
        if not (digits and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not right; give a whole number, {least} to {most}{more}")
        return int(text)

    return Kind(metavar, read)


def amount(metavar: str, most: float, unit: str, more: str = "") -> Kind:
    """A number from 0 to `most`; `more` is what else to know of it."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not right; give 0 to {most:g} {unit}{more}")
        return value

    return Kind(metavar, read)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


ADDRESS, URL, FILE = Kind("HOST:PORT", str), Kind("URL", str), Kind("FILE", _path)
"""Addresses and URLs are looked into by whoever uses them; a file that is empty is none."""


class _Given(argparse.Action):
    """`store_true`, but for a default that goes through `type` as those of options do."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, _values: object, _option: object = None) -> None:
        setattr(namespace, self.dest, True)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no; give 1 or 0")
    return text.lower() in _YES


def _variable(name: str) -> str:
    return f"WATTWISE_{name.upper()}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
