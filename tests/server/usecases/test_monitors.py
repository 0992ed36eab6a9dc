"""What a trial's energy comes from: where it is kept and shown, and the warning of a change."""

from __future__ import annotations

from typing import cast

import grpc
import pytest
from wattwise import v1

from tests.jobs import Trainer, monitor_of, result
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.usecases.test_leases import get, lose
from tests.watched import WatchedServer

PARTLY = v1.ENERGY_QUALITY_PARTLY_ESTIMATED
NVML, RAPL, ESTIMATE = monitor_of("nvml"), monitor_of("rapl"), monitor_of("estimate")
BOTH = monitor_of("nvml", "rapl")


def job_of(server: LiveServer, trainer: Trainer) -> v1.Job:
    """The job as the server shows it."""
    return server.admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).job


def details_of(server: LiveServer, trainer: Trainer) -> v1.JobDetails:
    """What the job knows about its batch sizes."""
    return server.admin.GetJob(v1.GetJobRequest(job_id=trainer.job_id)).details


def warned_trial(trainer: Trainer) -> tuple[v1.Trial, v1.Decision]:
    """A running trial of an estimate, in a job whose first trial was measured; and the decision on it."""
    trainer.run(100.0, monitor=NVML)
    trial = trainer.next()
    return trial, trainer.report(trial, 10.0, metric=0.1, monitor=ESTIMATE)


def test_monitor_is_shown_wherever_energy_is(server: LiveServer) -> None:
    """GetTrial, ListTrials, GetJob and ListJobs return the monitor of running and ended trials."""
    trainer = Trainer(server.trainer)
    ended, running = trainer.run(10.0, monitor=BOTH), trainer.next()
    trainer.report(running, 5.0, metric=0.1, monitor=BOTH)
    assert [get(server, trial).monitor for trial in (ended, running)] == [BOTH] * 2
    listed = server.admin.ListTrials(v1.ListTrialsRequest(job_id=trainer.job_id)).trials
    assert [(trial.monitor, len(trial.other_monitors)) for trial in listed] == [(BOTH, 0)] * 2
    (job,) = server.admin.ListJobs(v1.ListJobsRequest()).jobs
    assert job.job.monitor == job_of(server, trainer).monitor == BOTH
    assert not job.job.other_monitors


def test_unknown_monitor_is_unset(server: LiveServer) -> None:
    """A trainer may name no monitor; trial and job then have none."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    assert not trainer.report(trial, 10.0, metric=0.1).warnings
    assert not get(server, trial).HasField("monitor")
    assert not job_of(server, trainer).HasField("monitor")


def test_unknown_quality_refuses_no_report(server: LiveServer) -> None:
    """A quality of a newer contract counts as estimated, and is ignored without kinds."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    newer = cast("v1.EnergyQuality.ValueType", 7)
    trainer.report(trial, 10.0, metric=0.1, monitor=v1.Monitor(quality=newer))
    assert not get(server, trial).HasField("monitor")
    trainer.report(trial, 20.0, metric=0.1, epoch=2, monitor=v1.Monitor(kinds=["new"], quality=newer))
    assert get(server, trial).monitor == v1.Monitor(kinds=["new"], quality=v1.ENERGY_QUALITY_ESTIMATED)


def test_kind_named_twice_is_one(server: LiveServer) -> None:
    """A kind that a result repeats is stored once."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    trainer.report(trial, 10.0, metric=0.1, monitor=monitor_of("nvml", "rapl", "nvml"))
    assert get(server, trial).monitor == BOTH


@pytest.mark.parametrize(
    ("monitor", "ending"),
    [
        (ESTIMATE, "; the energy is an estimate"),
        (monitor_of("nvml", "estimate"), "; the energy is partly an estimate"),
        (v1.Monitor(kinds=["nvml"], quality=PARTLY), "; the energy is partly an estimate"),
        (monitor_of("estimated by eye"), "no cost bound yet"),
        (NVML, "no cost bound yet"),
        (None, "no cost bound yet"),
    ],
)
def test_decision_says_that_its_joules_are_estimates(
    server: LiveServer, monitor: v1.Monitor | None, ending: str
) -> None:
    """The message ends with the estimate while training continues, at its end and when repeated."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    assert trainer.report(trial, 10.0, metric=0.1, monitor=monitor).message.endswith(ending)
    last = trainer.report(trial, 20.0, epoch=2, monitor=monitor)
    assert last.message.endswith(ending)
    assert trainer.report(trial, 20.0, epoch=2, monitor=monitor) == last


