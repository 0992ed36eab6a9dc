"""Runs between a driver and its command, so that the command and its children die with the driver.

    python supervisor.py ALIVE GRACE LOCK ENDED COMMAND...

Runs as a script, on the standard library alone, so that it starts quickly.

The command leads its own process group. The group and every process that the command has started, in whatever group or
session, get SIGTERM when the pipe ALIVE is closed, which happens however the driver dies, or when this process gets
SIGTERM. They get SIGKILL GRACE seconds later, or at SIGUSR1. Further SIGTERMs are ignored: a container's shutdown sends
one too. Processes that the command leaves behind are killed at once, because they would distort the next trial's
measurement. To find them, this process adopts those whose parents have ended. The descriptor LOCK stays open until the
end and is not passed to the command: a lock that the driver holds on it stays held while any process of the command may
run.

The exit status is the command's, 128 + N if signal N ended it, or 127 if it could not be started. If the command ends
by itself, the file ENDED has its status and its seconds, even if the driver has died, since what it trained counts.
Without a name there is no file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
NOT_STARTED = 127
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.01


def main(alive: int, grace: float, lock: int, ended: str, command: list[str]) -> int:
    """Runs the command; returns its exit status."""
    for descriptor in (alive, lock):
        os.set_inheritable(descriptor, False)
    wakeup = _signal_pipe()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    begin = time.monotonic()
    group = _start(command)
    kill_at: float | None = None
    while True:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        # After SIGTERM was sent, a closed pipe has no further meaning, and would always be ready.
        watched = [wakeup] if kill_at is not None else [wakeup, alive]
        ready, _, _ = select.select(watched, [], [], timeout)
        status = _reap(group)
        if status is not None:
            seconds = time.monotonic() - begin
            # Python's own handlers end before this process, which would then die of a late signal with that status.
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            _kill_remaining(group)
            if ended and kill_at is None:
                write(ended, f'{{"exit_code": {status}, "time_seconds": {seconds}}}')
            return status
        received = os.read(wakeup, 64) if wakeup in ready else b""
        if kill_at is None and (signal.SIGTERM in received or alive in ready):
            kill_at = time.monotonic() + grace
            _signal(group, signal.SIGTERM)
        if signal.SIGUSR1 in received or (kill_at is not None and time.monotonic() >= kill_at):
            _signal(group, signal.SIGKILL)
            kill_at = time.monotonic() + grace


def _signal_pipe() -> int:
    """Returns a descriptor from which the numbers of received signals can be read."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing)
    for number in _HANDLED:
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


def _start(command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _execute(command, parent)
    # Parent and child both set the group, so that it is set whichever runs first.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    return child


def _execute(command: list[str], parent: int) -> None:
    """Replaces this process by the command."""
    try:
        os.setpgid(0, 0)
        for number in (*_HANDLED, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # If the supervisor is killed, at least the command itself dies.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.execvp(command[0], command)  # noqa: S606 - the user's command
    except OSError as error:
        os.write(2, f"wattwise run: {command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _reap(child: int) -> int | None:
    """Reaps the processes that have ended; returns the exit status of `child`, or None if it was not among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                found = code if code >= 0 else 128 - code
    return found


def _signal(group: int, number: int) -> None:
    """Signals the group, and the descendants of this process outside of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for process in _descendants():
        # Of another group, or without one. The group has its signal already, and a second one may mean more.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process) != group:
                os.kill(process, number)


def _kill_remaining(group: int) -> None:
    """Kills what is left until nothing is: a process may have started another one just before."""
    give_up = time.monotonic() + _KILL_SECONDS
    _signal(group, signal.SIGKILL)
    while _descendants() and time.monotonic() < give_up:
        _signal(group, signal.SIGKILL)
        _reap(0)
        time.sleep(_POLL_SECONDS)


def write(path: str, text: str) -> None:
    """Writes a file atomically and durably, unless the disk is full."""
    fresh = f"{path}.new"
    with contextlib.suppress(OSError):
        # The command may have left a pipe or a link of this name.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)  # noqa: PTH108
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)  # noqa: PTH105


def _descendants() -> list[int]:
    """Returns the processes below this one, of whatever group or session."""
    children: dict[int, list[int]] = {}
    # Without pathlib, whose import takes as long as the rest of this program.
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The name before the last parenthesis may have any characters.
                parent = file.read().rpartition(b")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(name))
    found, following = [], [os.getpid()]
    while following:
        below = children.get(following.pop(), [])
        found += below
        following += below
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
