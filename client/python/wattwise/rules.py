"""The rules of a job, which the server and its clients share: defaults, limits, what a valid job is, cost and target.

Uses the standard library alone: neither the policies nor the storage of the server know gRPC or protobuf.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat, TypeAlias, TypeGuard

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_INT32 = 2**31 - 1
"""The largest number of a field such as an epoch, a batch size or the number of a trial."""

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, which the timestamps of protobuf have, in seconds since 1970."""

MAX_ID_LENGTH = 200
"""Characters of an id, and of every other text by which a client names something."""

MAX_BATCH_SIZES = 64
MAX_PRIOR_JOBS = 8
MAX_BETA = 1e6
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 365 * 24 * 3600.0
HEARTBEATS_PER_LEASE = 3

MAX_WINDOW = 1000
"""The largest window of knowledge_gradient, whose trials are part of the state that is saved with every trial."""

MAX_MEASUREMENTS = 5_000
"""Measurements of one imported trial, few enough that other calls do not wait long."""

MAX_LABELS = 16
MAX_LABEL_KEY_LENGTH = 63

MAX_KINDS = 8
"""Kinds of monitor that are kept of one trial or job, so that no row grows without end."""

MAX_KIND_LENGTH = 50

POWER_FACTOR = 2.0
"""Times their maximum power, which GPUs exceed for moments: above it a measurement is wrong."""

MAX_PAGE = 1000
"""Jobs, trials or events that one call returns."""

MAX_MEASUREMENT_PAGE = 10_000
"""Measurements that one call returns."""

BASELINE_ADVICE = "use 2 or more, or 0 for no more baselines"
"""What to do about a schedule of baselines that is invalid."""

JobDraft: TypeAlias = Mapping[str, Any]
"""The fields of a job that a client set, by name; the others take their defaults.

If a job has several groups of GPUs, `gpu` is the number of groups.
"""


class EndReason(str, Enum):
    """Why a trial ended: `EndReason.TARGET_REACHED`, which equals "TARGET_REACHED" and is printed so."""

    TARGET_REACHED = "TARGET_REACHED"
    COST_BOUND = "COST_BOUND"
    MAX_EPOCHS = "MAX_EPOCHS"
    JOB_DELETED = "JOB_DELETED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"
    STOPPED_EARLY = "STOPPED_EARLY"

    def __repr__(self) -> str:
        return f"EndReason.{self.name}"

    def __str__(self) -> str:
        return self.value


TRAINER_END_REASONS = (
    EndReason.COMPLETED,
    EndReason.STOPPED_EARLY,
    EndReason.ERROR,
    EndReason.OUT_OF_MEMORY,
    EndReason.PREEMPTED,
)
"""Those that a trainer may give, in the order of their messages."""


class TrialStatus(Enum):
    """Whether a trial is running, was decided, was interrupted so that it can be resumed, or failed."""

    RUNNING = "RUNNING"
    DECIDED = "DECIDED"
    INTERRUPTED = "INTERRUPTED"
    FAILED = "FAILED"


STATUS_AFTER: Mapping[EndReason, TrialStatus] = {
    EndReason.TARGET_REACHED: TrialStatus.DECIDED,
    EndReason.COST_BOUND: TrialStatus.DECIDED,
    EndReason.MAX_EPOCHS: TrialStatus.DECIDED,
    EndReason.JOB_DELETED: TrialStatus.DECIDED,
    EndReason.STOPPED_EARLY: TrialStatus.DECIDED,
    EndReason.COMPLETED: TrialStatus.FAILED,
    EndReason.ERROR: TrialStatus.FAILED,
    EndReason.OUT_OF_MEMORY: TrialStatus.FAILED,
    EndReason.PREEMPTED: TrialStatus.INTERRUPTED,
    EndReason.LOST: TrialStatus.INTERRUPTED,
}
"""The status of a trial by the reason for which it ended."""


