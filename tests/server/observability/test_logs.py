"""The log: one line per event, human-readable and as JSON."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.observability.logs import HumanFormatter, JsonFormatter, RefusalLimit, RefusalSource

from tests.jobs import Trainer, job_spec, policy_message
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.usecases.test_leases import lose
from tests.waiting import wait_until
from tests.watched import WatchedServer, read_json_log


def test_life_of_a_trial_is_logged(watched: WatchedServer) -> None:
    """Every event is one JSON line with job, trial and, if a call caused it, peer and call id."""
    job = Trainer(watched.trainer, trial_lease_seconds=1)
    lost = job.next()
    lose(watched, lost)
    job.report(lost, 10.0, epoch=2)
    job.end(job.next(), v1.END_REASON_ERROR)
    watched.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id), metadata=(("x-request-id", "cleanup 7"),))
    assert watched.stop() == 0
    lines = watched.lines()
    assert [line["event"] for line in lines] == [
        "database opened",
        "serving metrics",
        "serving",
        "job registered",
        "trial dispatched",
        "trial lost",
        "trial revived",
        "trial decided",
        "best known changed",
        "trial dispatched",
        "trial failed",
        "job deleted",
        "shutting down",
        "stopped",
    ]
    reported = lines[3:12]
    assert {line["job"] for line in reported} == {job.job_id}
    assert [line.get("trial") for line in reported] == [None, 1, 1, 1, 1, 1, 2, 2, None]
    assert {line["batch_size"] for line in reported if "trial" in line} == {16, 8}
    by_calls = [line for line in reported if line["event"] != "trial lost"]
    assert all(re.fullmatch(r"ipv[46]:\S+:\d+", line["peer"]) for line in by_calls)
    assert all(line["call_id"] for line in by_calls)
    assert not {"peer", "call_id"} & reported[2].keys()
    assert (reported[2]["level"], reported[4]["reason"], reported[4]["cost_joules"]) == (
        "warning",
        "TARGET_REACHED",
        10.0,
    )
    assert reported[8]["call_id"] == "cleanup 7"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)


def test_changes_by_a_person_are_logged(watched: WatchedServer) -> None:
    """Every call that changes what a search does is one line with the change, and with who made it."""
    job = Trainer(watched.trainer)
    trial = job.next()
    admin, metadata = watched.admin, (("x-request-id", "ops 1"),)
    for _ in range(2):
        admin.SetBatchSizeBanned(v1.SetBatchSizeBannedRequest(job_id=job.job_id, batch_size=64, banned=True))
    admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=8))
    admin.SetJobPaused(v1.SetJobPausedRequest(job_id=job.job_id, paused=True))
    admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job.job_id, request_id=new_id()))
    admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial.id, excluded=True))
    admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=job.job_id, policy=policy_message("gts")))
    admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id()), metadata=metadata)
    lines = [line for line in watched.lines() if line["event"] == "job changed"]
    assert [(line["change"], line.get("batch_size"), line.get("trial")) for line in lines] == [
        ("batch size banned", 64, None),
        ("batch size pinned", 8, None),
        ("paused", None, None),
        ("baseline requested", 16, None),
        ("trial excluded", 16, 1),
        ("policy changed", None, None),
        ("reset", None, None),
    ]
    assert {line["job"] for line in lines} == {job.job_id}
    assert (lines[-1]["call_id"], lines[-1]["policy"]) == ("ops 1", "gts")
    assert all(line["peer"] for line in lines)


def test_reports_are_logged_at_debug_only(watched: WatchedServer) -> None:
    """Epochs make no line at info and one each at debug; a repeated report makes none."""
    job = Trainer(watched.trainer)
    trial = job.next()
    job.report(trial, 1.0, metric=0.1)
    assert watched.lines()[-1]["event"] == "trial dispatched"
    watched.stop()
    watched.start("--log-level", "debug")
    job.report(trial, 1.0, metric=0.1)
    job.report(trial, 2.0, metric=float("nan"), epoch=2)
    (line,) = watched.events("epoch reported")
    assert (line["job"], line["trial"], line["epoch"]) == (job.job_id, 1, 2)
    assert (line["joules"], line["metric"]) == (2.0, "nan")


def test_refused_call_is_logged_with_the_id_that_its_client_sees(watched: WatchedServer) -> None:
    """The call id of the error is that of the line: the client's own, or else one of the server's."""
    trial = v1.TrialId(job_id="nobody", launch_id="l", trial_number=3)
    request = v1.HeartbeatRequest(trial=trial)
    with refused() as own:
        watched.trainer.Heartbeat(request, metadata=(("x-request-id", "nightly-7"),))
    with refused() as made:
        watched.trainer.Heartbeat(request)
    with refused() as unfit:
        watched.trainer.Heartbeat(request, metadata=(("x-request-id", "x" * 101),))
    ids = [refusal.metadata["call_id"] for refusal in (own, made, unfit)]
    assert ids[0] == "nightly-7"
    assert all(re.fullmatch("[0-9a-f]{16}", generated) for generated in ids[1:])
    lines = watched.events("call refused")
    assert [line["call_id"] for line in lines] == ids
    for line in lines:
        assert (line["job"], line["trial"]) == ("nobody", 3)
        assert (line["method"], line["code"], line["reason"]) == ("Heartbeat", "NOT_FOUND", "JOB_NOT_FOUND")
        assert line["message"] == own.message
        assert line["level"] == "info"


def test_unknown_method_is_logged(watched: WatchedServer) -> None:
    """Unknown methods are UNIMPLEMENTED and logged like any refusal, whatever their names contain."""
    for name in ("Guess", 'Guess " job=x'):
        for kind in (watched.channel.unary_unary, watched.channel.unary_stream):
            call: Any = kind(f"/wattwise.v1.JobReader/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                list(call(b"anything", metadata=(("x-request-id", "guess 1"),)))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    lines = watched.events("call refused")
    names = [line["method"].removeprefix("/wattwise.v1.JobReader/") for line in lines]
    assert names == ["Guess"] * 2 + ['Guess " job=x'] * 2
    assert {line["call_id"] for line in lines} == {"guess 1"}
    assert {line["code"] for line in lines} == {"UNIMPLEMENTED"}


def test_bug_is_logged_under_its_incident(watched: WatchedServer) -> None:
    """An unhandled exception is one line with the traceback, and the incident and call ids that the client got."""
    job = Trainer(watched.trainer)
    job.run(1.0)
    watched.stop()
    with closing(sqlite3.connect(watched.database, isolation_level=None)) as other:
        other.execute("UPDATE jobs SET policy = 'no such policy'")
    watched.start()
    with refused() as refusal:
        job.next()
    (line,) = watched.events("unhandled exception")
    assert line["incident"] == refusal.metadata["incident_id"]
    assert line["call_id"] == refusal.metadata["call_id"]
    assert (line["level"], line["job"], line["method"]) == ("error", job.job_id, "GetNextBatchSize")
    assert "no such policy" in line["exception"]


def test_failed_commit_is_logged(watched: WatchedServer) -> None:
    """A commit that fails is an error with its cause, and the refusal of its caller a warning."""
    job = Trainer(watched.trainer)
    with closing(sqlite3.connect(watched.database, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'full'); END")
    with refused():
        job.next()
    (failed,), (reported,) = watched.events("commit failed"), watched.events("call refused")
    assert failed["level"] == "error"
    assert "full" in failed["cause"]
    assert (reported["level"], reported["code"], reported["job"]) == ("warning", "UNAVAILABLE", job.job_id)


def test_human_lines_quote_special_characters(server: LiveServer) -> None:
    """In the human format every event is one line, and an id with spaces and quotes stays within its quotes."""
    odd = 'test-a b" job=other\\'
    for job_id in ("test-a=b", odd):
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id)))
    with refused():
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id="test-\n2026 ERROR forged")))
    lines = server.log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+Z (INFO|WARNING) ", line) for line in lines)
    assert 'job="test-a=b" policy' in lines[-3]
    assert 'job="test-a b\\" job=other\\\\" policy=pruning_gts' in lines[-2]
    assert 'job="test-\\n2026 ERROR forged"' in lines[-1]


@given(event=st.text(), value=st.text() | st.floats() | st.integers())
def test_one_event_is_one_line(event: str, value: float | str) -> None:
    """Any event is one printable line, in the human format and in JSON, and the JSON object contains all of it."""
    record = logging.makeLogRecord({"name": "wattwise_server.test", "msg": "%s", "args": (event,), "levelname": "INFO"})
    record.fields = {"field": value}
    human, machine = HumanFormatter().format(record), JsonFormatter().format(record)
    assert human.isprintable()
    assert machine.isprintable()
    known = json.loads(machine, parse_constant=pytest.fail)
    assert known["event"] == event
    if isinstance(value, str):
        assert known["field"] == value


def test_failed_start_is_logged(tmp_path: Path) -> None:
    """With a JSON log the reason of a failed start is a JSON object too."""
    live = LiveServer(tmp_path)
    live.database.write_text("this is not a database, but a letter to a friend, long enough to be taken for a header")
    with pytest.raises(AssertionError):
        live.start("--log-format", "json")
    live.close()
    (line,) = read_json_log(live.log)
    assert (line["event"], line["level"]) == ("cannot start", "error")
    assert "not a Wattwise database" in line["message"]


def test_refusals_do_not_fill_the_disk(server: LiveServer) -> None:
    """Of a flood of refusals the first are logged, and the others are counted; other reasons are logged as before."""
    for _ in range(500):
        with refused():
            server.admin.GetJob(v1.GetJobRequest(job_id="nowhere"))
    with refused():
        server.trainer.RegisterJob(v1.RegisterJobRequest())
    lines = [line for line in server.log.read_text().splitlines() if "call refused" in line]
    assert 20 <= sum("JOB_NOT_FOUND" in line for line in lines) < 250
    assert sum("INVALID_JOB_SPEC" in line for line in lines) == 1


def test_outage_does_not_fill_the_log(watched: WatchedServer) -> None:
    """While the database is away, the refusals of all callers have a few lines together, whatever was called."""
    job = Trainer(watched.trainer)
    aside = watched.database.with_name("aside.db")
    watched.database.rename(aside)
    wait_until(lambda: watched.events("not serving") != [])
    stub, name = watched.admin, job.job_id
    calls: list[Callable[[], object]] = [
        job.next,
        lambda: stub.GetJob(v1.GetJobRequest(job_id=name)),
        lambda: stub.ListTrials(v1.ListTrialsRequest(job_id=name)),
        lambda: stub.ResetJob(v1.ResetJobRequest(job_id=name, request_id=new_id())),
        lambda: stub.DeleteJob(v1.DeleteJobRequest(job_id=name)),
    ]
    for call in calls * 4:
        with refused():
            call()
    aside.rename(watched.database)
    assert 3 <= len(watched.events("call refused")) <= 6


def test_refusals_are_counted_by_source() -> None:
    """Each source has its own lines, up to a number of sources."""

    def source(peer: str, token: str = "", reason: str = "x") -> RefusalSource:
        return RefusalSource(peer, token, "GetJob", reason)

    limit = RefusalLimit(lines=2, seconds=10.0, max_sources=3)
    assert limit.left_out(0.0) == []
    assert [limit.admits(source("a")) for _ in range(4)] == [True, True, False, False]
    assert limit.admits(source("a", reason="y"))
    assert limit.admits(source("a", "t"))
    assert [limit.admits(source(peer)) for peer in "bcde"] == [True, True, False, False]
    assert limit.left_out(9.9) == []
    assert limit.left_out(10.0) == [(source("a"), 2), (RefusalSource("others", "", "", "any"), 2)]
    assert limit.admits(source("a"))
    assert limit.left_out(20.0) == []
    limit = RefusalLimit(storage_lines=1)
    assert limit.left_out(0.0) == []
    for message in ("it is away", "job 'a' is damaged"):
        storage = RefusalSource("", "", "", "STORAGE_UNAVAILABLE", message)
        assert [limit.admits(storage) for _ in range(3)] == [True, False, False]
