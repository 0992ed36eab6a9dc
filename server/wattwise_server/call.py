"""The call that the running task answers: for log lines, and for whoever must know who asks."""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

REQUEST_ID = "x-request-id"
"""Metadata key by which a client names its call; the name returns in errors and in the log."""

_LONGEST_REQUEST_ID = 100


class Subject(NamedTuple):
    """The job that a message is about, and its trial; 0 and empty for what it does not name."""

    job_id: str = ""
    trial_number: int = 0
    batch_size: int = 0


@dataclass(slots=True, eq=False)
class Call:
    """One call, read only where something is to be said of it.

    Attributes:
        method: As on the wire, such as "/wattwise.v1.JobAdmin/GetJob".
        context: What gRPC knows of it.
        request: The request; of a stream the first message, once it has come.
        response: The answer; of a stream nothing.
        code: Name of the status that it was or will be answered with.
        reason: Name of the ErrorReason of a call that was refused; empty for others.
        trace_id: Of the trace that it is part of, in hexadecimal; empty while nobody traces.
    """

    method: str
    context: Context
    request: Any = None
    response: Any = None
    code: str = "OK"
    reason: str = ""
    trace_id: str = ""
    _made_id: str = ""

    @property
    def peer(self) -> str:
        """Address of whoever calls, as gRPC writes it."""
        return str(self.context.peer())

    @property
    def request_id(self) -> str:
        """What the client calls this call; an id of the server's own when it gave none, or none that fits a line."""
        given = self.metadata(REQUEST_ID)
        if given and given.isascii() and given.isprintable() and len(given) <= _LONGEST_REQUEST_ID:
            return given
        self._made_id = self._made_id or secrets.token_hex(8)
        return self._made_id

    @property
    def subject(self) -> Subject:
        """The job and the trial that it is about, as the client named them."""
        return subject(self.request)

    def metadata(self, name: str) -> str:
        """The first value of a metadata key; empty without one."""
        for key, value in self.context.invocation_metadata() or ():
            if key == name and isinstance(value, str):
                return value
        return ""


class CallWatcher(Protocol):
    """Is told of every call, on the event loop; has to be quick and to keep its errors to itself."""

    def began(self, call: Call) -> None:
        """A call arrived."""

    def received(self, call: Call) -> None:
        """A stream's message arrived."""

    def sent(self, call: Call) -> None:
        """A stream's message was sent."""

    def ended(self, call: Call, seconds: float) -> None:
        """A call was answered, or its client has gone, so long after it began."""


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


def subject(message: Any) -> Subject:
    """The job and the trial that a request or an answer is about."""
    fields = message.DESCRIPTOR.fields_by_name if message is not None else ()
    for holder in ("result", "heartbeat"):
        if holder in fields and message.HasField(holder):
            return subject(getattr(message, holder))
    if "trial" in fields:
        named = message.trial
        key = named.id if "id" in named.DESCRIPTOR.fields_by_name else named
        return Subject(key.job_id, key.trial_number, key.batch_size)
    if "job" in fields:
        return Subject(getattr(message.job, "spec", message.job).job_id)
    return Subject(message.job_id if "job_id" in fields else "")
