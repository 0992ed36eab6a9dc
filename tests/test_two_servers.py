"""Two servers on one PostgreSQL, over gRPC: what one of them has promised holds at the other."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer, job_spec, result
from tests.live_server import LiveServer, servers_on
from tests.postgres import PostgresServer
from tests.refusals import refusal_of, refused
from tests.server.fuzz.messages import BASE, BASE_SPEC, VICTIM_SPEC, seeds
from tests.server.fuzz.methods import METHODS
from tests.waiting import wait_until
from tests.watched import WatchedServer

MAX_JOBS = 40
LISTENERS = "application_name = 'wattwise' AND (query LIKE '%pg_notify%' OR query LIKE 'LISTEN%')"

Pair: TypeAlias = Sequence[WatchedServer]


@pytest.fixture(scope="module")
def pair(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers with metrics on one database, with room for few jobs under a prefix."""
    folder, url = tmp_path_factory.mktemp("pair"), postgres_server.create_database()
    with servers_on(folder, url, 2, WatchedServer, "--max-jobs-per-prefix", str(MAX_JOBS)) as servers:
        yield servers


def watch(server: LiveServer, job_id: str) -> Iterator[v1.WatchJobResponse]:
    """The states of a job, for at most 20 seconds."""
    states: Iterator[v1.WatchJobResponse] = server.admin.WatchJob(v1.WatchJobRequest(job_id=job_id), timeout=20)
    return states


async def at_both(pair: Pair, requests: Callable[[Any, int], Sequence[Any]]) -> Sequence[Any]:
    """The answers to the requests of both servers, all sent at once; `requests` gets a stub and its server's place."""
    channels = [grpc.aio.insecure_channel(server.address) for server in pair]
    try:
        stubs = [v1.BatchSizeOptimizerStub(channel) for channel in channels]
        sent = [call for place, stub in enumerate(stubs) for call in requests(stub, place)]
        return await asyncio.gather(*sent, return_exceptions=True)
    finally:
        for channel in channels:
            await channel.close()


async def test_racing_requests_get_dense_numbers(pair: Pair) -> None:
    """A hundred launch ids, each sent to both servers at once: numbers 1 to 100, and both answers are equal."""
    job = Trainer(pair[0].trainer)
    answers = await at_both(
        pair,
        lambda stub, _: [
            stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=f"r{number}"))
            for number in range(100)
        ],
    )
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    for answer in answers:
        # The other server may know a later one.
        answer.trial.ClearField("lease_expire_time")
    assert [answer.trial for answer in answers[:100]] == [answer.trial for answer in answers[100:]]
    assert sorted(answer.trial.id.trial_number for answer in answers[:100]) == list(range(1, 101))


async def test_one_exploration_at_a_time(pair: Pair) -> None:
    """Of launches at both servers at once one explores; after it has ended, one of the next ones does."""
    job = Trainer(pair[0].trainer)
    for turn in range(2):
        answers = await at_both(
            pair,
            lambda stub, _: [
                stub.GetNextBatchSize(v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id()))
                for _ in range(10)
            ],
        )
        exploring = [
            answer.trial for answer in answers if answer.trial.pruning_gts.role == v1.PRUNING_GTS_ROLE_EXPLORATION
        ]
        assert len(exploring) == 1
        Trainer.report(job, exploring[0], 10.0 + turn)


