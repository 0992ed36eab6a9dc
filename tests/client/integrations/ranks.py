"""Two processes that train together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.client.training.script import send_line
from tests.ports import hold_port, port_of


def two_ranks(trainer: str, address: str, how: str = "program") -> list[str]:
    """Runs two ranks and returns the last line that each prints; see `rank` for the arguments."""
    command, root = (
        [sys.executable, "-m", "tests.client.integrations.rank", trainer, address, how],
        Path(__file__).parents[3],
    )
    held = hold_port()
    launcher = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of(held)), "WORLD_SIZE": "2"}
    launcher |= {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(
            command,
            cwd=root,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**launcher, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    try:
        if how == "late":
            assert running[0].stderr is not None
            assert any("waiting for ranks 1;" in line and "on_evaluate" in line for line in running[0].stderr)
            send_line(running[1])
        ended = [process.communicate(timeout=100) for process in running]
    finally:
        for process in running:
            process.kill()
        held.close()
    assert [process.returncode for process in running] == [0, 0], ended
    return [output.splitlines()[-1] for output, _ in ended]
