"""RegisterJob: defaults, violations, and one configuration per id."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.internal import encoder, wire_format
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wattwise import v1
from wattwise.drafts import POLICIES as PARAMETERS
from wattwise.rules import GpuGroup, JobDraft, path_of
from wattwise.spec import policy_name
from wattwise_server.domain import Job
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError
from wattwise_server.policy.registry import POLICIES
from wattwise_server.store.transactions import Transaction
from wattwise_server.usecases.job_spec import check_identical, resolve, set_fields

from tests.jobs import GPU, job_spec, policy_message, set_policy
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.refusals import refused
from tests.server.site import BEGIN, Site, draft

Stub = v1.BatchSizeOptimizerStub


def register(stub: Stub, spec: v1.JobSpec) -> v1.RegisterJobResponse:
    """Registers a job."""
    return stub.RegisterJob(v1.RegisterJobRequest(job=spec))


def test_defaults_are_filled_in(grpc_stub: Stub, grpc_channel: grpc.Channel) -> None:
    """A job with only the required fields is returned with every default of the contract."""
    target = v1.Target(value=0.5, direction=v1.DIRECTION_HIGHER_IS_BETTER)
    required: dict[str, Any] = {"job_id": "test-defaults", "default_batch_size": 16, "target": target, "gpus": [GPU]}
    response = register(grpc_stub, v1.JobSpec(batch_sizes=[32, 16], **required))
    assert response.created
    assert response.job.spec == v1.JobSpec(
        **required,
        batch_sizes=[16, 32],
        max_epochs=100,
        eta_knob=0.5,
        early_stopping=v1.EarlyStopping(cost_bound=v1.EarlyStopping.CostBound(beta_knob=2.0)),
        trial_lease_seconds=300,
        policy=policy_message("knowledge_gradient", window_size=0),
    )
    assert (response.job.policy_state.WhichOneof("state"), response.job.num_trials) == ("knowledge_gradient", 0)
    assert not response.job.HasField("min_cost")
    known = v1.JobReaderStub(grpc_channel).GetJob(v1.GetJobRequest(job_id=response.job.spec.job_id))
    assert [arm.num_observations for arm in known.details.policy_details.knowledge_gradient.arms] == [0, 0]


@pytest.mark.parametrize("policy", [field.name for field in v1.PolicySpec.DESCRIPTOR.fields])
def test_defaults_of_a_policy_are_filled_in(grpc_stub: Stub, policy: str) -> None:
    """Every parameter has its default, other than a seed, which is random."""
    spec = job_spec()
    set_policy(spec, policy)
    sent = {
        "window_size": 0,
        "num_pruning_rounds": 2,
        "prior_mean": 0.0,
        "prior_precision": 0.0,
        "num_explorations": 2,
        "learn_reward_precision": True,
        "reward_precision": 0.0,
    }
    known = {name: sent[name] for name in PARAMETERS[policy] if name in sent}
    assert register(grpc_stub, spec).job.spec.policy == policy_message(policy, **known)


def test_job_keeps_its_policy_when_the_default_changes(server: LiveServer) -> None:
    """A job of a file from before the default changed keeps its policy, and is confirmed without naming one."""
    spec = job_spec(window_size=2000)
    register(server.trainer, spec)
    server.stop()
    with closing(sqlite3.connect(server.database)) as file:
        # A window that the default policy would refuse: the job's own policy checks it.
        assert file.execute("SELECT policy, window_size FROM jobs").fetchall() == [("pruning_gts", 2000)]
    server.start()
    set_policy(spec, None)
    confirmed = register(server.trainer, spec)
    assert (confirmed.created, policy_name(confirmed.job.spec)) == (False, "pruning_gts")
    set_policy(spec, "knowledge_gradient", window_size=20)
    with refused() as refusal:
        register(server.trainer, spec)
    assert refusal.faults == {"job.policy": "registered pruning_gts, requested knowledge_gradient"}


def test_early_stopping_off_is_kept(grpc_stub: Stub) -> None:
    """A job without early stopping says so in its resolved configuration, and can be confirmed."""
    requested = job_spec(beta_knob="off")
    assert register(grpc_stub, requested).job.spec.early_stopping.WhichOneof("rule") == "off"
    assert not register(grpc_stub, requested).created
    with refused() as refusal:
        register(grpc_stub, job_spec(job_id=requested.job_id))
    assert refusal.faults == {"job.early_stopping": "registered off, requested cost_bound with beta_knob 2.0"}


def test_differences_in_words_of_the_protos(grpc_stub: Stub) -> None:
    """A direction has its name, and a prefix that is not set is unset."""
    requested = job_spec()
    requested.ClearField("job_id_prefix")
    register(grpc_stub, requested)
    requested.job_id_prefix = requested.job_id
    requested.target.direction = v1.DIRECTION_LOWER_IS_BETTER
    with refused() as refusal:
        register(grpc_stub, requested)
    assert refusal.faults == {
        "job.target.direction": "registered DIRECTION_HIGHER_IS_BETTER, requested DIRECTION_LOWER_IS_BETTER",
        "job.job_id_prefix": f"registered unset, requested {requested.job_id}",
    }


UNSET: dict[str, Any] = {"max_epochs": None, "eta_knob": None}
CHANGED = {"max_epochs": 50, "eta_knob": 0.25, "beta_knob": 4.0, "trial_lease_seconds": 60.0, "window_size": 7}
SET = {"max_epochs": 100, "eta_knob": 0.5, "beta_knob": 2.0, "trial_lease_seconds": 300.0, "window_size": 0}
PATHS = {
    "job.max_epochs": "registered 100, requested 50",
    "job.eta_knob": "registered 0.5, requested 0.25",
    "job.early_stopping.cost_bound.beta_knob": "registered 2.0, requested 4.0",
    "job.trial_lease_seconds": "registered 300.0, requested 60.0",
    "job.policy.pruning_gts.window_size": "registered 0, requested 7",
}


def test_defaults_may_change(server: LiveServer) -> None:
    """After a change of defaults, a job keeps its values and is confirmed by the same launches as before.

    A launch that leaves a field unset is also confirmed if the job has the default of today.
    """
    unset = job_spec(**UNSET)
    was_set, ahead = job_spec(**SET), job_spec(**CHANGED)
    kept = register(server.trainer, unset).job.spec
    for spec in (was_set, ahead):
        register(server.trainer, spec)
    assert not register(server.trainer, job_spec(**UNSET, job_id=was_set.job_id)).created
    server.stop()
    with later_defaults(server):
        confirmed = register(server.trainer, unset)
        assert (confirmed.created, confirmed.job.spec) == (False, kept)
        # To set what the job has is the same; to set the new defaults is another job.
        assert not register(server.trainer, job_spec(job_id=unset.job_id, **SET)).created
        for job_id in (unset.job_id, was_set.job_id):
            with refused() as refusal:
                register(server.trainer, job_spec(**CHANGED, job_id=job_id))
            assert refusal.reason == "ERROR_REASON_JOB_DIFFERS"
            assert refusal.faults == PATHS
        for spec in (was_set, ahead):
            assert not register(server.trainer, spec).created
            confirmed = register(server.trainer, job_spec(**UNSET, job_id=spec.job_id))
            assert (confirmed.created, confirmed.job.spec.max_epochs) == (False, spec.max_epochs)
        new = register(server.trainer, job_spec(**UNSET)).job.spec
        assert (new.max_epochs, new.eta_knob, new.policy.pruning_gts.window_size) == (50, 0.25, 7)


@contextmanager
def later_defaults(server: LiveServer) -> Iterator[None]:
    """The server runs as a later version, in which the defaults have changed."""
    folder = server.database.parent / "later"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"from wattwise import rules\nrules.DEFAULTS.update({CHANGED!r})\n")
    before = dict(server.environment)
    server.environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    try:
        server.start()
        yield
    finally:
        server.environment = before


def with_unknown(message: Message, number: int) -> None:
    """Adds a field that no version knows."""
    message.MergeFromString(encoder.TagBytes(number, wire_format.WIRETYPE_VARINT) + b"\x07")


@pytest.mark.parametrize(
    ("part", "path"),
    [
        (lambda spec: spec, "job"),
        (lambda spec: spec.target, "job.target"),
        (lambda spec: spec.gpus[0], "job.gpus[0]"),
        (lambda spec: spec.early_stopping.off, "job.early_stopping.off"),
        (lambda spec: spec.policy, "job.policy"),
        (lambda spec: spec.policy.pruning_gts, "job.policy.pruning_gts"),
    ],
)
def test_unknown_field_of_a_job_is_refused(grpc_stub: Stub, part: Callable[[v1.JobSpec], Message], path: str) -> None:
    """A field of a newer client is named by its message and its number, and nothing is registered."""
    spec = job_spec(beta_knob="off")
    with_unknown(part(spec), 999)
    with refused() as refusal:
        register(grpc_stub, spec)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_JOB_SPEC")
    assert list(refusal.faults) == [path]
    assert "999" in refusal.faults[path]
    spec.DiscardUnknownFields()
    assert register(grpc_stub, spec).created


def test_all_unknown_fields_are_named_at_once(grpc_stub: Stub) -> None:
    """Also several, and a policy that only a newer version has."""
    spec = job_spec()
    set_policy(spec, None)
    with_unknown(spec, 998)
    with_unknown(spec.policy, 999)
    with refused() as refusal:
        register(grpc_stub, spec)
    assert list(refusal.faults) == ["job", "job.policy"]


def test_unknown_field_of_a_new_policy_is_refused(grpc_stub: Stub, grpc_channel: grpc.Channel) -> None:
    """SetJobPolicy refuses it as RegisterJob does, and the policy stays."""
    admin, spec = PeopleStub(grpc_channel), job_spec()
    register(grpc_stub, spec)
    policy = policy_message("gts", window_size=3)
    with_unknown(policy.gts, 999)
    with refused() as refusal:
        admin.SetJobPolicy(v1.SetJobPolicyRequest(job_id=spec.job_id, policy=policy))
    assert (refusal.reason, list(refusal.faults)) == ("ERROR_REASON_INVALID_JOB_SPEC", ["policy.gts"])
    assert policy_name(admin.GetJob(v1.GetJobRequest(job_id=spec.job_id)).job.spec) == "pruning_gts"


def test_unknown_fields_elsewhere_are_ignored(grpc_stub: Stub) -> None:
    """A field of the request beside the job does not matter."""
    request = v1.RegisterJobRequest(job=job_spec())
    with_unknown(request, 999)
    assert grpc_stub.RegisterJob(request).created


WATTS = "job.gpus[0].max_power_watts_per_gpu"
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"batch_sizes": []}, "job.batch_sizes"),
    ({"batch_sizes": [16, 16]}, "job.batch_sizes"),
    ({"batch_sizes": [16, 0]}, "job.batch_sizes"),
    ({"batch_sizes": [16, -8]}, "job.batch_sizes"),
    ({"default_batch_size": 5}, "job.default_batch_size"),
    ({"eta_knob": -0.1}, "job.eta_knob"),
    ({"eta_knob": 1.1}, "job.eta_knob"),
    ({"eta_knob": math.nan}, "job.eta_knob"),
    ({"beta_knob": 0.0}, "job.early_stopping.cost_bound.beta_knob"),
    ({"beta_knob": -1.0}, "job.early_stopping.cost_bound.beta_knob"),
    ({"beta_knob": math.inf}, "job.early_stopping.cost_bound.beta_knob"),
    ({"target_metric": math.nan}, "job.target.value"),
    ({"target_metric": None}, "job.target.value"),
    ({"higher_is_better": None}, "job.target.direction"),
    ({"target": {"value": 0.9, "direction": 77}}, "job.target.direction"),
    ({"gpus": [{"gpu_model": "x", "count": 1, "max_power_watts_per_gpu": 1}] * 2}, "job.gpus"),
    ({"max_epochs": 0}, "job.max_epochs"),
    ({"num_pruning_rounds": -1}, "job.policy.pruning_gts.num_pruning_rounds"),
    ({"num_explorations": -1}, "job.policy.pruning_gts.num_explorations"),
    ({"window_size": -1}, "job.policy.pruning_gts.window_size"),
    ({"prior_precision": -1.0}, "job.policy.pruning_gts.prior_precision"),
    ({"prior_mean": math.inf}, "job.policy.pruning_gts.prior_mean"),
    ({"policy": "gts", "reward_precision": -1.0}, "job.policy.gts.reward_precision"),
    ({"policy": "gts", "learn_reward_precision": False}, "job.policy.gts.reward_precision"),
    ({"policy": "knowledge_gradient", "window_size": 1001}, "job.policy.knowledge_gradient.window_size"),
    ({"trial_lease_seconds": -1.0}, "job.trial_lease_seconds"),
    ({"trial_lease_seconds": 0.9}, "job.trial_lease_seconds"),
    ({"trial_lease_seconds": 1e300}, "job.trial_lease_seconds"),
    ({"gpu": None}, "job.gpus"),
    ({"gpu": v1.GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=0)}, WATTS),
    (
        {"gpu": v1.GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=math.nan)},
        "job.gpus[0].max_power_watts_per_gpu",
    ),
    ({"gpu": v1.GpuGroup(gpu_model="x", count=0, max_power_watts_per_gpu=1.0)}, "job.gpus[0].count"),
    ({"gpu": v1.GpuGroup(count=1, max_power_watts_per_gpu=1)}, "job.gpus[0].gpu_model"),
    ({"job_id_prefix": ""}, "job.job_id_prefix"),
    ({"job_id": "other-1"}, "job.job_id"),
    ({"job_id": "test" + "x" * 200}, "job.job_id"),
    ({"job_id": "test\n1"}, "job.job_id"),
    ({"job_id": "test\x00"}, "job.job_id"),
    ({"job_id": ""}, "job.job_id"),
]


@pytest.mark.parametrize(("changed", "field"), FAULTS, ids=[f"{field} {changed}"[:70] for changed, field in FAULTS])
def test_fault_is_a_violation_of_its_field(grpc_stub: Stub, changed: dict[str, Any], field: str) -> None:
    """Each fault is INVALID_ARGUMENT with one violation, of its field."""
    with refused() as refusal:
        register(grpc_stub, job_spec(**changed))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "ERROR_REASON_INVALID_JOB_SPEC"
    assert list(refusal.faults) == [field]
    assert field in refusal.message


def test_all_faults_are_reported_at_once(grpc_stub: Stub) -> None:
    """A job with several faults is refused once, with a violation per fault."""
    with refused() as refusal:
        wrong = job_spec(batch_sizes=[16, 16, -1], default_batch_size=5, eta_knob=2, max_epochs=0, gpu=None)
        register(grpc_stub, wrong)
    names = ("batch_sizes", "default_batch_size", "eta_knob", "max_epochs", "gpus")
    assert set(refusal.faults) == {f"job.{name}" for name in names}
    assert "(-1, 16)" in refusal.faults["job.default_batch_size"]


def test_missing_job_is_refused(grpc_stub: Stub) -> None:
    """A request without a job has a violation of `job`."""
    with refused() as refusal:
        grpc_stub.RegisterJob(v1.RegisterJobRequest())
    assert list(refusal.faults) == ["job"]


def test_many_faults_fit_into_one_status(grpc_stub: Stub) -> None:
    """A status stays below the trailers' limit of clients; the violations that do not fit are counted."""
    with refused() as refusal:
        register(grpc_stub, job_spec(batch_sizes=[16, *range(-63, 0)]))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert re.match(r"\d+ more ", refusal.faults[""])


