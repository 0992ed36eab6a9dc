"""Whole trials of random jobs by 64 concurrent callers, until a number of calls is answered."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import uuid
from typing import Any

import grpc
from wattwise import v1

from benchmarks import filling, jobs

_CALLERS = 64


def main() -> None:
    """Prints how many calls were answered, and in how many seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    args = parser.parse_args()
    start = time.perf_counter()
    answered = asyncio.run(_call(args.server, args.jobs, args.calls))
    json.dump({"calls": answered, "seconds": time.perf_counter() - start}, sys.stdout)


async def _call(server: str, count: int, calls: int) -> int:
    draw = random.Random(1)
    answered = 0
    async with grpc.aio.insecure_channel(server) as channel:
        stub: Any = v1.BatchSizeOptimizerStub(channel)

        async def caller() -> None:
            nonlocal answered
            while answered < calls:
                done = await _whole_trial(stub, filling.job_id(draw.randrange(count)))
                answered += done

        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    return answered


async def _whole_trial(stub: Any, job_id: str) -> int:
    asked = await stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=str(uuid.uuid4())))
    reports = jobs.whole_trial(asked.trial)
    for request in reports:
        await stub.ReportResult(request)
    await stub.EndTrial(v1.EndTrialRequest(trial=asked.trial.id, end_reason=v1.END_REASON_COMPLETED))
    return len(reports) + 2


if __name__ == "__main__":
    main()
