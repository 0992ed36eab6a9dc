"""The health service, which strangers may call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from wattwise_server.errors import ServiceError
from wattwise_server.observability.logs import log_event

log = logging.getLogger(__name__)


LIVENESS, READINESS = "liveness", "readiness"
"""Names that a probe may ask for: whether the process answers, and whether callers should be sent here."""


class HealthService(health.aio.HealthServicer):
    """Whether the server's services are serving.

    Liveness is SERVING as long as the process answers. All other names are: once the first check has passed, unless a
    later one fails, until the server drains.

    A name that is no service of this server is refused: a watch of it, which the protocol allows, would last for ever
    and learn nothing.

    Args:
        services: The names of the server's services.
    """

    def __init__(self, services: Iterable[str]) -> None:
        super().__init__()
        # An empty name is the whole server.
        self._ready = frozenset(("", READINESS, *services))
        # Why they are not serving; empty if they are, None before the first check.
        self._why: str | None = None

    async def begin(self) -> None:
        """Sets the states before the first check."""
        await self.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._set_ready(ready=False)

    async def drain(self) -> None:
        """Sends callers away from a server that finishes its last calls."""
        await self._set_ready(ready=False)

    async def _set_ready(self, *, ready: bool) -> None:
        states = health_pb2.HealthCheckResponse
        for name in self._ready:
            await self.set(name, states.SERVING if ready else states.NOT_SERVING)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - the protocol's
        """Sends the state of a service now and when it changes."""
        if request.service not in self._ready | {LIVENESS}:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; an empty name is the whole server")
        await super().Watch(request, context)

    async def follow(self, check: Callable[[], None]) -> None:
        """Sets the state of all but liveness: serving, unless `check` raises a ServiceError; logs a change."""
        why = ""
        try:
            check()
        except ServiceError as error:
            why = error.message
        if why == self._why:
            return
        if why:
            log_event(log, logging.ERROR, "not serving", message=why)
        elif self._why is not None:
            log_event(log, logging.INFO, "serving again")
        self._why = why
        await self._set_ready(ready=not why)
