"""Leases: lost and revived trials, and their exploration slot."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason
from wattwise_server.domain import PruningGtsRole, TrialId
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.open import open_store
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.report import Report
from wattwise_server.usecases.training import Training

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import Site, report, writing_connection
from tests.server.site import draft as site_draft
from tests.waiting import wait_until

Stub = v1.BatchSizeOptimizerStub


def get(server: LiveServer, trial: v1.Trial) -> v1.Trial:
    """The trial as the server has it, without what trainers are not told."""
    found = server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial
    found.ClearField("decision_message")
    found.ClearField("recurrence")
    return found


def lose(server: LiveServer, trial: v1.Trial) -> v1.Trial:
    """Waits until the trial is lost."""
    wait_until(lambda: get(server, trial).status == v1.TRIAL_STATUS_INTERRUPTED)
    return get(server, trial)


def test_silent_trial_is_lost_and_its_slot_free(server: LiveServer) -> None:
    """A trial whose lease expires is INTERRUPTED and LOST, and its batch size is explored again."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    first = job.next()
    lost = lose(server, first)
    assert lost.end_reason == v1.END_REASON_LOST
    assert not lost.HasField("lease_expire_time")
    events = server.admin.ListEvents(v1.ListEventsRequest(kinds=[v1.EVENT_KIND_TRIAL_INTERRUPTED])).events
    why = "its process ended without saying why, or its lease expired without a report or a heartbeat"
    assert [event.message for event in events] == [f"trial 1, batch size 16, was lost before its first report: {why}"]
    again = job.next()
    assert (again.pruning_gts.role, again.batch_size) == (v1.PRUNING_GTS_ROLE_EXPLORATION, 16)


def test_slot_is_free_the_moment_the_lease_runs_out(server: LiveServer) -> None:
    """The first request after the lease's end explores, before the loss is recorded."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    first = job.next()
    ends = first.lease_expire_time.ToDatetime(timezone.utc)
    wait_until(lambda: datetime.now(timezone.utc) > ends)
    assert job.next().pruning_gts.role == v1.PRUNING_GTS_ROLE_EXPLORATION


def test_trainer_killed_with_sigkill_frees_its_slot(server: LiveServer) -> None:
    """A trainer process that dies silently loses its trial, and the exploration is dispatched again."""
    job = Trainer(server.trainer, trial_lease_seconds=2)
    program = (
        "import grpc, sys, time\nfrom wattwise import v1\n"
        "stub = v1.BatchSizeOptimizerStub(grpc.insecure_channel(sys.argv[1]))\n"
        "trial = stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=sys.argv[2], launch_id='a')).trial\n"
        "print(trial.id.trial_number, flush=True)\n"
        "while True:\n    stub.Heartbeat(v1.HeartbeatRequest(trial=trial.id)); time.sleep(0.1)\n"
    )
    command = [sys.executable, "-c", program, server.address, job.job_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "1\n"
        assert job.next().pruning_gts.role == v1.PRUNING_GTS_ROLE_CONCURRENT
        trainer.kill()
    wait_until(lambda: job.next().pruning_gts.role == v1.PRUNING_GTS_ROLE_EXPLORATION)


def test_heartbeats_and_reports_keep_a_trial_alive(server: LiveServer) -> None:
    """Each heartbeat and each report renews the lease in full."""
    job = Trainer(server.trainer, trial_lease_seconds=60)
    trial = job.next()
    ends = [get(server, trial).lease_expire_time.ToNanoseconds()]
    job.heartbeat(trial)
    ends.append(get(server, trial).lease_expire_time.ToNanoseconds())
    job.report(trial, 1.0, metric=0.1)
    ends.append(get(server, trial).lease_expire_time.ToNanoseconds())
    job.report(trial, 1.0, metric=0.1)
    ends.append(get(server, trial).lease_expire_time.ToNanoseconds())
    assert ends == sorted(set(ends))
    listed = server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id)).trials[0]
    assert listed.lease_expire_time.ToNanoseconds() == ends[-1]


def test_lease_of_zero_never_runs_out(server: LiveServer) -> None:
    """A job without leases shows none, and its silent trial outlives that of a job with one."""
    patient, hasty = Trainer(server.trainer, trial_lease_seconds=0), Trainer(server.trainer, trial_lease_seconds=1)
    silent = patient.next()
    lose(server, hasty.next())
    assert get(server, silent).status == v1.TRIAL_STATUS_RUNNING
    assert not get(server, silent).HasField("lease_expire_time")


def test_lost_trial_that_reports_explores_on(server: LiveServer) -> None:
    """A lost trial whose exploration is still free is revived as the exploration, and moves the walk."""
    job = Trainer(server.trainer, trial_lease_seconds=2)
    trial = job.next()
    lose(server, trial)
    assert not job.report(trial, 5.0, metric=0.1).stop_train
    back = get(server, trial)
    assert (back.status, back.pruning_gts.role) == (v1.TRIAL_STATUS_RUNNING, v1.PRUNING_GTS_ROLE_EXPLORATION)
    assert back.end_reason == v1.END_REASON_UNSPECIFIED
    assert job.next().pruning_gts.role == v1.PRUNING_GTS_ROLE_CONCURRENT
    assert job.report(trial, 10.0, epoch=2).converged
    assert job.next().batch_size == 8


async def test_heartbeat_by_launch_alone_revives(tmp_path: Path) -> None:
    """A heartbeat that names a lost trial by its launch alone revives it, and its trainer goes on."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(site_draft())
    trial = await site.training.next_trial("j", "launch")
    site.now += timedelta(hours=2)
    await site.training.expire_leases()
    assert (await site.training.lookup("j", "launch")).lost
    decision = await site.training.heartbeat(TrialId("j", "launch"))
    assert (decision.stop_train, decision.end_reason) == (False, None)
    again = await site.training.lookup("j", "launch")
    assert (again.number, again.lease_expire_time) == (trial.number, site.now + timedelta(hours=1))
    await site.close()


