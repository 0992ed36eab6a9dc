"""Jobs and measurements with simple numbers.

The cost is the energy (eta is 1) unless a test sets another eta.
"""

from __future__ import annotations

import itertools
from typing import Any

from wattwise import v1

GPU = v1.GpuConfig(max_power_watts=100, number_of_gpus=1, gpu_model="Test GPU")
_ids = itertools.count()


def job_spec(**fields: Any) -> v1.JobSpec:
    """A job of the paper's policy with a new id, batch sizes 8, 16, 32, 64 and default 16."""
    defaults: dict[str, Any] = {
        "job_id_prefix": "test",
        "job_id": f"test-{next(_ids)}",
        "batch_sizes": [8, 16, 32, 64],
        "default_batch_size": 16,
        "eta_knob": 1.0,
        "target_metric": 0.9,
        "max_epochs": 10,
        "mab_seed": 1,
        "policy": v1.POLICY_PRUNING_GTS,
        "gpu": GPU,
    }
    return v1.JobSpec(**(defaults | fields))


def monitor_of(*kinds: str) -> v1.Monitor:
    """A monitor of these kinds that never failed; "estimate" alone estimates."""
    quality = v1.ENERGY_QUALITY_MEASURED
    if "estimate" in kinds:
        quality = v1.ENERGY_QUALITY_PARTLY_ESTIMATED if len(kinds) > 1 else v1.ENERGY_QUALITY_ESTIMATED
    return v1.Monitor(kinds=kinds, quality=quality)


def result(
    trial: v1.Trial,
    cost: float,
    metric: float = 0.95,
    epoch: int = 1,
    time: float = 1.0,
    *,
    monitor: v1.Monitor | None = None,
) -> v1.TrainingResult:
    """A measurement whose cost is `cost` when eta is 1."""
    return v1.TrainingResult(
        trial=trial.id,
        measurement=v1.Measurement(time_seconds=time, energy_joules=cost, metric=metric, epoch=epoch),
        monitor=monitor,
    )


def power_setting(watts: float) -> v1.PowerSetting:
    """A setting with this limit for one GPU."""
    return v1.PowerSetting(limit_watts_per_gpu=watts)


def power_sample(watts: float = 250.0, energy: float = 100.0, time: float = 1.0, steps: int = 10) -> v1.PowerSample:
    """A sample of ten steps at a power limit; a step costs a tenth of the energy when eta is 1."""
    return v1.PowerSample(power_setting=power_setting(watts), time_seconds=time, energy_joules=energy, steps=steps)


class Trainer:
    """One job, driven through a stub as a trainer does."""

    def __init__(self, stub: v1.BatchSizeOptimizerStub, **fields: Any) -> None:
        self.stub = stub
        self.spec = job_spec(**fields)
        self.job_id = self.spec.job_id
        stub.RegisterJob(v1.RegisterJobRequest(job=self.spec))

    def next(self, launch_id: str = "", *, resume: bool = False) -> v1.Trial:
        """Get the next trial."""
        request = v1.GetNextBatchSizeRequest(job_id=self.job_id, launch_id=launch_id, resume=resume)
        return self.stub.GetNextBatchSize(request).trial

    def report(
        self,
        trial: v1.Trial,
        cost: float,
        metric: float = 0.95,
        epoch: int = 1,
        time: float = 1.0,
        *,
        monitor: v1.Monitor | None = None,
    ) -> v1.Decision:
        """Report an epoch."""
        request = v1.ReportResultRequest(result=result(trial, cost, metric, epoch, time, monitor=monitor))
        return self.stub.ReportResult(request).decision

    def heartbeat(self, trial: v1.Trial) -> v1.Decision:
        """Renew the lease."""
        return self.stub.Heartbeat(v1.HeartbeatRequest(trial=trial.id)).decision

    def end(self, trial: v1.Trial, reason: v1.EndReason.ValueType) -> v1.Trial:
        """End a trial."""
        return self.stub.EndTrial(v1.EndTrialRequest(trial=trial.id, reason=reason)).trial

    def run(self, cost: float, *, converges: bool = True, monitor: v1.Monitor | None = None) -> v1.Trial:
        """Run a whole trial: it converges in its first epoch, or fails in its last."""
        trial = self.next()
        if converges:
            self.report(trial, cost, monitor=monitor)
        else:
            self.report(trial, cost, metric=0.1, epoch=self.spec.max_epochs, monitor=monitor)
        return trial
