"""Full disks, read-only files, damaged files: the errors are clear, and nothing acknowledged is lost."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.faults.disks import fill, read_only, small_disk
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.commands.test_backup import wattwise
from tests.server.commands.test_serve import refuse

pytestmark = pytest.mark.thorough


@pytest.fixture
def on_small_disk(tmp_path: Path) -> Iterator[LiveServer]:
    """A server whose database is on a disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, "3m"):
        live = LiveServer(folder)
        live.log = tmp_path / "server.log"
        try:
            live.start()
            yield live
        finally:
            live.close()


def reports_until_refused(job: Trainer, trial: v1.Trial, error: str) -> int:
    """Reports epochs until the disk is full, then once more; returns how many were acknowledged."""
    acknowledged = 0
    with refused() as refusal:
        for acknowledged in range(10**5):
            job.report(trial, acknowledged + 1, metric=0.1, epoch=acknowledged + 1)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "ERROR_REASON_STORAGE_UNAVAILABLE")
    assert refusal.metadata["retryable"] == "true"
    assert error in refusal.message
    with refused() as refusal:
        job.report(trial, acknowledged + 1, metric=0.1, epoch=acknowledged + 1)
    return acknowledged


def check_all_is_there(server: LiveServer, job: Trainer, trial: v1.Trial, acknowledged: int) -> None:
    """The acknowledged epochs are stored, and the next one is accepted."""
    kept = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements
    assert [m.epoch for m in kept] == list(range(1, acknowledged + 1))
    assert not job.report(trial, acknowledged + 1, metric=0.1, epoch=acknowledged + 1).stop_train
    assert job.next().id.trial_number == 2


def test_full_disk(on_small_disk: LiveServer) -> None:
    """On a full disk calls that write are refused with what to do, others are answered; free space fixes it."""
    server = on_small_disk
    job = Trainer(server.trainer, max_epochs=10**6)
    trial = job.next()
    filler = fill(server.database.parent)
    acknowledged = reports_until_refused(job, trial, "free some space on its disk")
    shown = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id, page_size=10_000))
    assert len(shown.measurements) == acknowledged
    filler.unlink()
    check_all_is_there(server, job, trial, acknowledged)
    assert "Traceback" not in server.log.read_text()


def test_killed_on_a_full_disk(on_small_disk: LiveServer, tmp_path: Path) -> None:
    """A server killed on a full disk says at its next start why it cannot run; with free space it has everything."""
    server = on_small_disk
    job = Trainer(server.trainer, max_epochs=10**6)
    trial = job.next()
    filler = fill(server.database.parent)
    acknowledged = reports_until_refused(job, trial, "disk is full")
    server.kill()
    # The index of the -wal is created again at the start.
    server.database.with_name("wattwise.db-shm").unlink()
    fill(server.database.parent)
    error = refuse("--address", "127.0.0.1:0", "--database", f"sqlite:///{server.database}", folder=tmp_path)
    assert "cannot use" in error
    assert "disk" in error
    filler.unlink()
    server.start()
    check_all_is_there(server, job, trial, acknowledged)


def test_file_that_may_not_grow(server: LiveServer) -> None:
    """If a limit on file sizes is reached, calls are refused until it is raised; nothing is lost."""
    job = Trainer(server.trainer, max_epochs=10**6)
    trial = job.next()
    unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    size = server.database.with_name("wattwise.db-wal").stat().st_size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 20_000, unlimited[1]))
    acknowledged = reports_until_refused(job, trial, "disk")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, unlimited)
    check_all_is_there(server, job, trial, acknowledged)


def test_read_only_file_and_folder(server: LiveServer, tmp_path: Path) -> None:
    """The server refuses to start with a read-only file or folder and says why; nothing is lost."""
    job = Trainer(server.trainer)
    job.run(10.0)
    server.stop()
    for path, expected in (
        (server.database, "check that this user may write"),
        (server.database.parent, "check the permissions of its folder"),
    ):
        with read_only(path):
            error = refuse("--address", "127.0.0.1:0", "--database", f"sqlite:///{server.database}", folder=tmp_path)
        assert expected in error
    server.start()
    assert job.next().id.trial_number == 2


def overwrite(path: Path, page: int, page_size: int) -> None:
    """Overwrites a page of a database with garbage."""
    with path.open("r+b") as file:
        file.seek((page - 1) * page_size)
        file.write(b"\xa5" * page_size)


def test_damaged_file(server: LiveServer, tmp_path: Path) -> None:
    """A damaged header or jobs table prevents the start, other damage fails the calls it hits; a backup fixes it."""
    job = Trainer(server.trainer)
    trial = job.run(10.0)
    backup = tmp_path / "backup.db"
    wattwise(server, "backup", backup)
    server.stop()
    with closing(sqlite3.connect(server.database)) as connection:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))
    for page in (1, roots["jobs"]):
        overwrite(server.database, page, page_size)
        error = refuse("--address", "127.0.0.1:0", "--database", f"sqlite:///{server.database}", folder=tmp_path)
        assert "damaged" in error
        assert "restore a backup" in error
        wattwise(server, "restore", backup, "--force")
    overwrite(server.database, roots["measurements"], page_size)
    server.start()
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.num_trials == 1
    for attempt in (
        lambda: server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)),
        lambda: job.report(job.next(), 20.0, metric=0.1),
    ):
        with refused() as refusal:
            attempt()
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "ERROR_REASON_STORAGE_UNAVAILABLE")
        assert "restore a backup" in refusal.message
    server.kill()
    wattwise(server, "restore", backup, "--force")
    server.start()
    assert len(server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements) == 1
    assert job.next().id.trial_number == 2
