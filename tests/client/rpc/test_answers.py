"""What the client does with answers that are incomplete, unusable or about something else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from wattwise import Client, v1
from wattwise.errors import InvalidAnswerError, ServerError, ServerUnavailableError
from wattwise.rpc.answers import check_registered, shown

from tests.client.training.script import job_spec
from tests.hostile.behaviours import ESCAPES, reason, refusing, setting
from tests.hostile.server import Answer, Behaviour, Call, HostileServer
from tests.jobs import policy_message
from tests.live_server import LiveServer


def answering(answer: Any) -> Answer:
    """The same answer to every call."""

    async def answered(_call: Call) -> Any:
        return answer

    return answered


TRIAL = v1.TrialId(job_id="test-answers", launch_id="l", trial_number=1)
SAMPLE = v1.PowerSample(
    power_setting=v1.PowerSetting(limit_watts_per_gpu=200), time_seconds=1, energy_joules=100, steps=10
)
CALLS: dict[str, Callable[[Client], object]] = {
    "RegisterJob": lambda client: client.register_job(job_spec()),
    "GetNextBatchSize": lambda client: client.get_next_batch_size("test-answers"),
    "ReportResult": lambda client: client.report_result(
        v1.TrainingResult(trial=TRIAL, measurement=v1.Measurement(metric=0.5))
    ),
    "Heartbeat": lambda client: client.heartbeat(TRIAL),
    "EndTrial": lambda client: client.end_trial(TRIAL, v1.END_REASON_ERROR),
    "ImportTrial": lambda client: client.import_trial(v1.ImportTrialRequest(job_id="test-answers")),
    "ReportPowerProfile": lambda client: client.report_power_profile(TRIAL, [SAMPLE]),
    "GetJob": lambda client: client.get_job("test-answers"),
    "GetTrial": lambda client: client.get_trial(TRIAL),
    "LookupTrial": lambda client: client.lookup_trial("test-answers", "l"),
    "SetJobPaused": lambda client: client.set_job_paused("test-answers", paused=True),
    "WatchJob": lambda client: next(client.watch_job("test-answers")),
}


@pytest.mark.parametrize("method", CALLS)
def test_empty_answer(grpc_server: LiveServer, method: str) -> None:
    """An answer with nothing in it is an error that names the server and the call."""

    async def stream(call: Call) -> Any:
        yield call.empty()

    behaviour = Behaviour("empty", answers={method: answering(b"")}, streams={method: stream})
    with (
        HostileServer(behaviour, grpc_server.address) as server,
        Client(server.address) as client,
        pytest.raises(InvalidAnswerError, match=f"{server.address} gave an invalid answer to {method}"),
    ):
        CALLS[method](client)


@pytest.mark.parametrize(
    "changed",
    [
        {"power_setting": None},
        {"power_setting": v1.PowerSetting()},
        {"power_setting": v1.PowerSetting(limit_watts_per_gpu=math.nan)},
        {"power_setting": v1.PowerSetting(limit_watts_per_gpu=-1)},
        {"power_setting": v1.PowerSetting(limit_watts_per_gpu=math.inf)},
        {"cheapest": None},
        {"cheapest": v1.PowerSample(time_seconds=1, energy_joules=1, steps=1)},
        {"cheapest": v1.PowerSample(power_setting=SAMPLE.power_setting, time_seconds=1, energy_joules=1)},
        {"highest": None},
        {"highest": v1.PowerSample(power_setting=SAMPLE.power_setting, time_seconds=math.nan, steps=1)},
    ],
)
def test_power_limits(grpc_server: LiveServer, changed: dict[str, Any]) -> None:
    """A limit or a sample that is missing, or cannot be computed with, is an invalid answer."""
    complete = {"power_setting": SAMPLE.power_setting, "cheapest": SAMPLE, "highest": SAMPLE}
    answer = v1.AcquirePowerLimitResponse(action=v1.POWER_ACTION_USE_LIMIT, **(complete | changed))
    behaviour = Behaviour("limits", answers={"AcquirePowerLimit": answering(answer)})
    with (
        HostileServer(behaviour, grpc_server.address) as server,
        Client(server.address) as client,
        pytest.raises(InvalidAnswerError, match="AcquirePowerLimit"),
    ):
        client.acquire_power_limit(TRIAL)


def test_trial_of_a_registered_job(grpc_server: LiveServer) -> None:
    """A client that has registered a job refuses a trial with a batch size that the job does not list."""
    change = {"GetNextBatchSize": setting("trial", batch_size=48)}
    with HostileServer(Behaviour("48", change), grpc_server.address) as server, Client(server.address) as client:
        job_id = client.register_job(job_spec()).job.spec.job_id
        with pytest.raises(InvalidAnswerError, match="48, which is not one of 8, 16, 32"):
            client.get_next_batch_size(job_id)


def test_registered_job() -> None:
    """The job of an answer may have another policy and order of batch sizes."""
    sent = v1.JobSpec(job_id="a", batch_sizes=[32, 8], eta_knob=0.5, policy=policy_message("gts"))
    check_registered(
        v1.Job(spec=v1.JobSpec(job_id="a", batch_sizes=[8, 32], eta_knob=0.5, policy=policy_message("pruning_gts"))),
        sent,
    )
    with pytest.raises(InvalidAnswerError, match="eta_knob"):
        check_registered(v1.Job(spec=v1.JobSpec(job_id="a", batch_sizes=[8, 32], eta_knob=0.25)), sent)
    with pytest.raises(InvalidAnswerError, match="batch_sizes"):
        check_registered(v1.Job(spec=v1.JobSpec(job_id="a", eta_knob=0.5)), sent)


def test_lease_of_a_registered_job() -> None:
    """A later server may allow longer leases; what is no time is refused."""
    sent = v1.JobSpec(job_id="a")
    for lease in (0.0, 1.0, 3e9):
        check_registered(v1.Job(spec=v1.JobSpec(job_id="a", trial_lease_seconds=lease)), sent)
    for lease in (-1.0, 0.1, math.nan, math.inf):
        with pytest.raises(InvalidAnswerError, match="lease"):
            check_registered(v1.Job(spec=v1.JobSpec(job_id="a", trial_lease_seconds=lease)), sent)


def test_errors_of_a_server(grpc_server: LiveServer) -> None:
    """An error's texts have no control characters; without a reason of ours a request is not called invalid."""
    foreign = reason("ERROR_REASON_X", call_id=ESCAPES)
    foreign.domain = "another"
    refusal = refusing(grpc.StatusCode.INVALID_ARGUMENT, ESCAPES, foreign)
    with (
        HostileServer(Behaviour("x", answers={"GetJob": refusal}), grpc_server.address) as server,
        Client(server.address) as client,
        pytest.raises(ServerError) as caught,
    ):
        client.get_job("test-answers")
    assert type(caught.value) is ServerError
    assert str(caught.value).isprintable()


def test_retry_of_ten_years(grpc_server: LiveServer) -> None:
    """A call ends at its own deadline, whatever delay an error asks for."""
    details = (
        reason("ERROR_REASON_STORAGE_UNAVAILABLE", retryable=True),
        RetryInfo(retry_delay=Duration(seconds=3 * 10**8)),
    )
    refusal = refusing(grpc.StatusCode.UNAVAILABLE, "later", *details)
    with HostileServer(Behaviour("x", answers={"GetJob": refusal}), grpc_server.address) as server:
        begun = time.monotonic()
        with Client(server.address, timeout=0.3) as client, pytest.raises(ServerUnavailableError):
            client.get_job("test-answers")
        assert time.monotonic() - begun < 60


def test_texts() -> None:
    """A text is cut, and what a terminal does not show is escaped."""
    assert shown("a\x1b[2J\nb\N{RIGHT-TO-LEFT OVERRIDE}é") == "a\\x1b[2J\\nb\\u202eé"
    assert len(shown("x" * 10**6)) < 10_000