async def test_wave_is_planned_by_both(pair: Pair) -> None:
    """Eight launches at both servers at once get the batch sizes of eight launches at one server in turn."""
    kind = {"policy": "knowledge_gradient", "max_epochs": 50}
    alone = Trainer(pair[0].trainer, **kind)
    planned = [alone.next() for _ in range(8)]
    job = Trainer(pair[0].trainer, **kind)

    def launches(stub: v1.BatchSizeOptimizerStub, _: int) -> list[Any]:
        requests = [v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id()) for _ in range(4)]
        return [stub.GetNextBatchSize(request) for request in requests]

    answers = await at_both(pair, launches)
    wave = sorted((answer.trial for answer in answers), key=lambda trial: trial.id.trial_number)
    assert [trial.id.trial_number for trial in wave] == list(range(1, 9))
    assert [trial.batch_size for trial in wave] == [trial.batch_size for trial in planned]
    assert len({trial.batch_size for trial in wave}) == 3
    results = [v1.ReportResultRequest(result=result(trial, 10.0 * trial.batch_size, epoch=10)) for trial in wave]
    answers = await at_both(
        pair, lambda stub, place: [stub.ReportResult(each) for each in results[4 * place : 4 * place + 4]]
    )
    assert all(answer.decision.target_reached for answer in answers)
    shown, other = (server.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)) for server in pair)
    assert shown == other
    assert [state.num_converged + state.num_not_converged for state in shown.details.batch_size_states] == [1, 6, 1, 0]
    assert [state.num_running for state in shown.details.batch_size_states] == [0] * 4