def test_other_configuration_lists_every_difference(grpc_stub: Stub) -> None:
    """A known id with another configuration is ALREADY_EXISTS, with both values of each field that differs."""
    spec = job_spec()
    register(grpc_stub, spec)
    changed = v1.JobSpec()
    changed.CopyFrom(spec)
    changed.target.value, changed.gpus[0].count, changed.policy.pruning_gts.seed = 0.95, 2, 5
    with refused() as refusal:
        register(grpc_stub, changed)
    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
    assert refusal.reason == "ERROR_REASON_JOB_DIFFERS"
    assert refusal.faults == {
        "job.target.value": "registered 0.9, requested 0.95",
        "job.gpus[0].count": "registered 1, requested 2",
        "job.policy.pruning_gts.seed": "registered 1, requested 5",
    }
    assert set(refusal.metadata) == {"job_id", "retryable", "call_id"}
    assert refusal.metadata["job_id"] == spec.job_id
    assert all(field in refusal.message for field in refusal.faults)


def test_racing_registrations_create_one_job(grpc_stub: Stub) -> None:
    """Of twenty concurrent registrations of one id, exactly one creates the job."""
    spec = job_spec()
    with ThreadPoolExecutor(20) as pool:
        created = [response.created for response in pool.map(lambda _: register(grpc_stub, spec), range(20))]
    assert sorted(created) == [False] * 19 + [True]