def test_lost_trial_whose_exploration_was_handed_out_goes_on_as_concurrent(server: LiveServer) -> None:
    """A lost trial that is revived late continues beside the exploration, without moving the walk."""
    job = Trainer(server.trainer, trial_lease_seconds=2)
    late = job.next()
    lose(server, late)
    explorer = job.next()
    assert not job.heartbeat(late).stop_train
    assert get(server, late).pruning_gts.role == v1.PRUNING_GTS_ROLE_CONCURRENT
    assert job.report(late, 10.0).converged
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.min_cost == 10.0
    assert job.report(explorer, 11.0).converged
    assert job.next().batch_size == 8


@pytest.mark.parametrize("end", ["lost", "preempted"])
def test_request_takes_its_trial_back(server: LiveServer, end: str) -> None:
    """A launch resumes its lost or preempted trial, and that survives a kill."""
    job = Trainer(server.trainer, trial_lease_seconds=1 if end == "lost" else 60)
    trial = job.next("launch")
    job.report(trial, 5.0, metric=0.1, epoch=2, time=7.0)
    if end == "lost":
        lose(server, trial)
    else:
        job.end(trial, v1.END_REASON_PREEMPTED)
    server.kill()
    server.start()
    shown = job.next("launch")
    assert (shown.id, shown.status, shown.newest.epoch) == (trial.id, v1.TRIAL_STATUS_INTERRUPTED, 2)
    back = job.next("launch", resume=True)
    assert (back.id, back.status, back.newest.epoch) == (trial.id, v1.TRIAL_STATUS_RUNNING, 2)
    assert (back.newest.time_seconds, back.newest.energy_joules, back.end_reason) == (
        7.0,
        5.0,
        v1.END_REASON_UNSPECIFIED,
    )
    assert back.lease_expire_time.ToDatetime(timezone.utc) > datetime.now(timezone.utc)
    server.kill()
    server.start()
    assert get(server, trial).newest.epoch == 2
    assert job.report(back, 10.0, epoch=3, time=8.0).converged
    assert job.next().id.trial_number == 2


