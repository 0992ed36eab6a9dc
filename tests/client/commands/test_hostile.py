"""The commands of `wattwise jobs` against a server whose answers are faulty."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from wattwise import v1
from wattwise.commands.main import main
from wattwise.v1 import job_control_pb2, job_reader_pb2, server_info_pb2

from tests.hostile.behaviours import ESCAPES, VALUES, fill, reason, refusing
from tests.hostile.server import Behaviour, Call, HostileServer
from tests.hostile.trials import peak
from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer

JOB = "test-hostile"
COMMANDS = (
    "list", "list --wide", "list --json", f"show {JOB}", f"show {JOB} --wide", f"show {JOB} --json", f"trials {JOB}",
    f"trials {JOB} --wide", f"trials {JOB} --json", f"trial {JOB} 1", "savings", f"savings {JOB}", "events",
    "events --wide", f"export {JOB} --format json", f"pause {JOB}", f"resume {JOB}", f"ban {JOB} 64",
    f"unban {JOB} 64", f"readmit {JOB} 64", f"baseline {JOB}", f"exclude-trial {JOB} 1", f"include-trial {JOB} 1",
)  # fmt: skip


FILES = (job_reader_pb2, job_control_pb2, server_info_pb2)
SERVICES = [service for file in FILES for service in file.DESCRIPTOR.services_by_name.values()]
METHODS = [method.name for service in SERVICES for method in service.methods]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\N{RIGHT-TO-LEFT OVERRIDE}]")


def nothing(message: Message) -> None:
    """Leaves only the ids of jobs and of trials."""
    for each, _ in message.ListFields():
        if each.name not in ("job", "trial", "spec", "id", "job_id", "trial_number", "batch_size"):
            message.ClearField(each.name)
        elif each.message_type is not None:
            nothing(getattr(message, each.name))


def filling(value: Callable[[FieldDescriptor], Any]) -> Callable[[Message], None]:
    """Sets all fields of a type, except ids, without which an answer is about something else."""
    ids = ("job_id", "launch_id", "trial_number", "batch_size", "next_page_token")
    return lambda answer: fill(answer, lambda each: None if each.name in ids else value(each))


CHANGES: Mapping[str, Callable[[Message], None]] = {
    "nothing": nothing,
    "empty": lambda answer: answer.Clear(),
    **{name: filling(value) for name, value in VALUES.items()},
}


@pytest.fixture(scope="module")
def job(grpc_server: LiveServer) -> str:
    """A job with trials that ended in every way."""
    trainer = Trainer(grpc_server.trainer, job_id=JOB, policy="knowledge_gradient")
    for cost in (5_000, 5_100, 4_000, 5_200):
        trainer.report(trainer.next(), cost, metric=0.95, epoch=3, time=725, monitor=monitor_of("nvml"))
    trainer.report(trainer.next(), 50_000, metric=0.3, epoch=2, time=7_000, monitor=monitor_of("estimate"))
    trainer.end(trainer.next(), v1.END_REASON_OUT_OF_MEMORY)
    trainer.next()
    return JOB


@pytest.fixture(params=CHANGES)
def hostile(
    request: pytest.FixtureRequest, grpc_server: LiveServer, job: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A server in front of the real one that changes all answers."""
    del job
    behaviour = Behaviour(request.param, dict.fromkeys(METHODS, CHANGES[request.param]))
    with HostileServer(behaviour, grpc_server.address) as server:
        monkeypatch.setenv("WATTWISE_SERVER", server.address)
        yield


def ended(command: str) -> int:
    """The exit status of an action."""
    try:
        return main(["jobs", *command.split()])
    except SystemExit as left:
        return int(left.code or 0)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("command", COMMANDS)
def test_answers_that_are_faulty(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a server answers, an action prints it without control characters, or ends with one line on stderr."""
    status = ended(command)
    printed = capsys.readouterr()
    assert CONTROL.search(printed.out + printed.err) is None
    assert status in (0, 1)
    assert printed.err.count("\n") == (1 if status else 0), printed.err


@pytest.mark.parametrize("change", CHANGES)
def test_watch(
    grpc_server: LiveServer, job: str, change: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A watch prints faulty states without control characters, or ends with one line on stderr."""

    async def states(call: Call) -> AsyncIterator[Message]:
        answer = call.empty()
        answer.trials.add(id=v1.TrialId(job_id=job, trial_number=1), reason=ESCAPES)
        CHANGES[change](answer)
        yield answer
        gone = refusing(grpc.StatusCode.NOT_FOUND, ESCAPES, reason("ERROR_REASON_JOB_NOT_FOUND"))
        await gone(call)

    with HostileServer(Behaviour(change, streams={"WatchTrials": states}), grpc_server.address) as server:
        monkeypatch.setenv("WATTWISE_SERVER", server.address)
        assert ended(f"watch {job}") in (0, 1)
    printed = capsys.readouterr()
    assert CONTROL.search(printed.out + printed.err) is None
    assert printed.err.count("\n") <= 1, printed.err


@pytest.mark.soak
def test_watch_without_end(grpc_server: LiveServer, job: str) -> None:
    """A server that names new running trials without end does not fill the memory of a watch."""

    async def trials(call: Call) -> AsyncIterator[Message]:
        for number in itertools.count(1):
            answer = call.empty()
            for each in range(100 * number, 100 * number + 100):
                identity = v1.TrialId(job_id=job, trial_number=each)
                answer.trials.add(id=identity, status=v1.TRIAL_STATUS_RUNNING, reason="x" * 100)
            yield answer

    with HostileServer(Behaviour("trials", streams={"WatchTrials": trials}), grpc_server.address) as server:
        command = [sys.executable, "-m", "wattwise", "jobs", "watch", job, "--server", server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            printed = sum(len(process.stdout.read(2**20)) for _ in range(10))
            megabytes = peak(process.pid)
            process.kill()
    assert printed == 10 * 2**20
    assert megabytes < 120


def test_pages_without_end(
    grpc_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that comes back to an earlier page ends with an error that names the call."""

    async def page(call: Call) -> Message:
        return v1.ListJobsResponse(next_page_token={"a": "b"}.get(call.request.page_token, "a"))

    with HostileServer(Behaviour("a circle", answers={"ListJobs": page}), grpc_server.address) as server:
        monkeypatch.setenv("WATTWISE_SERVER", server.address)
        assert ended("list") == 1
    assert "invalid answer to ListJobs" in capsys.readouterr().err
