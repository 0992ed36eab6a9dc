"""Turns the fields that a client set into a resolved JobSpec, or lists all faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeAlias

from wattwise_server.domain import MAX_ID_LENGTH, GpuConfig, Job, JobSpec, identifier_fault
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError, Violation
from wattwise_server.policy.base import Policy
from wattwise_server.policy.registry import POLICIES

GENERATED_LENGTH = len("-01234567")
MAX_BATCH_SIZES = 64
MAX_PRIOR_JOBS = 8
MAX_BETA = 1e6
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 365 * 24 * 3600.0


JobDraft: TypeAlias = Mapping[str, Any]
"""The fields of a JobSpec that a client set, by name; the others take the defaults of JobSpec."""

_UNSET: JobDraft = {"job_id_prefix": "", "batch_sizes": (), "default_batch_size": 0, "gpu": None}
"""Required fields, so that a draft without them can be checked."""


def resolve(
    draft: JobDraft, new_id: str, policies: Mapping[str, Policy] = POLICIES, unknown_jobs: Iterable[str] = ()
) -> JobSpec:
    """Fills in the defaults; a draft without a job_id gets the new one. `unknown_jobs` are prior jobs that don't exist.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    values = {**_UNSET, "job_id": new_id, **draft}
    spec = JobSpec(**{**values, "batch_sizes": tuple(sorted(values["batch_sizes"]))})
    faults = [Violation(f"job.{name}", fault) for name, fault in _faults(draft, spec, policies)]
    if unknown := ", ".join(map(repr, unknown_jobs)):
        fault = f"names {unknown}, not registered on this server; list the ids of registered jobs"
        faults.append(Violation("job.prior_job_ids", fault))
    if faults:
        raise InvalidJobSpecError(*faults)
    return replace(spec, beta_knob=None) if spec.disable_early_stopping else spec


def check_identical(job: Job, requested: JobSpec) -> None:
    """Compares a job's configuration with the resolved one of another registration.

    If a person has changed the job's policy, the earlier one is confirmed too.

    Raises:
        JobDiffersError: lists every field that differs, with both values.
    """
    registered = job.spec
    if requested.policy == job.registered_policy:
        requested = replace(requested, policy=registered.policy)
    old, new = _flat(registered), _flat(requested)
    differing = {
        name: f"registered {_brief(old[name])}, requested {_brief(new[name])}" for name in old if old[name] != new[name]
    }
    if differing:
        raise JobDiffersError(registered.job_id, differing)


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _flat(spec: JobSpec) -> dict[str, object]:
    values = asdict(spec)
    gpu = values.pop("gpu")
    values["policy"] = spec.policy
    values["batch_sizes"] = list(spec.batch_sizes)
    return values | {f"gpu.{name}": value for name, value in gpu.items()}


def _faults(draft: JobDraft, spec: JobSpec, policies: Mapping[str, Policy]) -> Iterator[tuple[str, str]]:
    """Pairs of a field's name and what to change; `draft` tells which fields the client set."""
    yield from _id_faults(spec, id_is_set="job_id" in draft)
    yield from _batch_size_faults(spec)
    yield from _number_faults(spec)
    yield from _prior_faults(spec)
    if "beta_knob" in draft and spec.disable_early_stopping:
        yield "beta_knob", "is set although disable_early_stopping is true; unset one of the two"
    if spec.policy in policies:
        yield from policies[spec.policy].faults(spec)
    else:
        known = ", ".join(f"POLICY_{name}" for name in policies)
        yield "policy", f"{spec.policy} is not known to this server; use one of {known}"
    yield from _gpu_faults(draft.get("gpu"))


