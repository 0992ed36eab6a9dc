"""Turns the fields that a client set into a resolved JobSpec, or lists all faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple, TypeAlias

from wattwise_server.domain import PARAMETERS, GpuGroup, Job, JobSpec, identifier_fault
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError, Violation
from wattwise_server.policy.base import Policy
from wattwise_server.policy.registry import POLICIES

MAX_BATCH_SIZES = 64
MAX_PRIOR_JOBS = 8
MAX_BETA = 1e6
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 365 * 24 * 3600.0

JobDraft: TypeAlias = Mapping[str, Any]
"""The fields of a JobSpec that a client set, by name; the others take their defaults."""

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(JobSpec) if field.default is not MISSING}
"""The values of fields that a client does not set."""

_UNSET: JobDraft = {
    "job_id": "",
    "batch_sizes": (),
    "default_batch_size": 0,
    "gpu": None,
    "target_metric": 0.0,
    "higher_is_better": True,
}
"""Required fields, so that a draft without them can be checked."""

_PATHS = {
    "target_metric": "target.value",
    "higher_is_better": "target.direction",
    "beta_knob": "early_stopping.cost_bound.beta_knob",
    "gpu": "gpus",
}
"""Where a request has a field, unless it has the same name there or is a parameter of a policy."""

_NOT_NEGATIVE = ("num_pruning_rounds", "window_size", "num_explorations", "prior_precision", "reward_precision")


def path_of(name: str, policy: str) -> str:
    """Returns where a request has a field of a JobSpec of this policy: "policy.gts.seed"."""
    return f"policy.{policy}.{name}" if name in PARAMETERS else _PATHS.get(name, name)


def resolve(draft: JobDraft, policies: Mapping[str, Policy] = POLICIES, unknown_jobs: Iterable[str] = ()) -> JobSpec:
    """Fills in the defaults. `unknown_jobs` are prior jobs that don't exist.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    values = {**_UNSET, **DEFAULTS, **draft}
    spec = JobSpec(**{**values, "batch_sizes": tuple(sorted(values["batch_sizes"]))})
    faults = [Violation(f"job.{path_of(name, spec.policy)}", fault) for name, fault in _faults(draft, spec, policies)]
    if unknown := ", ".join(map(repr, unknown_jobs)):
        fault = f"names {unknown}, not registered on this server; list the ids of registered jobs"
        faults.append(Violation(f"job.{path_of('prior_job_ids', spec.policy)}", fault))
    if faults:
        raise InvalidJobSpecError(*faults)
    return spec


def set_fields(draft: JobDraft) -> frozenset[str]:
    """Returns the optional fields that a client set to another value than the default of today."""
    return frozenset(name for name in draft.keys() & DEFAULTS.keys() if draft[name] != DEFAULTS[name])