def test_failed_trial_has_no_estimate_in_its_message(server: LiveServer) -> None:
    """The message about a trial that its trainer has ended does not mention energy."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    trainer.report(trial, 10.0, metric=0.1, monitor=ESTIMATE)
    trainer.end(trial, v1.END_REASON_ERROR)
    assert "estimate" not in trainer.heartbeat(trial).message


def test_warning_names_both_and_says_what_to_do(server: LiveServer) -> None:
    """A trial with another monitor than those before it gets a warning with both monitors and the remedy."""
    trainer = Trainer(server.trainer)
    trial, decision = warned_trial(trainer)
    (warning,) = decision.warnings
    assert (warning.reason, warning.field) == (v1.WARNING_REASON_MONITORS_DIFFER, "result.monitor")
    assert warning.trial_number == 2
    assert warning.message == (
        f"trial 2 is measured by estimate, earlier results of job '{trainer.job_id}' by nvml: "
        "their costs cannot be compared; use a separate job_id for each monitor"
    )
    assert not decision.stop_train
    for shown in (get(server, trial), job_of(server, trainer)):
        assert (shown.monitor, list(shown.other_monitors)) == (ESTIMATE, [NVML])


def test_warning_is_the_same_in_every_answer(server: LiveServer) -> None:
    """A repeat, a result without a monitor, a heartbeat, a revival and the last decision all have the warning."""
    trainer = Trainer(server.trainer, trial_lease_seconds=1)
    trial, decision = warned_trial(trainer)
    lose(server, trial)
    answers = [
        trainer.report(trial, 10.0, metric=0.1, monitor=ESTIMATE),
        trainer.report(trial, 20.0, metric=0.1, epoch=2),
        trainer.heartbeat(trial),
        trainer.report(trial, 30.0, epoch=3, monitor=ESTIMATE),
        trainer.report(trial, 30.0, epoch=3, monitor=ESTIMATE),
    ]
    assert [answer.warnings for answer in answers] == [decision.warnings] * len(answers)


def test_monitor_and_warning_survive_a_kill(server: LiveServer) -> None:
    """Both are durable with the result that named the monitor."""
    trainer = Trainer(server.trainer)
    trial, decision = warned_trial(trainer)
    server.kill()
    server.start()
    assert get(server, trial).monitor == ESTIMATE
    assert (job_of(server, trainer).monitor, list(job_of(server, trainer).other_monitors)) == (ESTIMATE, [NVML])
    assert trainer.report(trial, 20.0, metric=0.1, epoch=2).warnings == decision.warnings


def test_streams_carry_it_too(server: LiveServer) -> None:
    """On a stream the monitor is stored and the warning returned as in unary calls."""
    trainer = Trainer(server.trainer)
    trainer.run(100.0, monitor=NVML)
    trial = trainer.next()
    sent = v1.StreamResultsRequest(result=result(trial, 10.0, metric=0.1, monitor=RAPL))
    (answer,) = server.trainer.StreamResults(iter([sent]))
    assert "measured by rapl, earlier results" in answer.decision.warnings[0].message
    assert get(server, trial).monitor == RAPL


@pytest.mark.parametrize("quality", [v1.ENERGY_QUALITY_UNSPECIFIED, 99])
def test_unknown_quality_counts_as_estimated(server: LiveServer, quality: v1.EnergyQuality.ValueType) -> None:
    """A quality that is unset, or of a newer contract, is stored as an estimate."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    decision = trainer.report(trial, 10.0, metric=0.1, monitor=v1.Monitor(kinds=["nvml"], quality=quality))
    assert decision.message.endswith("; the energy is an estimate")
    assert get(server, trial).monitor == v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_ESTIMATED)


