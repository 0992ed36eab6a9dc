"""gRPC's server: its options, its port with certificates if it has any, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from wattwise import v1

from wattwise_server.config import check_port, host_and_port
from wattwise_server.errors import StartError
from wattwise_server.maintenance import repeating
from wattwise_server.observability.logs import log_event
from wattwise_server.rpc.calls import Methods
from wattwise_server.rpc.health import HealthService
from wattwise_server.security.tls import Certificates, KeyMaterial

log = logging.getLogger(__name__)

SERVICES = tuple(
    service.full_name
    for request in (v1.RegisterJobRequest, v1.GetJobRequest, v1.DeleteJobRequest, v1.GetServerInfoRequest)
    for service in request.DESCRIPTOR.file.services_by_name.values()
)

MAX_REQUEST_BYTES = 512 * 1024

_OPTIONS = (
    # Above any request; gRPC refuses larger ones with RESOURCE_EXHAUSTED before it has read them.
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # With the probe the flow-control window of a connection grows. Requests are small, and a stranger could fill a
    # large window.
    ("grpc.http2.bdp_probe", 0),
    # The limit of one connection. Otherwise gRPC reads megabytes at a time from who sends frames that no window limits.
    ("grpc.experimental.tcp_max_read_buffer_size", 65_536),
    # The calls of one connection, with those that have ended but are not freed yet: a client's further calls wait or
    # are refused with UNAVAILABLE. Twice as many as a busy process makes at a time.
    ("grpc.max_concurrent_streams", 128),
    # Calls that wait until the event loop takes them; above the first number gRPC cancels some, above the second all.
    ("grpc.server.max_pending_requests", 4_000),
    ("grpc.server.max_pending_requests_hard_limit", 8_000),
    # Connections that stay silent, and those without a call; a client opens another one when it has something to say.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    # A port that is taken is an error; without this two servers would share it.
    ("grpc.so_reuseport", 0),
    # Trainers ping to notice that the server has vanished, and the server pings them.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    # Newer versions of gRPC wait for the answer to a ping for the second time, by default a minute.
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)

_PROBES = 32
"""Connections to the port for probes."""

_CHECK_SECONDS = 0.25
_STOP_SECONDS = 2.0


def new_server(methods: Methods, connections: int, *options: tuple[str, int]) -> grpc.aio.Server:
    """Returns a server with at most so many connections."""
    limit = ("grpc.max_allowed_incoming_connections", connections)
    return grpc.aio.server(handlers=(methods,), options=(*_OPTIONS, limit, *options))


def age_options(age_seconds: float, grace_seconds: float) -> tuple[tuple[str, int], ...]:
    """Returns gRPC's options for the age of a connection in use, and the time for its last calls; age 0 is no limit."""
    if age_seconds == 0:
        return ()
    return (
        ("grpc.max_connection_age_ms", max(1, round(1000 * age_seconds))),
        ("grpc.max_connection_age_grace_ms", round(1000 * grace_seconds)),
    )


def bind(server: grpc.aio.Server, address: str, option: str, certificates: Certificates | None) -> str:
    """Binds to an address, which an option has named.

    Returns:
        The address, with the chosen port in place of 0.

    Raises:
        StartError: the address is malformed or cannot be bound.
    """
    host, _ = host_and_port(address)
    # gRPC would log why a port cannot be bound, and not say it.
    check_port(address, option)
    try:
        if certificates is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _credentials(certificates))
    except RuntimeError:
        bound = 0
    if not bound:
        raise StartError(f"cannot listen on {address} ({option}): another process has just taken the port")
    return f"{host}:{bound}"


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Returns changed certificates, or None. gRPC calls it before every handshake, one thread at a time."""
        changed = certificates.take_reloaded()
        return _configuration(changed) if changed else None

    # The stub does not allow None.
    untyped: Any = fetch
    initial = _configuration(certificates.material)
    return grpc.dynamic_ssl_server_credentials(initial, untyped, certificates.require_client_certificate)


def _configuration(material: KeyMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)


@contextlib.asynccontextmanager
async def answering_probes(address: str, health_service: HealthService) -> AsyncIterator[None]:
    """Answers the health service alone, without TLS, from before the database is opened until calls are finished."""
    if not address:
        yield
        return
    methods = Methods()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, methods.registry)
    server = new_server(methods, _PROBES)
    bound = bind(server, address, "--health-address", None)
    await server.start()
    log_event(log, logging.INFO, "serving health", address=bound)
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def serving(
    server: grpc.aio.Server,
    methods: Methods,
    health_service: HealthService,
    check: Callable[[], None],
    grace_seconds: float,
) -> AsyncIterator[None]:
    """Answers calls; health says so as long as `check` raises no ServiceError."""
    health_pb2_grpc.add_HealthServicer_to_server(health_service, methods.registry)
    reflected = reflection.aio.ReflectionServicer((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, methods.registry)  # type: ignore[no-untyped-call]
    await server.start()
    try:
        await health_service.follow(check)
        async with repeating(lambda: health_service.follow(check), _CHECK_SECONDS, "check the database"):
            yield
    finally:
        await health_service.drain()
        methods.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(methods.finished(), grace_seconds)
        # Still running now: calls that used up their grace, and streams of the health service.
        await server.stop(_STOP_SECONDS)
        await methods.finished()
