"""The thread of a driver that renews a lease."""

from __future__ import annotations

import time

import pytest
from wattwise import Client, v1
from wattwise.driver.execution import LeaseKeeper
from wattwise.rpc.calls import TrialOrId

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
    assert "training continues" in caplog.text
