"""Who watches this server, as its settings have it: the log always, figures and traces when asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.observability.event_log import EventLog
from wattwise_server.observability.events import Observer, Observers
from wattwise_server.observability.logs import say
from wattwise_server.rpc.calls import CallWatcher, Watch

if TYPE_CHECKING:
    from wattwise_server.observability.metrics import Metrics
    from wattwise_server.observability.metrics_server import MetricsServer

log = logging.getLogger(__name__)


@dataclass
class Watching:
    """Whom the parts of the server have to tell.

    Attributes:
        observer: Is told of what became durable.
        calls: What watches calls.
    """

    observer: Observer = field(default_factory=Observers)
    calls: Watch = field(default_factory=Watch)
    _metrics: MetricsServer | None = None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answers Prometheus while the block lasts."""
        if self._metrics is None:
            yield
            return
        with self._metrics.serving():
            say(log, logging.INFO, "serving metrics", address=self._metrics.url)
            yield


@contextmanager
def watching(config: Config) -> Iterator[Watching]:
    """Everybody who watches; ports and exporters are closed when the block is left.

    Raises:
        StartError: when the metrics' port cannot be had or a package is missing.
    """
    observers: list[Observer] = [EventLog()]
    watchers: list[CallWatcher] = []
    server: MetricsServer | None = None
    with ExitStack() as after:
        if config.metrics_address:
            metrics, server = _metrics(config.metrics_address)
            after.callback(server.server_close)
            observers.append(metrics)
            watchers.append(metrics)
        if _traces_wanted():
            watchers += _tracing(after)
        yield Watching(Observers(observers), Watch(watchers), server)


def _metrics(address: str) -> tuple[Metrics, MetricsServer]:
    try:
        from wattwise_server.observability.metrics import Metrics  # noqa: PLC0415 - only who asks for figures pays for the package
        from wattwise_server.observability.metrics_server import MetricsServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = f"--metrics-address needs {error.name}, which is missing: pip install 'wattwise[server]'"
        raise StartError(missing) from None
    metrics = Metrics()
    return metrics, MetricsServer(address, metrics.registry)


def _traces_wanted() -> bool:
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporter := given("OTEL_TRACES_EXPORTER"):
        return exporter.strip() != "none"
    return bool(given("OTEL_EXPORTER_OTLP_ENDPOINT") or given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _tracing(after: ExitStack) -> list[CallWatcher]:
    try:
        from wattwise_server.observability.tracing import tracing  # noqa: PLC0415 - takes long, and few ask for traces
    except ModuleNotFoundError as error:
        # The variables are often set for a whole cluster: no reason to stand still.
        say(log, logging.WARNING, "no traces are sent", missing=error.name, message="pip install 'wattwise[otel]'")
        return []
    traced = after.enter_context(tracing())
    say(log, logging.INFO, "sending traces", exporters=os.environ.get("OTEL_TRACES_EXPORTER") or "otlp")
    return [traced]
