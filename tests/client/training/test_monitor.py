"""The kind of a trainer's monitor on the server, and the warning if the kinds of a job's trials differ."""

from __future__ import annotations

import logging
import re

import pytest
from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, JobSpec, v1
from wattwise.errors import JobNotFoundError, MonitorError
from wattwise.monitor import Monitor, Window

from tests.client.training.script import StepMonitor, job_spec
from tests.jobs import monitor_of
from tests.live_server import LiveServer


class WallMonitor(StepMonitor):
    """A user's monitor that names its kind."""

    kind = "wall-monitor"


class Nameless(StepMonitor):
    """A monitor whose kind is empty."""

    kind = ""


class ZeusLike(StepMonitor):
    """A monitor whose class is in the package `zeus`."""

    __module__ = "zeus.monitor.energy"


class OwnZeus(ZeusLike):
    """A user's subclass of a Zeus monitor."""


def trained(address: str, monitor: Monitor, spec: JobSpec, *metrics: float) -> BatchSizeOptimizer:
    """A training that has reported these metrics and ended."""
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
def test_kind_is_reported(grpc_addr: str, monitor: Monitor, kind: str) -> None:
    """The trial and its job have the kind of the trainer's monitor, and so has `bso.trial`."""
    spec = job_spec()
    bso = trained(grpc_addr, monitor, spec, 0.95)
    assert bso.trial.monitor_kind == kind
    with Client(grpc_addr) as client:
        assert client.get_trial(bso.trial).trial.monitor == monitor_of(kind)
        assert client.get_job(bso.trial.job.job_id).job.monitor == monitor_of(kind)


def test_invalid_kind(grpc_addr: str) -> None:
    """An invalid kind raises before the job is registered."""
    spec = job_spec()
    bso = BatchSizeOptimizer(grpc_addr, spec, monitor=Nameless())
    with pytest.raises(MonitorError, match="1 to 50"):
        bso.get_batch_size()
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError):
        client.get_job(spec.job_id)


def test_another_monitor_is_logged_once(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer logs the warning with both kinds once; every decision has it."""
    spec = job_spec()
    trained(grpc_addr, WallMonitor(), spec, 0.1, 0.95)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    bso = trained(grpc_addr, EstimateMonitor(watts=1), spec, 0.1, 0.2, 0.95)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.search(r"trial 2 .* estimate, .* wall-monitor: ", warning)
    assert bso.decision is not None
    assert bso.decision.warnings == (warning,)


class Failing(WallMonitor):
    """A monitor that fails in one window, counted from 1."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self._left = fails

    def end_window(self, name: str) -> Window:
        self._left -= 1
        window = super().end_window(name)
        if self._left == 0:
            raise RuntimeError("no answer from the wall plug")
        return window


@pytest.mark.parametrize("fails", [1, 2])
def test_monitor_that_fails_for_one_window(grpc_addr: str, caplog: pytest.LogCaptureFixture, fails: int) -> None:
    """A failed window marks the energy as partly estimated, and does not count as another monitor."""
    spec = job_spec()
    trained(grpc_addr, WallMonitor(), spec, 0.95)
    bso = trained(grpc_addr, Failing(fails), spec, 0.1, 0.2, 0.95)
    trained(grpc_addr, WallMonitor(), spec, 0.95)
    assert not [message for message in caplog.messages if "cannot be compared" in message]
    assert "no answer from the wall plug" in caplog.text
    assert bso.decision is not None
    assert bso.decision.message.endswith("the energy is partly an estimate")
    with Client(grpc_addr) as client:
        job, trials = client.get_job(bso.trial.job.job_id), list(client.trials(bso.trial.job.job_id))
    wall = monitor_of("wall-monitor")
    partly = v1.Monitor(kinds=["wall-monitor"], quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED)
    assert job.job.monitor == partly
    assert not job.job.other_monitors
    assert [trial.monitor for trial in trials] == [wall, partly, wall]


def test_warning_reaches_a_trainer_that_cannot_stream(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """If streams are refused, the warning comes with single calls, and is logged once."""
    server.stop()
    server.start("--max-streams", "1")
    spec = job_spec()
    with BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor()) as other:
        other.get_batch_size()
        other.on_train_begin()
        other.on_evaluate(0.1)
        trained(server.address, StepMonitor(), spec, 0.95)
        trained(server.address, WallMonitor(), spec, 0.1, 0.2)
    (warning,) = [message for message in caplog.messages if "cannot be compared" in message]
    assert "wall-monitor" in warning


class Blind(WallMonitor):
    """A monitor that measures no energy."""

    def end_window(self, name: str) -> Window:
        return Window(super().end_window(name).time, 0.0)


@pytest.mark.parametrize(("eta", "warnings"), [(0.5, 1), (0.0, 0)])
def test_trial_without_energy_is_warned_of_once(
    grpc_addr: str, caplog: pytest.LogCaptureFixture, eta: float, warnings: int
) -> None:
    """A monitor that measures nothing does not end the training; it is logged once if energy counts in the cost."""
    trained(grpc_addr, Blind(), job_spec(eta_knob=eta), 0.1, 0.2, 0.95)
    found = [record for record in caplog.records if "eta_knob" in record.getMessage()]
    assert [record.levelno for record in found] == [logging.WARNING] * warnings
