"""Dispatching, ending and finding trials over gRPC."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused

Stub = v1.BatchSizeOptimizerStub


def test_unknown_job_is_not_found(grpc_stub: Stub) -> None:
    """Requesting a trial of an unknown job is an error that names the job."""
    with refused() as refusal:
        grpc_stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id="unknown", launch_id=new_id()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "ERROR_REASON_JOB_NOT_FOUND")
    assert refusal.metadata["job_id"] == "unknown"
    assert refusal.metadata["retryable"] == "false"


@pytest.mark.parametrize("change", [{"trial_number": 9}, {"launch_id": "another"}, {"trial_number": -1}])
def test_unknown_trial_is_not_found(grpc_stub: Stub, change: dict[str, int]) -> None:
    """Every method that names a trial refuses a wrong trial number or launch."""
    job = Trainer(grpc_stub)
    trial = job.next()
    for name, value in change.items():
        setattr(trial.id, name, value)
    for call in (job.heartbeat, lambda t: job.report(t, 1.0), lambda t: job.end(t, v1.END_REASON_ERROR)):
        with refused() as refusal:
            call(trial)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "ERROR_REASON_TRIAL_NOT_FOUND")


def test_report_of_unknown_job_is_not_found(grpc_stub: Stub) -> None:
    """A report for an unknown job is NOT_FOUND, whatever it contains."""
    trial = v1.TrialId(job_id="unknown", launch_id="l")
    with refused() as refusal:
        grpc_stub.ReportResult(
            v1.ReportResultRequest(result=v1.TrainingResult(trial=trial, measurement=v1.Measurement(epoch=-5)))
        )
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_missing_parts_are_named(grpc_stub: Stub) -> None:
    """Requests without a result, a trial, a job or a launch have a violation of that field."""
    with refused() as refusal:
        grpc_stub.ReportResult(v1.ReportResultRequest())
    assert list(refusal.faults) == ["result"]
    with refused() as refusal:
        grpc_stub.ReportResult(v1.ReportResultRequest(result=v1.TrainingResult()))
    assert list(refusal.faults) == ["result.trial"]
    with refused() as refusal:
        grpc_stub.Heartbeat(v1.HeartbeatRequest())
    assert list(refusal.faults) == ["trial"]
    with refused() as refusal:
        grpc_stub.EndTrial(v1.EndTrialRequest(trial=v1.TrialId(trial_number=1), end_reason=v1.END_REASON_ERROR))
    assert list(refusal.faults) == ["trial.job_id", "trial.launch_id"]


def test_launch_id_that_is_none_is_refused(grpc_stub: Stub) -> None:
    """A launch id of control characters or beyond 200 characters is refused and dispatches nothing."""
    job = Trainer(grpc_stub)
    for launch_id in ("a\x00b", "x" * 201):
        with refused() as refusal:
            job.next(launch_id)
        assert (refusal.reason, list(refusal.faults)) == ("ERROR_REASON_INVALID_REQUEST", ["launch_id"])
    assert job.next().id.trial_number == 1


def test_same_request_at_once_gives_one_trial(grpc_stub: Stub) -> None:
    """Twenty concurrent calls with one launch id get the same trial."""
    job = Trainer(grpc_stub)
    with ThreadPoolExecutor(20) as pool:
        numbers = {trial.id.trial_number for trial in pool.map(lambda _: job.next("one"), range(20))}
    assert numbers == {1}
    assert job.next("two").id.trial_number == 2


def test_launch_without_a_launch_id_gets_one(grpc_stub: Stub) -> None:
    """So its trial is not taken for another one that has its number after the loss of a database."""
    trainer = Trainer(grpc_stub)
    trial, other = trainer.next(), trainer.next()
    assert trial.id.launch_id != other.id.launch_id
    of_another = v1.Trial(id=trial.id)
    of_another.id.launch_id = other.id.launch_id
    with refused() as refusal:
        trainer.report(of_another, 1.0)
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"


def test_first_answer_is_that_of_a_retry(grpc_stub: Stub) -> None:
    """The answer to a new launch has the trial as a retry gets it, its bound included."""
    job = Trainer(grpc_stub)
    job.run(10.0)
    second = job.next("second")
    assert second.HasField("cost_bound")
    assert second == job.next("second")


def test_launch_ids_belong_to_their_job(grpc_stub: Stub) -> None:
    """The same launch id in two jobs is two requests."""
    first, second = Trainer(grpc_stub), Trainer(grpc_stub)
    assert first.next("same").id.job_id != second.next("same").id.job_id


def test_fifty_trainers_of_one_job(server: LiveServer) -> None:
    """Fifty trainers at once, each for three trials: numbers 1 to 150, each once, and one exploration at a time."""
    job = Trainer(server.trainer, trial_lease_seconds=0)

    def train(worker: int) -> list[int]:
        numbers = []
        for _ in range(3):
            trial = job.next()
            numbers.append(trial.id.trial_number)
            for epoch in (1, 2):
                job.report(trial, 10.0 * epoch + worker / 100, metric=0.5 if epoch == 1 else 0.95, epoch=epoch)
        return numbers

    with ThreadPoolExecutor(50) as pool:
        numbers = [number for mine in pool.map(train, range(50)) for number in mine]
    assert sorted(numbers) == list(range(1, 151))
    listed = list_trials(server, job.job_id)
    assert [trial.id.trial_number for trial in listed] == list(range(1, 151))
    assert {trial.status for trial in listed} == {v1.TRIAL_STATUS_DECIDED}
    explored = [trial for trial in listed if trial.pruning_gts.role == v1.PRUNING_GTS_ROLE_EXPLORATION]
    for before, after in itertools.pairwise(explored):
        assert before.end_time.ToNanoseconds() <= after.start_time.ToNanoseconds()


def test_fifty_trainers_of_fifty_jobs(server: LiveServer) -> None:
    """Fifty concurrent jobs each have their own trials, numbered from 1."""
    stub = server.trainer

    def recur(worker: int) -> tuple[str, list[int]]:
        job = Trainer(stub)
        return job.job_id, [job.run(100.0 + worker).id.trial_number for _ in range(4)]

    with ThreadPoolExecutor(50) as pool:
        done = list(pool.map(recur, range(50)))
    assert len({job_id for job_id, _ in done}) == 50
    assert all(numbers == [1, 2, 3, 4] for _, numbers in done)


def list_trials(server: LiveServer, job_id: str) -> list[v1.Trial]:
    """All trials of a job, through small pages."""
    found: list[v1.Trial] = []
    request = v1.ListTrialsRequest(job_id=job_id, page_size=40)
    while True:
        page = server.admin.ListTrials(request)
        assert len(page.trials) <= 40
        found += page.trials
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
