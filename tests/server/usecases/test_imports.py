"""Trials that ran without the server: history, training during an outage, the rest of a lost trial."""

from __future__ import annotations

import math
import random
import signal
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason
from wattwise_server.domain import Measurement
from wattwise_server.store.changes import DeleteJob
from wattwise_server.usecases.imports import UNKNOWN_TIME, ImportedTrial, Importer

from tests.jobs import Trainer, monitor_of, power_setting
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import Site, draft
from tests.server.usecases.test_leases import get, lose
from tests.server.usecases.test_monitors import details_of, job_of
from tests.watched import WatchedServer

POLICIES = ["pruning_gts", "gts", "knowledge_gradient"]


def epochs(*metrics: float, first: int = 1, cost: float = 10.0) -> list[v1.Measurement]:
    """Measurements of consecutive epochs, each of which costs the same when eta is 1, and takes a second."""
    return [
        v1.Measurement(epoch=epoch, time_seconds=epoch, energy_joules=epoch * cost, metric=metric)
        for epoch, metric in enumerate(metrics, first)
    ]


def imported(trainer: Trainer, launch_id: str = "a", batch_size: int = 16, **fields: Any) -> v1.ImportTrialResponse:
    """Import a trial."""
    request = v1.ImportTrialRequest(job_id=trainer.job_id, launch_id=launch_id, batch_size=batch_size, **fields)
    return trainer.stub.ImportTrial(request)


def stored(server: LiveServer, trial: v1.Trial) -> Sequence[v1.Measurement]:
    """The measurements that the server has of a trial."""
    return server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements


def test_history_is_recorded_as_it_ran(server: LiveServer) -> None:
    """An imported trial has the next number, its own times, measurements, monitor and limit, and it has ended."""
    trainer = Trainer(server.trainer)
    trainer.run(100.0)
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    measured = epochs(0.1, 0.5, 0.95)
    measured[1].report_time.FromDatetime(start + timedelta(seconds=2.5))
    measured[2].power_setting.limit_watts_per_gpu = 225.5
    answer = imported(
        trainer,
        measurements=measured,
        end_reason=v1.END_REASON_COMPLETED,
        start_time=start,
        monitor=monitor_of("nvml"),
    )
    trial = answer.trial
    assert (answer.created, trial.id.trial_number, trial.batch_size) == (True, 2, 16)
    assert (trial.origin, trial.status) == (v1.TRIAL_ORIGIN_IMPORTED, v1.TRIAL_STATUS_DECIDED)
    assert (trial.end_reason, trial.converged) == (v1.END_REASON_TARGET_REACHED, True)
    assert (trial.newest.time_seconds, trial.newest.energy_joules, trial.cost, trial.newest.epoch) == (
        3.0,
        30.0,
        30.0,
        3,
    )
    assert trial.start_time.ToDatetime(timezone.utc) == start
    assert trial.end_time.ToDatetime(timezone.utc) == start + timedelta(seconds=3)
    assert (trial.newest.power_setting.limit_watts_per_gpu, trial.monitor) == (225.5, monitor_of("nvml"))
    assert get(server, trial) == trial
    kept = stored(server, trial)
    assert [m.metric for m in kept] == [0.1, 0.5, 0.95]
    times = [m.report_time.ToDatetime(timezone.utc) - start for m in kept]
    assert times == [timedelta(seconds=seconds) for seconds in (1, 2.5, 3)]
    job = job_of(server, trainer)
    assert (job.num_trials, job.min_cost, job.min_cost_batch_size) == (2, 30.0, 16)


def test_unknown_start_stays_unknown(server: LiveServer) -> None:
    """Without a start time a trial has none; its end and its measurements are of the import, also after a restart."""
    trainer = Trainer(server.trainer)
    before = job_of(server, trainer).create_time.ToDatetime()
    trial = imported(trainer, measurements=epochs(0.1, 0.95)).trial
    assert not trial.HasField("start_time")
    assert trial.end_time.ToDatetime() > before
    assert {each.report_time.ToDatetime() for each in stored(server, trial)} <= {trial.end_time.ToDatetime()}
    server.kill()
    server.start()
    assert get(server, trial) == trial