FLOATS = st.one_of(st.none(), st.floats(), st.floats(0, 10))
INTS = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.integers(0, 5))
FLAGS = st.one_of(st.none(), st.booleans())
SEEDS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
SIZES = st.one_of(st.integers(-2, 4), st.integers(-(2**31), 2**31 - 1))
# Required fields are mostly valid, so that the other fields are checked and some jobs are created.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "job_id_prefix": st.one_of(
        st.none(), st.just("any"), st.text(max_size=5), st.text("p", min_size=195, max_size=205)
    ),
    "job_id": st.one_of(st.just("any-1"), st.text(max_size=5)),
    "batch_sizes": st.one_of(st.just([1, 2]), st.lists(SIZES, max_size=4), st.just(range(1, 66))),
    "default_batch_size": st.one_of(st.just(1), SIZES),
    "target": st.builds(v1.Target, value=FLOATS, direction=st.one_of(st.sampled_from([0, 1, 2]), st.integers(3, 9))),
    "max_epochs": INTS,
    "eta_knob": FLOATS,
    "early_stopping": st.one_of(
        st.none(),
        st.just(v1.EarlyStopping()),
        st.just(v1.EarlyStopping(off=v1.EarlyStopping.Off())),
        FLOATS.map(lambda beta: v1.EarlyStopping(cost_bound=v1.EarlyStopping.CostBound(beta_knob=beta))),
    ),
    "gpus": st.lists(
        st.one_of(
            st.just(GPU),
            st.builds(
                v1.GpuGroup,
                gpu_model=st.text(max_size=5),
                count=st.integers(-(2**31), 2**31 - 1),
                max_power_watts_per_gpu=st.floats(),
            ),
        ),
        max_size=2,
    ),
    "trial_lease_seconds": FLOATS,
    "policy": st.one_of(
        st.none(),
        st.builds(
            v1.KnowledgeGradientSpec, window_size=INTS, prior_job_ids=st.lists(st.text(max_size=5), max_size=3)
        ).map(lambda policy: v1.PolicySpec(knowledge_gradient=policy)),
        st.builds(
            v1.PruningGtsSpec,
            num_pruning_rounds=INTS,
            window_size=INTS,
            prior_mean=FLOATS,
            prior_precision=FLOATS,
            num_explorations=INTS,
            seed=SEEDS,
        ).map(lambda policy: v1.PolicySpec(pruning_gts=policy)),
        st.builds(v1.GtsSpec, window_size=INTS, seed=SEEDS, learn_reward_precision=FLAGS, reward_precision=FLOATS).map(
            lambda policy: v1.PolicySpec(gts=policy)
        ),
    ),
}


