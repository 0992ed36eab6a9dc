"""Refusals of requests: one error names the faults of all fields, and says what to do in words of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from wattwise import v1

from tests.jobs import Trainer, result
from tests.people import PeopleStub
from tests.refusals import Refusal, refused

Stub = v1.BatchSizeOptimizerStub

NO_PAGE = "not a page token"


@pytest.fixture
def admin(grpc_channel: grpc.Channel) -> PeopleStub:
    """Reads and changes jobs."""
    return PeopleStub(grpc_channel)


def _faults(call: Callable[[Any], Any], request: Any) -> dict[str, str]:
    with refused() as refusal:
        call(request)
    assert refusal.reason in ("ERROR_REASON_INVALID_REQUEST", "ERROR_REASON_INVALID_JOB_SPEC"), refusal
    return refusal.faults


@pytest.mark.parametrize(
    ("method", "request_", "fields"),
    [
        (
            "ListTrials",
            v1.ListTrialsRequest(statuses=[0, 9], end_reasons=[0, 99], page_token=NO_PAGE, page_size=-1, batch_size=-1),  # type: ignore[list-item]
            "page_size job_id statuses[0] statuses[1] end_reasons[0] end_reasons[1] batch_size page_token",
        ),
        (
            "ListJobs",
            v1.ListJobsRequest(states=[0, 9], order=9, contains="x" * 201, page_token=NO_PAGE, page_size=-1),  # type: ignore[list-item, arg-type]
            "page_size order states[0] states[1] contains page_token",
        ),
        (
            "ListEvents",
            v1.ListEventsRequest(kinds=[0, 999], page_token=NO_PAGE, page_size=-1),  # type: ignore[list-item]
            "page_size page_token kinds[0] kinds[1]",
        ),
        (
            "ListMeasurements",
            v1.ListMeasurementsRequest(page_token=NO_PAGE, page_size=-1),
            "page_size trial page_token",
        ),
        (
            "ListTrialBuckets",
            v1.ListTrialBucketsRequest(page_token=NO_PAGE, page_size=-1, max_ranges=-1),
            "job_id page_size max_ranges page_token",
        ),
        (
            "ListPowerProfiles",
            v1.ListPowerProfilesRequest(page_token=NO_PAGE, page_size=-1),
            "job_id page_size page_token",
        ),
        ("ResetJob", v1.ResetJobRequest(), "job_id request_id"),
        ("RequestBaseline", v1.RequestBaselineRequest(), "job_id request_id"),
        ("ReadmitBatchSize", v1.ReadmitBatchSizeRequest(), "job_id batch_size request_id"),
        ("ReadmitBatchSize", v1.ReadmitBatchSizeRequest(job_id="any"), "batch_size request_id"),
        ("SetBatchSizeBanned", v1.SetBatchSizeBannedRequest(), "job_id batch_size banned"),
        ("SetPinnedBatchSize", v1.SetPinnedBatchSizeRequest(batch_size=0), "job_id batch_size"),
        ("SetJobPaused", v1.SetJobPausedRequest(), "job_id paused"),
        ("SetBaselineEvery", v1.SetBaselineEveryRequest(), "job_id every"),
        ("SetJobPolicy", v1.SetJobPolicyRequest(), "job_id policy"),
        ("SetTrialExcluded", v1.SetTrialExcludedRequest(), "trial excluded"),
        ("GetTrial", v1.GetTrialRequest(trial=v1.TrialId(trial_number=-5)), "trial.job_id trial.trial_number"),
    ],
)
def test_all_faults_of_a_persons_request_at_once(admin: PeopleStub, method: str, request_: Any, fields: str) -> None:
    """A request with several faults is refused with all of them."""
    assert list(_faults(getattr(admin, method), request_)) == fields.split()


def test_all_faults_of_a_trainers_request_at_once(grpc_stub: Stub) -> None:
    """An empty request lists everything that it lacks."""
    assert list(_faults(grpc_stub.GetNextBatchSize, v1.GetNextBatchSizeRequest())) == ["job_id", "launch_id"]
    ended = _faults(grpc_stub.EndTrial, v1.EndTrialRequest())
    assert list(ended) == ["trial", "end_reason"]
    assert ended["end_reason"].startswith("is not set")
    assert list(_faults(grpc_stub.ImportTrial, v1.ImportTrialRequest())) == ["job_id", "launch_id"]
    spec = _faults(grpc_stub.RegisterJob, v1.RegisterJobRequest(job=v1.JobSpec()))
    assert spec["job.default_batch_size"] == "is not set; use one of batch_sizes"


def test_number_that_is_not_set(grpc_stub: Stub) -> None:
    """A required number that a report leaves out is said to be not set."""
    job = Trainer(grpc_stub)
    sent = result(job.next(), 1.0, 0.5)
    sent.measurement.ClearField("time_seconds")
    sent.measurement.computed.SetInParent()
    with refused() as refusal:
        grpc_stub.ReportResult(v1.ReportResultRequest(result=sent))
    where = "result.measurement."
    for name in ("time_seconds", "computed.time_seconds", "computed.power_setting.limit_watts_per_gpu"):
        assert refusal.faults[where + name].startswith("is not set")


def test_import_without_an_end(grpc_stub: Stub) -> None:
    """An import that needs an end reason says whether it is not set, or which one cannot be."""
    job = Trainer(grpc_stub)
    request = v1.ImportTrialRequest(job_id=job.job_id, launch_id="l", batch_size=16)
    assert _faults(grpc_stub.ImportTrial, request)["end_reason"].startswith("is not set, and the measurements")
    request.end_reason = v1.END_REASON_TARGET_REACHED
    assert _faults(grpc_stub.ImportTrial, request)["end_reason"].startswith("is END_REASON_TARGET_REACHED, and")


def _missing(call: Callable[[Any], Any], request: Any) -> Refusal:
    with refused() as refusal:
        call(request)
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"
    return refusal


def test_only_trainers_are_to_register_a_missing_job(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Who reads or deletes a job is told how to list jobs; only who would train it, to register it."""
    for call, request in (
        (admin.GetJob, v1.GetJobRequest(job_id="ghost")),
        (admin.DeleteJob, v1.DeleteJobRequest(job_id="ghost")),
    ):
        message = _missing(call, request).message
        assert "no job has the id 'ghost'; `wattwise jobs list`" in message
        assert "register" not in message
    launch = v1.GetNextBatchSizeRequest(job_id="ghost", launch_id="l")
    assert "register it first" in _missing(grpc_stub.GetNextBatchSize, launch).message


