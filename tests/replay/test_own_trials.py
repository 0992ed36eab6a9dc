"""A job's own trials as the trace of a replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise import Client, v1
from wattwise.commands.main import main
from wattwise.driver.history import History, HistoryRecord
from wattwise.errors import JobNotFoundError
from wattwise.rules import EndReason
from wattwise_replay import own_trials
from wattwise_replay.errors import ReplayError
from wattwise_replay.over_grpc import OverGrpc
from wattwise_replay.play import play
from wattwise_replay.workload import Crash, PowerPoint, RecordedRun, Workload
from wattwise_replay.world import World

from tests.client.driver.test_history import RECORD
from tests.jobs import monitor_of
from tests.live_server import LiveServer
from tests.replay.worlds import job, workload

# At η = 0.5 and P = 300 W, 10 s and 2000 J cost 0.5·2000 + 0.5·300·10 = 2500 J.
_REACHED = replace(
    RECORD, batch_size=16, epochs=5, time_seconds=10.0, energy_joules=2000.0, cost=2500.0, end_reason="target reached"
)
_MISSED = replace(_REACHED, reached=False, end_reason="max epochs")


def _history(folder: Path, *records: HistoryRecord) -> Path:
    """The history of a run with these trials."""
    path = folder / "mnist-nightly" / "history.jsonl"
    path.parent.mkdir(exist_ok=True)
    history = History(path)
    for number, record in enumerate(records, 1):
        history.append(replace(record, trial=number))
    return path


def test_trials_become_recorded_runs(tmp_path: Path) -> None:
    """What reached, what was stopped and what crashed; the epoch is the mean over all that was measured."""
    path = _history(
        tmp_path,
        _REACHED,
        replace(_MISSED, epochs=7, time_seconds=8.0, energy_joules=400.0, cost=1400.0, end_reason="cost bound"),
        replace(_REACHED, end_reason="cost bound", epochs=6, time_seconds=12.0, energy_joules=2400.0, cost=3000.0),
        replace(_MISSED, end_reason="error", epochs=2, time_seconds=4.0, energy_joules=800.0, cost=1000.0),
        replace(_MISSED, end_reason="preempted", epochs=1, time_seconds=2.0, energy_joules=400.0, cost=500.0),
        replace(_REACHED, batch_size=32),
        replace(_MISSED, batch_size=64, end_reason="out of memory", epochs=0, time_seconds=None, cost=None),
    )
    read = own_trials.from_history(path, 0.5)
    assert read.sizes == [16, 32]
    crash = RecordedRun(None, Crash(2, EndReason.ERROR))
    assert read.of(16).runs == (RecordedRun(5), RecordedRun(None), RecordedRun(6), crash)
    assert read.of(16).points == (PowerPoint(300.0, 36 / 21, 6000 / 36),)
    assert (read.name, read.default_batch_size, read.max_epochs, read.max_power_watts) == ("mnist-nightly", 16, 7, 300)


def test_each_power_limit_has_its_own_epoch(tmp_path: Path) -> None:
    """Trials at 150 W and at 250 W are two points; a trial without a limit ran at the highest."""
    path = _history(
        tmp_path,
        replace(_REACHED, limit_watts_per_gpu=250.0),
        replace(_REACHED, limit_watts_per_gpu=150.0, time_seconds=20.0, energy_joules=1000.0, cost=3500.0),
        _REACHED,
    )
    points = own_trials.from_history(path, 0.5).of(16).points
    assert points == (PowerPoint(150.0, 4.0, 50.0), PowerPoint(250.0, 2.0, 200.0), PowerPoint(300.0, 2.0, 200.0))


def test_observer_mode_counts_what_was_computed(tmp_path: Path) -> None:
    """Of a trial in observer mode the computed usage counts, at the limit that it was computed for, as in its cost."""
    observed = replace(
        _REACHED,
        limit_watts_per_gpu=300.0,
        cost=3000.0,
        computed_time_seconds=15.0,
        computed_energy_joules=1500.0,
        computed_limit_watts_per_gpu=175.0,
    )
    path = _history(tmp_path, observed)
    read = own_trials.from_history(path, 0.5)
    assert (read.of(16).points, read.max_power_watts) == ((PowerPoint(175.0, 3.0, 100.0),), 300)


def test_another_eta_than_the_jobs_is_refused(tmp_path: Path) -> None:
    """The highest power follows from the costs, which contradict each other with another eta."""
    path = _history(tmp_path, _REACHED, replace(_REACHED, energy_joules=1000.0, cost=2000.0))
    assert own_trials.from_history(path, 0.5).max_power_watts == 300
    with pytest.raises(ReplayError, match=r"do not fit --eta 0\.25; use the eta_knob of its job"):
        own_trials.from_history(path, 0.25)


def test_where_energy_alone_counts_the_highest_power_does_not_matter(tmp_path: Path) -> None:
    """With eta 1 the costs say nothing about it: the highest known limit, else the mean power."""
    path = _history(tmp_path, replace(_REACHED, cost=2000.0))
    assert own_trials.from_history(path, 1.0).max_power_watts == 200
    path = _history(tmp_path, replace(_REACHED, cost=2000.0, limit_watts_per_gpu=250.0))
    assert own_trials.from_history(path, 1.0).max_power_watts == 250


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ((), "use the history.jsonl in the folder of a run"),
        (
            (replace(_MISSED, time_seconds=None, energy_joules=None, cost=None),),
            "has no measured trial; use the history.jsonl",
        ),
        (
            (replace(_MISSED, end_reason="preempted"), replace(_REACHED, batch_size=32)),
            "no measurements of its default batch size 16; there are 32",
        ),
    ],
)
def test_a_history_that_says_too_little(
    records: tuple[HistoryRecord, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names what is missing in one line."""
    assert main(("replay", "--history", str(_history(tmp_path, *records)))) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_the_command_replays_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workload has the name of the run's folder."""
    path = _history(tmp_path, _REACHED, replace(_REACHED, batch_size=32))
    assert main(("replay", "--history", str(path), "--seeds", "1", "--json", "-")) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["workload"], found["recurrences"]) == ("mnist-nightly", 4)


