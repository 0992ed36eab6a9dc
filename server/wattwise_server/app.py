"""The composition root: store, optimizer, servicers and health, from the first socket to the last commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from wattwise import v1

from wattwise_server.clock import steady_clock
from wattwise_server.config import Config
from wattwise_server.errors import ServiceError
from wattwise_server.observability.logs import say, say_bug
from wattwise_server.observability.watchers import Watching, watching
from wattwise_server.rpc.interceptors import Calls, Registrar
from wattwise_server.rpc.open_streams import OpenStreams
from wattwise_server.rpc.service import BatchSizeOptimizerService, JobAdminService
from wattwise_server.rpc.unknown import UnknownMethods
from wattwise_server.security.guard import Guard
from wattwise_server.store.open import open_store
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.optimizer import Optimizer
from wattwise_server.usecases.power_limits import PowerLimitProfiler

log = logging.getLogger(__name__)

SERVICES = tuple(
    file.services_by_name[name].full_name
    for file, name in (
        (v1.RegisterJobRequest.DESCRIPTOR.file, "BatchSizeOptimizer"),
        (v1.GetJobRequest.DESCRIPTOR.file, "JobAdmin"),
    )
)

_SWEEP_SECONDS = 0.25
_PRUNE_SECONDS = 600.0
_LAST_ANSWERS_SECONDS = 2.0

_OPTIONS = (
    # No request comes near it; gRPC itself refuses larger ones, before it has read them, with RESOURCE_EXHAUSTED.
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
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
    # Signals first: whoever reads the address may send one at once, and SIGHUP is to end nothing, whenever it comes.
    stop, hangup = _signalled(signal.SIGTERM, signal.SIGINT), _signalled(signal.SIGHUP)
    clock = steady_clock()
    guard = Guard(config.address, config.security)
    # Ports first: a start that fails for a taken one has not touched the database.
    with watching(config) as watch:
        server = grpc.aio.server(options=_OPTIONS)
        address = guard.bind(server)
        async with open_store(config.database, clock, watch.observer) as store, guard.rereading(hangup):
            optimizer = Optimizer(store, clock, config.limits, watch.observer)
            administration = Administration(store, clock, watch.observer)
            calls, streams = Calls(), OpenStreams(config.limits.max_streams)
            services = Registrar(server, *guard.wraps, calls.wrap, watch.calls.wrap).server
            power_limits = PowerLimitProfiler(store, clock, watch.observer)
            trainers = BatchSizeOptimizerService(optimizer, power_limits, streams)
            v1.add_BatchSizeOptimizerServicer_to_server(trainers, services)
            v1.add_JobAdminServicer_to_server(JobAdminService(administration, streams), services)
            serving = _serving(config, server, services, calls, watch)
            async with serving, _sweeping(optimizer), _pruning(optimizer):
                with watch.answering():
                    say(log, logging.INFO, "serving", address=address, database=config.database)
                    announce(address)
                    await stop.wait()
                    say(log, logging.INFO, "shutting down", message="finishing what is in flight")
    say(log, logging.INFO, "stopped")


@contextlib.asynccontextmanager
async def _serving(
    config: Config, server: grpc.aio.Server, services: grpc.aio.Server, calls: Calls, watch: Watching
) -> AsyncIterator[None]:
    alive = health.aio.HealthServicer()
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


def _sweeping(optimizer: Optimizer) -> AbstractAsyncContextManager[None]:
    return _repeating(optimizer.expire_leases, _SWEEP_SECONDS, "giving up trials whose lease ran out")


def _pruning(optimizer: Optimizer) -> AbstractAsyncContextManager[None]:
    return _repeating(optimizer.prune, _PRUNE_SECONDS, "dropping old measurements")


@contextlib.asynccontextmanager
async def _repeating(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> AsyncIterator[None]:
    task = asyncio.create_task(_repeat(work, seconds, what), name=f"wattwise: {what}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> None:
    while True:
        try:
            await work()
        except ServiceError as error:
            say(log, logging.WARNING, "upkeep put off", work=what, message=str(error))
        except Exception as error:  # noqa: BLE001 - the log gets all of it, and the next try may do better
            say_bug(log, "upkeep failed", error, work=what)
        await asyncio.sleep(seconds)


def _signalled(*numbers: signal.Signals) -> asyncio.Event:
    """An event that the signals set."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, event.set)
    return event
