"""Processes that train together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.client.training.script import send_line
from tests.ports import hold_port, port_of


@contextmanager
def processes(module: str, arguments: Sequence[str], ranks: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts a module of these tests in several processes, as torchrun does, or in one without; kills them at last."""
    command = [sys.executable, "-m", f"tests.client.integrations.{module}", *arguments]
    root, pipe = Path(__file__).parents[3], subprocess.PIPE
    held = hold_port()
    launcher = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of(held)), "WORLD_SIZE": str(ranks)}
    launcher |= {"LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    environments = [launcher | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    common = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            command,
            cwd=root,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=common | (environment if ranks > 1 else {}),
        )
        for environment in environments
    ]
    try:
        yield running
    finally:
        for process in running:
            with process:
                process.kill()
        held.close()


def last_lines(running: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Waits until all processes have succeeded, and returns the last line that each prints."""
    ended = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0] * len(running), ended
    return [output.splitlines()[-1] for output, _ in ended]


def two_ranks(trainer: str, address: str, how: str = "program") -> list[str]:
    """Runs two ranks and returns the last line that each prints; see `rank` for the arguments."""
    with processes("rank", [trainer, address, how], 2) as running:
        if how == "late":
            assert running[0].stderr is not None
            assert any("waiting for ranks 1;" in line and "on_evaluate" in line for line in running[0].stderr)
            send_line(running[1])
        return last_lines(running)
