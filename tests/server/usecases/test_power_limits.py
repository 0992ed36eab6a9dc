"""Power limits over gRPC: the profiling trial, the known limits, and invalid requests."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import GpuGroup, ResolvedJob
from wattwise_server.domain import Arm, PowerLimitState, PowerSample, Search
from wattwise_server.events import SearchEvent
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.power import cheapest, cost_per_step
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.open import open_store
from wattwise_server.usecases.power_limits import PowerAction, PowerLimitProfiler
from wattwise_server.usecases.report import LARGEST_COST
from wattwise_server.usecases.training import Training

from tests.jobs import Trainer, power_sample, power_setting
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import Site, draft
from tests.server.site import report as report_epoch

Stub = v1.BatchSizeOptimizerStub


PROFILE, WAIT, USE_LIMIT = v1.POWER_ACTION_PROFILE, v1.POWER_ACTION_WAIT, v1.POWER_ACTION_USE_LIMIT


def ask(job: Trainer, trial: v1.Trial) -> v1.PowerAction.ValueType:
    """What the trial does about the limit; the answer has a limit if it uses one."""
    answer = job.stub.AcquirePowerLimit(v1.AcquirePowerLimitRequest(trial=trial.id))
    parts = {answer.HasField("power_setting"), answer.HasField("cheapest"), answer.HasField("highest")}
    assert parts == {answer.action == USE_LIMIT}
    return answer.action


def limit_of(job: Trainer, trial: v1.Trial) -> float:
    """The known limit that a trial uses."""
    return job.stub.AcquirePowerLimit(v1.AcquirePowerLimitRequest(trial=trial.id)).power_setting.limit_watts_per_gpu


def report(job: Trainer, trial: v1.Trial, *samples: v1.PowerSample) -> float:
    """Reports a profile; returns the cheapest limit."""
    request = v1.ReportPowerProfileRequest(trial=trial.id, samples=samples)
    return job.stub.ReportPowerProfile(request).power_setting.limit_watts_per_gpu


def test_limit_is_unknown_before_the_first_profile(grpc_stub: Stub) -> None:
    """A batch size has no limit before its first profile; after it every trial gets the cheapest."""
    job = Trainer(grpc_stub)
    trial = job.next()
    assert ask(job, trial) == PROFILE
    assert report(job, trial, power_sample(250, 100), power_sample(225, 90), power_sample(200, 95)) == 225
    other = job.next()
    assert (ask(job, trial), ask(job, other)) == (USE_LIMIT, USE_LIMIT)
    assert (limit_of(job, trial), limit_of(job, other)) == (225, 225)


def test_cost_weighs_energy_against_time(grpc_stub: Stub) -> None:
    """(η·average power + (1−η)·P)·time per step: at 100 W, 80 J in 0.7 s beat 30 J in 1 s while eta is low."""
    job = Trainer(grpc_stub, eta_knob=0.25)
    samples = (power_sample(150, energy=30, time=1.0), power_sample(200, energy=80, time=0.7))
    assert report(job, job.next(), *samples) == 200
    job = Trainer(grpc_stub, eta_knob=0.75)
    assert report(job, job.next(), *samples) == 150


def test_cheapest_ever_reported_wins_over_trials(grpc_stub: Stub) -> None:
    """A later profile changes the limit only with a cheaper step; the number of steps does not matter."""
    job = Trainer(grpc_stub)
    first, second = job.next(), job.next()
    assert report(job, first, power_sample(250, 100)) == 250
    assert report(job, second, power_sample(100, 110), power_sample(225, 101)) == 250
    assert report(job, second, power_sample(125, 999, steps=100)) == 125


@pytest.mark.parametrize("turned", [False, True])
def test_tie_goes_to_the_lower_limit(grpc_stub: Stub, turned: bool) -> None:
    """Of equally cheap limits the lower one wins, within a profile and between two."""
    job = Trainer(grpc_stub)
    samples = [power_sample(200, 50), power_sample(175, 50)]
    assert report(job, job.next(), *(reversed(samples) if turned else samples)) == 175
    assert report(job, job.next(), power_sample(150, 50), power_sample(190, 50)) == 150


def test_one_trial_profiles_at_a_time(grpc_stub: Stub) -> None:
    """The first trial that asks profiles, also if it asks again; the others wait, or use the limit that is known."""
    job = Trainer(grpc_stub)
    first, second = job.next(), job.next()
    assert [ask(job, first), ask(job, first)] == [PROFILE, PROFILE]
    assert [ask(job, second), ask(job, first)] == [WAIT, PROFILE]
    assert report(job, second, power_sample(225)) == 225
    assert (ask(job, first), ask(job, second)) == (USE_LIMIT, USE_LIMIT)
    assert (limit_of(job, first), limit_of(job, second)) == (225, 225)


def test_batch_sizes_are_profiled_independently(grpc_stub: Stub, grpc_server: LiveServer) -> None:
    """Another batch size has its own profiling trial and its own limit."""
    job = Trainer(grpc_stub)

    def pinned(batch_size: int) -> v1.Trial:
        pin = v1.SetPinnedBatchSizeRequest(job_id=job.job_id, batch_size=batch_size)
        grpc_server.admin.SetPinnedBatchSize(pin)
        return job.next()

    small, other, large = pinned(8), pinned(8), pinned(32)
    assert [ask(job, trial) for trial in (small, large, other)] == [PROFILE, PROFILE, WAIT]
    assert report(job, small, power_sample(225)) == 225
    assert [ask(job, trial) for trial in (small, large, other)] == [USE_LIMIT, PROFILE, USE_LIMIT]
    assert report(job, large, power_sample(175, 900)) == 175
    assert (limit_of(job, small), limit_of(job, other), limit_of(job, large)) == (225, 225, 175)


@pytest.mark.parametrize(("eta", "limit"), [(0.5, 225), (0.0, 300)])
def test_profile_without_energy_replaces_a_measured_one_if_only_time_costs(
    grpc_stub: Stub, eta: float, limit: float
) -> None:
    """Its cost lacks the energy, so that it would always look cheaper, unless energy costs nothing."""
    job = Trainer(grpc_stub, eta_knob=eta)
    assert report(job, job.next(), power_sample(225, 90)) == 225
    assert report(job, job.next(), power_sample(300, None, time=0.9)) == limit
    assert limit_of(job, job.next()) == limit


def test_measured_profile_replaces_one_without_energy(grpc_stub: Stub) -> None:
    """The first profile is the only one known, and the first one with energy replaces it, although its steps cost."""
    job = Trainer(grpc_stub, eta_knob=0.5)
    trial = job.next()
    assert report(job, trial, power_sample(300, None), power_sample(250, None, time=0.9)) == 250
    assert report(job, trial, power_sample(225, 9000), power_sample(200, 9500)) == 225
    assert report(job, trial, power_sample(175, None, time=0.1)) == 225
    answer = grpc_stub.AcquirePowerLimit(v1.AcquirePowerLimitRequest(trial=trial.id))
    assert (answer.cheapest, answer.highest) == (power_sample(225, 9000), power_sample(225, 9000))


def test_trial_that_ends_lets_others_profile(grpc_stub: Stub) -> None:
    """When the trial that profiles has ended, the next one that asks does; one that has ended never does."""
    job = Trainer(grpc_stub)
    first, second = job.next(), job.next()
    ask(job, first)
    job.end(first, v1.END_REASON_ERROR)
    assert ask(job, first) == WAIT
    assert ask(job, second) == PROFILE
    assert ask(job, first) == WAIT


def test_trial_of_another_launch_does_not_profile(grpc_stub: Stub) -> None:
    """Who asks for a trial that belongs to another launch is refused; its own launch is served."""
    job = Trainer(grpc_stub)
    trial, other = job.next("a"), job.next("a")
    other.id.launch_id = "b"
    with refused() as refusal:
        ask(job, other)
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"
    assert ask(job, trial) == PROFILE


def test_lost_trial_lets_others_profile(grpc_stub: Stub) -> None:
    """When the lease of the trial that profiles runs out, the next one that asks profiles."""
    job = Trainer(grpc_stub, trial_lease_seconds=1)
    first = job.next()
    ask(job, first)
    while True:
        second = job.next()
        if ask(job, second) == PROFILE:
            break
    assert ask(job, job.next()) == WAIT


async def test_expired_lease_ends_the_profiling(tmp_path: Path) -> None:
    """A trial whose lease has expired no longer profiles, even before it is lost."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'w.db'}", lambda: now) as store:
        training, limits = Training(store), PowerLimitProfiler(store)
        await training.register(draft(batch_sizes=(8,), default_batch_size=8, trial_lease_seconds=300.0))
        first, second = [(await training.next_trial("j", name)).key for name in ("first", "second")]
        assert (await limits.acquire(first)).action is PowerAction.PROFILE
        now += timedelta(seconds=200)
        await training.heartbeat(second)
        assert (await limits.acquire(second)).action is PowerAction.WAIT
        now += timedelta(seconds=100)
        assert (await limits.acquire(second)).action is PowerAction.PROFILE
        assert (await limits.acquire(first)).action is PowerAction.WAIT


