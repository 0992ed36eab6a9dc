"""A report without gRPC: the server's own work, from the message to the durable answer, 64 reports at a time.

python -m benchmarks.in_process [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import tempfile
import time
from pathlib import Path

import uvloop
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.clock import steady_clock
from wattwise_server.rpc import answers, requests
from wattwise_server.store.open import open_store
from wattwise_server.usecases.training import Training

from benchmarks import jobs

_CALLERS = 64
_CALLS = 20
_ROUNDS = 60
_NAMES = ("elapsed", "processor, event loop", "processor, all threads")


def main() -> None:
    """Prints the time of a report: median and minimum of many rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_process")
    parser.add_argument("--profile", action="store_true", help="show where the event loop's thread spends its time")
    args = parser.parse_args()
    uvloop.run(_measure(profile=args.profile))


async def _measure(*, profile: bool) -> None:
    clock = steady_clock()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        async with open_store(f"sqlite:///{folder}/in_process.db", clock) as store:
            training = Training(store)
            sources = [jobs.reports(await _trial(training)) for _ in range(_CALLERS)]
            await _round(training, sources)
            rounds = [await _round(training, sources) for _ in range(_ROUNDS)]
            for name, taken in zip(_NAMES, zip(*rounds, strict=True), strict=True):
                print(f"{name:<24} {statistics.median(taken):6.1f} µs per report, {min(taken):.1f} in the best round")
            if profile:
                with cProfile.Profile() as profiler:
                    for _ in range(10):
                        await _round(training, sources)
                pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


async def _trial(training: Training) -> v1.Trial:
    job, _ = await training.register(requests.job_draft(v1.RegisterJobRequest(job=jobs.job_spec())))
    trial = await training.next_trial(job.spec.job_id, new_id())
    return answers.trial(trial)


async def _round(training: Training, sources: list[jobs.Reports]) -> tuple[float, float, float]:
    """Microseconds per report: elapsed, and CPU time of this thread and of all threads."""

    async def caller(source: jobs.Reports) -> None:
        for _ in range(_CALLS):
            request = v1.ReportResultRequest.FromString(next(source).SerializeToString())
            response = v1.ReportResultResponse(
                decision=answers.decision(await training.report(requests.report(request)))
            )
            response.SerializeToString()

    begun = (time.perf_counter(), time.thread_time(), time.process_time())
    await asyncio.gather(*(caller(source) for source in sources))
    ended = (time.perf_counter(), time.thread_time(), time.process_time())
    elapsed, thread, process = ((end - begin) / (_CALLERS * _CALLS) for begin, end in zip(begun, ended, strict=True))
    return elapsed * 1e6, thread * 1e6, process * 1e6


if __name__ == "__main__":
    main()
