"""The demo's servers: one on a SQLite file, or two on a PostgreSQL, of which one is killed in mid-run; and the page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from examples.digits.postgres import running_postgres
from examples.digits.processes import child

FILE = "wattwise.db"


@dataclass(frozen=True)
class Servers:
    """Running servers.

    Attributes:
        address: what clients connect to; several servers with commas between them.
        processes: the process of each.
    """

    address: str
    processes: tuple[subprocess.Popen[str], ...]

    def kill_one(self) -> str:
        """Kills the first server, as `kill -9` does; returns its address."""
        self.processes[0].kill()
        self.processes[0].wait()
        return self.address.split(",")[0]


@contextmanager
def one_on_sqlite(folder: Path, *, log: Path | None = None) -> Iterator[Servers]:
    """Runs a server with a new database in a folder, and a log if one is named."""
    with ExitStack() as stack:
        yield _start(stack, f"sqlite:///{folder / FILE}", count=1, log=log)


@contextmanager
def two_on_postgres() -> Iterator[Servers]:
    """Runs a PostgreSQL, and two servers on it."""
    with ExitStack() as stack:
        url = stack.enter_context(running_postgres())
        yield _start(stack, url, count=2)


@contextmanager
def web_page(address: str, *, log: Path | None = None) -> Iterator[str]:
    """Runs the web page of servers; yields its URL."""
    with ExitStack() as stack:
        arguments = ("--server", address, "--address", "127.0.0.1:0")
        process = stack.enter_context(child("wattwise_web", *arguments, log=_opened(stack, log)))
        yield _address_of(process, "the web page", log)


def _start(stack: ExitStack, url: str, count: int, log: Path | None = None) -> Servers:
    arguments = ("--address", "127.0.0.1:0", "--database", url, "--log-level", "info" if log else "warning")
    file = _opened(stack, log)
    processes = tuple(stack.enter_context(child("wattwise_server", *arguments, log=file)) for _ in range(count))
    return Servers(",".join(_address_of(process, "a server", log) for process in processes), processes)


def _opened(stack: ExitStack, log: Path | None) -> IO[str] | None:
    return None if log is None else stack.enter_context(log.open("a", encoding="utf-8"))


def _address_of(process: subprocess.Popen[str], what: str, log: Path | None) -> str:
    """Returns the address that a child prints once it answers."""
    if process.stdout is None or not (line := process.stdout.readline()):
        raise RuntimeError(f"{what} did not start; see {log or 'its output above'}")
    return line.split()[-1]
