"""`wattwise health` against the real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise.commands.main import main

from tests.client.commands.conftest import Ask
from tests.client.commands.test_main import AWAY
from tests.credentials import Authority
from tests.live_server import LiveServer
from tests.ports import hold_port, port_of


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTWISE_HEALTH_ADDRESS", raising=False)


def test_serving_server_is_healthy(ask: Ask, address: str) -> None:
    """The status is 0 for the whole server and for each name, wherever the address comes from."""
    assert ask("health") == f"{address}: SERVING\n"
    assert ask("health", "--address", address, "--service", "liveness") == f"liveness of {address}: SERVING\n"
    assert ask("health", "--service", "wattwise.v1.JobReader").endswith("SERVING\n")


def test_absent_and_unknown_are_unhealthy(refused: Ask) -> None:
    """The status is 1 for a server that is away and a service that is unknown; a malformed address is named."""
    assert f"cannot reach a Wattwise server at {AWAY}" in refused("health", "--address", AWAY, status=1)
    assert "no service 'cache'" in refused("health", "--service", "cache", status=1)
    assert "'http://here'" in refused("health", "--address", "http://here", status=1)


def test_each_of_several_servers_is_asked(ask: Ask, address: str) -> None:
    """Of several servers each has to serve."""
    other = address.replace("127.0.0.1", "localhost")
    assert ask("health", "--address", f"{address},{other}") == f"{address}: SERVING\n{other}: SERVING\n"
    assert main(["health", "--address", f"{AWAY},{address}"]) == 1
    assert main(["health", "--address", f"{address},{AWAY}"]) == 1


def test_server_that_cannot_serve_is_unhealthy(tmp_path: Path, refused: Ask) -> None:
    """The status is 1 where a server answers that it is not serving."""
    with LiveServer(tmp_path) as server:
        server.start()
        moved = server.database.rename(server.database.with_name("kept"))
        # The server looks four times a second, and logs what it finds.
        with server.log.open() as log:
            while "not serving" not in log.readline():
                pass
        assert refused("health", "--address", server.address, status=1).endswith(": NOT_SERVING\n")
        moved.rename(server.database)


def test_port_for_probes_is_asked_without_tls(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the variables of a server with TLS its port for probes is asked, at the loopback, as it is."""
    pair = Authority(tmp_path).issue("server")
    port = hold_port()
    with port, LiveServer(tmp_path) as server:
        probes = f"0.0.0.0:{port_of(port)}"
        tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
        server.start("--health-address", f"127.0.0.1:{port_of(port)}", *tls)
        monkeypatch.setenv("WATTWISE_TLS_CERT", str(pair.cert))
        monkeypatch.setenv("WATTWISE_TLS_KEY", str(pair.key))
        monkeypatch.setenv("WATTWISE_HEALTH_ADDRESS", probes)
        assert ask("health") == f"127.0.0.1:{port_of(port)}: SERVING\n"


def test_tls_is_verified(tmp_path: Path, ask: Ask, refused: Ask) -> None:
    """With TLS the server's certificate is verified, as by the other commands."""
    ours, other = Authority(tmp_path), Authority(tmp_path, "other")
    pair = ours.issue("server")
    with LiveServer(tmp_path) as server:
        server.start("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
        assert ask("health", "--address", server.address, "--tls-ca", str(ours.file)).endswith("SERVING\n")
        assert "not trusted" in refused("health", "--address", server.address, "--tls-ca", str(other.file), status=1)
