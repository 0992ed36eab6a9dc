"""The rows of a list, which is read page by page, and these rows as a table of pandas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from datetime import timezone
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row", bound=Message)
Frame: TypeAlias = "Callable[[Sequence[Any]], pd.DataFrame]"


class Rows(Iterator[Row]):
    """The rows of a list, to be read once; the next page is read when its first row is needed."""

    def __init__(self, rows: Generator[Row, None, None], frame: Frame) -> None:
        self._rows = rows
        self._frame = frame

    def __repr__(self) -> str:
        return "<Rows to be read once: in a loop, by list(), or by to_frame()>"

    def __next__(self) -> Row:
        return next(self._rows)

    def close(self) -> None:
        """Ends the list; no further page is read."""
        self._rows.close()

    def to_frame(self) -> pd.DataFrame:
        """Returns the remaining rows as a table.

        The columns have the names of the fields: "cost", and "newest.metric" for a field of a nested message. Times are
        in UTC, durations in seconds, and a value of an enum is a name such as "TARGET_REACHED". Unset fields are empty.
        Of fields that exclude each other, such as "job.spec.policy.gts" and the other policies, only those have columns
        that are set in a row. A table without rows has the columns, too.

        Raises:
            ImportError: if pandas is not installed.
        """
        return self._frame(list(self))


class AsyncRows(AsyncIterator[Row]):
    """The rows of a list, to be read once; the next page is read when its first row is needed.

    Attributes:
        frame: makes a table of rows.
    """

    def __init__(self, rows: AsyncGenerator[Row, None], frame: Frame) -> None:
        self._rows = rows
        self.frame = frame

    def __repr__(self) -> str:
        return "<AsyncRows to be read once: in a loop of `async for`, or by to_frame()>"

    async def __anext__(self) -> Row:
        return await anext(self._rows)

    async def aclose(self) -> None:
        """Ends the list; no further page is read."""
        await self._rows.aclose()

    async def to_frame(self) -> pd.DataFrame:
        """Returns the remaining rows as a table, like `Rows.to_frame`.

        Raises:
            ImportError: if pandas is not installed.
        """
        return self.frame([row async for row in self])


def frame_of(kind: type[Message], rows: Sequence[Message], *, without: str = "") -> pd.DataFrame:
    """Returns a table.

    Args:
        kind: the type of a row.
        rows: the rows.
        without: the field of a row that has no columns.

    Raises:
        ImportError: if pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - needed here only, and not installed with this package
    except ImportError as error:
        raise ImportError(f"to_frame() needs pandas: pip install pandas ({error})") from None
    empty, *records = (_record(row) for row in (kind(), *rows))
    names = dict.fromkeys(name for record in (empty, *records) for name in record)
    columns = [name for name in names if name.partition(".")[0] != without]
    return pd.DataFrame.from_records(records, columns=columns)


def _record(message: Message, prefix: str = "") -> dict[str, object]:
    """Returns the fields of a message by column; those of an unset message are None."""
    record: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        name, value = f"{prefix}{field.name}", getattr(message, field.name)
        unset = field.has_presence and not message.HasField(field.name)
        if not isinstance(value, Message) or isinstance(value, Timestamp | Duration):
            record[name] = None if unset else _plain(field, value)
        elif not unset:
            record |= _record(value, f"{name}.")
        elif field.containing_oneof is None:
            record |= dict.fromkeys(_record(value, f"{name}."))
    return record


def _plain(field: Any, value: Any) -> object:
    """Returns the value of a field, or one of several, without messages."""
    if isinstance(value, Timestamp):
        return value.ToDatetime(tzinfo=timezone.utc)
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    if isinstance(value, Message):
        return _record(value)
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str | bytes | int | float):
        return [_plain(field, each) for each in value]
    return value if field.enum_type is None else _name(field.enum_type, value)


def _name(enum: Any, number: Any) -> str | None:
    """Returns the name of a value as `EndReason` has it; None if it is unspecified, or unknown to this client."""
    names = {each.number: str(each.name) for each in enum.values}
    return names[number].removeprefix(names[0].removesuffix("UNSPECIFIED")) if number in names and number else None
