"""A training with several servers on one database."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from wattwise import Client, v1
from wattwise.rpc import connection
from wattwise.training.spool import Spool

from tests.client.training.script import JOULES, begun, epochs
from tests.waiting import wait_until
from tests.watched import WatchedServer


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets which servers earlier tests have seen down."""
    monkeypatch.setattr(connection, "_down", set())


class Servers:
    """Two servers on one database."""

    def __init__(self, folder: Path, url: str, running: ExitStack) -> None:
        self._url = url
        folders = (folder / "one", folder / "two")
        for each in folders:
            each.mkdir()
        self.both = [running.enter_context(WatchedServer(each)) for each in folders]
        self.address = ",".join(server.address for server in self.both)

    def start(self, server: WatchedServer, *arguments: str) -> None:
        """Starts a server."""
        server.start("--database", self._url, *arguments)

    def used(self) -> tuple[WatchedServer, WatchedServer]:
        """The server that has the only stream, and the other one."""
        wait_until(lambda: sum(map(streams, self.both)) == 1)
        first, second = sorted(self.both, key=streams)
        return second, first


def streams(server: WatchedServer) -> float:
    """How many trainers have a stream to the server."""
    return server.figure("wattwise_open_streams", method="StreamResults")


def _wait_for_stream(server: WatchedServer) -> None:
    wait_until(lambda: streams(server) == 1)


@pytest.fixture
def servers(tmp_path: Path, postgres_url: str) -> Iterator[Servers]:
    """Two servers that tests may stop and start; neither runs yet."""
    with ExitStack() as running:
        yield Servers(tmp_path, postgres_url, running)


@pytest.fixture
def serving(servers: Servers) -> Servers:
    """The same, both running."""
    for server in servers.both:
        servers.start(server)
    return servers


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_server_dies_in_a_trial(serving: Servers, death: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    """The other server answers the next report, no report is lost or counted twice, and one warning names both."""
    bso = begun(serving.address, max_epochs=100)
    bso.on_evaluate(0.1)
    lost, other = serving.used()
    os.kill(lost.process.pid, death)
    for epoch in range(2, 6):
        bso.on_evaluate(0.1)
        assert bso.decision is not None
        # A decision of this trainer's own would say so.
        assert (bso.decision.cost, "without the server" in bso.decision.message) == (epoch * JOULES, False)
    (warning,) = _warnings(caplog)
    assert f"{other.address} answers now" in warning
    assert f"at {lost.address}" in warning
    bso.on_evaluate(0.95)
    assert bso.target_reached
    with Client(other.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [each.epoch for each in measured] == [1, 2, 3, 4, 5, 6]
    assert found.trial.newest.energy_joules == 6 * JOULES
    assert len(_warnings(caplog)) == 1
    if death is signal.SIGSTOP:
        os.kill(lost.process.pid, signal.SIGCONT)


def test_server_stops_in_a_trial(serving: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """A rollout, in which every server is stopped and started again, loses nothing and is warned of once a server."""
    bso = begun(serving.address, max_epochs=10_000)
    for _ in range(2):
        bso.on_evaluate(0.1)
        used, other = serving.used()
        stopping = threading.Thread(target=used.stop)
        stopping.start()
        while stopping.is_alive():
            bso.on_evaluate(0.1)
            assert bso.decision is not None
            assert "without the server" not in bso.decision.message
        stopping.join()
        _wait_for_stream(other)
        serving.start(used)
    reported = int(bso.state_dict()["epoch"])
    with Client(serving.address) as client:
        assert epochs(client, bso.trial) == list(range(1, reported + 1))
    assert len(_warnings(caplog)) == 2
    bso.close()


def test_all_servers_die_in_a_trial(serving: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Without any server training goes on after one warning; the first one that is back gets all reports."""
    bso = begun(serving.address, max_epochs=100)
    bso.on_evaluate(0.1)
    used, other = serving.used()
    used.kill()
    other.kill()
    wait_until(lambda: len(_warnings(caplog)) == 1)
    for _ in range(3):
        bso.on_evaluate(0.1)
    assert serving.address in _warnings(caplog)[0]
    serving.start(other)
    with Client(other.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
        bso.on_evaluate(0.95)
        assert bso.target_reached
        assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_TARGET_REACHED
    assert len(_warnings(caplog)) == 1
    wait_until(lambda: Spool.from_env().paths() == [])


def test_old_connections_spread_trainers(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """A trainer whose connections are closed because of their age uses both servers, and notices nothing."""
    for server in servers.both:
        servers.start(server, "--max-connection-age-seconds", "0.2", "--grace-seconds", "0.05")
    bso = begun(servers.address, max_epochs=10_000)

    def both_used() -> bool:
        bso.on_evaluate(0.1)
        return all(server.figure("wattwise_calls_total", method="StreamResults") > 0 for server in servers.both)

    wait_until(both_used)
    reported = int(bso.state_dict()["epoch"])
    with Client(servers.address) as client:
        assert epochs(client, bso.trial) == list(range(1, reported + 1))
    assert _warnings(caplog) == []
    bso.close()
