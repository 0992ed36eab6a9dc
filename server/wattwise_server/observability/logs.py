"""Log lines: one per event, human-readable or JSON, with the fields of the running call.

Clients cannot forge log lines: non-printable characters are escaped.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from contextvars import Context
from datetime import datetime, timezone
from typing import Any, NamedTuple, TextIO

from wattwise.streams import printable

from wattwise_server.errors import StorageUnavailableError, UnauthenticatedError
from wattwise_server.observability.call import current_call, current_trace

REFUSED = "call refused"
"""The event of a refused call, the only one that callers can cause without limit and that changes nothing."""

_MAX_VALUE = 1000
_NOISY = ("aiosqlite", "asyncio", "filelock", "grpc", "opentelemetry")


def configure(level: str, form: str) -> None:
    """Configures the log of this process, which goes to stderr.

    Args:
        level: The lowest severity that is logged: debug, info, warning or error.
        form: human or json.
    """
    handler = _Handler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.getLogger().level, logging.WARNING))


def log_event(log: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Logs an event with its fields; fields that are None are omitted.

    Args:
        log: The logger.
        level: The severity, such as `logging.INFO`.
        event: A short, stable name of what happened.
        fields: The details.
    """
    if log.isEnabledFor(level):
        log.log(level, event, extra={"fields": {key: value for key, value in fields.items() if value is not None}})


def log_exception(log: logging.Logger, event: str, error: BaseException, **fields: object) -> None:
    """Logs an unexpected exception with its traceback."""
    log.error(event, extra={"fields": fields}, exc_info=error)


class RefusalSource(NamedTuple):
    """Whose refusals are counted together.

    Attributes:
        peer: The caller's host.
        token: The id of its token; empty if it has no valid one.
        method: What it called; empty without a valid token.
        reason: Why it was refused.
        message: What the storage says, if that is the reason; all callers are then one source.
    """

    peer: str
    token: str
    method: str
    reason: str
    message: str = ""


def logged_reason(reason: str) -> str:
    """Returns a reason as the log has it."""
    return reason.removeprefix("ERROR_REASON_")


_STRANGER = logged_reason(UnauthenticatedError.reason)
_STORAGE = logged_reason(StorageUnavailableError.reason)
_OTHERS = RefusalSource("others", "", "", "any")


class RefusalLimit:
    """Which refusals are logged: of each source, only the first few in a while.

    Args:
        lines: How many are logged in each span of time.
        storage_lines: How many with the same message of the storage.
        seconds: The length of the span.
        max_sources: How many sources are counted apart; further ones are counted together.
    """

    def __init__(
        self, lines: int = 20, storage_lines: int = 3, seconds: float = 10.0, max_sources: int = 1_000
    ) -> None:
        self._lines, self._storage_lines = lines, storage_lines
        self._seconds = seconds
        self._max_sources = max_sources
        self._ends = 0.0
        self._counts: dict[RefusalSource, int] = {}

    def admits(self, source: RefusalSource) -> bool:
        """Counts a refusal; returns whether it is to be logged."""
        if source not in self._counts and len(self._counts) >= self._max_sources:
            source = _OTHERS
        self._counts[source] = count = self._counts.get(source, 0) + 1
        return count <= self._lines_of(source)

    def left_out(self, now: float) -> list[tuple[RefusalSource, int]]:
        """Returns the sources and numbers of the refusals that were not logged, once their span of time is over.

        Args:
            now: Seconds on a clock that does not jump.
        """
        if now < self._ends:
            return []
        counts, self._counts, self._ends = self._counts, {}, now + self._seconds
        return [(each, count - self._lines_of(each)) for each, count in counts.items() if count > self._lines_of(each)]

    def _lines_of(self, source: RefusalSource) -> int:
        return self._storage_lines if source.reason == _STORAGE else self._lines


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._refusals = RefusalLimit()

    def emit(self, record: logging.LogRecord) -> None:
        for source, count in self._refusals.left_out(time.monotonic()):
            summary = logging.makeLogRecord(
                {"name": record.name, "levelno": logging.WARNING, "levelname": "WARNING", "msg": "refusals not logged"}
            )
            named = {name: value for name, value in source._asdict().items() if value}
            summary.fields = {**named, "count": count}
            # Without the fields of the call that happens to be running.
            Context().run(super().emit, summary)
        if record.msg != REFUSED or self._refusals.admits(_source(record)):
            super().emit(record)


def _source(record: logging.LogRecord) -> RefusalSource:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    call, reason = current_call.get(), str(fields.get("reason"))
    if reason == _STORAGE:
        return RefusalSource("", "", "", reason, str(fields.get("message")))
    if call is None:
        return RefusalSource("", "", "", reason)
    if reason == _STRANGER or not call.token_id:
        # What a stranger claims to be and calls is no source of its own: it could be another one with every call.
        return RefusalSource(call.host, "", "", reason)
    return RefusalSource(call.host, call.token_id, call.method.rpartition("/")[2], reason)


class _Formatter(logging.Formatter):
    def _time(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        return f"{moment.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        logged: Mapping[str, object] = getattr(record, "fields", {})
        fields = {**logged, **{key: value for key, value in _call_fields().items() if key not in logged}}
        return {key: _short(value) for key, value in fields.items()}

    def _exception(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class HumanFormatter(_Formatter):
    """Time, level, event and `key=value` for each field; a traceback follows in lines that start with a bar."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        ours = record.name.partition(".")[0] == "wattwise_server"
        words = [self._time(record), f"{record.levelname:7}", "" if ours else f"{record.name}:"]
        words.append(printable(record.getMessage()))
        words += [f"{key}={_quoted(value)}" for key, value in self._fields(record).items()]
        trace = [f"    | {printable(line)}" for line in self._exception(record).splitlines()]
        return "\n".join([" ".join(word for word in words if word), *trace])


class JsonFormatter(_Formatter):
    """One object per line: time, level, event, logger, the fields, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record."""
        document: dict[str, Any] = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fields(record),
            "logger": record.name,
        }
        if exception := self._exception(record):
            document["exception"] = exception
        return json.dumps(document, default=str)


def _call_fields() -> dict[str, object]:
    call = current_call.get()
    if call is None:
        return {}
    named = call.subject
    known: dict[str, object] = {
        "job": named.job_id,
        "trial": named.trial_number,
        "batch_size": named.batch_size,
        "method": call.method.rpartition("/")[2],
        "token": call.token_id,
        "peer": call.peer,
        "call_id": call.call_id,
        "trace_id": current_trace.get(),
    }
    return {key: value for key, value in known.items() if value}


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        return f"{value[:_MAX_VALUE]}…"
    # JSON has no infinity.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(char in text for char in ' "=\\')
    return text if plain else f'"{printable(text.translate(_QUOTED))}"'


_QUOTED = str.maketrans({'"': '\\"', "\\": "\\\\"})
