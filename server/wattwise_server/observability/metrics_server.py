"""Serves the metrics to Prometheus over HTTP, with prometheus_client's WSGI server in separate threads."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from wattwise_server.config import host_and_port, port_error, resolve
from wattwise_server.observability.logs import log_event

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 8
_IDLE_SECONDS = 10


class MetricsServer(ThreadingWSGIServer):
    """Binds its port at once and answers while `serving`, so that no scrape sees a server that is still starting.

    Adds to prometheus_client's server a limit on connections, each of which takes a thread.

    Args:
        address: `host:port`; port 0 takes a free one.
        registry: The metrics.

    Raises:
        StartError: the address is malformed or cannot be bound.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, port = host_and_port(address)
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        try:
            family, _, _, _, where = resolve(host, port)[0]
            self.address_family = socket.AddressFamily(family)
            super().__init__(where[:2], _Handler)
        except OSError as error:
            raise port_error(address, "--metrics-address", error) from None
        self.set_app(_only_metrics(make_wsgi_app(registry)))
        self.url = f"http://{host}:{self.server_address[1]}/metrics"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, or closes it at once if there are too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Runs in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a connection that broke off, which is usual, in place of a traceback."""
        del request
        log_event(log, logging.DEBUG, "scrape failed", peer=client_address[0])

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers for the length of the block."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="wattwise-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        log_event(log, logging.DEBUG, "scrape", peer=self.client_address[0], message=format % args)


def _only_metrics(app: Callable[..., Any]) -> Callable[..., Any]:
    """Limits an app to /metrics: that of prometheus_client answers every path."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == "/metrics":
            return app(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"The metrics are at /metrics.\n"]

    return answer
