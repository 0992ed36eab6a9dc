"""What a trainer says of its job. Every field stands for the field of the same name in the server's `JobSpec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wattwise import v1
from wattwise.errors import InvalidArgumentError, InvalidJobSpecError, Violation, log

Policy: TypeAlias = str
"""A name of the enum `Policy` in the protos, such as "POLICY_GTS"."""

M = TypeVar("M", bound=Message)

_WHOLE = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_WANTED: dict[int, str] = {
    **dict.fromkeys(_WHOLE, "give a whole number, such as 32; int() makes one of a float or a text"),
    FieldDescriptor.CPPTYPE_DOUBLE: "give a number, such as 0.5; float() makes one of a text",
    FieldDescriptor.CPPTYPE_BOOL: "give True or False",
    FieldDescriptor.CPPTYPE_STRING: "give a text; str() makes one of a number",
    FieldDescriptor.CPPTYPE_MESSAGE: "give GpuConfig(max_power_watts=..., number_of_gpus=..., gpu_model=...)",
}
"""What to give instead of what is of another type, by that of the message's field."""


class _Spelled:
    """Refuses an argument that stands for no field, with the name that was meant."""

    if not TYPE_CHECKING:
        # Hidden from type checkers, which know the fields from the dataclass.

        def __new__(cls, *unnamed: Any, **given: Any) -> Any:
            if unnamed:
                raise TypeError(f"{cls.__name__} takes its fields by name, such as {fields(cls)[0].name}=...")
            for name in given.keys() - cls.__dataclass_fields__.keys():
                raise TypeError(_misspelt(cls, name))
            return super().__new__(cls)


def _misspelt(kind: type[Any], name: str) -> str:
    # Of use once somebody has made a mistake.
    from difflib import get_close_matches  # noqa: PLC0415

    known = [field.name for field in fields(kind)]
    near = get_close_matches(name, known, 1)
    return f"{kind.__name__} has no {name}; " + (
        f"did you mean {near[0]}?" if near else f"its fields are {', '.join(known)}"
    )


@dataclass(frozen=True, kw_only=True)
class GpuConfig(_Spelled):
    """The GPUs that every trial of a job runs on.

    Attributes:
        max_power_watts: the largest power limit of one GPU times the number of GPUs, in watts. It prices time: a
            second of training costs as much as this many joules.
        number_of_gpus: how many GPUs one trial uses, over all its processes.
        gpu_model: the model's name as its driver tells it, such as "NVIDIA H200".
    """

    max_power_watts: float
    number_of_gpus: int
    gpu_model: str

    def to_proto(self) -> v1.GpuConfig:
        """The message that stands for it.

        Raises:
            InvalidJobSpecError: if a value is of the wrong type.
        """
        return _filled(v1.GpuConfig, self, "job.gpu")


