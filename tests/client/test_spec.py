"""JobSpec and GpuConfig."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from wattwise import Client, GpuConfig, InvalidJobSpecError, JobSpec, v1
from wattwise.prices import PRICES
from wattwise.training.driver_launch import spec_from_json, spec_to_json

from tests.client.training.script import GPU, job_spec


@pytest.mark.parametrize(
    ("ours", "theirs", "own"), [(JobSpec, v1.JobSpec, set(PRICES)), (GpuConfig, v1.GpuConfig, set())]
)
def test_fields_are_those_of_the_wire(ours: type[JobSpec], theirs: type[v1.JobSpec], own: set[str]) -> None:
    """The dataclasses have exactly the fields of the messages that they stand for, and the prices."""
    sent = {field.name for field in theirs.DESCRIPTOR.fields}
    assert {field.name for field in fields(ours)} == sent | own
    assert not sent & own


def test_every_field_is_sent() -> None:
    """Every value is sent in the field of its name, zero and False included."""
    values: dict[str, Any] = {
        "job_id": "test-1",
        "eta_knob": 0.0,
        "beta_knob": 3.5,
        "disable_early_stopping": False,
        "target_metric": 0.0,
        "higher_is_better_metric": False,
        "max_epochs": 7,
        "num_pruning_rounds": 0,
        "window_size": 0,
        "mab_prior_mean": -5.0,
        "mab_prior_precision": 0.0,
        "mab_num_explorations": 1,
        "mab_seed": 0,
        "learn_reward_precision": False,
        "reward_precision": 0.5,
        "trial_lease_seconds": 0.0,
    }
    spec = JobSpec(
        job_id_prefix="test", batch_sizes=[8, 16], default_batch_size=8, policy="POLICY_GTS", gpu=GPU, **values
    )
    message = spec.to_proto()
    present = {field.name: value for field, value in message.ListFields()}
    assert {name: present[name] for name in values} == values
    assert (message.policy, list(message.batch_sizes)) == (v1.POLICY_GTS, [8, 16])
    assert message.gpu == v1.GpuConfig(max_power_watts=100, number_of_gpus=1, gpu_model="Test GPU")


def test_unset_fields_are_left_to_the_server() -> None:
    """A field that is not given is not sent."""
    given: dict[str, Any] = {
        "job_id_prefix": "test",
        "batch_sizes": [8],
        "default_batch_size": 8,
        "target_metric": 0.9,
    }
    message = JobSpec(**given).to_proto()
    assert {field.name for field, _ in message.ListFields()} == set(given)


@pytest.mark.parametrize("missing", ["job_id_prefix", "batch_sizes", "default_batch_size", "target_metric"])
def test_required_fields(missing: str) -> None:
    """A job without one of these fields is refused by name, when it is created and when it is sent as None."""
    given: dict[str, Any] = {"job_id_prefix": "a", "batch_sizes": [8], "default_batch_size": 8, "target_metric": 0.9}
    with pytest.raises(InvalidJobSpecError, match="None") as none:
        JobSpec(**(given | {missing: None})).to_proto()
    assert [violation.field for violation in none.value.violations] == [f"job.{missing}"]
    del given[missing]
    with pytest.raises(TypeError, match=f"JobSpec is missing {missing}"):
        JobSpec(**given)


def test_wording_of_a_missing_target() -> None:
    """The error for a missing target says what it is."""
    with pytest.raises(TypeError) as caught:
        JobSpec(job_id_prefix="a", batch_sizes=[8], default_batch_size=8)  # type: ignore[call-arg]
    assert str(caught.value) == (
        "JobSpec is missing target_metric, the validation metric at which a model is good enough, such as "
        "target_metric=0.98"
    )


def test_beta_of_none_disables_early_stopping(grpc_addr: str) -> None:
    """`beta_knob=None` disables early stopping; without `beta_knob` the server's default 2 holds."""
    with Client(grpc_addr) as client:
        specs = [
            client.register_job(job).job.spec
            for job in (job_spec(beta_knob=None), job_spec(beta_knob=None, disable_early_stopping=True), job_spec())
        ]
    assert [spec.disable_early_stopping for spec in specs] == [True, True, False]
    assert specs[2].beta_knob == 2.0


def test_beta_of_none_with_early_stopping() -> None:
    """`beta_knob=None` with `disable_early_stopping=False` is refused, because they contradict each other."""
    with pytest.raises(InvalidJobSpecError, match="beta_knob=None") as caught:
        job_spec(beta_knob=None, disable_early_stopping=False).to_proto()
    assert [violation.field for violation in caught.value.violations] == ["job.disable_early_stopping"]


@pytest.mark.parametrize("fields", [{}, {"beta_knob": None}, {"beta_knob": 3.0}, {"gpu": None, "max_epochs": 7}])
def test_json_of_the_driver(fields: dict[str, Any]) -> None:
    """The driver's JSON of a job is read as the same job; a `beta_knob` of None differs from one that is not given."""
    spec = job_spec(**fields)
    text = spec_to_json(spec)
    read = spec_from_json(text)
    assert (read, read.to_proto()) == (spec, spec.to_proto())
    assert ("beta_knob" in json.loads(text)) == ("beta_knob" in fields)


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (JobSpec, "max_epoch", "did you mean max_epochs?"),
        (JobSpec, "target_metrc", "did you mean target_metric?"),
        (JobSpec, "gpus", "did you mean gpu?"),
        (GpuConfig, "power", "the fields are max_power_watts, number_of_gpus, gpu_model"),
    ],
)
def test_misspelt_name(kind: type[Any], name: str, hint: str) -> None:
    """An unknown argument raises with the closest field, or with all fields if none is close."""
    with pytest.raises(TypeError) as caught:
        kind(**{name: 1})
    assert str(caught.value) == f"{kind.__name__} has no field {name}; {hint}"


