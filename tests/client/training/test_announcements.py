"""What a launch writes to stderr: its batch size and its decision, and nothing of gRPC's core."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import TrainFailError

from tests.client.training.script import StepMonitor, begun, job_spec
from tests.live_server import LiveServer
from tests.ports import hold_port, port_of
from tests.waiting import wait_until

TRAINER = """
import logging, sys
from tests.client.training.script import StepMonitor, job_spec
from wattwise import BatchSizeOptimizer
from wattwise.errors import TrainFailError
{setup}
job = job_spec(job_id="test-announced", policy="knowledge_gradient", max_epochs=2)
bso = BatchSizeOptimizer(sys.argv[1], job, monitor=StepMonitor(), timeout=1)
metrics = iter({metrics})
try:
    for attempt in bso.attempts(max_tries=2):
        for _ in attempt.epochs():
            attempt.on_evaluate(next(metrics))
except TrainFailError:
    pass
"""
NAMED = "logging.getLogger('wattwise')"


def quiet_environment() -> dict[str, str]:
    """The environment without the verbosity of gRPC, which this process has set."""
    return {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}


def written(address: str, setup: str = "", metrics: Sequence[float] = (0.1, 0.95), **variables: str) -> list[str]:
    """The lines that a trainer writes to stderr."""
    command = [sys.executable, "-c", TRAINER.format(setup=setup, metrics=[*metrics]), address]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet_environment() | variables)
    return done.stderr.splitlines()


def test_launch_prints_its_choice_and_its_decision(server: LiveServer) -> None:
    """A program that configures no logging shows a line with the batch size and one with the decision."""
    choice, decision = written(server.address)
    with Client(server.address) as client:
        (trial,) = client.trials("test-announced")
    assert "batch size 16" in choice
    assert "0.95" in decision
    assert trial.end_reason == v1.END_REASON_TARGET_REACHED


def test_every_attempt_prints_both_lines(server: LiveServer) -> None:
    """Each attempt has one pair of lines, whether it misses, reaches the target or is the last."""
    assert len(written(server.address, metrics=[0.1, 0.1, 0.1, 0.95])) == 4
    assert len(written(server.address, metrics=[0.1] * 4)) == 4


@pytest.mark.parametrize(
    "setup",
    [
        f"{NAMED}.setLevel(logging.WARNING)",
        f"{NAMED}.addHandler(logging.NullHandler())",
        f"{NAMED}.disabled = True",
        f"{NAMED}.addFilter(lambda record: record.levelno > logging.INFO)",
        "logging.disable(logging.INFO)",
        "logging.basicConfig()",
    ],
)
def test_lines_are_silenced_through_logging(server: LiveServer, setup: str) -> None:
    """The level, a handler, a filter and the root logger's configuration silence both lines."""
    assert written(server.address, setup) == []


@pytest.mark.parametrize(
    "setup",
    [
        "logging.basicConfig(level=logging.INFO, format='%(message)s')",
        f"{NAMED}.addHandler(logging.StreamHandler()); {NAMED}.setLevel(logging.INFO)",
    ],
)
def test_configured_program_gets_each_line_once(server: LiveServer, setup: str) -> None:
    """A program that configures logging gets the lines through its own handlers alone."""
    lines = written(server.address, setup)
    assert len(lines) == 2
    assert not any(line.startswith("wattwise: ") for line in lines)


def test_warnings_are_told_from_those_of_other_libraries(server: LiveServer) -> None:
    """Without a configured program, warnings begin with the name of this library as the lines do."""
    lines = written(server.address, metrics=[0.1, 0.1, 0.95])
    assert sum("attempt 1 of" in line for line in lines) == 1
    assert all(line.startswith("wattwise: ") for line in lines)


def decisions(caplog: pytest.LogCaptureFixture, bso: BatchSizeOptimizer) -> list[object]:
    """The arguments of the lines with the decision of a trial."""
    assert bso.decision is not None
    return [record.args for record in caplog.records if bso.decision.message in record.getMessage()]


def test_decision_between_two_epochs_is_announced(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A trial whose job is deleted in the middle of an epoch announces that once, when the loop ends."""
    caplog.set_level(logging.INFO, "wattwise")
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    epochs = bso.epochs()
    next(epochs)
    with Client(grpc_addr) as client:
        client.delete_job(bso.trial.job_id)
    wait_until(lambda: bso.training_finished)
    with pytest.raises(TrainFailError):
        next(epochs)
    assert bso.decision is not None
    assert decisions(caplog, bso) == [(bso.trial.name, bso.decision.message)]


def test_trial_that_was_decided_before_it_resumes(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint of a trial that was decided since announces the decision."""
    with begun(grpc_addr) as first:
        first.on_evaluate(0.1)
        state = first.state_dict()
        first.on_evaluate(0.95)
    caplog.set_level(logging.INFO, "wattwise")
    bso = BatchSizeOptimizer(grpc_addr, job_spec(job_id=first.trial.job_id), monitor=StepMonitor())
    bso.load_state_dict(state)
    bso.get_batch_size()
    assert len(decisions(caplog, bso)) == 1


FAULT = """
import wattwise, grpc
call = grpc.secure_channel("localhost:1", grpc.ssl_channel_credentials(b"no certificate")).unary_unary("/a/b")
try:
    call(b"", timeout=0.1)
except grpc.RpcError:
    pass
"""


@pytest.mark.parametrize(("variables", "writes"), [({}, False), ({"GRPC_VERBOSITY": "ERROR"}, True)])
def test_core_of_grpc_is_silent(variables: dict[str, str], *, writes: bool) -> None:
    """The core of gRPC writes nothing, not even errors, unless GRPC_VERBOSITY is set."""
    command = [sys.executable, "-c", FAULT]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=quiet_environment() | variables)
    assert (".cc:" in done.stderr) == writes


def test_server_that_cannot_be_reached() -> None:
    """A launch without a server writes its own warning and the traceback of its error."""
    with hold_port() as held:
        warning, traceback, *_, error = written(f"127.0.0.1:{port_of(held)}")
    assert "cannot reach" in warning
    assert traceback.startswith("Traceback")
    assert "ServerUnavailableError" in error
