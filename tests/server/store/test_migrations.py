"""Migrations: a file of an earlier schema keeps its data, and the versions have no gaps."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.domain import EndReason, Moments, Observation, PowerLimitState, PowerSample, PruningGtsRole
from wattwise_server.errors import StartError
from wattwise_server.policy.base import Choice, Succeeded
from wattwise_server.policy.cost import cost_bound
from wattwise_server.policy.failures import Status, state
from wattwise_server.policy.history import observe
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.open import open_store
from wattwise_server.store.sqlite.migrate import migrate, migrations

_JOB = """
    INSERT INTO jobs (job_id, job_id_prefix, default_batch_size, eta_knob, beta_knob, target_metric,
        higher_is_better, max_epochs, num_pruning_rounds, window_size, prior_mean, prior_precision, num_explorations,
        policy, learn_reward_precision, reward_precision, max_power_watts_per_gpu, gpu_count, gpu_model,
        trial_lease_seconds, create_time, set_fields, stage, pruning_round, round_default, num_trials, num_observations)
    VALUES ('j', 'j', 16, 0.5, 2, 0.9, 1, 10, 1, 0, 0, 0, 2,
        'gts', 1, 0, 100, 1, 'GPU', 300, 0, '[]', 'BANDIT', 0, 16, 0, 0)
"""
_ARM = """
    INSERT INTO arms VALUES (1, ?, 0, NULL, 1, 2, 3, 4, 0.5, 6.5, 0, 0, 0, 4, 0.5, 6.5, ?, ?, ?, ?, ?)
"""


async def test_power_limits_leave_the_arms_with_their_data(tmp_path: Path) -> None:
    """Version 7 moves known limits and the profiling trial from the arms to the job, and keeps the arms' sums."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 7})
        connection.execute(_JOB)
        connection.execute(_ARM, (8, 225.5, 1 / 3, 0.1 + 0.2, 40, None))
        connection.execute(_ARM, (16, None, None, None, None, 7))
        connection.execute(_ARM, (32, None, None, None, None, None))
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        assert tx.job.power_limits == (
            PowerLimitState(8, PowerSample(225.5, 1 / 3, 0.1 + 0.2, 40)),
            PowerLimitState(16, profiling=7),
        )
        for arm in tx.job.search.arms:
            assert (arm.failed_trials, arm.num_decided) == ((2,), 3)
            assert arm.reached == arm.counted == Moments(4, 0.5, 6.5)
        assert tx.job.spec.batch_sizes == (8, 16, 32)


async def test_what_an_older_version_did_not_know_is_unknown(tmp_path: Path) -> None:
    """Version 10 adds warnings, computed usage and the highest limit of a profile, which earlier rows do not have."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 10})
        connection.execute(_JOB)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(arms)")]
        values = dict.fromkeys(columns, "0") | {"job_key": "1", "batch_size": "16", "failed_trials": "'[]'"}
        connection.execute(f"INSERT INTO arms ({', '.join(columns)}) VALUES ({', '.join(values[n] for n in columns)})")  # noqa: S608
        connection.execute("INSERT INTO power_limits VALUES (1, 16, 225.5, 1.5, 2.5, 40, NULL)")
        connection.execute(
            "INSERT INTO trials (job_key, trial_number, batch_size, origin, status, start_time, "
            "converged, target_reached) VALUES (1, 1, 16, 'SEARCH', 'RUNNING', 0, 0, 0)"
        )
        connection.execute("INSERT INTO measurements VALUES (1, 1, 1, 1.5, 2.5, 0.5, 0)")
        connection.execute("UPDATE jobs SET num_trials = 1")
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        assert tx.job.power_limits == (PowerLimitState(16, PowerSample(225.5, 1.5, 2.5, 40)),)
        assert tx.job.warnings == ()
        trial = await tx.trial(1)
        assert trial is not None
        assert trial.last is not None
        assert (trial.warnings, trial.last.limit_watts_per_gpu, trial.last.computed) == ((), None, None)


async def test_failures_in_a_row_become_numbers_of_trials(tmp_path: Path) -> None:
    """Version 8 keeps how many trials failed in a row and counts what converged and what failed."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 8})
        connection.execute(_JOB)
        connection.execute("INSERT INTO arms VALUES (1, 16, 0, NULL, 3, 5, 1, 1, 9, 0, 0, 0, 0, 1, 9, 0)")
        connection.execute("INSERT INTO arms VALUES (1, 32, 1, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)")
        for number, status, reason, cost, converged in (
            (1, "DECIDED", "TARGET_REACHED", 9.0, 1),
            (2, "INTERRUPTED", "PREEMPTED", 8.0, 0),
            (3, "FAILED", "ERROR", 7.0, 0),
            (4, "INTERRUPTED", "LOST", None, 0),
            (5, "FAILED", "OUT_OF_MEMORY", 6.0, 0),
            (6, "RUNNING", None, None, 0),
        ):
            connection.execute(
                "INSERT INTO trials (job_key, trial_number, batch_size, origin, status, end_reason, "
                "start_time, cost, converged, target_reached) VALUES (1, ?, 16, 'SEARCH', ?, ?, 0, ?, ?, 0)",
                (number, status, reason, cost, converged),
            )
        connection.execute("UPDATE jobs SET num_trials = 6")
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        arm, pruned = tx.job.search.arms
        assert (arm.failed_trials, arm.num_failed, arm.failed_cost, arm.out_of_memory) == ((5, 5, 5), 3, 13.0, 1)
        assert (arm.num_decided, arm.num_converged, arm.running, arm.excluded) == (1, 1, 1, False)
        assert arm.num_out_of_memory == 1
        assert (pruned.failed_trials, pruned.pruned, pruned.running) == ((), True, 0)
        assert (tx.job.num_trials, tx.job.search.bound_stops, tx.job.spec.prior_job_ids) == (6, 0, ())


