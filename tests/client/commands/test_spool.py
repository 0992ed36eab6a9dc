"""`wattwise spool`: trials on this machine that the server does not know."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.commands.main import main
from wattwise.commands.spool import COMMAND
from wattwise.training.journal import Journal
from wattwise.training.spool import Spool

from tests.client.training.script import StepMonitor, job_spec
from tests.client.training.test_journal import SERVER, record, result
from tests.live_server import LiveServer


def status(*words: str) -> int:
    """The exit status of the command."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(words))


def trained_without(server: LiveServer, job_id: str, fallback: int = 16) -> None:
    """Trains an epoch of a job while its server is down, and fails."""
    job = job_spec(job_id=job_id)
    bso = BatchSizeOptimizer(server.address, job, monitor=StepMonitor(), timeout=0.0, fallback=fallback)
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    bso.close(EndReason.ERROR)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has server, job, trial, batch size, epochs, end, age and start, why some were refused, and the files."""
    spool = Spool.from_env()
    running = spool.journal(record("running", "here:1", "test-a"))
    refused = spool.journal(record("refused", "there:1", "test-b"))
    refused.record.trial_number = 0
    refused.add(result(1))
    refused.end(v1.END_REASON_OUT_OF_MEMORY)
    refused.refuse("the reason")
    refused.release()
    assert status("list") == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    names = ["server", "job", "trial", "batch", "size", "epochs", "end", "age", "started", "refusal", "file"]
    assert heading.split() == names
    assert first.split()[:6] == ["here:1", "test-a", "7", "16", "0", "running"]
    assert second.split()[:8] == ["there:1", "test-b", "7", "16", "1", "out", "of", "memory"]
    assert second.split("  ")[-2:] == ["the reason", str(refused.path)]
    assert status("list", "--server", "there:1", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["launch_id"], document["epochs"], document["refusal"]) == ("refused", 1, "the reason")
    assert status("list", "--job", "test-c") == 0
    assert capsys.readouterr().out == "no trials\n"
    assert running.kept


def test_send(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is delivered, and jobs that the server does not know are registered."""
    server.kill()
    for job_id in ("test-a", "test-b"):
        trained_without(server, job_id)
    server.start()
    assert status("send", "--job", "test-a") == 0
    with Client(server.address) as client:
        assert [row.job.spec.job_id for row in client.jobs()] == ["test-a"]
        assert status("send") == 0
        assert [trial.end_reason for trial in client.trials("test-b")] == [v1.END_REASON_ERROR]
    assert status("send") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Delivered: 1; refused: 0; left: 0.",
        "Delivered: 1; refused: 0; left: 0.",
        "Delivered: 0; refused: 0; left: 0.",
    ]


