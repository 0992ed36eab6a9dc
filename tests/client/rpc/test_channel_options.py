"""The options of gRPC channels and servers: they exist, keep quiet streams open, and notice a suspended server."""

from __future__ import annotations

import mmap
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest
from wattwise import Client, Credentials, v1
from wattwise.rpc.connection import channel_options

from tests.credentials import Authority
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.web.page import WebPage

ROOT = Path(__file__).parents[3]
SOURCES = [
    path
    for folder, ending in (("client/python/wattwise", "py"), ("client/cpp", "cpp"), ("client/typescript/src", "ts"))
    for path in (ROOT / folder).rglob(f"*.{ending}")
    if "build" not in path.parts
] + list((ROOT / "server").rglob("*.py"))
OPTION = re.compile(r"""["'](grpc\.[a-z0-9_.]+)["'][,:]""")
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy")


def test_every_option_is_known_to_grpc() -> None:
    """An option whose name gRPC does not know is ignored, so each name occurs in its binary."""
    spec = find_spec("grpc._cython.cygrpc")
    assert spec is not None
    assert spec.origin is not None
    names = {name for path in SOURCES for name in OPTION.findall(path.read_text())}
    assert {"grpc.keepalive_time_ms", "grpc.max_concurrent_streams"} <= names
    with Path(spec.origin).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        assert {name for name in names if binary.find(f"{name}\0".encode()) < 0} == set()


def test_every_channel_has_these_options() -> None:
    """Channels are opened in one place, with these options."""
    opened = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in SOURCES
        if re.search(r"\.(in)?secure_channel\b", path.read_text())
    }
    assert opened.keys() == {"client/python/wattwise/rpc/connection.py"}
    assert all("channel_options(" in text for text in opened.values())


@contextmanager
def suspended(server: LiveServer) -> Iterator[None]:
    """A server that answers nothing for as long as the block lasts."""
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


@pytest.mark.thorough
@pytest.mark.parametrize(("several", "documented"), [(True, 13.0), (False, 40.0)])
def test_quiet_stream_leaves_a_suspended_server(tmp_path: Path, *, several: bool, documented: float) -> None:
    """A stream on which nothing is sent ends within the documented time. Without the option it takes over a minute."""
    ended = threading.Event()
    with LiveServer(tmp_path) as server:
        address = server.start()
        options = channel_options(address, several=several)
        with grpc.insecure_channel(address, options=options) as channel:
            stream = PeopleStub(channel).WatchJobs(v1.WatchJobsRequest(), timeout=600)
            next(iter(stream))

            def read() -> None:
                with pytest.raises(grpc.RpcError, match="ping timeout"):
                    next(iter(stream))
                ended.set()

            reader = threading.Thread(target=read)
            reader.start()
            with suspended(server):
                assert ended.wait(documented + 12)
            reader.join()


@pytest.mark.thorough
def test_quiet_stream_stays_open(tmp_path: Path) -> None:
    """Pings hardly rarer than the server allows are not too many; the third one too many would end the stream."""
    interval = ("grpc.keepalive_time_ms", 5_500)
    with LiveServer(tmp_path) as server:
        address = server.start()
        options = [each for each in channel_options(address, several=True) if each[0] != interval[0]]
        with grpc.insecure_channel(address, options=[*options, interval]) as channel:
            stream = PeopleStub(channel).WatchJobs(v1.WatchJobsRequest(), timeout=25)
            next(iter(stream))
            with pytest.raises(grpc.RpcError) as ended:
                next(iter(stream))
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The proxy that the environment names."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        for name in PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        yield proxy


@pytest.mark.parametrize(
    ("host", "tls"),
    [
        ("localhost", True),
        ("127.0.0.1", False),
        pytest.param("localhost", False, marks=pytest.mark.thorough),
        pytest.param("127.0.0.1", True, marks=pytest.mark.thorough),
    ],
)
def test_no_proxy_for_this_machine(tmp_path: Path, proxied: socket.socket, host: str, *, tls: bool) -> None:
    """A server on this machine is reached directly, with and without TLS, by the client and by the page."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    certificate = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)) if tls else ()
    with LiveServer(tmp_path) as server:
        address = f"{host}:{server.start(*certificate).rpartition(':')[2]}"
        credentials = authority.believing() if tls else Credentials()
        with Client(address, timeout=10, credentials=credentials) as client:
            assert list(client.jobs()) == []
        options = ("--server-tls-ca", str(authority.file)) if tls else ()
        with WebPage(address, tmp_path / "web.log", *options) as page, page.client() as browser:
            assert browser.get("/").status_code == 200
    with pytest.raises(BlockingIOError):
        proxied.accept()