def test_fields_are_keyword_only() -> None:
    """Positional arguments are a TypeError."""
    unnamed: Callable[..., JobSpec] = JobSpec
    with pytest.raises(TypeError, match="positional argument"):
        unnamed("mnist", "mnist-nightly")


def test_specs_are_copied_and_pickled() -> None:
    """A JobSpec can be copied, replaced and pickled."""
    spec = job_spec()
    for copied in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), replace(spec)):  # noqa: S301 - our own bytes
        assert copied == spec


def test_unknown_policy_lists_the_choices() -> None:
    """An unknown policy raises with the list of policies."""
    with pytest.raises(InvalidJobSpecError, match="'POLICY_GT': use one of POLICY_PRUNING_GTS, POLICY_GTS"):
        job_spec(policy="POLICY_GT").to_proto()


def test_warning_for_beta_below_one_names_what_it_multiplies(caplog: pytest.LogCaptureFixture) -> None:
    """The default policy multiplies the least expected cost, the paper's policies multiply the lowest cost."""
    for policy in (None, "POLICY_PRUNING_GTS"):
        job_spec(beta_knob=0.9, policy=policy).warn_if_doubtful()
    default, paper = caplog.messages
    assert "0.9 times the least expected cost" in default
    assert "0.9 times the lowest cost" in paper


@pytest.mark.parametrize(("beta", "warned"), [(0.9, True), (1.0, False)])
def test_warning_for_beta_below_one(
    grpc_addr: str, caplog: pytest.LogCaptureFixture, beta: float, warned: bool
) -> None:
    """A beta below 1 is registered unchanged, with one warning."""
    with Client(grpc_addr) as client:
        registered = client.register_job(job_spec(beta_knob=beta)).job.spec.beta_knob
    assert registered == beta
    assert len([message for message in caplog.messages if "beta_knob=0.9" in message]) == warned


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy", "POLICY_GT"), ("batch_sizes", ["8"]), ("max_epochs", 1.5), ("job_id", 3), ("mab_seed", 2**80)],
)
def test_value_of_the_wrong_type_is_named(name: str, value: object) -> None:
    """A value of the wrong type raises with its field."""
    with pytest.raises(InvalidJobSpecError, match=f"^invalid job: job.{name}") as caught:
        job_spec(**{name: value}).to_proto()
    assert [violation.field for violation in caught.value.violations] == [f"job.{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_sizes", [32.0]),
        ("batch_sizes", ["32"]),
        ("batch_sizes", [8, 16.5]),
        ("batch_sizes", 32),
        ("default_batch_size", 32.0),
        ("default_batch_size", "32"),
    ],
)
def test_batch_sizes_are_whole_numbers(name: str, value: object) -> None:
    """A float or a string as batch size raises with what to write instead, and without a chained exception."""
    with pytest.raises(InvalidJobSpecError, match=r"whole number.*int\(\)") as caught:
        job_spec(**{name: value}).to_proto()
    assert repr(value) in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("job_id", 3, "a string; str() converts a number"),
        ("eta_knob", "0.5", "a number, such as 0.5; float() converts a string"),
        ("target_metric", [0.5], "a number, such as 0.5; float() converts a string"),
        ("max_epochs", True, "a whole number, such as 32; int() converts a float or a string"),
        ("mab_seed", 1.5, "a whole number, such as 32; int() converts a float or a string"),
        ("higher_is_better_metric", "false", "True or False"),
        ("gpu", "H200", "GpuConfig(max_power_watts=..., number_of_gpus=..., gpu_model=...)"),
        ("gpu", {"max_power_watts": 700}, "GpuConfig(max_power_watts=..., number_of_gpus=..., gpu_model=...)"),
    ],
)
def test_what_to_use_instead(name: str, value: object, instead: str) -> None:
    """The wording of the error for a value of the wrong type."""
    with pytest.raises(InvalidJobSpecError) as caught:
        job_spec(**{name: value}).to_proto()
    assert str(caught.value) == f"invalid job: job.{name}: invalid value {value!r}: use {instead}"


def test_batch_sizes_of_numpy() -> None:
    """NumPy integers are accepted."""
    message = job_spec(batch_sizes=list(np.array([8, 16])), default_batch_size=np.int64(8)).to_proto()
    assert (list(message.batch_sizes), message.default_batch_size) == ([8, 16], 8)


def test_generated_ids() -> None:
    """A job without an id gets a new one each time: its prefix and eight hexadecimal digits."""
    spec = job_spec(job_id=None)
    first, second = spec.named(), spec.named()
    assert first != second
    prefix, _, digits = str(first.job_id).rpartition("-")
    assert (prefix, len(digits)) == ("test", 8)
    assert first.named() is first
