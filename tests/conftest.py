"""Fixtures: the real server, and pytest-grpc's channel and stub on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.live_server import LiveServer
from tests.watched import WatchedServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A running server on a free loopback port with a fresh database file, for one test alone."""
    folder = tmp_path / "server"
    folder.mkdir()
    with LiveServer(folder) as live:
        live.start()
        yield live


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedServer]:
    """A running server with metrics and a JSON log, for one test alone."""
    folder = tmp_path / "watched"
    folder.mkdir()
    with WatchedServer(folder) as live:
        live.start()
        yield live


@pytest.fixture(scope="module")
def grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """In place of pytest-grpc's threaded server: the real one, shared by the tests of a module."""
    with LiveServer(tmp_path_factory.mktemp("server")) as live:
        live.start()
        yield live


@pytest.fixture(scope="module")
def grpc_addr(grpc_server: LiveServer) -> str:
    """Where pytest-grpc's `grpc_channel` connects to."""
    return grpc_server.address


@pytest.fixture(scope="module")
def grpc_stub_cls(grpc_channel: grpc.Channel) -> Callable[[grpc.Channel], v1.BatchSizeOptimizerStub]:
    """What pytest-grpc's `grpc_stub` is a stub of."""
    del grpc_channel
    return v1.BatchSizeOptimizerStub
