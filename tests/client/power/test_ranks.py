"""Power limits of a training with two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.monitor.nvml_stub import Machine
from tests.client.power.training import BEFORE, VISITED, limits
from tests.ports import hold_port, port_of

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def test_rank_0_alone_sets_limits(grpc_addr: str, machine: Machine, library: Path) -> None:
    """Every rank makes the calls; only rank 0 walks and sets limits, and all are restored."""
    command, pipe = [sys.executable, "-m", "tests.client.power.rank", grpc_addr, str(machine.file)], subprocess.PIPE
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    with hold_port() as held:
        port = str(port_of(held))
        running = [
            subprocess.Popen([*command, rank, port], env=environment, stdout=pipe, stderr=pipe, text=True)
            for rank in ("0", "1")
        ]
        outputs = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    seen = [200.0, *VISITED, 175.0]
    assert outputs[0][0] == f"175.0 {seen}\n"
    assert outputs[1][0] == "None\n"
    assert limits(machine) == BEFORE
