"""Two ranks, two processes, PyTorch's gloo between them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from wattwise import Client, v1

from tests.live_server import LiveServer

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


def run_ranks(address: str, end: str = "") -> tuple[list[int], list[str]]:
    """The exit status of each of two ranks, and what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.client.rank", address]
    running = [
        subprocess.Popen([*command, rank, port, end], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=100) for process in running]
    return [process.returncode for process in running], [out for out, _ in said]


def ranks(address: str) -> list[str]:
    """What each of two ranks prints before it ends well."""
    statuses, said = run_ranks(address)
    assert statuses == [0, 0], said
    return said


def test_ranks_agree_on_batch_size_and_stop(server: LiveServer) -> None:
    """One rank asks, both train with its batch size and stop after the same epoch, and there is one trial."""
    assert ranks(server.address) == ["128\nstopped after epoch 4\n"] * 2
    with Client(server.address) as client:
        (trial,) = client.list_trials("ranks")
    assert (trial.converged, trial.last_epoch) == (True, 4)


def test_no_rank_hangs_when_there_is_no_server(server: LiveServer) -> None:
    """What keeps rank 0 from asking is told to every rank."""
    server.stop()
    assert ranks(server.address) == ["ServerUnavailableError\n"] * 2


def test_rank_that_runs_out_of_memory_says_so_itself(server: LiveServer) -> None:
    """Rank 0, which goes down with the rank that failed, could not tell why: the trial must not look like a bug."""
    statuses, _ = run_ranks(server.address, "out-of-memory")
    assert statuses[1] == 1
    with Client(server.address) as client:
        (trial,) = client.list_trials("ranks")
    assert trial.end_reason == v1.END_REASON_OUT_OF_MEMORY