_TRIAL = """
    INSERT INTO trials (job_key, trial_number, batch_size, origin, policy_role, pruning_round, status, end_reason,
        start_time, cost, converged, target_reached, observation)
    VALUES (1, ?, ?, 'SEARCH', 'EXPLORATION', 0, ?, ?, 0, ?, ?, 0, ?)
"""


async def test_running_search_continues_after_version_8(tmp_path: Path) -> None:
    """The walk goes on in the middle of its round; the window, and what does not fit into memory, are as before."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 8})
        connection.execute(_JOB)
        connection.execute(
            "UPDATE jobs SET policy = 'pruning_gts', stage = 'PRUNING', num_pruning_rounds = 2, window_size = 2, "
            "exploring = 5, min_cost = 90, min_cost_batch_size = 16, missed_floor = 180, num_trials = 5, "
            "num_observations = 3"
        )
        add_arm = "INSERT INTO arms VALUES (1, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, ?, ?, 0)"
        for row in (
            (8, 0, None, 0, 0, 0, 0, 0),
            (16, 0, 120.0, 0, 0, 3, 2, 150.0),
            (32, 1, None, 1, 4, 0, 0, 0),
            (64, 1, None, 0, 0, 0, 0, 0),
        ):
            connection.execute(add_arm, row)
        for values in (
            (1, 16, "DECIDED", "TARGET_REACHED", 90.0, 1, 1),
            (2, 16, "DECIDED", "TARGET_REACHED", 120.0, 1, 2),
            (3, 16, "DECIDED", "MAX_EPOCHS", 70.0, 0, 3),
            (4, 32, "FAILED", "OUT_OF_MEMORY", None, 0, None),
            (5, 8, "RUNNING", None, None, 0, None),
        ):
            connection.execute(_TRIAL, values)
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        spec, search, policy = tx.job.spec, tx.job.search, POLICIES["pruning_gts"]
        assert [arm.batch_size for arm in search.available] == [8, 16]
        assert [state(search, arm, "j").status for arm in search.arms[2:]] == [Status.OUT_OF_MEMORY, Status.PRUNED]
        assert (search.min_cost, search.min_cost_batch_size) == (120.0, 16)
        known = search.arm(16)
        assert known.window == (Observation(120.0, converged=True), Observation(70.0, converged=False))
        assert (known.reached, known.missed, known.cheapest) == (Moments(1, 120.0), Moments(1, 70.0), 120.0)
        choice = policy.next(spec, search, 6, np.random.default_rng(1))
        assert isinstance(choice, Choice)
        assert (choice.role, choice.batch_size) == (PruningGtsRole.CONCURRENT, 16)
        (exploring,) = tx.running()
        ended = exploring._replace(cost=110.0, converged=True, end_reason=EndReason.TARGET_REACHED)
        search = observe(policy, spec, search, Succeeded(ended))
        assert (search.pruning_round, search.round_default, search.exploring) == (1, 8, None)
        assert (search.min_cost, search.min_cost_batch_size, search.missed_floor) == (110.0, 8, 220.0)
        assert search.arm(16).counted.mean == (120.0 + 220.0) / 2


async def test_trial_that_cost_nothing_is_not_the_cheapest_after_version_8(tmp_path: Path) -> None:
    """The lowest cost of an earlier version may be 0, or that of a pruned batch size: it is found again."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 8})
        connection.execute(_JOB)
        connection.execute("UPDATE jobs SET min_cost = 0, min_cost_batch_size = 8, missed_floor = 0, num_trials = 5")
        for size, pruned, count, mean in ((8, 0, 1, 0), (16, 0, 2, 60), (32, 1, 1, 40)):
            connection.execute(
                "INSERT INTO arms VALUES (1, ?, ?, NULL, 0, 0, ?, ?, ?, 0, 0, 0, 0, ?, ?, 0)",
                (size, pruned, count, count, mean, count, mean),
            )
        for number, (size, cost, converged) in enumerate(
            ((8, 0.0, 1), (16, 50.0, 1), (16, 70.0, 1), (32, 40.0, 1), (16, 20.0, 0)), 1
        ):
            reason = "TARGET_REACHED" if converged else "MAX_EPOCHS"
            connection.execute(_TRIAL, (number, size, "DECIDED", reason, cost, converged, number))
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        search = tx.job.search
        assert (search.min_cost, search.min_cost_batch_size) == (50.0, 16)
        assert [arm.cheapest for arm in search.arms] == [None, 50.0, 40.0]
        assert search.arm(16).missed == Moments(1, 20.0)
        assert cost_bound(tx.job.spec, search, 8) == 100.0


