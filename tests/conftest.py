"""Fixtures: the real server, and pytest-grpc's channel and stub on it."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import grpc
import hypothesis
import pytest
from wattwise import v1

from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.watched import WatchedServer

# Hundreds of processes import NumPy; starting its thread pool costs each of them a tenth of a second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No test depends on the machine's speed.
hypothesis.settings.register_profile("wattwise", deadline=None)
hypothesis.settings.load_profile("wattwise")

# Under nohup, the tests of signals would not see this one.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_spools = itertools.count()


def pytest_collection_finish() -> None:
    """Exclude the thousands of collected tests from every garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Remember how long the servers' logs are, so that a failing test shows its own part."""
    sizes = {log: log.stat().st_size for log in LiveServer.logs if log.exists()}
    LiveServer.logs.clear()
    LiveServer.logs.update(sizes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach what the servers logged meanwhile to the report of a failing test."""
    report = yield
    if report.failed:
        for log, start in LiveServer.logs.items():
            if log.exists() and (written := log.read_bytes()[start:].decode(errors="replace")):
                report.sections.append((f"Server log {log}", written))
    return report


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the spools of processes that start without `WATTWISE_SPOOL`, instead of the user's."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def spool(monkeypatch: pytest.MonkeyPatch, spools: Path) -> Path:
    """A folder for the test's spool, which need not exist: the user's own stays out of the tests."""
    folder = spools / str(next(_spools))
    monkeypatch.setenv("WATTWISE_SPOOL", str(folder))
    return folder


@pytest.fixture(scope="session")
def spools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all spools."""
    return tmp_path_factory.mktemp("spools")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A running server on a free loopback port with a fresh database file, for one test."""
    folder = tmp_path / "server"
    folder.mkdir()
    with LiveServer(folder) as live:
        live.start()
        yield live


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedServer]:
    """A running server with metrics and a JSON log, for one test."""
    folder = tmp_path / "watched"
    folder.mkdir()
    with WatchedServer(folder) as live:
        live.start()
        yield live


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL for tests that leave it as it is."""
    with PostgresServer.running() as running:
        yield running


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database, for one test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The real server instead of pytest-grpc's threaded one, shared by the tests of a module."""
    with LiveServer(tmp_path_factory.mktemp("server")) as live:
        live.start()
        yield live


@pytest.fixture(scope="module")
def grpc_addr(grpc_server: LiveServer) -> str:
    """The address that pytest-grpc's `grpc_channel` connects to."""
    return grpc_server.address


@pytest.fixture(scope="module")
def grpc_stub_cls(grpc_channel: grpc.Channel) -> Callable[[grpc.Channel], v1.BatchSizeOptimizerStub]:
    """The class of pytest-grpc's `grpc_stub`."""
    del grpc_channel
    return v1.BatchSizeOptimizerStub