async def test_import_can_share_a_commit_with_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a commit keeps the order in which it was saved: the imported trial comes before its measurements."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(draft())
    writer, deletion = site.store.writer, DeleteJob(0, "none", 0, 0)
    submit = writer.submit
    monkeypatch.setattr(writer, "submit", lambda owner, rows, then=None: submit(owner, [*rows, deletion], then))
    measured = [Measurement(epoch, epoch, epoch, 0.1, UNKNOWN_TIME) for epoch in (1, 2)]
    importer = Importer(site.store)
    await importer.import_trial(ImportedTrial("j", "a", 16, measured, EndReason.COMPLETED))
    assert site.rows() == {(1, 1): [1, 2]}
    await site.close()


def test_validated_import_changes_nothing(server: LiveServer) -> None:
    """The answer is that of the import, or its refusal; the job, a running trial and the next number are unchanged."""
    trainer = Trainer(server.trainer)
    running = trainer.next("launch")
    trainer.report(running, 10.0, metric=0.1)
    before = job_of(server, trainer)
    measured = epochs(0.1, 0.95, cost=20.0)
    foreseen = imported(trainer, "a", measurements=measured, validate_only=True)
    rest = imported(trainer, "launch", running.batch_size, measurements=epochs(0.95, first=2), validate_only=True)
    assert (rest.created, rest.trial.id, rest.trial.converged) == (False, running.id, True)
    with refused() as refusal:
        imported(trainer, "launch", 64, measurements=measured, validate_only=True)
    assert list(refusal.faults) == ["batch_size"]
    assert job_of(server, trainer) == before
    assert get(server, running).status == v1.TRIAL_STATUS_RUNNING
    answer = imported(trainer, "a", measurements=measured)
    assert answer.created
    assert foreseen.created
    for trial in (answer.trial, foreseen.trial):
        trial.ClearField("end_time")
        trial.newest.ClearField("report_time")
    assert foreseen.trial == answer.trial


@pytest.mark.parametrize("ended", ["by its trainer", "by a decision"])
def test_resumed_import_ends_when_it_ends(server: LiveServer, ended: str) -> None:
    """An import that was resumed has run under the server since, so that its newest report is not its end."""
    trainer = Trainer(server.trainer)
    past = datetime(2026, 1, 2, tzinfo=timezone.utc)
    measured = epochs(0.1)
    measured[0].report_time.FromDatetime(past)
    first = imported(trainer, measurements=measured, end_reason=v1.END_REASON_PREEMPTED).trial
    assert first.end_time.ToDatetime(timezone.utc) == past
    resumed = trainer.next("a", resume=True)
    before = datetime.now(timezone.utc)
    if ended == "by its trainer":
        found = trainer.end(resumed, v1.END_REASON_ERROR)
    else:
        trainer.report(resumed, 20.0, epoch=2, time=2.0)
        found = get(server, resumed)
    assert (found.id, found.origin) == (first.id, v1.TRIAL_ORIGIN_IMPORTED)
    assert before <= found.end_time.ToDatetime(timezone.utc) <= datetime.now(timezone.utc)


