"""RegisterJob: defaults, violations, and one configuration per id."""

from __future__ import annotations

import math
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wattwise import v1
from wattwise_server.domain import GpuConfig, Job
from wattwise_server.errors import InvalidJobSpecError, JobDiffersError
from wattwise_server.policy.registry import POLICIES
from wattwise_server.usecases.job_spec import check_identical, resolve

from tests.jobs import GPU, job_spec
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.site import BEGIN, draft

Stub = v1.BatchSizeOptimizerStub


def register(stub: Stub, spec: v1.JobSpec) -> v1.RegisterJobResponse:
    """Registers a job."""
    return stub.RegisterJob(v1.RegisterJobRequest(job=spec))


def test_defaults_are_filled_in(grpc_stub: Stub, grpc_channel: grpc.Channel) -> None:
    """A job with only the required fields is returned with every default of the contract."""
    requested = v1.JobSpec(job_id_prefix="test", batch_sizes=[32, 16], default_batch_size=16, gpu=GPU)
    response = register(grpc_stub, requested)
    assert response.created
    spec = response.job.spec
    assert re.fullmatch(r"test-[0-9a-f]{8}", spec.job_id)
    expected = v1.JobSpec(
        job_id=spec.job_id,
        job_id_prefix="test",
        batch_sizes=[16, 32],
        default_batch_size=16,
        eta_knob=0.5,
        beta_knob=2.0,
        disable_early_stopping=False,
        target_metric=0.5,
        higher_is_better_metric=True,
        max_epochs=100,
        num_pruning_rounds=2,
        window_size=0,
        mab_prior_mean=0,
        mab_prior_precision=0,
        mab_num_explorations=2,
        policy=v1.POLICY_KNOWLEDGE_GRADIENT,
        learn_reward_precision=True,
        reward_precision=0,
        gpu=GPU,
        trial_lease_seconds=300,
    )
    assert spec == expected
    assert (response.job.policy_state.WhichOneof("state"), response.job.num_trials) == ("knowledge_gradient", 0)
    assert not response.job.HasField("min_cost")
    known = v1.JobReaderStub(grpc_channel).GetJob(v1.GetJobRequest(job_id=spec.job_id))
    assert [arm.num_observations for arm in known.details.policy_details.knowledge_gradient.arms] == [0, 0]


def test_job_keeps_its_policy_when_the_default_changes(server: LiveServer) -> None:
    """A job of a file from before the default changed keeps its policy, and is confirmed without naming one."""
    spec = job_spec(window_size=2000)
    register(server.trainer, spec)
    server.stop()
    with closing(sqlite3.connect(server.database)) as file:
        # A window that the default policy would refuse: the job's own policy checks it.
        assert file.execute("SELECT policy, window_size FROM jobs").fetchall() == [("PRUNING_GTS", 2000)]
    server.start()
    spec.ClearField("policy")
    confirmed = register(server.trainer, spec)
    assert (confirmed.created, confirmed.job.spec.policy) == (False, v1.POLICY_PRUNING_GTS)
    spec.policy = v1.POLICY_KNOWLEDGE_GRADIENT
    spec.window_size = 20
    with refused() as refusal:
        register(server.trainer, spec)
    assert refusal.metadata["policy"] == "registered PRUNING_GTS, requested KNOWLEDGE_GRADIENT"


