"""Edge cases of the contract."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wattwise import v1

from tests.jobs import Trainer, job_spec
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.refusals import refused
from tests.server.commands.test_serve import refuse
from tests.server.usecases.test_leases import get, lose

Stub = v1.BatchSizeOptimizerStub


def test_reward_precision_is_fixed_only_under_gts(grpc_stub: Stub, grpc_channel: grpc.Channel) -> None:
    """Under the default policy the reward precision is learned, whatever the two fields of gts are."""
    job = Trainer(grpc_stub, num_pruning_rounds=0, batch_sizes=[16], learn_reward_precision=False)
    for cost in (10.0, 20.0, 30.0):
        job.run(cost)
    (arm,) = (
        PeopleStub(grpc_channel).GetJob(v1.GetJobRequest(job_id=job.job_id)).details.policy_details.pruning_gts.arms
    )
    assert arm.reward_precision == pytest.approx(1 / (200 / 3))


def test_huge_numbers_are_refused_or_counted(grpc_stub: Stub, grpc_channel: grpc.Channel) -> None:
    """Costs and betas whose squares or products would be infinite are refused; the largest allowed are counted."""
    with refused() as refusal:
        Trainer(grpc_stub, beta_knob=1.7e308)
    assert list(refusal.faults) == ["job.early_stopping.cost_bound.beta_knob"]
    job = Trainer(
        grpc_stub, num_pruning_rounds=0, batch_sizes=[16], default_batch_size=16, beta_knob=1e6, window_size=3
    )
    with refused() as refusal:
        job.report(job.next(), 1.1e100)
    assert list(refusal.faults) == ["result.measurement.energy_joules"]
    for cost in (1e100, 1e99, 5.0):
        job.run(cost)
        job.run(1.0, converges=False)
    admin = PeopleStub(grpc_channel)
    known = admin.GetJob(v1.GetJobRequest(job_id=job.job_id))
    assert (known.job.num_trials, [arm.batch_size for arm in known.details.policy_details.pruning_gts.arms]) == (
        7,
        [16],
    )
    (listed,) = admin.ListJobs(v1.ListJobsRequest(job_id_prefix=job.job_id)).jobs
    assert (listed.job.num_trials, listed.job.min_cost) == (7, known.job.min_cost)


@pytest.mark.parametrize("sign", ["x", "\u00e9", "\U0001f680"])
def test_statuses_of_long_names_fit(grpc_stub: Stub, grpc_channel: grpc.Channel, sign: str) -> None:
    """The status of a request with long names, in any script, is small enough to be received."""
    admin = PeopleStub(grpc_channel)
    for length in (150, 2_000, 50_000):
        with refused() as refusal:
            admin.GetJob(v1.GetJobRequest(job_id=sign * length))
        assert refusal.code is grpc.StatusCode.NOT_FOUND
        with refused() as refusal:
            grpc_stub.RegisterJob(
                v1.RegisterJobRequest(job=job_spec(job_id=sign * length, job_id_prefix="a" + sign * length))
            )
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    spec = job_spec(job_id="test" + sign * 190)
    spec.gpus[0].gpu_model = sign * 200
    grpc_stub.RegisterJob(v1.RegisterJobRequest(job=spec))
    spec.gpus[0].gpu_model = "b" + sign * 199
    with refused() as refusal:
        grpc_stub.RegisterJob(v1.RegisterJobRequest(job=spec))
    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS


def test_too_many_batch_sizes_are_refused(grpc_stub: Stub) -> None:
    """More than 64 batch sizes are one violation."""
    with refused() as refusal:
        Trainer(grpc_stub, batch_sizes=list(range(1, 66)))
    assert "at most 64" in refusal.faults["job.batch_sizes"]


def test_heartbeats_during_a_deletion_get_a_stop(server: LiveServer) -> None:
    """A running trial never gets NOT_FOUND, at whatever moment of the deletion it calls."""
    for _ in range(20):
        job = Trainer(server.trainer)
        trials = [job.next() for _ in range(4)]

        def beat(trial: v1.Trial, job: Trainer = job) -> bool:
            return any(job.heartbeat(trial).stop_train for _ in range(200))

        with ThreadPoolExecutor(4) as pool:
            stopped = [pool.submit(beat, trial) for trial in trials]
            server.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
            assert all(each.result() for each in stopped)


@pytest.mark.thorough
def test_lists_during_deletions_show_whole_jobs(server: LiveServer) -> None:
    """A list has each job complete or not at all, while jobs are registered and deleted."""
    with ThreadPoolExecutor(1) as pool:

        def churn() -> None:
            for _ in range(150):
                job = Trainer(server.trainer)
                server.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))

        churning = pool.submit(churn)
        while not churning.done():
            for job in server.admin.ListJobs(v1.ListJobsRequest()).jobs:
                assert list(job.job.spec.batch_sizes) == [8, 16, 32, 64]
        churning.result()


def test_revived_trial_shows_its_newest_cost(server: LiveServer) -> None:
    """After a loss, a revival and another report, every view has the newest cost, also after a restart."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    trial = job.next()
    job.report(trial, 10.0, metric=0.1, epoch=1)
    lose(server, trial)
    job.report(trial, 20.0, metric=0.1, epoch=2)
    for _ in range(2):
        assert get(server, trial).cost == 20.0
        assert server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials[0].cost == 20.0
        assert job.heartbeat(trial).cost == 20.0
        server.kill()
        server.start()
        job.heartbeat(trial)
    assert job.end(trial, v1.END_REASON_ERROR).cost == 20.0


