"""Callers that nobody knows cannot use up the server's memory, its connections or its files."""

from __future__ import annotations

import resource
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wattwise import v1
from wattwise_server.security.tokens import Role

from tests.credentials import bearing, issue
from tests.faults.memory import Peak
from tests.faults.strangers import Connection, unfinished
from tests.jobs import job_spec
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough

WATCH, REPORT = "/grpc.health.v1.Health/Watch", "/wattwise.v1.BatchSizeOptimizer/ReportResult"
MEGABYTES = 100.0
_OWN = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


def health_stub(channel: grpc.Channel) -> Any:
    """Its stub has no types."""
    return health_pb2_grpc.HealthStub(channel)


def served(server: LiveServer) -> bool:
    """Whether a newcomer is answered: at the height of a flood gRPC cancels its call, which clients then make again."""
    with grpc.insecure_channel(server.address, _OWN) as channel:
        call = PeopleStub(channel).ListJobs.future(v1.ListJobsRequest(), timeout=60, wait_for_ready=True)
        assert call.code() in {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
        return call.code() is grpc.StatusCode.OK


def serves(server: LiveServer) -> None:
    """A newcomer is answered."""
    assert served(server)


def test_watches_of_unknown_services_are_refused(server: LiveServer) -> None:
    """The protocol's watch of a service that may come does not exist here, and its name is not kept."""
    stub = health_stub(server.channel)
    call = stub.Watch(health_pb2.HealthCheckRequest(service="x" * 60_000))
    assert call.code() is grpc.StatusCode.NOT_FOUND
    assert next(stub.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


def test_large_requests_take_no_memory(server: LiveServer) -> None:
    """Names of four megabytes are refused before they are read."""
    serves(server)
    with Peak(server.process.pid) as peak, grpc.insecure_channel(server.address, _OWN) as channel:
        stub = health_stub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest(service="x" * (4 * 2**20 - 100))) for _ in range(120)]
        codes = {call.code() for call in calls}
        serves(server)
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert peak.grown < MEGABYTES


@pytest.mark.parametrize("known", [False, True])
def test_requests_that_expand_take_no_memory(tmp_path: Path, *, known: bool) -> None:
    """Half a megabyte of empty measurements, a quarter of a million: fifty times as much when it is parsed."""
    tokens = tmp_path / "server.tokens"
    who = bearing(issue(tokens, Role.ADMIN, ""))
    with LiveServer(tmp_path) as server, ExitStack() as open_ones:
        server.start("--tokens", str(tokens))
        job = v1.RegisterJobRequest(job=job_spec(job_id_prefix="j", job_id="j"))
        server.trainer.RegisterJob(job, metadata=who)
        channels = [open_ones.enter_context(grpc.insecure_channel(server.address, _OWN)) for _ in range(8)]
        stubs = [v1.BatchSizeOptimizerStub(channel) for channel in channels]
        request = v1.ImportTrialRequest(job_id="j", measurements=[v1.Measurement()] * 250_000)
        with Peak(server.process.pid) as peak:
            metadata = who if known else None
            calls = [stubs[number % 8].ImportTrial.future(request, metadata=metadata) for number in range(64)]
            codes = {call.code() for call in calls}
    assert codes == {grpc.StatusCode.INVALID_ARGUMENT if known else grpc.StatusCode.UNAUTHENTICATED}
    assert peak.grown < MEGABYTES


def test_compressed_requests_are_limited_by_their_true_size(server: LiveServer) -> None:
    """Two megabytes of zeros, compressed to two kilobytes, are refused, and the refusal is no bug that is logged."""
    stub = PeopleStub(server.channel)
    for _ in range(3):
        request = v1.GetJobRequest(job_id="\0" * 2**21)
        call = stub.GetJob.future(request, compression=grpc.Compression.Gzip)
        assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    serves(server)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("method", [WATCH, REPORT])
def test_unfinished_requests_take_no_memory(server: LiveServer, method: str) -> None:
    """Requests of four megabytes whose last byte never comes are refused by their first bytes."""
    serves(server)

    def attack(connection: Connection) -> None:
        for _ in range(20):
            stream = connection.open(method)
            connection.send(stream, unfinished(4 * 2**20))
            wait_until(partial(connection.over.__contains__, stream))

    with Peak(server.process.pid) as peak, ExitStack() as open_ones, ThreadPoolExecutor() as pool:
        connections = [open_ones.enter_context(closing(Connection(server.address))) for _ in range(8)]
        list(pool.map(attack, connections))
        serves(server)
    assert peak.grown < MEGABYTES


