"""The rules of a job, which the server and its clients share."""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from wattwise import v1
from wattwise.drafts import POLICIES, job_draft, job_fields, policy_draft, resolved
from wattwise.errors import InvalidJobSpecError
from wattwise.rules import (
    DEFAULTS,
    MAX_ID_LENGTH,
    PARAMETERS,
    STATUS_AFTER,
    TRAINER_END_REASONS,
    EndReason,
    GpuGroup,
    JobDraft,
    ResolvedJob,
    TrialStatus,
    cost,
    identifier_fault,
    is_kind,
    job_faults,
    label_of,
    path_of,
    reaches_target,
    watts_fault,
    with_defaults,
)
from wattwise.spec import check_valid, flat_name, job_message

from tests.client.training.script import job_spec

_GTS: dict[str, Any] = {"policy": "gts"}
_GRADIENT: dict[str, Any] = {"policy": "knowledge_gradient", "seed": None}


def _gpu(gpu_model: str = "A", count: int = 1, watts: float = 1.0) -> dict[str, Any]:
    return {"gpu": GpuGroup(gpu_model=gpu_model, count=count, max_power_watts_per_gpu=watts)}


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"job_id_prefix": ""}, ["job_id_prefix"]),
    ({"job_id_prefix": "other"}, ["job_id"]),
    ({"job_id_prefix": "j\n", "job_id": "j\n1"}, ["job_id", "job_id_prefix"]),
    ({"job_id_prefix": "j" * 201, "job_id": "j" * 202}, ["job_id", "job_id_prefix"]),
    ({"job_id": ""}, ["job_id", "job_id"]),
    ({"job_id": f"j{'1' * 200}"}, ["job_id"]),
    ({"job_id": "j\ud800"}, ["job_id"]),
    ({"batch_sizes": ()}, ["batch_sizes"]),
    ({"batch_sizes": tuple(range(1, 66))}, ["batch_sizes"]),
    ({"batch_sizes": (8, 8, 16)}, ["batch_sizes"]),
    ({"batch_sizes": (0, -8, 16)}, ["batch_sizes", "batch_sizes"]),
    ({"batch_sizes": (8, 32)}, ["default_batch_size"]),
    ({"default_batch_size": 0}, ["default_batch_size"]),
    *(({"target_metric": each}, ["target_metric"]) for each in (math.nan, math.inf)),
    *(({"eta_knob": each}, ["eta_knob"]) for each in (-0.1, 1.1, math.nan)),
    *(({"beta_knob": each}, ["beta_knob"]) for each in (0.0, -1.0, 2e6, math.nan, math.inf)),
    *(({"max_epochs": each}, ["max_epochs"]) for each in (0, -1)),
    ({"policy": "newer"}, ["policy"]),
    ({"num_pruning_rounds": -1}, ["num_pruning_rounds"]),
    ({"window_size": -1}, ["window_size"]),
    ({"window_size": 1001, **_GRADIENT}, ["window_size"]),
    *(({"prior_mean": each}, ["prior_mean"]) for each in (math.nan, -math.inf)),
    *(({"prior_precision": each}, ["prior_precision"]) for each in (-1.0, math.nan)),
    ({"num_explorations": -1}, ["num_explorations"]),
    *(({"reward_precision": each, **_GTS}, ["reward_precision"]) for each in (-1.0, math.inf)),
    ({"learn_reward_precision": False, **_GTS}, ["reward_precision"]),
    *(({"trial_lease_seconds": each}, ["trial_lease_seconds"]) for each in (-1.0, 1e-9, 0.99, 1e9, math.inf, math.nan)),
    ({"prior_job_ids": ("p-1", "p-1"), **_GRADIENT}, ["prior_job_ids"]),
    ({"prior_job_ids": tuple(f"p-{number}" for number in range(9)), **_GRADIENT}, ["prior_job_ids"]),
    ({"prior_job_ids": ("p\n",), **_GRADIENT}, ["prior_job_ids"]),
    ({"job_id": "j-self", "prior_job_ids": ("j-self",), **_GRADIENT}, ["prior_job_ids"]),
    *(({"gpu": each}, ["gpu"]) for each in (0, 2)),
    *((_gpu(watts=each), ["gpu.max_power_watts_per_gpu"]) for each in (0.0, -1.0, math.nan, math.inf)),
    (_gpu(count=0), ["gpu.count"]),
    *((_gpu(each), ["gpu.gpu_model"]) for each in ("", "A\n", "A" * 201)),
    (
        {"batch_sizes": (), "eta_knob": 2.0, "max_epochs": 0, "job_id_prefix": "", "gpu": 0, "window_size": -1},
        ["job_id_prefix", "batch_sizes", "max_epochs", "eta_knob", "window_size", "gpu"],
    ),
]
"""Changes of a valid job, and the fields that have a fault, in order."""

