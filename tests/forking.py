"""Starts servers as forks of one process that has imported the server already: a start takes a tenth of the time.

Each is a separate process with its own environment, output, port and exit status, and ends like any other.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[1]
_LARGEST_REQUEST = 2**20
# What `wattwise serve` imports only when it runs, or for some of its options.
_IMPORTED_LATE = (
    "uvloop",
    "wattwise_server.app",
    "wattwise_server.store.postgres.open",
    *(f"wattwise_server.observability.{name}" for name in ("job_metrics", "metrics", "metrics_server")),
)

_asking = threading.Lock()


class ForkedServer:
    """A server process, used like a `subprocess.Popen`.

    Args:
        arguments: The arguments of `wattwise serve`.
        environment: The whole environment.
        stderr: Where the log goes.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], stderr: TextIO) -> None:
        output, stdout = os.pipe()
        self._status, status = os.pipe()
        request = json.dumps([list(arguments), dict(environment), str(Path.cwd())]).encode()
        with _asking:
            parent = _parent()
            socket.send_fds(parent, [request], [stdout, stderr.fileno(), status])
            self.pid = int(parent.recv(64))
        os.close(stdout)
        os.close(status)
        self.stdout = os.fdopen(output)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._read_status(0)

    def wait(self, timeout: float) -> int:
        """Wait for the end; return the exit status."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("wattwise serve", timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        # It may have ended before its status arrives here.
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _read_status(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 64) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode


@functools.cache
def _parent() -> socket.socket:
    """Start the process that forks; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A fork must find a single thread.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, cwd=_ROOT)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(timeout=10)

    atexit.register(end)
    return ours


def _serve_requests(connection: socket.socket) -> int:
    """Fork for each request, and tell the exit status of each child on its own pipe."""
    from wattwise_server.commands.serve import main  # noqa: PLC0415 - ahead of the forks, in this process alone

    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    status_pipes: dict[int, int] = {}

    def reap(*_signal: object) -> None:
        for pid in list(status_pipes):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # Another signal arrived within this handler, or around it: that call tells the status.
                continue
            if ended:
                pipe = status_pipes.pop(pid)
                os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(pipe)

    while True:
        signal.signal(signal.SIGCHLD, reap)
        request, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
        if not request:
            return 0
        stdout, stderr, status_pipe = descriptors
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            break
        status_pipes[pid] = status_pipe
        os.close(stdout)
        os.close(stderr)
        connection.send(str(pid).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, max(stdout, stderr, status_pipe, connection.detach(), *status_pipes.values()) + 1)
    arguments, environment, folder = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_serve_requests(socket.socket(fileno=int(sys.argv[1]))))