class Rebuilding(Gts):
    """A policy that replaces all of its arms at every event."""

    alone = False

    def observe(self, spec: ResolvedJob, search: Search, _event: SearchEvent) -> Search:
        return replace(search, arms=tuple(map(Arm, spec.batch_sizes)))


async def test_policy_that_rebuilds_its_arms_erases_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known limits and the profiling trial are the job's: they survive new arms, and a restart after that."""
    monkeypatch.setitem(POLICIES, "gts", Rebuilding())
    site = Site(tmp_path / "w.db")
    await site.open()
    await site.training.register(draft(policy="gts", batch_sizes=(8, 16), trial_lease_seconds=0.0))
    trials = [await site.training.next_trial("j", new_id()) for _ in range(8)]
    by_size = {trial.batch_size: trial.key for trial in trials}
    profiler = PowerLimitProfiler(site.store)
    assert await profiler.report(by_size[8], [PowerSample(225.0, 1.0, 90.0, 10)]) == 225
    assert (await profiler.acquire(by_size[16])).action is PowerAction.PROFILE
    await report_epoch(site, by_size[8], 1, metric=0.95)
    for _ in range(2):
        job = await site.administration.job("j")
        assert job.power_limits == (
            PowerLimitState(8, PowerSample(225.0, 1.0, 90.0, 10), highest=PowerSample(225.0, 1.0, 90.0, 10)),
            PowerLimitState(16, profiling=by_size[16].trial_number),
        )
        await site.open()
    await site.close()


