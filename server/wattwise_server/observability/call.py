"""The call that the running task answers: for log lines, and for whoever must know who asks."""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
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


class Call:
    """One call, read only where something is to be said of it.

    Attributes:
        method: As on the wire, such as "/wattwise.v1.JobAdmin/GetJob".
        context: What gRPC knows of it; None once it is over, when gRPC has freed what lies behind it.
        request: The request; of a stream of requests nothing that says what it is about.
        named: What a stream of requests turned out to be about.
        token_id: Of the token that was refused, or "(none)"; empty for others.
    """

    # Here and not in `__init__`: every call is made, few are ever looked at.
    named: Subject | None = None
    token_id = ""
    _peer = ""
    _request_id = ""

    def __init__(self, method: str, context: Context, request: Any = None) -> None:
        self.method = method
        self.context: Context | None = context
        self.request = request

    @property
    def peer(self) -> str:
        """Address of whoever calls, as gRPC writes it."""
        if not self._peer and self.context is not None:
            self._peer = str(self.context.peer())
        return self._peer

    @property
    def request_id(self) -> str:
        """What the client calls this call; an id of the server's own when it gave none, or none that fits a line."""
        if not self._request_id:
            given = self.metadata(REQUEST_ID)
            fits = given and given.isascii() and given.isprintable() and len(given) <= _LONGEST_REQUEST_ID
            self._request_id = given if fits else secrets.token_hex(8)
        return self._request_id

    @property
    def subject(self) -> Subject:
        """The job and the trial that it is about, as the client named them."""
        return self.named or subject(self.request)

    def metadata(self, name: str) -> str:
        """The first value of a metadata key; empty without one, and once the call is over."""
        return metadata(self.context, name) if self.context is not None else ""

    def remember(self) -> None:
        """Reads what a log line needs, for one that may be written when the call is over."""
        _ = self.peer, self.request_id


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
current_trace: ContextVar[str] = ContextVar("current_trace", default="")
"""Id, in hexadecimal, of the trace that the call is part of; empty while nobody traces."""


def metadata(context: Context, name: str) -> str:
    """The first value of a metadata key of a call; empty without one."""
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return ""


def subject(message: Any) -> Subject:
    """The job and the trial that a request or an answer is about."""
    descriptor = getattr(message, "DESCRIPTOR", None)
    fields = descriptor.fields_by_name if descriptor is not None else ()
    if "result" in fields:
        return subject(message.result)
    if "trial" in fields:
        key = getattr(message.trial, "id", message.trial)
        return Subject(key.job_id, key.trial_number, key.batch_size)
    if "job" in fields:
        return Subject(getattr(message.job, "spec", message.job).job_id)
    return Subject(message.job_id if "job_id" in fields else "")
