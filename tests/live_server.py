"""The real `wattwise serve` in its own process; a test can stop it, kill it and start it again on the same file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import grpc
from wattwise import v1

from tests.forking import ForkedProcess
from tests.people import PeopleStub
from tests.ports import hold_port, port_of

if TYPE_CHECKING:
    from typing_extensions import Self

_Server = TypeVar("_Server", bound="LiveServer")

CHANNEL_OPTIONS = (("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 50))


class LiveServer:
    """One server process at a time, on one database file and one port; leaving the context kills it."""

    logs: ClassVar[dict[Path, int]] = {}
    """The logs that a running test may have added to, and their sizes when it began."""

    def __init__(self, folder: Path, url: str = "") -> None:
        """Starts nothing yet; the database is a file in the folder, unless a URL names another one."""
        self.database = folder / "wattwise.db"
        self.url = url or f"sqlite:///{self.database}"
        self.log = folder / "server.log"
        # Held, since a stopped server's port would be another's before its next start.
        self._port = hold_port()
        self.address = f"127.0.0.1:{port_of(self._port)}"
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self, *arguments: str) -> str:
        """Start a process; return the address that it printed."""
        options = ["--address", self.address, "--database", self.url, *arguments]
        environment = {**os.environ, **self.environment}
        self.logs.setdefault(self.log, 0)
        with self.log.open("a") as log:
            if any(not name.startswith("WATTWISE_") for name in self.environment):
                # They may be for the dynamic linker or for imports.
                command = [sys.executable, "-m", "wattwise_server", *options]
                self._process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
                )
            else:
                self._process = ForkedProcess("serve", *options, environment=environment, stderr=log.fileno())
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.fullmatch(r"wattwise listens on (\S+)\n", line)
        assert found, f"instead of its address the server printed {line!r}: {self.log.read_text()}"
        self.address = found[1]
        if self._channel is not None:
            grpc.channel_ready_future(self._channel).result(timeout=20)
        return self.address

    @property
    def process(self) -> subprocess.Popen[str] | ForkedProcess:
        """The current process, or the last one."""
        assert self._process is not None, "start it first"
        return self._process

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def hang_up(self) -> None:
        """Send SIGHUP, which reloads certificates and tokens."""
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> int:
        """Send SIGKILL; return the exit status."""
        self.process.send_signal(signal.SIGKILL)
        return self._reap()

    def lose_database(self) -> None:
        """Deletes the database with all its files; the server must not run."""
        for suffix in ("", "-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the channel and kill the process."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            if self._process.poll() is None:
                self.kill()
            self._reap()
        self._port.close()

    def _reap(self) -> int:
        status = self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def forget_channel(self) -> None:
        """Closes the channel: it cannot be used by the next start, which needs credentials."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def channel(self) -> grpc.Channel:
        """A channel that reconnects quickly."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.address, CHANNEL_OPTIONS)
        return self._channel

    @property
    def trainer(self) -> v1.BatchSizeOptimizerStub:
        """The stub of `BatchSizeOptimizer`."""
        return v1.BatchSizeOptimizerStub(self.channel)

    @property
    def admin(self) -> PeopleStub:
        """The stubs of people and tools."""
        return PeopleStub(self.channel)


@contextmanager
def servers_on(folder: Path, url: str, count: int, kind: type[_Server], *arguments: str) -> Iterator[Sequence[_Server]]:
    """Running servers of one kind on one database, each with its own port and log, and with the same arguments."""
    with ExitStack() as stack:
        servers: list[_Server] = []
        for number in range(count):
            own = folder / f"server-{number}"
            own.mkdir()
            server = kind(own, url)
            stack.enter_context(server)
            server.start(*arguments)
            servers.append(server)
        yield servers
