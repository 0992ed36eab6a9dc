"""The monitor of a training with several ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.live_server import LiveServer
from tests.ports import hold_port, port_of

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def test_every_rank_knows_the_monitor(server: LiveServer) -> None:
    """Only rank 0 has a monitor, and all ranks know its kind."""
    command, pipe = [sys.executable, "-m", "tests.client.training.monitor_rank", server.address], subprocess.PIPE
    with hold_port() as held:
        port = str(port_of(held))
        running = [subprocess.Popen([*command, rank, port], stdout=pipe, stderr=pipe, text=True) for rank in ("0", "1")]
        outputs = [process.communicate(timeout=100) for process in running]
    assert [out for out, _ in outputs] == ["estimate\n"] * 2, outputs
