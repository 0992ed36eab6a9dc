"""Compares a message with the fields that a table names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from wattwise import v1

from tests.conformance.refusal import MismatchError, compare


def check(message: Message, then: Mapping[str, Any]) -> None:
    """Compares the fields that a table names.

    Raises:
        MismatchError: a field differs.
    """
    for name, expected in then.items():
        holder = message.id if isinstance(message, v1.Trial) and name == "trial_number" else message
        field = holder.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise MismatchError(f"{message.DESCRIPTOR.name} has no field {name}")
        if expected is None:
            if holder.HasField(name):
                raise MismatchError(f"{name} is {getattr(holder, name)}, not unset")
        elif field.has_presence and not holder.HasField(name):
            raise MismatchError(f"{name} is unset, not {expected!r}")
        elif isinstance(expected, list) and field.message_type is not None:
            _check_messages(name, getattr(holder, name), expected)
        else:
            _check_value(field, getattr(holder, name), expected)


def _check_messages(name: str, messages: Any, expected: list[dict[str, Any]]) -> None:
    if len(messages) != len(expected):
        raise MismatchError(f"{name} has {len(messages)} entries, not {len(expected)}: {list(messages)}")
    for message, then in zip(messages, expected, strict=True):
        if not isinstance(then, dict):
            raise MismatchError(f"{name} has messages, not {then!r}")
        check(message, then)


def _check_value(field: Any, value: Any, expected: Any) -> None:
    if field.enum_type is not None:
        compare(field.name, field.enum_type.values_by_number[value].name, expected)
    elif field.name in ("message", "reason") and expected:
        if expected not in value:
            raise MismatchError(f"{field.name} is {value!r}, without {expected!r}")
    elif isinstance(expected, dict):
        check(value, expected)
    elif isinstance(expected, list):
        compare(field.name, list(value), expected)
    elif isinstance(expected, (bool, str)):
        compare(field.name, value, expected)
    elif not math.isclose(value, expected, rel_tol=1e-12):
        raise MismatchError(f"{field.name} is {value}, not {expected}")
