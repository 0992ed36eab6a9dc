"""The fixtures: a failing test shows the log of its server."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live_server import LiveServer
from tests.watched import WatchedServer

ROOT = Path(__file__).parents[1]
FAILING = """
def test_first(grpc_server):
    grpc_server.admin.ListJobs(v1.ListJobsRequest())
    with grpc_server.log.open("a") as log:
        log.write("of the first test")

def test_second(grpc_server):
    with grpc_server.log.open("a") as log:
        log.write("of the second test")
    assert False
"""


def test_failing_test_shows_what_its_server_logged(tmp_path: Path) -> None:
    """Of a server that tests share, it shows the lines since the test began."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    file = tmp_path / "test_failing.py"
    file.write_text(f"from wattwise import v1\n{FAILING}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={ROOT}", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    title = next(line for line in done.stdout.splitlines() if "Server log" in line)
    shown = done.stdout.partition(title)[2]
    assert "of the second test" in shown
    assert "of the first test" not in shown


@pytest.mark.parametrize("environment", [{}, {"WATTWISE_LOG_LEVEL": "info"}], ids=["fork", "exec"])
def test_server_is_a_process_with_a_status(tmp_path: Path, environment: dict[str, str]) -> None:
    """It ends with 0 when stopped, by the signal that kills it, and with 1 if it cannot start."""
    with LiveServer(tmp_path) as live:
        live.environment = environment
        live.start()
        assert live.process.poll() is None
        assert live.stop() == 0
        live.start()
        assert live.kill() == -signal.SIGKILL
        live.url = f"sqlite:///{tmp_path / 'missing/wattwise.db'}"
        with pytest.raises(AssertionError, match="no folder"):
            live.start()
        assert live.process.wait(timeout=20) == 1


def test_forks_share_nothing(tmp_path: Path) -> None:
    """Two servers have their own files, ports and metrics."""
    (tmp_path / "other").mkdir()
    with WatchedServer(tmp_path) as one, WatchedServer(tmp_path / "other") as other:
        assert one.start() != other.start()
        assert one.process.pid != other.process.pid
        assert one.figure("wattwise_calls_total") == other.figure("wattwise_calls_total")


def test_stopped_server_keeps_its_port(tmp_path: Path) -> None:
    """Nobody else can have it, clients are refused, and the next start has it again."""
    with LiveServer(tmp_path) as live:
        first = live.start()
        live.stop()
        address = ("127.0.0.1", int(first.partition(":")[2]))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        assert live.start() == first
