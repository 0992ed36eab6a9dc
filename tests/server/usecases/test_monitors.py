"""The kind of monitor that a trial's energy comes from: where it is kept and shown, and who is warned of a change."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import grpc
import pytest
from wattwise import v1
from wattwise_server.store.migrate import migrate, migrations

from tests.jobs import Trainer, result
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.usecases.test_leases import get, lose
from tests.watched import WatchedServer


def job_of(server: LiveServer, trainer: Trainer) -> v1.Job:
    """The job as it stands."""
    return server.admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).job


def warned_trial(trainer: Trainer) -> tuple[v1.Trial, v1.Decision]:
    """A running trial of an estimate, in a job whose trial before was measured; and what it was told."""
    trainer.run(100.0, monitor="nvml")
    trial = trainer.next()
    return trial, trainer.report(trial, 10.0, metric=0.1, monitor="estimate")


def test_monitor_is_shown_wherever_energy_is(server: LiveServer) -> None:
    """GetTrial, ListTrials, GetJob and ListJobs tell it, of running trials and of ended ones."""
    trainer = Trainer(server.trainer)
    ended, running = trainer.run(10.0, monitor="nvml+rapl"), trainer.next()
    trainer.report(running, 5.0, metric=0.1, monitor="nvml+rapl")
    assert [get(server, trial).monitor for trial in (ended, running)] == ["nvml+rapl"] * 2
    listed = server.admin.ListTrials(v1.ListTrialsRequest(job_id=trainer.job_id)).trials
    assert [(trial.monitor, trial.other_monitor) for trial in listed] == [("nvml+rapl", "")] * 2
    (job,) = server.admin.ListJobs(v1.ListJobsRequest()).jobs
    assert job.monitor == job_of(server, trainer).monitor == "nvml+rapl"
    assert not job.other_monitor


def test_monitor_that_nobody_said_is_empty(server: LiveServer) -> None:
    """Trainers that say no kind are served as ever, and learn of none."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    assert trainer.report(trial, 10.0).warning == ""
    assert (get(server, trial).monitor, job_of(server, trainer).monitor) == ("", "")


@pytest.mark.parametrize(
    ("monitor", "told"),
    [
        ("estimate", "; the energy is an estimate"),
        ("nvml+estimate", "; the energy is partly an estimate"),
        ("estimated by eye", "no cost bound yet"),
        ("nvml", "no cost bound yet"),
        ("", "no cost bound yet"),
    ],
)
def test_decision_says_that_its_joules_are_estimates(server: LiveServer, monitor: str, told: str) -> None:
    """The sentence with the cost ends with it, while training goes on, when it is over and when asked again."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    assert trainer.report(trial, 10.0, metric=0.1, monitor=monitor).message.endswith(told)
    last = trainer.report(trial, 20.0, epoch=2, monitor=monitor)
    assert last.message.endswith(told)
    assert trainer.report(trial, 20.0, epoch=2, monitor=monitor) == last


def test_ended_trial_tells_no_joules(server: LiveServer) -> None:
    """Whoever reports to a trial that its trainer has ended reads nothing of a monitor."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    trainer.report(trial, 10.0, metric=0.1, monitor="estimate")
    trainer.end(trial, v1.END_REASON_ERROR)
    assert trainer.heartbeat(trial).message.endswith("ask for a new batch size")


def test_warning_names_both_and_says_what_to_do(server: LiveServer) -> None:
    """Who measures another way than the job's trials before is told so, with what it means and what to do."""
    trainer = Trainer(server.trainer)
    trial, decision = warned_trial(trainer)
    assert decision.warning == (
        f"trial 2 is measured by estimate, earlier results of job '{trainer.job_id}' by nvml: "
        "their costs cannot be compared; give what another monitor measures a job_id of its own"
    )
    assert not decision.stop_train
    assert (get(server, trial).monitor, get(server, trial).other_monitor) == ("estimate", "nvml")
    assert (job_of(server, trainer).monitor, job_of(server, trainer).other_monitor) == ("estimate", "nvml")


def test_warning_is_the_same_in_every_answer(server: LiveServer) -> None:
    """A repeat, a result that says no kind, a heartbeat, a lost trial's return and the last decision all carry it."""
    trainer = Trainer(server.trainer, trial_lease_seconds=0.3)
    trial, decision = warned_trial(trainer)
    lose(server, trial)
    answers = [
        trainer.report(trial, 10.0, metric=0.1, monitor="estimate"),
        trainer.report(trial, 20.0, metric=0.1, epoch=2),
        trainer.heartbeat(trial),
        trainer.report(trial, 30.0, epoch=3, monitor="estimate"),
        trainer.report(trial, 30.0, epoch=3, monitor="estimate"),
    ]
    assert {answer.warning for answer in answers} == {decision.warning}