class NamedFields:
    """Base of the dataclasses that stand for a message and have its fields; one without a default is required.

    Fields that the message does not have are the client's own and are not sent.
    """

    _meanings: ClassVar[Mapping[str, str]] = {}
    """What to say of a required field that is missing, by field."""

    def __new__(cls, *_: object, **values: object) -> Self:
        """Checks the names that are given, and that no required one is missing."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                # Imported here because it is only needed for the message.
                from difflib import get_close_matches  # noqa: PLC0415

                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(names)}"
                raise TypeError(f"{cls.__name__} has no field {name}; {hint}")
        missing = [name for name in required_fields(cls) if name not in values]
        # Copying and unpickling pass no values.
        if values and missing:
            described = (f"{name}{cls._meanings.get(name, '')}" for name in missing)
            raise TypeError(f"{cls.__name__} is missing {', '.join(described)}")
        return super().__new__(cls)


def required_fields(kind: type[NamedFields]) -> Sequence[str]:
    """Returns the names of the fields without a default."""
    return [field.name for field in fields(kind) if field.default is MISSING]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class GpuGroup(NamedFields):
    """The GPUs that every trial of a job runs on.

    Attributes:
        gpu_model: the model's name as its vendor's library reports it, such as "NVIDIA H200".
        count: how many GPUs one trial uses, over all its processes.
        max_power_watts_per_gpu: the highest power limit of one GPU, in watts. It sets the price of time: one second of
            training costs this many joules for each GPU.
    """

    gpu_model: str
    count: int
    max_power_watts_per_gpu: float

    @property
    def max_power_watts(self) -> float:
        """The highest power of all GPUs together, in watts."""
        return self.count * self.max_power_watts_per_gpu


@dataclass(frozen=True, slots=True)
class ResolvedJob:
    """A job whose every default is filled in, batch sizes ascending.

    The fields from `window_size` on are parameters of policies; those that the policy does not have are ignored.

    Attributes:
        job_id_prefix: Empty: none.
        beta_knob: None: early stopping is off.
    """

    job_id: str
    batch_sizes: tuple[int, ...]
    default_batch_size: int
    gpu: GpuGroup
    target_metric: float
    higher_is_better: bool
    job_id_prefix: str = ""
    eta_knob: float = 0.5
    beta_knob: float | None = 2.0
    max_epochs: int = 100
    trial_lease_seconds: float = 300.0
    policy: str = "knowledge_gradient"
    window_size: int = 0
    prior_job_ids: tuple[str, ...] = ()
    num_pruning_rounds: int = 2
    prior_mean: float = 0.0
    prior_precision: float = 0.0
    num_explorations: int = 2
    seed: int | None = None
    learn_reward_precision: bool = True
    reward_precision: float = 0.0

    @property
    def heartbeat_interval(self) -> timedelta | None:
        """The longest pause between two signs of life of a trial; None if its lease never expires."""
        return _span(self.trial_lease_seconds / HEARTBEATS_PER_LEASE) if self.trial_lease_seconds else None

    def lease_expiry(self, now: datetime) -> datetime | None:
        """Returns when a lease granted now expires; None is never."""
        return now + _span(self.trial_lease_seconds) if self.trial_lease_seconds else None


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ResolvedJob) if field.default is not MISSING}
"""The values of fields that a client does not set."""

_SPEC_FIELDS = [field.name for field in fields(ResolvedJob)]
PARAMETERS = tuple(_SPEC_FIELDS[_SPEC_FIELDS.index("policy") + 1 :])
"""The fields of a ResolvedJob that are parameters of policies."""

PATHS: Mapping[str, str] = {
    "target_metric": "target.value",
    "higher_is_better": "target.direction",
    "beta_knob": "early_stopping.cost_bound.beta_knob",
    "gpu": "gpus",
    **{f"gpu.{field.name}": f"gpus[0].{field.name}" for field in fields(GpuGroup)},
}
"""Where the message has a field, unless it has the same name there or is a parameter of a policy."""

_UNSET: JobDraft = {
    "job_id": "",
    "batch_sizes": (),
    "default_batch_size": 0,
    "gpu": None,
    "target_metric": 0.0,
    "higher_is_better": True,
}
"""Required fields, so that a draft without them can be checked."""

_NOT_NEGATIVE = ("num_pruning_rounds", "window_size", "num_explorations", "prior_precision", "reward_precision")


@lru_cache(maxsize=64)
def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def cost(eta_knob: float, max_power_watts: float, energy_joules: float, time_seconds: float) -> float:
    """Returns the cost `η·E + (1−η)·P·T` of a trial, in joules (You, Chung, Chowdhury, NSDI 2023, equation 2).

    Args:
        eta_knob: η.
        max_power_watts: P, the highest power of all GPUs together.
        energy_joules: E.
        time_seconds: T.
    """
    return eta_knob * energy_joules + (1 - eta_knob) * max_power_watts * time_seconds


def reaches_target(metric: float, target_metric: float, *, higher_is_better: bool) -> bool:
    """Returns whether a metric reaches the target, regardless of cost; NaN does not."""
    return metric >= target_metric if higher_is_better else metric <= target_metric


def can_be_scheduled(every: int) -> bool:
    """Returns whether a job can have one baseline in so many launches; with 0 it has none."""
    return every == 0 or every >= 2


def path_of(name: str, policy: str) -> str:
    """Returns where the message has a field of a ResolvedJob of this policy: "policy.gts.seed"."""
    return f"policy.{policy}.{name}" if name in PARAMETERS else PATHS.get(name, name)


def with_defaults(draft: JobDraft) -> ResolvedJob:
    """Returns the configuration of a draft, whether it is valid or not."""
    values = {**_UNSET, **DEFAULTS, **draft}
    return ResolvedJob(**{**values, "batch_sizes": tuple(sorted(values["batch_sizes"]))})


def job_faults(draft: JobDraft, policies: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a field's name and what to change.

    Args:
        draft: The fields that the client set.
        policies: The names of the known policies.
    """
    spec = with_defaults(draft)
    yield from _id_faults(spec, has_prefix="job_id_prefix" in draft)
    yield from _batch_size_faults(spec)
    yield from _target_faults(draft)
    yield from _number_faults(spec)
    yield from policy_faults(spec, policies)
    yield from _gpu_faults(draft.get("gpu"))


