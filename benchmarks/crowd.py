"""Sixty-four concurrent callers, alternating between the echo server and the Wattwise server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
from wattwise import v1

from benchmarks import jobs

CALLERS = 64

Caller = Callable[[], Awaitable[object]]


def main() -> None:
    """Prints calls per second of each kind, round by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--echo", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    json.dump(asyncio.run(_measure(args.echo, args.server, args.rounds, args.seconds)), sys.stdout)


async def _measure(echo: str, server: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    dispatched = await asyncio.to_thread(two_trials_each, server)
    async with AsyncExitStack() as stack:
        # Calls and streams on connections of their own: together they would exceed the limit of one.
        own = (("grpc.use_local_subchannel_pool", 1),)
        addresses = {"echo": echo, "report": server, "echo_stream": echo, "stream": server}
        channels = {
            kind: await stack.enter_async_context(grpc.aio.insecure_channel(address, own))
            for kind, address in addresses.items()
        }
        kinds = {
            "echo": unary_callers(channels["echo"], dispatched[:CALLERS]),
            "report": unary_callers(channels["report"], dispatched[:CALLERS]),
            "echo_stream": stream_callers(channels["echo_stream"], dispatched[CALLERS:]),
            "stream": stream_callers(channels["stream"], dispatched[CALLERS:]),
        }
        for callers in kinds.values():
            await rate(callers, 0.5)
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, callers in kinds.items():
                found[name].append(await rate(callers, seconds))
    return found


def two_trials_each(server: str) -> list[v1.Trial]:
    """Returns two trials per caller, each of its own job: one for its calls and one for its stream."""
    with grpc.insecure_channel(server) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        return [jobs.next_trial(stub, jobs.register(stub).job_id) for _ in range(2 * CALLERS)]


async def rate(callers: list[Caller], seconds: float) -> float:
    """Calls per second of all callers together."""
    end = time.perf_counter() + seconds

    async def call_on(caller: Caller) -> int:
        done = 0
        while time.perf_counter() < end:
            await caller()
            done += 1
        return done

    start = time.perf_counter()
    counts = await asyncio.gather(*(call_on(caller) for caller in callers))
    return sum(counts) / (time.perf_counter() - start)


def unary_callers(channel: Any, trials: list[v1.Trial]) -> list[Caller]:
    """Callers that each report to their own trial."""
    stub: Any = v1.BatchSizeOptimizerStub(channel)

    def caller(trial: v1.Trial) -> Caller:
        epochs = jobs.reports(trial)
        return lambda: stub.ReportResult(next(epochs))

    return [caller(trial) for trial in trials]


def stream_callers(channel: Any, trials: list[v1.Trial]) -> list[Caller]:
    """Callers that each send a measurement on their own stream and wait for the decision."""
    stub: Any = v1.BatchSizeOptimizerStub(channel)

    def caller(trial: v1.Trial) -> Caller:
        stream, epochs = stub.StreamResults(), jobs.reports(trial)

        async def exchange() -> None:
            await stream.write(v1.StreamResultsRequest(result=next(epochs).result))
            await stream.read()

        return exchange

    return [caller(trial) for trial in trials]


if __name__ == "__main__":
    main()
