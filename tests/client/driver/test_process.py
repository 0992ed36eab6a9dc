"""A command never outlives its driver, and its end is told as shells tell it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from wattwise.driver.files import try_lock
from wattwise.driver.process import Process

from tests.client.driver.running import PYTHON, alive
from tests.waiting import wait_until


@contextmanager
def process(folder: Path, script: str, grace_seconds: float = 5.0) -> Iterator[Process]:
    """A shell script under this process; what it prints is in `output.log`."""
    with ExitStack() as after:
        output = after.enter_context((folder / "output.log").open("ab"))
        lock = try_lock(folder / "lock")
        assert lock is not None
        after.callback(os.close, lock)
        made = Process(
            ["sh", "-c", script],
            environment=os.environ,
            folder=folder,
            output=output,
            grace_seconds=grace_seconds,
            lock=lock,
        )
        after.callback(made.end)
        yield made


def pids(folder: Path, count: int) -> list[int]:
    """The process ids that a script has written, once there are so many."""
    path = folder / "pids"
    wait_until(lambda: path.exists() and len(path.read_text().split()) == count)
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("exec no-such-program", 127)],
)
def test_status(tmp_path: Path, script: str, status: int) -> None:
    """The exit status is the command's, and 128 + N if signal N ended it."""
    with process(tmp_path, script) as running:
        wait_until(lambda: running.status() is not None)
        assert running.status() == status


def test_asked_to_end(tmp_path: Path) -> None:
    """The whole group is asked to end, and may do what it has to."""
    script = "trap 'echo done; exit 5' TERM; echo $$ > pids; while true; do sleep 0.05; done"
    with process(tmp_path, script) as running:
        pids(tmp_path, 1)
        assert running.end() == 5
    assert (tmp_path / "output.log").read_text().endswith("done\n")


def test_killed_after_its_grace(tmp_path: Path) -> None:
    """What does not end when it is asked to is killed after its grace."""
    with process(tmp_path, "trap '' TERM; echo $$ > pids; while true; do sleep 0.05; done", 0.2) as running:
        pids(tmp_path, 1)
        assert running.end() == 128 + signal.SIGKILL


def test_asked_twice(tmp_path: Path) -> None:
    """Asked a second time it keeps its grace, since whoever ends a whole machine asks too; only `kill` is at once."""
    script = "trap 'echo asked' TERM; echo $$ > pids; while true; do sleep 0.05; done"
    with process(tmp_path, script, grace_seconds=1000) as running:
        pids(tmp_path, 1)
        running.terminate()
        wait_until(lambda: "asked" in (tmp_path / "output.log").read_text())
        running.terminate()
        assert running.wait(0.3) is None
        running.kill()
        wait_until(lambda: running.status() == 128 + signal.SIGKILL)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """What a command leaves running in its group when it ends is killed."""
    with process(tmp_path, "sleep 100 & echo $! > pids") as running:
        wait_until(lambda: running.status() == 0)
        (left,) = pids(tmp_path, 1)
        wait_until(lambda: not alive(left))


def test_killed_in_between(tmp_path: Path) -> None:
    """Should somebody kill the process that stands between the driver and the command, the command dies too."""
    with process(tmp_path, "echo $PPID $$ > pids; exec sleep 100"):
        between, command = pids(tmp_path, 2)
        os.kill(between, signal.SIGKILL)
        try:
            wait_until(lambda: not alive(command))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command, signal.SIGKILL)


DRIVER = """
import os, sys
from pathlib import Path
from wattwise.driver.files import try_lock
from wattwise.driver.process import Process
script = "trap '' TERM; sh -c 'echo $$ >> pids; sleep 100' & echo $$ >> pids; while true; do sleep 0.05; done"
lock = try_lock(Path("lock"))
Process(["sh", "-c", script], environment=os.environ, folder=Path("."), output=1, grace_seconds=0.3, lock=lock)
sys.stdin.read()
"""


def test_driver_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    """When its driver is killed, a command that ignores SIGTERM is killed with its children; then its lock is free."""
    pipe = subprocess.PIPE
    with subprocess.Popen([PYTHON, "-c", DRIVER], cwd=tmp_path, stdin=pipe, stdout=subprocess.DEVNULL) as driver:
        running = pids(tmp_path, 2)
        driver.kill()
        driver.wait()
        # Still within its grace, and nobody can take over.
        assert try_lock(tmp_path / "lock") is None
        wait_until(lambda: try_lock(tmp_path / "lock") is not None)
        assert not any(alive(pid) for pid in running)


def test_command_is_no_keeper_of_locks(tmp_path: Path) -> None:
    """The command itself has no descriptor but its own three."""
    script = f"{sys.executable} -c 'import os; print(sorted(os.listdir(\"/proc/self/fd\")))'"
    with process(tmp_path, script) as running:
        wait_until(lambda: running.status() == 0)
    # The fourth is that of the folder that is listed.
    assert (tmp_path / "output.log").read_text() == "['0', '1', '2', '3']\n"
