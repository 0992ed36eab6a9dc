"""Answers Prometheus over HTTP, from threads of its own."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from wattwise_server.errors import StartError
from wattwise_server.observability.logs import say
from wattwise_server.security.addresses import host_and_port

log = logging.getLogger(__name__)

_MOST_SCRAPES = 8
_IDLE_SECONDS = 10


class MetricsServer(ThreadingHTTPServer):
    """Holds its port from the start and answers while `serving`; what comes earlier waits.

    Args:
        address: `host:port`; port 0 takes a free one.
        registry: what is answered.

    Raises:
        StartError: when the address is none or cannot be had.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, port = host_and_port(address)
        self.registry = registry
        self._free = threading.BoundedSemaphore(_MOST_SCRAPES)
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family, _, _, _, where = found[0]
            super().__init__(where[:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            raise StartError(
                f"cannot listen on {address} for --metrics-address ({error.strerror}): "
                "is the port taken, or the host not this machine's?"
            ) from None
        self.url = f"http://{host}:{self.server_address[1]}/metrics"

    def server_bind(self) -> None:
        """Binds, without HTTPServer's look-up of the host's name, which may take long and serves nothing here."""
        # A scrape's closed connection must not keep a restarted server off its port for a minute.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread; turns away at once whoever is one too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Runs in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-answer is no event."""
        del request
        say(log, logging.DEBUG, "scrape broke off", peer=client_address[0])

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers while the block lasts."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="wattwise-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One scrape."""

    timeout = _IDLE_SECONDS
    server: MetricsServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, explain="The figures are at /metrics.")
            return
        encoder, kind = choose_encoder(self.headers.get("Accept") or "")
        body = encoder(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "wattwise"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        say(log, logging.DEBUG, "scrape", peer=self.client_address[0], message=format % args)