async def test_events_of_earlier_versions_are_numbered_by_their_times(tmp_path: Path) -> None:
    """Dispatches and ends of each job are numbered in the order of their times; those of one moment, by trial."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 9})
        connection.execute(_JOB)
        connection.execute("UPDATE jobs SET num_trials = 3")
        for number, start, end in ((1, 10, 40), (2, 20, 20), (3, 40, None)):
            status = "RUNNING" if end is None else "FAILED"
            connection.execute(
                "INSERT INTO trials (job_key, trial_number, batch_size, origin, status, end_reason, "
                "start_time, end_time, converged, target_reached) VALUES (1, ?, 16, 'SEARCH', ?, 'ERROR', ?, ?, 0, 0)",
                (number, status, start, end),
            )
        connection.execute(
            "INSERT INTO arms VALUES (1, 16, 0, 0, NULL, 0, 0, 0, 0, 0, '[]', 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0)"
        )
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        assert tx.job.num_events == 5
        found = [(event.kind.value, event.trial.number) for event in await tx.events() if event.trial]
    assert found == [("DISPATCHED", 1), ("DISPATCHED", 2), ("FAILED", 2), ("FAILED", 1), ("DISPATCHED", 3)]


@pytest.mark.parametrize("names", [("0001_a.sql", "0002_b.sql", "0002_c.sql"), ("0001_a.sql", "0003_b.sql")])
def test_a_version_that_is_used_twice_or_missing_is_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Two migrations with one number, or a number without a migration, are found before any file is touched."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;", encoding="utf-8")
    with pytest.raises(RuntimeError, match=re.escape(", ".join(names))):
        migrations(tmp_path)


@pytest.mark.parametrize("trace", ["CREATE TABLE other (x)", "PRAGMA user_version = 1"])
async def test_database_of_another_program_is_not_touched(tmp_path: Path, trace: str) -> None:
    """A file with tables or a version, but not of this program, is refused by name; not one byte of it changes."""
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(trace)
    before = file.read_bytes()
    with pytest.raises(StartError, match=str(file)):
        await open_store(f"sqlite:///{file}", steady_clock()).__aenter__()
    assert file.read_bytes() == before


async def test_schema_is_written_once(tmp_path: Path) -> None:
    """A database of the newest version is opened without a change of its schema or its marks."""
    url = f"sqlite:///{tmp_path / 'w.db'}"
    async with open_store(url, steady_clock()):
        pass
    before = (tmp_path / "w.db").read_bytes()
    async with open_store(url, steady_clock()):
        pass
    assert (tmp_path / "w.db").read_bytes() == before


def test_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The error is that of the statement that failed; the steps before it are undone."""
    with closing(sqlite3.connect(tmp_path / "w.db")) as connection:
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            migrate(connection, "w.db", {1: "CREATE TABLE one (x);", 2: "CREATE TABLE one (x);"})
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