@pytest.mark.parametrize(("joules", "monitor", "warns"), [(301, "", True), (300, "", False), (301, "rapl", False)])
def test_power_beyond_the_gpus(server: LiveServer, joules: float, monitor: str, warns: bool) -> None:
    """Energy in a wrong unit has a warning, unless a monitor is named that may measure more than GPUs."""
    trainer = Trainer(server.trainer)
    named = monitor_of(monitor) if monitor else None
    trial = imported(trainer, measurements=epochs(0.1, 0.95, cost=joules), monitor=named).trial
    found = [(warning.reason, warning.field) for warning in trial.warnings]
    assert found == [(v1.WARNING_REASON_POWER_OUT_OF_RANGE, "result.measurement.energy_joules")] * warns


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("COMPLETED", "FAILED"),
        ("ERROR", "FAILED"),
        ("OUT_OF_MEMORY", "FAILED"),
        ("PREEMPTED", "INTERRUPTED"),
        ("LOST", "INTERRUPTED"),
    ],
)
def test_undecided_trial_ends_as_the_client_says(server: LiveServer, reason: str, status: str) -> None:
    """Measurements that show neither the target nor the last epoch leave the end to the client; there may be none."""
    trainer = Trainer(server.trainer)
    ended = v1.EndReason.Value(f"END_REASON_{reason}")
    for number, measured in enumerate((epochs(0.1, 0.2), []), 1):
        trial = imported(trainer, f"r{number}", measurements=measured, end_reason=ended).trial
        assert (trial.status, trial.end_reason) == (v1.TrialStatus.Value(f"TRIAL_STATUS_{status}"), ended)
        assert (trial.converged, trial.newest.epoch) == (False, len(measured))
    state = details_of(server, trainer).batch_size_states[1]
    assert state.num_failed == (0 if reason == "PREEMPTED" else 2)
    assert not job_of(server, trainer).HasField("min_cost")


def test_what_comes_after_the_decision_does_not_count(server: LiveServer) -> None:
    """The first epoch at the target ends a trial; later ones are not stored, whatever the client says of the end."""
    trainer = Trainer(server.trainer)
    measured = epochs(0.1, 0.95, 0.99)
    trial = imported(trainer, measurements=measured, end_reason=v1.END_REASON_OUT_OF_MEMORY).trial
    assert (trial.end_reason, trial.newest.epoch, trial.cost) == (v1.END_REASON_TARGET_REACHED, 2, 20.0)
    assert len(stored(server, trial)) == 2


def test_last_epoch_is_a_miss(server: LiveServer) -> None:
    """A trial that reached max_epochs without the target is decided, not failed."""
    trainer = Trainer(server.trainer, max_epochs=3)
    trial = imported(trainer, measurements=epochs(0.1, 0.2, 0.3), end_reason=v1.END_REASON_MAX_EPOCHS).trial
    assert (trial.status, trial.end_reason) == (v1.TRIAL_STATUS_DECIDED, v1.END_REASON_MAX_EPOCHS)
    assert not trial.converged


@pytest.mark.parametrize("higher", [True, False])
def test_import_has_no_bound(server: LiveServer, higher: bool) -> None:
    """A trial far above the bound of its job still converges if it reached the target, in either direction."""
    trainer = Trainer(server.trainer, higher_is_better=higher, target_metric=0.5)
    cheap = imported(trainer, "a", measurements=epochs(0.5), batch_size=8).trial
    expensive = imported(trainer, "b", measurements=epochs(0.5, cost=1000.0), batch_size=32).trial
    assert cheap.converged
    assert expensive.converged
    assert job_of(server, trainer).min_cost == 10.0


