"""A launch without a server refuses the jobs that a server would refuse."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, GpuGroup, JobSpec
from wattwise.errors import InvalidJobSpecError
from wattwise.prices import PRICES
from wattwise.training.job_faults import check_valid

from tests.client.training.script import GPU, StepMonitor, job_spec

NOWHERE = "127.0.0.1:1"
"""No server listens here."""

_GTS = {"policy": "gts"}
_GRADIENT = {"policy": "knowledge_gradient", "seed": None}

WRONG: list[dict[str, Any]] = [
    {"job_id_prefix": ""},
    {"job_id_prefix": "other"},
    {"job_id_prefix": "test\n", "job_id": "test\n1"},
    {"job_id_prefix": "t" * 201, "job_id": "t" * 202},
    {"job_id": ""},
    {"job_id": f"test-{'1' * 200}"},
    {"batch_sizes": []},
    {"batch_sizes": list(range(1, 66))},
    {"batch_sizes": [8, 8, 16]},
    {"batch_sizes": [0, -8, 16]},
    {"batch_sizes": [8, 32]},
    {"default_batch_size": 0},
    *({"target_metric": each} for each in (math.nan, math.inf)),
    *({"eta_knob": each} for each in (-0.1, 1.1, math.nan)),
    *({"beta_knob": each} for each in (0.0, -1.0, 2e6, math.nan, math.inf)),
    *({"max_epochs": each} for each in (0, -1)),
    {"num_pruning_rounds": -1},
    {"window_size": -1},
    {"window_size": 1001, **_GRADIENT},
    *({"prior_mean": each} for each in (math.nan, -math.inf)),
    *({"prior_precision": each} for each in (-1.0, math.nan)),
    {"num_explorations": -1},
    *({"reward_precision": each, **_GTS} for each in (-1.0, math.inf)),
    {"learn_reward_precision": False, **_GTS},
    *({"trial_lease_seconds": each} for each in (-1.0, 1e-9, 0.99, 1e9, math.inf, math.nan)),
    {"prior_job_ids": ["test-1", "test-1"], **_GRADIENT},
    {"prior_job_ids": [f"test-{number}" for number in range(9)], **_GRADIENT},
    {"prior_job_ids": ["test\n"], **_GRADIENT},
    {"job_id": "test-self", "prior_job_ids": ["test-self"], **_GRADIENT},
    *({"gpu": GpuGroup(gpu_model="A", count=1, max_power_watts_per_gpu=each)} for each in (0.0, -1.0, math.nan)),
    {"gpu": GpuGroup(gpu_model="A", count=0, max_power_watts_per_gpu=1.0)},
    {"gpu": GpuGroup(gpu_model="", count=1, max_power_watts_per_gpu=1.0)},
    {"gpu": GpuGroup(gpu_model="A\n", count=1, max_power_watts_per_gpu=1.0)},
    {"batch_sizes": [], "eta_knob": 2.0, "max_epochs": 0, "job_id_prefix": ""},
]

RIGHT: list[dict[str, Any]] = [
    {},
    {"policy": None, "seed": None},
    _GTS,
    {"window_size": 1000, **_GRADIENT},
    {"window_size": 1001, **_GTS},
    {"beta_knob": None},
    {"beta_knob": "off"},
    {"beta_knob": 1e6, "eta_knob": 0.0, "target_metric": -1.0, "max_epochs": 1},
    {"learn_reward_precision": False, "reward_precision": 0.1, **_GTS},
    *({"trial_lease_seconds": each} for each in (0.0, 1.0)),
    {"job_id_prefix": None, "job_id": "any"},
    {"job_id": f"test-{'é' * 195}", "batch_sizes": list(range(16, 80))},
    {"gpu": GpuGroup(gpu_model="A 100 ", count=2, max_power_watts_per_gpu=0.05)},
]


def spec_of(given: dict[str, Any]) -> JobSpec:
    """A job that differs from a valid one in these fields."""
    return job_spec(**given)


@pytest.mark.parametrize("given", WRONG, ids="-".join)
def test_faults_are_those_of_the_server(grpc_addr: str, given: dict[str, Any]) -> None:
    """Every wrong job has the same reason, the same faulty fields and the same message with and without a server."""
    spec = spec_of(given)
    with Client(grpc_addr) as client, pytest.raises(InvalidJobSpecError) as refused:
        client.register_job(spec)
    with pytest.raises(InvalidJobSpecError) as found:
        check_valid(spec.to_proto())
    assert {each.field for each in found.value.violations} == {each.field for each in refused.value.violations}
    assert found.value.reason == refused.value.reason
    assert str(refused.value).startswith("invalid job: ")
    assert str(found.value).startswith("invalid job: ")


@pytest.mark.parametrize("given", RIGHT, ids="-".join)
def test_jobs_that_a_server_takes(grpc_addr: str, given: dict[str, Any]) -> None:
    """A job that the server takes has no faults."""
    spec = spec_of(given)
    check_valid(spec.to_proto())
    with Client(grpc_addr) as client:
        client.register_job(spec)


def test_every_field_is_in_the_table() -> None:
    """The table has a wrong value for every field that can have one."""
    # A seed, a switch and a policy have no wrong value that is sent; prices are not sent.
    cannot = {"higher_is_better", *PRICES}
    assert {field.name for field in fields(JobSpec)} - cannot == {name for each in WRONG for name in each}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"target_metric": math.nan}, "job.target_metric"),
        ({"batch_sizes": [8, 32]}, "job.default_batch_size"),
        ({"batch_sizes": []}, "job.batch_sizes"),
        ({"batch_sizes": 16}, "job.batch_sizes"),
        ({"batch_sizes": None}, "job.batch_sizes"),
        ({"default_batch_size": "16"}, "job.default_batch_size"),
        ({"default_batch_size": None}, "job.default_batch_size"),
    ],
)
@pytest.mark.parametrize("fallback", ["default", 32])
def test_fallback_does_not_train_a_wrong_job(given: dict[str, Any], field: str, fallback: int | str) -> None:
    """Without a server, a job that could never be delivered is an error in its field, not a training."""
    with pytest.raises(InvalidJobSpecError) as caught:
        BatchSizeOptimizer(
            NOWHERE, job_spec(**given), monitor=StepMonitor(), timeout=0.0, fallback=fallback
        ).get_batch_size()
    assert [each.field for each in caught.value.violations] == [field]
    assert caught.value.reason == "ERROR_REASON_INVALID_JOB_SPEC"


def test_gpu_of_the_monitor_is_checked() -> None:
    """The GPUs that a job gets from its monitor are checked like those that it names."""
    check_valid(job_spec(gpu=GPU).to_proto())
    with pytest.raises(InvalidJobSpecError) as caught:
        check_valid(job_spec(gpu=None).to_proto())
    assert [each.field for each in caught.value.violations] == ["job.gpu"]
