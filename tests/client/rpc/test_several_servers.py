"""Several servers in one address: which one is used, and what happens when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType

import pytest
from wattwise import AsyncClient, Client, Credentials, v1
from wattwise.errors import JobNotFoundError, ServerUnavailableError, UntrustedServerError
from wattwise.rpc import connection, modes
from wattwise.rpc.address import is_loopback, server_of, servers_of
from wattwise.rpc.connection import Connection
from wattwise.rpc.modes import finish

from tests.client.rpc.name_server import NAME, name_server
from tests.client.rpc.test_addresses import Place, closed_port, silent_server, unknown_name, web_server
from tests.client.training.script import job_spec
from tests.credentials import Authority
from tests.live_server import LiveServer
from tests.waiting import wait_until

JOB_ID = "test-several"

Start = Callable[..., LiveServer]
Prefer = Callable[[str, str], str]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets which servers earlier tests have seen down."""
    monkeypatch.setattr(connection, "_down", set())


def connection_of(client: Client) -> Connection:
    """The connection of a client, which shows which server is used."""
    return client._connection  # noqa: SLF001 - a client does not say which server it uses


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Prefer:
    """Joins two servers to an address whose clients prefer the first in this process."""

    def preferring(first: str, second: str) -> str:
        address = f"{first},{second}"
        for seed in range(1000):
            monkeypatch.setattr(connection, "_ORDER", seed.to_bytes(8, "big"))
            if Connection(address, Credentials()).link().server == first:
                return address
        raise AssertionError("no order has it first")

    return preferring


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers with databases of their own."""
    with ExitStack() as running:

        def started(*arguments: str) -> LiveServer:
            folder = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            live = running.enter_context(LiveServer(folder))
            live.start(*arguments)
            return live

        yield started


@pytest.fixture
def pair(start: Start, prefer: Prefer) -> tuple[LiveServer, LiveServer, str]:
    """Two servers with the same job, and their address; the first is preferred."""
    first, second = start(), start()
    for server in (first, second):
        with Client(server.address) as client:
            client.register_job(job_spec(job_id=JOB_ID))
    return first, second, prefer(first.address, second.address)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def _fails(client: Client) -> bool:
    try:
        client.get_job(JOB_ID)
    except ServerUnavailableError:
        return True
    return False


def test_another_server_answers_after_a_kill(
    pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The next call is answered by another server, also without retries; one warning per outage names both."""
    first, second, address = pair
    with Client(address, retry=False) as client:
        client.get_job(JOB_ID)
        first.kill()
        for _ in range(3):
            client.get_job(JOB_ID)
        (warning,) = _warnings(caplog)
        assert f"at {first.address}:" in warning
        assert f"{second.address} answers now" in warning
        first.start()
        second.kill()
        for _ in range(3):
            client.get_job(JOB_ID)
        (_, warning) = _warnings(caplog)
        assert f"at {second.address}:" in warning
        assert f"{first.address} answers now" in warning
    second.start()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.thorough)])