def test_import_lowers_the_bound_of_running_trials(server: LiveServer) -> None:
    """A cheaper trial that reached the target stops a running one that has cost more than the new bound."""
    trainer = Trainer(server.trainer)
    trainer.run(1000.0)
    silent, running = trainer.next(), trainer.next()
    assert not trainer.report(running, 500.0, metric=0.1).stop_train
    imported(trainer, measurements=epochs(0.1, 0.2), end_reason=v1.END_REASON_COMPLETED)
    assert not trainer.heartbeat(running).stop_train
    imported(trainer, "b", 8, measurements=epochs(0.95))
    assert trainer.heartbeat(running).stop_train
    assert not trainer.heartbeat(silent).stop_train
    assert get(server, running).end_reason == v1.END_REASON_COST_BOUND


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({"launch_id": ""}, {"launch_id"}),
        ({"launch_id": "x" * 201}, {"launch_id"}),
        ({"batch_size": 17}, {"batch_size"}),
        ({"measurements": [v1.Measurement(epoch=1, time_seconds=1, metric=0.5, power_setting=power_setting(0.0))]},
         {"measurements[0].power_setting.limit_watts_per_gpu"}),
        ({"monitor": v1.Monitor(quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED)}, {"monitor"}),
        ({"end_reason": v1.END_REASON_UNSPECIFIED}, {"end_reason"}),
        ({"end_reason": v1.END_REASON_TARGET_REACHED}, {"end_reason"}),
        ({"end_reason": v1.END_REASON_MAX_EPOCHS}, {"end_reason"}),
        ({"end_reason": v1.END_REASON_COST_BOUND}, {"end_reason"}),
        ({"end_reason": v1.END_REASON_JOB_DELETED}, {"end_reason"}),
        ({"start_time": {"seconds": 1 << 60}}, {"start_time"}),
        ({"measurements": epochs(0.1) * 2}, {"measurements[1].epoch"}),
        ({"measurements": epochs(0.1, 0.2)[::-1]}, {f"measurements[1].{name}" for name in (
            "epoch", "time_seconds", "energy_joules")}),
        ({"measurements": [v1.Measurement()]}, {f"measurements[0].{name}" for name in (
            "epoch", "time_seconds", "metric")}),
        ({"measurements": [v1.Measurement(epoch=1, time_seconds=float("nan"), energy_joules=-1,
                                          metric=float("inf"))]},
         {f"measurements[0].{name}" for name in ("time_seconds", "energy_joules", "metric")}),
        ({"launch_id": "", "batch_size": 3, "end_reason": v1.END_REASON_JOB_DELETED},
         {"launch_id", "batch_size", "end_reason"}),
    ],
)  # fmt: skip
def test_all_faults_at_once(server: LiveServer, fields: dict[str, Any], faults: set[str]) -> None:
    """Every invalid field is named in one answer, and nothing is recorded."""
    trainer = Trainer(server.trainer)
    usual: dict[str, Any] = {
        "launch_id": "a",
        "batch_size": 16,
        "measurements": epochs(0.1),
        "end_reason": v1.END_REASON_COMPLETED,
    }
    with refused() as refusal:
        imported(trainer, **(usual | fields))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_REQUEST")
    assert set(refusal.faults) == faults
    assert job_of(server, trainer).num_trials == 0


def test_too_many_measurements_are_refused(server: LiveServer) -> None:
    """An import of more measurements than one call may have names their number."""
    trainer = Trainer(server.trainer, max_epochs=20_000)
    with refused() as refusal:
        imported(trainer, measurements=epochs(*[0.1] * 5_001), end_reason=v1.END_REASON_COMPLETED)
    assert set(refusal.faults) == {"measurements"}
    assert imported(trainer, measurements=epochs(*[0.1] * 5_000), end_reason=v1.END_REASON_COMPLETED).created


def test_unknown_job_is_not_found(server: LiveServer) -> None:
    """A job that is not registered has no imports."""
    with refused() as refusal:
        server.trainer.ImportTrial(v1.ImportTrialRequest(job_id="none", launch_id="a", batch_size=1))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "ERROR_REASON_JOB_NOT_FOUND")


def test_same_request_records_once(server: LiveServer) -> None:
    """A repeated import returns the trial unchanged, whatever it says now; another batch size is refused."""
    trainer = Trainer(server.trainer)
    first = imported(trainer, measurements=epochs(0.1), end_reason=v1.END_REASON_ERROR)
    again = imported(trainer, measurements=epochs(0.1, 0.95), end_reason=v1.END_REASON_OUT_OF_MEMORY)
    assert (first.created, again.created) == (True, False)
    assert again.trial == first.trial
    assert trainer.next("a") == first.trial
    with refused() as refusal:
        imported(trainer, batch_size=8, measurements=epochs(0.1), end_reason=v1.END_REASON_ERROR)
    assert set(refusal.faults) == {"batch_size"}
    assert job_of(server, trainer).num_trials == 1


def test_newest_measurements_are_kept(server: LiveServer) -> None:
    """An import is bounded as live reports are: of a long trial the newest epochs are kept."""
    trainer = Trainer(server.trainer)
    server.stop()
    server.start("--max-epochs-kept", "3")
    trial = imported(trainer, measurements=epochs(*[0.1] * 9), end_reason=v1.END_REASON_COMPLETED).trial
    assert [m.epoch for m in stored(server, trial)] == [7, 8, 9]