def _id_faults(spec: JobSpec, *, id_is_set: bool) -> Iterator[tuple[str, str]]:
    prefix = spec.job_id_prefix
    if not prefix:
        yield "job_id_prefix", "is empty; set it to the common start of this job's ids"
    if fault := identifier_fault(prefix):
        yield "job_id_prefix", fault
    if not id_is_set:
        longest = MAX_ID_LENGTH - GENERATED_LENGTH
        if longest < len(prefix) <= MAX_ID_LENGTH:
            yield "job_id_prefix", f"leaves no room for a generated id; use at most {longest} characters"
        return
    if fault := identifier_fault(spec.job_id):
        yield "job_id", fault
    if not spec.job_id:
        yield "job_id", "is empty; leave it unset to have one generated, or start it with the prefix"
    elif not spec.job_id.startswith(prefix):
        yield "job_id", f"{spec.job_id!r} does not start with its prefix {prefix!r}; change one of the two"


def _batch_size_faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    sizes = spec.batch_sizes
    if not sizes:
        yield "batch_sizes", "is empty; list at least one batch size"
    if len(sizes) > MAX_BATCH_SIZES:
        yield "batch_sizes", f"lists {len(sizes)} sizes; list at most {MAX_BATCH_SIZES}"
        return
    for size, count in Counter(sizes).items():
        if size <= 0:
            yield "batch_sizes", f"{size} is not positive; list sizes of 1 and more"
        if count > 1:
            yield "batch_sizes", f"{size} is listed {count} times; list every batch size once"
    if sizes and spec.default_batch_size not in sizes:
        listed = ", ".join(map(str, dict.fromkeys(sizes)))
        yield "default_batch_size", f"{spec.default_batch_size} is not among batch_sizes ({listed}); use one of them"


def _prior_faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    priors = spec.prior_job_ids
    if len(priors) > MAX_PRIOR_JOBS:
        yield "prior_job_ids", f"lists {len(priors)} jobs; list at most {MAX_PRIOR_JOBS}"
    for name, count in Counter(priors).items():
        if fault := identifier_fault(name):
            yield "prior_job_ids", f"has an id that {fault}"
        if count > 1:
            yield "prior_job_ids", f"{name!r} is listed {count} times; list every job once"
    if spec.job_id in priors:
        yield "prior_job_ids", "names the job itself; list jobs that were registered before"


def _number_faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for field in fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, float) and not math.isfinite(value):
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
    if 0 < spec.trial_lease_seconds < MIN_LEASE_SECONDS:
        fault = (
            f"is {spec.trial_lease_seconds}; use {MIN_LEASE_SECONDS:.0f} or more, or 0 for a lease that never expires"
        )
        yield "trial_lease_seconds", fault
    if MAX_LEASE_SECONDS < spec.trial_lease_seconds < math.inf:
        yield "trial_lease_seconds", f"is above {MAX_LEASE_SECONDS:.0f} (a year); use 0 for a lease that never expires"
    if spec.eta_knob < 0 or spec.eta_knob > 1:
        yield "eta_knob", f"is {spec.eta_knob}; use 0 (time alone) to 1 (energy alone)"
    if spec.beta_knob is not None and spec.beta_knob <= 0:
        yield "beta_knob", f"is {spec.beta_knob}; use more than 0, usually 1.5 to 3"
    if spec.beta_knob is not None and MAX_BETA < spec.beta_knob < math.inf:
        yield "beta_knob", f"is above {MAX_BETA:g}, which stops nothing; set disable_early_stopping instead"


def _gpu_faults(gpu: GpuConfig | None) -> Iterator[tuple[str, str]]:
    if gpu is None:
        yield "gpu", "is not set; set max_power_watts, number_of_gpus and gpu_model"
        return
    if not math.isfinite(gpu.max_power_watts) or gpu.max_power_watts <= 0:
        yield "gpu.max_power_watts", f"is {gpu.max_power_watts}; use the watts of all GPUs together, above 0"
    if gpu.number_of_gpus < 1:
        yield "gpu.number_of_gpus", f"is {gpu.number_of_gpus}; use 1 or more"
    if not gpu.gpu_model:
        yield "gpu.gpu_model", "is empty; set it to the model's name"
    if fault := identifier_fault(gpu.gpu_model):
        yield "gpu.gpu_model", fault