def test_send_without_a_server(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is away is an error that names it, and the trials stay."""
    server.kill()
    trained_without(server, "test-a")
    assert status("send") == 1
    captured = capsys.readouterr()
    assert server.address in captured.err
    assert captured.out == "Delivered: 0; refused: 0; left: 1.\n"
    assert len(Spool.from_env().paths()) == 1


def test_send_tries_refused_trials_again(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused trial is left with status 1, and is delivered once its cause is gone."""
    server.kill()
    trained_without(server, "test-a", fallback=32)
    server.start()
    with Client(server.address) as client:
        client.register_job(job_spec(job_id="test-a", batch_sizes=[8, 16]))
        assert status("send") == 1
        client.delete_job("test-a")
        assert status("send") == 0
        assert [trial.batch_size for trial in client.trials("test-a")] == [32]
    assert capsys.readouterr().out.splitlines() == [
        "Delivered: 0; refused: 1; left: 1.",
        "Delivered: 1; refused: 0; left: 0.",
    ]


def test_send_to_another_address(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Trials for an address that is no longer the server's are sent to the new one, those of one server at a time."""
    spool = Spool.from_env()
    for number, old in enumerate(("127.0.0.1:1", "localhost:1", "sqlite:////runs/a/wattwise.db")):
        spool.journal(record(f"r{number}", old, f"test-{number}")).release()
    assert status("send", "--to", server.address) == 2
    assert "--server" in capsys.readouterr().err
    assert status("send", "--server", "127.0.0.1:1", "--to", server.address) == 0
    assert status("send") == 1
    error = capsys.readouterr().err
    assert "--to" in error
    assert "wattwise serve --database sqlite:////runs/a/wattwise.db" in error
    assert status("send", "--to", server.address) == 0
    with Client(server.address) as client:
        assert [row.job.spec.job_id for row in client.jobs()] == ["test-0", "test-1", "test-2"]
    assert spool.paths() == []


@pytest.mark.parametrize("address", ["", "[::1", "host:99999", "host:1\r", "sqlite:///\x1b[2J", "x" * 5000])
def test_server_that_is_no_address(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    """A journal that names no address is unreadable, and the trials of other journals are sent."""
    monkeypatch.setenv("WATTWISE_SERVER", server.address)
    bad = Spool.from_env().journal(record("bad"))
    Spool.from_env().journal(record("good", server.address)).release()
    bad.release()
    assert bad.path is not None
    head, *others = bad.path.read_text().splitlines()
    bad.path.write_text("\n".join((json.dumps(json.loads(head) | {"server": address}), *others, "")))
    assert main(["spool", "send"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Delivered: 1; refused: 0; left: 1.\n"
    assert str(bad.path) in captured.err
    assert Spool.from_env().paths() == [bad.path]
    for words in (["list"], ["list", "--json"], ["drop", "--yes"]):
        assert main(["spool", *words]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_list_of_a_killed_process(capsys: pytest.CaptureFixture[str]) -> None:
    """A trial whose process said nothing about its end has none, whatever the server will make of it."""
    Spool.from_env().journal(record()).release()
    assert status("list", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["end"], document["running"]) == ("not reported", False)


@pytest.mark.parametrize(("metric", "end"), [(0.95, "target reached"), (0.1, "error")])
def test_list_of_a_trial_that_its_measurements_decide(
    capsys: pytest.CaptureFixture[str], metric: float, end: str
) -> None:
    """A trial that reached its target is listed so, whatever its trainer reported of its end."""
    journal = Spool.from_env().journal(record())
    journal.add(result(1, metric))
    journal.end(v1.END_REASON_ERROR)
    journal.release()
    assert status("list", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["end"] == end


def test_token_is_for_one_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A token is not sent to several servers: one has to be named."""
    monkeypatch.setenv("WATTWISE_TOKEN", "secret")
    for server in ("127.0.0.1:1", "127.0.0.1:2"):
        Spool.from_env().journal(record("r", server)).release()
    assert status("send") == 2
    assert "--server" in capsys.readouterr().err
    assert status("send", "--server", "127.0.0.1:1") == 1


def test_drop(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, --yes is needed; running trials stay."""
    spool = Spool.from_env()
    running = spool.journal(record("running"))
    spool.journal(record("ended")).release()
    assert status("drop") == 2
    assert "--yes" in capsys.readouterr().err
    assert status("drop", "--yes") == 0
    assert capsys.readouterr().out == "Dropped: 1.\n"
    assert spool.paths() == [running.path]


def test_unreadable_file(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, spool: Path) -> None:
    """A file that is not a journal is listed with its path, and can be dropped, with a warning."""
    journal = Spool.from_env().journal(record())
    journal.release()
    assert journal.path is not None
    journal.path.write_text("{")
    assert status("list") == 0
    assert str(journal.path) in capsys.readouterr().out
    assert status("drop", "--yes") == 0
    assert [each for each in spool.rglob("*") if each.is_file()] == []
    assert Journal.open(journal.path) is None
    (warning,) = caplog.messages
    assert str(journal.path) in warning


def test_ids_are_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """What would reverse or erase text on a terminal is escaped in the rows and in the reasons."""
    journal = Spool.from_env().journal(record("r", SERVER, "test-\u202ejob"))
    journal.refuse("no \x1b[2J")
    journal.release()
    assert status("list") == 0
    shown = capsys.readouterr().out
    assert "\\u202e" in shown
    assert "no \\x1b[2J" in shown
    assert all(line.isprintable() for line in shown.splitlines())