def test_every_field_of_a_job_is_drawn() -> None:
    """The next test draws each field that a JobSpec has."""
    assert set(FIELDS) == {field.name for field in v1.JobSpec.DESCRIPTOR.fields}


@pytest.mark.thorough
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(FIELDS), st.sets(st.sampled_from(sorted(FIELDS)), max_size=4))
def test_any_job_is_created_or_refused(grpc_stub: Stub, drawn: dict[str, Any], changed: set[str]) -> None:
    """The response to any job is a job, INVALID_ARGUMENT or ALREADY_EXISTS, never another error."""
    mostly_valid = job_spec()
    for name in changed:
        mostly_valid.ClearField(name)  # type: ignore[arg-type]
        mostly_valid.MergeFrom(v1.JobSpec(**{name: drawn[name]}))
    for spec in (v1.JobSpec(**drawn), mostly_valid):
        try:
            known = register(grpc_stub, spec).job.spec
        except grpc.RpcError as error:  # noqa: PERF203 - a refusal is a valid outcome
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS), error  # noqa: PT017
        else:
            assert not register(grpc_stub, known).created, "the resolved configuration confirms the job"


A_YEAR = 365 * 24 * 3600.0


@pytest.mark.parametrize(
    ("name", "first", "inside", "outside"),
    [
        ("num_pruning_rounds", 0, 1, -1),
        ("window_size", 0, 1, -1),
        ("num_explorations", 0, 1, -1),
        ("prior_precision", 0.0, 0.5, -0.001),
        ("reward_precision", 0.0, 0.5, -0.001),
        ("max_epochs", 1, 2, 0),
        ("trial_lease_seconds", 0.0, 1.0, 0.999),
        ("trial_lease_seconds", 0.0, A_YEAR, A_YEAR + 1),
        ("trial_lease_seconds", 0.0, A_YEAR, math.inf),
        ("trial_lease_seconds", 0.0, 1.0, -1.0),
        ("eta_knob", 0.0, 1.0, 1.001),
        ("eta_knob", 0.0, 1.0, -0.001),
        ("beta_knob", 0.001, 1e6, 0.0),
        ("beta_knob", 0.001, 1e6, 1.000001e6),
        ("beta_knob", 0.001, 1e6, math.inf),
        ("target_metric", -1.0, 100.0, math.inf),
        ("prior_mean", -1.0, 1.0, math.nan),
        ("batch_sizes", (16,), tuple(range(1, 65)), tuple(range(1, 66))),
        ("batch_sizes", (16,), (16, 1), (16, 0)),
        ("batch_sizes", (16,), (16, 1), (16, 1, 1)),
        ("default_batch_size", 8, 32, 24),
        ("job_id_prefix", "j", "j", "x"),
        ("job_id", "j", "j" * 200, "j" * 201),
        ("prior_job_ids", (), tuple("abcdefgh"), tuple("abcdefghi")),
        ("prior_job_ids", (), ("a", "b"), ("a", "a")),
        ("prior_job_ids", (), ("a",), ("j",)),
    ],
)
def test_limits_of_a_field(name: str, first: Any, inside: Any, outside: Any) -> None:
    """The last values inside a field's limits are taken as they are; the next one is refused with one violation."""
    policy = {"prior_job_ids": "knowledge_gradient", "reward_precision": "gts"}.get(name, "pruning_gts")
    for value in (first, inside):
        spec = resolve({**draft(policy=policy), name: value})
        assert getattr(spec, name) == (tuple(sorted(value)) if name == "batch_sizes" else value)
    with pytest.raises(InvalidJobSpecError) as refusal:
        resolve({**draft(policy=policy), name: outside})
    field = "job_id" if name == "job_id_prefix" else name
    assert [violation.field for violation in refusal.value.violations] == [f"job.{path_of(field, policy)}"]