def test_profile_of_an_ended_trial_counts(grpc_stub: Stub) -> None:
    """An ended trial may report its profile."""
    job = Trainer(grpc_stub)
    trial = job.run(10)
    assert report(job, trial, power_sample(175)) == 175


def test_restart_keeps_what_is_known_and_who_profiles(server: LiveServer) -> None:
    """After a kill the server has the same limits, and the running trial still profiles."""
    job = Trainer(server.trainer)
    trial, other = job.next(), job.next()
    report(job, trial, power_sample(225, 90))
    known = server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.power_limits
    second = Trainer(server.trainer)
    first = second.next()
    ask(second, first)
    server.kill()
    server.start()
    assert limit_of(job, other) == 225
    assert server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.power_limits == known
    assert ask(second, second.next()) == WAIT
    assert ask(second, first) == PROFILE


def test_deleted_job_leaves_nothing(grpc_stub: Stub, grpc_server: LiveServer) -> None:
    """A new job of the same id has no limits and no profiling trial of the deleted one."""
    job = Trainer(grpc_stub)
    trial = job.next()
    report(job, trial, power_sample())
    grpc_server.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    with refused() as refusal:
        ask(job, trial)
    assert refusal.reason == "ERROR_REASON_TRIAL_DELETED"
    job.stub.RegisterJob(v1.RegisterJobRequest(job=job.spec))
    assert ask(job, job.next()) == PROFILE


def test_job_shows_its_limits(grpc_stub: Stub, grpc_server: LiveServer) -> None:
    """GetJob returns the cheapest limit of each batch size with a step's cost, time and energy."""
    job = Trainer(grpc_stub, eta_knob=0.5)
    report(job, job.next(), power_sample(250, energy=100, time=2.0, steps=10), power_sample(225, energy=500))
    shown = grpc_server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.power_limits
    assert list(shown) == [
        v1.PowerLimit(
            batch_size=16,
            power_setting=power_setting(250),
            cost_per_step=0.5 * 10 + 0.5 * 100 * 0.2,
            time_seconds_per_step=0.2,
            energy_joules_per_step=10,
        )
    ]


def test_unknown_job_and_trial_are_not_found(grpc_stub: Stub) -> None:
    """An unknown job or trial, or the trial of another launch, is NOT_FOUND."""
    job = Trainer(grpc_stub)
    trial = job.next()
    unknown = v1.TrialId(job_id="unknown", launch_id=trial.id.launch_id, trial_number=1)
    wrong = v1.TrialId(job_id=job.job_id, launch_id="another", trial_number=1)
    for trial_id, reason in ((unknown, "JOB"), (wrong, "TRIAL")):
        with refused() as refusal:
            grpc_stub.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=trial_id, samples=[power_sample()]))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, f"ERROR_REASON_{reason}_NOT_FOUND")
        with refused() as refusal:
            grpc_stub.AcquirePowerLimit(v1.AcquirePowerLimitRequest(trial=trial_id))
        assert refusal.reason == f"ERROR_REASON_{reason}_NOT_FOUND"
    trial.id.trial_number = 7
    with refused() as refusal:
        ask(job, trial)
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"


