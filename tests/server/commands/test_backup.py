"""`wattwise backup` while a server runs, and `wattwise restore` while none does."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from wattwise import v1
from wattwise_server.errors import StartError
from wattwise_server.store.sqlite.backup import restore
from wattwise_server.store.sqlite.migrate import migrations

from tests.client.test_files import SPECIAL
from tests.forking import run
from tests.jobs import Trainer
from tests.live_server import LiveServer


def wattwise(server: LiveServer, *arguments: str | Path, fails: bool = False) -> str:
    """Runs the command on the server's database; returns its output, or its error if it `fails`."""
    environment = {**os.environ, "WATTWISE_DATABASE": f"sqlite:///{server.database}"}
    done = run(*arguments, environment=environment)
    assert done.returncode == (1 if fails else 0), done
    assert "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout


def contents(path: Path) -> list[str]:
    """All rows of a database file."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_backup_under_load_has_all_that_was_acknowledged_before(server: LiveServer, tmp_path: Path) -> None:
    """A backup made under load is one undamaged file with every report acknowledged before it, and can be restored."""
    job = Trainer(server.trainer, max_epochs=10**9)
    trials = [job.next() for _ in range(4)]
    acknowledged = dict.fromkeys(range(1, 5), 0)
    enough, stop = threading.Barrier(5), threading.Event()

    def report(trial: v1.Trial) -> None:
        while not stop.is_set():
            number = trial.id.trial_number
            job.report(trial, acknowledged[number] + 1, metric=0.1, epoch=acknowledged[number] + 1)
            acknowledged[number] += 1
            if acknowledged[number] == 50:
                enough.wait()

    copy = tmp_path / "copy.db"
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(report, trial) for trial in trials]
        enough.wait()
        before = dict(acknowledged)
        try:
            assert "intact" in wattwise(server, "backup", copy)
        finally:
            stop.set()
        for each in done:
            each.result()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "server") == ["copy.db"]
    assert any(acknowledged[number] > before[number] for number in before), "calls went on"
    server.stop()
    former = contents(server.database)
    assert "replaced-1" in wattwise(server, "restore", copy, "--force")
    assert contents(server.database.with_name("wattwise.db.replaced-1")) == former
    server.start()
    for trial in trials:
        kept = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements
        assert [m.epoch for m in kept] == list(range(1, len(kept) + 1))
        assert before[trial.id.trial_number] <= len(kept)
        assert job.report(trial, len(kept) + 1, metric=0.1, epoch=len(kept) + 1).cost == len(kept) + 1
    assert job.next().id.trial_number == 5


def test_backup_replaces_only_with_force(server: LiveServer, tmp_path: Path) -> None:
    """An existing file is refused and not changed; --force replaces it."""
    copy = tmp_path / "copy.db"
    copy.write_text("yesterday's")
    assert "replace it with --force" in wattwise(server, "backup", copy, fails=True)
    assert copy.read_text() == "yesterday's"
    wattwise(server, "backup", copy, "--force")
    assert contents(copy) == contents(server.database)
    assert "the database itself" in wattwise(server, "backup", server.database, "--force", fails=True)


def test_backup_of_nothing_and_to_nowhere(server: LiveServer, tmp_path: Path) -> None:
    """A missing database, or a missing folder for the copy, is an error, and no file is created."""
    missing = f"sqlite:///{tmp_path}/missing.db"
    error = wattwise(server, "backup", tmp_path / "x", "--database", missing, fails=True)
    assert "there is no file" in error
    assert "--database" in error
    assert "cannot write beside" in wattwise(server, "backup", tmp_path / "no" / "x", fails=True)
    assert "sqlite:///" in wattwise(server, "backup", tmp_path / "x", "--database", "mysql://x", fails=True)
    assert [path.name for path in tmp_path.iterdir()] == ["server"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
def test_backup_replaces_files_alone(server: LiveServer, tmp_path: Path, kind: str) -> None:
    """A pipe or a device is not replaced by a backup, even with --force."""
    SPECIAL[kind](tmp_path / "copy.db")
    before = (tmp_path / "copy.db").lstat().st_ino
    assert "regular file" in wattwise(server, "backup", tmp_path / "copy.db", "--force", fails=True)
    assert (tmp_path / "copy.db").lstat().st_ino == before


def test_backup_of_postgres_is_for_its_own_tools(server: LiveServer, tmp_path: Path) -> None:
    """Of a PostgreSQL, backup and restore name the tools to use, and never show the password."""
    url = "postgresql://wattwise:sesame@db/wattwise"
    for command, tool in (("backup", "pg_dump"), ("restore", "pg_restore")):
        error = wattwise(server, command, tmp_path / "x", "--database", url, fails=True)
        assert tool in error
        assert "pgBackRest" in error
        assert "sesame" not in error


def test_backup_that_finds_no_room(server: LiveServer, tmp_path: Path) -> None:
    """On a full disk the backup fails with the reason, and an existing file is not changed."""
    copy = tmp_path / "copy.db"
    copy.write_text("yesterday's")
    limited: list[str | Path] = [
        "prlimit",
        "--fsize=20000",
        Path(sys.executable).with_name("wattwise"),
        "backup",
        copy,
        "--force",
    ]
    done = subprocess.run(
        [*limited, "--database", f"sqlite:///{server.database}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "check its disk" in done.stderr
    assert copy.read_text() == "yesterday's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "server"]


def test_restore_refuses_what_would_harm(server: LiveServer, tmp_path: Path) -> None:
    """While a server runs, without --force, and from an invalid backup, restore changes nothing."""
    job = Trainer(server.trainer)
    job.next("the launch")
    copy = tmp_path / "copy.db"
    wattwise(server, "backup", copy)
    job.run(10.0)
    assert "another server uses" in wattwise(server, "restore", copy, "--force", fails=True)
    server.stop()
    before = contents(server.database)
    assert "replace it with --force" in wattwise(server, "restore", copy, fails=True)
    for name, expected in (
        ("garbage", "is not a Wattwise database"),
        ("torn", "is damaged: it has"),
        ("terabyte", "is not a Wattwise database"),
        ("longer", "is damaged: it has"),
        ("altered", "is damaged"),
        ("orphaned", "is damaged"),
        ("foreign", "is not a Wattwise database"),
        ("newer", "newer"),
    ):
        bad = tmp_path / name
        spoil(bad, copy)
        with pytest.raises(StartError, match=f"^{bad} .*{expected}"):
            restore(bad, server.database, overwrite=True)
        assert contents(server.database) == before
    assert "is damaged" in wattwise(server, "restore", bad.with_name("torn"), "--force", fails=True)
    server.start()
    assert job.next().id.trial_number == 3


def spoil(bad: Path, copy: Path) -> None:
    """Creates an invalid backup; its name says in which way."""
    if bad.name == "garbage":
        bad.write_bytes(b"x" * 10_000)
    elif bad.name == "torn":
        whole = copy.read_bytes()
        bad.write_bytes(whole[: len(whole) // 2])
    elif bad.name in ("terabyte", "longer"):
        bad.write_bytes(copy.read_bytes() if bad.name == "longer" else b"")
        os.truncate(bad, 2**40)
    elif bad.name == "altered":
        bad.write_bytes(copy.read_bytes().replace(b"the launch", b"the lunch.", 1))
    elif bad.name == "orphaned":
        bad.write_bytes(copy.read_bytes())
        with closing(sqlite3.connect(bad)) as connection, connection:
            connection.execute("DELETE FROM jobs")
    else:
        bad.write_bytes(copy.read_bytes() if bad.name == "newer" else b"")
        with closing(sqlite3.connect(bad, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE other (x)")
            if bad.name == "newer":
                connection.execute(f"PRAGMA user_version = {max(migrations()) + 1}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("lost", [False, True])
def test_restore_by_root_leaves_the_files_to_their_owner(server: LiveServer, tmp_path: Path, lost: bool) -> None:
    """The server's user can open what root restored: it has the owner of the old file, or of the folder."""
    copy, user = tmp_path / "copy.db", 12345
    wattwise(server, "backup", copy)
    server.stop()
    folder = server.database.parent
    for path in (folder, *folder.iterdir()):
        os.chown(path, user, user)
        if lost and path != folder:
            path.unlink()
    if not lost:
        os.chown(folder, 0, 0)
    wattwise(server, "restore", copy, "--force")
    for name in ("wattwise.db", "wattwise.db.lock"):
        found = (folder / name).stat()
        assert (found.st_uid, found.st_gid) == (user, user)


