"""This release's commands, page and trainers on a server of a later release."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import (
    InvalidRequestError,
    NotPossibleNowError,
    PermissionDeniedError,
    ResourceExhaustedError,
    ServerError,
    ServerUnavailableError,
    UnauthenticatedError,
    UnsupportedCallError,
    Violation,
    WattwiseError,
)
from wattwise_replay.own_trials import from_server

from tests.client.commands.conftest import records
from tests.client.commands.test_hostile import COMMANDS, JOB, ended
from tests.client.training.script import StepMonitor, begun, job_spec
from tests.client.training.test_resume import preempted, resumed, trial_of
from tests.hostile.behaviours import reason, refusing
from tests.hostile.server import Behaviour, Call, HostileServer
from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer
from tests.protos.later import LATER, Later, enums_of, everywhere, methods, oneofs_of
from tests.web.page import WebPage, populate
from tests.web.test_hostile import PATHS

READERS = (
    "list --json", f"show {JOB} --json", f"trials {JOB} --json",
    f"trial {JOB} 1 --json", f"savings {JOB} --json",
    f"export {JOB} --format json",
)  # fmt: skip
"""Commands whose output does not change with time."""

LATER_REASON = "ERROR_REASON_LATER"
CLASSES = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotPossibleNowError,
    grpc.StatusCode.ALREADY_EXISTS: NotPossibleNowError,
    grpc.StatusCode.FAILED_PRECONDITION: NotPossibleNowError,
    grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServerUnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedCallError,
    grpc.StatusCode.INTERNAL: ServerError,
    grpc.StatusCode.ABORTED: ServerError,
}
"""The classes of errors for a reason that is newer than this release, by status."""

FIELDS = Later()
VALUES = Later(enums=enums_of(*methods().values()), oneofs=oneofs_of(*methods().values()))


@contextmanager
def later(server: LiveServer, change: Later) -> Iterator[str]:
    """Yields the address of a server whose answers are those of a later release."""
    with HostileServer(Behaviour("a later release", everywhere(change)), server.address) as front:
        yield front.address


@pytest.fixture(scope="module")
def job(grpc_server: LiveServer) -> str:
    """Returns a job with trials that ended in several ways, and one that runs."""
    trainer = Trainer(grpc_server.trainer, job_id=JOB, max_epochs=3)
    for cost in (5_000, 5_100, 4_000):
        trainer.report(trainer.next(), cost, metric=0.95, epoch=1, time=725, monitor=monitor_of("nvml"))
    trainer.report(trainer.next(), 5_000, metric=0.3, epoch=3, time=7_000, monitor=monitor_of("estimate"))
    trainer.end(trainer.next(), v1.END_REASON_ERROR)
    trainer.report(trainer.next(), 100, metric=0.3, epoch=1)
    return JOB


def printed(command: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what an action prints, which must succeed."""
    monkeypatch.setenv("WATTWISE_SERVER", address)
    status, said = ended(command), capsys.readouterr()
    assert (status, said.err) == (0, "")
    return said.out


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("command", READERS)
def test_added_fields_change_no_output(
    grpc_server: LiveServer, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields that this release does not know change nothing in what a command prints."""
    usual = printed(command, grpc_server.address, monkeypatch, capsys)
    with later(grpc_server, FIELDS) as address:
        assert printed(command, address, monkeypatch, capsys) == usual


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_succeed(
    grpc_server: LiveServer, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No value of an enum, no policy and no case of any other choice is too new for a command."""
    with later(grpc_server, VALUES) as address:
        assert printed(command, address, monkeypatch, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("change", [FIELDS, VALUES], ids=["fields", "values"])
def test_page(server: LiveServer, tmp_path: Path, change: Later) -> None:
    """Every page is shown."""
    populate(server.channel, long=12)
    with later(server, change) as address, WebPage(address, tmp_path / "web.log") as page, page.client() as web:
        assert {path: web.get(path).status_code for path in PATHS} == dict.fromkeys(PATHS, 200)
        assert "Traceback" not in page.log.read_text()


def test_unknown_end_reason_follows_the_status(
    grpc_server: LiveServer, job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial that ended for an unknown reason was reached, missed or has failed as its status says."""
    with later(grpc_server, Later(enums=[v1.EndReason.DESCRIPTOR])) as address:
        found = records(printed(f"trials {job} --format tsv", address, monkeypatch, capsys))
    reason = f"end reason {LATER}"
    assert [each["result"] for each in found] == [*["reached"] * 3, f"missed: {reason}", f"failed: {reason}", "running"]


def test_replay_of_unknown_end_reasons_follows_the_status(grpc_server: LiveServer, job: str) -> None:
    """A replay takes such trials as missed or failed, too."""
    with Client(grpc_server.address) as client:
        usual = from_server(client, job)
    with later(grpc_server, Later(enums=[v1.EndReason.DESCRIPTOR])) as address, Client(address) as client:
        assert from_server(client, job) == usual


def test_unknown_warning_is_shown(
    grpc_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning whose reason is unknown is one more warning."""
    trainer = Trainer(grpc_server.trainer)
    (warning,) = trainer.report(trainer.next(), 10.0, metric=0.95).warnings
    with later(grpc_server, Later(enums=[v1.WarningReason.DESCRIPTOR])) as address:
        assert " ".join(warning.message.split()) in " ".join(
            printed(f"show {trainer.job_id}", address, monkeypatch, capsys).split()
        )
        assert f"warning reason {LATER}" in printed(f"trials {trainer.job_id}", address, monkeypatch, capsys)


def _status_unknown(server: LiveServer, state: dict[str, object], bso: BatchSizeOptimizer) -> BatchSizeOptimizer:
    with later(server, Later(enums=[v1.TrialStatus.DESCRIPTOR])) as address:
        again = resumed(address, state, job_id=bso.trial.job_id)
        if not again.training_finished:
            again.on_train_begin()
            again.on_evaluate(0.95)
        return again


def test_resumed_trial_of_unknown_status_goes_on(grpc_server: LiveServer) -> None:
    """A resumed trial whose status is unknown goes on unless the decision is to stop."""
    bso, state = preempted(grpc_server.address, (0.1,))
    again = _status_unknown(grpc_server, state, bso)
    assert again.last_epoch == 2
    assert trial_of(grpc_server.address, bso).end_reason == v1.END_REASON_TARGET_REACHED


def test_resumed_trial_of_unknown_status_is_over(grpc_server: LiveServer) -> None:
    """A decided trial is over at once, as the decision says, whatever its status is."""
    bso, state = preempted(grpc_server.address, (0.95,))
    again = _status_unknown(grpc_server, state, bso)
    assert again.last_epoch == 1
    assert again.decision is not None
    assert again.decision.target_reached


@pytest.mark.parametrize("retryable", [True, False], ids=["retryable", "not retryable"])
@pytest.mark.parametrize(("code", "kind"), CLASSES.items(), ids=[code.name for code in CLASSES])
def test_unknown_error_reason(
    grpc_server: LiveServer, code: grpc.StatusCode, kind: type[WattwiseError], *, retryable: bool
) -> None:
    """An error with an unknown reason has the class of its status, and all that the server said of it."""
    info = reason(LATER_REASON, retryable=retryable, call_id="c1", later="x")
    faults = BadRequest(field_violations=[BadRequest.FieldViolation(field="later_field", description="is wrong")])
    behaviour = Behaviour("x", answers={"GetJob": refusing(code, "no", info, faults)})
    with (
        HostileServer(behaviour, grpc_server.address) as front,
        Client(front.address, retry=False) as client,
        pytest.raises(WattwiseError) as caught,
    ):
        client.get_job(JOB)
    error = caught.value
    assert type(error) is kind
    assert (error.reason, error.call_id, error.retryable) == (LATER_REASON, "c1", retryable)
    assert error.metadata["later"] == "x"
    assert error.violations == (Violation("later_field", "is wrong"),)
    assert "no (call c1)" in str(error)


def test_unknown_retryable_error_is_retried(grpc_server: LiveServer, job: str) -> None:
    """Whether a call is repeated is for the server to say."""
    busy = refusing(grpc.StatusCode.ABORTED, "busy", reason(LATER_REASON, retryable=True))
    tries = 0

    async def once(call: Call) -> Message | bytes:
        nonlocal tries
        tries += 1
        return await (busy(call) if tries == 1 else call.real())

    behaviour = Behaviour("x", answers={"GetJob": once})
    with HostileServer(behaviour, grpc_server.address) as front, Client(front.address) as client:
        assert client.get_job(job).job.spec.job_id == job
    assert tries == 2


REFUSING = [each for each, kind in CLASSES.items() if kind in (InvalidRequestError, NotPossibleNowError)]
"""Statuses with which a server refuses a request that no repetition makes valid."""


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "call"])
@pytest.mark.parametrize("code", REFUSING, ids=[code.name for code in REFUSING])
def test_report_that_is_refused_for_an_unknown_reason(
    grpc_server: LiveServer, code: grpc.StatusCode, *, streams: bool
) -> None:
    """The training learns of it, and the report is not sent again."""
    answer = refusing(code, "no", reason(LATER_REASON))

    async def stream(call: Call) -> AsyncIterator[bytes]:
        if streams:
            await answer(call)
        for _ in ():
            yield b""

    behaviour = Behaviour("x", answers={"ReportResult": answer}, streams={"StreamResults": stream})
    with HostileServer(behaviour, grpc_server.address) as front:
        bso = begun(front.address, job_id=f"test-refused-{code.name}-{streams}")
        with pytest.raises(CLASSES[code]):
            bso.on_evaluate(0.1)
        bso.close()
        calls = [method for method, _ in front.requests].count("ReportResult")
        assert calls in ((0, 1) if streams else (1,))


@pytest.mark.parametrize("code", REFUSING, ids=[code.name for code in REFUSING])
def test_launch_that_is_refused_for_an_unknown_reason(grpc_server: LiveServer, code: grpc.StatusCode) -> None:
    """No fallback hides that a launch was refused."""
    behaviour = Behaviour("x", answers={"GetNextBatchSize": refusing(code, "no", reason(LATER_REASON))})
    spec = job_spec(job_id=f"test-refused-{code.name}")
    with HostileServer(behaviour, grpc_server.address) as front:
        bso = BatchSizeOptimizer(front.address, spec, monitor=StepMonitor(), fallback="default")
        with pytest.raises(CLASSES[code]):
            bso.get_batch_size()
