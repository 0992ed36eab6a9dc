"""StreamResults: responses, pushes, and ends."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise_server.rpc.streams import TrialStream

from tests.jobs import Trainer, result
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.refusals import refused
from tests.server.site import Site, draft
from tests.watched import WatchedServer


class Stream:
    """A trainer's open stream."""

    def __init__(self, stub: v1.BatchSizeOptimizerStub) -> None:
        self._outbox: queue.SimpleQueue[v1.StreamResultsRequest | None] = queue.SimpleQueue()
        self.answers = stub.StreamResults(iter(self._outbox.get, None), timeout=30)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.answers.cancel()
        self._outbox.put(None)

    def send(self, trial: v1.Trial, cost: float, metric: float = 0.1, epoch: int = 1) -> None:
        """Sends a result."""
        self._outbox.put(v1.StreamResultsRequest(result=result(trial, cost, metric, epoch)))

    def beat(self, trial: v1.Trial) -> None:
        """Sends a heartbeat."""
        self._outbox.put(v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial.id)))

    def send_raw(self, request: v1.StreamResultsRequest) -> None:
        """Sends anything."""
        self._outbox.put(request)

    def close_writes(self) -> None:
        """Says that nothing more will come."""
        self._outbox.put(None)

    def decision(self) -> v1.Decision:
        """The next decision."""
        return next(self.answers).decision


@pytest.fixture
def job(grpc_stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A fresh job."""
    return Trainer(grpc_stub)


@pytest.fixture
def stream(grpc_stub: v1.BatchSizeOptimizerStub) -> Iterator[Stream]:
    """A stream to the shared server."""
    with Stream(grpc_stub) as opened:
        yield opened


def test_every_result_has_its_decision(job: Trainer, stream: Stream) -> None:
    """Decisions come in the order of the results, and heartbeats between them are not answered."""
    trial = job.next()
    for epoch in (1, 2, 3):
        stream.beat(trial)
        stream.send(trial, 10.0 * epoch, epoch=epoch)
    assert [stream.decision().cost for _ in range(3)] == [10.0, 20.0, 30.0]
    stream.send(trial, 40.0, metric=0.95, epoch=4)
    decision = stream.decision()
    assert (decision.stop_train, decision.converged, decision.cost) == (True, True, 40.0)
    stream.send(trial, 99.0, epoch=9)
    assert stream.decision() == decision
    stream.close_writes()
    assert list(stream.answers) == []


def test_stop_is_pushed_when_the_bound_falls(job: Trainer, stream: Stream) -> None:
    """A stop is pushed to a trial that costs more than twice what another has just converged at."""
    job.run(100.0)
    slow, fast = job.next(), job.next()
    stream.send(slow, 50.0)
    assert not stream.decision().stop_train
    job.report(fast, 20.0)
    decision = stream.decision()
    assert (decision.stop_train, decision.converged, decision.cost_bound) == (True, False, 40.0)


def test_stop_is_pushed_when_the_job_is_deleted(job: Trainer, stream: Stream, grpc_channel: grpc.Channel) -> None:
    """Deleting a job stops the trainers of its running trials, on streams and on unary calls."""
    trial = job.next()
    stream.send(trial, 50.0)
    stream.decision()
    gone = PeopleStub(grpc_channel).DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    assert gone.job.spec.job_id == job.job_id
    assert gone.num_stopped_trials == 1
    assert stream.decision().stop_train
    assert job.heartbeat(trial).stop_train
    assert "deleted" in job.report(trial, 60.0, epoch=2).message
    with refused() as refusal:
        job.next()
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


def test_stop_is_pushed_when_the_trial_is_ended_elsewhere(job: Trainer, stream: Stream) -> None:
    """An EndTrial from another process stops the trainer that streams."""
    trial = job.next()
    stream.beat(trial)
    stream.send(trial, 1.0)
    stream.decision()
    job.end(trial, v1.END_REASON_PREEMPTED)
    assert stream.decision().stop_train


def test_heartbeat_of_an_ended_trial_gets_the_stop(job: Trainer, stream: Stream) -> None:
    """A heartbeat for an ended trial is answered with the stop, once."""
    trial = job.next()
    job.end(trial, v1.END_REASON_ERROR)
    stream.beat(trial)
    stream.beat(trial)
    assert stream.decision().stop_train
    stream.close_writes()
    assert list(stream.answers) == []


def test_refused_result_ends_the_stream(job: Trainer, stream: Stream) -> None:
    """An invalid result ends the stream with its violations and changes nothing."""
    trial = job.next()
    stream.send(trial, -1.0)
    with refused() as refusal:
        stream.decision()
    assert (refusal.reason, list(refusal.faults)) == (
        "ERROR_REASON_INVALID_RESULT",
        ["result.measurement.energy_joules"],
    )
    assert not job.report(trial, 1.0, metric=0.1).stop_train


@pytest.mark.parametrize(("number", "name"), [(2, "trial 2"), (0, "the trial")])
def test_stream_is_for_one_trial(job: Trainer, stream: Stream, number: int, name: str) -> None:
    """A message about another trial is refused, with the name that the message gave the trial."""
    first, second = job.next(), job.next()
    stream.send(first, 1.0)
    stream.decision()
    second.id.trial_number = number
    stream.send(second, 1.0)
    with refused() as refusal:
        stream.decision()
    assert refusal.reason == "ERROR_REASON_INVALID_REQUEST"
    assert list(refusal.faults) == ["trial"]
    assert refusal.faults["trial"].startswith(f"{name} of launch {second.id.launch_id!r} of job ")


def test_empty_message_is_refused(stream: Stream) -> None:
    """A message without a result or heartbeat has a violation of `event`."""
    stream.send_raw(v1.StreamResultsRequest())
    with refused() as refusal:
        stream.decision()
    assert list(refusal.faults) == ["event"]


def test_unknown_trial_ends_the_stream(job: Trainer, stream: Stream) -> None:
    """A heartbeat for an unknown trial is NOT_FOUND."""
    trial = job.next()
    trial.id.trial_number = 7
    stream.beat(trial)
    with refused() as refusal:
        stream.decision()
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"


@pytest.mark.parametrize("first", [True, False])
def test_number_of_the_trial_is_optional_in_every_message(job: Trainer, stream: Stream, *, first: bool) -> None:
    """Messages with and without the trial's number are about the same trial; another number is refused."""
    trial = job.next()
    for epoch in (1, 2):
        named = v1.Trial()
        named.CopyFrom(trial)
        if first is (epoch == 1):
            named.id.ClearField("trial_number")
        stream.send(named, 1.0 * epoch, epoch=epoch)
        assert not stream.decision().stop_train
        stream.beat(named)
    trial.id.trial_number = 7
    stream.send(trial, 3.0, epoch=3)
    with refused() as refusal:
        stream.decision()
    assert refusal.reason == "ERROR_REASON_TRIAL_NOT_FOUND"


def test_streams_end_when_the_server_shuts_down(server: LiveServer) -> None:
    """SIGTERM ends open streams and watches with SHUTTING_DOWN, which is retryable; the server exits with 0."""
    job = Trainer(server.trainer)
    trial = job.next()
    watch = server.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id), timeout=30)
    next(watch)
    with Stream(server.trainer) as stream:
        stream.send(trial, 1.0)
        stream.decision()
        assert server.stop() == 0
        with refused() as refusal:
            stream.decision()
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert (refusal.reason, refusal.metadata["retryable"]) == ("ERROR_REASON_SHUTTING_DOWN", "true")
    with refused() as refusal:
        next(watch)
    assert refusal.reason == "ERROR_REASON_SHUTTING_DOWN"


