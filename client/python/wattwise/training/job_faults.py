"""The server's rules for a job, for a launch that trains without a server.

They mirror `usecases/job_spec.py` of the server. What only the server knows, such as which prior jobs exist, is left to
it.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wattwise import v1
from wattwise.errors import InvalidJobSpecError, Violation
from wattwise.prices import power_faults
from wattwise.spec import flat_name, leaves, policy_name
from wattwise.training.rules import resolved

_MAX_ID_LENGTH = 200
_MAX_BATCH_SIZES = 64
_MAX_PRIOR_JOBS = 8
_MAX_BETA = 1e6
_MIN_LEASE_SECONDS, _MAX_LEASE_SECONDS = 1.0, 365 * 24 * 3600.0
_MAX_WINDOW = 1000
_NOT_NEGATIVE = (
    "num_pruning_rounds",
    "window_size",
    "num_explorations",
    "prior_precision",
    "reward_precision",
)


def check_valid(sent: v1.JobSpec) -> None:
    """Checks a job as the server does; `sent` has only the fields that the user set.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    faults = [Violation(f"job.{flat_name(path)}", fault) for path, fault in _faults(sent, resolved(sent))]
    if faults:
        raise InvalidJobSpecError.of(faults)


def _faults(sent: v1.JobSpec, spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    """Pairs of a field's path and what to change; `spec` has all defaults."""
    yield from _id_faults(sent)
    yield from _batch_size_faults(sent)
    yield from _target_faults(sent)
    yield from _number_faults(sent, spec)
    yield from _policy_faults(spec)
    yield from _gpu_faults(sent)


def _id_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    if not sent.job_id:
        yield "job_id", "is empty; set the id of the job, the same at every launch"
    if fault := _identifier_fault(sent.job_id):
        yield "job_id", fault
    if not sent.HasField("job_id_prefix"):
        return
    prefix = sent.job_id_prefix
    if not prefix:
        yield "job_id_prefix", "is empty; leave it unset, or set it to the common start of this job's ids"
    if fault := _identifier_fault(prefix):
        yield "job_id_prefix", fault
    if not sent.job_id.startswith(prefix):
        yield "job_id", f"{sent.job_id!r} does not start with its prefix {prefix!r}; change one of the two"


def _target_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    if not sent.target.HasField("value"):
        yield "target.value", "is not set; set it to the validation metric at which a model is good enough"
    if sent.target.direction not in (v1.DIRECTION_HIGHER_IS_BETTER, v1.DIRECTION_LOWER_IS_BETTER):
        known = "DIRECTION_HIGHER_IS_BETTER or DIRECTION_LOWER_IS_BETTER"
        yield "target.direction", f"is {sent.target.direction}; use {known}"


def _batch_size_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    sizes = sorted(sent.batch_sizes)
    if not sizes:
        yield "batch_sizes", "is empty; list at least one batch size"
    if len(sizes) > _MAX_BATCH_SIZES:
        yield "batch_sizes", f"lists {len(sizes)} sizes; list at most {_MAX_BATCH_SIZES}"
        return
    for size, count in Counter(sizes).items():
        if size <= 0:
            yield "batch_sizes", f"{size} is not positive; list sizes of 1 and more"
        if count > 1:
            yield "batch_sizes", f"{size} is listed more than once; list every batch size once"
    if sizes and sent.default_batch_size not in sizes:
        listed = ", ".join(map(str, dict.fromkeys(sizes)))
        yield "default_batch_size", f"{sent.default_batch_size} is not among batch_sizes ({listed}); use one of them"


def _prior_faults(job_id: str, priors: Sequence[str]) -> Iterator[tuple[str, str]]:
    if len(priors) > _MAX_PRIOR_JOBS:
        yield "prior_job_ids", f"lists {len(priors)} jobs; list at most {_MAX_PRIOR_JOBS}"
    for name, count in Counter(priors).items():
        if fault := _identifier_fault(name):
            yield "prior_job_ids", f"has an id that {fault}"
        if count > 1:
            yield "prior_job_ids", f"{name!r} is listed more than once; list every job once"
    if job_id in priors:
        yield "prior_job_ids", "names the job itself; list jobs that were registered before"


def _number_faults(sent: v1.JobSpec, spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    for path, value in leaves(sent):
        if isinstance(value, float) and not math.isfinite(value) and not path.startswith("gpus"):
            yield path, f"is {value}; use a finite number"
    lease, rule = spec.trial_lease_seconds, spec.early_stopping
    if lease < 0:
        yield "trial_lease_seconds", f"is {lease}; use 0 or more"
    if spec.max_epochs < 1:
        yield "max_epochs", f"is {spec.max_epochs}; use 1 or more"
    if 0 < lease < _MIN_LEASE_SECONDS:
        fault = f"is {lease}; use {_MIN_LEASE_SECONDS:.0f} or more, or 0 for a lease that never expires"
        yield "trial_lease_seconds", fault
    if _MAX_LEASE_SECONDS < lease < math.inf:
        yield "trial_lease_seconds", f"is above {_MAX_LEASE_SECONDS:.0f} (a year); use 0 for a lease that never expires"
    if spec.eta_knob < 0 or spec.eta_knob > 1:
        yield "eta_knob", f"is {spec.eta_knob}; use 0 (time alone) to 1 (energy alone)"
    if rule.WhichOneof("rule") == "cost_bound":
        beta, path = rule.cost_bound.beta_knob, "early_stopping.cost_bound.beta_knob"
        if beta <= 0:
            yield path, f"is {beta}; use more than 0, usually 1.5 to 3"
        if _MAX_BETA < beta < math.inf:
            yield path, f"is above {_MAX_BETA:g}, which stops nothing; disable early stopping instead"


def _policy_faults(spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    """The faults of the policy's own fields."""
    policy = policy_name(spec)
    values = {field.name: value for field, value in getattr(spec.policy, policy).ListFields()}
    for name, fault in _parameter_faults(spec.job_id, policy, values):
        yield f"policy.{policy}.{name}", fault


def _parameter_faults(job_id: str, policy: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _NOT_NEGATIVE:
        if (value := values.get(name, 0)) < 0:
            yield name, f"is {value}; use 0 or more"
    yield from _prior_faults(job_id, values.get("prior_job_ids", ()))
    if policy == "knowledge_gradient" and values["window_size"] > _MAX_WINDOW:
        yield "window_size", f"is {values['window_size']}; use at most {_MAX_WINDOW}, or 0 for all trials"
    if policy == "gts" and not values["learn_reward_precision"] and not values["reward_precision"]:
        yield "reward_precision", "is 0 while learn_reward_precision is false; set it to 1/variance of a cost"


def _gpu_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    if len(sent.gpus) != 1:
        yield "gpus", f"has {len(sent.gpus)} groups; this version trains with exactly one group of equal GPUs"
        return
    (group,) = sent.gpus
    if not group.gpu_model:
        yield "gpus[0].gpu_model", "is empty; set it to the model's name"
    if fault := _identifier_fault(group.gpu_model):
        yield "gpus[0].gpu_model", fault
    if group.count < 1:
        yield "gpus[0].count", f"is {group.count}; use 1 or more"
    for name, fault in power_faults(group.max_power_watts_per_gpu):
        yield f"gpus[0].{name}", fault


def _identifier_fault(value: str) -> str | None:
    if len(value) > _MAX_ID_LENGTH:
        return f"has {len(value)} characters; use at most {_MAX_ID_LENGTH}"
    if any(unicodedata.category(character) == "Cc" for character in value):
        return "has control characters; remove them"
    return None