def test_rest_of_a_running_trial_decides_it(server: LiveServer) -> None:
    """Epochs that the server does not have are added to a dispatched trial, which ends as if they were reported."""
    trainer = Trainer(server.trainer)
    trial = trainer.next("launch")
    # The epoch that it has took longer than the import says.
    trainer.report(trial, 10.0, metric=0.1, time=1.5)
    answer = imported(trainer, "launch", measurements=epochs(0.3, 0.4, 0.95), end_reason=v1.END_REASON_LOST)
    assert not answer.created
    assert (answer.trial.id, answer.trial.pruning_gts.role) == (trial.id, v1.PRUNING_GTS_ROLE_EXPLORATION)
    assert (answer.trial.end_reason, answer.trial.converged) == (v1.END_REASON_TARGET_REACHED, True)
    assert [m.metric for m in stored(server, trial)] == [0.1, 0.4, 0.95]
    assert imported(trainer, "launch", measurements=epochs(0.3)).trial == answer.trial
    assert trainer.next().batch_size == 8


@pytest.mark.parametrize("last", [0.95, 0.2])
def test_rest_of_a_running_trial_is_judged_with_its_bound(server: LiveServer, last: float) -> None:
    """Nobody stopped it at the bound: it counts with all that it cost, and its model is the one that it ended with."""
    trainer = Trainer(server.trainer)
    trainer.run(10.0)
    trial = trainer.next("launch")
    rest = imported(
        trainer,
        "launch",
        trial.batch_size,
        measurements=epochs(0.1, 0.2, 0.3, 0.4, last),
        end_reason=v1.END_REASON_COMPLETED,
    ).trial
    assert (rest.status, rest.end_reason) == (v1.TRIAL_STATUS_DECIDED, v1.END_REASON_COST_BOUND)
    assert (rest.converged, rest.newest.epoch, rest.cost, rest.newest.metric) == (False, 5, 50.0, last)
    assert trainer.heartbeat(trial).target_reached is (last == 0.95)


def test_rest_that_shrinks_is_refused(server: LiveServer) -> None:
    """The first new epoch must not have less time or energy than what was reported, among other faults."""
    trainer = Trainer(server.trainer)
    trainer.report(trainer.next("launch"), 100.0, metric=0.1, time=50.0)
    with refused() as refusal:
        imported(trainer, "launch", measurements=epochs(0.1, math.inf), end_reason=v1.END_REASON_LOST)
    assert set(refusal.faults) == {f"measurements[1].{name}" for name in ("metric", "time_seconds", "energy_joules")}


def test_running_trial_ends_without_measurements(server: LiveServer) -> None:
    """An import without epochs ends a dispatched trial with its reason, LOST included."""
    trainer = Trainer(server.trainer)
    trainer.next("launch")
    trial = imported(trainer, "launch", end_reason=v1.END_REASON_LOST).trial
    assert (trial.status, trial.end_reason) == (v1.TRIAL_STATUS_INTERRUPTED, v1.END_REASON_LOST)


def test_lost_trial_that_reached_the_target_is_decided(server: LiveServer) -> None:
    """A model that was finished while the server was away is not lost."""
    trainer = Trainer(server.trainer, trial_lease_seconds=1)
    trial = trainer.next("launch")
    trainer.report(trial, 10.0, metric=0.1)
    lose(server, trial)
    answer = imported(trainer, "launch", measurements=epochs(0.5, 0.95, first=2), end_reason=v1.END_REASON_COMPLETED)
    assert (answer.trial.status, answer.trial.converged) == (v1.TRIAL_STATUS_DECIDED, True)
    states = details_of(server, trainer).batch_size_states
    assert (states[1].num_converged, states[1].num_failed, states[1].num_running) == (1, 0, 0)


