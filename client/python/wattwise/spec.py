"""What users specify: the job, with the fields of `JobSpec` in the protos and two prices, and how values are read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wattwise import v1
from wattwise.errors import InvalidArgumentError, InvalidJobSpecError, JobDiffersError, Violation, log
from wattwise.prices import PRICES, eta_from_prices, power_faults, price_faults

if TYPE_CHECKING:
    from typing_extensions import Self

Policy: TypeAlias = str
"""A name of the enum `Policy` in the protos, such as "POLICY_GTS"."""


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET: Final = Unset.UNSET
"""The value of a field that is left to the server, where None has a meaning of its own."""

M = TypeVar("M", bound=Message)

_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_EXPECTED: dict[int, str] = {
    **dict.fromkeys(_INTEGERS, "use a whole number, such as 32; int() converts a float or a string"),
    FieldDescriptor.CPPTYPE_DOUBLE: "use a number, such as 0.5; float() converts a string",
    FieldDescriptor.CPPTYPE_BOOL: "use True or False",
    FieldDescriptor.CPPTYPE_STRING: "use a string; str() converts a number",
    FieldDescriptor.CPPTYPE_MESSAGE: "use GpuConfig(max_power_watts=..., number_of_gpus=..., gpu_model=...)",
}


class _Message:
    """Base of the dataclasses that stand for a message and have its fields; one without a default is required.

    Fields that the message does not have are the client's own and are not sent.
    """

    _meanings: ClassVar[Mapping[str, str]] = {}
    """What to say of a required field that is missing, by field."""

    def __new__(cls, *_: object, **values: object) -> Self:
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                # Imported here because it is only needed for the message.
                from difflib import get_close_matches  # noqa: PLC0415

                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(names)}"
                raise TypeError(f"{cls.__name__} has no field {name}; {hint}")
        missing = [name for name in cls._required() if name not in values]
        # Copying and unpickling pass no values.
        if values and missing:
            described = (f"{name}{cls._meanings.get(name, '')}" for name in missing)
            raise TypeError(f"{cls.__name__} is missing {', '.join(described)}")
        return super().__new__(cls)

    @classmethod
    def _required(cls) -> Sequence[str]:
        return [field.name for field in fields(cls) if field.default is MISSING]  # type: ignore[arg-type]

    def _fill(self, message: M, path: str) -> M:
        """Sets the message's fields to this object's values, except those that are unset."""
        required = self._required()
        for field in message.DESCRIPTOR.fields:
            value: Any = getattr(self, field.name)
            if value is UNSET or (value is None and field.name not in required):
                continue
            if value is None:
                raise _wrong_type(path, field, value)
            try:
                # protobuf would accept a dict for a message, with 0 for each missing key.
                sent = value if field.message_type is None else value.to_proto()
                message.MergeFrom(type(message)(**{field.name: sent}))
            except (AttributeError, TypeError, ValueError) as error:
                raise _wrong_type(path, field, value, error) from None
        return message


@dataclass(frozen=True, kw_only=True)
class GpuConfig(_Message):
    """The GPUs that every trial of a job runs on.

    Attributes:
        max_power_watts: the largest power limit of one GPU times the number of GPUs, in watts. It sets the price of
            time: one second of training costs this many joules.
        number_of_gpus: how many GPUs one trial uses, over all its processes.
        gpu_model: the model's name as its vendor's library reports it, such as "NVIDIA H200".
    """

    max_power_watts: float
    number_of_gpus: int
    gpu_model: str

    def to_proto(self) -> v1.GpuConfig:
        """This configuration as a message.

        Raises:
            InvalidJobSpecError: if a value has the wrong type.
        """
        return self._fill(v1.GpuConfig(), "job.gpu")


@dataclass(frozen=True, kw_only=True)
class JobSpec(_Message):
    """A recurring training job: the same model, data pipeline and target, launched repeatedly.

    A field that is not given gets the server's default. All launches with one `job_id` must agree in every field.

    Attributes:
        job_id: the job's identity over all its launches, such as "mnist-nightly"; starts with the prefix. None makes
            every launch a new job that learns nothing: use it only for a first try.
        job_id_prefix: what `job_id` starts with, such as the model's or the team's name.
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
        beta_knob: a trial is stopped when its cost exceeds this multiple of the least expected cost (under the paper's
            policies, see `policy`: of the job's lowest cost). Values near 1 stop early and may stop good batch sizes;
            2 (the default) limits a bad batch size to twice that cost; from 5 on almost nothing is stopped. Below 1
            even a batch size that is a little cheaper is stopped; a warning is logged. None never stops a trial for
            its cost.
        disable_early_stopping: True is the same as `beta_knob=None`. Cannot be combined with a number there.
        higher_is_better_metric: True (the default) for an accuracy, False for a loss.
        max_epochs: the last epoch of a trial that has not reached the target (default 100). Too low rules out batch
            sizes that are slow but cheap; too high lets a hopeless one run until its cost stops it.
        num_pruning_rounds: under "POLICY_PRUNING_GTS", how many times all batch sizes are tried before the search
            proper starts. 0 skips this, 2 (the default) drops batch sizes that fail in one of two rounds, more helps
            only if training is very noisy.
        window_size: how many of the newest trials count: of the job, at most 1000; under the paper's policies of each
            batch size. 0 (the default) counts all; 10 or so follows data that drift; below 3 the choice becomes
            erratic.
        mab_prior_mean: the expected reward (negative cost) of an untried batch size, in joules (default 0). Has no
            effect while `mab_prior_precision` is 0. Like all fields that begin with `mab_`, it is read by the paper's
            policies only.
        mab_prior_precision: the confidence in that expectation, as 1/variance in 1/joules². 0 (the default) is none;
            values far above the precision of real costs let the prior outweigh the evidence.
        mab_num_explorations: how many succeeded trials each surviving batch size gets before the search samples among
            them. 1 starts early on little evidence, 2 (the default) is usual, more is useful if costs are very noisy.
        mab_seed: seed of the random draws, for repeatable experiments. None (the default) uses entropy.
        policy: "POLICY_KNOWLEDGE_GRADIENT" (the default of a new job; one that exists keeps its policy) learns from
            every trial about all batch sizes. The paper's: "POLICY_PRUNING_GTS" drops batch sizes that do not converge
            before it searches; "POLICY_GTS" keeps every batch size, for jobs in which all are known to converge.
        learn_reward_precision: under "POLICY_GTS", whether the noise of the costs is estimated from them (default
            True).
        reward_precision: under "POLICY_GTS" with `learn_reward_precision` False, the known noise of a reward as
            1/variance in 1/joules². Low values explore longer, high values settle sooner.
        gpu: the GPUs. None (the usual choice) reads them from the energy monitor.
        trial_lease_seconds: silence after which a running trial counts as lost and its batch size can be tried again.
            Low values (30; at least 1) detect a dead trainer soon; 300 (the default) tolerates long stalls; 0 waits
            forever.
        prior_job_ids: jobs whose trials tell how many epochs each batch size takes, such as the same training on
            another GPU. Only read when the job is created, only by "POLICY_KNOWLEDGE_GRADIENT".
    """

    job_id_prefix: str
    batch_sizes: Sequence[int]
    default_batch_size: int
    target_metric: float
    job_id: str | None = None
    eta_knob: float | None = None
    energy_price_per_kwh: float | None = None
    gpu_hour_price: float | None = None
    beta_knob: float | Unset | None = UNSET
    disable_early_stopping: bool | None = None
    higher_is_better_metric: bool | None = None
    max_epochs: int | None = None
    num_pruning_rounds: int | None = None
    window_size: int | None = None
    mab_prior_mean: float | None = None
    mab_prior_precision: float | None = None
    mab_num_explorations: int | None = None
    mab_seed: int | None = None
    policy: Policy | None = None
    learn_reward_precision: bool | None = None
    reward_precision: float | None = None
    gpu: GpuConfig | None = None
    trial_lease_seconds: float | None = None
    prior_job_ids: Sequence[str] | None = None

    _meanings: ClassVar[Mapping[str, str]] = {
        "target_metric": ", the validation metric at which a model is good enough, such as target_metric=0.98"
    }

    def warn_if_doubtful(self) -> None:
        """Logs a warning for values that are valid but rarely intended."""
        beta = self.beta_knob
        if beta is not None and beta is not UNSET and 0 < beta < 1:
            paper = self.policy in ("POLICY_PRUNING_GTS", "POLICY_GTS")
            log.warning(
                "beta_knob=%g is below 1: after a trial has converged, those of other batch sizes are stopped before "
                "they converge unless they cost less than %g times the %s; use 1 or more, usually 1.5 to 3",
                *(beta, beta, "lowest cost" if paper else "least expected cost"),
            )

    def named(self) -> JobSpec:
        """This spec if it has a `job_id`, otherwise a copy with a new one, "<prefix>-<8 hex digits>"."""
        if self.job_id is not None:
            return self
        return replace(self, job_id=f"{self.job_id_prefix}-{os.urandom(4).hex()}")

    @property
    def has_prices(self) -> bool:
        """Whether `eta_knob` is computed from prices."""
        return any(getattr(self, name) is not None for name in PRICES)

    def with_eta(self) -> JobSpec:
        """This spec if it has no prices, otherwise a copy with the `eta_knob` that is computed from them instead.

        Raises:
            InvalidJobSpecError: as documented at `to_proto`.
        """
        if not self.has_prices:
            return self
        return replace(self, eta_knob=self.to_proto().eta_knob, energy_price_per_kwh=None, gpu_hour_price=None)

    def eta_source(self) -> str:
        """What `eta_knob` is and was computed from, for messages about a job with prices and GPUs."""
        sent = self.to_proto()
        return (
            f"eta_knob={sent.eta_knob} is computed from energy_price_per_kwh={self.energy_price_per_kwh} and "
            f"gpu_hour_price={self.gpu_hour_price} for {sent.gpu.number_of_gpus} x {sent.gpu.gpu_model}, "
            f"{sent.gpu.max_power_watts:g} W in total"
        )

    def explained(self, error: JobDiffersError) -> JobDiffersError:
        """The error, with the source of `eta_knob` if that differs and is computed from prices."""
        if not self.has_prices or "eta_knob" not in error.metadata:
            return error
        message = (
            f"{error}. {self.eta_source()}: new or changed prices, or other GPUs, make another job, which needs a new "
            "job_id; to keep the registered one, replace the prices by its eta_knob"
        )
        return JobDiffersError(message, reason=error.reason, violations=error.violations, metadata=error.metadata)

    def to_proto(self) -> v1.JobSpec:
        """This spec as a message, with the `eta_knob` that is computed from prices.

        Raises:
            InvalidJobSpecError: if a value has the wrong type, `disable_early_stopping` contradicts `beta_knob`, the
                prices are invalid, one of them is missing, or they are given without `gpu` or with `eta_knob`. The
                server checks whether the other values are valid.
        """
        message = self._fill(v1.JobSpec(), "job")
        if self.beta_knob is None:
            if self.disable_early_stopping is False:
                why = "False contradicts beta_knob=None, which disables early stopping: omit one of them"
                raise InvalidJobSpecError.of([Violation("job.disable_early_stopping", why)])
            message.disable_early_stopping = True
        if self.has_prices:
            message.eta_knob = self._computed_eta(message.gpu)
        return message

    def _computed_eta(self, gpu: v1.GpuConfig) -> float:
        faults = list(price_faults(self.energy_price_per_kwh, self.gpu_hour_price, self.eta_knob))
        if self.gpu is None:
            advice = "use GpuConfig(...), or BatchSizeOptimizer, which reads the GPUs from its monitor"
            faults.append(("gpu", f"is missing; eta_knob is computed from prices and GPUs: {advice}"))
        else:
            power = power_faults(gpu.max_power_watts, gpu.number_of_gpus)
            faults.extend((f"gpu.{name}", fault) for name, fault in power)
        if faults:
            raise InvalidJobSpecError.of([Violation(f"job.{name}", fault) for name, fault in faults])
        return eta_from_prices(
            # Neither is None: that is a fault.
            energy_price_per_kwh=self.energy_price_per_kwh or 0.0,
            gpu_hour_price=self.gpu_hour_price or 0.0,
            max_power_watts=gpu.max_power_watts,
            number_of_gpus=gpu.number_of_gpus,
        )


def _wrong_type(path: str, field: Any, value: object, error: Exception | None = None) -> InvalidJobSpecError:
    fault = Violation(f"{path}.{field.name}", f"invalid value {value!r}: {_advice(field, value, error)}")
    return InvalidJobSpecError.of([fault])


def _advice(field: Any, value: object, error: Exception | None) -> str:
    if field.name == "batch_sizes":
        return "use a list of whole numbers, such as [32, 64]; int() converts a float or a string"
    if field.name == "prior_job_ids":
        return 'use a list of strings, such as ["mnist-a40"]'
    if field.enum_type is not None:
        return f"use one of {', '.join(value.name for value in field.enum_type.values[1:])}"
    if isinstance(value, int) and not isinstance(value, bool) and field.cpp_type in _INTEGERS:
        # Out of range, which protobuf's message says.
        return str(error)
    return _EXPECTED.get(field.cpp_type, str(error))


def check_job(job: object) -> JobSpec:
    """The job, if it is a `JobSpec`.

    Raises:
        InvalidArgumentError: if it is not.
    """
    if not isinstance(job, JobSpec):
        raise InvalidArgumentError(f"the job must be a JobSpec, not {type(job).__name__}: use JobSpec(...)")
    return job


def to_number(value: object) -> float:
    """The value as a float; NaN, which is in no range, if it is not a number. Strings are not numbers."""
    if isinstance(value, str | bytes | bytearray):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def enum_name(enum: Any, value: int) -> str:
    """A value of an enum as words: "failed" for TRIAL_STATUS_FAILED; "trial status 9" if this client is older."""
    name = enum_constant(enum, value)
    words = name.removeprefix(_prefix_of(enum)) if value in enum.values() else name
    return words.lower().replace("_", " ")


def enum_constant(enum: Any, value: int) -> str:
    """A value of an enum as the protos write it: "TRIAL_STATUS_FAILED"; "TRIAL_STATUS_9" if this client is older."""
    return str(enum.Name(value)) if value in enum.values() else f"{_prefix_of(enum)}{value}"


def _prefix_of(enum: Any) -> str:
    return str(enum.Name(0)).removesuffix("UNSPECIFIED")
