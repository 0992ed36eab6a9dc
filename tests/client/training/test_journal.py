"""The journal of a trial and the spool: files that survive kills, full disks and other processes."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.files import sync_folder
from wattwise.spec import job_message
from wattwise.training import journal as journal_module
from wattwise.training import spool as spool_module
from wattwise.training.journal import Journal, JournalInUseError, TrialRecord
from wattwise.training.spool import Spool, safe_name

from tests.client.training.script import job_spec

SERVER = "localhost:50051"


def record(launch_id: str = "r", server: str = SERVER, job_id: str = "test-journal") -> TrialRecord:
    """A trial that has just started."""
    return TrialRecord(server, job_message(job_spec(job_id=job_id)), launch_id, 7, 16, 1000.0)


def result(epoch: int, metric: float = 0.5, joules: float = 10.0) -> v1.TrainingResult:
    """A measurement."""
    monitor = v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_MEASURED)
    return v1.TrainingResult(
        measurement=v1.Measurement(epoch=epoch, time_seconds=epoch, energy_joules=joules * epoch, metric=metric),
        monitor=monitor,
    )


def read(path: Path) -> TrialRecord:
    """The record that the next process finds."""
    return TrialRecord.from_lines(path.read_text().splitlines())


def epochs_of(found: TrialRecord) -> list[int]:
    """The epochs of a record."""
    return [each.measurement.epoch for each, _ in found.results]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A new journal with a file."""
    folder = tmp_path / "server" / "job"
    folder.mkdir(parents=True)
    return Journal.create(record(), folder / "r.wattwise-trial")


def path_of(journal: Journal) -> Path:
    """Its file."""
    assert journal.path is not None
    return journal.path


def test_file_has_all_that_the_request_needs(journal: Journal) -> None:
    """What is read back gives the same request as the record itself, NaN and optional fields included."""
    journal.add(result(1, math.nan))
    more = result(3)
    more.measurement.power_setting.limit_watts_per_gpu = 200.0
    more.measurement.computed.CopyFrom(
        v1.ComputedUsage(time_seconds=1, energy_joules=2, power_setting=v1.PowerSetting(limit_watts_per_gpu=100))
    )
    journal.add(more)
    journal.end(v1.END_REASON_OUT_OF_MEMORY)
    request = read(path_of(journal)).request()
    assert request == journal.record.request()
    assert (request.job_id, request.launch_id, request.batch_size) == ("test-journal", "r", 16)
    assert [each.epoch for each in request.measurements] == [1, 3]
    assert math.isnan(request.measurements[0].metric)
    assert request.measurements[1].computed.energy_joules == 2
    assert request.measurements[1].power_setting.limit_watts_per_gpu == 200.0
    assert list(request.monitor.kinds) == ["nvml"]
    assert (request.end_reason, request.start_time.seconds) == (v1.END_REASON_OUT_OF_MEMORY, 1000)


def test_trial_without_an_end_is_lost(journal: Journal) -> None:
    """A file whose process was killed is delivered as lost."""
    journal.add(result(1))
    assert read(path_of(journal)).request().end_reason == v1.END_REASON_LOST


def test_first_end_counts(journal: Journal) -> None:
    """A trial ends once, for the first reason."""
    journal.end(v1.END_REASON_PREEMPTED)
    journal.end(v1.END_REASON_COMPLETED)
    assert read(path_of(journal)).end_reason == v1.END_REASON_PREEMPTED


@pytest.mark.parametrize("torn", ['{"resu', '{"result": {"measurement": {"epoch": 2', "\0\0\0\0", "[]"])
def test_torn_line(journal: Journal, torn: str) -> None:
    """A line that was not written completely is left out, and a process that goes on repairs the file."""
    journal.add(result(1))
    path = path_of(journal)
    journal.release()
    with path.open("a") as file:
        file.write(torn)
    assert epochs_of(read(path)) == [1]
    again = Journal.open(path)
    assert again is not None
    again.add(result(2))
    assert epochs_of(read(path)) == [1, 2]