def with_policy(job: Job, draft: JobDraft) -> JobSpec:
    """Returns a job's configuration with another policy.

    Args:
        job: The job.
        draft: The policy and those of its parameters that are set. The others get the values that the job was
            registered with, if it was registered with this policy, otherwise their defaults.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    registered = job.registered or job.spec
    values = {name: DEFAULTS[name] for name in PARAMETERS}
    if draft["policy"] == registered.policy:
        values = {name: getattr(registered, name) for name in PARAMETERS}
    # Prior jobs are kept for the policy that reads them.
    spec = replace(job.spec, **{**values, **draft, "prior_job_ids": registered.prior_job_ids})
    faults = list(_policy_faults(replace(spec, prior_job_ids=()), POLICIES))
    if draft.get("prior_job_ids"):
        faults.append(("prior_job_ids", "is only read when the job is created; leave it empty"))
    if faults:
        raise InvalidJobSpecError(*(Violation(path_of(name, spec.policy), fault) for name, fault in faults))
    return spec


def policy_change(old: JobSpec, new: JobSpec) -> str:
    """Returns what a change of a policy changes, for people."""
    if old.policy != new.policy:
        return f"from {_policy_text(old)} to {_policy_text(new)}"
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in PARAMETERS)
    changed = [f"{name} from {_brief(was)} to {_brief(now)}" for name, was, now in pairs if was != now]
    return f"{new.policy}, {', '.join(changed)}"


def _policy_text(spec: JobSpec) -> str:
    """Returns a policy with the parameters that are not the defaults, apart from the prior jobs."""
    pairs = [(name, getattr(spec, name)) for name in PARAMETERS if name != "prior_job_ids"]
    special = [f"{name} {_brief(value)}" for name, value in pairs if value != DEFAULTS[name]]
    return f"{spec.policy} ({', '.join(special)})" if special else spec.policy


def check_identical(job: Job, draft: JobDraft) -> None:
    """Compares a job's configuration with that of another registration.

    A field that is not set now matches if the registered value was the default when the job was registered, or is the
    default now. A job keeps its policy if the client leaves that to the server. If a person has changed the policy, the
    earlier one and the one in force are both confirmed.

    Raises:
        InvalidJobSpecError: the other registration has a fault.
        JobDiffersError: lists every field that differs, with both values.
    """
    registered = job.registered or job.spec
    kept = {} if "policy" in draft else {name: getattr(registered, name) for name in ("policy", *PARAMETERS)}
    requested = resolve({**draft, **kept})
    differing = [*_differences(job, draft, requested), *_policy_differences(registered, job, draft, requested)]
    if differing and job.registered is not None and draft.get("policy") == job.spec.policy:
        # Every parameter that is set has the value that is in force.
        in_force = ((name, getattr(job.spec, name), draft[name]) for name in PARAMETERS if name in draft)
        changed = [_Difference(name, old, new) for name, old, new in in_force if old != new]
        differing = [*_differences(job, draft, requested), *changed]
    if differing:
        raise JobDiffersError(registered.job_id, [each.violation(requested.policy) for each in differing])


class _Difference(NamedTuple):
    """A field whose registered value is not the requested one."""

    name: str
    registered: object
    requested: object

    def violation(self, policy: str) -> Violation:
        """Returns the difference, for the client; the policy is the requested one."""
        path, values = path_of(self.name, policy), (self.registered, self.requested)
        if self.name == "beta_knob" and None in values:
            path = "early_stopping"
            texts = ["off" if beta is None else f"cost_bound with beta_knob {beta}" for beta in values]
        elif self.name == "higher_is_better":
            texts = [f"DIRECTION_{'HIGHER' if higher else 'LOWER'}_IS_BETTER" for higher in values]
        else:
            texts = [_brief(value) for value in values]
        registered, requested = texts
        return Violation(f"job.{path}", f"registered {registered}, requested {requested}")


def _differences(job: Job, draft: JobDraft, requested: JobSpec) -> Iterator[_Difference]:
    """Yields what differs, the policy aside."""
    of_policy = {"policy", *PARAMETERS}
    for field in fields(JobSpec):
        if field.name in of_policy or _is_default(field.name, job, draft):
            continue
        old, new = getattr(job.spec, field.name), getattr(requested, field.name)
        if field.name == "gpu":
            yield from _gpu_differences(old, new)
        elif old != new:
            yield _Difference(field.name, old, new)


def _gpu_differences(old: GpuGroup, new: GpuGroup) -> Iterator[_Difference]:
    for field in fields(GpuGroup):
        registered, requested = getattr(old, field.name), getattr(new, field.name)
        if registered != requested:
            yield _Difference(f"gpus[0].{field.name}", registered, requested)


def _policy_differences(registered: JobSpec, job: Job, draft: JobDraft, requested: JobSpec) -> Iterator[_Difference]:
    """Yields what differs from the registered policy; nothing if the client leaves the policy to the server."""
    if "policy" not in draft:
        return
    if requested.policy != registered.policy:
        yield _Difference("policy", registered.policy, requested.policy)
        return
    for name in PARAMETERS:
        old, new = getattr(registered, name), getattr(requested, name)
        if old != new and not _is_default(name, job, draft):
            yield _Difference(name, old, new)


def _is_default(name: str, job: Job, draft: JobDraft) -> bool:
    """Returns whether a field is left to the server, and the registered value was the default at the time."""
    return name in DEFAULTS and name not in draft and name not in job.set_fields


def _brief(value: object) -> str:
    text = "unset" if value in (None, "") else str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _faults(draft: JobDraft, spec: JobSpec, policies: Mapping[str, Policy]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a field's name and what to change; `draft` tells which fields the client set."""
    yield from _id_faults(spec, has_prefix="job_id_prefix" in draft)
    yield from _batch_size_faults(spec)
    yield from _target_faults(draft)
    yield from _number_faults(spec)
    yield from _policy_faults(spec, policies)
    yield from _gpu_faults(draft.get("gpu"))