def test_preempted_trial_that_went_on_without_the_server_is_completed(server: LiveServer) -> None:
    """The epochs after a checkpoint revive a preempted trial; without new ones it stays preempted."""
    trainer = Trainer(server.trainer)
    trial = trainer.next("launch")
    trainer.report(trial, 10.0, metric=0.1)
    trainer.end(trial, v1.END_REASON_PREEMPTED)
    same = imported(trainer, "launch", measurements=epochs(0.1), end_reason=v1.END_REASON_COMPLETED).trial
    assert (same.end_reason, same.newest.epoch) == (v1.END_REASON_PREEMPTED, 1)
    answer = imported(trainer, "launch", measurements=epochs(0.1, 0.5, 0.95), end_reason=v1.END_REASON_COMPLETED)
    assert (answer.trial.status, answer.trial.converged, answer.trial.newest.epoch) == (
        v1.TRIAL_STATUS_DECIDED,
        True,
        3,
    )


def test_lost_trial_that_gains_nothing_stays_lost(server: LiveServer) -> None:
    """A lost trial without new epochs stays as it is; it takes new ones, and a better reason of its trainer."""
    trainer = Trainer(server.trainer, trial_lease_seconds=1)
    trial = trainer.next("launch")
    trainer.report(trial, 10.0, metric=0.1)
    lost = lose(server, trial)
    again = imported(trainer, "launch", measurements=epochs(0.1), end_reason=v1.END_REASON_LOST).trial
    assert again == lost
    more = imported(trainer, "launch", measurements=epochs(0.2, first=2), end_reason=v1.END_REASON_LOST).trial
    assert (more.end_reason, more.newest.epoch) == (v1.END_REASON_LOST, 2)
    ended = imported(trainer, "launch", end_reason=v1.END_REASON_ERROR).trial
    assert ended.end_reason == v1.END_REASON_ERROR
    assert details_of(server, trainer).batch_size_states[1].num_failed == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_new_job_chooses_from_its_history(server: LiveServer, policy: str) -> None:
    """A job that starts with imported trials knows the cheapest batch size and what does not fit into memory."""
    trainer = Trainer(server.trainer, policy=policy)
    for number, (size, cost) in enumerate([(8, 900.0), (8, 910.0), (16, 500.0), (16, 510.0), (32, 100.0), (32, 101.0)]):
        assert imported(trainer, f"t{number}", size, measurements=epochs(0.5, 0.95, cost=cost / 2)).trial.converged
    imported(trainer, "oom", 64, end_reason=v1.END_REASON_OUT_OF_MEMORY)
    job = job_of(server, trainer)
    assert (job.min_cost, job.min_cost_batch_size, job.num_trials) == (100.0, 32, 7)
    assert details_of(server, trainer).batch_size_states[3].status == v1.BATCH_SIZE_STATUS_OUT_OF_MEMORY
    answer = trainer.stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=trainer.job_id, launch_id=new_id()))
    if policy == "pruning_gts":
        # The walk is the paper's; while it explores, the others get the cheapest.
        assert (answer.trial.batch_size, answer.trial.pruning_gts.role) == (16, v1.PRUNING_GTS_ROLE_EXPLORATION)
        assert trainer.next().batch_size == 32
    else:
        assert answer.trial.batch_size == 32
        assert "tried first" not in answer.trial.reason


@pytest.mark.parametrize("policy", POLICIES)
def test_import_does_not_move_the_search_of_launches(server: LiveServer, policy: str) -> None:
    """While a trial runs, an imported failure neither takes its slot nor makes the next launch a retry."""
    trainer = Trainer(server.trainer, policy=policy)
    running = trainer.next()
    imported(trainer, batch_size=running.batch_size, end_reason=v1.END_REASON_ERROR)
    assert not trainer.report(running, 10.0, metric=0.1).stop_train
    assert trainer.report(running, 20.0, epoch=2).converged
    imported(trainer, "b", batch_size=running.batch_size, end_reason=v1.END_REASON_ERROR)
    imported(trainer, "c", batch_size=64, measurements=epochs(*[0.1] * 10))
    assert "delivered no model" not in trainer.next().reason


