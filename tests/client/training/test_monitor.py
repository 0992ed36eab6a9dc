"""What a trainer tells of its monitor, and what it is told of the job's."""

from __future__ import annotations

import logging

import pytest
from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, JobNotFoundError, JobSpec, MonitorError, v1
from wattwise.monitor import Monitor, Window

from tests.client.training.script import StepMonitor, job_spec
from tests.jobs import monitor_of
from tests.live_server import LiveServer


class WallMonitor(StepMonitor):
    """A monitor that somebody built, with a word for itself."""

    kind = "wall-monitor"


class Nameless(StepMonitor):
    """A monitor whose kind is no word."""

    kind = ""


class ZeusLike(StepMonitor):
    """A monitor of the package `zeus`, as far as its class tells."""

    __module__ = "zeus.monitor.energy"


class OwnZeus(ZeusLike):
    """A user's own refinement of one."""


def trained(address: str, monitor: Monitor, spec: JobSpec, *metrics: float) -> BatchSizeOptimizer:
    """A training that has ended, having reported these metrics."""
    with BatchSizeOptimizer(address, spec, monitor=monitor) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        for metric in metrics:
            bso.on_evaluate(metric)
    return bso


@pytest.mark.parametrize(
    ("monitor", "kind"),
    [
        (EstimateMonitor(watts=65), "estimate"),
        (WallMonitor(), "wall-monitor"),
        (StepMonitor(), "custom"),
        (ZeusLike(), "zeus"),
        (OwnZeus(), "zeus"),
    ],
)
def test_kind_travels_with_the_results(grpc_addr: str, monitor: Monitor, kind: str) -> None:
    """The server keeps the kind of the monitor that the trainer was given, and the trainer can be asked for it."""
    spec = job_spec()
    bso = trained(grpc_addr, monitor, spec, 0.95)
    assert bso.trial.monitor_kind == kind
    with Client(grpc_addr) as client:
        assert client.get_trial(bso.trial.id).trial.monitor == monitor_of(kind)
        assert client.get_job(bso.trial.job.spec.job_id).monitor == monitor_of(kind)


def test_monitor_whose_kind_cannot_be_shown_is_refused(grpc_addr: str) -> None:
    """It is an error before the job is registered, and says what to give."""
    spec = job_spec()
    bso = BatchSizeOptimizer(grpc_addr, spec, monitor=Nameless())
    with pytest.raises(MonitorError, match="give it one of 1 to 50 printable characters"):
        bso.get_batch_size()
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError):
        client.get_job(spec.job_id or "")


def test_another_monitor_is_warned_of_once(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the trainer's log names both kinds, however many epochs follow; the decision says it each time."""
    spec = job_spec()
    trained(grpc_addr, WallMonitor(), spec, 0.1, 0.95)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    bso = trained(grpc_addr, EstimateMonitor(watts=1), spec, 0.1, 0.2, 0.3)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "trial 2 is measured by estimate, earlier results" in said
    assert "by wall-monitor: their costs cannot be compared" in said
    assert bso.decision is not None
    assert bso.decision.warning == said


class Failing(WallMonitor):
    """A monitor that answers nothing in the named window, counted from 1."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self._left = fails

    def end_window(self, name: str) -> Window:
        self._left -= 1
        measured = super().end_window(name)
        if self._left == 0:
            raise RuntimeError("no answer from the wall plug")
        return measured


@pytest.mark.parametrize("fails", [1, 2])
def test_monitor_that_fails_for_one_window_is_no_other(
    grpc_addr: str, caplog: pytest.LogCaptureFixture, fails: int
) -> None:
    """A job stays of one monitor: nobody is told to give it another job_id, and its energy is marked as an estimate."""
    spec = job_spec()
    trained(grpc_addr, WallMonitor(), spec, 0.95)
    bso = trained(grpc_addr, Failing(fails), spec, 0.1, 0.2, 0.95)
    trained(grpc_addr, WallMonitor(), spec, 0.95)
    assert not [message for message in caplog.messages if "cannot be compared" in message]
    assert "no answer from the wall plug" in caplog.text
    assert bso.decision is not None
    assert bso.decision.message.endswith("the energy is partly an estimate")
    with Client(grpc_addr) as client:
        job, trials = client.get_job(bso.trial.job.spec.job_id), list(client.list_trials(bso.trial.job.spec.job_id))
    wall = monitor_of("wall-monitor")
    partly = v1.Monitor(kinds=["wall-monitor"], estimated=True, partly=True)
    assert job.monitor == partly
    assert not job.HasField("other_monitor")
    assert [trial.monitor for trial in trials] == [wall, partly, wall]


def test_warning_reaches_a_trainer_that_cannot_stream(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """Where streams are refused, single calls bring the warning, once as well."""
    server.stop()
    server.start("--max-streams", "1")
    spec = job_spec()
    with BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor()) as other:
        other.get_batch_size()
        other.on_train_begin()
        other.on_evaluate(0.1)
        trained(server.address, StepMonitor(), spec, 0.95)
        trained(server.address, WallMonitor(), spec, 0.1, 0.2)
    (said,) = [record.getMessage() for record in caplog.records if "cannot be compared" in record.getMessage()]
    assert "measured by wall-monitor, earlier results" in said