def test_restore_where_nothing_is(server: LiveServer, tmp_path: Path) -> None:
    """A backup replaces a lost database, and side files that are left of that one are not used."""
    job = Trainer(server.trainer)
    job.run(10.0)
    copy = tmp_path / "copy.db"
    wattwise(server, "backup", copy)
    job.run(20.0)
    server.kill()
    server.database.unlink()
    assert server.database.with_name("wattwise.db-wal").exists()
    wattwise(server, "restore", copy)
    server.start()
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.num_trials == 1
    with pytest.raises(grpc.RpcError):
        server.admin.GetTrial(v1.GetTrialRequest(trial=v1.TrialId(job_id=job.job_id, trial_number=2)))


def test_restore_that_breaks_off_leaves_the_database(
    server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the backup has the database's name the database has it, with all that a killed server left in its -wal."""
    job = Trainer(server.trainer)
    copy = tmp_path / "copy.db"
    wattwise(server, "backup", copy)
    job.run(10.0)
    server.kill()

    def broken(self: Path, target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(self), None, str(target))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", broken)
        with pytest.raises(StartError, match="Input/output error"):
            restore(copy, server.database, overwrite=True)
    assert sorted(path.name for path in server.database.parent.glob("*wattwise.db*")) == [
        "wattwise.db",
        "wattwise.db.lock",
    ]
    server.start()
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.num_trials == 1


def test_restore_of_a_file_of_proc(tmp_path: Path) -> None:
    """Files that are regular by their mode alone are not read, because some block their reader."""
    with pytest.raises(StartError, match="is not a Wattwise database"):
        restore(Path("/proc/kmsg"), tmp_path / "wattwise.db", overwrite=False)


def test_termination_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """SIGTERM ends a command that writes a database, and removes what it has written."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from wattwise_server.store.sqlite.backup import new_file\n"
        "with new_file(Path(sys.argv[1])) as fresh:\n"
        "    print(fresh.exists(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    command: list[str | Path] = [sys.executable, "-c", program, tmp_path / "wattwise.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "True\n", "")
    assert list(tmp_path.iterdir()) == []
