"""Checks that a client's example moves between two servers on one PostgreSQL: `python -m tests.servers_check PROGRAM`.

The program is that of `tests.example_check`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from wattwise import v1
from wattwise_server.security.tokens import Role

from tests.credentials import Authority, issue
from tests.example_check import JOB, PREFIX, Example, refused, registered, trial, trial_begun, wait_for_output
from tests.postgres import PostgresServer
from tests.stalling_proxy import StallingProxy
from tests.waiting import wait_until
from tests.watched import WatchedServer

OUTAGE = "no answer from"
HOSTS = ("localhost", "127.0.0.1")
Servers = tuple[WatchedServer, WatchedServer]


def finishes_at_the_other(program: str, servers: Servers, url: str) -> None:
    """A server is killed in the middle of a trial: the trial goes on, and the other server gets each epoch once."""
    for server in servers:
        server.start("--database", url)
    example = Example(program, addresses(servers), "1", "60")
    dead, left = await_use(servers)
    wait_until(lambda: trial_begun(left))
    dead.kill()
    status, said = example.end()
    assert status == 0, said
    # It prints this if a report found no server within its timeout.
    assert "without the server" not in said, said
    assert said.count(OUTAGE) <= 1, said
    assert reported(left) == list(range(1, trial(left).newest.epoch + 1))


def reopens_its_stream(program: str, servers: Servers, url: str) -> None:
    """A server is killed in the middle of an epoch: long before the next heartbeat, the other one pushes a stop."""
    for server in servers:
        server.start("--database", url)
    example = Example(program, f"ipv4:{servers[0].address},{servers[1].address}", "600", "600")
    dead, left = await_use(servers)
    wait_until(lambda: has_stream(dead))
    dead.kill()
    wait_until(lambda: has_stream(left))
    left.admin.DeleteJob(v1.DeleteJobRequest(job_id=JOB))
    try:
        # Heartbeats are sent every minute, with jitter.
        status = example.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        example.process.kill()
        raise
    assert status == 3, example.end()[1]


def warns_once(program: str, servers: Servers, url: str) -> None:
    """While no server is left, it trains on and warns once; the first server that is back gets the report."""
    for server in servers:
        server.start("--database", url)
    # Epochs that are long beside the start of a server.
    example = Example(program, addresses(servers), "8", "60")
    _, left = await_use(servers)
    wait_until(lambda: trial_begun(left))
    for server in servers:
        server.kill()
    said = wait_for_output(example, "training continues without the server")
    left.start("--database", url)
    status, rest = example.end()
    assert status == 0, said + rest
    assert (said + rest).count(OUTAGE) == 1, said + rest
    assert "reached without the server" not in rest, said + rest
    # Of the epochs that ended during the outage only the newest is sent.
    assert reported(left)[-1] == trial(left).newest.epoch


def leaves_a_suspended_one(program: str, servers: Servers, url: str) -> None:
    """A server that is suspended in the middle of an epoch loses its stream within the documented 13 seconds."""
    for server in servers:
        server.start("--database", url)
    example = Example(program, addresses(servers), "600", "600")
    suspended, left = await_use(servers)
    wait_until(lambda: has_stream(suspended))
    suspended.process.send_signal(signal.SIGSTOP)
    # Otherwise a heartbeat would notice it, within a minute.
    wait_until(lambda: has_stream(left), 30)
    suspended.kill()
    example.process.terminate()
    example.end()


def leaves_one_without_its_database(program: str, servers: Servers, url: str) -> None:
    """A server that is cut off from PostgreSQL is left: the trial goes on at the other server."""
    database = urlsplit(url).port
    assert database is not None
    with StallingProxy(database) as one, StallingProxy(database) as two:
        proxies = one, two
        for server, proxy in zip(servers, proxies, strict=True):
            server.start("--database", url.replace(f":{database}/", f":{proxy.port}/"))
        example = Example(program, addresses(servers), "2", "60")
        used, left = await_use(servers)
        wait_until(lambda: trial_begun(left))
        cut_off = proxies[servers.index(used)]
        cut_off.refuse()
        cut_off.cut()
        status, said = example.end()
        assert status == 0, said
        assert said.count(OUTAGE) <= 1, said
        assert reported(left)[-1] == trial(left).newest.epoch


def begins_at_the_other(program: str, servers: Servers, url: str) -> None:
    """A server that is away when training begins is passed over, wherever it stands in the list."""
    servers[1].start("--database", url)
    for _ in range(6):
        status, said = Example(program, addresses(servers)).end()
        assert status == 0, said
        assert "without the server" not in said, said


def spreads(program: str, servers: Servers, url: str) -> None:
    """Launches with the same list use both servers."""
    for server in servers:
        server.start("--database", url)
    use_both(program, servers)


def trusts_each_by_its_own_name(program: str, servers: Servers, url: str) -> None:
    """Each server needs a certificate for its own name only; no server of a list gets the token in clear text."""
    folder = servers[0].database.parent
    authority, tokens = Authority(folder), folder / "server.tokens"
    token = issue(tokens, Role.TRAINER, PREFIX)
    for server, host in zip(servers, HOSTS, strict=True):
        pair = authority.issue(host, host)
        tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
        server.start("--database", url, "--tokens", str(tokens), *tls)
    use_both(program, servers, WATTWISE_TLS_CA=str(authority.file), WATTWISE_TOKEN=token)
    refused(program, f"{servers[0].address},192.0.2.1:50051", "in clear text", WATTWISE_TOKEN=token)


def refuses_malformed_lists(program: str, servers: Servers, url: str) -> None:
    """A malformed list is refused before training, with the server that is wrong."""
    del servers, url
    for address, wrong in {
        "localhost:50051,localhost": "localhost",
        "localhost:50051,": "",
        "localhost:50051, localhost:50052": " localhost:50052",
        "ipv4:127.0.0.1:50051,[::1]:50051": "[::1]:50051",
        "ipv6:[::1]:50051,127.0.0.1:50051": "127.0.0.1:50051",
        "ipv4:localhost:50051": "localhost:50051",
        "dns:///a:50051,b:50051": "a:50051,b:50051",
        "dns:///a": "a",
        "http://localhost:50051": "http://localhost:50051",
        "a:65536,b:1": "a:65536",
    }.items():
        refused(program, address, f"'{wrong}' ")


def use_both(program: str, servers: Servers, **variables: str) -> None:
    """Launch until each server has had a launch."""
    for _ in range(20):
        status, said = Example(program, addresses(servers), **variables).end()
        assert status == 0, said
        assert "without the server" not in said, said
        if all(JOB in server.log.read_text() for server in servers):
            return
    raise AssertionError("20 launches used the same server")


def addresses(servers: Servers) -> str:
    """The servers as a list."""
    ports = (server.address.rpartition(":")[2] for server in servers)
    return ",".join(f"{host}:{port}" for host, port in zip(HOSTS, ports, strict=True))


def await_use(servers: Servers) -> Servers:
    """Wait for a trial; return the server that the program uses and the other one."""
    wait_until(lambda: any(JOB in server.log.read_text() for server in servers))
    used = next(server for server in servers if JOB in server.log.read_text())
    other = servers[servers.index(used) - 1]
    assert JOB not in other.log.read_text(), "the program uses both servers"
    wait_until(lambda: registered(other))
    return used, other


def has_stream(server: WatchedServer) -> bool:
    """Whether its one trainer has a stream to it."""
    return server.figure("wattwise_open_streams", method="StreamResults") == 1


def reported(server: WatchedServer) -> list[int]:
    """The epochs of its one trial, which has reached its target."""
    one = trial(server)
    assert one.end_reason == v1.END_REASON_TARGET_REACHED, one
    return [each.epoch for each in server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=one.id)).measurements]


CHECKS: tuple[Callable[[str, Servers, str], None], ...] = (
    finishes_at_the_other, reopens_its_stream, leaves_a_suspended_one, warns_once, leaves_one_without_its_database,
    begins_at_the_other, spreads, trusts_each_by_its_own_name, refuses_malformed_lists,
)  # fmt: skip


@contextmanager
def two_servers(folder: Path) -> Iterator[Servers]:
    """Two servers that are not started yet."""
    for name in ("first", "second"):
        (folder / name).mkdir()
    with WatchedServer(folder / "first") as first, WatchedServer(folder / "second") as second:
        yield first, second


def main(program: str) -> None:
    """Fail at the first check that fails."""
    with tempfile.TemporaryDirectory() as folder, PostgresServer.running() as postgres:
        for check in CHECKS:
            scratch = Path(folder, check.__name__)
            scratch.mkdir()
            with two_servers(scratch) as servers:
                check(program, servers, postgres.create_database())
            sys.stdout.write(f"{Path(program).name}: {check.__doc__}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
