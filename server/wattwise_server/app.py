"""The composition root: store, optimizer, servicers and health, from the first socket to the last commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from wattwise import v1

from wattwise_server.clock import steady_clock
from wattwise_server.config import Config
from wattwise_server.errors import ServiceError
from wattwise_server.interceptors import Calls, Registrar
from wattwise_server.logs import say
from wattwise_server.optimizer import Optimizer
from wattwise_server.security import Security
from wattwise_server.service import BatchSizeOptimizerService, JobAdminService
from wattwise_server.store.open import open_store
from wattwise_server.unknown import UnknownMethods
from wattwise_server.watching import Watching, watching

log = logging.getLogger(__name__)

SERVICES = tuple(
    file.services_by_name[name].full_name
    for file, name in (
        (v1.RegisterJobRequest.DESCRIPTOR.file, "BatchSizeOptimizer"),
        (v1.GetJobRequest.DESCRIPTOR.file, "JobAdmin"),
    )
)

_SWEEP_SECONDS = 0.25
_LAST_ANSWERS_SECONDS = 2.0

_OPTIONS = (
    # A port that is taken is an error, never shared with whoever has it.
    ("grpc.so_reuseport", 0),
    # Trainers ping to notice that the server has vanished; the server does likewise.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


async def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what is in flight.

    Args:
        config: The settings.
        announce: Is told the address once calls are answered.

    Raises:
        StartError: when the database or the port cannot be had.
    """
    stop = _stop_signal()
    clock = steady_clock()
    security = Security(config)
    # Ports first: a start that fails for a taken one has not touched the database.
    with watching(config) as watch:
        server = grpc.aio.server(options=_OPTIONS)
        address = security.bind(server, config.address)
        async with open_store(config.database, clock, watch.observer) as store, security.rereading():
            optimizer = Optimizer(store, clock, watch.observer)
            async with _serving(config, server, security, watch, optimizer), _sweeping(optimizer):
                with watch.answering():
                    say(log, logging.INFO, "serving", address=address, database=config.database)
                    announce(address)
                    await stop.wait()
                    log.info("shutting down: finishing what is in flight")
    log.info("stopped")


@contextlib.asynccontextmanager
async def _serving(
    config: Config, server: grpc.aio.Server, security: Security, watch: Watching, optimizer: Optimizer
) -> AsyncIterator[None]:
    calls, alive = Calls(), health.aio.HealthServicer()
    services = Registrar(server, *security.wraps, calls.wrap, watch.calls.wrap).server
    v1.add_BatchSizeOptimizerServicer_to_server(BatchSizeOptimizerService(optimizer), services)
    v1.add_JobAdminServicer_to_server(JobAdminService(optimizer), services)
    health_pb2_grpc.add_HealthServicer_to_server(alive, services)
    shown = reflection.aio.ReflectionServicer((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, services)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((UnknownMethods(watch.calls.unknown),))
    await server.start()
    try:
        for name in ("", *SERVICES):
            await alive.set(name, health_pb2.HealthCheckResponse.SERVING)
        yield
    finally:
        await alive.enter_graceful_shutdown()
        calls.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(calls.finished(), config.grace_seconds)
        # What still runs now are calls beyond their grace, and others' streams, such as a watch of the health.
        await server.stop(_LAST_ANSWERS_SECONDS)
        await calls.finished()


@contextlib.asynccontextmanager
async def _sweeping(optimizer: Optimizer) -> AsyncIterator[None]:
    task = asyncio.create_task(_sweep(optimizer), name="wattwise-leases")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _sweep(optimizer: Optimizer) -> None:
    while True:
        try:
            await optimizer.expire_leases()
        except ServiceError as error:
            log.warning("leases that ran out are given up later: %s", error)
        except Exception:
            log.exception("leases that ran out could not be given up")
        await asyncio.sleep(_SWEEP_SECONDS)


def _stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Made first: whoever reads the address may send one at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
