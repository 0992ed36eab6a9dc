"""Sets up what the settings ask for: the log always, metrics and traces on request."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.observability.call import CallListener
from wattwise_server.observability.event_log import EventLog
from wattwise_server.observability.fresh import fresh
from wattwise_server.observability.logs import log_event
from wattwise_server.observability.observers import Observer, Observers

if TYPE_CHECKING:
    from wattwise_server.observability.job_metrics import JobMetrics, NamedTotals
    from wattwise_server.observability.metrics import Metrics
    from wattwise_server.observability.metrics_server import MetricsServer

log = logging.getLogger(__name__)


@dataclass
class Telemetry:
    """What the other parts of the server notify.

    Attributes:
        observer: Of what became durable.
        listeners: Of calls.
    """

    observer: Observer
    listeners: Sequence[CallListener] = ()
    _metrics: tuple[JobMetrics, MetricsServer] | None = None

    @asynccontextmanager
    async def serving_metrics(self, totals: Callable[[], Awaitable[NamedTotals]]) -> AsyncIterator[None]:
        """Answers Prometheus for the length of the block; computes the totals of jobs when it asks."""
        if self._metrics is None:
            yield
            return
        jobs, server = self._metrics
        async with fresh(totals, "figures of jobs") as value:
            jobs.follow(value.ask)
            with server.serving():
                log_event(log, logging.INFO, "serving metrics", address=server.url)
                yield


@contextmanager
def telemetry(config: Config) -> Iterator[Telemetry]:
    """Opens ports and exporters, and closes them when the block is left.

    Raises:
        StartError: the port for metrics cannot be bound, a package is missing, or an OTEL_* variable is invalid.
    """
    observers: list[Observer] = [EventLog()]
    listeners: list[CallListener] = []
    served: tuple[JobMetrics, MetricsServer] | None = None
    with ExitStack() as after:
        if config.metrics_address:
            metrics, jobs, server = _metrics(config)
            served = jobs, server
            after.callback(server.server_close)
            observers.append(metrics)
            listeners.append(metrics)
        if _traces_wanted():
            listeners += _tracing(after)
        yield Telemetry(Observers(observers), listeners, served)


def _metrics(config: Config) -> tuple[Metrics, JobMetrics, MetricsServer]:
    try:
        from wattwise_server.observability.job_metrics import JobMetrics  # noqa: PLC0415 - only with --metrics-address
        from wattwise_server.observability.metrics import Metrics  # noqa: PLC0415
        from wattwise_server.observability.metrics_server import MetricsServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = f"--metrics-address needs the package {error.name}: pip install 'wattwise[server]'"
        raise StartError(missing) from None
    metrics, jobs = Metrics(), JobMetrics(config.factors.currency)
    metrics.registry.register(jobs)
    return metrics, jobs, MetricsServer(config.metrics_address, metrics.registry)


def _traces_wanted() -> bool:
    variable = os.environ.get
    if variable("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporter := variable("OTEL_TRACES_EXPORTER"):
        return exporter.strip() != "none"
    return bool(variable("OTEL_EXPORTER_OTLP_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _tracing(after: ExitStack) -> list[CallListener]:
    try:
        from wattwise_server.observability.tracing import tracing  # noqa: PLC0415 - slow to import and seldom needed
    except ModuleNotFoundError as error:
        # OTEL_* variables are often set for a whole cluster: the server starts without traces.
        log_event(log, logging.WARNING, "traces disabled", missing=error.name, message="pip install 'wattwise[otel]'")
        return []
    listener = after.enter_context(tracing())
    log_event(log, logging.INFO, "sending traces", exporters=os.environ.get("OTEL_TRACES_EXPORTER") or "otlp")
    return [listener]
