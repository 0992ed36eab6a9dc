"""Large databases in seconds: rows of the real server, copied by SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.clock import steady_clock
from wattwise_server.rpc import answers, requests
from wattwise_server.store.open import open_store
from wattwise_server.usecases.training import Training

from benchmarks import jobs

TRIALS = 10
"""Ended trials of every job, each with five epochs and converged."""

DEEP = "bench-deep"
"""The job with many trials."""

_TABLES = ("jobs", "arms", "trials", "measurements")
_COUNTS = ("num_decided", "reached_count")
_UP_TO = "WITH RECURSIVE copies(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copies WHERE i < {})"


def job_id(place: int) -> str:
    """Returns the id of the job at a place, from 0."""
    return f"bench-{place}"


def fill(path: Path, count: int, *, deep: int = 0, batch_sizes: Sequence[int] = (32, 64), running: int = 0) -> None:
    """Creates a file of `count` jobs, and one job of `deep` trials if `deep` is not 0.

    `running` trials of every job are running, besides its ended ones.
    """
    asyncio.run(_seed(path, [job_id(0), DEEP] if deep else [job_id(0)], batch_sizes, running))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        with connection:
            _copy_jobs(connection, count - 1)
            if deep:
                _deepen(connection, deep // TRIALS)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _seed(path: Path, ids: list[str], batch_sizes: Sequence[int], running: int) -> None:
    clock = steady_clock()
    async with open_store(f"sqlite:///{path}", clock) as store:
        training = Training(store)
        for each in ids:
            spec = jobs.job_spec(job_id=each, batch_sizes=batch_sizes, num_pruning_rounds=1)
            await training.register(requests.job_draft(v1.RegisterJobRequest(job=spec)))
            for _ in range(TRIALS):
                trial = await training.next_trial(each, new_id())
                for request in jobs.whole_trial(answers.trial(trial)):
                    await training.report(requests.report(request))
            for _ in range(running):
                await training.next_trial(each, new_id())


def _copy_jobs(connection: sqlite3.Connection, copies: int) -> None:
    """Copies of the first job with its trials and measurements."""
    if not copies:
        return
    (last,) = connection.execute("SELECT max(job_key) FROM jobs").fetchone()
    changed = {"job_key": f"{last} + i", "job_id": "'bench-' || i"}
    for table in _TABLES:
        _copy(connection, table, copies, changed, f"job_key = (SELECT job_key FROM jobs WHERE job_id = '{job_id(0)}')")


def _deepen(connection: sqlite3.Connection, times: int) -> None:
    """Copies of the trials of the job with many trials."""
    (key,) = connection.execute("SELECT job_key FROM jobs WHERE job_id = ?", (DEEP,)).fetchone()
    changed = {name: f"{name} + {TRIALS} * i" for name in ("trial_number", "observation")}
    changed["launch_id"] = "launch_id || '-' || i"
    for table in ("trials", "measurements"):
        _copy(connection, table, times - 1, changed, f"job_key = {key} AND trial_number <= {TRIALS}")
    grown = ", ".join(f"{name} = {name} * {times}" for name in _COUNTS)
    connection.execute(f"UPDATE arms SET {grown} WHERE job_key = {key}")
    # A minute apart.
    earlier = f"60000000 * ((SELECT max(trial_number) FROM trials WHERE job_key = {key}) - trial_number)"
    for name in ("start_time", "end_time"):
        connection.execute(f"UPDATE trials SET {name} = {name} - {earlier} WHERE job_key = {key}")
    grown = ", ".join(f"{name} = {name} * {times}" for name in ("num_trials", "num_observations"))
    connection.execute(f"UPDATE jobs SET {grown} WHERE job_key = {key}")


def _copy(connection: sqlite3.Connection, table: str, copies: int, changed: dict[str, str], rows: str) -> None:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(changed.get(column, column) for column in columns)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) {_UP_TO.format(copies)} "
        f"SELECT {values} FROM copies JOIN {table} ON {rows} ORDER BY i"
    )
