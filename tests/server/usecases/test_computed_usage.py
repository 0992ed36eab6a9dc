"""Observer mode: costs follow from computed time and energy, and the measured ones are kept beside them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from wattwise import v1

from tests.jobs import Trainer, power_sample, power_setting
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.usecases.test_imports import imported
from tests.server.usecases.test_leases import get
from tests.server.usecases.test_monitors import job_of
from tests.watched import WatchedServer

LIMIT = "limit_watts_per_gpu"
POLICIES = ["pruning_gts", "gts", "knowledge_gradient"]


def usage(energy: float, time: float = 1.0, watts: float = 175.0) -> v1.ComputedUsage:
    """Computed sums."""
    return v1.ComputedUsage(time_seconds=time, energy_joules=energy, power_setting=power_setting(watts))


def report(
    trainer: Trainer, trial: v1.Trial, measured: float, metric: float = 0.1, epoch: int = 1, **fields: Any
) -> v1.Decision:
    """Report an epoch of this measured energy."""
    sums = v1.Measurement(time_seconds=epoch, energy_joules=measured, metric=metric, epoch=epoch, **fields)
    result = v1.TrainingResult(trial=trial.id, measurement=sums)
    return trainer.stub.ReportResult(v1.ReportResultRequest(result=result)).decision


@pytest.mark.parametrize("policy", POLICIES)
def test_search_uses_the_computed_cost(server: LiveServer, policy: str) -> None:
    """Decision, bound and job use the computed sums; the trial shows both, also after a restart."""
    trainer = Trainer(server.trainer, policy=policy, eta_knob=0.5)
    trial = trainer.next()
    decision = report(trainer, trial, 100.0, computed=usage(60.0, 1.5))
    cost = 0.5 * 60.0 + 0.5 * 100 * 1.5
    assert decision.cost == cost
    report(trainer, trial, 200.0, 0.95, 2, computed=usage(80.0, 2.5), power_setting=power_setting(300.0))
    server.kill()
    server.start()
    shown = get(server, trial)
    assert (shown.newest.time_seconds, shown.newest.energy_joules, shown.newest.power_setting.limit_watts_per_gpu) == (
        2.0,
        200.0,
        300.0,
    )
    assert shown.newest.computed == usage(80.0, 2.5)
    assert shown.cost == job_of(server, trainer).min_cost == 0.5 * 80.0 + 0.5 * 100 * 2.5
    answer = server.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id))
    assert [(m.energy_joules, m.computed) for m in answer.measurements] == [
        (100.0, usage(60.0, 1.5)),
        (200.0, usage(80.0, 2.5)),
    ]


def test_bound_compares_computed_costs(server: LiveServer) -> None:
    """A trial is stopped when its computed cost exceeds the bound, whatever was measured."""
    trainer = Trainer(server.trainer)
    trainer.run(10.0)
    trial = trainer.next()
    assert not report(trainer, trial, 1000.0, computed=usage(20.0)).stop_train
    assert report(trainer, trial, 1001.0, epoch=2, computed=usage(20.1)).stop_train
    assert get(server, trial).end_reason == v1.END_REASON_COST_BOUND


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({"computed": usage(math.nan)}, {"computed.energy_joules"}),
        ({"computed": usage(-1.0, 0.0, 0.0)},
         {f"computed.{name}" for name in ("energy_joules", "time_seconds", f"power_setting.{LIMIT}")}),
        ({"computed": usage(1e200)}, {"computed.energy_joules"}),
        ({"computed": usage(40.0, 0.5)}, {f"computed.{name}" for name in ("energy_joules", "time_seconds")}),
        ({}, {"computed"}),
        ({"computed": usage(70.0), "metric": math.inf}, {"metric"}),
        ({"computed": usage(70.0, watts=0.0), "metric": math.inf}, {"metric", f"computed.power_setting.{LIMIT}"}),
        ({"computed": usage(math.inf), "metric": math.inf}, {"metric", "computed.energy_joules"}),
        ({"computed": usage(70.0), "power_setting": power_setting(0.0)}, {f"power_setting.{LIMIT}"}),
        ({"computed": usage(70.0), "power_setting": power_setting(math.inf)}, {f"power_setting.{LIMIT}"}),
    ],
)  # fmt: skip
def test_invalid_computed_usage_is_refused(server: LiveServer, fields: dict[str, Any], faults: set[str]) -> None:
    """Computed sums are finite, never shrink and stay set; a limit is above 0. Nothing of a refused report is kept."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    report(trainer, trial, 100.0, computed=usage(60.0), power_setting=power_setting(250.0))
    before = get(server, trial)
    with refused() as refusal:
        report(trainer, trial, 200.0, epoch=2, **fields)
    assert refusal.reason == "ERROR_REASON_INVALID_RESULT"
    assert set(refusal.faults) == {f"result.measurement.{name}" for name in faults}
    after = get(server, trial)
    after.lease_expire_time.CopyFrom(before.lease_expire_time)
    assert after == before


