"""A spool in which other users or programs may have written: it blocks nothing, and nobody's results are delivered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wattwise import Client, errors
from wattwise.commands.main import main
from wattwise.errors import WattwiseError
from wattwise.training import spool as spool_module
from wattwise.training.delivery import deliver_files
from wattwise.training.journal import DRAFT_SUFFIX, SUFFIX, Journal
from wattwise.training.spool import Spool, SpoolError

from tests.client.test_files import SPECIAL
from tests.client.training.script import begun
from tests.client.training.test_journal import record, result
from tests.live_server import LiveServer

JOB_ID = "test-foreign"
HEAD: dict[str, Any] = json.loads(record(job_id=JOB_ID).lines()[0])


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test has been warned of is new to this one."""
    monkeypatch.setattr(Spool, "_warned", False)
    monkeypatch.setattr(errors, "_warned_of", set())


def spooled(server: LiveServer, launch_id: str) -> Path:
    """The file of a trial that has ended, and that the server does not know."""
    journal = Spool.from_env().journal(record(launch_id, server.address, JOB_ID))
    journal.add(result(1, metric=0.1))
    journal.release()
    assert journal.path is not None
    return journal.path


def delivered(server: LiveServer) -> list[str]:
    """The launch ids of the job's trials."""
    with Client(server.address) as client:
        return [trial.id.launch_id for trial in client.trials(JOB_ID)]


LINES: dict[str, list[Any]] = {
    "batch size": [HEAD | {"batch_size": 10**12}],
    "batch size of a text": [HEAD | {"batch_size": "16"}],
    "start": [HEAD | {"start_time": 1e300}],
    "negative start": [HEAD | {"start_time": -1e300}],
    "start of no number": [HEAD | {"start_time": float("nan")}],
    "number": [HEAD | {"trial_number": 10**40}],
    "server": [HEAD | {"server": [1]}],
    "NUL": [HEAD | {"server": "127.0.0.1\0:1"}],
    "port": [HEAD | {"server": f"127.0.0.1:{'9' * 5000}"}],
    "job": [HEAD | {"job": [1]}],
    "job of other types": [HEAD | {"job": {"batch_sizes": "x", "gpu": 5}}],
    "job of no size": [HEAD | {"job": {"batch_sizes": [10**12]}}],
    "version": [HEAD | {"version": 99}],
    "missing": [{"version": 1}],
    "list": [[1, 2]],
    "result": [HEAD, {"result": 5, "time": 1.0}],
    "result of a huge number": [HEAD, {"result": {"measurement": {"energy_joules": 10**39}}, "time": 1e999}],
    "epoch": [HEAD, {"result": {"measurement": {"epoch": 10**12}}, "time": 1.0}],
    "end": [HEAD, {"end_reason": ["x"]}],
    "unknown end": [HEAD, {"end_reason": "END_REASON_OF_TOMORROW"}],
    "left out": [HEAD, {"left_out": {}}],
}
"""Lines that are no journal, or that of no trial."""