def test_missing_trial_is_named(grpc_stub: Stub) -> None:
    """A request without a trial has a violation of that field."""
    with refused() as refusal:
        grpc_stub.AcquirePowerLimit(v1.AcquirePowerLimitRequest())
    assert list(refusal.faults) == ["trial"]
    with refused() as refusal:
        grpc_stub.ReportPowerProfile(v1.ReportPowerProfileRequest(samples=[power_sample()]))
    assert list(refusal.faults) == ["trial"]


@pytest.mark.parametrize(
    ("samples", "faults"),
    [
        ([], ["samples"]),
        ([{}] * 1001, ["samples"]),
        ([{"watts": 0.0}], ["samples[0].power_setting.limit_watts_per_gpu"]),
        ([{"watts": math.nan}], ["samples[0].power_setting.limit_watts_per_gpu"]),
        ([{"watts": math.inf}], ["samples[0].power_setting.limit_watts_per_gpu"]),
        ([{}, {"time": 0.0, "watts": 1.0}], ["samples[1].time_seconds"]),
        ([{"time": math.inf}], ["samples[0].time_seconds"]),
        ([{"energy": -1.0}], ["samples[0].energy_joules"]),
        ([{"energy": math.nan}], ["samples[0].energy_joules"]),
        ([{"steps": 0}], ["samples[0].steps"]),
        ([{"steps": -1}], ["samples[0].steps"]),
        ([{"energy": 1e300}], ["samples[0].energy_joules"]),
        ([{"energy": math.inf, "steps": 0}], ["samples[0].energy_joules", "samples[0].steps"]),
        ([{}, {}], ["samples[1].power_setting.limit_watts_per_gpu"]),
        ([{"energy": None}, {"watts": 1.0}], ["samples[0].energy_joules"]),
        ([{"energy": 0.0}, {"watts": 1.0, "energy": None}], ["samples[1].energy_joules"]),
        (
            [{"time": -1.0, "steps": 0}, {"energy": -5.0}],
            [
                "samples[0].time_seconds",
                "samples[0].steps",
                "samples[1].energy_joules",
                "samples[1].power_setting.limit_watts_per_gpu",
            ],
        ),
    ],
)
def test_invalid_profile_is_refused_completely(
    grpc_stub: Stub, samples: list[dict[str, Any]], faults: list[str]
) -> None:
    """Every fault is one violation; nothing is stored, and the trial still profiles."""
    job = Trainer(grpc_stub)
    trial = job.next()
    ask(job, trial)
    with refused() as refusal:
        report(job, trial, *(power_sample(**fields) for fields in samples))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_REQUEST")
    assert sorted(refusal.faults) == sorted(faults)
    assert (ask(job, trial), ask(job, job.next())) == (PROFILE, WAIT)


def test_largest_profile_is_taken(grpc_stub: Stub) -> None:
    """A thousand limits, measured for one step each at the largest cost; the lowest of equal ones wins."""
    job = Trainer(grpc_stub)
    samples = [power_sample(watts, energy=LARGEST_COST, steps=1) for watts in range(1, 1001)]
    assert report(job, job.next(), *samples) == 1.0


_NUMBERS = st.floats(0.001, 1e6)
_SAMPLES = st.builds(PowerSample, _NUMBERS, _NUMBERS, _NUMBERS, st.integers(1, 1000))


@pytest.mark.thorough
@settings(derandomize=True)
@given(st.lists(_SAMPLES, min_size=1, max_size=20), st.floats(0, 1))
def test_cheapest_is_as_the_formula_says(samples: list[PowerSample], eta: float) -> None:
    """No sample has a lower `(η·average power + (1−η)·P)·time per step` than the chosen one."""
    spec = ResolvedJob(
        "j", (8,), 8, GpuGroup(gpu_model="Test GPU", count=2, max_power_watts_per_gpu=250.0), 0.5, True, eta_knob=eta
    )

    def written_out(sample: PowerSample) -> float:
        average = (sample.energy_joules or 0.0) / sample.time_seconds
        return (eta * average + (1 - eta) * 500.0) * sample.time_seconds / sample.steps

    best = cheapest(spec, samples)
    assert cost_per_step(spec, best) == pytest.approx(written_out(best))
    assert written_out(best) <= min(map(written_out, samples)) * (1 + 1e-9)
