"""Conversions between a job's message and the values that `wattwise.rules` is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf.message import Message

from wattwise import v1
from wattwise.rules import GpuGroup, JobDraft, ResolvedJob, with_defaults

Policy: TypeAlias = str
"""The name of a policy, which is that of a field of `PolicySpec` in the protos, such as "gts"."""

POLICIES: Mapping[Policy, Sequence[str]] = {
    field.name: list(getattr(v1.PolicySpec(), field.name).DESCRIPTOR.fields_by_name)
    for field in v1.PolicySpec.DESCRIPTOR.fields
}
"""The fields of every policy."""

_OF_GPUS = tuple(field.name for field in v1.GpuGroup.DESCRIPTOR.fields)
SAME_FIELDS = tuple(field.name for field in v1.JobSpec.DESCRIPTOR.fields if field.message_type is None)
"""The fields of the message that are fields of `ResolvedJob` with the same name."""


def job_draft(job: v1.JobSpec) -> JobDraft:
    """Returns the fields of a job that are set."""
    draft = {**_plain(job), **policy_draft(job.policy)}
    target = job.target
    if target.HasField("value"):
        draft["target_metric"] = target.value
    if target.direction in (v1.DIRECTION_HIGHER_IS_BETTER, v1.DIRECTION_LOWER_IS_BETTER):
        draft["higher_is_better"] = target.direction == v1.DIRECTION_HIGHER_IS_BETTER
    rule, bound = job.early_stopping.WhichOneof("rule"), job.early_stopping.cost_bound
    if rule == "off" or bound.HasField("beta_knob"):
        draft["beta_knob"] = None if rule == "off" else bound.beta_knob
    groups = [
        GpuGroup(gpu_model=each.gpu_model, count=each.count, max_power_watts_per_gpu=each.max_power_watts_per_gpu)
        for each in job.gpus
    ]
    if groups:
        draft["gpu"] = groups[0] if len(groups) == 1 else len(groups)
    return draft


def policy_draft(policy: v1.PolicySpec) -> dict[str, Any]:
    """Returns the policy and those of its parameters that are set; nothing if the policy is unset or unknown."""
    name = policy.WhichOneof("policy")
    return {} if name is None else {"policy": name, **_plain(getattr(policy, name))}


def _plain(message: Message) -> dict[str, Any]:
    """Returns the fields that are set, messages aside."""
    return {
        field.name: value if isinstance(value, str | int | float) else tuple(value)
        for field, value in message.ListFields()
        if field.message_type is None
    }


def job_fields(spec: ResolvedJob) -> Mapping[str, Any]:
    """Returns the fields of a job's message, for its constructor."""
    better = v1.DIRECTION_HIGHER_IS_BETTER if spec.higher_is_better else v1.DIRECTION_LOWER_IS_BETTER
    parameters = POLICIES.get(spec.policy)
    return {
        **{name: getattr(spec, name) for name in SAME_FIELDS},
        "job_id_prefix": spec.job_id_prefix or None,
        "target": {"value": spec.target_metric, "direction": better},
        "early_stopping": {"off": {}} if spec.beta_knob is None else {"cost_bound": {"beta_knob": spec.beta_knob}},
        "gpus": [] if spec.gpu is None else [{name: getattr(spec.gpu, name) for name in _OF_GPUS}],
        # A server may have a policy that the protos do not have.
        "policy": {} if parameters is None else {spec.policy: {name: getattr(spec, name) for name in parameters}},
    }


def resolved(job: v1.JobSpec) -> v1.JobSpec:
    """Returns a valid job, or one without GPUs, with all defaults filled in, as the server does for a new job."""
    return v1.JobSpec(**job_fields(with_defaults(job_draft(job))))
