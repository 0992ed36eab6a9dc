"""From what a client asked for to a resolved JobSpec, or to the list of all its faults."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace

from wattwise_server.domain import GpuConfig, JobSpec
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError, Violation
from wattwise_server.policy.registry import POLICIES

MAX_ID_LENGTH = 200
MADE_LENGTH = len("-01234567")
MAX_BATCH_SIZES = 1000
MAX_BETA = 1e6
MAX_LEASE_SECONDS = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A JobSpec as a client sent it: None where it left a field unset."""

    job_id: str | None
    job_id_prefix: str
    batch_sizes: tuple[int, ...]
    default_batch_size: int
    gpu: GpuConfig | None
    eta_knob: float | None = None
    beta_knob: float | None = None
    disable_early_stopping: bool | None = None
    target_metric: float | None = None
    higher_is_better_metric: bool | None = None
    max_epochs: int | None = None
    num_pruning_rounds: int | None = None
    window_size: int | None = None
    mab_prior_mean: float | None = None
    mab_prior_precision: float | None = None
    mab_num_explorations: int | None = None
    mab_seed: int | None = None
    policy: str | None = None
    learn_reward_precision: bool | None = None
    reward_precision: float | None = None
    trial_lease_seconds: float | None = None


def resolve(draft: JobDraft, made_id: str) -> JobSpec:
    """Fills in the defaults; `made_id` is the id of a draft that has none.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    faults = tuple(_faults(draft))
    if faults or draft.gpu is None:
        raise InvalidJobSpecError(*faults)
    given = {f.name: getattr(draft, f.name) for f in fields(draft) if getattr(draft, f.name) is not None}
    given |= {"batch_sizes": tuple(sorted(draft.batch_sizes)), "job_id": draft.job_id or made_id}
    spec = JobSpec(**given)
    return replace(spec, beta_knob=None) if spec.disable_early_stopping else spec


def check_identical(registered: JobSpec, requested: JobSpec) -> None:
    """Compares two resolved configurations of one id.

    Raises:
        JobDiffersError: naming every field that differs, with both values.
    """
    old, new = _flat(registered), _flat(requested)
    differing = {
        name: f"registered {_brief(old[name])}, requested {_brief(new[name])}" for name in old if old[name] != new[name]
    }
    if differing:
        raise JobDiffersError(registered.job_id, differing)


def identifier_fault(value: str) -> str | None:
    """What is wrong with an id that a client made up, if anything."""
    if len(value) > MAX_ID_LENGTH:
        return f"has {len(value)} characters; use at most {MAX_ID_LENGTH}"
    # What is printable has no control characters, and is soon seen to be.
    if not value.isprintable() and any(unicodedata.category(char) == "Cc" for char in value):
        return "has control characters; remove them"
    return None


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _flat(spec: JobSpec) -> dict[str, object]:
    values = asdict(spec)
    gpu = values.pop("gpu")
    values["policy"] = spec.policy
    values["batch_sizes"] = list(spec.batch_sizes)
    return values | {f"gpu.{name}": value for name, value in gpu.items()}


def _faults(draft: JobDraft) -> Iterator[Violation]:
    for name, fault in _all_faults(draft):
        yield Violation(f"job.{name}", fault)


def _all_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    yield from _id_faults(draft)
    yield from _batch_size_faults(draft)
    yield from _number_faults(draft)
    yield from _knob_faults(draft)
    yield from _gpu_faults(draft.gpu)


def _id_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    if not draft.job_id_prefix:
        yield "job_id_prefix", "is empty; give the name that all ids of this kind of job start with"
    if fault := identifier_fault(draft.job_id_prefix):
        yield "job_id_prefix", fault
    if draft.job_id is None:
        if MAX_ID_LENGTH - MADE_LENGTH < len(draft.job_id_prefix) <= MAX_ID_LENGTH:
            yield "job_id_prefix", f"leaves no room for an id; use at most {MAX_ID_LENGTH - MADE_LENGTH} characters"
        return
    if fault := identifier_fault(draft.job_id):
        yield "job_id", fault
    if not draft.job_id:
        yield "job_id", "is empty; leave it unset to have one made, or give one that starts with the prefix"
    elif not draft.job_id.startswith(draft.job_id_prefix):
        yield "job_id", f"{draft.job_id!r} does not start with its prefix {draft.job_id_prefix!r}; make it so"


def _batch_size_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    if not draft.batch_sizes:
        yield "batch_sizes", "is empty; list at least one batch size"
    if len(draft.batch_sizes) > MAX_BATCH_SIZES:
        yield "batch_sizes", f"lists {len(draft.batch_sizes)} sizes; list at most {MAX_BATCH_SIZES}"
        return
    for size, count in Counter(draft.batch_sizes).items():
        if size <= 0:
            yield "batch_sizes", f"{size} is not positive; list sizes of 1 and more"
        if count > 1:
            yield "batch_sizes", f"{size} is listed {count} times; list every batch size once"
    if draft.batch_sizes and draft.default_batch_size not in draft.batch_sizes:
        listed = ", ".join(map(str, sorted(set(draft.batch_sizes))))
        yield "default_batch_size", f"{draft.default_batch_size} is not among batch_sizes ({listed}); use one of them"


def _number_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    for field in fields(draft):
        value = getattr(draft, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            yield field.name, f"is {value}; give a finite number"
    least_zero = (
        "num_pruning_rounds",
        "window_size",
        "mab_num_explorations",
        "mab_prior_precision",
        "reward_precision",
    )
    for name in (*least_zero, "trial_lease_seconds"):
        value = getattr(draft, name)
        if value is not None and value < 0:
            yield name, f"is {value}; use 0 or more"
    if draft.max_epochs is not None and draft.max_epochs < 1:
        yield "max_epochs", f"is {draft.max_epochs}; use 1 or more"
    if draft.trial_lease_seconds is not None and MAX_LEASE_SECONDS < draft.trial_lease_seconds < math.inf:
        yield "trial_lease_seconds", f"is above {MAX_LEASE_SECONDS:.0f} (a year); use 0 for a lease that never runs out"


def _knob_faults(draft: JobDraft) -> Iterator[tuple[str, str]]:
    if draft.eta_knob is not None and (draft.eta_knob < 0 or draft.eta_knob > 1):
        yield "eta_knob", f"is {draft.eta_knob}; use 0 (time alone) to 1 (energy alone)"
    if draft.beta_knob is not None and draft.beta_knob <= 0:
        yield "beta_knob", f"is {draft.beta_knob}; use more than 0, usually 1.5 to 3"
    if draft.beta_knob is not None and MAX_BETA < draft.beta_knob < math.inf:
        yield "beta_knob", f"is above {MAX_BETA:g}, which stops nothing; set disable_early_stopping instead"
    if draft.beta_knob is not None and draft.disable_early_stopping:
        yield "beta_knob", "is set although disable_early_stopping is true; unset one of the two"
    if draft.policy is not None and draft.policy not in POLICIES:
        known = ", ".join(f"POLICY_{name}" for name in POLICIES)
        yield "policy", f"{draft.policy} is not known to this server; use one of {known}"
    fixed = draft.learn_reward_precision is False and draft.policy == "GTS"
    if fixed and not draft.reward_precision:
        yield "reward_precision", "is 0 while learn_reward_precision is false; give the fixed 1/variance of a cost"


def _gpu_faults(gpu: GpuConfig | None) -> Iterator[tuple[str, str]]:
    if gpu is None:
        yield "gpu", "is not set; give max_power_watts, number_of_gpus and gpu_model"
        return
    if not math.isfinite(gpu.max_power_watts) or gpu.max_power_watts <= 0:
        yield "gpu.max_power_watts", f"is {gpu.max_power_watts}; give the watts of all GPUs together, above 0"
    if gpu.number_of_gpus < 1:
        yield "gpu.number_of_gpus", f"is {gpu.number_of_gpus}; use 1 or more"
    if not gpu.gpu_model:
        yield "gpu.gpu_model", "is empty; give the model's name"
    if fault := identifier_fault(gpu.gpu_model):
        yield "gpu.gpu_model", fault
