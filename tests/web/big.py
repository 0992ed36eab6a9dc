"""A database with a thousand jobs and a hundred thousand trials, made by a server's migrations and filled with rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import grpc
from wattwise import v1

from tests.jobs import Trainer
from tests.live_server import LiveServer

JOBS, TRIALS = 1_000, 100_000
BIGGEST = "big-0000"
_EACH = 50


def fill(server: LiveServer) -> None:
    """Makes the jobs; the server must not have any. It is restarted."""
    address = server.address
    with grpc.insecure_channel(address) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)
        trainer = Trainer(stub, job_id=BIGGEST, job_id_prefix="big", policy="knowledge_gradient")
        for number in range(_EACH):
            trial = trainer.next()
            trainer.report(trial, 50.0, 0.5, 1)
            trainer.report(trial, 100.0 + number % 7 + trial.batch_size, 0.95, 2, 2.0)
    assert server.stop() == 0
    with closing(sqlite3.connect(server.database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        for table in ("jobs", "arms", "trials"):
            _copy_jobs(connection, table)
        _lengthen(connection, TRIALS - JOBS * _EACH)
    server.start()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _copy_jobs(connection: sqlite3.Connection, table: str) -> None:
    """Repeats the rows of the first job for all others."""
    changed = {"job_key": "n.value", "job_id": "printf('big-%04d', n.value - 1)"}
    columns = _columns(connection, table)
    values = ", ".join(changed.get(column, column) for column in columns)
    connection.execute(
        f"WITH RECURSIVE n(value) AS (SELECT 2 UNION ALL SELECT value + 1 FROM n WHERE value < {JOBS}) "  # noqa: S608
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, n WHERE job_key = 1"
    )


def _lengthen(connection: sqlite3.Connection, more: int) -> None:
    """Repeats the first job's trials until it has so many more."""
    changed = {
        "trial_number": f"trial_number + n.value * {_EACH}",
        "observation": f"observation + n.value * {_EACH}",
        "launch_id": "launch_id || '-' || n.value",
        "cost": "cost * (1 + (n.value % 11) * 0.01)",
    }
    columns = _columns(connection, "trials")
    values = ", ".join(changed.get(column, column) for column in columns)
    connection.execute(
        f"WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {more // _EACH}) "  # noqa: S608
        f"INSERT INTO trials ({', '.join(columns)}) SELECT {values} FROM trials, n WHERE job_key = 1"
    )
    connection.execute("UPDATE jobs SET num_trials = num_trials + ?, num_observations = num_observations + ?"
                       " WHERE job_key = 1", (more, more))  # fmt: skip
