"""A database's file that is deleted, moved or replaced under a running server, and a second server on the same file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wattwise import v1

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.commands.test_serve import refuse
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough

STATES = health_pb2.HealthCheckResponse


def health(server: LiveServer) -> int:
    """What the health service says of the whole server."""
    stub: Any = health_pb2_grpc.HealthStub(server.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest()).status)


def is_refused(job: Trainer, trial: v1.Trial, epoch: int) -> None:
    """A report is refused, to be sent again, with what to do."""
    with refused() as refusal:
        job.report(trial, 10.0 * epoch, metric=0.1, epoch=epoch)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "ERROR_REASON_STORAGE_UNAVAILABLE")
    assert (refusal.metadata["retryable"], refusal.retry_seconds) == ("true", 1.0)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_nothing_is_acknowledged_while_the_file_is_away(server: LiveServer, suffix: str, how: str) -> None:
    """Calls are refused and health says so until the file is back; everything acknowledged is there after a kill."""
    job = Trainer(server.trainer)
    trial = job.next()
    job.report(trial, 10.0, metric=0.1, epoch=1)
    file = server.database.with_name(server.database.name + suffix)
    kept = file.rename(file.with_name("kept"))
    if how == "replaced":
        file.write_bytes(kept.read_bytes())
    is_refused(job, trial, 2)
    with refused():
        job.heartbeat(trial)
    with refused():
        server.admin.ListJobs(v1.ListJobsRequest())
    wait_until(lambda: health(server) == STATES.NOT_SERVING)
    kept.replace(file)
    wait_until(lambda: health(server) == STATES.SERVING)
    job.report(trial, 20.0, metric=0.1, epoch=2)
    server.kill()
    server.start()
    assert server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial.newest.epoch == 2
    assert server.log.read_text().count(" not serving ") == 1


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_log_of_a_database_that_is_away_is_kept(server: LiveServer, end: str) -> None:
    """A server does not begin anew beside the log of a database that was moved; once it is back, nothing is lost."""
    job = Trainer(server.trainer)
    trial = job.next()
    job.report(trial, 10.0, metric=0.1, epoch=1)
    kept = server.database.rename(server.database.with_name("kept"))
    getattr(server, end)()
    with LiveServer(server.database.parent) as refused_server, pytest.raises(AssertionError, match="wal, with"):
        refused_server.start()
    assert not server.database.exists()
    kept.rename(server.database)
    server.start()
    assert server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial.newest.epoch == 1


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_deleted_file_is_noticed(server: LiveServer, suffix: str) -> None:
    """A deleted file is noticed without a call; the log says what to do."""
    job = Trainer(server.trainer)
    trial = job.next()
    server.database.with_name(server.database.name + suffix).unlink()
    wait_until(lambda: health(server) == STATES.NOT_SERVING)
    is_refused(job, trial, 1)
    assert "restore a backup" in server.log.read_text()


@pytest.mark.parametrize("name", ["same", "linked"])
def test_second_server_is_refused_without_the_lock_file(server: LiveServer, tmp_path: Path, name: str) -> None:
    """The database itself is locked: the lock beside it may be deleted, and the file have another name."""
    Trainer(server.trainer).next()
    file = server.database
    if name == "same":
        file.with_name(f"{file.name}.lock").unlink()
    else:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        file = folder / "wattwise.db"
        os.link(server.database, file)
    assert "another server uses" in refuse(
        "--address", "127.0.0.1:0", "--database", f"sqlite:///{file}", folder=tmp_path
    )
    assert Trainer(server.trainer).next().id.trial_number == 1


def test_files_are_private(server: LiveServer) -> None:
    """The database and what lies beside it can be read by their owner only."""
    Trainer(server.trainer).next()
    files = list(server.database.parent.glob(f"{server.database.name}*"))
    assert {file.name.removeprefix(server.database.name) for file in files} == {"", "-wal", "-shm", ".lock"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_folder_that_everyone_may_change_is_warned_of(tmp_path: Path) -> None:
    """Who may write the folder can delete the database, whatever its own mode."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with LiveServer(folder) as server:
        server.start()
        assert "chmod o-w" in server.log.read_text()