def test_monitor_and_warning_survive_a_kill(server: LiveServer) -> None:
    """Both are durable with the result that said the monitor."""
    trainer = Trainer(server.trainer)
    trial, decision = warned_trial(trainer)
    server.kill()
    server.start()
    assert get(server, trial).monitor == "estimate"
    assert (job_of(server, trainer).monitor, job_of(server, trainer).other_monitor) == ("estimate", "nvml")
    assert trainer.report(trial, 20.0, metric=0.1, epoch=2).warning == decision.warning


def test_streams_carry_it_too(server: LiveServer) -> None:
    """On a stream the monitor is taken and the warning given as in single calls."""
    trainer = Trainer(server.trainer)
    trainer.run(100.0, monitor="nvml")
    trial = trainer.next()
    sent = v1.StreamResultsRequest(result=result(trial, 10.0, metric=0.1, monitor="rapl"))
    (answer,) = server.trainer.StreamResults(iter([sent]))
    assert "measured by rapl, earlier results" in answer.decision.warning
    assert get(server, trial).monitor == "rapl"


@pytest.mark.parametrize(
    "monitor", ["x" * 51, "nvml\n", "\u202eestimate", "nvml then rapl", " or estimate", "a or estimate or estimate"]
)
def test_senseless_monitor_is_refused(server: LiveServer, monitor: str) -> None:
    """A name that is too long or does not print is named together with the other faults, and nothing is changed."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    with refused() as refusal:
        trainer.report(trial, -1.0, monitor=monitor)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_RESULT")
    assert set(refusal.faults) == {"result.energy_joules", "result.monitor"}
    assert "give at most 50 printable characters, such as 'nvml', without ' then '" in refusal.faults["result.monitor"]
    assert (get(server, trial).monitor, get(server, trial).last_epoch) == ("", 0)


def test_kinds_without_number_are_not_kept(server: LiveServer) -> None:
    """A trial that names another monitor in every result makes four of them known, and no more."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    for epoch in range(1, 8):
        trainer.report(trial, 10.0, metric=0.1, epoch=epoch, monitor=f"monitor {epoch}")
    assert get(server, trial).monitor == "monitor 1 then monitor 2 then monitor 3 then monitor 4"


def test_server_logs_it_once_per_trial(watched: WatchedServer) -> None:
    """One warning per trial, with both kinds, however many results follow."""
    trainer = Trainer(watched.trainer)
    trial, _ = warned_trial(trainer)
    trainer.report(trial, 20.0, metric=0.1, epoch=2, monitor="estimate")
    (line,) = watched.events("monitors differ")
    assert (line["level"], line["job"], line["trial"]) == ("warning", trainer.job_id, 2)
    assert (line["monitor"], line["other_monitor"]) == ("estimate", "nvml")
    (decided,) = watched.events("trial decided")
    assert (decided["cost_joules"], decided["monitor"]) == (100.0, "nvml")


def test_monitor_costs_one_row_more_once(watched: WatchedServer) -> None:
    """A result that says what is known already is one row in the database, as ever."""
    trainer = Trainer(watched.trainer)
    trainer.run(100.0, monitor="nvml")
    trial = trainer.next()

    def rows_of(epoch: int) -> float:
        before = watched.figure("wattwise_commit_rows_sum")
        trainer.report(trial, float(epoch), metric=0.1, epoch=epoch, monitor="nvml")
        return watched.figure("wattwise_commit_rows_sum") - before

    assert [rows_of(epoch) for epoch in (1, 2, 3)] == [2, 1, 1]


def test_older_file_is_brought_forward(server: LiveServer) -> None:
    """A file from before there were kinds keeps its jobs and trials, whose monitor is unknown, and takes new ones."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    trainer.report(trial, 10.0, metric=0.1)
    server.stop()
    _take_back_to_version_2(server)
    server.start()
    assert (get(server, trial).monitor, job_of(server, trainer).monitor) == ("", "")
    assert trainer.report(trial, 20.0, epoch=2, monitor="rapl").warning == ""
    assert (get(server, trial).monitor, job_of(server, trainer).monitor) == ("rapl", "rapl")


def _take_back_to_version_2(server: LiveServer) -> None:
    """Copies the file's rows into one that was made by the first two migrations alone."""
    newer = server.database.with_suffix(".newer")
    server.database.rename(newer)
    steps = {version: sql for version, sql in migrations().items() if version <= 2}
    with closing(sqlite3.connect(server.database, isolation_level=None)) as older:
        migrate(older, str(server.database), steps)
        older.execute("ATTACH ? AS newer", (str(newer),))
        for table in ("jobs", "arms", "trials", "measurements"):
            columns = [row[1] for row in older.execute(f"PRAGMA main.table_info({table})")]
            assert "monitor" not in columns
            names = ", ".join(columns)
            older.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM newer.{table}")  # noqa: S608 - names of the schema