async def test_awaited_calls_go_on_at_another_server(
    pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture, how: signal.Signals
) -> None:
    """If a server dies or is suspended, all running calls and watches go on at the other one, with one warning."""
    first, second, address = pair
    async with AsyncClient(address) as client:
        watches = [client.watch_jobs() for _ in range(3)]
        await asyncio.gather(*(anext(watch) for watch in watches))
        os.kill(first.process.pid, how)
        try:
            begun = time.monotonic()
            answers = await asyncio.gather(*(client.get_job(JOB_ID) for _ in range(20)))
            assert {answer.job.spec.job_id for answer in answers} == {JOB_ID}
            assert all(message.all_jobs for message in await asyncio.gather(*(anext(watch) for watch in watches)))
            assert time.monotonic() - begun < 20
        finally:
            if how is signal.SIGSTOP:
                os.kill(first.process.pid, signal.SIGCONT)
    assert [f"{second.address} answers now" in warning for warning in _warnings(caplog)] == [True]


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "uncounted"])
async def test_move_of_one_awaited_call_cancels_no_other(
    pair: tuple[LiveServer, LiveServer, str], monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """If one call leaves a suspended server, later ones and a watch move, also if tasks count no cancellations (3.10).

    A call that is cancelled itself is cancelled.
    """
    first, _, address = pair
    if not counts:
        old = ModuleType("asyncio")
        vars(old).update(vars(asyncio), current_task=lambda: None)
        monkeypatch.setattr(modes, "asyncio", old)

    async def later(seconds: float) -> v1.GetJobResponse:
        await asyncio.sleep(seconds)
        return await client.get_job(JOB_ID)

    async with AsyncClient(address) as client:
        watch = client.watch_jobs()
        await anext(watch)
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            again = asyncio.ensure_future(anext(watch))
            calls = [asyncio.ensure_future(later(place / 4)) for place in range(8)]
            cancelled = asyncio.ensure_future(client.get_job(JOB_ID))
            await asyncio.sleep(0.5)
            cancelled.cancel()
            answers = await asyncio.gather(*calls, again)
            assert len(answers) == len(calls) + 1
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        finally:
            os.kill(first.process.pid, signal.SIGCONT)


def test_refusal_of_the_other_server_does_not_hide_the_loss(
    pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A server that was lost before a call which another one refused is still warned of."""
    first, _, address = pair
    first.kill()
    with Client(address, retry=False) as client:
        with pytest.raises(JobNotFoundError):
            client.get_job("unknown")
        client.get_job(JOB_ID)
    (warning,) = _warnings(caplog)
    assert first.address in warning


def test_suspended_server_is_left(pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture) -> None:
    """A server that takes calls and answers none is left long before the call's timeout."""
    first, second, address = pair
    with Client(address, timeout=60) as client:
        client.get_job(JOB_ID)
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            client.get_job(JOB_ID)
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
    (warning,) = _warnings(caplog)
    assert f"{second.address} answers now" in warning


@pytest.mark.parametrize("place", [closed_port, unknown_name, web_server, silent_server])
def test_servers_that_never_answered(
    pair: tuple[LiveServer, LiveServer, str], prefer: Prefer, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong entry of a list costs one warning in a process, and no call."""
    first, _, _ = pair
    with place() as wrong:
        address = prefer(wrong, first.address)
        for _ in range(3):
            with Client(address, timeout=60, retry=False) as client:
                assert client.get_job(JOB_ID).job.spec.job_id == JOB_ID
    (warning,) = _warnings(caplog)
    assert wrong in warning


def test_all_servers_down(pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture) -> None:
    """If none answers, the error names the whole address; the first that is back answers, without another warning."""
    first, second, address = pair
    with Client(address, timeout=60, search_timeout=0.5) as client:
        client.get_job(JOB_ID)
        first.kill()
        second.kill()
        with pytest.raises(ServerUnavailableError, match=f"at {address}: "):
            client.get_job(JOB_ID)
        (warning,) = _warnings(caplog)
        assert "retrying for 0.5 seconds" in warning
        second.start()
        assert client.get_job(JOB_ID).job.spec.job_id == JOB_ID
        assert len(_warnings(caplog)) == 1


def test_watch_goes_on_at_another_server(pair: tuple[LiveServer, LiveServer, str]) -> None:
    """A watch whose server dies goes on at another one."""
    first, second, address = pair
    with Client(address) as client:
        watch = client.watch_job(JOB_ID)
        assert not next(watch).job.paused
        first.kill()
        with Client(second.address) as admin:
            admin.set_job_paused(JOB_ID, paused=True)
        assert next(watch).job.paused
        watch.close()  # type: ignore[attr-defined]


def test_storage_of_one_server_fails(pair: tuple[LiveServer, LiveServer, str]) -> None:
    """A server whose database is away is left for one that has it."""
    first, _, address = pair
    _without_database(first)
    with Client(address, retry=False) as client:
        assert client.get_job(JOB_ID).job.spec.job_id == JOB_ID


def test_client_stays_only_for_a_while_with_a_server_without_its_storage(
    pair: tuple[LiveServer, LiveServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no server can use its database, calls stay with one for a time, which their failures do not extend."""
    monkeypatch.setattr(connection, "_STORAGE_SECONDS", 1.0)
    first, second, address = pair
    for server in (first, second):
        _without_database(server)
    with Client(address, retry=False) as client:
        assert _fails(client)
        assert connection_of(client).link().server == first.address
        second.database.with_name("elsewhere.db").rename(second.database)
        wait_until(lambda: not _fails(client))
        assert connection_of(client).link().server == second.address


def _without_database(server: LiveServer) -> None:
    server.database.rename(server.database.with_name("elsewhere.db"))
    with Client(server.address, retry=False) as client:
        wait_until(lambda: _fails(client))


@pytest.mark.parametrize("dead_first", [True, False])
def test_answer_counts_more_than_silence(
    pair: tuple[LiveServer, LiveServer, str], prefer: Prefer, monkeypatch: pytest.MonkeyPatch, *, dead_first: bool
) -> None:
    """If one server is dead and another says that its database is away, that is the error, and it is waited for."""
    dead, other, _ = pair
    dead.kill()
    _without_database(other)
    order = (dead, other) if dead_first else (other, dead)
    address = prefer(*(server.address for server in order))
    with Client(address, retry=False) as client, pytest.raises(ServerUnavailableError) as caught:
        client.get_job(JOB_ID)
    assert caught.value.reason == "ERROR_REASON_STORAGE_UNAVAILABLE"
    assert dead.address in str(caught.value)
    with Client(address, timeout=60, search_timeout=0.0) as client, ThreadPoolExecutor(1) as pool:
        rounds = _rounds(client, monkeypatch)
        waiting = pool.submit(client.get_job, JOB_ID)
        wait_until(lambda: waiting.done() or len(rounds) > 1)
        other.database.with_name("elsewhere.db").rename(other.database)
        assert waiting.result(60).job.spec.job_id == JOB_ID


@pytest.mark.parametrize("dead_first", [True, False])
def test_server_that_is_back_is_used_though_another_lacks_its_database(
    pair: tuple[LiveServer, LiveServer, str], prefer: Prefer, monkeypatch: pytest.MonkeyPatch, *, dead_first: bool
) -> None:
    """The client does not stay with a server without its database while it has not heard the same of all others."""
    dead, other, _ = pair
    dead.kill()
    _without_database(other)
    order = (dead, other) if dead_first else (other, dead)
    address = prefer(*(server.address for server in order))
    # Until then it would stay.
    monkeypatch.setattr(connection, "_STORAGE_SECONDS", 1e9)
    with Client(address, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        rounds = _rounds(client, monkeypatch)
        waiting = pool.submit(client.get_job, JOB_ID)
        wait_until(lambda: waiting.done() or len(rounds) > 1)
        dead.start()
        assert waiting.result(60).job.spec.job_id == JOB_ID
        assert connection_of(client).link().server == dead.address


def _rounds(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fills with an entry whenever a call begins a round of all servers."""
    begun: list[float] = []
    ask = connection_of(client).ask

    def asked(send: Callable[[connection.ServerLink, float], Awaitable[v1.Job]], timeout: float) -> Awaitable[v1.Job]:
        begun.append(timeout)
        return ask(send, timeout)

    monkeypatch.setattr(connection_of(client), "ask", asked)
    return begun


@pytest.mark.parametrize("dead_first", [True, False])
def test_dead_server_may_come_back_beside_one_that_is_not_trusted(
    start: Start, prefer: Prefer, tmp_path: Path, *, dead_first: bool
) -> None:
    """A certificate that is wrong ends no call that another server may answer later; the error says both."""
    authority = Authority(tmp_path)
    wrong = authority.issue("wrong", "elsewhere")
    untrusted, dead = start("--tls-cert", str(wrong.cert), "--tls-key", str(wrong.key)), start()
    dead.kill()
    order = (dead, untrusted) if dead_first else (untrusted, dead)
    address = prefer(*(server.address for server in order))
    client = Client(address, retry=False, credentials=authority.believing())
    with client, pytest.raises(ServerUnavailableError) as caught:
        client.get_job(JOB_ID)
    assert caught.value.retryable
    assert f"at {dead.address}" in str(caught.value)
    assert f"at {untrusted.address} is not trusted" in str(caught.value)


def test_move_of_another_thread_is_no_outage(
    pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A call that fails because another thread has gone to another server is made there, without a warning."""
    first, _, address = pair
    begun = threading.Event()

    async def get_job(link: connection.ServerLink, seconds: float) -> v1.GetJobResponse:
        begun.set()
        answer: v1.GetJobResponse = link.calls["GetJob"](v1.GetJobRequest(job_id=JOB_ID), timeout=seconds)
        return answer

    with Client(address, timeout=60) as client:
        client.get_job(JOB_ID)
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            link = connection_of(client).link()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(finish, connection_of(client).ask(get_job, 60))
                begun.wait(60)
                while connection_of(client).link() is link:
                    connection_of(client).spread(link)
                assert waiting.result(60).job.spec.job_id == JOB_ID
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
    assert _warnings(caplog) == []


def test_old_connections_spread_the_clients(start: Start, prefer: Prefer, caplog: pytest.LogCaptureFixture) -> None:
    """When a server closes a connection because of its age, any server may be next, without a warning."""
    age = ("--max-connection-age-seconds", "0.1", "--grace-seconds", "0")
    address = prefer(start(*age).address, start(*age).address)
    for each in servers_of(address):
        with Client(each) as client:
            client.register_job(job_spec(job_id=JOB_ID))
    used = set()
    with Client(address) as client:
        for _ in client.watch_job(JOB_ID):
            used.add(connection_of(client).link().server)
            if len(used) == 2:
                break
    assert _warnings(caplog) == []


def test_processes_prefer_different_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes spread over the servers, and all clients of one process prefer the same."""
    address, first = "a:1,b:1,c:1", Counter[str]()
    for seed in range(300):
        monkeypatch.setattr(connection, "_ORDER", seed.to_bytes(8, "big"))
        (preferred,) = {Connection(address, Credentials()).link().server for _ in range(3)}
        first[preferred] += 1
    assert len(first) == 3
    assert min(first.values()) > 60


@pytest.mark.parametrize("scheme", ["", "ipv4:"])
def test_schemes_of_lists(pair: tuple[LiveServer, LiveServer, str], scheme: str) -> None:
    """Lists with gRPC's own schemes lead to all of their servers."""
    *both, address = pair
    with Client(scheme + address) as client:
        client.get_job(JOB_ID)
        used, other = sorted(both, key=lambda each: not connection_of(client).link().server.endswith(each.address))
        used.kill()
        client.get_job(JOB_ID)
        assert connection_of(client).link().server.endswith(other.address)


def test_list_of_ipv6_addresses(tmp_path: Path) -> None:
    """A list of IPv6 addresses leads to its servers."""
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as held:
            port = held.getsockname()[1]
    except OSError:
        pytest.skip("needs IPv6")
    with LiveServer(tmp_path) as live:
        live.address = f"[::1]:{port}"
        live.start()
        with Client(f"ipv6:[::1]:1,[::1]:{port}") as client:
            assert list(client.jobs()) == []


def test_each_certificate_is_for_the_name_in_the_list(
    start: Start, prefer: Prefer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS verifies every server against the host by which it is listed, and leaves one whose certificate is wrong."""
    authority = Authority(tmp_path)
    named, numbered = authority.issue("named", "localhost"), authority.issue("numbered", "127.0.0.1")
    ports = []
    for pair in (named, numbered):
        server = start("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
        ports.append(server.address.rpartition(":")[2])
    right = [f"localhost:{ports[0]}", f"127.0.0.1:{ports[1]}"]
    wrong = [f"127.0.0.1:{ports[0]}", f"localhost:{ports[1]}"]
    for first, second in (right, right[::-1]):
        address = prefer(first, second)
        with Client(address, credentials=authority.believing()) as client:
            assert list(client.jobs()) == []
            assert connection_of(client).link().server == first
    assert _warnings(caplog) == []
    with Client(prefer(wrong[0], right[1]), credentials=authority.believing()) as client:
        assert list(client.jobs()) == []
    (warning,) = _warnings(caplog)
    assert f"at {wrong[0]} is not trusted" in warning
    with Client(",".join(wrong), credentials=authority.believing()) as client, pytest.raises(UntrustedServerError):
        list(client.jobs())


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_name_with_several_addresses(
    start: Start, tmp_path: Path, death: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """A `dns:` name leads to all of its servers, whose certificates have that name; one that dies is left."""
    authority = Authority(tmp_path)
    pair, trusting = authority.issue("several", NAME), authority.believing()
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    first = start(*tls)
    port = first.address.rpartition(":")[2]
    second = start(*tls, "--address", f"127.0.0.2:{port}")
    both = {"127.0.0.1": first, "127.0.0.2": second}
    for host in both:
        with name_server([host]) as names, Client(f"dns://{names}/{NAME}:{port}", credentials=trusting) as client:
            client.register_job(job_spec(job_id=f"test-{host}"))
    with (
        name_server(list(both)) as names,
        Client(f"dns://{names}/{NAME}:{port}", timeout=60, credentials=trusting) as client,
    ):
        (job,) = client.jobs()
        host = job.job.spec.job_id.removeprefix("test-")
        os.kill(both[host].process.pid, death)
        for _ in range(3):
            (job,) = client.jobs()
            assert job.job.spec.job_id != f"test-{host}"
        if death is signal.SIGSTOP:
            os.kill(both[host].process.pid, signal.SIGCONT)
            (warning,) = _warnings(caplog)
            assert f"{NAME}:{port}" in warning


def test_threads_share_a_move(pair: tuple[LiveServer, LiveServer, str], caplog: pytest.LogCaptureFixture) -> None:
    """When several threads lose their server at once, each is answered, and one of them warns."""
    first, _, address = pair
    with Client(address) as client:
        client.get_job(JOB_ID)
        first.kill()
        answers: list[str] = []
        threads = [
            threading.Thread(target=lambda: answers.append(client.get_job(JOB_ID).job.spec.job_id)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [JOB_ID] * 8
    assert len(_warnings(caplog)) == 1


def test_spellings_of_a_list() -> None:
    """The spool knows several servers by the same name in whatever order and spelling they are listed."""
    assert server_of("b:1,A:2") == server_of("a:2,b:1") == "a:2,b:1"
    assert server_of("ipv4:127.0.0.1:1,10.0.0.1:2") == "10.0.0.1:2,localhost:1"
    assert server_of("sqlite:///z/b,a.db") == "sqlite:///z/b,a.db"


def test_token_for_several_servers() -> None:
    """A list is on this machine only if all of its servers are."""
    assert is_loopback("127.0.0.1:1,localhost:2")
    assert is_loopback("ipv4:127.0.0.1:1,127.0.0.2:2")
    assert not is_loopback("dns:///localhost:1,elsewhere:2")