@pytest.mark.parametrize(
    ("end", "status", "end_reason"),
    [
        ("runs", "RUNNING", "UNSPECIFIED"),
        ("preempted", "RUNNING", "UNSPECIFIED"),
        ("error", "FAILED", "ERROR"),
        ("decided", "DECIDED", "TARGET_REACHED"),
        ("over bound", "DECIDED", "COST_BOUND"),
        ("new", "RUNNING", "UNSPECIFIED"),
    ],
)
def test_resumed_trial_says_whether_it_goes_on(server: LiveServer, end: str, status: str, end_reason: str) -> None:
    """The answer to a resume has the trial's state, its newest epoch, and the reason of its first dispatch."""
    job = Trainer(server.trainer)
    if end == "over bound":
        job.run(100.0)
    trial = job.next("launch")
    if end != "new":
        job.report(trial, 50.0, metric=0.1, epoch=2, time=7.0)
    if end in ("preempted", "over bound"):
        job.end(trial, v1.END_REASON_PREEMPTED)
    if end == "error":
        job.end(trial, v1.END_REASON_ERROR)
    if end == "decided":
        job.report(trial, 60.0, metric=0.95, epoch=3, time=8.0)
    if end == "over bound":
        job.next()
        job.report(job.next(), 10.0)
    request = v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id="launch")
    assert server.trainer.GetNextBatchSize(request).trial.reason == trial.reason != ""
    request.resume = True
    resumed = server.trainer.GetNextBatchSize(request).trial
    assert (resumed.reason, resumed.newest.epoch) == (trial.reason, {"new": 0, "decided": 3}.get(end, 2))
    assert resumed.status == v1.TrialStatus.Value(f"TRIAL_STATUS_{status}")
    assert resumed.end_reason == v1.EndReason.Value(f"END_REASON_{end_reason}")


async def test_resume_gives_a_whole_lease(tmp_path: Path) -> None:
    """A trial whose lease expired unnoticed gets a full one when its launch resumes, and keeps its slot."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(site_draft())
    await site.training.next_trial("j", "launch")
    started = site.now
    site.now += timedelta(hours=2)
    back = await site.training.next_trial("j", "launch", resume=True)
    assert (back.running, back.start_time) == (True, started)
    assert back.lease_expire_time == site.now + timedelta(hours=1)
    second = await site.training.next_trial("j", "other")
    assert (back.role, second.role) == (PruningGtsRole.EXPLORATION, PruningGtsRole.CONCURRENT)
    await site.close()


async def test_resumed_exploration_takes_the_slot_of_one_that_is_gone(tmp_path: Path) -> None:
    """A resumed exploration takes the slot from one whose lease has expired."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(site_draft())
    first = await site.training.next_trial("j", "launch")
    await site.training.end_trial(first.key, EndReason.PREEMPTED)
    await site.training.next_trial("j", "other")
    site.now += timedelta(hours=2)
    back = await site.training.next_trial("j", "launch", resume=True)
    assert (back.number, back.role) == (1, PruningGtsRole.EXPLORATION)
    await site.close()


def test_resume_needs_a_known_request(server: LiveServer) -> None:
    """A launch without a trial to resume is refused, and nothing is dispatched."""
    job = Trainer(server.trainer)
    with refused() as unknown:
        job.next("unknown", resume=True)
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "ERROR_REASON_TRIAL_NOT_FOUND")
    with refused() as unnamed:
        job.next("", resume=True)
    assert list(unnamed.faults) == ["launch_id"]
    assert job.next().id.trial_number == 1


def test_refused_report_does_not_revive(server: LiveServer) -> None:
    """An invalid report does not revive a lost trial."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    trial = job.next()
    lose(server, trial)
    with refused() as refusal:
        job.report(trial, -1.0)
    assert (refusal.code, list(refusal.faults)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        ["result.measurement.energy_joules"],
    )
    assert get(server, trial).end_reason == v1.END_REASON_LOST


def test_ended_lost_trial_is_what_its_trainer_says(server: LiveServer) -> None:
    """A lost trial whose trainer was preempted is not a failure: after three the batch size is not pruned."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    for _ in range(3):
        trial = job.next()
        assert trial.batch_size == 16
        lose(server, trial)
        assert job.end(trial, v1.END_REASON_PREEMPTED).end_reason == v1.END_REASON_PREEMPTED
    assert job.next().batch_size == 16


def test_restart_gives_every_running_trial_a_whole_lease(server: LiveServer) -> None:
    """A trial whose lease expired while the server was down runs after the restart, with a full lease."""
    job = Trainer(server.trainer, trial_lease_seconds=1)
    trial = job.next()
    ends = trial.lease_expire_time.ToDatetime(timezone.utc)
    server.kill()
    wait_until(lambda: datetime.now(timezone.utc) > ends)
    server.start()
    assert get(server, trial).status == v1.TRIAL_STATUS_RUNNING
    assert get(server, trial).lease_expire_time.ToDatetime(timezone.utc) > datetime.now(timezone.utc)
    lose(server, trial)


