"""Jobs and measurements with simple numbers.

The cost is the energy (eta is 1) unless a test sets another eta.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from google.protobuf.json_format import ParseDict
from wattwise import v1
from wattwise.drafts import POLICIES, resolved
from wattwise.rpc.calls import new_id
from wattwise.spec import max_power_watts, policy_name

GPU = v1.GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100)
_ids = itertools.count()


def job_spec(**fields: Any) -> v1.JobSpec:
    """A job of the paper's policy with a new id, batch sizes 8, 16, 32, 64 and default 16.

    Args:
        **fields: fields of the Python `JobSpec`, or of the message; None is unset. Nothing is checked.
    """
    defaults: dict[str, Any] = {
        "job_id_prefix": "test",
        "job_id": f"test-{next(_ids)}",
        "batch_sizes": [8, 16, 32, 64],
        "default_batch_size": 16,
        "eta_knob": 1.0,
        "target_metric": 0.9,
        "max_epochs": 10,
        "higher_is_better": True,
        "policy": "pruning_gts",
        "gpu": GPU,
    }
    return to_message(defaults | fields)


def to_message(fields: Mapping[str, Any]) -> v1.JobSpec:
    """A job with fields of the Python `JobSpec` or of the message; None is unset, and a missing seed is 1.

    Parameters of other policies are left out.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    message = v1.JobSpec()
    if "target_metric" in values:
        message.target.value = values.pop("target_metric")
    if "higher_is_better" in values:
        better = "HIGHER" if values.pop("higher_is_better") else "LOWER"
        message.target.direction = v1.Direction.Value(f"DIRECTION_{better}_IS_BETTER")
    if (beta := values.pop("beta_knob", None)) == "off":
        message.early_stopping.off.SetInParent()
    elif beta is not None:
        message.early_stopping.cost_bound.beta_knob = beta
    if "gpu" in values:
        message.gpus.append(values.pop("gpu"))
    parameters = {name: values.pop(name) for names in POLICIES.values() for name in names if name in values}
    if isinstance(policy := values.get("policy", "knowledge_gradient" if parameters else None), str):
        parameters = {name: value for name, value in parameters.items() if name in POLICIES[policy]}
        values["policy"] = policy_message(
            policy, **({"seed": 1} if "seed" in POLICIES[policy] and "seed" not in fields else {}) | parameters
        )
    # Messages of a table replace the defaults.
    for name, value in values.items():
        if isinstance(value, Mapping) or name == "gpus":
            message.ClearField(name)  # type: ignore[arg-type]
        if isinstance(value, Mapping) or (name == "gpus" and any(isinstance(each, Mapping) for each in value)):
            ParseDict({name: _json(value)}, message)
        else:
            message.MergeFrom(v1.JobSpec(**{name: value}))
    return message


def _json(value: Any) -> Any:
    """A value of a table as JSON, which has no NaN."""
    if isinstance(value, Mapping):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json(each) for each in value]
    return "NaN" if value != value else value  # noqa: PLR0124 - NaN alone


def flat_of(spec: v1.JobSpec) -> SimpleNamespace:
    """A job with the fields of the Python `JobSpec`, and all defaults; fields of other policies are missing."""
    full = resolved(spec)
    fields: dict[str, Any] = {field.name: value for field, value in full.ListFields()}
    rule = full.early_stopping
    fields |= {
        "target_metric": full.target.value,
        "higher_is_better": full.target.direction == v1.DIRECTION_HIGHER_IS_BETTER,
        "beta_knob": rule.cost_bound.beta_knob if rule.WhichOneof("rule") == "cost_bound" else None,
        "max_power_watts": max_power_watts(full),
        "policy": policy_name(full),
    }
    parameters = getattr(full.policy, policy_name(full))
    return SimpleNamespace(**fields, **{name: getattr(parameters, name) for name in POLICIES[policy_name(full)]})


def set_policy(spec: v1.JobSpec, policy: str | None, **parameters: Any) -> None:
    """Changes the policy of a job; None leaves it to the server."""
    spec.ClearField("policy")
    if policy is not None:
        spec.policy.CopyFrom(policy_message(policy, **parameters))


def policy_message(policy: str, **parameters: Any) -> v1.PolicySpec:
    """A policy with some parameters."""
    message = v1.PolicySpec()
    chosen = getattr(message, policy)
    chosen.SetInParent()
    chosen.MergeFrom(type(chosen)(**parameters))
    return message


def monitor_of(*kinds: str) -> v1.Monitor:
    """A monitor of these kinds that never failed; "estimate" alone estimates."""
    quality = v1.ENERGY_QUALITY_MEASURED
    if "estimate" in kinds:
        quality = v1.ENERGY_QUALITY_PARTLY_ESTIMATED if len(kinds) > 1 else v1.ENERGY_QUALITY_ESTIMATED
    return v1.Monitor(kinds=kinds, quality=quality)


def result(
    trial: v1.Trial,
    cost: float | None,
    metric: float = 0.95,
    epoch: int = 1,
    time: float = 1.0,
    *,
    monitor: v1.Monitor | None = None,
) -> v1.TrainingResult:
    """A measurement whose cost is `cost` when eta is 1; None: no energy was measured."""
    return v1.TrainingResult(
        trial=trial.id,
        measurement=v1.Measurement(time_seconds=time, energy_joules=cost, metric=metric, epoch=epoch),
        monitor=monitor,
    )


def power_setting(watts: float) -> v1.PowerSetting:
    """A setting with this limit for one GPU."""
    return v1.PowerSetting(limit_watts_per_gpu=watts)


def power_sample(
    watts: float = 250.0, energy: float | None = 100.0, time: float = 1.0, steps: int = 10
) -> v1.PowerSample:
    """A sample of ten steps at a power limit; a step costs a tenth of the energy when eta is 1."""
    return v1.PowerSample(power_setting=power_setting(watts), time_seconds=time, energy_joules=energy, steps=steps)


class Trainer:
    """One job, driven through a stub as a trainer does."""

    def __init__(self, stub: v1.BatchSizeOptimizerStub, **fields: Any) -> None:
        self.stub = stub
        self.spec = job_spec(**fields)
        self.job_id = self.spec.job_id
        stub.RegisterJob(v1.RegisterJobRequest(job=self.spec))

    def next(self, launch_id: str | None = None, *, resume: bool = False) -> v1.Trial:
        """Get the next trial; by default for a new launch."""
        launch = new_id() if launch_id is None else launch_id
        request = v1.GetNextBatchSizeRequest(job_id=self.job_id, launch_id=launch, resume=resume)
        return self.stub.GetNextBatchSize(request).trial

    def report(
        self,
        trial: v1.Trial,
        cost: float | None,
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
        return self.stub.EndTrial(v1.EndTrialRequest(trial=trial.id, end_reason=reason)).trial

    def run(self, cost: float | None, *, converges: bool = True, monitor: v1.Monitor | None = None) -> v1.Trial:
        """Run a whole trial: it converges in its first epoch, or fails in its last."""
        trial = self.next()
        if converges:
            self.report(trial, cost, monitor=monitor)
        else:
            self.report(trial, cost, metric=0.1, epoch=self.spec.max_epochs, monitor=monitor)
        return trial
