"""How long a caller waits beside each of the attacks of `tests/faults/test_strangers.py`, and without one.

As a module of its own it is the attacker: it goes on until it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.figures import Samples
from benchmarks.victim import trainer
from tests.faults.strangers import Connection, unfinished
from tests.faults.victim import Victim

REPORT = "/wattwise.v1.BatchSizeOptimizer/ReportResult"
IDLE = "alone"
UNBOUNDED = {IDLE, "calls without a request, again and again", "cancelled calls"}
"""Without a target: calls per second have no limit, so that these two take as much of a core as they ask for."""
_SECONDS = 5.0


def measure(server: str) -> Samples:
    """Returns the 99th percentile of a report's seconds, alone and beside each attack: one sample per attack."""
    found: Samples = {IDLE: []}
    with trainer(server) as victim:
        for name in ATTACKS:
            found[IDLE].append(_late(victim))
            with _attacker(server, name):
                found[name] = [_late(victim)]
    return found


def _late(victim: Callable[[], Victim]) -> float:
    with victim() as waiting:
        time.sleep(_SECONDS)
    return waiting.p99 / 1e3


@contextlib.contextmanager
def _attacker(server: str, name: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.attacks", "--server", server, "--attack", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"the attack {name!r} did not begin")
        yield
        process.kill()


def _large_requests(server: str) -> None:
    with _own_channel(server) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest(service="x" * (4 * 2**20 - 100))) for _ in range(40)]
        for call in calls:
            call.code()


def _unfinished_requests(length: int, count: int) -> Callable[[str], None]:
    def attack(server: str) -> None:
        with contextlib.closing(Connection(server)) as connection:
            for _ in range(count):
                connection.send(connection.open(REPORT), unfinished(length), 0.2)

    return attack


def _calls_without_a_request(count: int, seconds: float) -> Callable[[str], None]:
    def attack(server: str) -> None:
        with contextlib.closing(Connection(server)) as connection:
            for _ in range(count):
                connection.open(REPORT)
            time.sleep(seconds)

    return attack


def _cancelled_calls(server: str) -> None:
    with contextlib.closing(Connection(server)) as connection:
        for _ in range(5_000):
            connection.reset(connection.open(REPORT))


def _watches(server: str) -> None:
    with _own_channel(server) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(1_000)]
        # Those beyond the limit of a connection begin when others end, which none does.
        next(calls[0])
        time.sleep(60)


def _silent_connections(server: str) -> None:
    host, _, port = server.rpartition(":")
    with contextlib.ExitStack() as silent:
        for _ in range(500):
            silent.enter_context(socket.create_connection((host, int(port)), timeout=60))
        time.sleep(1)


def _own_channel(server: str) -> grpc.Channel:
    return grpc.insecure_channel(server, (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)))


ATTACKS: dict[str, Callable[[str], None]] = {
    "large requests": _large_requests,
    "unfinished requests of 4 MB": _unfinished_requests(4 * 2**20, 20),
    "unfinished requests of 0.5 MB": _unfinished_requests(500_000, 50),
    "8,000 calls without a request": _calls_without_a_request(8_000, 60),
    "calls without a request, again and again": _calls_without_a_request(2_000, 0),
    "cancelled calls": _cancelled_calls,
    "health watches": _watches,
    "silent connections": _silent_connections,
}


def main() -> None:
    """Attacks until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--attack", choices=ATTACKS, required=True)
    args = parser.parse_args()
    print("begins", flush=True)
    while True:
        with contextlib.suppress(OSError):
            ATTACKS[args.attack](args.server)


if __name__ == "__main__":
    main()