@pytest.mark.parametrize("content", ["", "{}\n", '{"version": 99}\n', '{"version": 1}\n', "no JSON\n"])
def test_file_that_is_not_a_journal(tmp_path: Path, content: str) -> None:
    """Another file, or one of another version, is an error of its own, and its lock is released."""
    path = tmp_path / "other.wattwise-trial"
    path.write_text(content)
    for _ in range(2):
        with pytest.raises(ValueError, match="not a journal"):
            Journal.open(path)


def test_repeated_epochs_replace_those_of_the_killed_process(journal: Journal) -> None:
    """A trial that is resumed from a checkpoint trains epochs again: the later numbers count, and nothing beyond."""
    for epoch in (1, 2, 3, 4):
        journal.add(result(epoch))
    journal.add(result(3, joules=20.0))
    found = read(path_of(journal))
    assert [(each.measurement.epoch, each.measurement.energy_joules) for each, _ in found.results] == [
        (1, 10),
        (2, 20),
        (3, 60),
    ]


def test_refused_measurement_is_left_out(journal: Journal) -> None:
    """A measurement that the server refused would make it refuse the whole trial."""
    for epoch in (1, 2, 3):
        journal.add(result(epoch))
    journal.leave_out(2)
    assert epochs_of(read(path_of(journal))) == epochs_of(journal.record) == [1, 3]


def test_file_is_locked_while_its_trainer_lives(journal: Journal) -> None:
    """Nobody else opens the file before it is released; a deleted file is gone."""
    path = path_of(journal)
    assert Journal.open(path) is None
    journal.release()
    again = Journal.open(path)
    assert again is not None
    again.delete()
    assert Journal.open(path) is None


def test_forked_child_does_not_hold_the_lock(journal: Journal) -> None:
    """A data-loader worker that outlives its trainer does not keep the trial from being delivered."""
    context = multiprocessing.get_context("fork")
    forked, over = context.Event(), context.Event()

    def worker() -> None:
        forked.set()
        over.wait(60)

    child = context.Process(target=worker)
    child.start()
    assert forked.wait(60)
    journal.release()
    try:
        assert Journal.open(path_of(journal)) is not None
    finally:
        over.set()
        child.join()