RIGHT: list[dict[str, Any]] = [
    {},
    _GRADIENT,
    _GTS,
    {"window_size": 1000, **_GRADIENT},
    {"window_size": 1001, **_GTS},
    {"beta_knob": None},
    {"beta_knob": 1e6, "eta_knob": 0.0, "target_metric": -1.0, "max_epochs": 1},
    {"learn_reward_precision": False, "reward_precision": 0.1, **_GTS},
    *({"trial_lease_seconds": each} for each in (0.0, 1.0, 365 * 24 * 3600.0)),
    {"job_id": f"j{'é' * 199}", "batch_sizes": tuple(range(16, 80))},
    {"prior_job_ids": tuple(f"p-{number}" for number in range(8)), **_GRADIENT},
    _gpu("A" * 200, 2, 0.05),
]


def changed(changes: dict[str, Any]) -> JobDraft:
    """A valid draft with these changes."""
    valid: dict[str, Any] = {
        "job_id": "j",
        "job_id_prefix": "j",
        "batch_sizes": (8, 16, 32),
        "default_batch_size": 16,
        "target_metric": 0.9,
        "higher_is_better": True,
        "policy": "pruning_gts",
        **_gpu(),
    }
    return valid | changes


@pytest.mark.parametrize(("changes", "names"), WRONG, ids=str)
def test_faults_are_found(changes: dict[str, Any], names: list[str]) -> None:
    """A wrong job has one fault for each wrong value, in the order of the checks."""
    faults = list(job_faults(changed(changes), POLICIES))
    assert [name for name, _ in faults] == names
    assert all(fault for _, fault in faults)


@pytest.mark.parametrize("changes", RIGHT, ids=str)
def test_valid_jobs_have_no_faults(changes: dict[str, Any]) -> None:
    """The last values inside the limits are valid."""
    assert not list(job_faults(changed(changes), POLICIES))


def test_limits_of_a_policy_are_only_its_own() -> None:
    """Parameters that the policy does not have need not fit together."""
    assert not list(job_faults(changed({"learn_reward_precision": False, "reward_precision": 0.0}), POLICIES))


@pytest.mark.parametrize("name", ["target_metric", "higher_is_better", "batch_sizes", "default_batch_size", "gpu"])
def test_required_fields(name: str) -> None:
    """A draft without a required field has a fault there."""
    draft = {field: value for field, value in changed({}).items() if field != name}
    assert [field for field, _ in job_faults(draft, POLICIES)] == [name]


def test_every_field_is_in_the_table() -> None:
    """The table has a wrong value for every field that can have one."""
    # A seed and a switch have no wrong value.
    cannot = {"higher_is_better", "seed"}
    assert {field.name for field in fields(ResolvedJob)} - cannot == {
        name for each, _ in WRONG for name in each
    } - cannot


def test_faults_say_what_to_change() -> None:
    """Every fault names the value and what to use instead."""
    wrong = {
        "job_id": "k",
        "default_batch_size": 5,
        "trial_lease_seconds": 0.5,
        "max_epochs": 0,
        "beta_knob": 2e6,
        "window_size": 1001,
        "prior_job_ids": ("p", "p"),
        **_GRADIENT,
        **_gpu(watts=0.0),
    }
    assert list(job_faults(changed(wrong), POLICIES)) == [
        ("job_id", "'k' does not start with its prefix 'j'; change one of the two"),
        ("default_batch_size", "5 is not among batch_sizes (8, 16, 32); use one of them"),
        ("max_epochs", "is 0; use 1 or more"),
        ("trial_lease_seconds", "is 0.5; use 1 or more, or 0 for a lease that never expires"),
        ("beta_knob", "is above 1e+06, which stops nothing; disable early stopping instead"),
        ("prior_job_ids", "'p' is listed more than once; list every job once"),
        ("window_size", "is 1001; use at most 1000, or 0 for all trials"),
        ("gpu.max_power_watts_per_gpu", "is 0.0; use the watts of one GPU, above 0"),
    ]


