"""The knowledge-gradient policy over gRPC: durable, bounded, and shown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from wattwise import v1
from wattwise_server.cost import with_unit

from tests.jobs import Trainer
from tests.live_server import LiveServer

EPOCHS = {8: 17, 16: 12, 32: 12, 64: 16}
"""To the target, by batch size; 32 costs the least, 1.8 kJ."""


def kg_trainer(server: LiveServer, **fields: Any) -> Trainer:
    """A job with default 16."""
    return Trainer(server.trainer, policy="knowledge_gradient", max_epochs=40, **fields)


def launch(job: Trainer) -> tuple[int, str]:
    """One launch that runs its course; the fourth one crashes. Returns its batch size and how it was decided."""
    trial = job.next()
    if trial.id.trial_number == 4:
        job.end(trial, v1.END_REASON_ERROR)
        return trial.batch_size, "crashed"
    return trial.batch_size, train(job, trial)


def train(job: Trainer, trial: v1.Trial) -> str:
    """Runs the course of a trial; returns how it was decided."""
    size = trial.batch_size
    for epoch in range(1, 41):
        metric = 0.95 if epoch >= EPOCHS[size] else 0.1
        decision = job.report(trial, epoch * 100.0 * (1 + 16 / size), metric, epoch, time=2.0 * epoch)
        if decision.stop_train:
            return decision.message
    raise AssertionError("the last epoch ends every trial")


@pytest.mark.thorough
def test_kill_changes_no_choice(server: LiveServer) -> None:
    """A server that is killed before every launch makes the choices, and gives the bounds, of one that is not."""
    undisturbed = kg_trainer(server, window_size=8)
    choices = [launch(undisturbed) for _ in range(10)]
    assert len({size for size, _ in choices}) > 2
    disturbed = kg_trainer(server, window_size=8)
    for expected in choices:
        server.kill()
        server.start()
        disturbed.stub = server.trainer
        assert launch(disturbed) == expected


@pytest.mark.thorough
def test_state_in_the_database_is_bounded(server: LiveServer) -> None:
    """The text that a job stores does not grow with its trials."""
    job = kg_trainer(server)
    lengths = []
    for _ in range(3):
        for _ in range(20):
            launch(job)
        with closing(sqlite3.connect(server.database)) as file:
            lengths.append(file.execute("SELECT length(notes) FROM jobs").fetchone()[0])
    assert max(lengths) < min(lengths) + 100 < 2000


def test_every_batch_size_has_an_expected_cost(server: LiveServer) -> None:
    """GetJob shows the belief about every batch size, tried or not, and about one that does not fit into memory."""
    job = kg_trainer(server)
    states = server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.batch_size_states
    assert [state.HasField("expected_cost") for state in states] == [False] * 4
    launch(job)
    for _ in range(20):
        trial = job.next()
        if trial.batch_size == 64:
            job.end(trial, v1.END_REASON_OUT_OF_MEMORY)
            break
        train(job, trial)
    known = server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id))
    shown = known.details
    assert list(known.job.available_batch_sizes) == [8, 16, 32]
    assert [state.batch_size for state in shown.batch_size_states] == [8, 16, 32, 64]
    for state in shown.batch_size_states:
        assert 1000 < state.expected_cost < 20_000
        assert 0 < state.expected_cost_deviation < 20_000
        assert 0 <= state.failure_rate < 1
    assert shown.batch_size_states[3].status == v1.BATCH_SIZE_STATUS_OUT_OF_MEMORY
    assert [arm.batch_size for arm in shown.policy_details.knowledge_gradient.arms] == [8, 16, 32]


def test_decision_has_the_bound(server: LiveServer) -> None:
    """Every answer has the bound of its batch size; a trial of the best known one that has none says so."""
    job = kg_trainer(server)
    for _ in range(3):
        launch(job)
    running = {trial.batch_size: trial for trial in (job.next() for _ in range(8))}
    best = job.report(running.pop(32), 10.0, 0.1)
    # Starting again costs less by then.
    assert 1800 < best.cost_bound < 40 * 150
    assert f"bound {with_unit(best.cost_bound)}" in best.message
    bounds = {job.report(trial, 10.0, 0.1).cost_bound for trial in running.values()}
    assert len(bounds) == 1
    # Twice what 32 is expected to cost.
    assert 3000 < min(bounds) < 5000
    short = Trainer(server.trainer, policy="knowledge_gradient", batch_sizes=[16], max_epochs=12)
    train(short, short.next())
    unbounded = short.report(short.next(), 10.0, 0.1)
    assert not unbounded.HasField("cost_bound")
    assert "no bound: 16 is the best known batch size" in unbounded.message
