"""PostgreSQL is stopped, suspended, full or interrupted under load, and its servers are replaced one after another."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
from wattwise import Client, v1

from tests.faults.cluster import Cluster, Pupil, audit, make_load
from tests.faults.disks import fill, small_disk
from tests.faults.soak import number
from tests.jobs import job_spec, result
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

_DISK_MEGABYTES = 180


@pytest.mark.parametrize("immediately", [False, True])
def test_the_database_is_stopped(cluster: Cluster, postgres: PostgresServer, immediately: bool) -> None:
    """Calls are refused until it runs again, whether it ends in an orderly way or at once."""
    load, rng = make_load(cluster)
    pupil = Pupil(load, cluster.servers[0].trainer)
    with load.running():
        for _ in range(number(3, short=1)):
            load.ledger.wait_for(100)
            postgres.stop(immediately=immediately)
            pupil.check_refused(cluster.servers)
            postgres.start()
            load.ledger.wait_for(100)
            audit(cluster, load, rng)
    assert cluster.check_at_end(load.ledger) > 0


def test_the_database_is_suspended(cluster: Cluster, postgres: PostgresServer) -> None:
    """Calls are refused after ten seconds without an answer; what it then does with old commits is done once."""
    load, rng = make_load(cluster)
    pupil = Pupil(load, cluster.servers[0].trainer)
    with load.running():
        load.ledger.wait_for(100)
        postgres.suspend()
        try:
            pupil.check_refused(cluster.servers[:1])
        finally:
            postgres.resume()
        load.ledger.wait_for(100)
        audit(cluster, load, rng)
        load.ledger.wait_for(100)
    assert cluster.check_at_end(load.ledger) > 0


def test_the_disk_of_the_database_is_full(tmp_path: Path) -> None:
    """Calls are refused until there is space again."""
    # Not in pytest's folder, which is closed to PostgreSQL's user.
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(folder := Path(name), f"{_DISK_MEGABYTES}m"),
        PostgresServer.running(folder) as postgres,
    ):
        url = postgres.create_database()
        with Cluster(tmp_path, url, url) as cluster:
            load, rng = make_load(cluster)
            pupil = Pupil(load, cluster.servers[0].trainer, max_epochs=10**6)
            with load.running():
                load.ledger.wait_for(100)
                filler = fill(folder)
                pupil.report_until(grpc.StatusCode.UNAVAILABLE)
                filler.unlink()
                # It ends if it cannot even write its log of commits.
                with suppress(AssertionError):
                    postgres.stop(immediately=True)
                postgres.start()
                load.ledger.wait_for(100)
                audit(cluster, load, rng)
            assert cluster.check_at_end(load.ledger) > 0


def test_commits_are_interrupted(cluster: Cluster, postgres: PostgresServer) -> None:
    """A commit whose connection ends is found to have happened, or is repeated; callers notice nothing."""
    load, rng = make_load(cluster, workers=24, impatience=1.0)
    ended, wanted = 0, number(60, short=10)
    with load.running():
        while ended < wanted:
            here = postgres.terminate_backends("state = 'active' AND query LIKE 'SELECT pg_temp.save(%'")
            ended += here
            if here and ended % 5 == 0:
                audit(cluster, load, rng)
        load.ledger.wait_for(100)
    replayed = cluster.check_at_end(load.ledger)
    sys.stdout.write(f"{ended} interrupted commits, {load.ledger.acknowledged} calls, {replayed} replayed\n")


def test_servers_are_replaced_one_after_another(cluster: Cluster) -> None:
    """No call of a client that retries fails while every server is stopped and started again."""
    address = ",".join(server.address for server in cluster.servers)
    stop = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        trainers = [pool.submit(partial(train, address, f"rollout-{place}", stop)) for place in range(8)]
        try:
            for _ in range(number(4, short=1)):
                for server in cluster.servers:
                    time.sleep(1)
                    assert server.stop() == 0
                    server.start()
        finally:
            stop.set()
        acknowledged = [trainer.result() for trainer in trainers]
    assert all(acknowledged)
    for place, reports in enumerate(acknowledged):
        trials = cluster.servers[0].admin.ListTrials(v1.ListTrialsRequest(job_id=f"rollout-{place}", page_size=1000))
        assert [trial.id.trial_number for trial in trials.trials] == list(range(1, len(trials.trials) + 1))
        for trial in trials.trials:
            shown = cluster.servers[0].admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id))
            assert [m.epoch for m in shown.measurements] == reports.get(trial.id.trial_number, [])


def train(address: str, job_id: str, stop: threading.Event) -> dict[int, list[int]]:
    """Runs trials until it is stopped; returns the epochs that were acknowledged of each."""
    reports: dict[int, list[int]] = {}
    with Client(address) as client:
        client.register_job(job_spec(job_id=job_id, job_id_prefix="rollout"))
        while not stop.is_set():
            trial = client.get_next_batch_size(job_id).trial
            epochs = reports[trial.id.trial_number] = []
            for epoch in range(1, 6):
                decision = client.report_result(result(trial, 10.0 * epoch, metric=0.1 + 0.2 * epoch, epoch=epoch))
                epochs.append(epoch)
                if decision.stop_train:
                    break
    return reports
