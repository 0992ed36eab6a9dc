"""Starts `wattwise` as forks of one process that has imported it already: a start takes a tenth of the time.

Each is a separate process with its own environment, output, port and exit status, and ends like any other. What changes
imports, or the variables of Python and of the dynamic linker, needs a new process.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).parents[1]
_LARGEST_REQUEST = 2**20
# What commands import only when they run, or for some of their options.
_IMPORTED_LATE = (
    "grpc._channel",
    "rich.live",
    "wattwise.commands.listing",
    "wattwise.driver.command",
    "uvloop",
    "wattwise_web.serving",
    "wattwise_server.app",
    "wattwise_server.store.postgres.open",
    *(f"wattwise_server.observability.{name}" for name in ("job_metrics", "metrics", "metrics_server")),
)

_asking = threading.Lock()
_statuses: list[int] = []
"""The exit status of this process, once it is known, if it is a fork."""


class ForkedProcess:
    """A process of `wattwise`, used like a `subprocess.Popen`.

    Args:
        arguments: The arguments of `wattwise`.
        environment: The whole environment; by default that of this process.
        folder: The working directory; by default that of this process.
        stdin: Where the input comes from; by default there is none.
        stdout: Where the output goes; by default a pipe.
        stderr: Where the log or the errors go; by default a pipe.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.args = arguments
        self.stdout: TextIO | None = None
        self.stderr: TextIO | None = None
        self._status, status = os.pipe()
        request = json.dumps([arguments, dict(environment or os.environ), str(folder or Path.cwd())]).encode()
        with ExitStack() as ours:
            ours.callback(os.close, status)
            if stdin is None:
                stdin = ours.enter_context(Path(os.devnull).open()).fileno()
            if stdout is None:
                output, stdout = os.pipe()
                ours.callback(os.close, stdout)
                self.stdout = os.fdopen(output)
            if stderr is None:
                errors, stderr = os.pipe()
                ours.callback(os.close, stderr)
                self.stderr = os.fdopen(errors)
            with _asking:
                socket.send_fds(parent(), [request], [stdin, stdout, stderr, status])
                self.pid = int(parent().recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._read_status(0)

    def wait(self, timeout: float = 60) -> int:
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

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Read all output and errors from the pipes, close them, and wait for the end."""
        assert self.stdout is not None
        assert self.stderr is not None
        deadline = time.monotonic() + timeout
        written = {self.stdout: b"", self.stderr: b""}
        reading = [pipe for pipe in written if not pipe.closed]
        while reading:
            ready, _, _ = select.select(reading, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            for pipe in ready:
                part = os.read(pipe.fileno(), 65_536)
                written[pipe] += part
                if not part:
                    pipe.close()
                    reading.remove(pipe)
        self.wait(max(0.0, deadline - time.monotonic()))
        return written[self.stdout].decode(), written[self.stderr].decode()

    def _read_status(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 64) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode


def run(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `wattwise` to its end."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = ForkedProcess(
            *words, environment=environment, folder=folder, stdout=stdout.fileno(), stderr=stderr.fileno()
        )
        try:
            status = process.wait()
        finally:
            process.send_signal(signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(words, status, stdout.read(), stderr.read())


@functools.cache
def parent() -> socket.socket:
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


def serve_requests(connection: socket.socket) -> int:
    """Fork for each request, and tell the exit status of each child on its own pipe."""
    # Registered before all others, so that it is called after them.
    atexit.register(_end_at_once)
    from wattwise.commands.main import ENTRIES, main  # noqa: PLC0415 - ahead of the forks, in this process alone
    from wattwise_server.commands import serve  # noqa: PLC0415 - as above

    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    for entry in ENTRIES.values():
        entry.load()
    # Otherwise every fork copies what its collections visit.
    gc.freeze()
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
        request, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 4)
        if not request:
            return 0
        *streams, status_pipe = descriptors
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            break
        status_pipes[pid] = status_pipe
        for stream in streams:
            os.close(stream)
        connection.send(str(pid).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(status_pipe, connection.detach(), *streams, *status_pipes.values()) + 1)
    arguments, environment, folder = json.loads(request)
    _take_over(environment, folder)
    try:
        _statuses.append(serve.main(arguments[1:]) if arguments[0] == "serve" else main(arguments))
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        _statuses.append(end.code)
    return _statuses[0]


def _take_over(environment: dict[str, str], folder: str) -> None:
    """Make this fork look like a process that was started in a folder."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    # A background process of a shell ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - as Python opens them
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - likewise


def _end_at_once() -> None:
    """End a fork without clearing every module, which would copy them all."""
    if _statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_statuses[0])


if __name__ == "__main__":
    sys.exit(serve_requests(socket.socket(fileno=int(sys.argv[1]))))
