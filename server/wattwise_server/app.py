"""The composition root: builds the parts of the server, starts them and shuts them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from wattwise import v1

from wattwise_server.clock import steady_clock
from wattwise_server.config import Config
from wattwise_server.errors import ServiceError, StartError
from wattwise_server.observability.events import Observer
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.observability.telemetry import telemetry
from wattwise_server.rpc.calls import Methods, StreamLimit
from wattwise_server.rpc.health import HealthService
from wattwise_server.rpc.listening import bind
from wattwise_server.rpc.paging import PageTokens
from wattwise_server.rpc.service import (
    BatchSizeOptimizerService,
    JobControlService,
    JobReaderService,
    ServerInfoService,
)
from wattwise_server.security.guard import Guard
from wattwise_server.store.base import Store
from wattwise_server.store.open import is_shared, open_store, shown_url
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.imports import Importer
from wattwise_server.usecases.optimizer import Optimizer
from wattwise_server.usecases.power_limits import PowerLimitProfiler
from wattwise_server.usecases.statistics import Statistics

log = logging.getLogger(__name__)

SERVICES = tuple(
    service.full_name
    for request in (v1.RegisterJobRequest, v1.GetJobRequest, v1.DeleteJobRequest, v1.GetServerInfoRequest)
    for service in request.DESCRIPTOR.file.services_by_name.values()
)

MAX_REQUEST_BYTES = 512 * 1024

_MOST_FILES = 2**20

_M_ARENA_MAX = -8
"""The constant of glibc's malloc.h."""

_SWEEP_SECONDS = 0.25
_SHARED_SWEEP_SECONDS = 1.0
"""The interval for a database that every server asks."""

_COUNT_SECONDS = 10.0
_PRUNE_SECONDS = 600.0
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_LOG_AGAIN_SECONDS = 60.0

_OPTIONS = (
    # Above any request; gRPC refuses larger ones with RESOURCE_EXHAUSTED before it has read them.
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # With the probe the flow-control window of a connection grows. Requests are small, and a stranger could fill a
    # large window.
    ("grpc.http2.bdp_probe", 0),
    # Of one connection. Otherwise gRPC reads megabytes at a time from who sends frames that no window limits.
    ("grpc.experimental.tcp_max_read_buffer_size", 65_536),
    # Of one connection, those that have ended but are not freed yet included: a client's further calls wait or are
    # refused with UNAVAILABLE. Twice as many as a busy process makes at a time.
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


_RESERVED_FILES = 128
"""Files for the database, the log, certificates, metrics and probes."""

_PROBES = 32
"""Connections to the port for probes."""


def raise_file_limit() -> int:
    """Raises the number of files that this process may open as far as it is allowed to; returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else soft


def share_heap() -> None:
    """Lets all threads allocate from one heap, where the C library is glibc.

    gRPC keeps about a hundred bytes of each call that is cancelled. In a heap for each thread, which is glibc's usual
    way, these keep four times as much memory from being used again.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def age_options(config: Config) -> tuple[tuple[str, int], ...]:
    """When gRPC closes a connection that is in use, and how long its calls may go on then."""
    if config.max_connection_age_seconds == 0:
        return ()
    return (
        ("grpc.max_connection_age_ms", max(1, round(1000 * config.max_connection_age_seconds))),
        ("grpc.max_connection_age_grace_ms", round(1000 * config.grace_seconds)),
    )


class Crowd:
    """Warns when no connection is left: gRPC closes further ones without a word.

    Args:
        most: The largest number of connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._own = _open_files()
        self._full = False

    async def look(self) -> None:
        """Logs that the connections are used up, once until some are free again."""
        full = _open_files() - self._own >= self._most
        if full and not self._full:
            hint = "further ones are closed; raise --max-connections, or find who opens so many"
            log_event(log, logging.WARNING, "connections used up", max_connections=self._most, message=hint)
        self._full = full


def _open_files() -> int:
    """The number of open files; 0 where the system does not say."""
    try:
        with os.scandir("/proc/self/fd") as files:
            return sum(1 for _ in files)
    except OSError:
        return 0


async def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the calls in flight.

    Args:
        config: The settings.
        announce: Called with the address when calls are answered.

    Raises:
        StartError: the database cannot be opened or the port cannot be bound.
    """
    # Before the address is announced: its reader may send a signal at once, and SIGHUP must never end the server.
    stop, hangup = _signalled(signal.SIGTERM, signal.SIGINT), _signalled(signal.SIGHUP)
    share_heap()
    files = raise_file_limit()
    guard = Guard(config.address, config.security)
    with telemetry(config) as watch:
        streams = StreamLimit(config.limits.max_streams)
        methods = Methods(watch.listeners, guard.authorization, streams)
        connections = min(config.limits.max_connections or files, max(1, files - _RESERVED_FILES))
        options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections), *age_options(config))
        server = grpc.aio.server(handlers=(methods,), options=options)
        # Before the database is opened: a start that fails because the port is taken has not touched it.
        address = bind(server, config.address, "--address", guard.certificates)
        health_service = HealthService(SERVICES)
        await health_service.begin()
        async with (
            _answering_probes(config.health_address, health_service),
            _opened(config.database, watch.observer, stop) as store,
            guard.rereading(hangup),
        ):
            clock = store.clock
            optimizer = Optimizer(store, clock, config.limits, watch.observer)
            importer = Importer(store, clock, config.limits, watch.observer)
            administration = Administration(store, clock, watch.observer)
            power_limits = PowerLimitProfiler(store, clock, watch.observer)
            trainers = BatchSizeOptimizerService(optimizer, importer, power_limits, streams)
            v1.add_BatchSizeOptimizerServicer_to_server(trainers, methods.registry)
            control, tokens = Control(store, clock, watch.observer), PageTokens(store.page_token_key)
            statistics = Statistics(store, config.factors)
            reader = JobReaderService(administration, statistics, streams, tokens)
            v1.add_JobReaderServicer_to_server(reader, methods.registry)
            v1.add_JobControlServicer_to_server(JobControlService(administration, control), methods.registry)
            info = ServerInfoService(config.factors, start_time=clock())
            v1.add_ServerInfoServicer_to_server(info, methods.registry)
            sweep_seconds = _SHARED_SWEEP_SECONDS if store.shared else _SWEEP_SECONDS
            sweeping = _repeating(optimizer.expire_leases, sweep_seconds, "expire leases")
            pruning = _repeating(optimizer.prune, _PRUNE_SECONDS, "delete old measurements")
            looking = _repeating(Crowd(connections).look, _LOOK_SECONDS, "count connections")
            counting = _counting(store, watch.observer)
            serving = _serving(server, methods, health_service, store.check, config.grace_seconds)
            measuring = watch.serving_metrics(partial(statistics.named_totals, config.metrics_jobs))
            async with serving, sweeping, pruning, looking, counting, measuring:
                settings = {
                    "address": address,
                    "database": shown_url(config.database),
                    "max_connections": connections,
                }
                log_event(log, logging.INFO, "serving", **settings)
                announce(address)
                await stop.wait()
                log_event(log, logging.INFO, "shutting down", message="finishing calls in flight")
    log_event(log, logging.INFO, "stopped")


