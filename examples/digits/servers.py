"""The demo's servers: one on a SQLite file, or two on a PostgreSQL, of which one is killed in mid-run; and the page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

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
def one_on_sqlite(folder: Path) -> Iterator[Servers]:
    """Runs a server with a new database in a folder."""
    with ExitStack() as stack:
        yield _start(stack, f"sqlite:///{folder / FILE}", count=1)


@contextmanager
def two_on_postgres() -> Iterator[Servers]:
    """Runs a PostgreSQL, and two servers on it."""
    with ExitStack() as stack:
        url = stack.enter_context(running_postgres())
        yield _start(stack, url, count=2)


@contextmanager
def web_page(address: str) -> Iterator[str]:
    """Runs the web page of servers; yields its URL."""
    with child("wattwise_web", "--server", address, "--address", "127.0.0.1:0") as process:
        if process.stdout is None or not (line := process.stdout.readline()):
            raise RuntimeError("the web page did not start; see its output above")
        yield line.split()[-1]


def _start(stack: ExitStack, url: str, count: int) -> Servers:
    arguments = ("--address", "127.0.0.1:0", "--database", url, "--log-level", "warning")
    processes = tuple(stack.enter_context(child("wattwise_server", *arguments)) for _ in range(count))
    addresses = []
    for process in processes:
        if process.stdout is None or not (line := process.stdout.readline()):
            raise RuntimeError("a server did not start; see its output above")
        addresses.append(line.split()[-1])
    return Servers(",".join(addresses), processes)
