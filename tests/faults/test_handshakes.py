"""TLS handshakes that begin and never end take a bounded part of a server."""

from __future__ import annotations

import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.credentials import Authority
from tests.faults.memory import Peak
from tests.faults.soak import number, quiet
from tests.faults.victim import Victim
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough

MEGABYTES, MILLISECONDS = 100.0, 100.0


def hello() -> bytes:
    """The first message of a client, after which the server has answered and waits."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


# The third is a first message of 16 kB, the largest that is accepted, without its end.
BEGINNINGS = {"silent": b"", "hello": hello(), "long": bytes.fromhex("1603014000 01003ffc 0303") + bytes(16_000)}


@contextmanager
def many_files() -> Iterator[int]:
    """As many open files as this process may have; their number."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    try:
        yield files[1] if files[1] != resource.RLIM_INFINITY else sys.maxsize
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


class Crowd:
    """Connections that begin a handshake and go no further."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._where = host, int(port)
        self._open = ExitStack()
        self.connections: list[socket.socket] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def come(self, count: int, beginning: bytes) -> None:
        """Opens more connections."""
        for _ in range(count):
            connection = self._open.enter_context(socket.create_connection(self._where, timeout=20))
            self.connections.append(connection)
            try:
                connection.sendall(beginning)
            except OSError:
                continue


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    connection.setblocking(False)
    try:
        while connection.recv(10_000):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def served(authority: Authority, address: str) -> bool:
    """Whether a newcomer is answered."""
    with authority.channel(address) as channel:
        try:
            PeopleStub(channel).ListJobs(v1.ListJobsRequest(), timeout=5)
        except grpc.RpcError as error:
            assert error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # noqa: PT017
            return False
    return True


def start(server: LiveServer, *options: str) -> Authority:
    """Starts a server with TLS; returns the authority of its certificate."""
    authority = Authority(server.database.parent)
    pair = authority.issue("server")
    server.start("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), *options)
    return authority


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    """Of a hundred connections under a limit of twenty, eighty are closed at once; who is connected is served."""
    with LiveServer(tmp_path) as server:
        authority = start(server, "--max-connections", "20")
        with authority.channel(server.address) as channel, Crowd(server.address) as crowd:
            stub = PeopleStub(channel)
            stub.ListJobs(v1.ListJobsRequest(), timeout=20)
            crowd.come(100, BEGINNINGS["hello"])
            wait_until(lambda: sum(map(ended, crowd.connections)) >= 81)
            assert sum(map(ended, crowd.connections)) == 81
            assert not served(authority, server.address)
            stub.ListJobs(v1.ListJobsRequest(), timeout=20)
            wait_until(lambda: "connections used up" in server.log.read_text())
        wait_until(lambda: served(authority, server.address))
        assert server.log.read_text().count("connections used up") == 1


@pytest.mark.soak
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_handshakes_that_stall_take_a_bounded_part(tmp_path: Path, beginning: str) -> None:
    """Of ten thousand, of which a thousand may connect at a time, a connected caller notices little.

    A newcomer is served when they have timed out.
    """
    count = number(10_000, short=3_000)
    with LiveServer(tmp_path) as server, many_files() as files:
        if files < count + 500:
            pytest.skip(f"needs {count + 500} open files")
        authority = start(server, "--max-connections", "1000")
        with authority.channel(server.address) as channel, Crowd(server.address) as crowd:
            stub = PeopleStub(channel)

            def call() -> None:
                stub.ListJobs(v1.ListJobsRequest(), timeout=20)

            call()
            with Victim(call) as idle:
                wait_until(lambda: len(idle.seconds) > 200)
            with Peak(server.process.pid) as peak, Victim(call) as victim:
                crowd.come(count, BEGINNINGS[beginning])
                wait_until(lambda: all(map(ended, crowd.connections)), 60)
                wait_until(lambda: served(authority, server.address))
    sys.stdout.write(
        f"{count} handshakes, {beginning}: {peak.grown:.0f} MB more, "
        f"p99 of a caller {idle.p99:.0f} ms before, {victim.p99:.0f} ms beside them\n"
    )
    assert peak.grown < MEGABYTES
    assert victim.p99 < MILLISECONDS or not quiet()
