"""The page stays available: streams share a watch, slow clients make room, and a suspended server is left."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import itertools
import logging
import os
import resource
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from wattwise import AsyncClient, Credentials
from wattwise.rpc.connection import most_channels
from wattwise_server.security.tokens import Role
from wattwise_web import connections, live
from wattwise_web.app import LiveAnswer
from wattwise_web.log import LimitedHandler
from wattwise_web.reader import Reader, Visitor

from tests.credentials import Authority, Pair
from tests.live_server import LiveServer, servers_on
from tests.waiting import wait_until
from tests.watched import WatchedServer
from tests.web.page import WebPage
from tests.web.test_access import Guarded, log_in


def open_stream(page: WebPage, cookie: str = "") -> socket.socket:
    """A live stream that nobody reads."""
    host, _, port = page.url.removeprefix("http://").rpartition(":")
    connected = socket.create_connection((host, int(port)), timeout=30)
    lines = ["GET /live HTTP/1.1", f"Host: {host}:{port}", *([f"Cookie: {cookie}"] if cookie else [])]
    connected.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    return connected


def status_of(connected: socket.socket) -> int:
    """The status of its answer."""
    answer = http.client.HTTPResponse(connected)
    answer.begin()
    return answer.status


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedServer]:
    """A server whose metrics can be read."""
    with WatchedServer(tmp_path) as server:
        server.start()
        yield server


def watches(server: WatchedServer) -> float:
    """How many watches the server has."""
    return server.figure("wattwise_open_streams", method="WatchJobs")


@pytest.mark.thorough
def test_pages_load_beside_as_many_streams_as_documented(watched: WatchedServer, tmp_path: Path) -> None:
    """A thousand windows share one watch, and pages are answered beside them; a further stream is refused."""
    with (
        WebPage(watched.address, tmp_path / "web.log") as page,
        contextlib.ExitStack() as streams,
        page.client() as browser,
    ):
        for number in range(1, live.LARGEST_TOTAL + 1):
            opened = streams.enter_context(open_stream(page))
            assert status_of(opened) == 200
            if number in (100, 128, 130, live.LARGEST_TOTAL):
                assert browser.get("/").status_code == 200
        assert watches(watched) == 1
        assert status_of(streams.enter_context(open_stream(page))) == 429
    wait_until(lambda: watches(watched) == 0)


@pytest.mark.thorough
def test_a_token_cannot_use_up_the_streams(tmp_path: Path) -> None:
    """A session has 50 streams and a token 250, also if all ask at once; another token still gets one."""
    with Guarded(tmp_path) as server:
        tokens = [server.token(Role.VIEWER) for _ in range(2)]
        server.start("--tokens", str(tmp_path / "tokens"))
        with WebPage(server.address, tmp_path / "web.log") as page, contextlib.ExitStack() as streams:

            def cookie(token: str) -> str:
                with page.client() as browser:
                    log_in(page, browser, token)
                    ((name, value),) = browser.cookies.items()
                    return f"{name}={value}"

            def accepted(own: str) -> bool:
                return status_of(streams.enter_context(open_stream(page, own))) == 200

            own = cookie(tokens[0])
            os.kill(page.process.pid, signal.SIGSTOP)
            burst = [streams.enter_context(open_stream(page, own)) for _ in range(live.LARGEST_SESSION + 20)]
            os.kill(page.process.pid, signal.SIGCONT)
            assert Counter(map(status_of, burst)) == {200: live.LARGEST_SESSION, 429: 20}
            for _ in range(live.LARGEST_TOKEN // live.LARGEST_SESSION - 1):
                own = cookie(tokens[0])
                assert all(accepted(own) for _ in range(live.LARGEST_SESSION))
                assert not accepted(own)
            assert not accepted(cookie(tokens[0]))
            assert accepted(cookie(tokens[1]))


async def test_a_stream_whose_browser_has_left_makes_room() -> None:
    """Its place is free again although its answer did not begin."""
    reader, streams = Reader("127.0.0.1:1", Credentials()), live.Streams()
    stream = streams.open(reader, Visitor(None), "")
    assert stream
    assert len(streams) == 1

    async def receive() -> Message:
        await asyncio.get_running_loop().create_future()
        return {}

    async def send(_message: Message) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await LiveAnswer(streams, stream, lambda: True)({"type": "http", "method": "GET"}, receive, send)
    assert len(streams) == 0
    await reader.close()


async def test_a_stream_that_ends_before_it_begins_says_why() -> None:
    """A logout between the request and the first byte of the answer is not lost."""
    stream = live.Stream()
    stream.end("login")
    assert [text async for text in stream.events()] == ["event: login\ndata:\n\n"]


async def test_watches_of_many_tokens_leave_room_for_calls(watched: WatchedServer) -> None:
    """More watches than a connection carries all begin, and a call is answered beside them."""
    client = AsyncClient(watched.address, credentials=Credentials())
    many = [client.watch_jobs() for _ in range(250)]
    try:
        first = await asyncio.wait_for(asyncio.gather(*(anext(each) for each in many)), 60)
        assert all(message.all_jobs for message in first)
        assert watches(watched) == len(many)
        assert (await client.get_server_info()).version
    finally:
        await client.close()


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads a request and answers it; `/long` never ends, and `/slow` takes a second."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            await send({"type": f"lifespan.{kind}.complete"})
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    parts = itertools.repeat(bytes(100_000)) if scope["path"] == "/long" else iter([b"answer"])
    await StreamingResponse(parts)(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(certificate: Pair | None = None, most: int = 100) -> AsyncIterator[int]:
    """The port of a server of that application."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    config = uvicorn.Config(
        answering,
        http=connections.Protocol,
        ws="none",
        log_config=None,
        timeout_keep_alive=1,
        ssl_certfile=certificate and str(certificate.cert),
        ssl_keyfile=certificate and str(certificate.key),
    )
    server = connections.Server(config, most)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def until_closed(port: int, *parts: bytes) -> bytes:
    """What comes on a connection that sends this and then waits, until the other side closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        with contextlib.suppress(ConnectionError):
            received = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    return received


async def asked(port: int, path: str = "/") -> bytes:
    """The answer to a request."""
    return await until_closed(port, f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())


HALF = b"GET / HTTP/1.1\r\nHost: h\r\n"
WHOLE = HALF + b"\r\n"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\ntoken"


@pytest.mark.parametrize("parts", [(), (HALF,), (HALF_BODY,), (WHOLE, HALF), (WHOLE, HALF_BODY)])
async def test_incomplete_requests_are_closed(monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]) -> None:
    """A connection that says nothing, half a request or half a form is closed, also after a whole request."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    async with serving() as port:
        received = await until_closed(port, *parts)
        assert received.count(b"200 OK") == (WHOLE in parts)
        assert b"200 OK" in await asked(port)