def test_early_stopping_off_leaves_beta_unset(grpc_stub: Stub) -> None:
    """A job without early stopping has no beta in its resolved configuration, and can be confirmed."""
    requested = job_spec(disable_early_stopping=True)
    assert not register(grpc_stub, requested).job.spec.HasField("beta_knob")
    assert not register(grpc_stub, requested).created


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"batch_sizes": []}, "job.batch_sizes"),
    ({"batch_sizes": [16, 16]}, "job.batch_sizes"),
    ({"batch_sizes": [16, 0]}, "job.batch_sizes"),
    ({"batch_sizes": [16, -8]}, "job.batch_sizes"),
    ({"default_batch_size": 5}, "job.default_batch_size"),
    ({"eta_knob": -0.1}, "job.eta_knob"),
    ({"eta_knob": 1.1}, "job.eta_knob"),
    ({"eta_knob": math.nan}, "job.eta_knob"),
    ({"beta_knob": 0.0}, "job.beta_knob"),
    ({"beta_knob": -1.0}, "job.beta_knob"),
    ({"beta_knob": math.inf}, "job.beta_knob"),
    ({"beta_knob": 2.0, "disable_early_stopping": True}, "job.beta_knob"),
    ({"target_metric": math.nan}, "job.target_metric"),
    ({"max_epochs": 0}, "job.max_epochs"),
    ({"num_pruning_rounds": -1}, "job.num_pruning_rounds"),
    ({"mab_num_explorations": -1}, "job.mab_num_explorations"),
    ({"window_size": -1}, "job.window_size"),
    ({"mab_prior_precision": -1.0}, "job.mab_prior_precision"),
    ({"mab_prior_mean": math.inf}, "job.mab_prior_mean"),
    ({"reward_precision": -1.0}, "job.reward_precision"),
    ({"policy": "POLICY_GTS", "learn_reward_precision": False}, "job.reward_precision"),
    ({"policy": "POLICY_KNOWLEDGE_GRADIENT", "window_size": 1001}, "job.window_size"),
    ({"policy": 77}, "job.policy"),
    ({"trial_lease_seconds": -1.0}, "job.trial_lease_seconds"),
    ({"trial_lease_seconds": 0.9}, "job.trial_lease_seconds"),
    ({"trial_lease_seconds": 1e300}, "job.trial_lease_seconds"),
    ({"gpu": None}, "job.gpu"),
    ({"gpu": v1.GpuConfig(max_power_watts=0, number_of_gpus=1, gpu_model="x")}, "job.gpu.max_power_watts"),
    ({"gpu": v1.GpuConfig(max_power_watts=math.nan, number_of_gpus=1, gpu_model="x")}, "job.gpu.max_power_watts"),
    ({"gpu": v1.GpuConfig(max_power_watts=1, number_of_gpus=0, gpu_model="x")}, "job.gpu.number_of_gpus"),
    ({"gpu": v1.GpuConfig(max_power_watts=1, number_of_gpus=1)}, "job.gpu.gpu_model"),
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
    names = ("batch_sizes", "default_batch_size", "eta_knob", "max_epochs", "gpu")
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
    changed.target_metric, changed.gpu.number_of_gpus = 0.95, 2
    with refused() as refusal:
        register(grpc_stub, changed)
    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
    assert refusal.reason == "ERROR_REASON_JOB_DIFFERS"
    common = ("job_id", "retryable", "call_id")
    assert {name: value for name, value in refusal.metadata.items() if name not in common} == {
        "target_metric": "registered 0.9, requested 0.95",
        "gpu.number_of_gpus": "registered 1, requested 2",
    }
    assert "target_metric" in refusal.message
    assert "gpu.number_of_gpus" in refusal.message


def test_racing_registrations_create_one_job(grpc_stub: Stub) -> None:
    """Of twenty concurrent registrations of one id, exactly one creates the job."""
    spec = job_spec()
    with ThreadPoolExecutor(20) as pool:
        created = [response.created for response in pool.map(lambda _: register(grpc_stub, spec), range(20))]
    assert sorted(created) == [False] * 19 + [True]


FLOATS = st.one_of(st.none(), st.floats(), st.floats(0, 10))
INTS = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.integers(0, 5))
FLAGS = st.one_of(st.none(), st.booleans())
SIZES = st.one_of(st.integers(-2, 4), st.integers(-(2**31), 2**31 - 1))
# Required fields are mostly valid, so that the other fields are checked and some jobs are created.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "job_id_prefix": st.one_of(st.just("any"), st.text(max_size=5), st.text("p", min_size=195, max_size=205)),
    "job_id": st.one_of(st.none(), st.just("any-1"), st.text(max_size=5)),
    "batch_sizes": st.one_of(st.just([1, 2]), st.lists(SIZES, max_size=4), st.just(range(1, 66))),
    "default_batch_size": st.one_of(st.just(1), SIZES),
    "eta_knob": FLOATS,
    "beta_knob": FLOATS,
    "disable_early_stopping": FLAGS,
    "target_metric": FLOATS,
    "higher_is_better_metric": FLAGS,
    "max_epochs": INTS,
    "num_pruning_rounds": INTS,
    "window_size": INTS,
    "mab_prior_mean": FLOATS,
    "mab_prior_precision": FLOATS,
    "mab_num_explorations": INTS,
    "mab_seed": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    "policy": st.one_of(st.sampled_from(v1.Policy.values()), st.integers(-(2**31), 2**31 - 1)),
    "learn_reward_precision": FLAGS,
    "reward_precision": FLOATS,
    "gpu": st.one_of(
        st.just(GPU),
        st.none(),
        st.builds(
            v1.GpuConfig,
            max_power_watts=st.floats(),
            number_of_gpus=st.integers(-(2**31), 2**31 - 1),
            gpu_model=st.text(max_size=5),
        ),
    ),
    "trial_lease_seconds": FLOATS,
    "prior_job_ids": st.lists(st.text(max_size=5), max_size=3),
}