async def test_job_limit_is_shared(pair: Pair) -> None:
    """Jobs that are registered at both servers at once: as many are created as there is room for, the rest refused."""
    answers = await at_both(
        pair,
        lambda stub, place: [
            stub.RegisterJob(
                v1.RegisterJobRequest(job=job_spec(job_id_prefix="limited", job_id=f"limited-{place}-{number}"))
            )
            for number in range(30)
        ],
    )
    failed = [answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(answers) - len(failed) == MAX_JOBS
    assert set(failed) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for server in pair:
        listed = server.admin.ListJobs(v1.ListJobsRequest(job_id_prefix="limited", page_size=100))
        assert len(listed.jobs) == MAX_JOBS


def test_trial_of_a_job_deleted_elsewhere_is_told_to_stop(pair: Pair) -> None:
    """By the answers to its heartbeat and its report, at the server that did not delete the job."""
    one, other = pair
    job = Trainer(one.trainer)
    trial = job.next()
    job.stub = other.trainer
    assert not job.report(trial, 10.0, metric=0.1).stop_train
    one.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    assert job.heartbeat(trial).stop_train
    assert job.report(trial, 20.0, metric=0.1, epoch=2).stop_train
    with refused() as refusal:
        job.next()
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


@pytest.mark.parametrize("cut", [False, True])
def test_watch_sees_changes_of_the_other_server(pair: Pair, postgres_server: PostgresServer, cut: bool) -> None:
    """Each state is as the other server left it, also when the connections for notices were cut just before."""
    one, other = pair
    job = Trainer(one.trainer)
    states = watch(other, job.job_id)
    assert next(states).job.num_trials == 0
    if cut:
        # They may still be reconnecting after an earlier cut.
        wait_until(lambda: postgres_server.terminate_backends(LISTENERS) > 0)
    for number in (1, 2):
        job.next()
        assert next(states).job.num_trials == number
    one.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
    with refused() as refusal:
        next(states)
    assert refusal.reason == "ERROR_REASON_JOB_NOT_FOUND"


@pytest.mark.parametrize("cut", [False, True])
def test_stop_reaches_a_stream_of_the_other_server(pair: Pair, postgres_server: PostgresServer, cut: bool) -> None:
    """A report at one server lowers the bound, and a trial's stream at the other one gets its stop."""
    one, other = pair
    job = Trainer(one.trainer)
    job.run(100.0)
    slow, fast = job.next(), job.next()
    ended = threading.Event()

    def requests() -> Iterator[v1.StreamResultsRequest]:
        measured = v1.TrainingResult(
            trial=slow.id, measurement=v1.Measurement(time_seconds=1, energy_joules=50, metric=0.5, epoch=1)
        )
        yield v1.StreamResultsRequest(result=measured)
        ended.wait(20)

    decisions = other.trainer.StreamResults(requests(), timeout=20)
    assert not next(decisions).decision.stop_train
    if cut:
        # They may still be reconnecting after an earlier cut.
        wait_until(lambda: postgres_server.terminate_backends(LISTENERS) > 0)
    assert job.report(fast, 20.0).converged
    stop = next(decisions).decision
    ended.set()
    assert (stop.stop_train, stop.cost_bound) == (True, 40.0)
    assert list(decisions) == []


def test_metrics_add_up(pair: Pair) -> None:
    """Counters are of the server that was called and add up; gauges are of the whole database on every server."""

    def total(name: str, **labels: str) -> float:
        return sum(server.figure(name, **labels) for server in pair)

    names = ("jobs_registered", "jobs_deleted", "trials_dispatched", "trials_ended", "energy_joules", "leases_lost")
    Trainer(pair[1].trainer)
    before = {name: total(f"wattwise_{name}_total") for name in names}
    one, other = pair
    job = Trainer(one.trainer)
    first, second = job.next(), job.next()
    job.report(first, 30.0)
    job.stub = other.trainer
    job.stub.RegisterJob(v1.RegisterJobRequest(job=job.spec))
    job.report(first, 30.0)
    job.report(second, 7.0, metric=0.1)
    third = job.next()
    grown = {name: total(f"wattwise_{name}_total") - before[name] for name in names}
    assert grown == {
        "jobs_registered": 1,
        "jobs_deleted": 0,
        "trials_dispatched": 3,
        "trials_ended": 1,
        "energy_joules": 37,
        "leases_lost": 0,
    }
    assert total("wattwise_jobs_registered_total") > one.figure("wattwise_jobs_registered_total") > 0
    job.end(third, v1.END_REASON_ERROR)
    jobs, running = content(one)
    # They are corrected every ten seconds.
    wait_until(lambda: {figures(server) for server in pair} == {(jobs, running)})
    spent = sum(job.summary.spent.cost for job in one.admin.ListJobs(v1.ListJobsRequest(with_summaries=True)).jobs)
    assert spent >= 37
    for server in pair:
        wait_until(lambda server=server: server.figure("wattwise_spent_cost_joules") == pytest.approx(spent))  # type: ignore[misc]


def figures(server: WatchedServer) -> tuple[float, float]:
    """How many jobs and running trials there are, as the metrics say."""
    return server.figure("wattwise_jobs"), server.figure("wattwise_running_trials")


def content(server: LiveServer) -> tuple[int, int]:
    """How many jobs and running trials there are."""
    jobs = server.admin.ListJobs(v1.ListJobsRequest(page_size=1000)).jobs
    running = 0
    for job in jobs:
        request = v1.ListTrialsRequest(job_id=job.job.spec.job_id, statuses=[v1.TRIAL_STATUS_RUNNING], page_size=1000)
        running += len(server.admin.ListTrials(request).trials)
    return len(jobs), running


def fields(kind: Descriptor, types: Collection[int]) -> Iterator[Sequence[FieldDescriptor]]:
    """The ways to all fields of some types in a message."""
    for field in kind.fields:
        if field.type in types:
            yield (field,)
        elif field.message_type is not None:
            yield from ((field, *rest) for rest in fields(field.message_type, types))


def changed(request: Message, way: Sequence[FieldDescriptor], value: object) -> Message:
    """The request with another value in a field; in a repeated one, with one more value."""
    message = type(request)()
    message.CopyFrom(request)
    inner: Any = message
    for field in way[:-1]:
        inner = getattr(inner, field.name)
        if hasattr(inner, "add"):
            inner = inner[0] if inner else inner.add()
    if isinstance(inner, MutableMapping):
        inner[value if way[-1].name == "key" else "key"] = value
        return message
    last = getattr(inner, way[-1].name)
    if hasattr(last, "append"):
        last.append(value)
    else:
        setattr(inner, way[-1].name, value)
    return message


def outcome(server: LiveServer, method: MethodDescriptor, request: Message) -> tuple[Any, ...]:
    """The status of a call with its reason and the fields at fault."""
    call: Any = getattr(server.trainer if hasattr(server.trainer, method.name) else server.admin, method.name)
    sent = iter([request]) if method.client_streaming else request
    try:
        answer = call(sent, timeout=20)
        if method.server_streaming:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        refusal = refusal_of(error)
        return refusal.code, refusal.reason, sorted(refusal.faults)
    return (grpc.StatusCode.OK,)


_EDGES: Mapping[int, Sequence[object]] = {
    FieldDescriptor.TYPE_STRING: ["fuzz\0"],
    FieldDescriptor.TYPE_DOUBLE: [math.nan, math.inf, 5e-324, 1.7e308],
    FieldDescriptor.TYPE_INT32: [2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_INT64: [2**63 - 1, -(2**63)],
}


def test_edges_are_answered_as_by_sqlite(server: LiveServer, postgres_url: str, tmp_path: Path) -> None:
    """Each field of each request with a value at the edge: the same status, reason and faults from both databases."""
    with servers_on(tmp_path, postgres_url, 1, LiveServer) as (other,):
        for each in (server, other):
            for spec in (BASE_SPEC, VICTIM_SPEC):
                each.trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
        begun = v1.GetNextBatchSizeRequest(job_id=BASE, launch_id="begun")
        trial, same = (each.trainer.GetNextBatchSize(begun).trial.id for each in (server, other))
        assert trial == same
        by_type = seeds(trial)
        for method in METHODS:
            for request in by_type[method.input_type.full_name]:
                for way in fields(method.input_type, _EDGES):
                    for value in _EDGES[way[-1].type]:
                        sent = changed(request, way, value)
                        expected = outcome(server, method, sent)
                        assert expected[0] is not grpc.StatusCode.UNAVAILABLE
                        assert outcome(other, method, sent) == expected, (method.name, sent)


@pytest.mark.thorough
def test_outage_is_logged_once(tmp_path: Path) -> None:
    """However often calls and maintenance fail meanwhile: one failed commit, one loss, and all of it goes on again.

    A server that is stopped while the database is away ends with status 0, whether the database refuses connections
    or says nothing, and whatever waits for it.
    """
    with (
        PostgresServer.running() as postgres,
        servers_on(tmp_path, postgres.create_database(), 2, WatchedServer, "--grace-seconds", "1") as (one, other),
    ):
        jobs = [Trainer(one.trainer) for _ in range(3)]
        trials = [job.next() for job in jobs]
        postgres.kill()
        for job, trial in zip(jobs, trials, strict=True):
            with refused() as refusal:
                job.report(trial, 10.0, metric=0.1)
            assert refusal.code is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: bool(one.events("maintenance postponed")))
        # For some more rounds of maintenance, which comes every second.
        until = time.monotonic() + 2.5
        wait_until(lambda: not answers(one, jobs[0], trials[0]) and time.monotonic() > until)
        postgres.start()
        wait_until(lambda: answers(one, jobs[0], trials[0]))
        wait_until(lambda: len(one.events("maintenance resumed")) == len(one.events("maintenance postponed")))
        events = [line["event"] for line in one.lines()]
        for event in ("commit failed", "commits succeed again", "database lost", "database found again"):
            assert events.count(event) == 1, event
        postponed = [line["work"] for line in one.events("maintenance postponed")]
        assert "expire leases" in postponed
        assert len(postponed) == len(set(postponed))
        assert "maintenance failed" not in events
        postgres.suspend()
        try:
            waiting = other.trainer.Heartbeat.future(v1.HeartbeatRequest(trial=trials[0].id), timeout=20)
            assert other.stop() == 0
            assert waiting.exception() is not None
        finally:
            postgres.resume()
        postgres.kill()
        assert one.stop() == 0


def answers(server: LiveServer, job: Trainer, trial: v1.Trial) -> bool:
    """Whether a report succeeds."""
    job.stub = server.trainer
    try:
        job.report(trial, 10.0, metric=0.1)
    except grpc.RpcError:
        return False
    return True