def test_import_is_logged_and_counted(watched: WatchedServer) -> None:
    """An import has a log line of its own and its end, and counts under its own stage; a rest counts what it adds."""
    trainer = Trainer(watched.trainer, eta_knob=0.5)
    imported(trainer, measurements=epochs(0.1, 0.2, 0.95))
    (line,) = watched.events("trial imported")
    assert (line["job"], line["trial"], line["batch_size"], line["epochs"]) == (trainer.job_id, 1, 16, 3)
    assert [line["converged"] for line in watched.events("trial decided")] == [True]
    assert not watched.events("trial dispatched")
    assert watched.figure("wattwise_trials_dispatched_total", origin="imported") == 1
    assert watched.figure("wattwise_trials_ended_total", origin="imported", reason="target_reached") == 1
    assert watched.figure("wattwise_cost_joules_total", origin="imported") == 0.5 * 30 + 0.5 * 100 * 3
    running = trainer.next("launch")
    trainer.report(running, 10.0, metric=0.1, time=2.0)
    trainer.report(running, 15.0, metric=0.1, time=2.25, epoch=2)
    imported(trainer, "launch", measurements=epochs(0.95, first=3))
    assert watched.figure("wattwise_energy_joules_total", origin="search") == 30.0
    assert watched.figure("wattwise_training_seconds_total", origin="search") == 3.0
    assert watched.figure("wattwise_cost_joules_total", origin="search") == 0.5 * 30 + 0.5 * 100 * 3
    assert watched.figure("wattwise_running_trials") == 0


@pytest.mark.thorough
def test_nothing_is_lost_or_doubled_by_kills(server: LiveServer) -> None:
    """Imports that are retried until they are acknowledged are recorded exactly once, wherever the server is killed."""
    trainer = Trainer(server.trainer, policy="knowledge_gradient")
    chance = random.Random(1)
    wanted = {f"r{number}": chance.randint(1, 5) for number in range(40)}
    for number, (launch_id, length) in enumerate(wanted.items()):
        if number % 4 == 0:
            delay = chance.uniform(0, 0.02)
            killer = threading.Timer(delay, lambda: server.process.send_signal(signal.SIGKILL))
            killer.start()
        while True:
            try:
                measured = epochs(*[0.1] * length)
                imported(trainer, launch_id, measurements=measured, end_reason=v1.END_REASON_PREEMPTED)
                break
            except grpc.RpcError:
                server.kill()
                server.start()
        if number % 4 == 0:
            killer.join()
            server.kill()
            server.start()
    trials = server.admin.ListTrials(v1.ListTrialsRequest(job_id=trainer.job_id)).trials
    assert [trial.id.trial_number for trial in trials] == list(range(1, 41))
    assert [trial.newest.epoch for trial in trials] == list(wanted.values())
    assert [len(stored(server, trial)) for trial in trials] == list(wanted.values())


def test_launch_that_was_deleted_with_its_job(server: LiveServer) -> None:
    """A launch that was deleted with its job is not imported, nor into a newer job of this id; other trials are."""
    trainer = Trainer(server.trainer)
    started = trainer.next("a").start_time
    imported(trainer, "history", measurements=epochs(0.95), end_reason=v1.END_REASON_COMPLETED)
    server.admin.DeleteJob(v1.DeleteJobRequest(job_id=trainer.job_id))
    for start, reason in ((started, "TRIAL_DELETED"), (None, "JOB_NOT_FOUND")):
        with refused() as refusal:
            imported(trainer, "spooled", measurements=epochs(0.95), start_time=start)
        assert refusal.reason == f"ERROR_REASON_{reason}"
    for _ in range(2):
        with refused() as refusal:
            imported(trainer, "a", measurements=epochs(0.95), end_reason=v1.END_REASON_COMPLETED)
        assert refusal.reason == "ERROR_REASON_TRIAL_DELETED"
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=trainer.spec))
    for launch_id in ("history", "another"):
        assert imported(trainer, launch_id, measurements=epochs(0.95), end_reason=v1.END_REASON_COMPLETED).created
