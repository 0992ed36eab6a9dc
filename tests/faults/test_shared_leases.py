"""Leases of trials that several servers serve: no server gives up what another one renewed, whatever its clock says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.faults.cluster import Cluster, through_proxy
from tests.faults.load import insist
from tests.faults.shims import build_shim
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.stalling_proxy import StallingProxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

LEASE, HOUR = 6.0, 3600
"""Seconds. A shorter lease would end before the servers notice that none of them was there."""

Away = Callable[[Cluster, StallingProxy], AbstractContextManager[None]]


def suspended(cluster: Cluster, proxy: StallingProxy) -> AbstractContextManager[None]:
    """The first server is suspended."""
    del proxy
    return cluster.suspended(cluster.servers[0])


@contextmanager
def stalled(cluster: Cluster, proxy: StallingProxy) -> Iterator[None]:
    """The first server gets no answer from the database."""
    del cluster
    proxy.stall()
    yield
    proxy.flow()


@contextmanager
def cut_off(cluster: Cluster, proxy: StallingProxy) -> Iterator[None]:
    """The first server has no connection to the database."""
    del cluster
    proxy.refuse()
    proxy.cut()
    yield
    proxy.accept()


def renew_for(job: Trainer, trial: v1.Trial, seconds: float) -> None:
    """Renews a lease again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert not job.heartbeat(trial).stop_train
        time.sleep(0.2)


def shown(server: LiveServer, trial: v1.Trial) -> v1.Trial:
    """The trial as a server returns it."""
    return server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial


def at(server: LiveServer, job: Trainer) -> Trainer:
    """A job, used through another server."""
    return Trainer(server.trainer, **{field.name: value for field, value in job.spec.ListFields()})


@pytest.mark.parametrize("away", [suspended, stalled, cut_off])
def test_server_that_returns(tmp_path: Path, postgres: PostgresServer, away: Away) -> None:
    """A server that was away for longer than a lease gives up no trial that another one renewed meanwhile."""
    with through_proxy(tmp_path, postgres, others=1) as (proxy, cluster):
        first, second = cluster.servers
        job = Trainer(first.trainer, trial_lease_seconds=2)
        trial = job.next("explores")
        elsewhere = at(second, job)
        with away(cluster, proxy):
            renew_for(elsewhere, trial, 3)
        # From what this server remembers, the lease has expired, and the exploration could begin again.
        wait_until(lambda: concurrent(first, job))
        renew_for(elsewhere, trial, 1)
        assert shown(first, trial).status == v1.TRIAL_STATUS_RUNNING
        assert cluster.num_lost() == 0


def concurrent(server: LiveServer, job: Trainer) -> bool:
    """Whether the server can answer again: by a trial that runs beside the exploration."""
    request = v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id="beside")
    try:
        answer = server.trainer.GetNextBatchSize(request, timeout=15)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    assert (answer.trial.id.trial_number, answer.trial.pruning_gts.role) == (2, v1.PRUNING_GTS_ROLE_CONCURRENT)
    return True


@pytest.mark.parametrize("hours", [-24, 24])
def test_server_whose_clock_is_wrong(tmp_path: Path, postgres_url: str, hours: int) -> None:
    """Leases last as long as the database says: neither a renewed one nor a new one ends early or late."""
    offset = tmp_path / "offset"
    offset.write_text(str(hours * HOUR))
    cluster = Cluster(tmp_path, postgres_url, postgres_url)
    wrong, right = cluster.servers
    wrong.environment = {"LD_PRELOAD": str(build_shim("clock", tmp_path)), "CLOCK_OFFSET": str(offset)}
    with cluster:
        job = Trainer(right.trainer, trial_lease_seconds=2)
        trial = job.next()
        left = at(wrong, job).next()
        expires = left.lease_expire_time.ToDatetime(timezone.utc)
        assert abs((expires - datetime.now(timezone.utc)).total_seconds()) < 60
        renew_for(job, trial, 3)
        wait_until(lambda: shown(wrong, left).end_reason == v1.END_REASON_LOST)
        assert shown(wrong, trial).status == v1.TRIAL_STATUS_RUNNING
        assert cluster.num_lost() == 1


def test_all_servers_were_away(cluster: Cluster, postgres: PostgresServer) -> None:
    """After a time without any server every running trial has a whole lease, and after that it is lost."""
    job = Trainer(cluster.servers[0].trainer, trial_lease_seconds=LEASE)
    trials = [job.next() for _ in range(3)]
    for server in cluster.servers:
        server.kill()
    database = cluster.servers[0].url.rpartition("/")[2]
    for table, column in (("leases", "expires"), ("servers", "seen")):
        postgres.execute(f"UPDATE {table} SET {column} = {column} - {HOUR * 10**6}", database)  # noqa: S608
    began = datetime.now(timezone.utc)
    for server in cluster.servers:
        server.start()
    for trial in trials:
        found = shown(cluster.servers[1], trial)
        assert found.status == v1.TRIAL_STATUS_RUNNING
        assert (found.lease_expire_time.ToDatetime(timezone.utc) - began).total_seconds() > LEASE - 0.5
    wait_until(lambda: all(shown(cluster.servers[1], t).end_reason == v1.END_REASON_LOST for t in trials), LEASE + 10)


def test_the_database_was_away(cluster: Cluster, postgres: PostgresServer) -> None:
    """So it has after a time without the database."""
    job = Trainer(cluster.servers[0].trainer, trial_lease_seconds=LEASE)
    trials = [job.next() for _ in range(3)]
    postgres.stop()
    time.sleep(LEASE + 1)
    postgres.start()
    began = datetime.now(timezone.utc)
    for trial in trials:
        found = insist(lambda: shown(cluster.servers[1], trial))  # noqa: B023
        assert found.status == v1.TRIAL_STATUS_RUNNING
        assert (found.lease_expire_time.ToDatetime(timezone.utc) - began).total_seconds() > LEASE / 2
    assert cluster.num_lost() == 0
