"""How long a trainer waits for its next answer when its server dies and another one is on the same PostgreSQL."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.client.training.script import begun
from tests.live_server import LiveServer
from tests.postgres import PostgresServer

_ESTABLISHED = "01"

DEATHS = {
    "is killed": signal.SIGKILL,
    "is suspended": signal.SIGSTOP,
}


def measure(rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of the report that follows each death, by what happens to the server."""
    with PostgresServer.running() as postgres:
        return {what: [_move(postgres, death) for _ in range(rounds)] for what, death in DEATHS.items()}


def _move(postgres: PostgresServer, death: signal.Signals) -> float:
    url = postgres.create_database()
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            server = stack.enter_context(LiveServer(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            server.start("--database", url)
            servers.append(server)
        # Nothing of this run is to be delivered by the next.
        os.environ["WATTWISE_SPOOL"] = "off"
        bso = begun(",".join(server.address for server in servers), max_epochs=100)
        bso.on_evaluate(0.1)
        lost = _used(servers)
        os.kill(lost.process.pid, death)
        start = time.perf_counter()
        bso.on_evaluate(0.1)
        seconds = time.perf_counter() - start
        if bso.decision is None or bso.decision.cost != 20 or "without the server" in bso.decision.message:
            raise RuntimeError(f"no server answered the report: {bso.decision}")
        bso.close()
        if death is signal.SIGSTOP:
            os.kill(lost.process.pid, signal.SIGCONT)
    return seconds


def _used(servers: list[LiveServer]) -> LiveServer:
    """Returns the server that the trainer, which is this process, is connected to."""
    # gRPC's sockets are of IPv6, also to an address of IPv4.
    connections = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()
    ]
    for server in servers:
        port = int(server.address.rpartition(":")[2])
        if any(state == _ESTABLISHED and remote.endswith(f":{port:04X}") for _, _, remote, state, *_ in connections):
            return server
    raise RuntimeError("the trainer is not connected")
