"""One caller: rounds of the floors and of the server's calls in turn, so that noise meets all of them alike."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiosqlite
import grpc
from wattwise import v1

from benchmarks import jobs
from benchmarks.echo import UNARY

_CALLS = 50
_TRIALS = 8
_REPORTS = 5


def main() -> None:
    """Prints the median seconds of each kind of call, round by round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--echo", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with grpc.insecure_channel(args.echo) as echo, grpc.insecure_channel(args.server) as server:
        kinds = _kinds(echo, v1.BatchSizeOptimizerStub(server), args.folder)
        for block in kinds.values():
            block()
        rounds = [{name: block() for name, block in kinds.items()} for _ in range(args.rounds)]
    json.dump({name: [each[name] for each in rounds] for name in kinds}, sys.stdout)


def _kinds(echo: grpc.Channel, stub: v1.BatchSizeOptimizerStub, folder: Path) -> dict[str, Callable[[], float]]:
    long_job, short_job = jobs.register(stub), jobs.register(stub)
    trial = jobs.next_trial(stub, long_job.job_id)
    epochs = jobs.reports(trial)
    unary: Any = echo.unary_unary(UNARY)
    message = jobs.result(trial, 1234, 0.1).SerializeToString() + b"\0\0"

    def report() -> None:
        stub.ReportResult(next(epochs), timeout=60)

    def whole_trial() -> None:
        mine = jobs.next_trial(stub, short_job.job_id)
        for epoch in range(1, _REPORTS + 1):
            metric = 0.95 if epoch == _REPORTS else 0.1
            stub.ReportResult(v1.ReportResultRequest(result=jobs.result(mine, epoch, metric)), timeout=60)
        stub.EndTrial(v1.EndTrialRequest(trial=mine.id, reason=v1.END_REASON_COMPLETED), timeout=60)

    return {
        "echo": lambda: _median(lambda: unary(message, timeout=60), _CALLS),
        "commit": lambda: asyncio.run(_commits(folder / "floor.db")),
        "report": lambda: _median(report, _CALLS),
        "trial": lambda: _median(whole_trial, _TRIALS),
    }


def _median(call: Callable[[], object], count: int) -> float:
    return statistics.median(_seconds(call) for _ in range(count))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


async def _commits(path: Path) -> float:
    """The floor of durability: one row, through aiosqlite, committed as the server commits."""
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute_fetchall("PRAGMA journal_mode = WAL")
        await connection.execute_fetchall("PRAGMA synchronous = FULL")
        await connection.execute_fetchall("CREATE TABLE IF NOT EXISTS floor (place INTEGER PRIMARY KEY, energy REAL)")
        taken = []
        for _ in range(_CALLS):
            begun = time.perf_counter()
            await connection.execute_fetchall("INSERT INTO floor (energy) VALUES (?)", (12345.678,))
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
