"""Stands between a driver and a command that it runs, so that the command and all that it starts die with the driver.

    python child.py ALIVE GRACE HELD COMMAND...

Run as a file by itself, with nothing but the standard library: it should cost a launch next to nothing.

The command leads a process group of its own. That group is asked to end (SIGTERM) when the pipe ALIVE is closed, which
is what a driver's death does however it died, or when this process gets SIGTERM; GRACE seconds later, or at SIGUSR1, it
is killed. A second SIGTERM changes nothing: whoever ends all processes of a container sends one beside the driver's.
What the command leaves behind when it ends by itself is killed at once: it would go on to use the machine while the
next trial is measured. The descriptor HELD is kept open until the end and kept from the command: a lock that the driver
took stays taken for as long as something of the command may be running.

The exit status is the command's, and 128 + N if a signal N ended it, as shells have it; 127 if it could not be started.
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
_HEEDED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
NOT_STARTED = 127


def main(alive: int, grace: float, held: int, command: list[str]) -> int:
    """Runs the command; returns its exit status."""
    for descriptor in (alive, held):
        os.set_inheritable(descriptor, False)
    wake = _wake_on_signals()
    group = _start(command)
    kill_at: float | None = None
    while True:
        wait = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        # Once it was asked to end, a closed pipe has nothing more to say, and would be ready for ever.
        watched = [wake] if kill_at is not None else [wake, alive]
        ready, _, _ = select.select(watched, [], [], wait)
        status = _status(group)
        if status is not None:
            _signal(group, signal.SIGKILL)
            return status
        told = os.read(wake, 64) if wake in ready else b""
        if kill_at is None and (signal.SIGTERM in told or alive in ready):
            kill_at = time.monotonic() + grace
            _signal(group, signal.SIGTERM)
        if signal.SIGUSR1 in told or (kill_at is not None and time.monotonic() >= kill_at):
            _signal(group, signal.SIGKILL)
            kill_at = time.monotonic() + grace


def _wake_on_signals() -> int:
    """A descriptor on which the numbers of signals can be read."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing)
    for number in _HEEDED:
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


def _start(command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, parent)
    # Both sides do it, so that whoever comes first finds it done.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    return child


def _become(command: list[str], parent: int) -> None:
    """Turns this process into the command."""
    try:
        os.setpgid(0, 0)
        for number in (*_HEEDED, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # Should somebody kill the process that stands between, the command dies at least itself.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.execvp(command[0], command)  # noqa: S606 - the user's command is what this is for
    except OSError as error:
        os.write(2, f"wattwise run: {command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _status(child: int) -> int | None:
    """The exit status; None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
