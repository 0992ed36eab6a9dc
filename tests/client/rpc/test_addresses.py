"""Wrong addresses: what is there instead of a server, before the training and during it."""

from __future__ import annotations

import http.server
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import grpc
import pytest
from wattwise import (
    BatchSizeOptimizer,
    Client,
    InvalidAddressError,
    ServerUnavailableError,
    UnsupportedCallError,
)

from tests.client.training.script import StepMonitor, begun, epochs, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until

Place = Callable[[], AbstractContextManager[str]]


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def web_server(address: str = "127.0.0.1:0") -> Iterator[str]:
    """A server of web pages."""
    host, _, port = address.rpartition(":")
    with http.server.ThreadingHTTPServer((host, int(port)), _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent_server() -> Iterator[str]:
    """Somebody who takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


@contextmanager
def nobody() -> Iterator[str]:
    """A port where nobody listens."""
    yield "127.0.0.1:1"


@contextmanager
def unknown_name() -> Iterator[str]:
    """A host that does not exist."""
    yield "nosuch.invalid:50051"


@pytest.mark.parametrize(
    ("place", "cause", "timeout"),
    [
        (nobody, "[Rr]efused", 1.0),
        (unknown_name, "nosuch.invalid", 1.0),
        (web_server, "HTTP/2|http1", 1.0),
        # gRPC itself waits two seconds for the first word.
        (silent_server, "timed out", 4.0),
    ],
)
def test_no_server_at_the_address(place: Place, cause: str, timeout: float, caplog: pytest.LogCaptureFixture) -> None:
    """get_batch_size warns once, with the address and the cause, and raises with them when its time is up."""
    with place() as address:
        bso = BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor(), timeout=timeout)
        with pytest.raises(
            ServerUnavailableError, match=f"no Wattwise server can be reached at {address}: .*({cause})"
        ):
            bso.get_batch_size()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert address in said
    assert "it is looked for during" in said


def test_search_is_shorter_than_a_call() -> None:
    """A server that nobody has reached is given up after the time of the search, not that of the call."""
    before = time.monotonic()
    with Client("127.0.0.1:1", timeout=60, search_timeout=0.5) as client, pytest.raises(ServerUnavailableError):
        client.get_job("test-1")
    assert time.monotonic() - before < 30


def test_another_grpc_server_at_the_address() -> None:
    """A gRPC server that is not Wattwise's is told from one that is away, and named."""
    pool = ThreadPoolExecutor(1)
    stranger = grpc.server(pool)
    address = f"127.0.0.1:{stranger.add_insecure_port('127.0.0.1:0')}"
    stranger.start()
    try:
        with pytest.raises(UnsupportedCallError, match=f"this is no Wattwise server, or an older one: {address}"):
            BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor()).get_batch_size()
    finally:
        stranger.stop(None).wait()
        pool.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", ":50051", "localhost:", "localhost:http", "localhost:0", "localhost:65536", "a b:1", None),
        *("http://localhost:50051", "https://localhost", "localhost:50051/", "http://localhost"),
    ],
)
def test_what_is_no_address(address: str) -> None:
    """Something that cannot be an address is refused with how to write one, before anything is called."""
    with pytest.raises(InvalidAddressError, match="write host:port, such as localhost:50051"):
        BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor()).get_batch_size()


@pytest.mark.parametrize("address", ["localhost:50051", "[::1]:50051", "10.0.0.1:1", "dns:///localhost:1", "unix:/a/b"])
def test_addresses(address: str) -> None:
    """Names, numbers and gRPC's own ways to write an address are taken."""
    Client(address).close()


def test_stranger_at_the_port_later(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """When another program answers at the server's port in mid-training, one warning says so and training goes on."""
    bso = begun(server.address)
    server.kill()
    with web_server(server.address):
        bso.on_evaluate(0.1)
        wait_until(lambda: bool(caplog.records))
        bso.on_evaluate(0.2)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"no Wattwise server can be reached at {server.address}" in said
    assert "training goes on" in said
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [2])
    bso.close()
