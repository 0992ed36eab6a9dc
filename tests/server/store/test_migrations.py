"""Migrations: a file of an earlier schema keeps its data, and the versions have no gaps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.domain import Moments, PowerLimitState, PowerSample
from wattwise_server.store.migrate import migrate, migrations
from wattwise_server.store.open import open_store

_JOB = """
    INSERT INTO jobs (job_id, job_id_prefix, default_batch_size, eta_knob, beta_knob, target_metric,
        higher_is_better_metric, max_epochs, num_pruning_rounds, window_size, mab_prior_mean, mab_prior_precision,
        mab_num_explorations, policy, learn_reward_precision, reward_precision, max_power_watts, number_of_gpus,
        gpu_model, trial_lease_seconds, create_time, stage, pruning_round, round_default, num_trials, num_observations)
    VALUES ('j', 'j', 16, 0.5, 2, 0.9, 1, 10, 1, 0, 0, 0, 2, 'GTS', 1, 0, 100, 1, 'GPU', 300, 0, 'MAB', 0, 16, 0, 0)
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
            assert (arm.failed_trials, arm.num_succeeded) == ((2,), 3)
            assert arm.reached == arm.counted == Moments(4, 0.5, 6.5)
        assert tx.job.spec.batch_sizes == (8, 16, 32)


async def test_failures_in_a_row_become_numbers_of_trials(tmp_path: Path) -> None:
    """Version 8 keeps how many trials failed in a row and counts what converged and what failed."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 8})
        connection.execute(_JOB)
        connection.execute("INSERT INTO arms VALUES (1, 16, 0, NULL, 3, 5, 1, 1, 9, 0, 0, 0, 0, 1, 9, 0)")
        connection.execute("INSERT INTO arms VALUES (1, 32, 1, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)")
        for number, status, reason, cost, converged in (
            (1, "SUCCEEDED", "TARGET_REACHED", 9.0, 1),
            (2, "FAILED", "PREEMPTED", 8.0, 0),
            (3, "FAILED", "ERROR", 7.0, 0),
            (4, "FAILED", "LOST", None, 0),
            (5, "FAILED", "OUT_OF_MEMORY", 6.0, 0),
            (6, "DISPATCHED", None, None, 0),
        ):
            connection.execute(
                "INSERT INTO trials (job_key, trial_number, batch_size, type, pruning_round, status, end_reason, "
                "start_time, cost, converged, target_reached) VALUES (1, ?, 16, 'MAB', 0, ?, ?, 0, ?, ?, 0)",
                (number, status, reason, cost, converged),
            )
        connection.execute("UPDATE jobs SET num_trials = 6")
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", steady_clock()) as store, store.transaction("j") as tx:
        assert tx.job is not None
        arm, pruned = tx.job.search.arms
        assert (arm.failed_trials, arm.num_failed, arm.failed_cost, arm.out_of_memory) == ((5, 5, 5), 3, 13.0, 1)
        assert (arm.num_succeeded, arm.num_converged, arm.running, arm.excluded) == (1, 1, 1, False)
        assert (pruned.failed_trials, pruned.pruned, pruned.running) == ((), True, 0)
        assert (tx.job.num_trials, tx.job.search.bound_stops, tx.job.spec.prior_job_ids) == (6, 0, ())


@pytest.mark.parametrize("names", [("0001_a.sql", "0002_b.sql", "0002_c.sql"), ("0001_a.sql", "0003_b.sql")])
def test_a_version_that_is_used_twice_or_missing_is_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Two migrations with one number, or a number without a migration, are found before any file is touched."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;", encoding="utf-8")
    with pytest.raises(RuntimeError, match=names[-1]):
        migrations(tmp_path)
