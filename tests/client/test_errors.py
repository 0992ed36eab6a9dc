"""Exceptions and where they come from."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import wattwise
from wattwise import Client, JobNotFoundError, ServerError, TrainFailError, Violation, WattwiseError, v1
from wattwise.rpc.statuses import BY_REASON

from tests.client.training.script import job_spec


def _all_errors() -> list[type[WattwiseError]]:
    values = [getattr(wattwise, name) for name in wattwise.__all__]
    return [value for value in values if isinstance(value, type) and issubclass(value, WattwiseError)]


def test_every_reason_has_its_exception() -> None:
    """Whatever reason the server may give, the client has an exception for it."""
    assert set(BY_REASON) == set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}


def test_contract_says_what_to_do_about_every_reason() -> None:
    """The table in the contract's README has every reason that is ever sent."""
    table = (Path(__file__).parents[2] / "protos/README.md").read_text()
    told = {f"ERROR_REASON_{name}" for name in re.findall(r"`([A-Z_]+)`", table)}
    assert told >= set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}


@pytest.mark.parametrize("kind", _all_errors())
def test_errors_survive_pickling(kind: type[WattwiseError]) -> None:
    """Errors reach the other ranks of a distributed training with all that they carry."""
    error = kind("what to do")
    error.reason, error.violations, error.metadata = "SOME_REASON", (Violation("field", "fault"),), {"key": "value"}
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_failure_carries_its_decision_through_pickling() -> None:
    """The decision of a TrainFailError travels with it."""
    decision = v1.Decision(stop_train=True, message="max epochs reached", cost=12.5)
    error = TrainFailError("training is over", decision)
    assert pickle.loads(pickle.dumps(error)).decision == decision  # noqa: S301 - our own bytes


def test_refusal_carries_what_the_server_said(grpc_addr: str) -> None:
    """Reason, metadata and message are the server's."""
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError, match="test-nobody") as caught:
        client.get_job("test-nobody")
    assert caught.value.reason == "ERROR_REASON_JOB_NOT_FOUND"
    assert caught.value.metadata["job_id"] == "test-nobody"
    assert not caught.value.retryable


_REFUSED = """
import sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec
spec = JobSpec(job_id_prefix="test", job_id="test-refused", batch_sizes=[8, 16], default_batch_size=int(sys.argv[2]))
BatchSizeOptimizer(sys.argv[1], spec, monitor=EstimateMonitor(watts=65)).get_batch_size()
"""


def test_last_words_of_a_refused_trainer_are_ours(grpc_addr: str) -> None:
    """A job with faults, one that differs, and a server that is not there end a trainer with our message alone."""

    def errors(address: str, default: str) -> str:
        command = [sys.executable, "-c", _REFUSED, address, default]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    assert "Traceback" not in errors(grpc_addr, "8")
    refused = {
        "InvalidJobSpecError: ": errors(grpc_addr, "7"),
        "JobDiffersError: ": errors(grpc_addr, "16"),
        "InvalidAddressError: ": errors("nowhere", "8"),
    }
    for name, text in refused.items():
        assert text.count("Traceback") == 1, text
        assert text.splitlines()[-1].startswith(f"wattwise.errors.{name}")
        assert "grpc" not in text.splitlines()[-1]


def test_words_of_grpc_are_kept_for_those_who_look(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """What gRPC raised is no part of a traceback, and is logged at the level DEBUG."""
    caplog.set_level(logging.DEBUG, "wattwise")
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError) as caught:
        client.get_job("test-nobody")
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
    assert f"a call to {grpc_addr} failed: <_InactiveRpcError" in caplog.text
    assert "debug_error_string" in caplog.text


def _said(call: Callable[[], object]) -> str:
    with pytest.raises(WattwiseError) as caught:
        call()
    return str(caught.value)


def test_messages_speak_of_what_a_user_can_do(grpc_addr: str) -> None:
    """No message names a call of the wire contract: in Python and on the command line it is called otherwise."""
    files = (v1.RegisterJobRequest.DESCRIPTOR.file, v1.GetJobRequest.DESCRIPTOR.file)
    calls = [method.name for file in files for service in file.services_by_name.values() for method in service.methods]
    with Client(grpc_addr) as client:
        job_id = client.register_job(job_spec(batch_sizes=[16], max_epochs=1)).job.spec.job_id
        trial = client.get_next_batch_size(job_id).trial.id
        client.end_trial(trial, v1.END_REASON_PREEMPTED)
        messages = [client.heartbeat(trial).message]
        trial = client.get_next_batch_size(job_id).trial.id
        messages.append(client.report_result(v1.TrainingResult(trial=trial, metric=0, current_epoch=1)).message)
        stranger = v1.TrialId(job_id=job_id, batch_size=8, trial_number=7)
        messages += [
            _said(lambda: client.get_job("test-nobody")),
            _said(lambda: client.get_next_batch_size("test-nobody")),
            _said(lambda: client.get_next_batch_size(job_id)),
            _said(lambda: client.heartbeat(stranger)),
            _said(lambda: client.heartbeat(v1.TrialId())),
            _said(lambda: client.report_result(v1.TrainingResult())),
            _said(lambda: client.end_trial(stranger, v1.END_REASON_UNSPECIFIED)),
            _said(lambda: next(client.list_jobs(page_size=-1))),
            _said(lambda: client.register_job(job_spec(job_id=job_id))),
        ]
    assert "GetNextBatchSize" in calls
    assert not [message for message in messages if not message or any(call in message for call in calls)]


def test_bug_of_the_server_is_no_outage() -> None:
    """A failure of the server is not retried."""
    assert not ServerError("failed", metadata={"retryable": "false"}).retryable