def _id_faults(spec: JobSpec, *, has_prefix: bool) -> Iterator[tuple[str, str]]:
    if not spec.job_id:
        yield "job_id", "is empty; set the id of the job, the same at every launch"
    if fault := identifier_fault(spec.job_id):
        yield "job_id", fault
    if not has_prefix:
        return
    prefix = spec.job_id_prefix
    if not prefix:
        yield "job_id_prefix", "is empty; leave it unset, or set it to the common start of this job's ids"
    if fault := identifier_fault(prefix):
        yield "job_id_prefix", fault
    if not spec.job_id.startswith(prefix):
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
            yield "batch_sizes", f"{size} is listed more than once; list every batch size once"
    if not spec.default_batch_size:
        yield "default_batch_size", "is not set; use one of batch_sizes"
    elif sizes and spec.default_batch_size not in sizes:
        listed = ", ".join(map(str, dict.fromkeys(sizes)))
        yield "default_batch_size", f"{spec.default_batch_size} is not among batch_sizes ({listed}); use one of them"


def _target_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    if "target_metric" not in draft:
        yield "target_metric", "is not set; set it to the validation metric at which a model is good enough"
    if "higher_is_better" not in draft:
        known = "DIRECTION_HIGHER_IS_BETTER or DIRECTION_LOWER_IS_BETTER"
        yield "higher_is_better", f"is not set, or unknown to this server; use {known}"


def _prior_faults(job_id: str, priors: Sequence[str]) -> Iterator[tuple[str, str]]:
    if len(priors) > MAX_PRIOR_JOBS:
        yield "prior_job_ids", f"lists {len(priors)} jobs; list at most {MAX_PRIOR_JOBS}"
    for name, count in Counter(priors).items():
        if fault := identifier_fault(name):
            yield "prior_job_ids", f"has an id that {fault}"
        if count > 1:
            yield "prior_job_ids", f"{name!r} is listed more than once; list every job once"
    if job_id in priors:
        yield "prior_job_ids", "names the job itself; list jobs that were registered before"


def _number_faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for name in ("eta_knob", "beta_knob", "target_metric", "trial_lease_seconds"):
        value = getattr(spec, name)
        if value is not None and not math.isfinite(value):
            yield name, f"is {value}; use a finite number"
    if spec.trial_lease_seconds < 0:
        yield "trial_lease_seconds", f"is {spec.trial_lease_seconds}; use 0 or more"
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
        yield "beta_knob", f"is above {MAX_BETA:g}, which stops nothing; disable early stopping instead"


def _policy_faults(spec: JobSpec, policies: Mapping[str, Policy]) -> Iterator[tuple[str, str]]:
    if spec.policy not in policies:
        yield "policy", f"is not set, or unknown to this server; use one of {', '.join(policies)}"
        return
    for name in PARAMETERS:
        value = getattr(spec, name)
        if isinstance(value, float) and not math.isfinite(value):
            yield name, f"is {value}; use a finite number"
        if name in _NOT_NEGATIVE and value < 0:
            yield name, f"is {value}; use 0 or more"
    yield from _prior_faults(spec.job_id, spec.prior_job_ids)
    yield from policies[spec.policy].faults(spec)


def _gpu_faults(gpu: GpuGroup | int | None) -> Iterator[tuple[str, str]]:
    """Yields the faults of the GPUs; a number is that of the groups, if there is not exactly one."""
    if not isinstance(gpu, GpuGroup):
        yield "gpu", f"has {gpu or 0} groups; this version trains with exactly one group of equal GPUs"
        return
    if not gpu.gpu_model:
        yield "gpus[0].gpu_model", "is empty; set it to the model's name"
    if fault := identifier_fault(gpu.gpu_model):
        yield "gpus[0].gpu_model", fault
    if gpu.count < 1:
        yield "gpus[0].count", f"is {gpu.count}; use 1 or more"
    if not math.isfinite(gpu.max_power_watts_per_gpu) or gpu.max_power_watts_per_gpu <= 0:
        watts = gpu.max_power_watts_per_gpu
        yield "gpus[0].max_power_watts_per_gpu", f"is {watts}; use the watts of one GPU, above 0"
