"""The previous power limits are restored, however the training process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.client.monitor.nvml_stub import Machine
from tests.client.power.training import BEFORE, WALK_STEPS, limits
from tests.client.training.script import ended, read_line, send_line

Start: TypeAlias = Callable[[str, int], subprocess.Popen[str]]

DURING_THE_WALK, AFTERWARDS = 6, WALK_STEPS + 1


@pytest.fixture
def start(grpc_addr: str, machine: Machine, library: Path) -> Iterator[Start]:
    """Starts a training process that trains some steps, prints the limits of its GPUs, and ends in the named way."""
    with ExitStack() as after:

        def started(end: str, steps: int) -> subprocess.Popen[str]:
            command = [
                sys.executable,
                "-m",
                "tests.client.power.training",
                grpc_addr,
                str(machine.file),
                end,
                str(steps),
            ]
            environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
            pipe, root = subprocess.PIPE, Path(__file__).parents[3]
            process = after.enter_context(
                subprocess.Popen(command, cwd=root, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            )
            after.callback(process.kill)
            now = 225.0 if steps == DURING_THE_WALK else 175.0
            assert read_line(process) == str([now, now])
            return process

        yield started


@pytest.mark.parametrize(
    ("end", "status", "steps"),
    [
        ("crash", 1, DURING_THE_WALK),
        ("return", 0, AFTERWARDS),
        ("leave-block", 0, DURING_THE_WALK),
        pytest.param("crash", 1, AFTERWARDS, marks=pytest.mark.thorough),
        pytest.param("return", 0, DURING_THE_WALK, marks=pytest.mark.thorough),
        pytest.param("leave-block", 0, AFTERWARDS, marks=pytest.mark.thorough),
    ],
)
def test_process_ends_by_itself(start: Start, machine: Machine, end: str, status: int, steps: int) -> None:
    """An exception, the end of the script and the end of a `with` block restore the limits, also during the walk."""
    process = start(end, steps)
    if end == "leave-block":
        assert read_line(process) == str(BEFORE)
    exit_status, errors = ended(process)
    assert exit_status == status, errors
    assert limits(machine) == BEFORE


@pytest.mark.parametrize(
    ("end", "status", "steps"),
    [
        ("wait", -signal.SIGTERM, DURING_THE_WALK),
        ("own-handler", 7, AFTERWARDS),
        pytest.param("wait", -signal.SIGTERM, AFTERWARDS, marks=pytest.mark.thorough),
        pytest.param("own-handler", 7, DURING_THE_WALK, marks=pytest.mark.thorough),
    ],
)
def test_terminated_process(start: Start, machine: Machine, end: str, status: int, steps: int) -> None:
    """SIGTERM restores the limits, whether the process dies of it or has its own handler."""
    process = start(end, steps)
    process.terminate()
    assert ended(process)[0] == status
    assert limits(machine) == BEFORE


def test_training_that_survives_sigterm(start: Start, machine: Machine) -> None:
    """After SIGTERM the limits stay restored, even if training continues."""
    process = start("go-on", DURING_THE_WALK)
    process.terminate()
    send_line(process)
    assert read_line(process) == str(BEFORE)
    ended(process)
    assert limits(machine) == BEFORE


def test_killed_process_leaves_the_limits(start: Start, machine: Machine) -> None:
    """SIGKILL leaves the limits as they are, as documented."""
    process = start("wait", DURING_THE_WALK)
    process.kill()
    ended(process)
    assert limits(machine) == [225.0, 225.0]