def test_repeated_report_has_the_same_computed_usage(server: LiveServer) -> None:
    """A retry with the same computed sums is the same report; with others it is refused."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    first = report(trainer, trial, 100.0, computed=usage(60.0))
    assert report(trainer, trial, 100.0, computed=usage(60.0)) == first
    with refused() as refusal:
        report(trainer, trial, 100.0, computed=usage(61.0))
    assert set(refusal.faults) == {"result.measurement.epoch"}


def test_first_computed_sums_may_be_less_than_the_measured_ones(watched: WatchedServer) -> None:
    """Observer mode may begin in the middle of a trial; the cost counter does not go back."""
    trainer = Trainer(watched.trainer)
    trial = trainer.next()
    report(trainer, trial, 100.0)
    assert report(trainer, trial, 200.0, epoch=2, computed=usage(60.0)).cost == 60.0
    assert watched.figure("wattwise_cost_joules_total", origin="search") == 100.0
    assert watched.figure("wattwise_energy_joules_total", origin="search") == 200.0


def test_import_takes_computed_usage(server: LiveServer) -> None:
    """The measurements of an imported trial may have computed sums, with the same rules."""
    trainer = Trainer(server.trainer)
    measured = [
        v1.Measurement(epoch=epoch, time_seconds=epoch, energy_joules=100.0 * epoch, metric=metric)
        for epoch, metric in ((1, 0.1), (2, 0.95))
    ]
    measured[0].computed.CopyFrom(usage(60.0))
    with refused() as refusal:
        imported(trainer, measurements=measured)
    assert set(refusal.faults) == {"measurements[1].computed"}
    measured[1].computed.CopyFrom(usage(110.0, 2.0))
    trial = imported(trainer, measurements=measured).trial
    assert (trial.cost, trial.newest.energy_joules, trial.newest.computed) == (110.0, 200.0, usage(110.0, 2.0))


def test_measurements_have_their_power_limits(server: LiveServer) -> None:
    """Each measurement has the limit that its report had; one without has none."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    report(trainer, trial, 100.0)
    assert not get(server, trial).newest.power_setting.HasField("limit_watts_per_gpu")
    report(trainer, trial, 200.0, epoch=2, power_setting=power_setting(250.0))
    report(trainer, trial, 300.0, epoch=3)
    assert get(server, trial).newest.epoch == 3
    assert not get(server, trial).newest.power_setting.HasField("limit_watts_per_gpu")
    request = v1.ListMeasurementsRequest(trial=trial.id)
    measured = server.admin.ListMeasurements(request).measurements
    assert [each.power_setting.limit_watts_per_gpu for each in measured] == [0.0, 250.0, 0.0]
    report(trainer, trial, 400.0, epoch=4, power_setting=power_setting(0.5))
    server.kill()
    server.start()
    assert get(server, trial).newest.power_setting.limit_watts_per_gpu == 0.5


def test_profile_keeps_the_highest_limit_beside_the_cheapest(server: LiveServer) -> None:
    """AcquirePowerLimit returns two samples of one profile: the cheapest known limit, and the highest."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()

    def profile(*samples: v1.PowerSample) -> v1.AcquirePowerLimitResponse:
        server.trainer.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=trial.id, samples=samples))
        return server.trainer.AcquirePowerLimit(v1.AcquirePowerLimitRequest(trial=trial.id))

    first = [power_sample(250.0, 100.0), power_sample(200.0, 80.0), power_sample(150.0, 90.0)]
    answer = profile(*first)
    assert (answer.action, answer.power_setting.limit_watts_per_gpu) == (v1.POWER_ACTION_USE_LIMIT, 200.0)
    assert (answer.cheapest, answer.highest) == (first[1], first[0])
    worse = profile(power_sample(300.0, 95.0))
    assert (worse.cheapest, worse.highest) == (first[1], first[0])
    better = profile(power_sample(175.0, 70.0), power_sample(225.0, 90.0))
    assert (better.cheapest, better.highest) == (power_sample(175.0, 70.0), power_sample(225.0, 90.0))
    server.kill()
    server.start()
    assert profile(power_sample(300.0, 95.0)) == better
