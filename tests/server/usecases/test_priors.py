"""Prior jobs over gRPC: what a new job takes from them, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.security.tokens import Role

from tests.credentials import bearing, issue
from tests.jobs import Trainer, job_spec
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.watched import WatchedServer

Stub = v1.BatchSizeOptimizerStub
SIZES = (8, 16, 32, 64)


def kg_spec(**fields: Any) -> v1.JobSpec:
    """A job with a new id and default 16."""
    return job_spec(**({"policy": "knowledge_gradient", "max_epochs": 50} | fields))


def train(stub: Stub, spec: v1.JobSpec, epochs: dict[int, int], launches: int) -> list[int]:
    """Registers a job and runs its launches, whose epochs cost 10 J each; returns the batch sizes."""
    job = Trainer(stub, **{field.name: value for field, value in spec.ListFields()})
    chosen = []
    for _ in range(launches):
        trial = job.next()
        chosen.append(trial.batch_size)
        for epoch in range(1, 51):
            reached = epoch >= epochs[trial.batch_size]
            metric = 0.95 if reached else 0.1
            if job.report(trial, 10.0 * epoch, metric, epoch, time=0.2 * epoch).stop_train:
                break
    return chosen


@pytest.fixture(scope="module")
def prior(grpc_server: LiveServer) -> str:
    """A job for which 64 is the best batch size."""
    spec = kg_spec()
    assert train(grpc_server.trainer, spec, {8: 40, 16: 20, 32: 12, 64: 6}, 8)[-1] == 64
    return spec.job_id


def register(stub: Stub, spec: v1.JobSpec) -> v1.RegisterJobResponse:
    """Registers a job."""
    return stub.RegisterJob(v1.RegisterJobRequest(job=spec))


def next_choice(stub: Stub, job_id: str) -> tuple[int, str]:
    """The next trial's batch size and the reason."""
    answer = stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=new_id()))
    return answer.trial.batch_size, answer.trial.reason


def test_first_trial_is_the_best_of_the_prior(grpc_server: LiveServer, prior: str) -> None:
    """The first launch of a job with a prior has the prior's best batch size, and the reason says so."""
    spec = kg_spec(prior_job_ids=[prior])
    assert register(grpc_server.trainer, spec).job.spec.policy.knowledge_gradient.prior_job_ids == [prior]
    assert next_choice(grpc_server.trainer, spec.job_id) == (64, "the best of the prior jobs is tried first")


def test_prior_of_another_policy(grpc_server: LiveServer) -> None:
    """The prior may have any policy."""
    paper = kg_spec(policy="gts")
    train(grpc_server.trainer, paper, {8: 40, 16: 20, 32: 6, 64: 12}, 10)
    spec = kg_spec(prior_job_ids=[paper.job_id])
    register(grpc_server.trainer, spec)
    assert next_choice(grpc_server.trainer, spec.job_id)[0] == 32


def test_epochs_carry_over_and_costs_do_not(grpc_server: LiveServer, prior: str) -> None:
    """After one trial that costs a thousand times as much, the others' expected costs follow it."""
    spec = kg_spec(prior_job_ids=[prior])
    job = Trainer(grpc_server.trainer, **{field.name: value for field, value in spec.ListFields()})
    job.report(job.next(), 60_000.0, epoch=6)
    states = grpc_server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).details.batch_size_states
    expected = {state.batch_size: state.expected_cost for state in states}
    assert min(expected.values()) > 20_000
    assert expected[8] > 3 * expected[64]


def test_unknown_prior_is_refused(grpc_stub: Stub, prior: str) -> None:
    """All priors that are not registered are named, beside every other fault of the job; nothing is created."""
    spec = kg_spec(prior_job_ids=[prior, "test-unknown", "test-gone"], eta_knob=2)
    with refused() as refusal:
        register(grpc_stub, spec)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_JOB_SPEC")
    assert list(refusal.faults) == ["job.eta_knob", "job.policy.knowledge_gradient.prior_job_ids"]
    assert "'test-unknown', 'test-gone'" in refusal.faults["job.policy.knowledge_gradient.prior_job_ids"]
    spec.policy.knowledge_gradient.ClearField("prior_job_ids")
    spec.eta_knob = 0.5
    assert register(grpc_stub, spec).created


