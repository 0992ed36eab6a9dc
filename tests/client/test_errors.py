"""Exceptions, and the statuses that they come from."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, Decision, EndReason, EstimateMonitor, errors, v1
from wattwise.errors import (
    JobNotFoundError,
    ServerError,
    ServerUnavailableError,
    TrainFailError,
    Violation,
    WattwiseError,
)
from wattwise.rpc.statuses import BY_REASON

from tests.client.training.script import job_spec


def _all_errors() -> list[type[WattwiseError]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, WattwiseError)]


def test_every_reason_has_its_exception() -> None:
    """Every reason that the server can send has an exception."""
    assert set(BY_REASON) == set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}


def test_contract_says_what_to_do_about_every_reason() -> None:
    """The table in the contract's README lists every reason."""
    table = (Path(__file__).parents[2] / "protos/README.md").read_text()
    listed = {f"ERROR_REASON_{name}" for name in re.findall(r"`([A-Z_]+)`", table)}
    assert listed >= set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}


@pytest.mark.parametrize("kind", _all_errors())
def test_errors_survive_pickling(kind: type[WattwiseError]) -> None:
    """A pickled error keeps its type, message and attributes."""
    error = kind("what to do")
    error.reason, error.violations, error.metadata = "SOME_REASON", (Violation("field", "fault"),), {"key": "value"}
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_failure_carries_its_decision_through_pickling() -> None:
    """A pickled TrainFailError keeps its decision."""
    decision = Decision(stop_train=True, message="max epochs reached", end_reason=EndReason.MAX_EPOCHS, cost=12.5)
    error = TrainFailError("training is over", decision)
    assert pickle.loads(pickle.dumps(error)).decision == decision  # noqa: S301 - our own bytes


def test_error_of_the_server(grpc_addr: str) -> None:
    """An error has the server's reason, metadata and message."""
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError, match="test-unknown") as caught:
        client.get_job("test-unknown")
    assert caught.value.reason == "ERROR_REASON_JOB_NOT_FOUND"
    assert caught.value.metadata["job_id"] == "test-unknown"
    assert not caught.value.retryable


_REFUSED = """
import sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec
sizes = dict(batch_sizes=[8, 16], default_batch_size=int(sys.argv[2]))
spec = JobSpec(job_id_prefix="test", job_id="test-refused", **sizes, target_metric=0.9)
BatchSizeOptimizer(sys.argv[1], spec, monitor=EstimateMonitor(watts=65)).get_batch_size()
"""


def test_traceback_ends_with_our_error(grpc_addr: str) -> None:
    """An invalid job, one that differs and a malformed address end a trainer with one traceback, without gRPC's."""

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


_TRAINER = """
import sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor

job = JobSpec(
    job_id_prefix="trace", job_id="trace-job", batch_sizes=[8, 16], default_batch_size=8, target_metric={target},
    max_epochs=1,
)
bso = BatchSizeOptimizer(sys.argv[1], job, monitor=EstimateMonitor(65), timeout=1)


def train(attempt):
    for _ in attempt.epochs():
        attempt.on_evaluate({metric})


{line}
"""


