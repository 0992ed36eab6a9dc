"""The monitor of a training with several ranks."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.live_server import LiveServer

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def test_every_rank_knows_the_monitor(server: LiveServer) -> None:
    """Only rank 0 has a monitor, and all ranks know its kind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.client.training.monitor_rank", server.address]
    running = [
        subprocess.Popen([*command, rank, port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    outputs = [process.communicate(timeout=100) for process in running]
    assert [out for out, _ in outputs] == ["estimate\n"] * 2, outputs
