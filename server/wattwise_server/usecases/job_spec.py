"""The configuration of a job: its faults, its changes by a person, and how another registration differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import NamedTuple

from wattwise.rules import (
    DEFAULTS,
    PARAMETERS,
    GpuGroup,
    JobDraft,
    ResolvedJob,
    job_faults,
    path_of,
    policy_faults,
    with_defaults,
)

from wattwise_server.domain import Job
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError, Violation
from wattwise_server.policy.registry import POLICIES


def resolve(draft: JobDraft, unknown_jobs: Iterable[str] = ()) -> ResolvedJob:
    """Fills in the defaults. `unknown_jobs` are prior jobs that don't exist.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    spec = with_defaults(draft)
    faults = [Violation(f"job.{path_of(name, spec.policy)}", fault) for name, fault in job_faults(draft, POLICIES)]
    if unknown := ", ".join(map(repr, unknown_jobs)):
        fault = f"names {unknown}, not registered on this server; list the ids of registered jobs"
        faults.append(Violation(f"job.{path_of('prior_job_ids', spec.policy)}", fault))
    if faults:
        raise InvalidJobSpecError(*faults)
    return spec


def set_fields(draft: JobDraft) -> frozenset[str]:
    """Returns the optional fields that a client set to another value than the default of today."""
    return frozenset(name for name in draft.keys() & DEFAULTS.keys() if draft[name] != DEFAULTS[name])


def with_policy(job: Job, draft: JobDraft) -> ResolvedJob:
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
    faults = list(policy_faults(replace(spec, prior_job_ids=()), POLICIES))
    if draft.get("prior_job_ids"):
        faults.append(("prior_job_ids", "is only read when the job is created; leave it empty"))
    if faults:
        raise InvalidJobSpecError(*(Violation(path_of(name, spec.policy), fault) for name, fault in faults))
    return spec


def policy_change(old: ResolvedJob, new: ResolvedJob) -> str:
    """Returns what a change of a policy changes, for people."""
    if old.policy != new.policy:
        return f"from {_policy_text(old)} to {_policy_text(new)}"
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in PARAMETERS)
    changed = [f"{name} from {_brief(was)} to {_brief(now)}" for name, was, now in pairs if was != now]
    return f"{new.policy}, {', '.join(changed)}"


def _policy_text(spec: ResolvedJob) -> str:
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


def _differences(job: Job, draft: JobDraft, requested: ResolvedJob) -> Iterator[_Difference]:
    """Yields what differs, the policy aside."""
    of_policy = {"policy", *PARAMETERS}
    for field in fields(ResolvedJob):
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
            yield _Difference(f"gpu.{field.name}", registered, requested)


def _policy_differences(
    registered: ResolvedJob, job: Job, draft: JobDraft, requested: ResolvedJob
) -> Iterator[_Difference]:
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
