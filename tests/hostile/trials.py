"""Runs an example of a training loop against the hostile server, and judges what it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.hostile.server import Behaviour, HostileServer

PYTHON = (sys.executable, "-m", "tests.hostile.pretend")
"""The example of the Python client."""

_BATCH_SIZES = (16, 32, 64, 128)
_SECONDS = 90
_MEGABYTES = 500
"""C++ under AddressSanitizer takes up to 340 MB for an answer of 100 MB, any other client less than 120 MB."""
_LINES, _CHARACTERS = 40, 64_000
_CRASH = re.compile(
    r"Traceback|panic:|goroutine |terminate called|Sanitizer|runtime error|Uncaught|DATA RACE| at .*\.js:|this is a bug"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\N{RIGHT-TO-LEFT OVERRIDE}]")


class Run(NamedTuple):
    """How a program ended: its exit status, None if it had to be killed; its output, and the memory that it took."""

    status: int | None
    output: str
    megabytes: float
    requests: Sequence[tuple[str, Any]]


def run(command: Sequence[str], behaviour: Behaviour, real: str) -> Run:
    """Runs a program against the hostile server, in front of a real one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
    with tempfile.TemporaryDirectory() as folder, HostileServer(behaviour, real) as hostile:
        output, deadline, megabytes = Path(folder, "output"), time.monotonic() + _SECONDS, 0.0
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, hostile.address],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**clean, "WATTWISE_SPOOL": str(Path(folder, "spool"))},
            )
            while process.poll() is None and time.monotonic() < deadline:
                megabytes = max(megabytes, peak(process.pid))
                time.sleep(0.02)
            status = process.poll()
            process.kill()
            process.wait()
        said = output.read_bytes()[: 4 * _CHARACTERS].decode(errors="replace")
        return Run(status, said, megabytes, hostile.requests)


def faults(done: Run, behaviour: Behaviour) -> Iterator[str]:
    """What is wrong about a run."""
    if done.status is None:
        yield f"hung for {_SECONDS} s"
    elif done.status not in behaviour.ends:
        yield f"ended with {done.status}"
    if crash := _CRASH.search(done.output):
        yield f"crashed ({crash[0]})"
    if control := _CONTROL.search(done.output):
        yield f"printed {control[0]!r}"
    if len(done.output) > _CHARACTERS or done.output.count("\n") > _LINES:
        yield "printed too much"
    if done.megabytes > _MEGABYTES:
        yield f"took {done.megabytes:.0f} MB"
    for method, request in done.requests:
        if method == "ImportTrial" and request.batch_size not in _BATCH_SIZES:
            yield f"imported a trial with batch size {request.batch_size}"
            return


def peak(pid: int) -> float:
    """The most memory that a process has had, in MB; 0 once it has ended."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0
