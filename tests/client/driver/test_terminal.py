"""A driver on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.client.driver.running import PYTHON, Runs, result, shell, write_job


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: the user's end, and the program's."""
    ends = pty.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def test_output_is_followed_on_a_terminal(terminal: tuple[int, int], runs: Runs) -> None:
    """On a terminal, the command's output is shown above the table; Ctrl-C ends the run."""
    user, program = terminal
    job = write_job(
        runs.folder, shell("printf '10%%\\rit trains\\n'", "if [ {recurrence} = 2 ]; then sleep 100; fi", result())
    )
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [PYTHON, "-c", f"{code}; from wattwise.commands.main import main; sys.exit(main())", "run", str(job)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(command, stdin=program, stdout=program, stderr=program, env=environment) as driver:
        shown = b""
        try:
            now = b"recurrence 2 of 2, try 1: trial 2 with batch size 8, running for"
            while shown.count(b"it trains") < 2 or now not in shown:
                shown += os.read(user, 4096)
            driver.send_signal(signal.SIGINT)
            while b"stopped by SIGINT" not in shown:
                shown += os.read(user, 4096)
            assert driver.wait(30) == 130
        finally:
            driver.kill()
    assert b"target reached" in shown
    assert b"(estimate)" in shown
    assert b"10%" not in shown