def test_only_a_resume_is_to_omit_resume(grpc_stub: Stub) -> None:
    """Calls without the field do not mention it."""
    job = Trainer(grpc_stub)
    with refused() as refusal:
        grpc_stub.LookupTrial(v1.LookupTrialRequest(job_id=job.job_id, launch_id="ghost"))
    assert (refusal.reason, "resume" in refusal.message) == ("ERROR_REASON_TRIAL_NOT_FOUND", False)
    with refused() as refusal:
        job.next("ghost", resume=True)
    assert "omit resume" in refusal.message


def test_trial_from_before_a_reset(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Excluding a trial that does not count changes nothing; including it is not possible, for good."""
    job = Trainer(grpc_stub)
    job.run(10.0)
    admin.ResetJob(v1.ResetJobRequest(job_id=job.job_id, request_id="r"))
    trial = v1.TrialId(job_id=job.job_id, trial_number=1)
    before = admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job
    answer = admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial, excluded=True))
    assert (answer.trial.excluded, answer.job) == (False, before)
    with refused() as refusal:
        admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial, excluded=False))
    assert refusal.reason == "ERROR_REASON_NOT_POSSIBLE_NOW"
    assert "trial 1 cannot count again" in refusal.message


def test_messages_of_ends(grpc_stub: Stub, admin: PeopleStub) -> None:
    """Whole names of end reasons, and events of one trial in the singular."""
    job = Trainer(grpc_stub)
    trial = job.next()
    job.end(trial, v1.END_REASON_PREEMPTED)
    assert " was preempted; " in job.heartbeat(trial).message
    admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    events = admin.ListEvents(v1.ListEventsRequest(job_id=job.job_id, kinds=[v1.EVENT_KIND_JOB_DELETED])).events
    assert events[0].message == "deleted with its trial; running ones that were stopped: 0"