async def test_a_trickle_does_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for the whole request, not for each of its bytes."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = asyncio.create_task(reader.read())
        while not closed.done():
            writer.write(b"X")
            await asyncio.wait({closed}, timeout=0.02)
        writer.close()
        with contextlib.suppress(ConnectionError):
            assert await closed == b""


async def test_a_silent_handshake_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The deadline begins before TLS, and one that fails leaves room for others."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    authority = Authority(tmp_path)
    async with serving(authority.issue("server"), 1) as port:
        assert await until_closed(port) == b""
        await until_closed(port, WHOLE)
        trusting = ssl.create_default_context(cafile=authority.file)
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as browser:
            assert (await browser.get(f"https://127.0.0.1:{port}/")).text == "answer"


async def test_a_long_answer_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the request is complete, the answer may take longer."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    async with serving() as port:
        assert b"answer" in await asked(port, "/slow")


async def test_a_reader_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that nobody takes is given up, and makes room."""
    monkeypatch.setattr(connections, "_TAKING_SECONDS", 0.2)
    async with serving(most=1) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /long HTTP/1.1\r\nHost: h\r\n\r\n")
        await writer.drain()
        assert b"answer" in await asked(port)
        writer.close()


async def test_more_connections_than_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer is answered once the silent ones have been closed."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    async with serving(most=3) as port:
        silent = [asyncio.create_task(until_closed(port)) for _ in range(9)]
        await asyncio.sleep(0)
        assert b"answer" in await asked(port)
        assert await asyncio.gather(*silent) == [b""] * 9


@pytest.mark.thorough
def test_a_lack_of_files_is_survived(site: LiveServer, tmp_path: Path) -> None:
    """Without a file for another connection the page waits, logs a few lines, uses no processor, and goes on."""
    with WebPage(site.address, tmp_path / "web.log") as page, page.client() as browser:
        assert browser.get("/healthz").status_code == 200
        pid = page.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())) + 3, hard))
        port = int(page.url.rpartition(":")[2])
        with contextlib.ExitStack() as silent:
            for _ in range(40):
                silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            before = processor_seconds(pid)
            wait_until(lambda: "could not be accepted" in page.log.read_text())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        wait_until(lambda: browser.get("/healthz").status_code == 200)
        assert processor_seconds(pid) - before < 2
        assert len(page.log.read_text()) < 5_000


def processor_seconds(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_requests_open_no_file(site: LiveServer, tmp_path: Path) -> None:
    """A page that has no file left answers on its connections: static files, errors and the glossary."""
    with WebPage(site.address, tmp_path / "web.log") as page, page.client() as browser:
        # The first ones connect to the server and import modules.
        assert [browser.get(path).status_code for path in ("/", "/static/app.css")] == [200, 200]
        pid = page.process.pid
        used = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
        unused = next(number for number in itertools.count() if number not in used)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (unused, hard))
        found = [browser.get(path).status_code for path in ("/static/vendor/vega.min.js", "/none", "/glossary", "/")]
        assert found == [200, 404, 200, 200]
        assert page.log.read_text() == ""


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip", "gzip"), ("GZIP, br", "gzip"), ("*", "gzip"), ("gzip;q=0", None), ("br", None), ("", None)],
)
def test_static_files_are_compressed_if_that_is_accepted(web: httpx.Client, accepted: str, coding: str | None) -> None:
    """A browser gets a file as it asks for it, once; of HEAD only what is said of it."""
    headers = {"accept-encoding": accepted}
    answer = web.get("/static/app.css", headers=headers)
    assert (answer.status_code, answer.headers.get("content-encoding")) == (200, coding)
    assert answer.text == (Path(connections.__file__).parent / "static/app.css").read_text()
    head = web.head("/static/app.css", headers=headers)
    known = ("content-length", "content-type", "etag", "vary", "cache-control")
    assert [head.headers[name] for name in known] == [answer.headers[name] for name in known]
    again = web.get("/static/app.css", headers=headers | {"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(("servers", "reserved"), [("a:1", 75), ("a:1,b:1,c:1", 97)])
def test_files_are_left_for_the_servers(monkeypatch: pytest.MonkeyPatch, servers: str, reserved: int) -> None:
    """Of 200 files some are left for the process, and eleven for each server: one for calls and ten for watches."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    assert connections.max_connections(most_channels(servers, live.LARGEST_TOTAL)) == 200 - reserved


