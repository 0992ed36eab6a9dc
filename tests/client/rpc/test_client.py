"""Client: its methods, deadlines and retries."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from wattwise import AsyncClient, Client, Credentials, EndReason, v1
from wattwise.errors import (
    DeadlineError,
    InvalidArgumentError,
    InvalidRequestError,
    InvalidResultError,
    JobNotFoundError,
    OperationOrderError,
    ServerUnavailableError,
    TrialNotFoundError,
)
from wattwise.rpc import answers
from wattwise.rpc.calls import AnyEndReason

from tests.client.training.script import job_spec
from tests.example_check import Losing
from tests.live_server import LiveServer


def _registered(client: Client) -> str:
    return client.register_job(job_spec()).job.spec.job_id


def test_registering_twice_confirms(grpc_addr: str) -> None:
    """The first registration creates the job, the second confirms it."""
    spec = job_spec()
    with Client(grpc_addr) as client:
        assert client.register_job(spec).created
        assert not client.register_job(spec).created


def test_same_request_is_same_trial(grpc_addr: str) -> None:
    """Calls with one launch id get one trial; calls without it get different ones."""
    with Client(grpc_addr) as client:
        job_id = _registered(client)
        trials = [client.get_next_batch_size(job_id, launch_id=id_).trial for id_ in ("a", "a", None, None)]
    assert [trial.id.trial_number for trial in trials] == [1, 1, 2, 3]


def test_trial_from_dispatch_to_end(grpc_addr: str) -> None:
    """Report, heartbeat and end of a trial are one call each."""
    with Client(grpc_addr) as client:
        trial = client.get_next_batch_size(_registered(client)).trial
        result = v1.TrainingResult(
            trial=trial.id, measurement=v1.Measurement(time_seconds=1, energy_joules=10, metric=0.1, epoch=1)
        )
        assert client.report_result(result).cost == 10
        assert not client.heartbeat(trial.id).stop_train
        assert client.end_trial(trial.id, v1.END_REASON_ERROR).status == v1.TRIAL_STATUS_FAILED
        assert [m.metric for m in client.measurements(trial.id)] == [0.1]


def test_errors_of_the_server(grpc_addr: str) -> None:
    """An error of the server raises the exception of its reason."""
    with Client(grpc_addr) as client:
        trial = client.get_next_batch_size(_registered(client)).trial
        with pytest.raises(InvalidResultError, match="energy_joules"):
            client.report_result(
                v1.TrainingResult(trial=trial.id, measurement=v1.Measurement(energy_joules=-1, metric=0.1, epoch=1))
            )
        trial.id.trial_number = 9
        with pytest.raises(TrialNotFoundError):
            client.heartbeat(trial.id)


def test_metric_that_is_missing(grpc_addr: str) -> None:
    """A measurement without a metric is refused before it is sent; one of 0 is not."""
    with Client(grpc_addr) as client:
        trial = client.get_next_batch_size(_registered(client)).trial
        with pytest.raises(InvalidResultError) as refusal:
            client.report_result(
                v1.TrainingResult(trial=trial.id, measurement=v1.Measurement(time_seconds=1, energy_joules=1, epoch=1))
            )
        assert ([fault.field for fault in refusal.value.violations], refusal.value.call_id) == (
            ["result.measurement.metric"],
            "",
        )
        request = v1.ImportTrialRequest(job_id=trial.id.job_id, launch_id="r", batch_size=trial.batch_size)
        request.measurements.add(epoch=1, time_seconds=1, metric=0.0)
        request.measurements.add(epoch=2, time_seconds=2)
        with pytest.raises(InvalidRequestError) as invalid:
            client.import_trial(request)
        assert [fault.field for fault in invalid.value.violations] == ["measurements[1].metric"]
        assert invalid.value.reason == "ERROR_REASON_INVALID_REQUEST"
        result = v1.TrainingResult(
            trial=trial.id, measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.0, epoch=1)
        )
        assert not client.report_result(result).stop_train


def test_lists_go_through_all_pages(grpc_addr: str) -> None:
    """Jobs and trials are listed completely, whatever the page size."""
    with Client(grpc_addr) as client:
        ids = [
            client.register_job(job_spec(job_id_prefix="pages", job_id=f"pages-{n}")).job.spec.job_id for n in "12345"
        ]
        assert [row.job.spec.job_id for row in client.jobs(job_id_prefix="pages-", page_size=2)] == ids
        for _ in range(5):
            client.get_next_batch_size(ids[0])
        assert [trial.id.trial_number for trial in client.trials(ids[0], page_size=2)] == [1, 2, 3, 4, 5]
        assert not list(client.trials(ids[0], statuses=[v1.TRIAL_STATUS_FAILED]))
        assert not list(client.trials(ids[0], batch_size=8))


def test_deleting_a_job_by_its_registration(grpc_addr: str) -> None:
    """A job that was registered with the id since is not deleted; without a time, today's job is."""
    with Client(grpc_addr) as client:
        job_id = _registered(client)
        job = client.get_job(job_id).job
        client.delete_job(job_id)
        client.register_job(job.spec)
        with pytest.raises(JobNotFoundError):
            client.delete_job(job_id, create_time=job.create_time)
        assert not client.delete_job(job_id, create_time=job.create_time, allow_missing=True).HasField("job")
        assert client.delete_job(job_id).job.spec.job_id == job_id


