"""The calls as methods."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from wattwise import (
    Client,
    DeadlineError,
    InvalidResultError,
    JobNotFoundError,
    OperationOrderError,
    ServerUnavailableError,
    TrialNotFoundError,
    v1,
)

from tests.client.training.script import job_spec
from tests.live_server import LiveServer


def _registered(client: Client) -> str:
    return client.register_job(job_spec()).job.spec.job_id


def test_registering_twice_confirms(grpc_addr: str) -> None:
    """The first registration creates the job, the second confirms it."""
    spec = job_spec()
    with Client(grpc_addr) as client:
        assert client.register_job(spec).created
        assert not client.register_job(spec).created


def test_job_without_id_is_named_by_the_client(grpc_addr: str) -> None:
    """A job without an id is registered under its prefix and eight hexadecimal digits."""
    with Client(grpc_addr) as client:
        job = client.register_job(job_spec(job_id=None)).job
        assert client.get_job(job.spec.job_id) == job


def test_same_request_is_same_trial(grpc_addr: str) -> None:
    """One request id stands for one trial; without it every call is another."""
    with Client(grpc_addr) as client:
        job_id = _registered(client)
        trials = [client.get_next_batch_size(job_id, request_id=id_).trial for id_ in ("a", "a", None, None)]
    assert [trial.id.trial_number for trial in trials] == [1, 1, 2, 3]


def test_trial_from_dispatch_to_end(grpc_addr: str) -> None:
    """Reports, heartbeats and the end of a trial are one call each."""
    with Client(grpc_addr) as client:
        trial = client.get_next_batch_size(_registered(client)).trial
        result = v1.TrainingResult(trial=trial.id, time_seconds=1, energy_joules=10, metric=0.1, current_epoch=1)
        assert client.report_result(result).cost == 10
        assert not client.heartbeat(trial.id).stop_train
        assert client.end_trial(trial.id, v1.END_REASON_ERROR).status == v1.TRIAL_STATUS_FAILED
        assert [m.metric for m in client.get_trial(trial.id).measurements] == [0.1]


def test_refusals_are_exceptions(grpc_addr: str) -> None:
    """What the server refuses raises the exception of its reason."""
    with Client(grpc_addr) as client:
        trial = client.get_next_batch_size(_registered(client)).trial
        with pytest.raises(InvalidResultError, match="energy_joules"):
            client.report_result(v1.TrainingResult(trial=trial.id, energy_joules=-1, current_epoch=1))
        trial.id.trial_number = 9
        with pytest.raises(TrialNotFoundError):
            client.heartbeat(trial.id)


def test_lists_go_through_all_pages(grpc_addr: str) -> None:
    """Jobs and trials are listed to the end, whatever the size of a page."""
    with Client(grpc_addr) as client:
        ids = [
            client.register_job(job_spec(job_id_prefix="pages", job_id=f"pages-{n}")).job.spec.job_id for n in "12345"
        ]
        assert [job.spec.job_id for job in client.list_jobs(job_id_prefix="pages-", page_size=2)] == ids
        for _ in range(5):
            client.get_next_batch_size(ids[0])
        assert [trial.id.trial_number for trial in client.list_trials(ids[0], page_size=2)] == [1, 2, 3, 4, 5]
        assert not list(client.list_trials(ids[0], status=v1.TRIAL_STATUS_FAILED))
        assert not list(client.list_trials(ids[0], batch_size=8))


def test_watching_a_job(grpc_addr: str) -> None:
    """A watch tells the state now, then every change, and ends when the job is deleted."""
    with Client(grpc_addr) as client:
        job_id = _registered(client)
        states = client.watch_job(job_id)
        assert next(states).num_trials == 0
        client.get_next_batch_size(job_id)
        assert next(states).num_trials == 1
        assert [trial.id.trial_number for trial in client.delete_job(job_id).stopped_trials] == [1]
        with pytest.raises(JobNotFoundError):
            next(states)


def test_watch_outlives_a_restart(server: LiveServer) -> None:
    """A watch goes on when the server is back."""
    with Client(server.address) as client:
        job_id = _registered(client)
        states = client.watch_job(job_id)
        next(states)
        server.kill()
        server.start()
        client.get_next_batch_size(job_id)
        while next(states).num_trials != 1:
            pass


def test_calls_wait_for_a_server_that_comes_back(server: LiveServer) -> None:
    """A call is retried until the server is there."""
    with Client(server.address, timeout=20) as client:
        job_id = _registered(client)
        server.kill()
        found: list[v1.Job] = []
        call = threading.Thread(target=lambda: found.append(client.get_job(job_id)))
        call.start()
        server.start()
        call.join(20)
        assert [job.spec.job_id for job in found] == [job_id]


def test_absent_server_is_named_with_the_cause(server: LiveServer) -> None:
    """Without a server the error names the address and what the connection met, after the time that was given."""
    server.stop()
    before = time.monotonic()
    with Client(server.address) as client, pytest.raises(ServerUnavailableError, match=r"[Rr]efused") as caught:
        client.get_job("test-1", timeout=0.5)
    assert server.address in str(caught.value)
    assert time.monotonic() - before < 2


def test_hung_server_is_given_up_in_time(server: LiveServer) -> None:
    """A server that does not answer is given up at the deadline, and named."""
    with Client(server.address, timeout=0.5) as client:
        job_id = _registered(client)
        os.kill(server.process.pid, signal.SIGSTOP)
        before = time.monotonic()
        with pytest.raises(DeadlineError, match=server.address):
            client.get_job(job_id)
        assert 0.4 < time.monotonic() - before < 2


def test_closed_client_says_so(grpc_addr: str) -> None:
    """A call through a closed client is an error of order."""
    client = Client(grpc_addr)
    client.close()
    client.close()
    with pytest.raises(OperationOrderError, match="closed"):
        client.get_job("test-1")
