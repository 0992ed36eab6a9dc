"""What a restart with many running trials of wide jobs brings: a report of each trial, and lists of all jobs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc
from wattwise import v1

from benchmarks import filling, jobs

_CALLERS = 64
_PAGE = 1_000


def main() -> None:
    """Prints how many seconds the reports took, all together, and each page of jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    args = parser.parse_args()
    json.dump(asyncio.run(_measure(args.server, args.jobs)), sys.stdout)


async def _measure(server: str, job_count: int) -> dict[str, list[float]]:
    async with grpc.aio.insecure_channel(server) as channel:
        admin: Any = v1.JobReaderStub(channel)
        # The jobs are copies of the first one, with the same trials.
        request = v1.ListTrialsRequest(job_id=filling.job_id(0), statuses=[v1.TRIAL_STATUS_RUNNING])
        trials = (await admin.ListTrials(request)).trials
        start = time.perf_counter()
        await _report(v1.BatchSizeOptimizerStub(channel), trials, job_count)
        return {"reports": [time.perf_counter() - start], "page": await _pages(admin)}


async def _report(stub: Any, trials: Sequence[v1.Trial], job_count: int) -> None:
    reports = (_first_report(trial, filling.job_id(place)) for place in range(job_count) for trial in trials)

    async def caller() -> None:
        for request in reports:
            await stub.ReportResult(request)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


def _first_report(trial: v1.Trial, job_id: str) -> v1.ReportResultRequest:
    request = next(jobs.reports(trial))
    request.result.trial.job_id = job_id
    return request


async def _pages(stub: Any) -> list[float]:
    taken: list[float] = []
    request = v1.ListJobsRequest(page_size=_PAGE)
    while request.page_token or not taken:
        start = time.perf_counter()
        request.page_token = (await stub.ListJobs(request)).next_page_token
        taken.append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    main()