def test_deleting_a_job_that_is_registered_meanwhile(grpc_addr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is registered after the client has found none is not deleted."""
    with Client(grpc_addr) as client:
        spec = client.get_job(_registered(client)).job.spec
        client.delete_job(spec.job_id)
        check = answers.check_times

        def registers(answer: Message) -> None:
            check(answer)
            if isinstance(answer, v1.ListJobsResponse):
                monkeypatch.undo()
                client.register_job(spec)

        monkeypatch.setattr(answers, "check_times", registers)
        with pytest.raises(JobNotFoundError) as error:
            client.delete_job(spec.job_id)
        assert (error.value.reason, error.value.metadata["job_id"]) == ("ERROR_REASON_JOB_NOT_FOUND", spec.job_id)
        client.delete_job(spec.job_id)
        monkeypatch.setattr(answers, "check_times", registers)
        assert client.delete_job(spec.job_id, allow_missing=True) == v1.DeleteJobResponse()
        assert client.get_job(spec.job_id).job.spec == spec


def test_watching_a_job(grpc_addr: str) -> None:
    """A watch yields the current state, then every change, and raises when the job is deleted."""
    with Client(grpc_addr) as client:
        job_id = _registered(client)
        states = client.watch_job(job_id)
        assert next(states).job.num_trials == 0
        client.get_next_batch_size(job_id)
        assert next(states).job.num_trials == 1
        assert client.delete_job(job_id).num_stopped_trials == 1
        assert not client.delete_job(job_id, allow_missing=True).HasField("job")
        with pytest.raises(JobNotFoundError):
            next(states)


def test_watch_outlives_a_restart(server: LiveServer) -> None:
    """A watch continues after a restart of the server."""
    with Client(server.address) as client:
        job_id = _registered(client)
        states = client.watch_job(job_id)
        next(states)
        server.kill()
        server.start()
        client.get_next_batch_size(job_id)
        while next(states).job.num_trials != 1:
            pass


def test_calls_wait_for_a_server_that_comes_back(server: LiveServer) -> None:
    """A call is retried until the server is back."""
    with Client(server.address, timeout=20) as client:
        job_id = _registered(client)
        server.kill()
        found: list[v1.Job] = []
        call = threading.Thread(target=lambda: found.append(client.get_job(job_id).job))
        call.start()
        server.start()
        call.join(20)
        assert [job.spec.job_id for job in found] == [job_id]


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_lost_answers_are_asked_for_again(grpc_addr: str, status: grpc.StatusCode) -> None:
    """A call whose answer was lost, or that an overloaded server has cancelled, is made again."""
    losing = Losing(grpc_addr, status)
    with closing(losing), Client(losing.address) as client:
        job_id = _registered(client)
        assert client.get_next_batch_size(job_id).trial.id.trial_number == 1
        assert client.get_job(job_id).job.num_trials == 1
    assert [losing.calls.count(name) for name in ("RegisterJob", "GetNextBatchSize", "GetJob")] == [2, 2, 2]


def test_unreachable_server(server: LiveServer) -> None:
    """If the server is down, the error names the address and the cause, after the timeout of the call."""
    server.stop()
    before = time.monotonic()
    with Client(server.address) as client, pytest.raises(ServerUnavailableError, match=r"[Rr]efused") as caught:
        client.get_job("test-1", timeout=0.5)
    assert server.address in str(caught.value)
    assert time.monotonic() - before < 2


def test_hung_server(server: LiveServer) -> None:
    """A call to a hung server fails at its deadline, with the address."""
    with Client(server.address, timeout=0.5) as client:
        job_id = _registered(client)
        os.kill(server.process.pid, signal.SIGSTOP)
        before = time.monotonic()
        with pytest.raises(DeadlineError, match=server.address):
            client.get_job(job_id)
        assert 0.4 < time.monotonic() - before < 2


def test_closed_client(grpc_addr: str) -> None:
    """A call through a closed client raises OperationOrderError."""
    client = Client(grpc_addr)
    client.close()
    client.close()
    with pytest.raises(OperationOrderError, match="closed"):
        client.get_job("test-1")


def test_end_reasons_as_the_client_has_them(grpc_addr: str) -> None:
    """A call takes an end reason, its string, or the value of the messages; the error for another one names those."""
    with Client(grpc_addr) as client:
        job_id = client.register_job(job_spec()).job.spec.job_id
        ids = [client.get_next_batch_size(job_id).trial.id for _ in range(3)]
        reasons: list[AnyEndReason] = [EndReason.ERROR, "OUT_OF_MEMORY", v1.END_REASON_PREEMPTED]
        for trial, reason in zip(ids, reasons, strict=True):
            client.end_trial(trial, reason)
        found = client.trials(job_id, end_reasons=reasons)
        assert [trial.end_reason for trial in found] == [
            *(v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY, v1.END_REASON_PREEMPTED)
        ]
        for wrong in ("bored", "TARGET_REACHED"):
            with pytest.raises(InvalidArgumentError, match=f"{wrong!r}: use COMPLETED or STOPPED_EARLY or ERROR or "):
                client.end_trial(ids[0], wrong)


def test_names_of_enums(grpc_addr: str) -> None:
    """Lists take the names that their tables have; the error for another one lists them, or says to pass a list."""
    with Client(grpc_addr) as client:
        job_id = client.register_job(job_spec()).job.spec.job_id
        trial = client.get_next_batch_size(job_id).trial.id
        client.end_trial(trial, "ERROR")
        assert [each.id for each in client.trials(job_id, statuses=["FAILED"], end_reasons=["ERROR"])] == [trial]
        assert not list(client.trials(job_id, statuses=["RUNNING", v1.TRIAL_STATUS_DECIDED]))
        assert [each.job.spec.job_id for each in client.jobs(job_id, states=["IDLE"], order="NEWEST")] == [job_id]
        assert [each.trial_number for each in client.events(job_id=job_id, kinds=["TRIAL_FAILED"])] == [1]
        calls: list[tuple[Callable[..., object], dict[str, Any], str]] = [
            (client.trials, {"statuses": ["done"]}, "trial status 'done' is unknown: use RUNNING or DECIDED or "),
            (client.trials, {"end_reasons": ["done"]}, "end reason 'done' is unknown: use TARGET_REACHED or "),
            (client.trials, {"end_reasons": [None]}, "end reason None is unknown"),
            (client.trials, {"end_reasons": "ERROR"}, r"pass a list, end_reasons=\['ERROR'\]"),
            (client.trials, {"statuses": v1.TRIAL_STATUS_FAILED}, r"pass a list, statuses=\[4\]"),
            (client.trials, {"statuses": None}, r"pass a list, statuses=\[...\]"),
            (client.jobs, {"states": ["done"]}, "job state 'done' is unknown: use RUNNING or "),
            (client.jobs, {"order": "age"}, "job order 'age' is unknown: use OLDEST or "),
            (client.events, {"kinds": ["done"]}, "event kind 'done' is unknown: use JOB_REGISTERED or "),
        ]
        for call, options, message in calls:
            with pytest.raises(InvalidArgumentError, match=message):
                call(**options)


def test_errors_about_arguments_name_the_method(grpc_addr: str) -> None:
    """They do not name a class that users do not know."""
    with Client(grpc_addr) as client:
        call: Callable[..., object] = client.get_job
        with pytest.raises(TypeError, match=r"^get_job\(\) missing 1 required positional argument: 'job_id'"):
            call()


@pytest.mark.parametrize("trial", ["test-1", 3, None])
def test_what_is_no_trial(grpc_addr: str, trial: Any) -> None:
    """The error says what names a trial."""
    with Client(grpc_addr) as client:
        for call in (client.heartbeat, client.get_trial, client.measurements):
            with pytest.raises(InvalidArgumentError, match=rf"{trial!r} does not name a trial: pass .*v1\.TrialId\("):
                call(trial)


def test_rows_of_a_list_name_their_trials(grpc_addr: str) -> None:
    """What a list of trials yields can be passed to the calls about a trial."""
    with Client(grpc_addr) as client:
        job = client.register_job(job_spec()).job
        client.get_next_batch_size(job.spec.job_id, launch_id="l")
        (trial,) = client.trials(job.spec.job_id)
        assert client.get_trial(trial).trial == trial
        assert list(client.measurements(trial)) == []


def test_names_of_lists_are_those_of_their_rows(grpc_addr: str) -> None:
    """The error for the name of the call says how the list is called; that for an unknown name says nothing more."""
    with Client(grpc_addr) as client:
        for name in ("jobs", "trials", "measurements", "events", "power_profiles"):
            with pytest.raises(AttributeError, match=rf"no attribute 'list_{name}': use {name}\(\)"):
                getattr(client, f"list_{name}")
        with pytest.raises(AttributeError, match=r"no attribute 'list_dogs'$"):
            client.list_dogs  # type: ignore[attr-defined]  # noqa: B018


def test_client_is_described_without_secrets() -> None:
    """The representation of a client has its address alone."""
    credentials = Credentials(token="secret-token")  # noqa: S106
    for kind in (Client, AsyncClient):
        assert repr(kind("localhost:50051", credentials=credentials)) == f"{kind.__name__}('localhost:50051')"
