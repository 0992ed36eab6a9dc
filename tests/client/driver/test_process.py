"""A command never outlives its driver, and has the exit status that a shell would show."""

from __future__ import annotations

import json
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
    """A shell script as a child process; its output is in `output.log`."""
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
            ended=folder / "ended.json",
        )
        after.callback(made.end)
        yield made


def pids(folder: Path, count: int) -> list[int]:
    """The process ids that a script has written, once there are `count`."""
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


def test_end_is_written_down_if_the_command_ends_by_itself(tmp_path: Path) -> None:
    """A command that ends by itself leaves its status and its seconds, and one that is ended leaves nothing."""
    with process(tmp_path, "sleep 0.1; exit 3") as running:
        wait_until((tmp_path / "ended.json").exists)
        ended = json.loads((tmp_path / "ended.json").read_text())
        assert ended["exit_code"] == 3
        assert ended["time_seconds"] > 0.1
        assert running.end() == 3
    (tmp_path / "ended.json").unlink()
    for end in (Process.terminate, Process.kill):
        with process(tmp_path, "trap 'exit 0' TERM; echo $$ >> pids; while :; do sleep 0.02; done") as running:
            pids(tmp_path, 1)
            end(running)
            assert running.end() in {0, 128 + signal.SIGKILL}
        (tmp_path / "pids").unlink()
        assert not (tmp_path / "ended.json").exists()


def test_terminated(tmp_path: Path) -> None:
    """The whole group gets SIGTERM, and has time to end."""
    script = "trap 'echo done; exit 5' TERM; echo $$ > pids; while true; do sleep 0.05; done"
    with process(tmp_path, script) as running:
        pids(tmp_path, 1)
        assert running.end() == 5
    assert (tmp_path / "output.log").read_text().endswith("done\n")


def test_killed_after_the_grace_period(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed after the grace period."""
    with process(tmp_path, "trap '' TERM; echo $$ > pids; while true; do sleep 0.05; done", 0.2) as running:
        pids(tmp_path, 1)
        assert running.end() == 128 + signal.SIGKILL


def test_terminated_twice(tmp_path: Path) -> None:
    """A second SIGTERM does not shorten the grace period; `kill` does."""
    script = "trap 'echo asked' TERM; echo $$ > pids; while true; do sleep 0.05; done"
    with process(tmp_path, script, grace_seconds=1000) as running:
        pids(tmp_path, 1)
        running.terminate()
        wait_until(lambda: "asked" in (tmp_path / "output.log").read_text())
        running.terminate()
        assert running.wait(0.3) is None
        running.kill()
        wait_until(lambda: running.status() == 128 + signal.SIGKILL)


DAEMON = "sh -c 'echo $$ >> pids; exec sleep 100'"
DAEMONS = [f"{DAEMON} &", f"setsid -f {DAEMON};"]
"""One in the command's group, and one in a session of its own whose parent has ended."""


@pytest.mark.parametrize("daemon", DAEMONS)
def test_nothing_is_left_behind(tmp_path: Path, daemon: str) -> None:
    """Processes that a command leaves behind are killed when it ends, also those outside of its group and session."""
    with process(tmp_path, f"{daemon} while ! test -s pids; do sleep 0.01; done") as running:
        wait_until(lambda: running.status() == 0)
        (left,) = pids(tmp_path, 1)
        assert not alive(left)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_all_are_asked_to_end(tmp_path: Path, daemon: str) -> None:
    """SIGTERM reaches a process outside of the command's group too."""
    asked = 'trap "echo asked; exit" TERM; echo $$ >> pids; while true; do sleep 0.05; done'
    daemon = daemon.replace("echo $$ >> pids; exec sleep 100", asked)
    with process(tmp_path, f"trap 'sleep 0.5; exit 3' TERM; {daemon} while true; do sleep 0.05; done") as running:
        pids(tmp_path, 1)
        assert running.end() == 3
    assert "asked" in (tmp_path / "output.log").read_text().splitlines()


def test_supervisor_is_killed(tmp_path: Path) -> None:
    """If the supervisor is killed, the command dies too."""
    with process(tmp_path, "echo $PPID $$ > pids; exec sleep 100"):
        supervisor, command = pids(tmp_path, 2)
        os.kill(supervisor, signal.SIGKILL)
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
script = (
    "trap '' TERM; sh -c 'echo $$ >> pids; sleep 100' & setsid -f sh -c 'echo $$ >> pids; sleep 100'; "
    "echo $$ >> pids; while true; do sleep 0.05; done"
)
lock = try_lock(Path("lock"))
Process(["sh", "-c", script], environment=os.environ, folder=Path("."), output=1, grace_seconds=0.3, lock=lock)
sys.stdin.read()
"""


def test_driver_is_killed(tmp_path: Path) -> None:
    """If the driver is killed, a command that ignores SIGTERM is killed with all it started; then its lock is free."""
    pipe = subprocess.PIPE
    with subprocess.Popen([PYTHON, "-c", DRIVER], cwd=tmp_path, stdin=pipe, stdout=subprocess.DEVNULL) as driver:
        running = pids(tmp_path, 3)
        driver.kill()
        driver.wait()
        # Within the grace period the lock is still held.
        assert try_lock(tmp_path / "lock") is None
        wait_until(lambda: try_lock(tmp_path / "lock") is not None)
        assert not any(alive(pid) for pid in running)


def test_command_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """The command has only its three standard descriptors."""
    script = f"{sys.executable} -c 'import os; print(sorted(os.listdir(\"/proc/self/fd\")))'"
    with process(tmp_path, script) as running:
        wait_until(lambda: running.status() == 0)
    # The fourth one is the listed folder.
    assert (tmp_path / "output.log").read_text() == "['0', '1', '2', '3']\n"