async def test_trainers_that_leave_as_they_are_stopped(server: LiveServer) -> None:
    """Stops that are pushed to streams which are cancelled at that moment leave no traceback in the log."""
    job = Trainer(server.trainer, max_epochs=1_000)
    async with grpc.aio.insecure_channel(server.address) as channel:
        trainer, control = v1.BatchSizeOptimizerStub(channel), v1.JobControlStub(channel)
        streams = []
        for _ in range(30):
            trial = (
                await trainer.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id()))
            ).trial
            streams.append(trainer.StreamResults())
            await streams[-1].write(v1.StreamResultsRequest(result=result(trial, 1.0, 0.1)))
            await streams[-1].read()
        deletion = asyncio.ensure_future(control.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id)))
        for stream in streams:
            stream.cancel()
            await asyncio.sleep(0)
        await deletion
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


class _Left:
    """A call whose trainer has left, so that nothing can be written."""

    def __init__(self) -> None:
        self.tried = asyncio.Event()

    async def write(self, _: object) -> None:
        """Raises what gRPC raises then."""
        self.tried.set()
        raise grpc.aio.InternalError("the call has ended")


async def test_stop_that_cannot_be_pushed(tmp_path: Path) -> None:
    """A stop whose trainer has left when it is written is dropped, and its task ends without an exception."""
    site = Site(tmp_path / "wattwise.db")
    await site.open()
    await site.training.register(draft())
    trial = await site.training.next_trial("j", new_id())
    context: Any = _Left()
    before, pushing = asyncio.all_tasks(), set[asyncio.Task[Any]]()

    async def requests() -> AsyncIterator[v1.StreamResultsRequest]:
        trial_id = v1.TrialId(job_id="j", launch_id=trial.launch_id)
        yield v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial_id))
        pushing.update(asyncio.all_tasks() - before)
        await site.administration.delete_job("j")
        await context.tried.wait()

    await TrialStream(site.training, context).serve(requests())
    await site.close()
    assert [task.exception() for task in pushing] == [None]


def test_refused_stream_is_logged_with_its_trial(watched: WatchedServer) -> None:
    """The log line of a stream names the trial of its first message."""
    key = v1.TrialId(job_id="nobody", launch_id="l", trial_number=3)
    request = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=key))
    with refused():
        list(watched.trainer.StreamResults(iter([request]), metadata=(("x-request-id", "nightly-7"),)))
    (line,) = watched.events("call refused")
    assert (line["method"], line["job"], line["trial"]) == ("StreamResults", "nobody", 3)
    assert line["call_id"] == "nightly-7"
