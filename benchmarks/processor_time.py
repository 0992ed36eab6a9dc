"""CPU time of a call under load, per thread, of the echo server and of the Wattwise server.

python -m benchmarks.processor_time
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import grpc

from benchmarks import crowd
from benchmarks.processes import echo_server, wattwise_server

_TICK_SECONDS = 0.01
_SOCKETS = "event_engine"
"""The names of the threads of gRPC's core."""


class Used(NamedTuple):
    """Seconds of CPU time in user and system mode, and voluntary context switches."""

    user: float
    system: float
    switches: int


def main() -> None:
    """Prints microseconds per call."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor_time")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        database = Path(folder) / "processor_time.db"
        with echo_server() as echo, wattwise_server(database) as server:
            asyncio.run(_measure(echo, server, args.seconds))


async def _measure(
    echo: tuple[str, subprocess.Popen[str]], server: tuple[str, subprocess.Popen[str]], seconds: float
) -> None:
    trials = await asyncio.to_thread(crowd.two_trials_each, server[0])
    async with AsyncExitStack() as stack:
        baseline = await stack.enter_async_context(grpc.aio.insecure_channel(echo[0]))
        real = await stack.enter_async_context(grpc.aio.insecure_channel(server[0]))
        kinds = {
            "echo, calls": (crowd.unary_callers(baseline, trials[: crowd.CALLERS]), echo[1]),
            "Wattwise, calls": (crowd.unary_callers(real, trials[: crowd.CALLERS]), server[1]),
            "echo, streams": (crowd.stream_callers(baseline, trials[crowd.CALLERS :]), echo[1]),
            "Wattwise, streams": (crowd.stream_callers(real, trials[crowd.CALLERS :]), server[1]),
        }
        for name, (callers, process) in kinds.items():
            await crowd.rate(callers, 0.5)
            before = _threads(process)
            calls = seconds * await crowd.rate(callers, seconds)
            print(f"{name}: {calls / seconds:.0f} per second")
            _show(before, _threads(process), calls)


def _show(before: dict[str, Used], after: dict[str, Used], calls: float) -> None:
    total = 0.0
    for name, used in after.items():
        known = before.get(name, Used(0, 0, 0))
        user, system = ((used.user - known.user) / calls * 1e6, (used.system - known.system) / calls * 1e6)
        total += user + system
        switches = (used.switches - known.switches) / calls
        print(f"  {name:<17} {user:6.1f} µs user, {system:5.1f} µs system, {switches:4.1f} switches")
    print(f"  {'all':<17} {total:6.1f} µs")


def _threads(process: subprocess.Popen[str]) -> dict[str, Used]:
    found: dict[str, Used] = {}
    for folder in Path(f"/proc/{process.pid}/task").iterdir():
        if int(folder.name) == process.pid:
            kind = "event loop"
        else:
            kind = "gRPC's core" if _SOCKETS in (folder / "comm").read_text() else "database, poller"
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        lines = (folder / "status").read_text().splitlines()
        switches = sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)
        had = found.get(kind, Used(0, 0, 0))
        ticks = (int(fields[11]) * _TICK_SECONDS, int(fields[12]) * _TICK_SECONDS)
        found[kind] = Used(had.user + ticks[0], had.system + ticks[1], had.switches + switches)
    return found


if __name__ == "__main__":
    main()
