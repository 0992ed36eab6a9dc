"""The health service, which strangers may call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2


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

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - the protocol's
        """Sends the state of a service now and when it changes."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; an empty name is the whole server")
        await super().Watch(request, context)

    async def set_all(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Sets the state of every service."""
        for name in self._services:
            await self.set(name, status)
