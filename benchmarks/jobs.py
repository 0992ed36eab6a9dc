"""Jobs, trials and measurements for load tests."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

from wattwise import GpuGroup, JobSpec, v1
from wattwise.spec import job_message

Reports = Iterator[v1.ReportResultRequest]

_GPU = GpuGroup(gpu_model="Benchmark GPU", count=1, max_power_watts_per_gpu=300.0)


def register(stub: v1.BatchSizeOptimizerStub, **changes: object) -> v1.JobSpec:
    """Registers a job with a new id, and returns its configuration."""
    spec = job_spec(**changes)
    stub.RegisterJob(v1.RegisterJobRequest(job=spec), timeout=60)
    return spec


def job_spec(**changes: object) -> v1.JobSpec:
    """Returns a job with eight batch sizes around 64, of a policy whose choices take no time worth measuring."""
    usual: dict[str, object] = {
        "job_id_prefix": "bench",
        "job_id": f"bench-{uuid.uuid4().hex[:12]}",
        "batch_sizes": [8, 16, 32, 64, 128, 256, 512, 1024],
        "default_batch_size": 64,
        "target_metric": 0.9,
        "max_epochs": 2**31 - 1,
        "seed": 1,
        "policy": "pruning_gts",
        "gpu": _GPU,
    }
    return job_message(JobSpec(**(usual | changes)))  # type: ignore[arg-type]


def next_trial(stub: v1.BatchSizeOptimizerStub, job_id: str) -> v1.Trial:
    """Asks for a trial, with a launch id as a client does."""
    request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=str(uuid.uuid4()))
    return stub.GetNextBatchSize(request, timeout=60).trial


def reports(trial: v1.Trial) -> Reports:
    """Endless reports of a trial that never reaches its target."""
    for epoch in itertools.count(1):
        yield v1.ReportResultRequest(result=result(trial, epoch, 0.1))


def whole_trial(trial: v1.Trial) -> list[v1.ReportResultRequest]:
    """Returns the five epochs of a trial that reaches its target in the last one."""
    metrics = [0.1, 0.1, 0.1, 0.1, 0.95]
    return [v1.ReportResultRequest(result=result(trial, epoch, metric)) for epoch, metric in enumerate(metrics, 1)]


def result(trial: v1.Trial, epoch: int, metric: float) -> v1.TrainingResult:
    """Returns the sums at the end of an epoch that takes a minute."""
    return v1.TrainingResult(
        trial=trial.id,
        measurement=v1.Measurement(
            time_seconds=61.25 * epoch, energy_joules=12345.678 * epoch, metric=metric, epoch=epoch
        ),
    )
