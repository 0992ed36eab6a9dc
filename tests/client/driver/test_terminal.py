"""A driver on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.client.driver.running import PYTHON, Runs, result, shell, write_job
from tests.terminal import on_terminal, plain_lines


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
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
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
    lines = plain_lines(shown.decode(errors="replace"))
    cells = [line.split() for line in lines]
    assert any(row[:4] == ["1", "1", "1", "16"] and "reached" in row for row in cells)
    assert "~ marks estimates, wholly or in part." in lines
    assert "10%" not in "".join(lines)
    heading = next(place for place, row in enumerate(cells) if row[:2] == ["recurrence", "try"])
    assert max(map(len, lines[heading - 1 :])) <= 80


@pytest.mark.parametrize(("missing", "kind"), [(("rich",), "xterm"), ((), "dumb")], ids=["no rich", "dumb"])
def test_plain_lines_where_nothing_is_redrawn(runs: Runs, missing: tuple[str, ...], kind: str) -> None:
    """Without `rich`, or on a terminal that cannot move its cursor, a run prints lines; its summary fits 80 columns.

    A path, such as that of the database, is never broken.
    """
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    status, text = on_terminal(("run", str(job)), environment={"TERM": kind}, missing=missing)
    assert (status, "\x1b" in text) == (0, False)
    lines = text.splitlines()
    assert any(line.startswith("recurrence 1, try 1, trial 1, batch size 16, ") for line in lines)
    end = next(place for place, line in enumerate(lines) if line.startswith("1 recurrence reached the target"))
    assert all(len(line) <= 80 or str(runs.folder) in line for line in lines[end:])
