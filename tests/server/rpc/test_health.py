"""The health service: liveness and readiness, at the server's port and at the port for probes."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wattwise import v1

from tests.credentials import Authority
from tests.jobs import Trainer, result
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer
from tests.refusals import refused
from tests.server.commands.test_serve import refuse
from tests.waiting import wait_until

STATES = health_pb2.HealthCheckResponse


class ProbedServer(LiveServer):
    """A server with a port for probes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._held = hold_port()
        self.probe_address = f"127.0.0.1:{port_of(self._held)}"
        self.probes = grpc.insecure_channel(self.probe_address)

    def start(self, *arguments: str) -> str:
        """Start a process."""
        return super().start("--health-address", self.probe_address, *arguments)

    def close(self) -> None:
        """Close both channels and kill the process."""
        self.probes.close()
        super().close()
        self._held.close()

    def state(self, service: str = "", channel: grpc.Channel | None = None) -> int:
        """What the health service says."""
        stub: Any = health_pb2_grpc.HealthStub(channel or self.probes)
        request = health_pb2.HealthCheckRequest(service=service)
        return int(stub.Check(request, wait_for_ready=True, timeout=20).status)


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[ProbedServer]:
    """A server with a port for probes, not started yet."""
    with ProbedServer(tmp_path) as live:
        yield live


def test_draining_server_is_alive_and_not_ready(probed: ProbedServer) -> None:
    """While the last calls finish, both ports say that the process lives and that nobody is to be sent here."""
    probed.start("--grace-seconds", "60")
    for channel in (probed.probes, probed.channel):
        for name in ("", "readiness", "liveness", "wattwise.v1.JobReader"):
            assert probed.state(name, channel) == STATES.SERVING
    job = Trainer(probed.trainer)
    trial = job.next()
    with closing(sqlite3.connect(probed.database, isolation_level=None)) as other:
        # Commits wait for this one's end.
        other.execute("BEGIN IMMEDIATE")
        report = v1.ReportResultRequest(result=result(trial, 10.0))
        call: Any = probed.trainer.ReportResult.future(report)
        # Answered after the report has arrived, on the same connection.
        list(probed.admin.ListJobs(v1.ListJobsRequest(), timeout=20).jobs)
        probed.process.send_signal(signal.SIGTERM)
        wait_until(lambda: probed.state("readiness") == STATES.NOT_SERVING)
        for channel in (probed.probes, probed.channel):
            for name in ("", "readiness", "wattwise.v1.JobReader"):
                assert probed.state(name, channel) == STATES.NOT_SERVING
            assert probed.state("liveness", channel) == STATES.SERVING
    assert call.result(timeout=20).decision.converged
    assert probed.stop() == 0


def test_server_whose_file_is_gone_is_alive_and_not_ready(probed: ProbedServer) -> None:
    """A database's file that is gone is no reason to start the server again."""
    probed.start()
    probed.database.rename(probed.database.with_name("kept"))
    wait_until(lambda: probed.state() == STATES.NOT_SERVING)
    assert probed.state("readiness") == STATES.NOT_SERVING
    assert probed.state("liveness") == STATES.SERVING


def test_server_that_waits_for_its_database_is_alive_and_not_ready(probed: ProbedServer) -> None:
    """A server whose PostgreSQL has not started yet is not to be killed for it."""
    held = hold_port()
    url = f"postgresql://wattwise@127.0.0.1:{port_of(held)}/wattwise"
    options = ("--address", "127.0.0.1:0", "--database", url, "--health-address", probed.probe_address)
    with held, subprocess.Popen([sys.executable, "-m", "wattwise_server", *options]) as waiting:
        try:
            assert probed.state("liveness") == STATES.SERVING
            assert probed.state("readiness") == probed.state() == STATES.NOT_SERVING
        finally:
            waiting.kill()


def test_server_whose_postgresql_is_away_is_ready(probed: ProbedServer) -> None:
    """No server leaves its service when the database that all share is away: calls are to be made again later."""
    with PostgresServer.running() as postgres:
        probed.start("--database", postgres.create_database())
        job = Trainer(probed.trainer)
        trial = job.next()
        postgres.kill()
        for call in (
            lambda: job.report(trial, 10.0, metric=0.1),
            job.next,
            lambda: probed.admin.ListJobs(v1.ListJobsRequest()),
        ):
            with refused() as refusal:
                call()
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "ERROR_REASON_STORAGE_UNAVAILABLE")
            assert (refusal.metadata["retryable"], refusal.retry_seconds) == ("true", 1.0)
            assert probed.state("readiness") == probed.state() == probed.state("liveness") == STATES.SERVING
        postgres.start()
        wait_until(lambda: _is_reported(job, trial))


def _is_reported(job: Trainer, trial: v1.Trial) -> bool:
    try:
        return job.report(trial, 10.0, metric=0.95).converged
    except grpc.RpcError:
        return False


def test_port_for_probes_has_no_tls_and_nothing_else(probed: ProbedServer, tmp_path: Path) -> None:
    """Beside TLS and client certificates the port for probes answers without them, and knows no other method."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(authority.file))
    probed.start(*tls)
    assert probed.state() == STATES.SERVING
    for channel, code in (
        (probed.probes, grpc.StatusCode.UNIMPLEMENTED),
        (probed.channel, grpc.StatusCode.UNAVAILABLE),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            PeopleStub(channel).ListJobs(v1.ListJobsRequest())
        error: Any = caught.value
        assert error.code() is code


def test_taken_port_for_probes_is_refused(server: LiveServer, tmp_path: Path) -> None:
    """A taken port is named, and nothing is created."""
    options = ("--address", "127.0.0.1:0", "--health-address", server.address)
    folder = tmp_path / "empty"
    folder.mkdir()
    assert f"cannot listen on {server.address}" in refuse(*options, folder=folder)
    assert not list(folder.iterdir())
