"""Columns, and how the fields of a value are stored in them. A column follows from the name and the type of its field.

| type of the field | stored as |
|---|---|
| `int`, `float`, `bool`, `str` | itself; NaN is NULL, unless the field may be None |
| `datetime` | microseconds since 1970 in UTC |
| an enum | its value |
| a tuple or a set of these | JSON |
| another value | the columns of its fields, whose names begin with that of the field; all NULL for None |
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache, partial
from types import UnionType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

Row = Mapping[str, Any]
"""A row by column name."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_CACHED_TEXTS = 1024


def to_micros(time: datetime) -> int:
    """Returns microseconds since 1970, exactly."""
    return (time - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Returns the time of `to_micros`."""
    return EPOCH + micros * _MICROSECOND


class ColumnType(Enum):
    """The type of a column, as PostgreSQL names it. SQLite stores a boolean as 0 or 1."""

    INTEGER = "bigint"
    REAL = "double precision"
    TEXT = "text"
    BOOLEAN = "boolean"


class Part(Protocol):
    """The columns of one field."""

    @property
    def field(self) -> str:
        """The name of the field."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns."""

    def write(self, value: Any) -> Sequence[object]:
        """Returns what is stored for a value of the field."""

    def read(self, row: Row) -> Any:
        """Returns the value of the field."""


class Column(NamedTuple):
    """A column that stores one field.

    Attributes:
        name: The name of the column.
        type: Its type.
        field: The name of the field.
        to_stored: What is stored for a value that is not None; None: the value.
        from_stored: The value for what is stored and not NULL; None: the same.
        null: The value for NULL.
    """

    name: str
    type: ColumnType
    field: str
    to_stored: Callable[[Any], object] | None = None
    from_stored: Callable[[Any], Any] | None = None
    null: Any = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The column itself."""
        return (self,)

    def write(self, value: Any) -> Sequence[object]:
        """Returns what is stored for a value of the field."""
        return (value if value is None or self.to_stored is None else self.to_stored(value),)

    def read(self, row: Row) -> Any:
        """Returns the value of the field."""
        stored = row[self.name]
        if stored is None:
            return self.null
        return stored if self.from_stored is None else self.from_stored(stored)


class Record(Generic[T]):
    """The columns of a value's fields.

    Attributes:
        make: Makes the value from its fields.
        parts: The columns of each field.
        columns: All columns.
        nothing: What is stored instead of a value.
        write: Returns what is stored for a value.
    """

    def __init__(self, make: Callable[..., T], parts: Iterable[Part]) -> None:
        self.make = make
        self.parts = tuple(parts)
        self.columns = tuple(column for part in self.parts for column in part.columns)
        self.nothing = (None,) * len(self.columns)
        self.write: Callable[[T], Sequence[object]] = _writer(self.parts)

    def fields(self, row: Row) -> dict[str, Any]:
        """Returns the stored fields by name."""
        return {part.field: part.read(row) for part in self.parts}

    def read(self, row: Row) -> T:
        """Returns the value."""
        return self.make(**self.fields(row))


def _writer(parts: Sequence[Part]) -> Callable[[Any], Sequence[object]]:
    """Returns the function `Record.write`: one expression for all columns, since it runs for every report."""
    values, names = [], dict[str, Any]()
    for place, part in enumerate(parts):
        value = f"value.{part.field}"
        if isinstance(part, Column) and part.to_stored is None:
            values.append(value)
        elif isinstance(part, Column):
            names[f"stored_{place}"] = part.to_stored
            values.append(f"None if {value} is None else stored_{place}({value})")
        else:
            names[f"write_{place}"] = part.write
            values.append(f"*write_{place}({value})")
    writer: Callable[[Any], Sequence[object]] = eval(f"lambda value: ({', '.join(values)},)", names)  # noqa: S307 - names of fields
    return writer


class Nested(NamedTuple):
    """The columns of a field that is a value with fields of its own, or None; then the first column is NULL."""

    field: str
    record: Record[Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of its fields."""
        return self.record.columns

    def write(self, value: Any) -> Sequence[object]:
        """Returns what is stored for a value of the field."""
        return self.record.nothing if value is None else self.record.write(value)

    def read(self, row: Row) -> Any:
        """Returns the value of the field."""
        return None if row[self.columns[0].name] is None else self.record.read(row)


class Custom(NamedTuple):
    """Columns with functions of their own between them and a field."""

    field: str
    columns: tuple[Column, ...]
    write: Callable[[Any], Sequence[object]]
    read: Callable[[Row], Any]


def record_of(
    kind: Callable[..., T], *custom: Part, only: Sequence[str] = (), skip: Sequence[str] = (), prefix: str = ""
) -> Record[T]:
    """Makes the columns of a dataclass or a named tuple.

    Args:
        kind: Its class.
        custom: The columns of fields that are stored in another way than their type says.
        only: The fields that are stored; empty: all.
        skip: Fields that are not stored, or elsewhere.
        prefix: What the names of the columns begin with.
    """
    others, hints = {part.field: part for part in custom}, get_type_hints(kind)
    names = [name for name in only or _names(kind) if name not in skip]
    return Record(kind, [others.get(name) or _part(name, hints[name], prefix) for name in names])


def json_column(field: str, kind: Any, name: str = "") -> Column:
    """Makes a column that stores values of a type as JSON."""
    from_json = lru_cache(_CACHED_TEXTS)(lambda text: _from_plain(kind, json.loads(text)))
    return Column(name or field, ColumnType.TEXT, field, _to_json, from_json)


def _names(kind: Any) -> Sequence[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    names: Sequence[str] = kind._fields
    return names


def _part(field: str, hint: Any, prefix: str) -> Part:
    kind, name = _present(hint), prefix + field
    if hint is float:
        # What cannot be None is NaN where it is NULL.
        return Column(name, ColumnType.REAL, field, _finite_or_null, null=math.nan)
    if kind in _SIMPLE:
        return Column(name, _SIMPLE[kind], field, *_CODECS.get(kind, ()))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Column(name, ColumnType.TEXT, field, _value_of, kind)
    if get_origin(kind) in (tuple, frozenset):
        return json_column(field, kind, name)
    return Nested(field, record_of(kind, prefix=f"{name}_"))


def _present(hint: Any) -> Any:
    """Returns the type of what is not None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (kind,) = (each for each in get_args(hint) if each is not type(None))
    return kind


def _value_of(member: Enum) -> object:
    return member.value


def _finite_or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


_SIMPLE = {
    int: ColumnType.INTEGER,
    float: ColumnType.REAL,
    bool: ColumnType.BOOLEAN,
    str: ColumnType.TEXT,
    datetime: ColumnType.INTEGER,
}
_CODECS: Mapping[Any, tuple[Callable[[Any], object] | None, Callable[[Any], Any] | None]] = {
    bool: (None, bool),
    datetime: (to_micros, from_micros),
}


def _to_json(value: Any) -> str:
    # A set has no order; equal sets are stored alike.
    return json.dumps(sorted(value) if isinstance(value, frozenset) else value, default=_value_of)


def _from_plain(hint: Any, plain: Any) -> Any:
    """Returns a value of a type from what JSON made of it."""
    kind = _present(hint)
    if plain is None or kind in _SIMPLE:
        return plain
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if get_origin(kind) in (tuple, frozenset):
        return get_origin(kind)(map(partial(_from_plain, get_args(kind)[0]), plain))
    hints = get_type_hints(kind)
    return kind(*(_from_plain(hints[name], each) for name, each in zip(_names(kind), plain, strict=True)))
