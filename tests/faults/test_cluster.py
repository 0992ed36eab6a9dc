"""Servers on one PostgreSQL, the database and the way between them fail under load; what is stored is audited."""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from wattwise import v1

from tests.faults.cluster import Cluster
from tests.faults.ledger import JobBook, TrialBook
from tests.faults.load import Load
from tests.faults.test_kills import check_requests
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.refusals import refused


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for one test, which may harm it."""
    with PostgresServer.running() as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    """Three servers on it."""
    with Cluster(tmp_path, postgres.create_database()) as servers:
        yield servers


def make_load(cluster: Cluster, workers: int = 12) -> tuple[Load, random.Random]:
    """A load, and a generator for what happens to it."""
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"KILL_SEED={seed} repeats what can be repeated of this run\n")
    return Load(cluster, seed, workers, jobs=6), random.Random(seed)


def audit(cluster: Cluster, load: Load, rng: random.Random) -> None:
    """Compares what is stored with the ledger while the callers wait."""
    load.gate.shut()
    load.gate.wait_empty()
    cluster.check(load.ledger)
    check_requests(cluster, load, rng)
    load.gate.open()


class Pupil(Trainer):
    """A job with one trial, in a load's ledger."""

    def __init__(self, load: Load, stub: v1.BatchSizeOptimizerStub, **fields: Any) -> None:
        super().__init__(stub, **fields)
        self.book = load.ledger.jobs[self.job_id] = JobBook(self.spec, mixed=True, registered=True)
        self.trial = self.next("first")
        self.book.requests["first"] = TrialBook(self.trial)

    def insist(self) -> v1.Decision:
        """Renews the lease, as soon as that is possible."""
        while True:
            try:
                return self.heartbeat(self.trial)
            except grpc.RpcError as error:  # noqa: PERF203 - it asks again
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                time.sleep(0.05)

    def check_refused(self, servers: Sequence[LiveServer]) -> None:
        """Every server refuses to read and to write, and says when to try again."""
        for server in servers:
            request_id = str(uuid.uuid4())
            # Should it arrive after all, it may be stored.
            self.book.requests[request_id] = None
            write = v1.GetNextBatchSizeRequest(job_id=self.job_id, request_id=request_id)
            calls = (
                partial(server.trainer.GetNextBatchSize, write, timeout=30),
                partial(server.admin.GetJob, v1.GetJobRequest(job_id=self.job_id), timeout=30),
                partial(server.admin.ListTrials, v1.ListTrialsRequest(job_id=self.job_id), timeout=30),
            )
            for call in calls:
                with refused() as refusal:
                    call()
                assert refusal.code is grpc.StatusCode.UNAVAILABLE
                assert refusal.reason == "ERROR_REASON_STORAGE_UNAVAILABLE"
                assert refusal.metadata["retryable"] == "true"
                assert refusal.retry_seconds


def test_a_server_is_killed(cluster: Cluster) -> None:
    """The callers of a killed server go on with the others; nothing acknowledged is lost, and nothing is done twice."""
    load, rng = make_load(cluster)
    with load.running():
        for server in cluster.servers[:2]:
            load.ledger.wait_for(100)
            server.kill()
            load.ledger.wait_for(100)
            server.start()
            audit(cluster, load, rng)
        load.ledger.wait_for(100)
    assert cluster.check_at_end(load.ledger) > 0


def test_the_database_is_killed(cluster: Cluster, postgres: PostgresServer) -> None:
    """Calls are refused while the database is away, and go on when it is back; nothing acknowledged is lost."""
    load, rng = make_load(cluster)
    pupil = Pupil(load, cluster.servers[0].trainer)
    with load.running():
        load.ledger.wait_for(100)
        postgres.kill()
        pupil.check_refused(cluster.servers)
        postgres.start()
        load.ledger.wait_for(100)
        audit(cluster, load, rng)
        load.ledger.wait_for(100)
    assert cluster.check_at_end(load.ledger) > 0


def test_a_standby_takes_over(tmp_path: Path, postgres: PostgresServer) -> None:
    """When the primary dies the servers find its synchronous standby; no report is lost, and no trial's lease ends."""
    url = postgres.create_database()
    with postgres.standby() as standby:
        postgres.make_synchronous()
        with Cluster(tmp_path, url.replace(postgres.host, f"{postgres.host},{standby.host}"), size=2) as cluster:
            load, rng = make_load(cluster)
            leased = Pupil(load, cluster.servers[0].trainer, trial_lease_seconds=6)
            with load.running():
                load.ledger.wait_for(100)
                postgres.kill()
                # Until then the standby refuses to write.
                leased.check_refused(cluster.servers)
                standby.promote()
                leased.insist()
                load.ledger.wait_for(100)
                leased.insist()
                audit(cluster, load, rng)
                load.ledger.wait_for(100)
            assert cluster.num_lost() == 0
            assert cluster.check_at_end(load.ledger) > 0
