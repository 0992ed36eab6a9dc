"""JobSpec and GpuGroup."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from wattwise import Client, GpuGroup, JobSpec, v1
from wattwise.drafts import POLICIES
from wattwise.errors import InvalidJobSpecError, JobDiffersError
from wattwise.prices import PRICES
from wattwise.spec import job_message, leaves, policy_spec
from wattwise.training.assigned import spec_from_json, spec_to_json

from tests.client.training.script import GPU, job_spec


def test_every_field_of_the_wire_has_a_flat_one() -> None:
    """The dataclass has a field for each one of the messages, and the prices; parameters of policies have one name."""
    paths = {each.name for each in v1.JobSpec.DESCRIPTOR.fields} - {"target", "early_stopping", "gpus"}
    flat = {"target_metric", "higher_is_better", "beta_knob", "gpu"}
    parameters = {name for names in POLICIES.values() for name in names}
    assert {field.name for field in fields(JobSpec)} == paths | flat | parameters | set(PRICES)
    assert {field.name for field in fields(GpuGroup)} == {field.name for field in v1.GpuGroup.DESCRIPTOR.fields}


def test_every_field_is_sent() -> None:
    """Every value is sent in its field, zero and False included."""
    parameters: dict[str, Any] = {
        "window_size": 0,
        "prior_mean": -5.0,
        "prior_precision": 0.0,
        "num_explorations": 1,
        "seed": 0,
        "learn_reward_precision": False,
        "reward_precision": 0.5,
    }
    values: dict[str, Any] = {
        "job_id": "test-1",
        "job_id_prefix": "test",
        "batch_sizes": [8, 16],
        "default_batch_size": 8,
        "eta_knob": 0.0,
        "max_epochs": 7,
        "trial_lease_seconds": 0.0,
    }
    target: dict[str, Any] = {"target_metric": 0.0, "higher_is_better": False}
    spec = JobSpec(policy="gts", gpu=GPU, beta_knob=3.5, **values, **target, **parameters)
    assert job_message(spec) == v1.JobSpec(
        **values,
        target=v1.Target(value=0.0, direction=v1.DIRECTION_LOWER_IS_BETTER),
        early_stopping=v1.EarlyStopping(cost_bound=v1.EarlyStopping.CostBound(beta_knob=3.5)),
        gpus=[v1.GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100)],
        policy=v1.PolicySpec(gts=v1.GtsSpec(**parameters)),
    )
    assert job_message(spec).policy == policy_spec("gts", **parameters)


def test_unset_fields_are_left_to_the_server() -> None:
    """A field that is not given is not sent; the direction of the target always is."""
    message = job_message(JobSpec(job_id="test-1", batch_sizes=[8], default_batch_size=8, target_metric=0.9))
    assert dict(leaves(message)) == {
        "job_id": "test-1",
        "batch_sizes": [8],
        "default_batch_size": 8,
        "target.value": 0.9,
        "target.direction": v1.DIRECTION_HIGHER_IS_BETTER,
    }


def test_parameters_belong_to_a_policy() -> None:
    """Without a policy they are those of the default one; those of another policy are refused, all at once."""
    assert job_message(job_spec(policy=None, seed=None, window_size=3)).policy == policy_spec(
        "knowledge_gradient", window_size=3
    )
    with pytest.raises(InvalidJobSpecError, match="set policy to pruning_gts or gts") as refused:
        job_message(job_spec(policy=None, seed=1, num_explorations=2))
    assert {each.field for each in refused.value.violations} == {"job.seed", "job.num_explorations"}
    with pytest.raises(InvalidJobSpecError, match="set policy to knowledge_gradient") as refused:
        job_message(job_spec(policy="gts", prior_job_ids=["a"]))
    assert [each.field for each in refused.value.violations] == ["job.prior_job_ids"]


def test_refusals_have_the_names_of_the_fields(grpc_addr: str) -> None:
    """The server's faults and differences have the names of the Python fields, in the message too."""
    wrong = {"target_metric": math.nan, "beta_knob": -1.0, "seed": None, "policy": "gts", "window_size": -1}
    gpu = GpuGroup(gpu_model="", count=1, max_power_watts_per_gpu=1.0)
    names = ["job.target_metric", "job.beta_knob", "job.window_size", "job.gpu.gpu_model"]
    with Client(grpc_addr) as client:
        with pytest.raises(InvalidJobSpecError) as refused:
            client.register_job(job_spec(**wrong, gpu=gpu))
        assert {each.field for each in refused.value.violations} == set(names)
        assert all(f"{name}: " in str(refused.value) for name in names)
        spec = job_spec(policy="gts", beta_knob=2.0, seed=1)
        client.register_job(spec)
        with pytest.raises(JobDiffersError) as differs:
            client.register_job(replace(spec, target_metric=0.8, beta_knob="off", seed=7))
    assert {each.field: each.description for each in differs.value.violations} == {
        "job.target_metric": "registered 0.9, requested 0.8",
        "job.beta_knob": "registered cost_bound with beta_knob 2.0, requested off",
        "job.seed": "registered 1, requested 7",
    }
    assert "job.target_metric: registered 0.9, requested 0.8" in str(differs.value)


@pytest.mark.parametrize("missing", ["job_id", "batch_sizes", "default_batch_size", "target_metric"])
def test_required_fields(missing: str) -> None:
    """A job without one of these fields is refused by name, when it is created and when it is sent as None."""
    given: dict[str, Any] = {"job_id": "a", "batch_sizes": [8], "default_batch_size": 8, "target_metric": 0.9}
    with pytest.raises(InvalidJobSpecError, match="None") as none:
        job_message(JobSpec(**(given | {missing: None})))
    assert [violation.field for violation in none.value.violations] == [f"job.{missing}"]
    del given[missing]
    with pytest.raises(TypeError, match=f"JobSpec is missing {missing}"):
        JobSpec(**given)


