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


class HealthService(health.aio.HealthServicer):
    """Whether the server's services are serving.

    A name that is no service of this server is refused: a watch of it, which the protocol allows, would last for ever
    and learn nothing.

    Args:
        services: The names that may be asked for; "" is the server as a whole.
    """

    def __init__(self, services: Iterable[str]) -> None:
        super().__init__()
        self._services = frozenset(services)
        # Why they are not serving; empty if they are, None before the first check.
        self._why: str | None = None

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - the protocol's
        """Sends the state of a service now and when it changes."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; an empty name is the whole server")
        await super().Watch(request, context)

    async def follow(self, check: Callable[[], None]) -> None:
        """Sets the state of every service: serving, unless `check` raises a ServiceError; logs a change."""
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
        states = health_pb2.HealthCheckResponse
        for name in self._services:
            await self.set(name, states.NOT_SERVING if why else states.SERVING)
