"""The system clock is changed, while servers run and between two starts; and servers are suspended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.security.token_file import add_token
from wattwise_server.security.tokens import Role, new_token

from tests.faults.shims import build_shim
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.waiting import wait_until
from tests.web.page import WebPage
from tests.web.test_access import log_in

pytestmark = pytest.mark.thorough

HOUR, DAY = 3600, 86400
YEARS = 3650 * DAY
LEASE = 6.0
"""Seconds. Within a shorter one, servers may not have noticed what happened to the clock."""


class Clock:
    """The offset of a server's system time, in seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        """Sets it."""
        self.file.write_text(str(seconds))

    def suspend(self, seconds: int) -> None:
        """Lets so much time pass while the machine is suspended."""
        self.file.write_text(f"0 {seconds}")


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


@pytest.mark.parametrize("step", [-DAY, YEARS])
def test_step_under_a_running_server(adrift: LiveServer, clock: Clock, step: int) -> None:
    """Leases expire neither early nor late, and times that the server returns never go back."""
    job = Trainer(adrift.trainer, trial_lease_seconds=60)
    short = Trainer(adrift.trainer, trial_lease_seconds=1)
    trial, lost = job.next(), short.next()
    job.report(trial, 1.0, metric=0.1, epoch=1)
    before = shown(adrift, trial)
    clock.step(step)
    wait_until(lambda: shown(adrift, lost).status == v1.TRIAL_STATUS_INTERRUPTED)
    assert not job.report(trial, 2.0, metric=0.1, epoch=2).stop_train
    after = shown(adrift, trial)
    assert after.status == v1.TRIAL_STATUS_RUNNING
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
    assert shown(adrift, trial).status == v1.TRIAL_STATUS_RUNNING
    assert not job.report(trial, 2.0, metric=0.1, epoch=2).stop_train
    assert job.report(trial, 3.0, epoch=3).converged
    ended = shown(adrift, trial)
    assert ended.end_time.ToDatetime() >= ended.start_time.ToDatetime()
    following = job.next()
    assert following.id.trial_number == 2
    assert following.start_time.ToDatetime() < ended.start_time.ToDatetime(), "the step was seen"
    measured = adrift.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id)).measurements
    assert [m.epoch for m in measured] == [1, 2, 3]


def test_clock_that_was_ahead(adrift: LiveServer, clock: Clock) -> None:
    """A job that was registered and reset in a time to come learns from what is imported after a correction.

    When that began is unknown then, so that it is no part of what the job spent and saved.
    """
    clock.step(YEARS)
    adrift.kill()
    adrift.start()
    job = Trainer(adrift.trainer)
    adrift.admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id=new_id()))
    clock.step(0)
    adrift.kill()
    adrift.start()
    epoch = v1.Measurement(epoch=1, time_seconds=1, energy_joules=5, metric=0.95)
    request = v1.ImportTrialRequest(job_id=job.job_id, launch_id="spooled", batch_size=16, measurements=[epoch])
    request.start_time.GetCurrentTime()
    trial = job.stub.ImportTrial(request).trial
    assert (trial.excluded, trial.end_reason) == (False, v1.END_REASON_TARGET_REACHED)
    found = adrift.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=job.job_id)).statistics
    assert [(each.num_deliveries, each.spent.energy_joules) for each in found.trials] == [(1, 5)]
    assert (found.num_deliveries, found.spent.energy_joules) == (0, 0)


def test_suspended_machine(adrift: LiveServer, clock: Clock) -> None:
    """After an hour of suspension trials have a full lease, times are an hour later, and a silent trial is lost."""
    job = Trainer(adrift.trainer, trial_lease_seconds=60)
    short = Trainer(adrift.trainer, trial_lease_seconds=1)
    trial, lost = job.next(), short.next()
    clock.suspend(HOUR)
    wait_until(lambda: shown(adrift, lost).end_reason == v1.END_REASON_LOST)
    after = shown(adrift, trial)
    assert after.status == v1.TRIAL_STATUS_RUNNING
    assert (after.lease_expire_time.ToDatetime() - trial.lease_expire_time.ToDatetime()).total_seconds() >= HOUR
    following = job.next()
    assert (following.start_time.ToDatetime() - trial.start_time.ToDatetime()).total_seconds() >= HOUR


def test_login_and_token(adrift: LiveServer, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login outlasts steps of the page's clock; a token is valid again once the server's clock is corrected."""
    file, page_clock = tmp_path / "tokens", Clock(tmp_path / "page-offset")
    text, token = new_token(Role.VIEWER, "", timedelta(days=30))
    add_token(file, token)
    adrift.stop()
    adrift.start("--tokens", str(file))
    for name, value in (adrift.environment | {"CLOCK_OFFSET": str(page_clock.file)}).items():
        monkeypatch.setenv(name, value)
    with WebPage(adrift.address, tmp_path / "web.log") as page, page.client() as web:
        assert log_in(page, web, text).status_code == 303
        for step in (YEARS, -YEARS, 0):
            page_clock.step(step)
            assert web.get("/").status_code == 200
        clock.step(YEARS)
        assert web.get("/").headers["location"].startswith("/login")
        clock.step(0)
        log_in(page, web, text)
        assert web.get("/").status_code == 200


_ADJUSTABLE = """
    CREATE TABLE clock (seconds bigint);
    INSERT INTO clock VALUES (0);
    CREATE OR REPLACE FUNCTION micros_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
        SELECT ((extract(epoch FROM clock_timestamp()) + (SELECT seconds FROM clock)) * 1000000)::bigint
    $$
"""
"""Lets a test step the clock of a database."""


@pytest.mark.parametrize("steps", [(-HOUR,), (HOUR,), (YEARS, -YEARS), (-YEARS, YEARS)])
def test_step_of_a_shared_database(tmp_path: Path, postgres: PostgresServer, steps: Sequence[int]) -> None:
    """Whatever the clock of a PostgreSQL does, a trial that reports is not lost, and one that is silent is."""
    url, offset = postgres.create_database(), 0
    with LiveServer(tmp_path, url) as server:
        server.start()
        postgres.execute(_ADJUSTABLE, url)
        job = Trainer(server.trainer, trial_lease_seconds=LEASE, max_epochs=10**6)
        silent, trial, epochs = job.next(), job.next(), itertools.count(1)

        def report() -> None:
            epoch = next(epochs)
            assert not job.report(trial, float(epoch), metric=0.1, epoch=epoch).stop_train

        def noticed() -> bool:
            report()
            ahead = shown(server, trial).lease_expire_time.ToDatetime(timezone.utc) - datetime.now(timezone.utc)
            return abs(ahead.total_seconds() - offset) < HOUR / 2

        def lost() -> bool:
            report()
            return shown(server, silent).end_reason == v1.END_REASON_LOST

        for step in steps:
            offset += step
            postgres.execute(f"UPDATE clock SET seconds = {offset}", url)  # noqa: S608 - a number
            wait_until(noticed)
        wait_until(lost)
        events = server.admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id)).events
        interrupted = [event.trial_number for event in events if event.kind == v1.EVENT_KIND_TRIAL_INTERRUPTED]
        assert interrupted == [silent.id.trial_number]
