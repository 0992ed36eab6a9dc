"""The thread of a driver that renews a lease."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from wattwise import Client, EstimateMonitor, v1
from wattwise.driver.execution import CommandExecution, LeaseKeeper
from wattwise.driver.interruption import Interruption
from wattwise.errors import ServerError, ServerUnavailableError
from wattwise.rpc.calls import TrialOrId

from tests.client.training.script import job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until


class Watched(Client):
    """A client that knows when it sent heartbeats."""

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout=0.1, retry=False)
        self.times: list[float] = []

    def heartbeat(self, trial: TrialOrId, *, timeout: float | None = None) -> v1.Decision:
        """Sends a heartbeat."""
        self.times.append(time.monotonic())
        return super().heartbeat(trial, timeout=timeout)


def test_trial_of_a_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Before the first answer, the heartbeats are as frequent as the lease of the trial requires."""
    trial = v1.Trial(id=v1.TrialId(job_id="j", launch_id="l", trial_number=1))
    trial.heartbeat_interval.FromMilliseconds(300)
    with Watched("127.0.0.1:1") as client, LeaseKeeper(client, trial):
        wait_until(lambda: len(client.times) > 3)
    assert client.times[3] - client.times[0] < 4
    assert "trial 1: " in caplog.text
    assert "training continues" in caplog.text


class Deaf(Client):
    """A client that loses the answer to its first report."""

    reports = 0

    def report_result(self, result: v1.TrainingResult, *, timeout: float | None = None) -> v1.Decision:
        """Sends a report."""
        decision = super().report_result(result, timeout=timeout)
        self.reports += 1
        if self.reports == 1:
            raise ServerUnavailableError("the connection was reset")
        return decision


def test_lost_answer_to_a_report_of_the_cost(server: LiveServer, tmp_path: Path) -> None:
    """A command is stopped for its cost although the answer to the driver's report was lost."""
    with Client(server.address) as client, Deaf(server.address, retry=False) as deaf:
        job = client.register_job(job_spec(beta_knob=2.0, trial_lease_seconds=1.0)).job.spec
        cheap = client.get_next_batch_size(job.job_id, launch_id="cheap").trial
        reached = v1.Measurement(time_seconds=0.1, energy_joules=1, metric=0.95, epoch=1)
        client.report_result(v1.TrainingResult(trial=cheap.id, measurement=reached))
        trial = client.get_next_batch_size(job.job_id, launch_id="expensive").trial
        with (tmp_path / "lock").open("w") as lock:
            execution = CommandExecution(
                trial=trial,
                spec=job,
                command=("sleep", "60"),
                environment=os.environ,
                workdir=tmp_path,
                folder=tmp_path,
                grace_seconds=1.0,
                lock=lock.fileno(),
                checks_cost=True,
            )
            outcome, _ = execution.run(deaf, EstimateMonitor(100.0), Interruption(), lambda: None)
        assert client.get_trial(trial.id).trial.end_reason == v1.END_REASON_COST_BOUND
    assert (outcome.exit_code, outcome.over_cost_bound) == (128 + signal.SIGTERM, True)
    assert outcome.time_seconds < 20
    assert deaf.reports == 1


def test_reports_that_fail_between_heartbeats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that cannot write is one outage, although its heartbeats are answered."""
    trial, decision, reports = v1.Trial(id=v1.TrialId(job_id="j", trial_number=1)), v1.Decision(), []
    decision.heartbeat_interval.FromMilliseconds(10)

    def fail(result: v1.TrainingResult) -> None:
        reports.append(result)
        raise ServerError("the disk is full")

    with Client("127.0.0.1:1") as client:
        monkeypatch.setattr(client, "heartbeat", lambda _: decision)
        monkeypatch.setattr(client, "report_result", fail)
        with LeaseKeeper(client, trial) as lease:
            lease.report(v1.TrainingResult(measurement=v1.Measurement(epoch=1)))
            wait_until(lambda: len(reports) > 3)
    assert caplog.text.count("the disk is full") == 1


class Broken(Client):
    """A client with a bug."""

    def heartbeat(self, trial: TrialOrId, *, timeout: float | None = None) -> v1.Decision:
        """Fails."""
        raise ZeroDivisionError(trial, timeout)


def test_bug_in_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A failure that is not expected is logged with its trial."""
    trial = v1.Trial(id=v1.TrialId(job_id="j", launch_id="l", trial_number=1))
    with Broken("127.0.0.1:1") as client, LeaseKeeper(client, trial):
        wait_until(lambda: "the lease of trial 1 is no longer renewed" in caplog.text)
    assert "ZeroDivisionError" in caplog.text