@pytest.mark.parametrize("fault", LINES)
def test_malformed_journal_blocks_no_other(server: LiveServer, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    """One file that is not a journal stays, is named once with its line, and those behind it are delivered."""
    good = spooled(server, "good")
    bad = good.with_name(f"bad{SUFFIX}")
    bad.write_text("".join(f"{json.dumps(line)}\n" for line in LINES[fault]))
    os.utime(bad, (0, 0))
    with Client(server.address) as client:
        for _ in range(2):
            done = deliver_files(client, Spool.from_env().paths(server.address, JOB_ID), 10.0)
    assert (delivered(server), done.failure) == (["good"], None)
    assert Spool.from_env().paths() == ([bad] if bad.exists() else [])
    named = [message for message in caplog.messages if str(bad) in message]
    assert len(named) == 1
    assert all(f"line {len(LINES[fault])}," in message or fault == "list" for message in named)


def test_nested_line_is_left_out(server: LiveServer) -> None:
    """A line that is nested too deeply is like one that is not complete: the others count."""
    path = spooled(server, "nested")
    with path.open("a") as file:
        file.write("[" * 200_000 + "\n")
    with Client(server.address) as client:
        assert deliver_files(client, [path], 10.0).delivered == 1


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_blocks_nothing(
    server: LiveServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """A pipe, a device or a folder with the name of a journal is reported by every command, and can be dropped."""
    good = spooled(server, "good")
    bad = good.with_name(f"bad{SUFFIX}")
    SPECIAL[kind](bad)
    assert main(["spool", "list"]) == 0
    shown = capsys.readouterr().out
    assert str(bad) in shown
    assert shown.count("unreadable: ") == 1
    assert main(["spool", "send"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count(str(bad))) == ("Delivered: 1; refused: 0; left: 1.\n", 1)
    with Client(server.address) as client:
        deliver_files(client, Spool.from_env().paths(), 10.0)
    assert sum(str(bad) in message for message in caplog.messages) == 1
    assert delivered(server) == ["good"]
    assert main(["spool", "drop", "--yes"]) == 0
    assert os.path.lexists(bad) == (kind == "folder")


def test_unreadable_files_are_known_by_their_folders(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that says nothing belongs to the server and the job of its folders."""
    spooled(server, "bad").write_text("{")
    for words, count in (
        (["--server", server.address], 1),
        (["--job", JOB_ID], 1),
        (["--server", "elsewhere:1"], 0),
        (["--job", "another"], 0),
    ):
        assert main(["spool", "list", "--json", *words]) == 0
        documents = json.loads(capsys.readouterr().out)
        assert len(documents) == count
        assert all("line 1" in each["fault"] for each in documents)


@pytest.mark.parametrize("kind", SPECIAL)
def test_draft_that_is_no_file(server: LiveServer, spool: Path, kind: str) -> None:
    """A trial is trained without a journal if its draft cannot be written."""
    folder = Spool(spool).folder_of(server.address, JOB_ID)
    folder.mkdir(parents=True, mode=0o700)
    SPECIAL[kind](folder / f"r{DRAFT_SUFFIX}")
    journal = Spool.from_env().journal(record("r", server.address, JOB_ID))
    assert (journal.path is None) == (kind != "a terabyte")
    journal.add(result(1))


def test_rewritten_journal_whose_draft_is_no_file(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The training goes on if the journal cannot be written any more, with one warning."""
    journal = Spool.from_env().journal(record("r", server.address, JOB_ID))
    assert journal.path is not None
    os.mkfifo(journal.path.with_suffix(DRAFT_SUFFIX))
    for epoch in (1, 2):
        journal.add(result(epoch))
        journal.replace(journal.record)
    assert len(caplog.messages) == 1


def _of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


def _link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder.rename(folder.with_name(f"{folder.name}-elsewhere"))
    folder.symlink_to(elsewhere)
    # A link has no mode of its own.
    _of_another_user(elsewhere, monkeypatch)


FOREIGN: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "all may write": lambda folder, _: folder.chmod(0o777),
    "all may write, but not delete": lambda folder, _: folder.chmod(0o1777),
    "a group may write": lambda folder, _: folder.chmod(0o770),
    "of another user": _of_another_user,
    "a link of another user": _link,
}


@pytest.fixture(params=FOREIGN)
def forged(request: pytest.FixtureRequest, server: LiveServer, spool: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal in a spool in which others may have written."""
    path = spooled(server, "forged")
    FOREIGN[request.param](spool, monkeypatch)
    return path


def test_spool_of_others_is_not_used(
    server: LiveServer, spool: Path, forged: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training goes on without the spool, with one warning; nothing in the spool is delivered or changed."""
    before = forged.read_bytes()
    bso = begun(server.address, job_id=JOB_ID)
    bso.on_evaluate(1.0)
    assert delivered(server) == [bso.trial.launch_id]
    (warning,) = [message for message in caplog.messages if str(spool) in message]
    assert "WATTWISE_SPOOL" in warning
    for words in (["list"], ["send"], ["drop", "--yes"]):
        assert main(["spool", *words]) == 1
        assert str(spool) in capsys.readouterr().err
    assert forged.read_bytes() == before
    assert [each for each in spool.resolve().rglob("*") if each.is_file()] == [forged.resolve()]


@pytest.mark.parametrize("level", [0, 1], ids=["server", "job"])
@pytest.mark.parametrize("foreign", ["all may write", "link"])
def test_folder_of_others_within_the_spool(
    server: LiveServer, spool: Path, caplog: pytest.LogCaptureFixture, level: int, foreign: str
) -> None:
    """A folder in the spool that others may have made is not used, and the others are."""
    forged = spooled(server, "forged")
    folder = forged.parent if level else forged.parent.parent
    if foreign == "link":
        folder.rename(spool.with_name(f"{spool.name}-elsewhere"))
        folder.symlink_to(spool.with_name(f"{spool.name}-elsewhere"))
    else:
        folder.chmod(0o777)
    other = Spool.from_env().journal(record("other", "elsewhere:1"))
    other.release()
    assert Spool.from_env().paths() == [other.path]
    assert Spool.from_env().paths(server.address, JOB_ID) == []
    assert Spool.from_env().path_of(server.address, JOB_ID, "forged") is None
    before = sorted(each for each in folder.resolve().rglob("*"))
    for job_id in (JOB_ID, "test-other") if level == 0 else (JOB_ID,):
        assert Spool.from_env().journal(record("new", server.address, job_id)).path is None
    assert sorted(each for each in folder.resolve().rglob("*")) == before
    assert sum(str(folder) in message for message in caplog.messages if "not delivered" in message) == 1


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_journal_that_others_may_write(server: LiveServer, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    """A journal that another user may have changed is not delivered, and stays."""
    good, forged = spooled(server, "good"), spooled(server, "forged")
    forged.chmod(mode)
    with Client(server.address) as client:
        deliver_files(client, Spool.from_env().paths(), 10.0)
    assert (delivered(server), good.exists(), forged.exists()) == (["good"], False, True)
    assert sum(str(forged) in message for message in caplog.messages) == 1
    with pytest.raises(ValueError, match="other users"):
        Journal.open(forged)
    assert Spool.from_env().read(server.address, JOB_ID, "forged") is None


def test_spool_of_the_user_behind_a_link(tmp_path: Path, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may name a link to a folder of their own, also where everybody may write beside it."""
    tmp_path.chmod(0o1777)
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("WATTWISE_SPOOL", str(tmp_path / "link"))
    path = spooled(server, "mine")
    assert Spool.from_env().paths() == [path]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("variable", ["WATTWISE_SPOOL", "XDG_STATE_HOME"])
def test_spool_with_a_control_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    """A carriage return creates no second spool: one warning names the variable, and nothing is kept."""
    monkeypatch.delenv("WATTWISE_SPOOL")
    monkeypatch.setenv(variable, f"{tmp_path}/spool\r")
    with pytest.raises(SpoolError, match=variable):
        Spool.named()
    assert Spool.from_env().journal(record()).path is None
    assert list(tmp_path.iterdir()) == []
    (warning,) = caplog.messages
    assert variable in warning


def test_spool_error_is_one_of_the_library() -> None:
    """Commands print the error as one line."""
    assert issubclass(SpoolError, WattwiseError)


def test_unreadable_journal_stays_in_a_full_spool(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only journals that can be read make room for others."""
    monkeypatch.setattr(spool_module, "MAX_TRIALS", 2)
    bad, old = spooled(server, "bad"), spooled(server, "old")
    bad.write_text("{")
    for age, path in enumerate((bad, old)):
        os.utime(path, (age, age))
    new = spooled(server, "new")
    assert (bad.exists(), old.exists(), new.exists()) == (True, False, True)


def test_file_that_is_no_journal_crowds_out_none(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The size of a file that is too large for a journal does not count against the limits."""
    good = spooled(server, "good")
    SPECIAL["a terabyte"](good.with_name(f"large{SUFFIX}"))
    assert spooled(server, "next").exists()
    assert (good.exists(), caplog.messages) == (True, [])
