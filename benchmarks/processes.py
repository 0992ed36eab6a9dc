"""The servers and clients of a benchmark, each in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def wattwise_server(database: Path | str, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Starts a Wattwise server on a file, or on the database of a URL: its address and its process."""
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    command = ["wattwise_server", "--address", "127.0.0.1:0", "--database", url, "--log-level", "warning"]
    with _server([*command, *arguments]) as found:
        yield found


@contextlib.contextmanager
def echo_server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Starts the echo server: its address and its process."""
    with _server(["benchmarks.echo"]) as found:
        yield found


@contextlib.contextmanager
def _server(arguments: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the server's output is not a pipe")
        line = process.stdout.readline()
        if " listens on " not in line:
            raise RuntimeError(f"{arguments[0]} printed {line!r} instead of its address")
        yield line.split()[-1], process
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def client(module: str, **arguments: object) -> Any:
    """Runs a client; returns the JSON that it printed."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """Returns the CPU time that a process has used in all of its threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(process: subprocess.Popen[str]) -> float:
    """Returns the resident memory of a process, in MB of 10^6 bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {process.pid} has ended")
