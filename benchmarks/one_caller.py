"""One caller: baselines and calls of the server alternate, so that noise affects all of them equally.

The two baselines alternate, as they do in a call: a disk that is idle between two commits answers later than a busy one
(here by a factor of three to nine).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiosqlite
import asyncpg
import grpc
from wattwise import v1

from benchmarks import jobs

_CALLS = 50
_TRIALS = 8

Seconds = dict[str, list[float]]
"""Seconds per kind of call."""

Commit = Callable[[], Awaitable[object]]


def main() -> None:
    """Prints the median seconds of each kind of call, round by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--echo", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--database", required=True, help="of the commits: a file, or the URL of a PostgreSQL")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with grpc.insecure_channel(args.echo) as echo, grpc.insecure_channel(args.server) as server:
        json.dump(asyncio.run(_measure(echo, server, args.database, args.rounds)), sys.stdout)


async def _measure(echo: grpc.Channel, server: grpc.Channel, database: str, rounds: int) -> Seconds:
    found: Seconds = {}
    baseline, stub = v1.BatchSizeOptimizerStub(echo), v1.BatchSizeOptimizerStub(server)
    epochs = jobs.reports(jobs.next_trial(stub, jobs.register(stub).job_id))
    short_job = jobs.register(stub).job_id
    async with (_committing_postgres if "://" in database else _committing_file)(database) as commit:
        # The first round is a warm-up.
        for counts in range(-1, rounds):
            taken = await _baselines(baseline, commit, epochs)
            taken["report"] = [_seconds(lambda: stub.ReportResult(next(epochs), timeout=60)) for _ in range(_CALLS)]
            taken["trial"] = [_seconds(lambda: _whole_trial(stub, short_job)) for _ in range(_TRIALS)]
            for kind, seconds in taken.items():
                found.setdefault(kind, [])
                if counts >= 0:
                    found[kind].append(statistics.median(seconds))
    return found


@asynccontextmanager
async def _committing_file(path: str) -> AsyncIterator[Commit]:
    """Commits of one row through aiosqlite, as the server commits."""
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute_fetchall("PRAGMA journal_mode = WAL")
        await connection.execute_fetchall("PRAGMA synchronous = FULL")
        await connection.execute_fetchall("CREATE TABLE baseline (place INTEGER PRIMARY KEY, energy REAL)")
        yield lambda: connection.execute_fetchall("INSERT INTO baseline (energy) VALUES (?)", (12345.678,))


@asynccontextmanager
async def _committing_postgres(url: str) -> AsyncIterator[Commit]:
    """Commits of one row through asyncpg, as the server commits."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE baseline (place bigserial PRIMARY KEY, energy double precision)")
        insert = await connection.prepare("INSERT INTO baseline (energy) VALUES ($1)")
        yield lambda: insert.fetch(12345.678)
    finally:
        await connection.close()


async def _baselines(baseline: v1.BatchSizeOptimizerStub, commit: Commit, epochs: jobs.Reports) -> Seconds:
    """Alternates an empty call and a commit."""
    echoes, commits = [], []
    for _ in range(_CALLS):
        echoes.append(_seconds(lambda: baseline.ReportResult(next(epochs), timeout=60)))
        start = time.perf_counter()
        await commit()
        commits.append(time.perf_counter() - start)
    return {"echo": echoes, "commit": commits}


def _whole_trial(stub: v1.BatchSizeOptimizerStub, job_id: str) -> None:
    trial = jobs.next_trial(stub, job_id)
    for request in jobs.whole_trial(trial):
        stub.ReportResult(request, timeout=60)
    stub.EndTrial(v1.EndTrialRequest(trial=trial.id, end_reason=v1.END_REASON_COMPLETED), timeout=60)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