def test_every_field_of_a_job_is_drawn() -> None:
    """The next test draws each field that a JobSpec has."""
    assert set(FIELDS) == {field.name for field in v1.JobSpec.DESCRIPTOR.fields}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(FIELDS), st.sets(st.sampled_from(sorted(FIELDS)), max_size=4))
def test_any_job_is_created_or_refused(grpc_stub: Stub, drawn: dict[str, Any], changed: set[str]) -> None:
    """The response to any job is a job, INVALID_ARGUMENT or ALREADY_EXISTS, never another error."""
    for spec in (v1.JobSpec(**drawn), job_spec(**{name: drawn[name] for name in changed})):
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
        ("mab_num_explorations", 0, 1, -1),
        ("mab_prior_precision", 0.0, 0.5, -0.001),
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
        ("mab_prior_mean", -1.0, 1.0, math.nan),
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
    policy = {"policy": "KNOWLEDGE_GRADIENT"} if name == "prior_job_ids" else {}
    for value in (first, inside):
        spec = resolve({**draft(**policy), name: value}, "j-new")
        assert getattr(spec, name) == (tuple(sorted(value)) if name == "batch_sizes" else value)
    with pytest.raises(InvalidJobSpecError) as refusal:
        resolve({**draft(**policy), name: outside}, "j-new")
    field = "job_id" if name == "job_id_prefix" else name
    assert [violation.field for violation in refusal.value.violations] == [f"job.{field}"]


@pytest.mark.parametrize(
    ("gpu", "faulty"),
    [
        (GpuConfig(0.001, 1, "x"), None),
        (GpuConfig(0.0, 1, "x"), "max_power_watts"),
        (GpuConfig(math.inf, 1, "x"), "max_power_watts"),
        (GpuConfig(math.nan, 1, "x"), "max_power_watts"),
        (GpuConfig(1.0, 0, "x"), "number_of_gpus"),
        (GpuConfig(1.0, 1, ""), "gpu_model"),
        (GpuConfig(1.0, 1, "x" * 200), None),
        (GpuConfig(1.0, 1, "x" * 201), "gpu_model"),
    ],
)
def test_limits_of_the_gpu(gpu: GpuConfig, faulty: str | None) -> None:
    """A GPU has power, a number and a name."""
    if faulty is None:
        assert resolve(draft(gpu=gpu), "j-new").gpu == gpu
        return
    with pytest.raises(InvalidJobSpecError) as refusal:
        resolve(draft(gpu=gpu), "j-new")
    assert [violation.field for violation in refusal.value.violations] == [f"job.gpu.{faulty}"]


def test_prefix_leaves_room_for_a_generated_id() -> None:
    """A valid prefix of 191 characters may have its ids generated, one of 192 only with an id of its own."""
    fields = {name: value for name, value in draft().items() if name != "job_id"}
    assert resolve(fields | {"job_id_prefix": "p" * 191}, "new").job_id == "new"
    for prefix in ("p" * 192, "p" * 200, "p" * 201, "p\n"):
        with pytest.raises(InvalidJobSpecError) as refusal:
            resolve(fields | {"job_id_prefix": prefix}, "new")
        assert [violation.field for violation in refusal.value.violations] == ["job.job_id_prefix"]
    assert resolve(fields | {"job_id_prefix": "p" * 192, "job_id": "p" * 192}, "new").job_id == "p" * 192


def test_identical_is_compared_field_by_field() -> None:
    """Batch sizes in another order are the same job; every field that differs is named with both values."""
    spec = resolve(draft(), "j-new")
    job = Job(spec, POLICIES[spec.policy].register(spec, ()), BEGIN)
    check_identical(job, resolve(draft(batch_sizes=(32, 8, 16)), "j-new"))
    other = draft(batch_sizes=(16, 8), eta_knob=0.5, policy="GTS", gpu=GpuConfig(101.0, 1, "Test GPU"))
    with pytest.raises(JobDiffersError) as refusal:
        check_identical(job, resolve(other, "j-new"))
    assert refusal.value.metadata == {
        "job_id": "j",
        "batch_sizes": "registered [8, 16, 32], requested [8, 16]",
        "eta_knob": "registered 1.0, requested 0.5",
        "policy": "registered PRUNING_GTS, requested GTS",
        "gpu.max_power_watts": "registered 100.0, requested 101.0",
    }
    for length, shown in ((100, "x" * 100), (101, "x" * 99 + "…")):
        with pytest.raises(JobDiffersError) as refusal:
            check_identical(job, resolve(draft(gpu=GpuConfig(100.0, 1, "x" * length)), "j-new"))
        assert refusal.value.metadata["gpu.gpu_model"] == f"registered Test GPU, requested {shown}"
