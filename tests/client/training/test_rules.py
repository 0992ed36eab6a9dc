"""The client's copy of the server's rules against the server."""

from __future__ import annotations

import math

import pytest
from wattwise import Client, GpuGroup, v1
from wattwise.training.rules import cost, reaches_target

from tests.client.training.script import job_spec


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("metric", [0.4, 0.5, 0.6, math.nan])
def test_cost_and_target_are_the_servers(grpc_addr: str, metric: float, higher: bool) -> None:
    """Client and server compute the same cost and agree on whether the target was reached."""
    gpu = GpuGroup(gpu_model="Test GPU", count=2, max_power_watts_per_gpu=150.0)
    given = job_spec(eta_knob=0.25, target_metric=0.5, higher_is_better=higher, max_epochs=1, gpu=gpu)
    with Client(grpc_addr) as client:
        spec = client.register_job(given).job.spec
        trial = client.get_next_batch_size(spec.job_id).trial.id
        result = v1.TrainingResult(
            trial=trial,
            measurement=v1.Measurement(time_seconds=7.0, energy_joules=1100.0, metric=metric, epoch=1),
            monitor=v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_MEASURED),
        )
        decision = client.report_result(result)
    assert cost(spec, 7.0, 1100.0) == pytest.approx(0.25 * 1100 + 0.75 * 300 * 7)
    assert decision.cost == pytest.approx(cost(spec, 7.0, 1100.0))
    assert decision.target_reached == reaches_target(spec, metric)
