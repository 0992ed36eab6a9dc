"""Very many streams in a process of its own: `python -m tests.faults.streamers ADDRESS KIND NUMBER EACH TRIAL...`.

EACH is how many of them a connection has.

Prints how many ended with which code once every stream has been answered, then lets them go on until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from subprocess import PIPE, Popen
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wattwise import v1

from tests.people import PeopleStub

CALLS_OF_A_CONNECTION = 90
AT_A_TIME = 500


async def main(address: str, kind: str, number: int, each: int, trials: list[v1.TrialId]) -> None:
    """Opens the streams, prints what became of them and waits."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),))
            )
            for _ in range(number // each + 1)
        ]
        make = _KINDS[kind]

        async def opened(place: int) -> tuple[Any, str]:
            call = make(channels[place % len(channels)], trials[place % len(trials)])
            try:
                answer = await call.read()
            except grpc.aio.AioRpcError as error:
                return call, error.code().name
            return call, "OPEN" if answer is not grpc.aio.EOF else (await call.code()).name

        streams = []
        for start in range(0, number, AT_A_TIME):
            streams += await asyncio.gather(*map(opened, range(start, min(number, start + AT_A_TIME))))
        print(json.dumps(Counter(code for _, code in streams)), flush=True)  # noqa: T201 - read by `streaming`
        await asyncio.to_thread(sys.stdin.read)


def _report(channel: Any, trial: v1.TrialId) -> Any:
    result = v1.TrainingResult(
        trial=trial, measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.1, epoch=1)
    )

    async def once() -> Any:
        yield v1.StreamResultsRequest(result=result)
        await asyncio.Event().wait()

    stub: Any = v1.BatchSizeOptimizerStub(channel)
    return stub.StreamResults(once())


def _watch(channel: Any, trial: v1.TrialId) -> Any:
    return PeopleStub(channel).WatchJob(v1.WatchJobRequest(job_id=trial.job_id))


def _health(channel: Any, _trial: v1.TrialId) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest())


_KINDS: dict[str, Callable[[Any, v1.TrialId], Any]] = {"report": _report, "watch": _watch, "health": _health}


@contextmanager
def streaming(
    address: str, kind: str, number: int, trials: list[v1.TrialId], *, each: int = CALLS_OF_A_CONNECTION
) -> Iterator[dict[str, int]]:
    """Streams of another process, open for the length of the block; how many ended with which code, or are `OPEN`."""
    texts = [trial.SerializeToString().hex() for trial in trials]
    command = [sys.executable, "-m", __name__, address, kind, str(number), str(each), *texts]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.kill()


if __name__ == "__main__":
    given, named = sys.argv[1:5], sys.argv[5:]
    ids = [v1.TrialId.FromString(bytes.fromhex(text)) for text in named]
    asyncio.run(main(given[0], given[1], int(given[2]), int(given[3]), ids))