def test_revived_trial_above_the_current_bound_is_stopped(server: LiveServer) -> None:
    """A lost trial above the current bound is stopped by its first heartbeat."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    job.run(100.0)
    slow = job.next()
    job.report(slow, 50.0, metric=0.1)
    lose(server, slow)
    job.next()
    assert job.report(job.next(), 20.0).converged
    decision = job.heartbeat(slow)
    assert (decision.stop_train, decision.cost_bound) == (True, 40.0)


def test_heartbeat_returns_the_current_bound(grpc_stub: Stub) -> None:
    """A heartbeat returns the bound that another trial has set, before its own first report and after it."""
    job = Trainer(grpc_stub)
    job.run(100.0)
    waiting, fast = job.next(), job.next()
    assert job.heartbeat(waiting).cost_bound == 200.0
    job.report(fast, 20.0)
    assert job.heartbeat(waiting).cost_bound == 40.0
    job.report(waiting, 1.0, metric=0.1)
    assert job.heartbeat(waiting).cost_bound == 40.0


def test_best_known_batch_size_has_no_bound(grpc_stub: Stub) -> None:
    """A trial of the batch size with the cheapest model converges at any cost, and its decisions say why."""
    job = Trainer(grpc_stub)
    job.run(100.0)
    job.next()
    best = job.next()
    going = job.report(best, 5000.0, metric=0.1)
    assert (going.stop_train, going.HasField("cost_bound")) == (False, False)
    assert going.message.endswith("no bound: 16 is the best known batch size")
    done = job.report(best, 6000.0, epoch=2)
    assert (done.converged, done.HasField("cost_bound")) == (True, False)
    assert done.message.endswith("no bound: 16 is the best known batch size")
    assert job.report(best, 6000.0, epoch=2) == done


def test_trial_of_a_deleted_job_is_stopped_after_registering_it_again(
    grpc_stub: Stub, grpc_channel: grpc.Channel
) -> None:
    """A trial of a deleted job whose id was registered again is stopped, not unknown."""
    job = Trainer(grpc_stub)
    trial = job.next()
    PeopleStub(grpc_channel).DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    grpc_stub.RegisterJob(v1.RegisterJobRequest(job=job.spec))
    assert job.heartbeat(trial).stop_train


def test_database_of_another_program_with_a_version_is_refused_untouched(tmp_path: Path) -> None:
    """A file of another program whose user_version is 1 is not changed by a single byte."""
    path = tmp_path / "foreign.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE customers (name)")
        connection.execute("PRAGMA user_version = 1")
    before = path.read_bytes()
    assert "is not a Wattwise database" in refuse(
        "--address", "127.0.0.1:0", "--database", f"sqlite:///{path}", folder=tmp_path
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("port", ["65536", "70000", "\u0661\u0662"])
def test_port_out_of_range_is_refused(tmp_path: Path, port: str) -> None:
    """A port out of range is an error and not another port."""
    assert "write host:port" in refuse("--address", f"127.0.0.1:{port}", folder=tmp_path)


def test_health_watch_does_not_delay_the_shutdown(server: LiveServer) -> None:
    """A watch of the health service gets NOT_SERVING, and the server exits long before its grace period ends."""
    health: Any = health_pb2_grpc.HealthStub(server.channel)
    states = health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(states).status == health_pb2.HealthCheckResponse.SERVING
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 9, "the grace is ten seconds"
    assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