@dataclass(frozen=True, kw_only=True)
class JobSpec(_Spelled):
    """A recurring training job: the same model, data pipeline and target, launched again and again.

    None leaves a field to the server's default. All launches under one `job_id` must agree in every field. An argument
    that is none of these is a TypeError, which names the nearest one.

    Attributes:
        job_id: the job's identity over all its launches, such as "mnist-nightly"; starts with the prefix. None makes
            every launch a new job, which never learns anything: good for a first try only.
        job_id_prefix: what `job_id` starts with, such as the model's or the team's name.
        batch_sizes: the global batch sizes to choose from. Few and far apart (powers of two) find a good one after
            few launches; many close ones cost launches to tell apart.
        default_batch_size: the batch size used so far, which is tried first. One that is known to work makes the
            first launch as good as ever.
        eta_knob: weight of energy against time. 0 minimises time alone, 0.5 (the default) weighs a joule of energy
            and a joule's worth of time alike, 1 minimises energy alone.
        beta_knob: a trial is stopped once its cost exceeds this multiple of the job's cheapest. Near 1 it gives up
            early and may give up on good ones; 2 (the default) bounds a bad batch size to twice the best; from 5 on
            hardly anything is stopped. Below 1 even a repetition of the cheapest is stopped, which is warned of.
        disable_early_stopping: True never stops a trial for its cost. Not together with `beta_knob`.
        target_metric: the validation metric at which a model is good enough (default 0.5). Too ambitious, and no
            batch size reaches it; too modest, and models are worse than they could be.
        higher_is_better_metric: True (the default) for an accuracy, False for a loss.
        max_epochs: a trial that has not reached the target by then is over (default 100). Too low prunes batch sizes
            that are slow but cheap; too high lets a hopeless one run until its cost stops it.
        num_pruning_rounds: how often all batch sizes are walked through before the search proper starts. 0 skips
            that, 2 (the default) drops what fails in either of two walks, more only help if training is very noisy.
        window_size: how many of a batch size's newest costs count. 0 (the default) is all of them; 10 or so follows
            data that drift; below 3 it forgets so fast that the choice is erratic.
        mab_prior_mean: what is believed of a batch size's reward (its negative cost) before it was tried, in joules
            (default 0). Without meaning while `mab_prior_precision` is 0.
        mab_prior_precision: how firmly that is believed, as 1/variance in 1/joules². 0 (the default) believes
            nothing; much above the precision of real costs holds on to the prior against the evidence.
        mab_num_explorations: how many succeeded trials every surviving batch size gets before the search draws among
            them. 1 starts early on little evidence, 2 (the default) is usual, more pays off if costs are very noisy.
        mab_seed: seed of the random draws, for repeatable experiments. None (the default) draws from entropy.
        policy: "POLICY_PRUNING_GTS" (the default) drops what does not converge before it searches; "POLICY_GTS"
            keeps every batch size, for jobs where all of them are known to converge.
        learn_reward_precision: under "POLICY_GTS", whether the noise of the costs is learnt from them (default True).
        reward_precision: under "POLICY_GTS" with `learn_reward_precision` False, the known noise of a reward as
            1/variance in 1/joules². Low explores for long, high settles soon.
        gpu: the GPUs. None (the usual) reads them from the energy monitor.
        trial_lease_seconds: silence after which a running trial is taken for lost and its batch size is free to be
            tried again. Low (30) notices a dead trainer soon; 300 (the default) bears with long stalls; 0 waits for
            ever.
    """

    job_id_prefix: str
    batch_sizes: Sequence[int]
    default_batch_size: int
    job_id: str | None = None
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
    policy: Policy | None = None
    learn_reward_precision: bool | None = None
    reward_precision: float | None = None
    gpu: GpuConfig | None = None
    trial_lease_seconds: float | None = None

    def warn_of_doubt(self) -> None:
        """Logs what is allowed and yet hardly meant."""
        beta = self.beta_knob
        if beta is not None and 0 < beta < 1:
            log.warning(
                "beta_knob=%g is below 1: once a trial has converged, any other is stopped, and has not converged, "
                "unless it costs less than %g times the cheapest; give 1 or more, usually 1.5 to 3",
                *(beta, beta),
            )

    def named(self) -> JobSpec:
        """Itself if it has a `job_id`, otherwise a copy with a fresh one, "<prefix>-<8 hex digits>"."""
        if self.job_id is not None:
            return self
        return replace(self, job_id=f"{self.job_id_prefix}-{os.urandom(4).hex()}")

    def to_proto(self) -> v1.JobSpec:
        """The message that stands for it.

        Raises:
            InvalidJobSpecError: if a value is of the wrong type. Whether the values make sense is the server's say.
        """
        return _filled(v1.JobSpec, self, "job")


def checked_job(given: object) -> JobSpec:
    """What was given as a job.

    Raises:
        InvalidArgumentError: if it is none.
    """
    if not isinstance(given, JobSpec):
        what = type(given).__name__
        raise InvalidArgumentError(f"the job is something of type {what}; give JobSpec(job_id_prefix=..., ...)")
    return given


def _filled(kind: type[M], source: GpuConfig | JobSpec, path: str) -> M:
    message = kind()
    for field in fields(source):
        value = getattr(source, field.name)
        if value is None:
            continue
        try:
            message.MergeFrom(kind(**{field.name: _sent(field.name, value)}))
        except (TypeError, ValueError) as error:
            advice = _advice(field.name, kind.DESCRIPTOR.fields_by_name[field.name].cpp_type, value, error)
            fault = Violation(f"{path}.{field.name}", f"{value!r} cannot be used: {advice}")
            raise InvalidJobSpecError(f"{fault.field}: {fault.description}", violations=[fault]) from None
    return message


def _sent(name: str, value: object) -> object:
    if isinstance(value, GpuConfig):
        return value.to_proto()
    if name == "gpu":
        raise TypeError("protobuf would take a dict too, and 0 for what it lacks")
    return value


def _advice(name: str, kind: int, value: object, error: Exception) -> str:
    """What to write instead; of what is not foreseen, what protobuf says."""
    if name == "batch_sizes":
        return "give a list of whole numbers, such as [32, 64]; int() makes one of a float or a text"
    if name == "policy":
        return f"give one of {', '.join(v1.Policy.keys()[1:])}"
    if isinstance(value, int) and not isinstance(value, bool) and kind in _WHOLE:
        return str(error)
    return _WANTED.get(kind, str(error))