@pytest.mark.parametrize(
    ("error", "line", "values"),
    [
        ("ServerUnavailableError", "bso.get_batch_size()", {"address": "127.0.0.1:1"}),
        pytest.param(
            "ServerUnavailableError",
            "for attempt in bso.attempts(): pass",
            {"address": "127.0.0.1:1"},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "InvalidAddressError", "bso.get_batch_size()", {"address": "http://x"}, marks=pytest.mark.thorough
        ),
        pytest.param(
            "InvalidJobSpecError", "bso.get_batch_size()", {"target": "float('inf')"}, marks=pytest.mark.thorough
        ),
        pytest.param("JobDiffersError", "bso.get_batch_size()", {"target": 0.8}, marks=pytest.mark.thorough),
        ("OperationOrderError", "bso.on_evaluate(0.5)", {}),
        pytest.param("OperationOrderError", "bso.trial", {}, marks=pytest.mark.thorough),
        ("TrainFailError", "for attempt in bso.attempts(max_tries=1): train(attempt)", {}),
        ("MetricTypeError", "for attempt in bso.attempts(): train(attempt)", {"metric": "'x'", "own_lines": 2}),
        ("NoDeviceError", "NvmlMonitor()", {}),
    ],
)
def test_traceback_of_a_trainer(grpc_addr: str, tmp_path: Path, error: str, line: str, values: dict[str, Any]) -> None:
    """The traceback has the trainer's own lines and one of ours, and ends with the message; no cause comes before."""
    script = tmp_path / "trainer.py"

    def run(text: str, address: object) -> str:
        script.write_text(text)
        command = [sys.executable, str(script), str(address)]
        return subprocess.run(command, check=False, capture_output=True, text=True).stderr

    run(_TRAINER.format(target=0.9, metric=0.1, line="bso.get_batch_size()"), grpc_addr)
    settings = {"target": 0.9, "metric": 0.1} | values
    shown = run(_TRAINER.format(line=line, **settings), values.get("address", grpc_addr))
    traceback = shown[shown.index("Traceback") :].splitlines()
    assert traceback[-1].startswith(f"wattwise.errors.{error}: "), shown
    files = [each.split('"')[1] for each in traceback if each.startswith("  File ")]
    assert files[:-1] == [str(script)] * values.get("own_lines", 1), shown
    assert files[-1].endswith("wattwise/errors.py")
    assert "Traceback" not in "\n".join(traceback[1:])


def test_whole_traceback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What a traceback leaves out is logged at level DEBUG: the frames of the error and of its callers."""
    caplog.set_level(logging.DEBUG, "wattwise")
    bso = BatchSizeOptimizer("127.0.0.1:1", job_spec(), monitor=EstimateMonitor(65), timeout=0.2)
    with pytest.raises(ServerUnavailableError):
        bso.get_batch_size()
    assert "connection.py" in caplog.text
    assert "in test_whole_traceback_is_logged" in caplog.text


def test_grpc_error_is_logged(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """GRPC's error is not part of the traceback; it is logged at level DEBUG."""
    caplog.set_level(logging.DEBUG, "wattwise")
    with Client(grpc_addr) as client, pytest.raises(JobNotFoundError) as caught:
        client.get_job("test-unknown")
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)
    assert f"a call to {grpc_addr} failed: <_InactiveRpcError" in caplog.text
    assert "debug_error_string" in caplog.text


def _message(call: Callable[[], object]) -> str:
    with pytest.raises(WattwiseError) as caught:
        call()
    return str(caught.value)


def test_messages_name_no_rpc(grpc_addr: str) -> None:
    """No message names an RPC: Python and the command line use other names."""
    files = (v1.RegisterJobRequest.DESCRIPTOR.file, v1.GetJobRequest.DESCRIPTOR.file)
    calls = [method.name for file in files for service in file.services_by_name.values() for method in service.methods]
    with Client(grpc_addr) as client:
        job_id = client.register_job(job_spec(batch_sizes=[16], max_epochs=1)).job.spec.job_id
        trial = client.get_next_batch_size(job_id).trial.id
        client.end_trial(trial, v1.END_REASON_PREEMPTED)
        messages = [client.heartbeat(trial).message]
        trial = client.get_next_batch_size(job_id).trial.id
        messages.append(
            client.report_result(
                v1.TrainingResult(trial=trial, measurement=v1.Measurement(time_seconds=1, metric=0, epoch=1))
            ).message
        )
        unknown = v1.TrialId(job_id=job_id, trial_number=7)
        messages += [
            _message(lambda: client.get_job("test-unknown")),
            _message(lambda: client.get_next_batch_size("test-unknown")),
            _message(lambda: client.get_next_batch_size(job_id)),
            _message(lambda: client.heartbeat(unknown)),
            _message(lambda: client.heartbeat(v1.TrialId())),
            _message(lambda: client.report_result(v1.TrainingResult())),
            _message(lambda: client.end_trial(unknown, v1.END_REASON_UNSPECIFIED)),
            _message(lambda: next(client.jobs(page_size=-1))),
            _message(lambda: client.register_job(job_spec(job_id=job_id))),
        ]
    assert "GetNextBatchSize" in calls
    assert not [message for message in messages if not message or any(call in message for call in calls)]


def test_internal_error_is_not_retried() -> None:
    """An internal error of the server is not retryable."""
    assert not ServerError("failed", metadata={"retryable": "false"}).retryable
