"""The call that the running task answers: for log lines, and for whoever must know who asks."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

REQUEST_ID = "x-request-id"
"""Metadata key by which a client names its call; the name returns in errors and in the log."""

_LONGEST_REQUEST_ID = 100


@dataclass(frozen=True, slots=True)
class Call:
    """One call, read only where something is to be said of it."""

    method: str
    context: Context

    @property
    def peer(self) -> str:
        """Address of whoever calls, as gRPC writes it."""
        return str(self.context.peer())

    @property
    def request_id(self) -> str:
        """What the client calls this call; empty when it gave no name, or none that a log line can hold."""
        given = self.metadata(REQUEST_ID)
        return given if given.isascii() and given.isprintable() and len(given) <= _LONGEST_REQUEST_ID else ""

    def metadata(self, name: str) -> str:
        """The first value of a metadata key; empty without one."""
        for key, value in self.context.invocation_metadata() or ():
            if key == name and isinstance(value, str):
                return value
        return ""


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