@pytest.mark.parametrize(
    ("gpu", "faulty"),
    [
        (GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=0.001), None),
        (GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=0.0), "max_power_watts_per_gpu"),
        (GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=math.inf), "max_power_watts_per_gpu"),
        (GpuGroup(gpu_model="x", count=1, max_power_watts_per_gpu=math.nan), "max_power_watts_per_gpu"),
        (GpuGroup(gpu_model="x", count=0, max_power_watts_per_gpu=1.0), "count"),
        (GpuGroup(gpu_model="", count=1, max_power_watts_per_gpu=1.0), "gpu_model"),
        (GpuGroup(gpu_model="x" * 200, count=1, max_power_watts_per_gpu=1.0), None),
        (GpuGroup(gpu_model="x" * 201, count=1, max_power_watts_per_gpu=1.0), "gpu_model"),
    ],
)
def test_limits_of_the_gpu(gpu: GpuGroup, faulty: str | None) -> None:
    """A GPU has power, a number and a name."""
    if faulty is None:
        assert resolve(draft(gpu=gpu)).gpu == gpu
        return
    with pytest.raises(InvalidJobSpecError) as refusal:
        resolve(draft(gpu=gpu))
    assert [violation.field for violation in refusal.value.violations] == [f"job.gpus[0].{faulty}"]


