"""Copies values into messages by the names of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)

Kind: TypeAlias = Any
"""The descriptor of a type of messages; stubs and versions of protobuf disagree about its class."""

Convert: TypeAlias = Callable[[Any], Any]
"""Maps a value other than None to what the constructor of a message accepts for a field; None leaves it unset."""

INSIDE = ""
"""The key of `renamed` for the attribute that has all attributes that are not listed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Copier:
    """Makes messages of values whose attributes have the names of the fields.

    Times, spans and enums are converted, nested values become nested messages, and None leaves a field unset. How to do
    so is worked out once for each type of message. Nested messages are given to the constructor of the outermost one as
    dictionaries: to create them first and then copy them takes three times as long.

    Args:
        renamed: For types of messages, the attributes of those fields whose names differ; a dotted name is an attribute
            of an attribute.
        conversions: For types of messages, what maps a value to the fields of the message, or to None.
    """

    def __init__(
        self, renamed: Mapping[type[Message], Mapping[str, str]], conversions: Mapping[type[Message], Convert]
    ) -> None:
        self._renamed = {kind.DESCRIPTOR: names for kind, names in renamed.items()}
        self._conversions = {kind.DESCRIPTOR: convert for kind, convert in conversions.items()}
        self._conversions |= {Timestamp.DESCRIPTOR: _timestamp, Duration.DESCRIPTOR: _duration}
        self._known: dict[Kind, Convert] = {}

    def message(self, kind: type[M], value: object) -> M:
        """Returns a message with the attributes of a value."""
        return kind(**self.fields(kind.DESCRIPTOR)(value))

    def fields(self, kind: Kind) -> Convert:
        """Returns what maps a value to the fields of a message."""
        convert = self._known.get(kind)
        if convert is None:
            convert = self._known[kind] = self._conversions.get(kind) or self._copying(kind)
        return convert

    def _copying(self, kind: Kind) -> Convert:
        renamed = self._renamed.get(kind, {})
        inside = f"{renamed[INSIDE]}." if INSIDE in renamed else ""
        names = [field.name for field in kind.fields]
        conversions = [
            (field.name, convert) for field in kind.fields if (convert := self._conversion(field)) is not None
        ]
        # With one name or none, attrgetter would not return a tuple.
        get = attrgetter(*(renamed.get(name, inside + name) for name in names), "__class__", "__class__")

        def fields(value: object) -> dict[str, Any]:
            found = dict(zip(names, get(value)))  # noqa: B905 - the classes are left over
            for name, convert in conversions:
                if (known := found[name]) is not None:
                    found[name] = convert(known)
            return found

        return fields

    def _conversion(self, field: FieldDescriptor) -> Convert | None:
        """Returns how the value of a field is converted; None if the constructor accepts it as it is."""
        if field.enum_type is not None:
            return _number_of(field.enum_type)
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            return None
        convert = self.fields(field.message_type)
        if field.has_presence:
            return convert
        # It is repeated. No attribute tells so in all versions of protobuf.
        return lambda values: [each for each in map(convert, values) if each is not None] if values else None


def _number_of(kind: EnumDescriptor) -> Convert:
    """Returns what maps a member of an Enum, or its value, to the number of the wire's value of this name."""
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    numbers = {each.name.removeprefix(prefix): each.number for each in kind.values}
    return lambda member: numbers[member if isinstance(member, str) else member.value]


def _timestamp(time: datetime) -> Mapping[str, int]:
    since = time - _EPOCH
    return {"seconds": since.days * 86_400 + since.seconds, "nanos": since.microseconds * 1_000}


@lru_cache(maxsize=64)
def _duration(span: timedelta) -> Duration:
    """Returns a span as a message, which nobody changes."""
    message = Duration()
    message.FromTimedelta(span)
    return message