@pytest.mark.parametrize("moment", ["opened", "created", "completed"])
def test_child_that_is_forked_at_that_moment(journal: Journal, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Nor does one that another thread forks while the file is opened, created or completed."""
    path, context = path_of(journal), multiprocessing.get_context("fork")
    forked, over = context.Event(), context.Event()

    def worker() -> None:
        forked.set()
        over.wait(60)

    child = context.Process(target=worker)
    original = {"opened": TrialRecord.from_lines, "created": TrialRecord.lines, "completed": sync_folder}

    def forks(argument: object) -> object:
        if child.pid is None:
            child.start()
            assert forked.wait(60)
        return original[moment](argument)  # type: ignore[operator]

    if moment == "opened":
        journal.release()
        monkeypatch.setattr(TrialRecord, "from_lines", forks)
        again = Journal.open(path)
        assert again is not None
        journal = again
    else:
        owner, name = (TrialRecord, "lines") if moment == "created" else (journal_module, "sync_folder")
        monkeypatch.setattr(owner, name, forks)
        path = path.with_name("new.wattwise-trial")
        journal = Journal.create(record("new"), path)
    journal.release()
    try:
        assert child.is_alive()
        assert Journal.open(path) is not None
    finally:
        over.set()
        child.join()


def test_disk_that_fills_up(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    """A line that does not fit is warned of once; when there is room again, the file is completed."""
    journal.add(result(1))
    path, before = path_of(journal), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        journal.add(result(2))
        journal.add(result(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert epochs_of(read(path)) == [1]
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    journal.add(result(4))
    assert epochs_of(read(path)) == [1, 2, 3, 4]
    assert Journal.open(path) is None, "the new file is locked too"


def test_size_of_a_file_is_bounded(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of very many epochs keeps the newest ones, in a file that does not grow."""
    monkeypatch.setattr(journal_module, "MAX_MEASUREMENTS", 10)
    monkeypatch.setattr(journal_module, "_MAX_BYTES", 8000)
    for epoch in range(1, 201):
        journal.add(result(epoch))
        assert path_of(journal).stat().st_size < 9000
    assert epochs_of(read(path_of(journal)))[-10:] == list(range(191, 201))


def test_spool_is_private_and_durable_names_are_safe(spool: Path) -> None:
    """The folders are for their user alone; any server, job and launch id makes a file within the spool."""
    names = ["a/../../b", "..", ".", "", "ü" * 300, "a" * 300, "a:b", "a%b", "a\0b"]
    files = [Spool.from_env().journal(record(name, name, f"test-{name}" * 3)).path for name in names]
    assert len(set(files)) == len(names)
    for file in files:
        assert file is not None
        assert file.is_relative_to(spool)
        assert len(file.relative_to(spool).parts) == 3
    assert {each.stat().st_mode & 0o777 for each in spool.rglob("*") if each.is_dir()} | {
        spool.stat().st_mode & 0o777
    } == {0o700}
    assert len(Spool.from_env().paths()) == len(names)


def test_new_folders_are_durable(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of every folder that is created is made durable in the folder above, and so is that of the file."""
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setenv("WATTWISE_SPOOL", str(spool / "above" / "spool"))
    path = path_of(Spool.from_env().journal(record()))
    created = [parent for parent in path.parents if parent.is_relative_to(spool)]
    assert len(created) == 5
    assert {path.parent, *(each.parent for each in created)} <= set(synced)


def test_spellings_of_an_address_share_a_folder() -> None:
    """The spellings of this machine's loopback are one server; other addresses and ports are others."""
    spool = Spool(Path("/spool"))
    same = ["localhost:1", "127.0.0.1:1", "[::1]:1", "LOCALHOST:1", "dns:///localhost:1", "ipv4:127.0.0.1:1"]
    assert len({spool.folder_of(server, "j") for server in same}) == 1
    others = ["localhost:1", "localhost:2", "127.0.0.2:1", "example.org:1", "unix:/a:1", "sqlite:////a/wattwise.db"]
    assert len({spool.folder_of(server, "j") for server in others}) == len(others)


def test_sessions_of_a_process_share_a_journal(caplog: pytest.LogCaptureFixture) -> None:
    """A second session of the trial gets the journal of the first at once; the last one that ends deletes it."""
    first = Spool.from_env().journal(record())
    second = Spool.from_env().journal(record())
    assert first is second
    first.add(result(1))
    first.delete()
    second.add(result(2))
    assert epochs_of(read(path_of(second))) == [1, 2]
    second.delete()
    assert not path_of(second).exists()
    assert caplog.messages == []


def test_shared_journal_that_one_session_could_not_deliver() -> None:
    """What one session leaves behind stays, although another one has delivered all it knows."""
    first = Spool.from_env().journal(record())
    second = Spool.from_env().journal(record())
    first.release()
    second.delete()
    assert Spool.from_env().paths() == [path_of(first)]
    taken = Journal.open(path_of(first))
    assert taken is not None
    taken.release()


def test_journal_of_another_process(caplog: pytest.LogCaptureFixture) -> None:
    """A trial whose journal another process has goes on without one; the warning names that process and the file."""
    journal = Spool.from_env().journal(record())
    journal.release()
    script = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(path_of(journal))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Spool.from_env().journal(record()).path is None
        process.communicate(b"\n")
    (warning,) = caplog.messages
    assert str(path_of(journal)) in warning
    assert f"process {process.pid} " in warning


def test_processes_that_create_a_journal_at_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the first one is whole; the other process has none, and is warned that another one keeps it."""
    # It starts while this one makes the content durable, before the file has its name.
    script = (
        "from tests.client.training.test_journal import Spool, record; "
        "print(Spool.from_env().journal(record()).path, flush=True)"
    )
    root, others, sync = Path(__file__).parents[3], [], os.fsync

    def another_process() -> None:
        command = [sys.executable, "-c", script]
        others.append(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=60))

    def fsync(descriptor: int) -> None:
        if not others and Path(f"/proc/self/fd/{descriptor}").readlink().suffix == journal_module.DRAFT_SUFFIX:
            another_process()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Spool.from_env().journal(record())
    journal.add(result(1))
    (other,) = others
    assert other.stdout == "None\n"
    assert "is in use by another process" in other.stderr
    assert "WATTWISE_SPOOL" not in other.stderr
    assert epochs_of(read(path_of(journal))) == [1]
    assert Journal.open(path_of(journal)) is None
    assert [each for each in spool.rglob("*") if each.is_file()] == [path_of(journal)]


def test_journal_that_another_process_completes_first(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has opened the draft of another one does not empty the file that the draft has become."""
    path, lock = path_of(journal).with_name("new.wattwise-trial"), fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first = Journal.create(record("new"), path)
        first.add(result(1))
        first.release()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(JournalInUseError):
        Journal.create(record("new"), path)
    assert epochs_of(read(path)) == [1]
    assert sorted(each.name for each in path.parent.iterdir()) == ["new.wattwise-trial", "r.wattwise-trial"]
    again = Journal.open(path)
    assert again is not None


def test_unreadable_file_of_the_trial_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A launch that resumes a trial does not overwrite what it cannot read, such as a newer version's file."""
    path = path_of(Spool.from_env().journal(record()))
    path.unlink()
    path.write_text('{"version": 99}\n')
    _shared_elsewhere()
    assert Spool.from_env().journal(record()).path is None
    assert Spool.from_env().hold(SERVER, "test-journal", "r") is None
    assert path.read_text() == '{"version": 99}\n'
    (warning,) = caplog.messages
    assert str(path) in warning


def _shared_elsewhere() -> None:
    """From here on this process stands for another one."""
    spool_module._shared.clear()  # noqa: SLF001 - as in a new process


def test_file_that_vanishes_while_files_are_listed(journal: Journal) -> None:
    """Another launch delivers trials meanwhile: the others are listed all the same."""
    folder = path_of(journal).parent
    for number in range(9):
        (folder / f"{number}.wattwise-trial").write_text("")
    listing = spool_module._walk(folder, 0)  # noqa: SLF001 - one file at a time
    listed = [next(listing)[2]]
    for path in [each for each in folder.iterdir() if each not in listed][:3]:
        path.unlink()
    listed += [path for _, _, path in listing]
    assert sorted(listed) == sorted(folder.iterdir())
    assert len(listed) == 7


def test_names_that_would_be_the_same(spool: Path) -> None:
    """Two texts never share a folder, and an ordinary name is readable."""
    assert spool
    texts = ["a:b", "a/b", "a%b", "a" * 100, "a" * 101, "a" * 102]
    assert len({safe_name(text) for text in texts}) == len(texts)
    assert safe_name("mnist-nightly_2.1") == "mnist-nightly_2.1"


@pytest.mark.parametrize(
    ("chosen", "state", "folder"),
    [
        ("", "/state", Path("/state/wattwise")),
        ("", "relative", Path("/home/me/.local/state/wattwise")),
        ("", "", Path("/home/me/.local/state/wattwise")),
        ("/chosen", "/state", Path("/chosen")),
        ("~/chosen", "", Path("/home/me/chosen")),
        ("off", "/state", None),
        ("OFF", "", None),
    ],
)
def test_folder_of_the_spool(monkeypatch: pytest.MonkeyPatch, chosen: str, state: str, folder: Path | None) -> None:
    """WATTWISE_SPOOL comes first, then an absolute XDG_STATE_HOME, then its default; "off" disables the spool."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("WATTWISE_SPOOL", chosen)
    assert Spool.from_env().folder == folder


def test_the_users_own_spool_stays_out_of_the_tests(monkeypatch: pytest.MonkeyPatch, state_home: Path) -> None:
    """A process that a test starts without WATTWISE_SPOOL has its spool in a temporary folder."""
    monkeypatch.delenv("WATTWISE_SPOOL")
    code = "from wattwise.training.spool import Spool; print(Spool.from_env().folder)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{state_home / 'wattwise'}\n"


def test_spool_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a spool the record is kept in memory."""
    monkeypatch.setenv("WATTWISE_SPOOL", "off")
    journal = Spool.from_env().journal(record())
    journal.add(result(1))
    assert (journal.path, epochs_of(journal.record)) == (None, [1])
    assert Spool.from_env().paths() == []


def test_spool_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A spool that cannot be created is warned of once, and trials go on without."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(Spool, "_warned", False)
    monkeypatch.setenv("WATTWISE_SPOOL", str(tmp_path / "file" / "spool"))
    for launch_id in "ab":
        assert Spool.from_env().journal(record(launch_id)).path is None
    (warning,) = caplog.messages
    assert "WATTWISE_SPOOL" in warning


def test_file_system_without_locks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spool: Path
) -> None:
    """Without locks nothing is kept, since another launch could deliver a trial that runs."""

    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(Spool, "_warned", False)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert Spool.from_env().journal(record()).path is None
    assert len(caplog.messages) == 1
    assert [each for each in spool.rglob("*") if each.is_file()] == []


def test_number_of_trials_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest trial that does not run makes room, and a warning names its file."""
    monkeypatch.setattr(spool_module, "MAX_TRIALS", 3)
    spool = Spool.from_env()
    journals = [spool.journal(record(name)) for name in "abc"]
    for age, journal in enumerate(journals):
        os.utime(path_of(journal), (age, age))
    for journal in journals[1:]:
        journal.release()
    newest = spool.journal(record("d"))
    assert spool.paths() == [path_of(journals[0]), path_of(journals[2]), path_of(newest)]
    assert str(journals[1].path) in caplog.text


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_BYTES_IN_ALL", "MAX_TRIALS_IN_ALL"])
def test_size_of_the_spool_is_bounded(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Each limit, of a job and of all of them, drops the oldest."""
    monkeypatch.setattr(spool_module, limit, 1)
    spool = Spool.from_env()
    first = spool.journal(record("a"))
    first.release()
    second = spool.journal(record("b"))
    assert spool.paths() == [path_of(second)]


def test_draft_that_is_being_written_stays(journal: Journal) -> None:
    """A draft that its process has locked is not deleted, however old it looks after a step of the clock."""
    folder = path_of(journal).parent
    draft, spool = folder / "written.wattwise-draft", Spool(folder.parent.parent)
    with draft.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(draft, (0, 0))
        assert spool.paths() == [path_of(journal)]
        assert draft.exists()
    assert spool.paths() == [path_of(journal)]
    assert not draft.exists()


def test_draft_of_a_killed_process_is_removed(journal: Journal) -> None:
    """A draft is not a trial; an old one is deleted, a new one may belong to a process."""
    folder = path_of(journal).parent
    old, new = folder / "old.wattwise-draft", folder / "new.wattwise-draft"
    for draft in (old, new):
        draft.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    assert Spool(folder.parent.parent).paths() == [path_of(journal)]
    assert (old.exists(), new.exists()) == (False, True)


def test_other_files_in_the_folder_are_left_alone(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be one that other programs use: nothing of theirs is listed, counted or deleted."""
    folder = path_of(journal).parent
    theirs = [folder / "a.jsonl", folder / "b.new", tmp_path / "c.wattwise-trial", folder / "deep" / "d.wattwise-trial"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{")
        os.utime(path, (time.time() - 7200,) * 2)
    monkeypatch.setattr(spool_module, "MAX_TRIALS_IN_ALL", 1)
    monkeypatch.setenv("WATTWISE_SPOOL", str(tmp_path))
    spool = Spool.from_env()
    assert spool.paths() == [path_of(journal)]
    journal.release()
    added = spool.journal(record("b"))
    assert spool.paths() == [path_of(added)]
    assert all(path.exists() for path in theirs)