def test_prefix_is_optional() -> None:
    """Without one, the id may be any; one that is set is the start of the id."""
    fields = {name: value for name, value in draft().items() if name != "job_id_prefix"}
    assert resolve(fields | {"job_id": "any"}).job_id_prefix == ""
    for prefix, field in (("", "job_id_prefix"), ("x", "job_id")):
        with pytest.raises(InvalidJobSpecError) as refusal:
            resolve(fields | {"job_id_prefix": prefix})
        assert [violation.field for violation in refusal.value.violations] == [f"job.{field}"]
    with pytest.raises(InvalidJobSpecError) as refusal:
        resolve({name: value for name, value in fields.items() if name != "job_id"})
    assert [violation.field for violation in refusal.value.violations] == ["job.job_id"]


def test_only_optional_fields_count_as_set() -> None:
    """A required field has no default and is none of those that the client may leave to the server."""
    fields = draft(target_metric=0.7, higher_is_better=False)
    assert {"target_metric", "higher_is_better", "job_id", "gpu"}.isdisjoint(set_fields(fields))
    assert "job_id_prefix" in set_fields(fields)
    assert "job_id_prefix" not in set_fields(draft(job_id_prefix=""))


async def test_registration_takes_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without prior jobs is created, and confirmed, in a single transaction, with and without a policy."""
    site = Site(tmp_path / "store.db")
    await site.open()
    opened: list[str] = []
    transaction = site.store.transaction

    def counted(job_id: str) -> AbstractAsyncContextManager[Transaction]:
        opened.append(job_id)
        return transaction(job_id)

    monkeypatch.setattr(site.store, "transaction", counted)
    without = {name: value for name, value in draft("j2").items() if name not in {"policy", *PARAMETERS["pruning_gts"]}}
    for fields in (draft("j1"), draft("j1"), without, without):
        await site.training.register(fields)
    assert opened == ["j1", "j1", "j2", "j2"]
    await site.close()


def test_identical_is_compared_field_by_field() -> None:
    """Batch sizes in another order are the same job; every field that differs is named with both values."""
    spec = resolve(draft())
    job = Job(spec, POLICIES[spec.policy].register(spec, ()), BEGIN, set_fields=set_fields(draft()))

    def differences(other: JobDraft) -> dict[str, str]:
        try:
            check_identical(job, other)
        except JobDiffersError as error:
            return {each.field: each.description for each in error.violations}
        return {}

    assert not differences(draft(batch_sizes=(32, 8, 16)))
    changed = draft(
        batch_sizes=(16, 8),
        eta_knob=0.5,
        policy="gts",
        seed=7,
        gpu=GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=101.0),
    )
    assert differences(changed) == {
        "job.batch_sizes": "registered [8, 16, 32], requested [8, 16]",
        "job.eta_knob": "registered 1.0, requested 0.5",
        "job.policy": "registered pruning_gts, requested gts",
        "job.gpus[0].max_power_watts_per_gpu": "registered 100.0, requested 101.0",
    }
    for length, shown in ((100, "x" * 100), (101, "x" * 99 + "…")):
        found = differences(draft(gpu=GpuGroup(gpu_model="x" * length, count=1, max_power_watts_per_gpu=100.0)))
        assert found == {"job.gpus[0].gpu_model": f"registered Test GPU, requested {shown}"}