async def test_trials_lost_together_share_commits(tmp_path: Path) -> None:
    """Leases of three hundred jobs that expire at once end their trials in a few commits."""
    time = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'leases.db'}", lambda: time) as store:
        training, administration = Training(store), Administration(store)
        for number in range(300):
            await training.register(site_draft(f"j{number}", trial_lease_seconds=60.0))
            trial = await training.next_trial(f"j{number}", new_id())
            await training.report(Report(trial.key, 1, 1.0, 1.0, 0.1))
        seen: list[str] = []
        await writing_connection(store).set_trace_callback(seen.append)
        time += timedelta(seconds=61)
        await training.expire_leases()
        assert 1 <= seen.count("COMMIT") <= 10
        for number in range(300):
            lost = (await administration.trial(TrialId(f"j{number}", trial_number=1))).trial.trial
            assert (lost.end_reason, lost.end_time) == (EndReason.LOST, time)


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ("UPDATE ON trials", lambda site, key: site.training.end_trial(key, EndReason.ERROR)),
        ("UPDATE ON trials", lambda site, _: site.training.expire_leases()),
        ("DELETE ON jobs", lambda site, _: site.administration.delete_job("j")),
    ],
    ids=["by its trainer", "by its lease", "with its job"],
)
async def test_trial_whose_end_was_not_written_is_lost(
    tmp_path: Path, written: str, end: Callable[[Site, TrialId], Awaitable[object]]
) -> None:
    """A trial whose end could not be written loses its lease like any other, without another call for its job."""
    site = Site(tmp_path / "leases.db")
    await site.open()
    await site.training.register(site_draft())
    trial = await site.training.next_trial("j", new_id())
    site.now += timedelta(hours=2)
    with closing(sqlite3.connect(site.file, isolation_level=None)) as other:
        other.execute(f"CREATE TRIGGER full BEFORE {written} BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(StorageUnavailableError):
            await end(site, trial.key)
        other.execute("DROP TRIGGER full")
    for _ in range(2):
        site.now += timedelta(hours=2)
        await site.training.expire_leases()
    lost = (await site.administration.trial(trial.key)).trial.trial
    assert lost.end_reason is EndReason.LOST
    await site.close()


@pytest.mark.parametrize("then", ["read", "read, cancelled"])
@pytest.mark.parametrize("written", ["INSERT ON measurements", "DELETE ON jobs"])
async def test_failed_commit_costs_no_lease(tmp_path: Path, written: str, then: str) -> None:
    """Hours after the start, a job whose commit fails is read again, and its trials keep a whole lease."""
    site = Site(tmp_path / "leases.db")
    await site.open()
    await site.training.register(site_draft())
    trial = await site.training.next_trial("j", new_id())
    for epoch in range(1, 5):
        site.now += timedelta(minutes=30)
        await report(site, trial.key, epoch)
    deleting = written.startswith("DELETE")
    with closing(sqlite3.connect(site.file, isolation_level=None)) as other:
        other.execute(f"CREATE TRIGGER full BEFORE {written} BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(StorageUnavailableError):
            await (site.administration.delete_job("j") if deleting else report(site, trial.key, 5))
        other.execute("DROP TRIGGER full")
    if then == "read, cancelled":
        reading = asyncio.create_task(site.administration.job("j"))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
    site.now += timedelta(seconds=1)
    await site.administration.job("j")
    await site.training.expire_leases()
    assert (await site.administration.trial(trial.key)).trial.trial.running
    await site.close()


async def test_leases_go_with_their_job(tmp_path: Path) -> None:
    """A deleted job leaves no leases; those of a job that takes its id at that moment stay."""
    site = Site(tmp_path / "leases.db")
    await site.open()
    await site.training.register(site_draft())
    await site.training.next_trial("j", new_id())
    successor = (site.training.register(site_draft()), site.training.next_trial("j", new_id()))
    await asyncio.gather(site.administration.delete_job("j"), *successor)
    assert len(site.store.leases) == 1
    site.now += timedelta(hours=2)
    await site.training.expire_leases()
    assert (await site.administration.trial(TrialId("j", trial_number=1))).trial.trial.end_reason is EndReason.LOST
    await site.administration.delete_job("j")
    assert not site.store.leases
    await site.close()
