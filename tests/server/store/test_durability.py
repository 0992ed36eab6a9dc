"""Acknowledged data survives kills and errors of the server."""

from __future__ import annotations

import itertools
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused


def choices(server: LiveServer, *, restarts: bool, **fields: Any) -> list[int]:
    """Batch sizes of thirty trials of one seed, with or without kills of the server during trials."""
    job, rng, sizes = Trainer(server.trainer, seed=11, **fields), random.Random(3), []
    for number in range(30):
        trial = job.next()
        if restarts and number % 4 == 0:
            server.kill()
            server.start()
        sizes.append(trial.batch_size)
        if rng.random() < 0.1:
            job.report(trial, 30.0, metric=0.1, epoch=10)
        else:
            job.report(trial, abs(trial.batch_size - 30) + rng.random() * 40 + 20)
    return sizes


@pytest.mark.thorough
def test_same_seed_same_choices_over_restarts(server: LiveServer) -> None:
    """A job chooses the same batch sizes whether or not its server is killed repeatedly."""
    for fields in ({"num_pruning_rounds": 1}, {"policy": "gts"}, {"policy": "gts", "window_size": 3}):
        undisturbed = choices(server, restarts=False, **fields)
        assert len(set(undisturbed)) > 1
        assert choices(server, restarts=True, **fields) == undisturbed


def test_running_trial_continues_after_a_kill(server: LiveServer) -> None:
    """After kill -9 a running trial has its last report, refuses a contradicting one, and accepts the next."""
    job = Trainer(server.trainer)
    trial = job.next("request")
    job.report(trial, 10.0, metric=0.1, epoch=3)
    server.kill()
    server.start()
    shown = server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial
    assert (shown.status, shown.newest.epoch, shown.cost) == (v1.TRIAL_STATUS_RUNNING, 3, 10.0)
    listed = server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials[0]
    assert (listed.newest.epoch, listed.cost) == (3, 10.0)
    with refused() as refusal:
        job.report(trial, 9.0, metric=0.1, epoch=4)
    assert refusal.reason == "ERROR_REASON_INVALID_RESULT"
    assert job.next("request").id.trial_number == 1
    assert job.next("other").pruning_gts.role == v1.PRUNING_GTS_ROLE_CONCURRENT
    assert job.report(trial, 20.0, epoch=4).converged


def test_acknowledged_reports_survive_a_kill_under_load(server: LiveServer) -> None:
    """Eight trainers report until kill -9, three times: every acknowledged epoch is stored, none incompletely."""
    for _ in range(3):
        job = Trainer(server.trainer, max_epochs=10**9)
        trials = [job.next() for _ in range(8)]
        acknowledged = report_until_killed(server, job, trials)
        server.start()
        assert len(acknowledged) == 8
        for trial in trials:
            kept = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements
            last = acknowledged[trial.id.trial_number]
            assert [m.epoch for m in kept] == list(range(1, len(kept) + 1))
            assert last <= len(kept) <= last + 1
            assert all(m.energy_joules == m.epoch for m in kept)


def report_until_killed(server: LiveServer, job: Trainer, trials: list[v1.Trial]) -> dict[int, int]:
    """Kills the server under reports of all trials; returns the newest acknowledged epoch of each."""
    acknowledged: dict[int, int] = {}
    enough = threading.Barrier(len(trials) + 1)

    def report(trial: v1.Trial) -> None:
        for epoch in itertools.count(1):
            try:
                job.report(trial, float(epoch), metric=0.1, epoch=epoch)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
                return
            acknowledged[trial.id.trial_number] = epoch
            if epoch == 20:
                enough.wait()

    with ThreadPoolExecutor(len(trials)) as pool:
        done = [pool.submit(report, trial) for trial in trials]
        enough.wait()
        server.kill()
        for each in done:
            each.result()
    return acknowledged


def test_failed_commit_is_refused_and_changes_nothing(server: LiveServer) -> None:
    """While the file cannot be written, calls are UNAVAILABLE and retryable; later retries succeed."""
    job = Trainer(server.trainer)
    trial = job.next()
    job.report(trial, 1.0, metric=0.1, epoch=1)
    with closing(sqlite3.connect(server.database)) as other:
        for table in ("measurements", "trials"):
            trouble = f"CREATE TRIGGER no_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END"
            other.execute(trouble)
        for attempt in (lambda: job.report(trial, 2.0, epoch=2), lambda: job.next("r"), lambda: job.next("r")):
            with refused() as refusal:
                attempt()
            assert (refusal.code, refusal.reason) == (
                grpc.StatusCode.UNAVAILABLE,
                "ERROR_REASON_STORAGE_UNAVAILABLE",
            )
            assert refusal.metadata["retryable"] == "true"
        for table in ("measurements", "trials"):
            other.execute(f"DROP TRIGGER no_{table}")
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.num_trials == 1
    assert job.next("r").id.trial_number == 2
    decision = job.report(trial, 2.0, epoch=2)
    assert (decision.converged, decision.cost) == (True, 2.0)


def test_bug_is_hidden_behind_an_incident(server: LiveServer) -> None:
    """A bug is INTERNAL with an incident id; the log has the details and the caller only the id."""
    job = Trainer(server.trainer)
    server.kill()
    with closing(sqlite3.connect(server.database, isolation_level=None)) as other:
        other.execute("UPDATE jobs SET policy = 'no such secret policy'")
    server.start()
    with refused() as refusal:
        job.next()
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "ERROR_REASON_INTERNAL")
    assert "secret" not in refusal.message
    log = server.log.read_text()
    assert f"incident={refusal.metadata['incident_id']}" in log
    assert "no such secret policy" in log


def test_cancelled_call_is_committed_all_the_same(server: LiveServer) -> None:
    """Cancelled calls leave no incomplete trial, and the trial numbers have no gap."""
    job = Trainer(server.trainer)
    pending = [
        server.trainer.GetNextBatchSize.future(v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id()))
        for _ in range(100)
    ]
    for call in pending[::2]:
        call.cancel()
    for call in pending[1::2]:
        call.result()
    dispatched = server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, page_size=1000)).trials
    assert [trial.id.trial_number for trial in dispatched] == list(range(1, len(dispatched) + 1))
    assert job.next().id.trial_number == len(dispatched) + 1