@pytest.mark.parametrize(
    "monitor",
    [
        *(monitor_of(kind) for kind in ("x" * 51, "nvml\n", "\u202eestimate", "")),
        monitor_of(*(f"monitor {n}" for n in range(9))),
        v1.Monitor(quality=v1.ENERGY_QUALITY_ESTIMATED),
        v1.Monitor(quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED),
    ],
)
def test_malformed_monitor_is_refused(server: LiveServer, monitor: v1.Monitor) -> None:
    """An invalid monitor is one of the violations, and nothing is changed."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    with refused() as refusal:
        trainer.report(trial, -1.0, monitor=monitor)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_RESULT")
    assert set(refusal.faults) == {"result.measurement.energy_joules", "result.monitor"}
    assert not get(server, trial).HasField("monitor")
    assert get(server, trial).newest.epoch == 0


def test_names_are_free(server: LiveServer) -> None:
    """Eight kinds, whose names may contain the words and characters that separated kinds in earlier versions."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    names = ["wall or ups", "nvml then rapl", "a+b", 'quoted "\\', "or estimate", "x" * 50, "7", "8"]
    monitor = monitor_of(*names)
    trainer.report(trial, 10.0, metric=0.1, monitor=monitor)
    assert get(server, trial).monitor == monitor


def test_number_of_kinds_is_bounded(server: LiveServer) -> None:
    """A trial that names another monitor in every result keeps eight kinds."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    for epoch in range(1, 11):
        trainer.report(trial, 10.0, metric=0.1, epoch=epoch, monitor=monitor_of(f"monitor {epoch}"))
    assert get(server, trial).monitor.kinds == [f"monitor {n}" for n in range(1, 9)]


def test_newest_other_monitors_are_kept(server: LiveServer) -> None:
    """At most eight other monitors are kept, the newest ones; the last is the one that was replaced last."""
    trainer = Trainer(server.trainer)
    for number in range(9):
        trainer.run(10.0, monitor=monitor_of(f"monitor {number}"))
    last = trainer.run(10.0, monitor=monitor_of("monitor 0"))
    for shown in (get(server, last), job_of(server, trainer)):
        assert list(shown.other_monitors) == [monitor_of(f"monitor {number}") for number in range(1, 9)]
    trainer.run(10.0, monitor=NVML)
    kept = [monitor_of(f"monitor {number}") for number in (2, 3, 4, 5, 6, 7, 8, 0)]
    assert list(job_of(server, trainer).other_monitors) == kept


def test_server_logs_it_once_per_trial(watched: WatchedServer) -> None:
    """One warning per trial, with both monitors, however many results follow."""
    trainer = Trainer(watched.trainer)
    trial, _ = warned_trial(trainer)
    trainer.report(trial, 20.0, metric=0.1, epoch=2, monitor=ESTIMATE)
    (line,) = watched.events("monitors differ")
    assert (line["level"], line["job"], line["trial"]) == ("warning", trainer.job_id, 2)
    assert (line["monitor"], line["other_monitors"]) == ("estimate", "nvml")
    (decided,) = watched.events("trial decided")
    assert (decided["cost_joules"], decided["monitor"]) == (100.0, "nvml")


def test_server_logs_once_that_a_trial_has_no_energy(watched: WatchedServer) -> None:
    """The first result without energy is logged as a warning, unless energy does not count in the job's cost."""
    trainer = Trainer(watched.trainer)
    trial = trainer.next()
    for epoch in (1, 2):
        assert not trainer.report(trial, 0.0, metric=0.1, epoch=epoch).stop_train
    trainer.report(trainer.next(), 5.0, metric=0.1)
    of_time = Trainer(watched.trainer, eta_knob=0)
    of_time.report(of_time.next(), 0.0, metric=0.1)
    (line,) = watched.events("trial warning")
    assert (line["reason"], line["field"]) == ("NO_ENERGY", "result.measurement.energy_joules")
    assert (line["level"], line["job"], line["trial"], line["epoch"]) == ("warning", trainer.job_id, 1, 1)


def test_monitor_costs_one_row_more_once(watched: WatchedServer) -> None:
    """A result whose monitor is known already is one row in the database."""
    trainer = Trainer(watched.trainer)
    trainer.run(100.0, monitor=NVML)
    trial = trainer.next()

    def rows_of(epoch: int) -> float:
        before = watched.figure("wattwise_commit_rows_sum")
        trainer.report(trial, float(epoch), metric=0.1, epoch=epoch, monitor=NVML)
        return watched.figure("wattwise_commit_rows_sum") - before

    assert [rows_of(epoch) for epoch in (1, 2, 3)] == [2, 1, 1]