def policy_faults(spec: ResolvedJob, policies: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the faults of the policy and its parameters."""
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
    if spec.policy == "knowledge_gradient" and spec.window_size > MAX_WINDOW:
        yield "window_size", f"is {spec.window_size}; use at most {MAX_WINDOW}, or 0 for all trials"
    if spec.policy == "gts" and not spec.learn_reward_precision and not spec.reward_precision:
        yield "reward_precision", "is 0 while learn_reward_precision is false; set it to 1/variance of a cost"


def _id_faults(spec: ResolvedJob, *, has_prefix: bool) -> Iterator[tuple[str, str]]:
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


def _batch_size_faults(spec: ResolvedJob) -> Iterator[tuple[str, str]]:
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


def _number_faults(spec: ResolvedJob) -> Iterator[tuple[str, str]]:
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


def _gpu_faults(gpu: GpuGroup | int | None) -> Iterator[tuple[str, str]]:
    if not isinstance(gpu, GpuGroup):
        if gpu:
            yield "gpu", f"has {gpu} groups; this version trains with exactly one group of equal GPUs"
        else:
            yield "gpu", "is missing; name the GPUs, unless a trainer reads them from its energy monitor"
        return
    if not gpu.gpu_model:
        yield "gpu.gpu_model", "is empty; set it to the model's name"
    if fault := identifier_fault(gpu.gpu_model):
        yield "gpu.gpu_model", fault
    if gpu.count < 1:
        yield "gpu.count", f"is {gpu.count}; use 1 or more"
    if fault := watts_fault(gpu.max_power_watts_per_gpu):
        yield "gpu.max_power_watts_per_gpu", fault


def identifier_fault(value: str) -> str | None:
    """Returns what is wrong with an id that a client chose; None if it is valid."""
    if len(value) > MAX_ID_LENGTH:
        return f"has {len(value)} characters; use at most {MAX_ID_LENGTH}"
    # isprintable is fast and rules out control characters and surrogates, which are no UTF-8.
    categories = frozenset() if value.isprintable() else frozenset(map(unicodedata.category, value))
    if "Cc" in categories:
        return "has control characters; remove them"
    return "is not UTF-8" if "Cs" in categories else None


def watts_fault(max_power_watts_per_gpu: object) -> str | None:
    """Returns what is wrong with the highest power of one GPU; None if nothing is."""
    if finite(max_power_watts_per_gpu) > 0:
        return None
    return f"is {max_power_watts_per_gpu}; use the watts of one GPU, above 0"


def finite(value: object) -> float:
    """Returns a finite number of any type as a float, such as a Decimal; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return math.nan
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        # Too large, an array of several numbers, or a signaling NaN.
        return math.nan
    return number if math.isfinite(number) else math.nan


def label_fault(key: str, value: str) -> str | None:
    """Returns what is wrong with a label; None if it is valid."""
    if not 1 <= len(key) <= MAX_LABEL_KEY_LENGTH:
        return f"has a key of {len(key)} characters; use 1 to {MAX_LABEL_KEY_LENGTH}"
    fault = identifier_fault(key) or identifier_fault(value)
    return fault and f"has a text that {fault}"


def label_of(text: str) -> tuple[str, str] | None:
    """Returns the key and the value of a label that is written as "key=value"; None if it is none."""
    key, equals, value = text.partition("=")
    key, value = key.strip(" "), value.strip(" ")
    return (key, value) if equals and label_fault(key, value) is None else None


def is_kind(kind: object) -> TypeGuard[str]:
    """Returns whether this says how a monitor measures, in a few characters that can be shown."""
    return isinstance(kind, str) and kind.isprintable() and 0 < len(kind) <= MAX_KIND_LENGTH