def _trained(client: Client, made: Workload, job_id: str) -> None:
    """A job with eight recurrences of a workload."""
    play(OverGrpc(client, replace(job(made), job_id=job_id)), World(made), seed=1, recurrences=8)


def test_a_job_on_a_server_is_its_own_workload(grpc_server: LiveServer) -> None:
    """Every trial of the server is a run, with the job's configuration; an epoch costs what it did."""
    made = workload(3, 2, None)
    with Client(grpc_server.address) as client:
        _trained(client, made, "replay-own")
        read = own_trials.from_server(client, "replay-own")
        counted = len(list(client.trials("replay-own")))
    assert (read.sizes, read.default_batch_size, read.max_epochs) == ([8, 16, 32], 8, 10)
    assert not read.has_estimates
    assert sum(len(each.runs) for each in read.batch_sizes) == counted
    assert {run.target_epoch for run in read.of(16).runs} == {2}
    assert {run.target_epoch for run in read.of(32).runs} == {None}
    (point,) = read.of(16).points
    assert point == PowerPoint(200.0, 1.0, 150.0)


def test_the_jobs_server_is_only_read(grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The replay of a job runs in process: the server has no new job afterwards."""
    with Client(grpc_server.address) as client:
        _trained(client, workload(3, 2), "replay-read")
        before = {each.job.spec.job_id for each in client.jobs()}
        words = ("--job", "replay-read", "--server", grpc_server.address, "--seeds", "1", "--json", "-")
        assert main(("replay", *words)) == 0
        assert {each.job.spec.job_id for each in client.jobs()} == before
    assert json.loads(capsys.readouterr().out)[0]["workload"] == "replay-read"


def test_a_target_reached_too_expensively_is_reached(grpc_server: LiveServer) -> None:
    """A trial over the cost bound whose metric reached the target is a run that took so many epochs."""
    made = workload(1, 1)
    with Client(grpc_server.address) as client:
        client.register_job(replace(job(made), job_id="replay-late", beta_knob=0.5))
        for _ in range(2):
            trial = client.get_next_batch_size("replay-late").trial.id
            decision = client.report_result(
                v1.TrainingResult(
                    trial=trial,
                    measurement=v1.Measurement(time_seconds=1.0, energy_joules=150.0, metric=0.9, epoch=1),
                    monitor=monitor_of("estimate"),
                )
            )
        assert (decision.converged, decision.target_reached) == (False, True)
        read = own_trials.from_server(client, "replay-late")
    assert read.has_estimates
    assert {run.target_epoch for each in read.batch_sizes for run in each.runs} == {1}


def test_faults_of_a_job_are_named(grpc_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown job, whose error names the nearest one, and one without trials."""
    with Client(grpc_server.address) as client:
        with pytest.raises(JobNotFoundError):
            own_trials.from_server(client, "replay-nowhere")
        client.register_job(replace(job(workload(1)), job_id="replay-new"))
        with pytest.raises(ReplayError, match="job 'replay-new' has no measured trial yet"):
            own_trials.from_server(client, "replay-new")
    assert main(("replay", "--job", "replay-nwe", "--server", grpc_server.address)) == 1
    assert "did you mean 'replay-new'?" in capsys.readouterr().err


def test_the_usual_server_has_the_job(
    grpc_server: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --server, --job reads from the server of other commands; a replay without --job calls none."""
    with Client(grpc_server.address) as client:
        _trained(client, workload(3, 2), "replay-usual")
        monkeypatch.setenv("WATTWISE_SERVER", grpc_server.address)
        assert main(("replay", "--job", "replay-usual", "--seeds", "1", "--json", "-")) == 0
        assert json.loads(capsys.readouterr().out)[0]["workload"] == "replay-usual"
        before = {each.job.spec.job_id for each in client.jobs()}
        assert main(("replay", "--synthetic", "1", "--seeds", "1", "--policy", "gts")) == 0
        assert {each.job.spec.job_id for each in client.jobs()} == before
    monkeypatch.setenv("WATTWISE_SERVER", "127.0.0.1:1")
    assert main(("replay", "--job", "replay-usual")) == 1
    assert "server at 127.0.0.1:1" in capsys.readouterr().err
