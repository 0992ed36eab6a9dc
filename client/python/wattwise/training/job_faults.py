"""The server's rules for a job, for a launch that trains without a server.

They mirror `usecases/job_spec.py` of the server. What only the server knows, such as which prior jobs exist, is left to
it.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor

from wattwise import v1
from wattwise.errors import InvalidJobSpecError, Violation
from wattwise.prices import power_faults
from wattwise.training.rules import resolved

_MAX_ID_LENGTH = 200
_MAX_BATCH_SIZES = 64
_MAX_PRIOR_JOBS = 8
_MAX_BETA = 1e6
_MIN_LEASE_SECONDS, _MAX_LEASE_SECONDS = 1.0, 365 * 24 * 3600.0
_MAX_WINDOW = 1000
_POLICIES = tuple(name for name, value in v1.Policy.items() if value)


def check_valid(sent: v1.JobSpec) -> None:
    """Checks a job as the server does; `sent` has only the fields that the user set.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    faults = [Violation(f"job.{name}", fault) for name, fault in _faults(sent, resolved(sent))]
    if faults:
        raise InvalidJobSpecError.of(faults)


def _faults(sent: v1.JobSpec, spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    """Pairs of a field's name and what to change; `spec` has all defaults."""
    yield from _id_faults(sent)
    yield from _batch_size_faults(sent)
    yield from _number_faults(sent, spec)
    yield from _prior_faults(sent)
    if sent.HasField("beta_knob") and sent.disable_early_stopping:
        yield "beta_knob", "is set although disable_early_stopping is true; unset one of the two"
    yield from _policy_faults(spec)
    yield from _gpu_faults(sent)


def _id_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    prefix = sent.job_id_prefix
    if not prefix:
        yield "job_id_prefix", "is empty; set it to the common start of this job's ids"
    if fault := _identifier_fault(prefix):
        yield "job_id_prefix", fault
    if fault := _identifier_fault(sent.job_id):
        yield "job_id", fault
    if not sent.job_id:
        yield "job_id", "is empty; leave it unset to have one generated, or start it with the prefix"
    elif not sent.job_id.startswith(prefix):
        yield "job_id", f"{sent.job_id!r} does not start with its prefix {prefix!r}; change one of the two"


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
            yield "batch_sizes", f"{size} is listed {count} times; list every batch size once"
    if sizes and sent.default_batch_size not in sizes:
        listed = ", ".join(map(str, dict.fromkeys(sizes)))
        yield "default_batch_size", f"{sent.default_batch_size} is not among batch_sizes ({listed}); use one of them"


def _prior_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    priors = sent.prior_job_ids
    if len(priors) > _MAX_PRIOR_JOBS:
        yield "prior_job_ids", f"lists {len(priors)} jobs; list at most {_MAX_PRIOR_JOBS}"
    for name, count in Counter(priors).items():
        if fault := _identifier_fault(name):
            yield "prior_job_ids", f"has an id that {fault}"
        if count > 1:
            yield "prior_job_ids", f"{name!r} is listed {count} times; list every job once"
    if sent.job_id in priors:
        yield "prior_job_ids", "names the job itself; list jobs that were registered before"


def _number_faults(sent: v1.JobSpec, spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    for field, value in sent.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and not math.isfinite(value):
            yield field.name, f"is {value}; use a finite number"
    for name in (
        "num_pruning_rounds",
        "window_size",
        "mab_num_explorations",
        "mab_prior_precision",
        "reward_precision",
        "trial_lease_seconds",
    ):
        if (value := getattr(spec, name)) < 0:
            yield name, f"is {value}; use 0 or more"
    if spec.max_epochs < 1:
        yield "max_epochs", f"is {spec.max_epochs}; use 1 or more"
    if 0 < spec.trial_lease_seconds < _MIN_LEASE_SECONDS:
        fault = (
            f"is {spec.trial_lease_seconds}; use {_MIN_LEASE_SECONDS:.0f} or more, or 0 for a lease that never expires"
        )
        yield "trial_lease_seconds", fault
    if _MAX_LEASE_SECONDS < spec.trial_lease_seconds < math.inf:
        yield "trial_lease_seconds", f"is above {_MAX_LEASE_SECONDS:.0f} (a year); use 0 for a lease that never expires"
    if spec.eta_knob < 0 or spec.eta_knob > 1:
        yield "eta_knob", f"is {spec.eta_knob}; use 0 (time alone) to 1 (energy alone)"
    if sent.HasField("beta_knob") and sent.beta_knob <= 0:
        yield "beta_knob", f"is {sent.beta_knob}; use more than 0, usually 1.5 to 3"
    if _MAX_BETA < sent.beta_knob < math.inf:
        yield "beta_knob", f"is above {_MAX_BETA:g}, which stops nothing; set disable_early_stopping instead"


def _policy_faults(spec: v1.JobSpec) -> Iterator[tuple[str, str]]:
    if spec.policy == v1.POLICY_KNOWLEDGE_GRADIENT:
        if spec.window_size > _MAX_WINDOW:
            yield "window_size", f"is {spec.window_size}; use at most {_MAX_WINDOW}, or 0 for all trials"
    elif spec.policy not in v1.Policy.values():
        yield "policy", f"{spec.policy} is not known to this client; use one of {', '.join(_POLICIES)}"
    elif spec.prior_job_ids:
        name = v1.Policy.Name(spec.policy)
        yield "prior_job_ids", f"is not read by {name}; remove it, or use POLICY_KNOWLEDGE_GRADIENT"
    if spec.policy == v1.POLICY_GTS and not spec.learn_reward_precision and not spec.reward_precision:
        yield "reward_precision", "is 0 while learn_reward_precision is false; set it to 1/variance of a cost"


def _gpu_faults(sent: v1.JobSpec) -> Iterator[tuple[str, str]]:
    gpu = sent.gpu
    yield from ((f"gpu.{name}", why) for name, why in power_faults(gpu.max_power_watts, gpu.number_of_gpus))
    if not gpu.gpu_model:
        yield "gpu.gpu_model", "is empty; set it to the model's name"
    if fault := _identifier_fault(gpu.gpu_model):
        yield "gpu.gpu_model", fault


def _identifier_fault(value: str) -> str | None:
    if len(value) > _MAX_ID_LENGTH:
        return f"has {len(value)} characters; use at most {_MAX_ID_LENGTH}"
    if any(unicodedata.category(character) == "Cc" for character in value):
        return "has control characters; remove them"
    return None
