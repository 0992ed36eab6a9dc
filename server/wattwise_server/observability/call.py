"""The call that the running task answers, for log lines, metrics and traces."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

CALL_ID = "x-request-id"
"""Metadata key with the client's id of the call, which errors and log lines repeat."""

_MAX_CALL_ID = 100


class CallContext(Protocol):
    """The part of gRPC's ServicerContext that is read here."""

    def peer(self) -> str:
        """Returns the address of the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None:
        """Returns pairs of key and value."""


class Subject(NamedTuple):
    """The job and the trial that a message names; empty and 0 for what it does not name."""

    job_id: str = ""
    trial_number: int = 0
    batch_size: int = 0


class Call:
    """One call. Everything is read on demand: most calls are never logged.

    Attributes:
        method: The full method name, such as "/wattwise.v1.JobReader/GetJob".
        context: gRPC's context; None after the call, when gRPC has freed it.
        streams: Whether the client or the server may send more than one message.
        request: The request; None for a stream of requests.
        response: The response; None before it exists and for a stream of responses.
        code: The name of the status that the call ended with; empty before.
        named: What a stream of requests turned out to be about.
        token_id: The id of the token; "(none)" if the call was refused for the lack of one, empty if none is needed.
        reach: The job ids that the token may access start with this; empty: every job, or no token is needed.
        role: The name of the token's role; empty if no token is needed.
    """

    # Class attributes instead of assignments in `__init__`, which runs for every call.
    request: Any = None
    response: Any = None
    code = ""
    named: Subject | None = None
    token_id = ""
    reach = ""
    role = ""
    _peer = ""
    _call_id = ""

    def __init__(self, method: str, context: CallContext, *, streams: bool = False) -> None:
        self.method = method
        self.context: CallContext | None = context
        self.streams = streams

    @property
    def peer(self) -> str:
        """The caller's address in gRPC's notation."""
        if not self._peer and self.context is not None:
            self._peer = str(self.context.peer())
        return self._peer

    @property
    def host(self) -> str:
        """The caller's address without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def call_id(self) -> str:
        """The client's id of this call, or a generated one if the client sent none that fits a log line."""
        if not self._call_id:
            sent = self.metadata(CALL_ID)
            fits = sent and sent.isascii() and sent.isprintable() and len(sent) <= _MAX_CALL_ID
            self._call_id = sent if fits else secrets.token_hex(8)
        return self._call_id

    @property
    def subject(self) -> Subject:
        """The job and the trial, from the response if it names them, else from what the client sent."""
        answered = subject(self.response)
        return answered if answered.job_id else self.named or subject(self.request)

    def metadata(self, name: str) -> str:
        """Returns the first text value of a metadata key; empty if it is absent, or after the call."""
        return next((value for key, value in self.text_metadata() if key == name), "")

    def text_metadata(self) -> list[tuple[str, str]]:
        """Returns all metadata whose values are text; empty after the call."""
        pairs = (self.context.invocation_metadata() if self.context is not None else None) or ()
        return [(key, value) for key, value in pairs if isinstance(value, str)]

    def remember(self) -> None:
        """Reads what a log line needs while the context exists, for lines written after the call."""
        _ = self.peer, self.call_id


class CallListener(Protocol):
    """Is notified of calls, on the event loop; its methods must be fast and must not raise."""

    def call_started(self, call: Call) -> Callable[[], None]:
        """Notes that a call arrived; the returned function is called in the same context when the call has ended."""

    def unknown_method_called(self) -> None:
        """Notes that a client called a method that this server does not have."""

    def message_counter(self, method: str, direction: str) -> Callable[[], None] | None:
        """Returns a function to call for each message "received" or "sent" on a stream of a method; None: no call."""


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
current_trace: ContextVar[str] = ContextVar("current_trace", default="")
"""Hexadecimal id of the call's trace; empty without tracing."""


def caller_token() -> str:
    """Returns the id of the token of the running call; empty if there is none."""
    call = current_call.get()
    return call.token_id if call is not None else ""


def subject(message: Any) -> Subject:
    """Returns the job and the trial that a request or a response names."""
    descriptor = getattr(message, "DESCRIPTOR", None)
    fields = descriptor.fields_by_name if descriptor is not None else ()
    for part in ("result", "heartbeat"):
        if part in fields and message.HasField(part):
            return subject(getattr(message, part))
    if "trial" in fields:
        trial = message.trial
        key = getattr(trial, "id", trial)
        return Subject(key.job_id, key.trial_number, getattr(trial, "batch_size", 0))
    if "job" in fields:
        return Subject(getattr(message.job, "spec", message.job).job_id)
    return Subject(message.job_id if "job_id" in fields else "")
