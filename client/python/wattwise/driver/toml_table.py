"""Reads tables of a TOML file into the fields of dataclasses, and collects every fault.

Schema libraries that were tried: msgspec stops at the first fault; jsonschema accepts NaN and reports unknown keys
without their path; cattrs 26.2 reads "5" as 5, 1.7 as 1 and "no" as true unless every type gets a hook; pydantic would
become a dependency of `wattwise run` on the bare package too, and messages, similar keys and checks across keys would
need as much code as now.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeAlias

from wattwise.errors import Violation, WattwiseError
from wattwise.files import FileError, read_text, shown
from wattwise.variables import control_fault

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 2**20

Condition: TypeAlias = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and whether it is."""


def parsed(path: Path, error: type[WattwiseError]) -> Mapping[str, Any]:
    """Returns the content of a TOML file.

    Args:
        path: the file.
        error: what is raised if it cannot be read.
    """
    try:
        content: Mapping[str, Any] = tomllib.loads(read_text(path, _MOST_BYTES))
        integers = list(_integers_in(content))
    except FileNotFoundError as cause:
        raise error(f"{shown(path)} cannot be read: {cause.strerror}; name another file") from cause
    except FileError as cause:
        raise error(str(cause)) from cause
    except RecursionError as cause:
        raise error(f"{path} is nested too deeply; write its tables as [job], [train] and so on") from cause
    except tomllib.TOMLDecodeError as cause:
        hint = "; write a string with backslashes in single quotes" if "\\" in str(cause) else ""
        raise error(f"{path} is not TOML: {cause}{hint}") from cause
    except ValueError as cause:
        # Python does not convert thousands of digits.
        raise error(f"{path} has an integer of more than 64 bits; use a smaller one") from cause
    for key, value in integers:
        if not -(2**63) <= value < 2**63:
            raise error(f"{path}: {key} is an integer of more than 64 bits; use a smaller one")
    return content


def _integers_in(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Yields the integers in a document, with the names of their keys."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _integers_in(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for each in value:
            yield from _integers_in(each, key)
    elif isinstance(value, int):
        yield key, value


def at_least(minimum: int) -> Condition:
    """Returns an integer from `minimum` on."""
    return f"{minimum} or more", lambda value: value >= minimum


NOT_NEGATIVE: Condition = ("a finite number, 0 or more", lambda value: 0 <= value < math.inf)
POSITIVE: Condition = ("a finite number above 0", lambda value: 0 < value < math.inf)


def _is_integer(value: object) -> bool:
    # To Python, true is an integer; in the file it is not.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and value != [] and all(map(accepts, value))


def _is_string(value: object) -> bool:
    # No argument, variable or path can have the character NUL.
    return isinstance(value, str) and "\0" not in value


_STRING: Condition = (
    "a string that is not empty, without the character NUL",
    lambda value: value != "" and _is_string(value),
)
_TYPES: Mapping[str, Condition] = {
    "str": _STRING,
    "Path": ("a path without control characters", lambda value: _STRING[1](value) and not control_fault(value)),
    "Policy": _STRING,
    "Beta": (
        'a number, or "off"',
        lambda value: value == "off" or isinstance(value, float) or (_is_integer(value) and abs(value) < 2**1023),
    ),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("an integer", _is_integer),
    "float": ("a number", lambda value: isinstance(value, float) or (_is_integer(value) and abs(value) < 2**1023)),
    "Sequence[int]": (
        "a list of integers above 0, such as [32, 64, 128]",
        lambda value: _is_list(value, lambda item: _is_integer(item) and item > 0),
    ),
    "Sequence[str]": (
        'a list of strings without the character NUL, such as ["mnist-a40"]',
        lambda value: _is_list(value, _is_string),
    ),
    "tuple[str, ...]": (
        'a list of strings without the character NUL, one for each argument, such as ["python", "train.py"]',
        lambda value: _is_list(value, _is_string),
    ),
}
"""The keys are annotations."""


class Table:
    """A table of the file.

    Args:
        name: its name in the file, such as "train".
        values: its keys and values; None if the table is missing.
        faults: receives its faults.
    """

    def __init__(self, name: str, values: Mapping[str, Any] | None, faults: list[Violation]) -> None:
        self.name = name
        self.is_present = values is not None
        self.values = values or {}
        self._faults = faults
        self._nested: set[str] = set()

    def fault(self, key: str, text: str) -> None:
        """Adds a fault of one key."""
        self._faults.append(Violation(f"{self.name}.{key}" if self.name else key, text))

    def table(self, key: str, *, required: bool = True) -> Table:
        """Returns the table under a key, with a fault if it is not a table, or required and missing."""
        self._nested.add(key)
        values = self.values.get(key)
        path = f"{self.name}.{key}" if self.name else key
        if values is None and required:
            self.fault(key, f"is missing; the file needs a table [{path}]")
        if values is not None and not isinstance(values, Mapping):
            self.fault(key, f"is not a table; write [{path}] above its keys")
            values = None
        return Table(path, values, self._faults)

    def check_keys(self, known: Sequence[str]) -> None:
        """Adds a fault for every unknown key, with the known key that is most similar."""
        for key in self.values:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}"
                self.fault(key, f"is unknown; {hint}")

    def read(self, kind: type[Any], *, partly: bool = False, **conditions: Condition) -> dict[str, Any]:
        """Returns the valid values for the fields of a dataclass, by name, without those of nested tables.

        Args:
            kind: the dataclass; a field without a default is required.
            partly: whether no field is required.
            conditions: what values of the right type must also be, by field.
        """
        self.check_keys([field.name for field in fields(kind)])
        valid: dict[str, Any] = {}
        for field in fields(kind):
            if field.name in self._nested:
                continue
            annotation = str(field.type).removesuffix(" | None")
            if field.name not in self.values:
                if not partly and field.default is MISSING and self.is_present:
                    self.fault(field.name, "is missing")
                continue
            value = self.values[field.name]
            required, is_valid = _TYPES[annotation]
            if is_valid(value) and field.name in conditions:
                required, is_valid = conditions[field.name]
            if not is_valid(value):
                self.fault(field.name, f"is {value!r}; use {required}")
            elif annotation in ("float", "Beta") and value != "off":
                valid[field.name] = float(value)
            else:
                valid[field.name] = tuple(value) if isinstance(value, list) else value
        return valid
