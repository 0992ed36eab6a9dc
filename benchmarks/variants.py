"""Optimizations that were kept or dropped: servers that differ in one thing, beside the echo server.

    python -m benchmarks.variants [--rounds 15] base pages_of_1_kib …

A variant patches the server before it starts; it is not an option of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from wattwise_server.commands import serve as cli
from wattwise_server.store import writer
from wattwise_server.store.sqlite import connection
from wattwise_server.store.sqlite import open as opening

from benchmarks import crowd
from benchmarks.processes import echo_server

_Callers = tuple[list[crowd.Caller], list[crowd.Caller]]


def base() -> None:
    """The server as it is."""


def asyncio_loop() -> None:
    """The event loop of asyncio instead of uvloop."""
    _swap(cli, uvloop=asyncio)


def spared_collector() -> None:
    """A garbage collector that ignores modules and runs rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def no_gathering() -> None:
    """A commit takes the waiting submissions and does not wait for more."""

    async def gather(_: writer.Writer) -> None:
        return

    _swap(writer.Writer, _gather=gather)


def no_patience() -> None:
    """Under load, too, a commit waits only for submissions that are about to arrive."""
    _swap(writer.Writer, _gather=vars(writer.Writer)["_gather_ready"])


def waits_a_millisecond() -> None:
    """A commit of more than one submission waits for more."""

    async def gather(mine: Any) -> None:
        if len(mine.waiting) > 1:
            await asyncio.sleep(0.001)

    _swap(writer.Writer, _gather=gather)


def short_switches() -> None:
    """A thread that waits for the GIL requests it after 0.3 ms instead of 5 ms."""
    sys.setswitchinterval(0.0003)


def pages_of_1_kib() -> None:
    """Smaller database pages; every commit writes at least one per job."""
    migrate = vars(opening)["migrate"]

    def smaller(connection: Any, path: str) -> None:
        connection.execute("PRAGMA page_size = 1024")
        migrate(connection, path)

    _swap(opening, migrate=smaller)


def no_sync() -> None:
    """Without syncing, and so without durability: shows the cost of the disk."""
    kept = [pragma for pragma in vars(opening)["_PRAGMAS"] if not pragma.startswith("synchronous")]
    _swap(opening, _PRAGMAS=(*kept, "synchronous = OFF"))


def commits_in_the_loop() -> None:
    """Commits in the event loop, which blocks meanwhile."""

    async def commit(mine: Any, group: Any) -> Any:
        raw = vars(mine)["_raw"]
        raw.group = [change for submission in group for change in submission.changes]
        raw.commit()
        return ()

    connect = vars(opening)["_connection"]
    _swap(opening, _connection=lambda *args, **options: connect(*args, check_same_thread=False, **options))
    _swap(connection.Group, commit=commit)


def _swap(owner: Any, **parts: Any) -> None:
    for name, part in parts.items():
        setattr(owner, name, part)


_VARIANTS: dict[str, Callable[[], None]] = {
    variant.__name__: variant
    for variant in (
        base,
        asyncio_loop,
        spared_collector,
        no_gathering,
        no_patience,
        waits_a_millisecond,
        short_switches,
        pages_of_1_kib,
        no_sync,
        commits_in_the_loop,
    )
}


def main() -> None:
    """Prints calls and messages per second of each variant, and their ratio to the echo server's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variants")
    parser.add_argument("variants", nargs="*", default=list(_VARIANTS), help=f"of {', '.join(_VARIANTS)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", nargs=2, metavar=("VARIANT", "DATABASE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.variants) - set(_VARIANTS):
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}; known are {', '.join(_VARIANTS)}")
    if args.serve:
        _serve(*args.serve)
    else:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            asyncio.run(_compare(args.variants, args.rounds, Path(folder)))


def _serve(variant: str, database: str) -> None:
    _VARIANTS[variant]()
    sys.exit(cli.main(["--address=127.0.0.1:0", f"--database=sqlite:///{database}", "--log-level=warning"]))


async def _compare(variants: list[str], rounds: int, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        echo, _ = stack.enter_context(echo_server())
        callers: dict[str, _Callers] = {}
        for variant in variants:
            address = _started(stack, variant, folder / f"{variant}.db")
            trials = await asyncio.to_thread(crowd.two_trials_each, address)
            callers[variant] = await _callers(stack, address, trials)
        callers["echo"] = await _callers(stack, echo, trials)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in callers}
        for counts in range(-1, rounds):
            for name, (calls, messages) in callers.items():
                rates = (await crowd.rate(calls, 0.5), await crowd.rate(messages, 0.5))
                if counts >= 0:
                    found[name].append(rates)
    for name, mine in found.items():
        print(f"{name:<20} {_line('calls', 0, mine, found['echo'])} {_line('messages', 1, mine, found['echo'])}")


def _line(what: str, place: int, mine: list[tuple[float, float]], echo: list[tuple[float, float]]) -> str:
    ratio = median(rates[place] / baseline[place] for rates, baseline in zip(mine, echo, strict=True))
    return f"{median(rates[place] for rates in mine):6.0f} {what} a second, {ratio:.2f} of echo's;"


def _started(stack: AsyncExitStack, variant: str, database: Path) -> str:
    command = [sys.executable, "-m", "benchmarks.variants", "--serve", variant, str(database)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    if process.stdout is None:
        raise RuntimeError("the server's output is not a pipe")
    return process.stdout.readline().split()[-1]


async def _callers(stack: AsyncExitStack, address: str, trials: list[Any]) -> _Callers:
    # Calls and streams on connections of their own: together they would exceed the limit of one.
    own = (("grpc.use_local_subchannel_pool", 1),)
    calls, streams = [await stack.enter_async_context(grpc.aio.insecure_channel(address, own)) for _ in range(2)]
    return (
        crowd.unary_callers(calls, trials[: crowd.CALLERS]),
        crowd.stream_callers(streams, trials[crowd.CALLERS :]),
    )


if __name__ == "__main__":
    main()