def test_wording_of_a_missing_target() -> None:
    """The error for a missing target says what it is."""
    with pytest.raises(TypeError) as caught:
        JobSpec(job_id="a", batch_sizes=[8], default_batch_size=8)  # type: ignore[call-arg]
    assert str(caught.value) == (
        "JobSpec is missing target_metric, the validation metric at which a model is good enough, such as "
        "target_metric=0.98"
    )


def test_beta_of_off_disables_early_stopping(grpc_addr: str) -> None:
    """Without `beta_knob` the server's default 2 holds."""
    with Client(grpc_addr) as client:
        rules = [client.register_job(job).job.spec.early_stopping for job in (job_spec(beta_knob="off"), job_spec())]
    assert [rule.WhichOneof("rule") for rule in rules] == ["off", "cost_bound"]
    assert rules[1].cost_bound.beta_knob == 2.0


@pytest.mark.parametrize("fields", [{}, {"beta_knob": "off"}, {"beta_knob": 3.0}, {"gpu": None, "max_epochs": 7}])
def test_json_of_the_driver(fields: dict[str, Any]) -> None:
    """The driver's JSON of a job is read as the same job."""
    spec = job_spec(**fields)
    text = spec_to_json(spec)
    read = spec_from_json(text)
    assert (read, job_message(read)) == (spec, job_message(spec))
    assert ("beta_knob" in json.loads(text)) == ("beta_knob" in fields)


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (JobSpec, "max_epoch", "did you mean max_epochs?"),
        (JobSpec, "target_metrc", "did you mean target_metric?"),
        (JobSpec, "gpus", "did you mean gpu?"),
        (GpuGroup, "power", "the fields are gpu_model, count, max_power_watts_per_gpu"),
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


def test_representation() -> None:
    """It has the fields that are set, of which Python can make the job again."""
    spec = JobSpec(job_id="a", batch_sizes=[8], default_batch_size=8, target_metric=0.9, higher_is_better=False, seed=0)
    assert repr(spec) == (
        "JobSpec(job_id='a', batch_sizes=[8], default_batch_size=8, target_metric=0.9, higher_is_better=False, seed=0)"
    )


def test_specs_are_copied_and_pickled() -> None:
    """A JobSpec can be copied, replaced and pickled."""
    spec = job_spec()
    for copied in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), replace(spec)):  # noqa: S301 - our own bytes
        assert copied == spec


def test_unknown_policy_lists_the_choices() -> None:
    """An unknown policy raises with the list of policies."""
    with pytest.raises(InvalidJobSpecError, match="'ucb': use one of knowledge_gradient, pruning_gts, gts"):
        job_message(job_spec(policy="ucb"))


def test_warning_for_beta_below_one_names_what_it_multiplies(caplog: pytest.LogCaptureFixture) -> None:
    """The default policy multiplies the least expected cost, the paper's policies multiply the lowest cost."""
    for policy in (None, "pruning_gts"):
        job_spec(beta_knob=0.9, policy=policy, seed=None).warn_if_doubtful()
    default, paper = caplog.messages
    assert "0.9 times the least expected cost" in default
    assert "0.9 times the lowest cost" in paper


@pytest.mark.parametrize(("beta", "warned"), [(0.9, True), (1.0, False)])
def test_warning_for_beta_below_one(
    grpc_addr: str, caplog: pytest.LogCaptureFixture, beta: float, warned: bool
) -> None:
    """A beta below 1 is registered unchanged, with one warning."""
    with Client(grpc_addr) as client:
        registered = client.register_job(job_spec(beta_knob=beta)).job.spec.early_stopping.cost_bound.beta_knob
    assert registered == beta
    assert len([message for message in caplog.messages if "beta_knob=0.9" in message]) == warned


@pytest.mark.parametrize(
    ("name", "value"),
    [("policy", "ucb"), ("batch_sizes", ["8"]), ("max_epochs", 1.5), ("job_id", 3), ("seed", 2**80)],
)
def test_value_of_the_wrong_type_is_named(name: str, value: object) -> None:
    """A value of the wrong type raises with its field."""
    with pytest.raises(InvalidJobSpecError, match=f"^invalid job: job.{name}") as caught:
        job_message(job_spec(**{name: value}))
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
        job_message(job_spec(**{name: value}))
    assert repr(value) in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("job_id", 3, "a string; str() converts a number"),
        ("eta_knob", "0.5", "a number, such as 0.5; float() converts a string"),
        ("target_metric", [0.5], "a number, such as 0.5; float() converts a string"),
        ("max_epochs", True, "a whole number, such as 32; int() converts a float or a string"),
        ("seed", 1.5, "a whole number, such as 32; int() converts a float or a string"),
        ("higher_is_better", "false", "True or False"),
        ("gpu", "H200", "GpuGroup(gpu_model=..., count=..., max_power_watts_per_gpu=...)"),
        ("gpu", {"max_power_watts_per_gpu": 700}, "GpuGroup(gpu_model=..., count=..., max_power_watts_per_gpu=...)"),
    ],
)
def test_what_to_use_instead(name: str, value: object, instead: str) -> None:
    """The wording of the error for a value of the wrong type."""
    with pytest.raises(InvalidJobSpecError) as caught:
        job_message(job_spec(**{name: value}))
    assert str(caught.value) == f"invalid job: job.{name}: invalid value {value!r}: use {instead}"


def test_batch_sizes_of_numpy() -> None:
    """NumPy integers are accepted."""
    message = job_message(job_spec(batch_sizes=list(np.array([8, 16])), default_batch_size=np.int64(8)))
    assert (list(message.batch_sizes), message.default_batch_size) == ([8, 16], 8)
