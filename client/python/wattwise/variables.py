"""Environment variables, of which none may have a control character.

A file of variables that was edited on Windows ends its lines with a carriage return, which nobody sees: it would name
another database, file or server. On the standard library alone: the server uses this module too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
"""The values of a switch, in any case."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def control_fault(text: str) -> str:
    """Returns what is wrong with a text that has a control character, and what to do; empty if it has none."""
    found = _CONTROL.search(text)
    if found is None:
        return ""
    return (
        f"has the control character {found[0]!r} at position {found.start() + 1}; remove it: files that were edited on "
        "Windows have one at the end of each line"
    )


def read_variable(name: str, error: type[Exception], variables: Mapping[str, str] = os.environ) -> str:
    """Returns the value of an environment variable; empty if it is unset.

    Args:
        name: its name.
        error: the exception to raise if the value has a control character; the message does not show the value.
        variables: the environment.
    """
    text = variables.get(name, "")
    if fault := control_fault(text):
        raise error(f"{name} {fault}")
    return text


def read_switch(name: str, error: type[Exception], variables: Mapping[str, str] = os.environ) -> bool | None:
    """Returns the value of an environment variable that is a switch; None if it is unset or empty.

    Args:
        name: its name.
        error: the exception to raise if the text is neither of 1, true, yes, on nor of 0, false, no, off.
        variables: the environment.
    """
    text = read_variable(name, error, variables)
    if text and text.lower() not in YES | NO:
        raise error(f"{name}={text!r} is invalid; use 1 or 0")
    return text.lower() in YES if text else None