def test_faults_of_what_is_missing() -> None:
    """A missing direction, another number of groups and an unknown policy have faults that say what is possible."""
    draft = {name: value for name, value in changed({"policy": "newer"}).items() if name != "higher_is_better"}
    missing = "is missing; name the GPUs, unless a trainer reads them from its energy monitor"
    several = "has 2 groups; this version trains with exactly one group of equal GPUs"
    for gpu, fault in ((None, missing), (0, missing), (2, several)):
        assert list(job_faults({**draft, "gpu": gpu}, ["gts", "mine"])) == [
            (
                "higher_is_better",
                "is not set, or unknown to this server; use DIRECTION_HIGHER_IS_BETTER or DIRECTION_LOWER_IS_BETTER",
            ),
            ("policy", "is not set, or unknown to this server; use one of gts, mine"),
            ("gpu", fault),
        ]


def test_lease() -> None:
    """A lease of 300 seconds expires 300 seconds later and has three heartbeats; one of 0 never expires."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    spec = with_defaults(changed({}))
    assert spec.lease_expiry(now) == now + timedelta(seconds=300)
    assert spec.heartbeat_interval == timedelta(seconds=100)
    endless = with_defaults(changed({"trial_lease_seconds": 0.0}))
    assert (endless.lease_expiry(now), endless.heartbeat_interval) == (None, None)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("host=node-7", ("host", "node-7")),
        (" a b = c=d ", ("a b", "c=d")),
        ("key=", ("key", "")),
        (f"{'k' * 63}={'v' * 200}", ("k" * 63, "v" * 200)),
        *(
            (wrong, None)
            for wrong in ("", "host", "=value", f"{'k' * 64}=v", f"k={'v' * 201}", "k=a\tb", "k=v\r", "k\x00=v")
        ),
    ],
)
def test_labels(text: str, label: tuple[str, str] | None) -> None:
    """A label has a key of 1 to 63 characters and a value of at most 200, which can be shown."""
    assert label_of(text) == label


def test_kinds_of_monitor() -> None:
    """The kind of a monitor is a text of 1 to 50 characters that can be shown."""
    for valid in ("nvml", "wall monitor", "é" * 50):
        assert is_kind(valid)
    for wrong in ("", "é" * 51, "a\n", None, 3, b"nvml"):
        assert not is_kind(wrong)


def test_defaults() -> None:
    """A field that is not set has the default of the contract; batch sizes ascend."""
    required = changed({"batch_sizes": (32, 8, 16)})
    required = {name: value for name, value in required.items() if name not in DEFAULTS}
    spec = with_defaults(required)
    assert spec.batch_sizes == (8, 16, 32)
    assert {name: getattr(spec, name) for name in DEFAULTS} == DEFAULTS
    assert DEFAULTS == {
        "job_id_prefix": "",
        "eta_knob": 0.5,
        "beta_knob": 2.0,
        "max_epochs": 100,
        "trial_lease_seconds": 300.0,
        "policy": "knowledge_gradient",
        "window_size": 0,
        "prior_job_ids": (),
        "num_pruning_rounds": 2,
        "prior_mean": 0.0,
        "prior_precision": 0.0,
        "num_explorations": 2,
        "seed": None,
        "learn_reward_precision": True,
        "reward_precision": 0.0,
    }


@pytest.mark.parametrize(
    ("eta_knob", "joules"), [(0.0, 300 * 7.0), (0.25, 0.25 * 1100 + 0.75 * 300 * 7), (0.5, 1600.0), (1.0, 1100.0)]
)
def test_cost(eta_knob: float, joules: float) -> None:
    """The cost is η·E + (1−η)·P·T."""
    assert cost(eta_knob, 300.0, energy_joules=1100.0, time_seconds=7.0) == pytest.approx(joules)


@pytest.mark.parametrize(
    ("metric", "higher", "lower"), [(0.4, False, True), (0.5, True, True), (0.6, True, False), (math.nan, False, False)]
)
def test_target(metric: float, higher: bool, lower: bool) -> None:
    """A metric at the target or on its better side reaches it; NaN does not."""
    assert reaches_target(metric, 0.5, higher_is_better=True) == higher
    assert reaches_target(metric, 0.5, higher_is_better=False) == lower


def test_identifiers() -> None:
    """An id has at most 200 characters, and neither control characters nor half of a surrogate pair."""
    for valid in ("", "é" * MAX_ID_LENGTH, "a b", "\u202e"):
        assert identifier_fault(valid) is None
    assert identifier_fault("é" * 201) == "has 201 characters; use at most 200"
    for control in ("a\n", "\x00", "\x85"):
        assert identifier_fault(control) == "has control characters; remove them"
    assert identifier_fault("\ud800") == "is not UTF-8"


def test_watts_are_numbers_above_zero() -> None:
    """The power of a GPU is a finite number of any type, above 0."""
    for watts in (0.05, 700, Decimal(300)):
        assert watts_fault(watts) is None
    for wrong in (0, -1.0, math.nan, math.inf, True, "300", None, 10**400):
        assert watts_fault(wrong) == f"is {wrong}; use the watts of one GPU, above 0"


def test_paths_and_flat_names_are_inverse() -> None:
    """Every field has one place in the message, whose flat name is that of the field."""
    names = [field.name for field in fields(ResolvedJob)] + [f"gpu.{field.name}" for field in fields(GpuGroup)]
    for name in names:
        policy = next((policy for policy, parameters in POLICIES.items() if name in parameters), "gts")
        path = path_of(name, policy)
        assert flat_name(path) == name
        assert path.startswith("policy.") == (name in PARAMETERS)
    assert flat_name("gpus[0].newer") == "gpu.newer"


def test_defaults_are_filled_into_a_message() -> None:
    """Fields that are set are kept; batch sizes ascend, and only parameters of the policy are filled in."""
    required: dict[str, Any] = {
        "job_id": "j",
        "default_batch_size": 8,
        "target": v1.Target(value=0.5, direction=v1.DIRECTION_HIGHER_IS_BETTER),
        "gpus": [v1.GpuGroup(gpu_model="A", count=1, max_power_watts_per_gpu=1.0)],
    }
    assert resolved(v1.JobSpec(batch_sizes=[32, 8], **required)) == v1.JobSpec(
        **required,
        batch_sizes=[8, 32],
        eta_knob=0.5,
        early_stopping=v1.EarlyStopping(cost_bound=v1.EarlyStopping.CostBound(beta_knob=2.0)),
        max_epochs=100,
        trial_lease_seconds=300.0,
        policy=v1.PolicySpec(knowledge_gradient=v1.KnowledgeGradientSpec(window_size=0)),
    )
    given: dict[str, Any] = {
        "job_id_prefix": "j",
        "batch_sizes": [8],
        "eta_knob": 0.0,
        "early_stopping": v1.EarlyStopping(off=v1.EarlyStopping.Off()),
        "max_epochs": 7,
        "trial_lease_seconds": 0.0,
    }
    policy = v1.PolicySpec(gts=v1.GtsSpec(window_size=7, seed=0))
    assert resolved(v1.JobSpec(policy=policy, **given, **required)) == v1.JobSpec(
        **required,
        **given,
        policy=v1.PolicySpec(
            gts=v1.GtsSpec(
                window_size=7,
                seed=0,
                prior_mean=0.0,
                prior_precision=0.0,
                num_explorations=2,
                learn_reward_precision=True,
                reward_precision=0.0,
            )
        ),
    )


@pytest.mark.parametrize("changes", [*RIGHT, {"seed": 3, "higher_is_better": False, "job_id_prefix": "j"}], ids=str)
def test_draft_is_what_is_set_in_a_message(changes: dict[str, Any]) -> None:
    """A job as a message has the draft that it was made from, and is resolved to its configuration."""
    spec = with_defaults(changed(changes))
    message = v1.JobSpec(**job_fields(spec))
    assert with_defaults(job_draft(message)) == spec
    assert resolved(message) == message
    assert job_draft(v1.JobSpec()) == {}
    assert job_draft(v1.JobSpec(gpus=[v1.GpuGroup(), v1.GpuGroup()])) == {"gpu": 2}
    message.ClearField("gpus")
    assert resolved(message) == message
    assert policy_draft(v1.PolicySpec(gts=v1.GtsSpec(seed=0))) == {"policy": "gts", "seed": 0}
    assert policy_draft(v1.PolicySpec()) == {}


def test_error_has_the_names_of_the_python_fields() -> None:
    """The error for a launch without a server is like the server's, with every fault at once."""
    check_valid(job_message(job_spec()))
    with pytest.raises(InvalidJobSpecError) as caught:
        check_valid(job_message(job_spec(eta_knob=2.0, target_metric=math.nan, gpu=None)))
    assert [each.field for each in caught.value.violations] == ["job.target_metric", "job.eta_knob", "job.gpu"]
    assert caught.value.reason == "ERROR_REASON_INVALID_JOB_SPEC"
    assert str(caught.value).startswith("invalid job: job.target_metric: is nan; use a finite number; job.eta_knob: ")


def test_every_end_reason_has_a_status() -> None:
    """A trial that ended is not running; those that a trainer ends are decided only if it stopped early."""
    assert STATUS_AFTER.keys() == set(EndReason)
    assert TrialStatus.RUNNING not in STATUS_AFTER.values()
    decided = [reason for reason in TRAINER_END_REASONS if STATUS_AFTER[reason] is TrialStatus.DECIDED]
    assert decided == [EndReason.STOPPED_EARLY]
