"""What users specify: the job, as flat fields that become a `JobSpec` of the protos, and how values are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wattwise import rules, v1
from wattwise.drafts import POLICIES, SAME_FIELDS, Policy, job_draft
from wattwise.errors import InvalidArgumentError, InvalidJobSpecError, JobDiffersError, Violation, WattwiseError, log
from wattwise.prices import PRICES, eta_from_prices, power_faults, price_faults
from wattwise.rules import DEFAULTS, PATHS, GpuGroup, NamedFields, job_faults, required_fields

Beta: TypeAlias = float | Literal["off"]
"""A multiple of the least cost; "off" disables early stopping."""

_POLICY_FIELDS = tuple(dict.fromkeys(name for names in POLICIES.values() for name in names))
_FLAT = {
    **{path: name for name, path in PATHS.items()},
    **{f"policy.{policy}.{name}": name for policy, names in POLICIES.items() for name in names},
    "target": "target_metric",
    "early_stopping": "beta_knob",
    "early_stopping.off": "beta_knob",
    "gpus[0]": "gpu",
}
"""The names of the fields of a message in the Python `JobSpec`, unless they are the same."""

_GPUS = "use GpuGroup(gpu_model=..., count=..., max_power_watts_per_gpu=...)"
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_EXPECTED: dict[int, str] = {
    **dict.fromkeys(_INTEGERS, "use a whole number, such as 32; int() converts a float or a string"),
    FieldDescriptor.CPPTYPE_DOUBLE: "use a number, such as 0.5; float() converts a string",
    FieldDescriptor.CPPTYPE_BOOL: "use True or False",
    FieldDescriptor.CPPTYPE_STRING: "use a string; str() converts a number",
}


@dataclass(frozen=True, kw_only=True)
class JobSpec(NamedFields):
    """A recurring training job: the same model, data pipeline and target, launched repeatedly.

    A field that is not given gets the server's default. All launches with one `job_id` must agree in every field.

    Attributes:
        job_id: the job's identity over all its launches, such as "mnist-nightly".
        batch_sizes: the global batch sizes to choose from. Few and far apart (powers of two), a good one is found
            after few launches; many close ones take more launches to tell apart.
        default_batch_size: the batch size used so far, which is tried first. Choose one that is known to work, and
            the first launch is as good as before.
        eta_knob: weight of energy against time. 0 minimises only time, 0.5 (the default) weighs a joule of energy
            and a joule's worth of time equally, 1 minimises only energy. Without a reason for a number, give prices.
        energy_price_per_kwh: what a kilowatt-hour of the GPUs costs, in any currency, with the overhead of the data
            center: the price of electricity times the PUE. Given together with `gpu_hour_price` instead of `eta_knob`,
            which the client then computes with `eta_from_prices` once the GPUs are known, so that the trials that cost
            the least also cost the least money. With a low price time counts, with a high one energy does; 0 (energy
            is included in the rent) is `eta_knob=0`. Changed prices are another job, with another `job_id`: use
            averages.
        gpu_hour_price: what an hour of one GPU costs, in the same currency: its rent, or its depreciation. 0 (an idle
            GPU would cost the same) is `eta_knob=1`.
        target_metric: the validation metric at which a model is good enough, such as 0.98. If it is too ambitious, no
            batch size reaches it; if it is too modest, models are worse than they could be.
        higher_is_better: True (the default) for an accuracy, False for a loss.
        job_id_prefix: what `job_id` starts with, such as the model's or the team's name. The server's limit of jobs
            counts the jobs whose ids start with it; None counts all jobs.
        beta_knob: a trial is stopped when its cost exceeds this multiple of the least expected cost (under the paper's
            policies, see `policy`: of the job's lowest cost). Values near 1 stop early and may stop good batch sizes;
            2 (the default) limits a bad batch size to twice that cost; from 5 on almost nothing is stopped. Below 1
            even a batch size that is a little cheaper is stopped; a warning is logged. "off" never stops a trial for
            its cost.
        max_epochs: the last epoch of a trial that has not reached the target (default 100). Too low rules out batch
            sizes that are slow but cheap; too high lets a hopeless one run until its cost stops it.
        gpu: the GPUs. None (the usual choice) reads them from the energy monitor.
        trial_lease_seconds: silence after which a running trial counts as lost and its batch size can be tried again.
            Low values (30; at least 1) detect a dead trainer soon; 300 (the default) tolerates long stalls; 0 waits
            forever.
        policy: "knowledge_gradient" (the default of a new job; one that exists keeps its policy) learns from every
            trial about all batch sizes. The paper's: "pruning_gts" drops batch sizes that do not converge before it
            searches; "gts" keeps every batch size, for jobs in which all are known to converge. The fields below
            belong to policies; without `policy` they are those of "knowledge_gradient".
        window_size: how many of the newest trials count: of the job, at most 1000; under the paper's policies of each
            batch size. 0 (the default) counts all; 10 or so follows data that drift; below 3 the choice becomes
            erratic.
        prior_job_ids: under "knowledge_gradient", jobs whose trials tell how many epochs each batch size takes, such
            as the same training on another GPU. Only read when the job is created.
        num_pruning_rounds: under "pruning_gts", how many times all batch sizes are tried before the search proper
            starts. 0 skips this, 2 (the default) drops batch sizes that fail in one of two rounds, more helps only if
            training is very noisy.
        prior_mean: under the paper's policies, as the next three, the expected reward (negative cost) of an untried
            batch size, in joules (default 0). Has no effect while `prior_precision` is 0.
        prior_precision: the confidence in that expectation, as 1/variance in 1/joules². 0 (the default) is none;
            values far above the precision of real costs let the prior outweigh the evidence.
        num_explorations: how many decided trials each surviving batch size gets before the search samples among
            them. 1 starts early on little evidence, 2 (the default) is usual, more is useful if costs are very noisy.
        seed: seed of the random draws, for repeatable experiments. None (the default) uses entropy.
        learn_reward_precision: under "gts", whether the noise of the costs is estimated from them (default True).
        reward_precision: under "gts" with `learn_reward_precision` False, the known noise of a reward as 1/variance in
            1/joules². Low values explore longer, high values settle sooner.
    """

    job_id: str
    batch_sizes: Sequence[int]
    default_batch_size: int
    target_metric: float
    higher_is_better: bool = True
    job_id_prefix: str | None = None
    eta_knob: float | None = None
    energy_price_per_kwh: float | None = None
    gpu_hour_price: float | None = None
    beta_knob: Beta | None = None
    max_epochs: int | None = None
    gpu: GpuGroup | None = None
    trial_lease_seconds: float | None = None
    policy: Policy | None = None
    window_size: int | None = None
    prior_job_ids: Sequence[str] | None = None
    num_pruning_rounds: int | None = None
    prior_mean: float | None = None
    prior_precision: float | None = None
    num_explorations: int | None = None
    seed: int | None = None
    learn_reward_precision: bool | None = None
    reward_precision: float | None = None

    _meanings: ClassVar[Mapping[str, str]] = {
        "job_id": ', the same at every launch, such as job_id="mnist-nightly"',
        "target_metric": ", the validation metric at which a model is good enough, such as target_metric=0.98",
    }

    def __repr__(self) -> str:
        """Returns the fields that are not left at their defaults."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        given = (f"{field.name}={value!r}" for field, value in values if value is not field.default)
        return f"JobSpec({', '.join(given)})"

    def warn_if_doubtful(self) -> None:
        """Logs a warning for values that are valid but rarely intended."""
        beta = self.beta_knob
        if isinstance(beta, int | float) and 0 < beta < 1:
            paper = self.policy in ("pruning_gts", "gts")
            log.warning(
                "beta_knob=%g is below 1: after a trial has converged, those of other batch sizes are stopped before "
                "they converge unless they cost less than %g times the %s; use 1 or more, usually 1.5 to 3",
                *(beta, beta, "lowest cost" if paper else "least expected cost"),
            )

    @property
    def has_prices(self) -> bool:
        """Whether `eta_knob` is computed from prices."""
        return any(getattr(self, name) is not None for name in PRICES)

    def with_eta(self) -> JobSpec:
        """Returns this spec if it has no prices, otherwise a copy with the `eta_knob` that is computed from them.

        Raises:
            InvalidJobSpecError: as documented at `job_message`.
        """
        if not self.has_prices:
            return self
        return replace(self, eta_knob=job_message(self).eta_knob, energy_price_per_kwh=None, gpu_hour_price=None)

    def eta_source(self) -> str:
        """Returns what `eta_knob` is and was computed from, for messages about a job with prices and GPUs."""
        sent = job_message(self)
        return (
            f"eta_knob={sent.eta_knob} is computed from energy_price_per_kwh={self.energy_price_per_kwh} and "
            f"gpu_hour_price={self.gpu_hour_price} for {gpus_text(sent)}"
        )

    def explained(self, error: JobDiffersError) -> JobDiffersError:
        """Returns the error, with the source of `eta_knob` if that differs and is computed from prices."""
        if not self.has_prices or all(each.field != "job.eta_knob" for each in error.violations):
            return error
        return error.with_message(
            f"{error}. {self.eta_source()}: new or changed prices, or other GPUs, make another job, which needs a new "
            "job_id; to keep the registered one, replace the prices by its eta_knob"
        )


def job_message(spec: JobSpec) -> v1.JobSpec:
    """Returns the message of a job, with the `eta_knob` that is computed from prices.

    Raises:
        InvalidJobSpecError: if a value has the wrong type, a field belongs to another policy, the prices are
            invalid, one of them is missing, or they are given without `gpu` or with `eta_knob`. The server checks
            whether the other values are valid.
    """
    message = v1.JobSpec()
    for name in SAME_FIELDS:
        _copy(spec, message, name)
    _copy(spec, message.target, "target_metric", "value")
    if not isinstance(spec.higher_is_better, bool):
        raise _wrong("higher_is_better", spec.higher_is_better, _EXPECTED[FieldDescriptor.CPPTYPE_BOOL])
    better = "HIGHER" if spec.higher_is_better else "LOWER"
    message.target.direction = v1.Direction.Value(f"DIRECTION_{better}_IS_BETTER")
    if spec.beta_knob == "off":
        message.early_stopping.off.SetInParent()
    elif spec.beta_knob is not None:
        _copy(spec, message.early_stopping.cost_bound, "beta_knob")
    if spec.gpu is not None:
        if not isinstance(spec.gpu, GpuGroup):
            raise _wrong("gpu", spec.gpu, _GPUS)
        group = message.gpus.add()
        for field in group.DESCRIPTOR.fields:
            _set(group, field.name, getattr(spec.gpu, field.name), f"gpu.{field.name}")
    _set_policy(spec, message)
    if spec.has_prices:
        message.eta_knob = _computed_eta(spec)
    return message


def _copy(spec: JobSpec, message: Message, name: str, sent_name: str = "") -> None:
    """Sets a field of a message to the value of the job's field, unless it is unset."""
    value = getattr(spec, name)
    if value is not None or name in required_fields(JobSpec):
        _set(message, sent_name or name, value, name)


def _set_policy(spec: JobSpec, message: v1.JobSpec) -> None:
    given = [name for name in _POLICY_FIELDS if getattr(spec, name) is not None]
    if spec.policy is None and not given:
        return
    policy = DEFAULTS["policy"] if spec.policy is None else spec.policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise _wrong("policy", policy, f"use one of {', '.join(POLICIES)}")
    faults = [Violation(f"job.{name}", _reader(name, policy)) for name in given if name not in POLICIES[policy]]
    if faults:
        raise InvalidJobSpecError.of(faults)
    chosen = getattr(message.policy, policy)
    chosen.SetInParent()
    for name in given:
        _copy(spec, chosen, name)


def _computed_eta(spec: JobSpec) -> float:
    faults = list(price_faults(spec.energy_price_per_kwh, spec.gpu_hour_price, spec.eta_knob))
    watts = 0.0
    if spec.gpu is None:
        advice = "use GpuGroup(...), or BatchSizeOptimizer, which reads the GPUs from its monitor"
        faults.append(("gpu", f"is missing; eta_knob is computed from prices and GPUs: {advice}"))
    else:
        watts = spec.gpu.max_power_watts_per_gpu
        faults.extend((f"gpu.{name}", fault) for name, fault in power_faults(watts))
    if faults:
        raise InvalidJobSpecError.of([Violation(f"job.{name}", fault) for name, fault in faults])
    return eta_from_prices(
        # Neither is None: that is a fault.
        energy_price_per_kwh=spec.energy_price_per_kwh or 0.0,
        gpu_hour_price=spec.gpu_hour_price or 0.0,
        max_power_watts_per_gpu=watts,
    )


def policy_spec(policy: Policy, **fields: Any) -> v1.PolicySpec:
    """Returns a policy and its parameters as a message.

    Args:
        policy: the name of the policy.
        **fields: its parameters, as in `JobSpec`; one that is left out is unset.

    Raises:
        InvalidJobSpecError: if there is no such policy, or a parameter belongs to another one or has the wrong type.
    """
    job = JobSpec(job_id="", batch_sizes=(), default_batch_size=0, target_metric=0.0, policy=policy, **fields)
    return job_message(job).policy


def _reader(name: str, policy: Policy) -> str:
    """Returns what to do about a field that another policy reads."""
    readers = " or ".join(each for each, names in POLICIES.items() if name in names)
    return f"is not read by {policy}; remove it, or set policy to {readers}"


def _set(message: Message, field_name: str, value: object, name: str) -> None:
    """Sets a field of a message to the value of a field of `JobSpec`."""
    field = message.DESCRIPTOR.fields_by_name[field_name]
    if value is None:
        raise _wrong(name, value, _advice(field, value, None))
    try:
        message.MergeFrom(type(message)(**{field_name: value}))
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(name, value, _advice(field, value, error)) from None


def max_power_watts(spec: v1.JobSpec) -> float:
    """Returns the highest power of a job's GPUs together, in watts: the P of the cost."""
    return sum(group.count * group.max_power_watts_per_gpu for group in spec.gpus)


def cost(spec: v1.JobSpec, time_seconds: float, energy_joules: float) -> float:
    """Returns the cost of a trial in joules; the job has all defaults filled in."""
    return rules.cost(spec.eta_knob, max_power_watts(spec), energy_joules, time_seconds)


def higher_is_better(spec: v1.JobSpec) -> bool:
    """Returns whether a higher metric is better."""
    return spec.target.direction != v1.DIRECTION_LOWER_IS_BETTER


def reaches_target(spec: v1.JobSpec, metric: float) -> bool:
    """Returns whether a metric reaches the job's target, regardless of cost; NaN does not."""
    return rules.reaches_target(metric, spec.target.value, higher_is_better=higher_is_better(spec))


def gpus_text(spec: v1.JobSpec) -> str:
    """Returns a job's GPUs in words: "8 x NVIDIA H200, 5600 W in total"."""
    groups = " + ".join(f"{group.count} x {group.gpu_model}" for group in spec.gpus)
    return f"{groups}, {max_power_watts(spec):g} W in total"


def policy_name(spec: v1.JobSpec) -> Policy:
    """Returns the name of a job's policy; empty if this client is older."""
    return spec.policy.WhichOneof("policy") or ""


def leaves(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of a message that are set, by path: "target.value". An empty message is the value True."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if isinstance(value, Message):
            yield from tuple(leaves(value, f"{name}.")) or ((name, True),)
        elif field.message_type is not None:
            for place, each in enumerate(value):
                yield from leaves(each, f"{name}[{place}].")
        else:
            yield name, value if isinstance(value, str | int | float) else list(value)


def flat_name(path: str) -> str:
    """Returns the name in the Python `JobSpec` of a field of the protos: "target_metric" for "target.value"."""
    holder, _, name = path.rpartition(".")
    # Also a field that this client does not know.
    return f"gpu.{name}" if holder == "gpus[0]" else _FLAT.get(path, path)


E = TypeVar("E", bound=WattwiseError)


def with_flat_names(error: E) -> E:
    """Returns the error of a registration, with the names of the Python `JobSpec`."""
    message, violations = str(error), []
    for each in sorted(error.violations, key=lambda each: -len(each.field)):
        flat = f"job.{flat_name(each.field.removeprefix('job.'))}"
        message = message.replace(f"{each.field}:", f"{flat}:")
    for each in error.violations:
        of_job = each.field.startswith("job.")
        name = f"job.{flat_name(each.field.removeprefix('job.'))}" if of_job else each.field
        violations.append(Violation(name, each.description))
    return type(error)(message, reason=error.reason, violations=violations, metadata=error.metadata)


def _wrong(name: str, value: object, advice: str) -> InvalidJobSpecError:
    return InvalidJobSpecError.of([Violation(f"job.{name}", f"invalid value {value!r}: {advice}")])


def _advice(field: Any, value: object, error: Exception | None) -> str:
    if field.name == "batch_sizes":
        return "use a list of whole numbers, such as [32, 64]; int() converts a float or a string"
    if field.name == "prior_job_ids":
        return 'use a list of strings, such as ["mnist-a40"]'
    if isinstance(value, int) and not isinstance(value, bool) and field.cpp_type in _INTEGERS:
        # Out of range, which protobuf's message says.
        return str(error)
    return _EXPECTED.get(field.cpp_type, str(error))


def check_valid(job: v1.JobSpec) -> None:
    """Checks a job as the server does, prior jobs aside.

    Raises:
        InvalidJobSpecError: with one violation per fault, all at once.
    """
    faults = [Violation(f"job.{name}", fault) for name, fault in job_faults(job_draft(job), POLICIES)]
    if faults:
        raise InvalidJobSpecError.of(faults)


def check_job(job: object) -> JobSpec:
    """Returns the job, if it is a `JobSpec`.

    Raises:
        InvalidArgumentError: if it is not.
    """
    if not isinstance(job, JobSpec):
        raise InvalidArgumentError(f"the job must be a JobSpec, not {type(job).__name__}: use JobSpec(...)")
    return job


def enum_name(enum: Any, value: int) -> str:
    """Returns an enum's value as words: "failed" for TRIAL_STATUS_FAILED; "trial status 9" if this client is older."""
    name = enum_constant(enum, value)
    words = name.removeprefix(_prefix_of(enum)) if value in enum.values() else name
    return words.lower().replace("_", " ")


def enum_constant(enum: Any, value: int) -> str:
    """Returns an enum's value as in the protos: "TRIAL_STATUS_FAILED"; "TRIAL_STATUS_9" if this client is older."""
    return str(enum.Name(value)) if value in enum.values() else f"{_prefix_of(enum)}{value}"


def enum_value(enum: Any, value: object) -> Any:
    """Returns the number of an enum's value, which may be given by its name without the prefix: "TARGET_REACHED".

    Raises:
        InvalidArgumentError: if there is no such name; lists the names.
    """
    if isinstance(value, int):
        return value
    prefix = _prefix_of(enum)
    names = {name.removeprefix(prefix): number for name, number in enum.items() if number}
    if not isinstance(value, str) or value not in names:
        what = prefix.lower().replace("_", " ")
        raise InvalidArgumentError(f"{what}{value!r} is unknown: use {' or '.join(names)}")
    return names[value]


def enum_values(enum: Any, values: Iterable[object], argument: str) -> Sequence[Any]:
    """Returns the numbers of an argument with several values of an enum.

    Raises:
        InvalidArgumentError: if it is no list, or there is no such name.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        example = "..." if values is None else repr(values)
        raise InvalidArgumentError(f"{argument}={values!r} is not a list: pass a list, {argument}=[{example}]")
    return [enum_value(enum, value) for value in values]


def _prefix_of(enum: Any) -> str:
    return str(enum.Name(0)).removesuffix("UNSPECIFIED")
