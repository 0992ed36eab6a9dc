"""The composition root: builds the parts of the server, starts them and shuts them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
from wattwise import v1

from wattwise_server.clock import steady_clock
from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.maintenance import ConnectionWatch, repeating
from wattwise_server.observability.logs import log_event
from wattwise_server.observability.observers import Observer
from wattwise_server.observability.telemetry import telemetry
from wattwise_server.process import raise_file_limit, share_heap, signalled
from wattwise_server.rpc.calls import Methods, StreamLimit
from wattwise_server.rpc.health import HealthService
from wattwise_server.rpc.paging import PageTokens
from wattwise_server.rpc.service import (
    BatchSizeOptimizerService,
    JobControlService,
    JobReaderService,
    ServerInfoService,
)
from wattwise_server.rpc.serving import SERVICES, age_options, answering_probes, bind, new_server, serving
from wattwise_server.security.guard import Guard
from wattwise_server.store.open import is_shared, open_store, shown_url
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.imports import Importer
from wattwise_server.usecases.power_limits import PowerLimitProfiler
from wattwise_server.usecases.statistics import Statistics
from wattwise_server.usecases.training import Training

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.25
_SHARED_SWEEP_SECONDS = 1.0
"""The interval for a database that every server asks."""

_COUNT_SECONDS = 10.0
_PRUNE_SECONDS = 600.0
_LOOK_SECONDS = 1.0

_RESERVED_FILES = 128
"""Files for the database, the log, certificates, metrics and probes."""


async def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the calls in flight.

    Args:
        config: The settings.
        announce: Called with the address when calls are answered.

    Raises:
        StartError: the database cannot be opened or the port cannot be bound.
    """
    # Before the address is announced: its reader may send a signal at once, and SIGHUP must never end the server.
    stop, hangup = signalled(signal.SIGTERM, signal.SIGINT), signalled(signal.SIGHUP)
    share_heap()
    files = raise_file_limit()
    guard = Guard(config.address, config.security)
    with telemetry(config) as watch:
        streams = StreamLimit(config.limits.max_streams)
        methods = Methods(watch.listeners, guard.authorization, streams)
        connections = min(config.limits.max_connections or files, max(1, files - _RESERVED_FILES))
        age = age_options(config.max_connection_age_seconds, config.grace_seconds)
        server = new_server(methods, connections, *age)
        # Before the database is opened: a start that fails because the port is taken has not touched it.
        address = bind(server, config.address, "--address", guard.certificates)
        health_service = HealthService(SERVICES)
        await health_service.begin()
        async with (
            answering_probes(config.health_address, health_service),
            _opened(config.database, watch.observer, stop) as store,
            guard.rereading(hangup),
        ):
            training, statistics = Training(store, config.limits), Statistics(store, config.factors)
            _add_services(methods.registry, store, config, streams=streams, training=training, statistics=statistics)
            sweep_seconds = _SHARED_SWEEP_SECONDS if store.shared else _SWEEP_SECONDS
            sweeping = repeating(training.expire_leases, sweep_seconds, "expire leases")
            pruning = repeating(training.prune, _PRUNE_SECONDS, "delete old measurements")
            looking = repeating(ConnectionWatch(connections).look, _LOOK_SECONDS, "count connections")
            counting = _counting(store, watch.observer)
            answering = serving(server, methods, health_service, store.check, config.grace_seconds)
            measuring = watch.serving_metrics(partial(statistics.named_totals, config.metrics_jobs))
            async with answering, sweeping, pruning, looking, counting, measuring:
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


def _add_services(
    registry: grpc.aio.Server,
    store: Store,
    config: Config,
    *,
    streams: StreamLimit,
    training: Training,
    statistics: Statistics,
) -> None:
    """Adds the services of Wattwise."""
    administration = Administration(store)
    trainers = BatchSizeOptimizerService(training, Importer(store, config.limits), PowerLimitProfiler(store), streams)
    reader = JobReaderService(administration, statistics, streams, PageTokens(store.page_token_key))
    v1.add_BatchSizeOptimizerServicer_to_server(trainers, registry)
    v1.add_JobReaderServicer_to_server(reader, registry)
    v1.add_JobControlServicer_to_server(JobControlService(administration, Control(store)), registry)
    v1.add_ServerInfoServicer_to_server(ServerInfoService(config.factors, start_time=store.clock()), registry)


@contextlib.asynccontextmanager
async def _opened(database: str, observer: Observer, stop: asyncio.Event) -> AsyncIterator[Store]:
    """Opens the store; a signal ends the wait for a PostgreSQL that is away.

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
async def _counting(store: Store, observer: Observer) -> AsyncIterator[None]:
    """Counts jobs and running trials that other servers may create and end."""

    async def count() -> None:
        observer.counted(*await store.reads.content())

    if not store.shared:
        yield
        return
    async with repeating(count, _COUNT_SECONDS, "count jobs and trials"):
        yield