@contextlib.asynccontextmanager
async def _opened(database: str, observer: Observer, stop: asyncio.Event) -> AsyncIterator[Store]:
    """The store; a signal ends the wait for a PostgreSQL that is away.

    Raises:
        StartError: the database cannot be opened, or the signal came first.
    """
    async with contextlib.AsyncExitStack() as stack:
        opening = asyncio.create_task(stack.enter_async_context(open_store(database, steady_clock(), observer)))
        stopping = asyncio.create_task(stop.wait())
        waits = {opening, stopping} if is_shared(database) else {opening}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
            raise StartError(f"stopped before {shown_url(database)} could be opened")
        yield opening.result()


@contextlib.asynccontextmanager
async def _answering_probes(address: str, health_service: HealthService) -> AsyncIterator[None]:
    """Answers the health service alone, without TLS, from before the database is opened until calls are finished."""
    if not address:
        yield
        return
    methods = Methods()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, methods.registry)
    options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", _PROBES))
    server = grpc.aio.server(handlers=(methods,), options=options)
    bound = bind(server, address, "--health-address", None)
    await server.start()
    log_event(log, logging.INFO, "serving health", address=bound)
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def _serving(
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
        async with _repeating(lambda: health_service.follow(check), _SWEEP_SECONDS, "check the database"):
            yield
    finally:
        await health_service.drain()
        methods.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(methods.finished(), grace_seconds)
        # Still running now: calls that used up their grace, and streams of the health service.
        await server.stop(_STOP_SECONDS)
        await methods.finished()


@contextlib.asynccontextmanager
async def _counting(store: Store, observer: Observer) -> AsyncIterator[None]:
    """Counts jobs and running trials that other servers may create and end."""

    async def count() -> None:
        observer.counted(*await store.reads.content())

    if not store.shared:
        yield
        return
    async with _repeating(count, _COUNT_SECONDS, "count jobs and trials"):
        yield


@contextlib.asynccontextmanager
async def _repeating(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> AsyncIterator[None]:
    task = asyncio.create_task(_repeat(work, seconds, what), name=f"wattwise: {what}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float, what: str) -> None:
    clock = asyncio.get_running_loop().time
    since, logged = 0.0, 0.0
    while True:
        try:
            await work()
            if since:
                log_event(log, logging.INFO, "maintenance resumed", work=what, seconds=round(clock() - since, 3))
                since = 0.0
        except ServiceError as error:
            # The database may be away for hours.
            if not since or clock() - logged >= _LOG_AGAIN_SECONDS:
                logged = clock()
                since = since or logged
                log_event(log, logging.WARNING, "maintenance postponed", work=what, message=str(error))
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next run may succeed
            log_exception(log, "maintenance failed", error, work=what)
        await asyncio.sleep(seconds)


def _signalled(*numbers: signal.Signals) -> asyncio.Event:
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, event.set)
    return event
