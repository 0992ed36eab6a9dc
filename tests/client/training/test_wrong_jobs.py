"""A launch without a server refuses the jobs that a server would refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer
from wattwise.errors import InvalidJobSpecError
from wattwise.spec import check_valid, job_message

from tests.client.training.script import GPU, StepMonitor, job_spec

NOWHERE = "127.0.0.1:1"
"""No server listens here."""


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
    check_valid(job_message(job_spec(gpu=GPU)))
    with pytest.raises(InvalidJobSpecError) as caught:
        check_valid(job_message(job_spec(gpu=None)))
    assert [each.field for each in caught.value.violations] == ["job.gpu"]
