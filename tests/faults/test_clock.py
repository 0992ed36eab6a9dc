"""The system clock is changed, while a server runs and between two starts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest
from wattwise import v1

from tests.faults.shims import build_shim
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.waiting import wait_until

DAY = 86400


class Clock:
    """The offset of a server's system time, in seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        """Sets it."""
        self.file.write_text(str(seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """The clock of `adrift`."""
    return Clock(tmp_path / "offset")


@pytest.fixture
def adrift(tmp_path: Path, clock: Clock) -> Iterator[LiveServer]:
    """A server with an adjustable system time."""
    with LiveServer(tmp_path) as live:
        live.environment = {"LD_PRELOAD": str(build_shim("clock", tmp_path)), "CLOCK_OFFSET": str(clock.file)}
        live.start()
        yield live


def shown(server: LiveServer, trial: v1.Trial) -> v1.Trial:
    """The trial as the server returns it."""
    return server.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).trial


@pytest.mark.parametrize("step", [-DAY, 3650 * DAY])
def test_step_under_a_running_server(adrift: LiveServer, clock: Clock, step: int) -> None:
    """Leases expire neither early nor late, and times that the server returns never go back."""
    job = Trainer(adrift.trainer, trial_lease_seconds=60)
    short = Trainer(adrift.trainer, trial_lease_seconds=1)
    trial, lost = job.next(), short.next()
    job.report(trial, 1.0, metric=0.1, epoch=1)
    before = shown(adrift, trial)
    clock.step(step)
    wait_until(lambda: shown(adrift, lost).status == v1.TRIAL_STATUS_FAILED)
    assert not job.report(trial, 2.0, metric=0.1, epoch=2).stop_train
    after = shown(adrift, trial)
    assert after.status == v1.TRIAL_STATUS_DISPATCHED
    renewed = after.lease_expire_time.ToDatetime(timezone.utc) - before.lease_expire_time.ToDatetime(timezone.utc)
    assert 0 < renewed.total_seconds() < 30


def test_step_between_two_servers(adrift: LiveServer, clock: Clock) -> None:
    """After a restart with an earlier clock trials get a full lease, end after they began, and numbers continue."""
    job = Trainer(adrift.trainer, trial_lease_seconds=60)
    trial = job.next()
    job.report(trial, 1.0, metric=0.1, epoch=1)
    clock.step(-DAY)
    adrift.kill()
    adrift.start()
    assert shown(adrift, trial).status == v1.TRIAL_STATUS_DISPATCHED
    assert not job.report(trial, 2.0, metric=0.1, epoch=2).stop_train
    assert job.report(trial, 3.0, epoch=3).converged
    ended = shown(adrift, trial)
    assert ended.end_time.ToDatetime() >= ended.start_time.ToDatetime()
    following = job.next()
    assert following.id.trial_number == 2
    assert following.start_time.ToDatetime() < ended.start_time.ToDatetime(), "the step was seen"
    measured = adrift.admin.GetTrial(v1.GetTrialRequest(trial=trial.id)).measurements
    assert [m.current_epoch for m in measured] == [1, 2, 3]
