"""Wrong addresses: something other than a server answers, or nothing does."""

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
from wattwise import BatchSizeOptimizer, Client
from wattwise.errors import InvalidAddressError, ServerUnavailableError, UnsupportedCallError
from wattwise.rpc.address import check_address, target_of

from tests.client.training.script import StepMonitor, begun, epochs, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until

Place = Callable[[], AbstractContextManager[str]]


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def web_server(address: str = "127.0.0.1:0") -> Iterator[str]:
    """An HTTP server."""
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
    """A listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


@contextmanager
def closed_port() -> Iterator[str]:
    """A port without a listener."""
    yield "127.0.0.1:1"


@contextmanager
def unknown_name() -> Iterator[str]:
    """A host that does not exist."""
    yield "nosuch.invalid:50051"


@pytest.mark.parametrize(
    ("place", "cause", "timeout"),
    [
        (closed_port, "[Rr]efused", 1.0),
        (unknown_name, "nosuch.invalid", 1.0),
        (web_server, "HTTP/2|http1", 1.0),
        # gRPC itself waits two seconds for the HTTP/2 preface.
        (silent_server, "timed out", 4.0),
    ],
)
def test_no_server_at_the_address(place: Place, cause: str, timeout: float, caplog: pytest.LogCaptureFixture) -> None:
    """get_batch_size logs one warning with the address and the cause, and raises with both after its timeout."""
    with place() as address:
        bso = BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor(), timeout=timeout)
        with pytest.raises(ServerUnavailableError, match=f"at {address}: .*({cause})"):
            bso.get_batch_size()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert address in warning
    assert f"retrying for {timeout:g} seconds" in warning


@pytest.mark.parametrize(
    ("place", "advice", "other"),
    [
        (closed_port, ("`wattwise serve`", "--server", "WATTWISE_SERVER"), "web page"),
        (unknown_name, ("--server", "WATTWISE_SERVER"), "`wattwise serve`"),
        (web_server, ("port of a web page", "50051"), "start a server"),
    ],
)
def test_what_to_do_without_a_server(place: Place, advice: tuple[str, ...], other: str) -> None:
    """The error says what to start or to set, and whether something else answers at the address."""
    with place() as address, Client(address, retry=False, timeout=5) as client:
        with pytest.raises(ServerUnavailableError) as away:
            client.get_job("test-1")
        assert all(part in str(away.value) for part in advice)
        assert other not in str(away.value)


def test_search_is_shorter_than_a_call() -> None:
    """A server that was never reached is given up after `search_timeout`, not after the timeout of the call."""
    before = time.monotonic()
    with Client("127.0.0.1:1", timeout=60, search_timeout=0.5) as client, pytest.raises(ServerUnavailableError):
        client.get_job("test-1")
    assert time.monotonic() - before < 30


def test_another_grpc_server_at_the_address() -> None:
    """Another gRPC server is an UnsupportedCallError that names the address, not an unavailable server."""
    pool = ThreadPoolExecutor(1)
    other = grpc.server(pool)
    address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    try:
        with pytest.raises(UnsupportedCallError, match=address):
            BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor()).get_batch_size()
    finally:
        other.stop(None).wait()
        pool.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost", ":50051", "localhost:", "localhost:http", "localhost:0", "localhost:65536", "a b:1", None),
        *("http://localhost:50051", "https://localhost", "localhost:50051/", "http://localhost", "::1:50051"),
        *("[host]:1", "a:1,", ",a:1", "a:1,b", "a:1,,b:1", "a:1;b:1", "a:1 b:1", "a:1, b:1", "a:1,http://b:1"),
        *("a:1,b:1/", "a:1,unix:/b", "a:65536,b:1", "a:1,b:x", "ipv4:host:1", "ipv4:10.0.0.1", "ipv4:10.0.0.1:1,b:1"),
        *("ipv4:10.0.0.1:1,10.0.0.2", "ipv4:10.0.0.1:1,[::1]:1", "ipv6:[::1]:1,10.0.0.2:1", "ipv6:::1:1", "dns:///"),
        *("dns:///a", "dns:///a:1,b:port", "dns:///a:1,b:1", "a:1,dns:///b:1", "dns:///a:1,dns:///b:1"),
    ],
)
def test_malformed_address(address: str) -> None:
    """A malformed address is rejected before any call, with the expected format."""
    with pytest.raises(InvalidAddressError, match="host:port"):
        BatchSizeOptimizer(address, job_spec(), monitor=StepMonitor()).get_batch_size()


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        *(("a:99999", "99999 is not a port"), ("a:1,b:0", "0 is not a port"), ("a:50051/", "remove '/'; write")),
        *(("a:1/path", "remove '/path'"), ("a b:1", "remove the space"), ("::1:50051", "'::1:50051': write")),
    ],
)
def test_fault_of_a_malformed_address(address: str, fault: str) -> None:
    """The error says what to correct."""
    with pytest.raises(InvalidAddressError, match=fault):
        Client(address)


def test_empty_address() -> None:
    """An empty address, as of a run that has ended, is called empty, and the way to its trials is named."""
    with pytest.raises(InvalidAddressError, match=r"is empty: write host:port.*`wattwise serve`.*wattwise\.db"):
        Client("")


@pytest.mark.parametrize("address", ["localhost:50051\r", "unix:/run/wattwise\n", "local\x00host:1"])
def test_control_character_in_an_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The character is shown, and the variable that the address most likely comes from."""
    with pytest.raises(InvalidAddressError, match="control character"):
        check_address(address)
    if "\x00" not in address:
        monkeypatch.setenv("WATTWISE_SERVER", address)
        with pytest.raises(InvalidAddressError, match="WATTWISE_SERVER"):
            check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:50051", "[::1]:50051", "[fe80::1%eth0]:1", "10.0.0.1:1", "ipv4:10.0.0.1:1", "dns:///localhost:1"),
        *("dns:service:1", "dns://10.0.0.53/service:1", "unix:/a/b", "a:1,b:65535", "10.0.0.1:1,[fd00::2]:2,other:3"),
        *("ipv4:10.0.0.1:1,10.0.0.2:2", "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_addresses(address: str) -> None:
    """Host names, IP addresses, gRPC's own address schemes and lists are accepted."""
    Client(address).close()


@pytest.mark.parametrize(
    ("server", "target"),
    [
        ("10.0.0.7:1", "ipv4:10.0.0.7:1"),
        ("[::1]:1", "ipv6:[::1]:1"),
        ("[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
        ("ipv4:10.0.0.7:1", "ipv4:10.0.0.7:1"),
        ("localhost:1", "localhost:1"),
        ("10.0.0.7.example:1", "10.0.0.7.example:1"),
        ("dns:///10.0.0.7:1", "dns:///10.0.0.7:1"),
        ("unix:/run/wattwise", "unix:/run/wattwise"),
    ],
)
def test_no_name_is_resolved_for_an_ip_address(server: str, target: str) -> None:
    """An IP address is passed to gRPC as one; everything else is passed as it is written."""
    assert check_address(server) == server
    assert target_of(server) == target


def test_another_program_at_the_port_during_training(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """If another program answers at the server's port during training, one warning is logged and training continues."""
    bso = begun(server.address)
    server.kill()
    with web_server(server.address):
        bso.on_evaluate(0.1)
        wait_until(lambda: bool(caplog.records))
        bso.on_evaluate(0.2)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert server.address in warning
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [1, 2])
    bso.close()