def test_requests_that_stop_before_their_end_take_no_memory(server: LiveServer) -> None:
    """Of requests of an allowed size whose last byte never comes the server keeps a limited number, the newest."""
    serves(server)
    with Peak(server.process.pid) as peak, ExitStack() as open_ones:
        connections = [open_ones.enter_context(closing(Connection(server.address))) for _ in range(8)]
        first = connections[0].open(REPORT)
        for number in range(400):
            connection = connections[number % 8]
            connection.send(connection.open(REPORT), unfinished(500_000), 0.2)
        wait_until(lambda: first in connections[0].over)
        serves(server)
    assert peak.grown < MEGABYTES


@pytest.mark.parametrize("connections", [1, 40])
def test_calls_without_a_request_take_no_memory(server: LiveServer, connections: int) -> None:
    """Of thousands of calls that send nothing but their headers the server keeps a limited number."""
    serves(server)
    with Peak(server.process.pid) as peak, ExitStack() as open_ones:
        opened = [open_ones.enter_context(closing(Connection(server.address))) for _ in range(connections)]
        for number in range(8_000):
            opened[number % connections].open(REPORT)
        wait_until(lambda: sum(len(each.over) for each in opened) >= 4_000)
        wait_until(partial(served, server))
    assert peak.grown < MEGABYTES


@pytest.mark.parametrize("connections", [1, 40])
def test_calls_that_are_cancelled_at_once_take_no_memory(server: LiveServer, connections: int) -> None:
    """Thousands of calls that are cancelled as soon as they are made."""
    serves(server)
    with Peak(server.process.pid) as peak, ExitStack() as open_ones:
        opened = [open_ones.enter_context(closing(Connection(server.address))) for _ in range(connections)]
        for number in range(20_000):
            connection = opened[number % connections]
            connection.reset(connection.open(REPORT))
        wait_until(partial(served, server))
    assert peak.grown < MEGABYTES


def test_many_watches_take_no_memory(server: LiveServer) -> None:
    """Of twelve thousand watches of the health service one thousand are open, and the others are refused."""
    serves(server)
    with Peak(server.process.pid) as peak, ExitStack() as open_ones:
        channels = [open_ones.enter_context(grpc.insecure_channel(server.address, _OWN)) for _ in range(20)]
        stubs = [health_stub(channel) for channel in channels]
        calls = [stubs[number % 20].Watch(health_pb2.HealthCheckRequest()) for number in range(12_000)]
        wait_until(lambda: sum(call.done() for call in calls) >= 11_000, 60)
        codes = {call.code() for call in calls if call.done()}
        serves(server)
        stub = health_stub(server.channel)
        assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    # A connection that has just been opened does not know how many calls it may have.
    assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    assert peak.grown < MEGABYTES


def test_noise_takes_no_memory(server: LiveServer) -> None:
    """Sixteen connections send as many frames of an unknown kind as the server reads, one gigabyte together."""
    serves(server)

    def attack(connection: Connection) -> None:
        for _ in range(500):
            assert connection.noise()

    with Peak(server.process.pid) as peak, ExitStack() as open_ones, ThreadPoolExecutor(16) as pool:
        connections = [open_ones.enter_context(closing(Connection(server.address))) for _ in range(16)]
        list(pool.map(attack, connections))
        serves(server)
    assert peak.grown < MEGABYTES


def test_a_crowd_is_not_taken_for_strangers(server: LiveServer) -> None:
    """A thousand calls that arrive while the server is suspended are answered, every one."""
    with ExitStack() as open_ones:
        channels = [open_ones.enter_context(grpc.insecure_channel(server.address, _OWN)) for _ in range(20)]
        stubs = [PeopleStub(channel) for channel in channels]
        for stub in stubs:
            stub.ListJobs(v1.ListJobsRequest(), wait_for_ready=True)
        server.process.send_signal(signal.SIGSTOP)
        calls = [stubs[number % 20].ListJobs.future(v1.ListJobsRequest()) for number in range(1_000)]
        server.process.send_signal(signal.SIGCONT)
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}


def test_silent_connections_lock_nobody_out(tmp_path: Path) -> None:
    """More connections than the soft limit of files allows stay silent: a newcomer is served, and they are closed."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with LiveServer(tmp_path) as server, ExitStack() as crowd:
        # A variable of its own gives the server a process that inherits the limit.
        server.environment = {"WATTWISE_LOG_LEVEL": "info"}
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, files[1]))
        try:
            server.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        host, _, port = server.address.rpartition(":")
        silent = [crowd.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(500)]
        serves(server)
        for connection in (silent[0], silent[-1]):
            while connection.recv(1_000):
                pass
        assert f"max_connections={min(10_000, files[1] - 128)}" in server.log.read_text()