def test_strangers_cannot_flood_the_log(site: LiveServer, tmp_path: Path) -> None:
    """Five refused requests are logged, then the number of the others; nothing advises a WebSocket package."""
    upgrade = "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    with WebPage(site.address, tmp_path / "web.log") as page:
        port = int(page.url.rpartition(":")[2])
        for request in [*["\0garbage\r\n\r\n"] * 20, *[upgrade] * 3]:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connected:
                connected.sendall(request.encode())
                assert status_of(connected) == (200 if request == upgrade else 400)
        assert page.stop() == 0
        lines = page.log.read_text().splitlines()
        assert [line.partition("uvicorn.error: ")[2] for line in lines] == [
            *["Invalid HTTP request received."] * 5,
            "Invalid HTTP request received. (15 more were left out)",
        ]


class Logged:
    """A log with the handler of the page, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._text = io.StringIO()
        self.handler = LimitedHandler(self._text, lambda: self.now)

    def record(self, line: int, text: str, *values: object) -> None:
        """Logs a record of a line of code."""
        self.handler.handle(logging.LogRecord("page", logging.WARNING, "page.py", line, text, values, None))

    def lines(self) -> list[str]:
        """The lines since the last call."""
        lines = self._text.getvalue().splitlines()
        self._text.seek(0)
        self._text.truncate()
        return lines


def test_records_of_one_kind_are_logged_seldom() -> None:
    """Five a minute, and then how many were left out, also if no further one comes; other kinds are not affected."""
    logged = Logged()
    for number in range(100):
        logged.record(1, "bad request %d", number)
    logged.record(2, "another")
    assert logged.lines() == [*(f"bad request {number}" for number in range(5)), "another"]
    logged.now = 59.0
    logged.handler.write_numbers()
    assert logged.lines() == []
    logged.now = 60.0
    logged.handler.write_numbers()
    logged.record(1, "bad request %d", 100)
    assert logged.lines() == ["bad request 99 (95 more were left out)", "bad request 100"]
    logged.now = 130.0
    logged.handler.write_numbers(early=True)
    assert logged.lines() == []


def test_records_without_arguments_are_of_one_kind() -> None:
    """Those of asyncio have addresses in their texts and several lines; the number comes with the first line."""
    logged = Logged()
    for number in range(7):
        logged.record(1, f"Fatal error: object {number}\nprotocol: <{number}>")
    logged.lines()
    logged.record(2, "another")
    logged.now = 61.0
    logged.record(2, "another")
    assert logged.lines() == ["another", "Fatal error: object 6 (2 more were left out)", "another"]


async def test_numbers_are_logged_without_a_further_record() -> None:
    """The page itself asks again and again whether a minute is over."""
    logged = Logged()
    for _ in range(6):
        logged.record(1, "bad request")
    logged.lines()
    logged.now = 61.0
    task = asyncio.create_task(logged.handler.write_numbers_regularly(0.001))
    while not (lines := logged.lines()):  # noqa: ASYNC110 - the handler has no event
        await asyncio.sleep(0)
    assert lines == ["bad request (1 more was left out)"]
    task.cancel()


@pytest.mark.thorough
def test_a_suspended_server_is_left(tmp_path: Path, postgres_url: str) -> None:
    """Of two servers one stops answering: pages come from the other one, and live streams move to it."""
    with contextlib.ExitStack() as stack:
        (tmp_path / "servers").mkdir()
        servers = stack.enter_context(servers_on(tmp_path / "servers", postgres_url, 2, WatchedServer))
        address = ",".join(server.address for server in servers)
        page = stack.enter_context(WebPage(address, tmp_path / "web.log"))
        browser = stack.enter_context(page.client())
        stream = stack.enter_context(open_stream(page))
        assert status_of(stream) == 200
        wait_until(lambda: sum(map(watches, servers)) == 1)
        suspended, left = sorted(servers, key=watches, reverse=True)
        os.kill(suspended.process.pid, signal.SIGSTOP)
        stack.callback(os.kill, suspended.process.pid, signal.SIGCONT)
        assert browser.get("/").status_code == 200
        # Documented are 13 seconds; without the timeout of pings it takes more than a minute.
        wait_until(lambda: watches(left) == 1, 40)