@pytest.mark.parametrize("priors", [["test-{}"] * 2, [f"test-p{number}" for number in range(9)], ["test-own"], ["a\n"]])
def test_malformed_priors_are_refused(grpc_stub: Stub, priors: list[str]) -> None:
    """A prior that is listed twice, too many of them, the job itself and a malformed id are faults of the field."""
    with refused() as refusal:
        register(grpc_stub, kg_spec(job_id="test-own", prior_job_ids=priors))
    assert (refusal.code, list(refusal.faults)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        ["job.policy.knowledge_gradient.prior_job_ids"],
    )


def test_job_that_names_itself_has_one_fault(grpc_stub: Stub) -> None:
    """A new job's own id is not reported as a job that is not registered, too."""
    with refused() as refusal:
        register(grpc_stub, kg_spec(job_id="test-own", prior_job_ids=["test-own"]))
    assert refusal.message.count("prior_job_ids") == 1
    assert "names the job itself" in refusal.faults["job.policy.knowledge_gradient.prior_job_ids"]


def test_misleading_and_useless_priors_are_logged(watched: WatchedServer) -> None:
    """One warning at registration for a prior with another target, and for one that tells the new job nothing."""
    stub, names = watched.trainer, ("best", "loss", "untried", "small", "excluded")
    specs = [
        kg_spec(job_id="test-best"),
        kg_spec(job_id="test-loss", target_metric=0.95, higher_is_better=False),
        kg_spec(job_id="test-untried"),
        kg_spec(job_id="test-small", batch_sizes=[2, 4], default_batch_size=4),
        kg_spec(job_id="test-excluded"),
    ]
    for spec, launches in zip(specs, (1, 1, 0, 1, 1), strict=True):
        train(stub, spec, dict.fromkeys((2, 4, *SIZES), 5), launches)
    bogus = v1.TrialId(job_id="test-excluded", trial_number=1)
    watched.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=bogus, excluded=True))
    new = kg_spec(prior_job_ids=[f"test-{name}" for name in names])
    for _ in range(2):
        register(stub, new)
    (differs,) = watched.events("prior differs")
    assert (differs["level"], differs["job"], differs["prior_job"]) == ("warning", new.job_id, "test-loss")
    assert (differs["target"], differs["prior_target"]) == ("at least 0.9", "at most 0.95")
    unused = watched.events("prior unused")
    assert {(line["level"], line["job"]) for line in unused} == {("warning", new.job_id)}
    assert {line["prior_job"]: line["why"] for line in unused} == {
        "test-untried": "none of its trials was decided",
        "test-small": "no batch size in common",
        "test-excluded": "none of its trials was decided",
    }


def test_deleted_prior_changes_nothing(grpc_server: LiveServer) -> None:
    """A registered job does not miss its priors: it is confirmed, and chooses as one whose prior stays."""
    epochs = {8: 40, 16: 20, 32: 12, 64: 6}
    kept, deleted = kg_spec(), kg_spec()
    for each in (kept, deleted):
        train(grpc_server.trainer, each, epochs, 6)
    here, there = (kg_spec(prior_job_ids=[each.job_id]) for each in (kept, deleted))
    for each in (here, there):
        register(grpc_server.trainer, each)
    grpc_server.admin.DeleteJob(v1.DeleteJobRequest(job_id=deleted.job_id))
    assert not register(grpc_server.trainer, there).created
    chosen = [train(grpc_server.trainer, each, epochs, 8) for each in (here, there)]
    assert chosen[0] == chosen[1]
    assert chosen[0][0] == 64


def test_token_limits_priors(tmp_path: Path) -> None:
    """A token may not name a prior outside its prefix, whether that job exists or not."""
    server, tokens = LiveServer(tmp_path), tmp_path / "server.tokens"
    trainer = bearing(issue(tokens, Role.TRAINER, "team-a-"))
    admin = bearing(issue(tokens, Role.ADMIN, ""))
    try:
        server.start("--tokens", str(tokens))
        for name, whose in (("team-a-old", trainer), ("team-b-old", admin)):
            spec = kg_spec(job_id=name, job_id_prefix=name[:6])
            server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec), metadata=whose)
        for number, other in enumerate(("team-b-old", "team-b-unknown")):
            spec = kg_spec(job_id=f"team-a-{number}", job_id_prefix="team-a", prior_job_ids=["team-a-old", other])
            with refused() as refusal:
                server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec), metadata=trainer)
            assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
            assert refusal.reason == "ERROR_REASON_PERMISSION_DENIED"
            assert repr(other) in refusal.message
        spec = kg_spec(job_id="team-a-new", job_id_prefix="team-a", prior_job_ids=["team-a-old"])
        assert server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec), metadata=trainer).created
    finally:
        server.close()
