"""Very many streams, and clients that vanish: their resources are freed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.faults.memory import resident
from tests.faults.soak import number, quiet
from tests.faults.streamers import streaming
from tests.faults.victim import Victim
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough

STREAMS = 40
STREAM_KILOBYTES, CONNECTION_KILOBYTES, MILLISECONDS = 45.0, 80.0, 100.0
FLAT_MEGABYTES = 8.0
"""Far below a kilobyte per stream in a soak; a bare gRPC server keeps a little memory per stream, too."""

CLIENT = """
import sys
import time
import uuid
import grpc
from wattwise import v1

address, job_id, number = sys.argv[1:]
stub = v1.BatchSizeOptimizerStub(grpc.insecure_channel(address))


def heartbeats(trial):
    yield v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial.id))
    measured = v1.Measurement(epoch=1, time_seconds=1, energy_joules=1, metric=0.1)
    result = v1.TrainingResult(trial=trial.id, measurement=measured)
    yield v1.StreamResultsRequest(result=result)
    time.sleep(3600)


streams = []
for _ in range(int(number)):
    request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=uuid.uuid4().hex)
    trial = stub.GetNextBatchSize(request).trial
    streams.append(stub.StreamResults(heartbeats(trial)))
    next(streams[-1])
print("open", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[LiveServer]:
    """A server whose limit is the number of streams that one client opens here."""
    with LiveServer(tmp_path) as live:
        live.start("--max-streams", str(STREAMS))
        yield live


def vanish(server: LiveServer, job: Trainer) -> None:
    """A client opens as many streams as allowed, and is killed."""
    command = [sys.executable, "-c", CLIENT, server.address, job.job_id, str(STREAMS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "open\n"
        assert not has_room(server, job), "the client has them all"
        client.kill()


def has_room(server: LiveServer, job: Trainer) -> bool:
    """Whether the server accepts a stream."""
    watch = server.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id))
    try:
        return bool(next(watch).job.spec.job_id == job.job_id)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
        return False
    finally:
        watch.cancel()


def test_vanished_clients_leave_nothing(limited: LiveServer) -> None:
    """When a client with all streams is killed, all of them are free again, and memory does not grow."""
    job = Trainer(limited.trainer, max_epochs=10**6)
    held = []
    for _ in range(3):
        vanish(limited, job)
        wait_until(lambda: has_room(limited, job))
        held.append(resident(limited.process.pid))
    assert held[-1] - held[0] < FLAT_MEGABYTES
    assert "Traceback" not in limited.log.read_text()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_frozen_clients_are_noticed(limited: LiveServer) -> None:
    """A client that neither answers nor hangs up loses its streams to the server's keepalive."""
    job = Trainer(limited.trainer, max_epochs=10**6)
    command = [sys.executable, "-c", CLIENT, limited.address, job.job_id, str(STREAMS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "open\n"
        client.send_signal(signal.SIGSTOP)
        try:
            assert not has_room(limited, job)
            wait_until(lambda: has_room(limited, job), seconds=240)
        finally:
            client.kill()


def crowd(server: LiveServer, kind: str, count: int, open_ones: int) -> None:
    """More streams than allowed: the others are refused, a caller beside the open ones is served, all are freed."""
    job, trials = Trainer(server.trainer, max_epochs=10**6), Trainer(server.trainer, max_epochs=10**6)
    trial, epochs, pid = job.next(), itertools.count(1), server.process.pid

    def report() -> None:
        epoch = next(epochs)
        job.report(trial, epoch, metric=0.1, epoch=epoch)

    calls = 200 if open_ones >= 1_000 else 10

    def suffer(number: int) -> Victim:
        with Victim(report) as victim:
            wait_until(lambda: len(victim.seconds) > number, 60)
        return victim

    idle, before = suffer(calls), resident(pid)
    with streaming(server.address, kind, count, [trials.next().id for _ in range(100)]) as codes:
        assert codes.pop("OPEN") == open_ones
        # INTERNAL is what grpc.aio makes of a refusal that arrives while it writes.
        assert codes.keys() <= {"RESOURCE_EXHAUSTED", "INTERNAL"}
        assert sum(codes.values()) == count - open_ones
        held, beside = resident(pid) - before, suffer(calls)
    with Victim(report) as closing:
        wait_until(partial(has_room, server, job), 60)
        wait_until(lambda: bool(closing.seconds), 60)
    sys.stdout.write(
        f"{count} streams, {kind}: {open_ones} open, {held:.0f} MB; p99 of a caller {idle.p99:.0f} ms before, "
        f"{beside.p99:.0f} ms beside them, at most {1e3 * max(closing.seconds):.0f} ms while they close\n"
    )
    assert held < 5 + STREAM_KILOBYTES * open_ones / 1e3
    assert "Traceback" not in server.log.read_text()
    if open_ones >= 1_000:
        assert beside.p99 < max(MILLISECONDS, 2 * idle.p99) or not quiet()


@pytest.mark.parametrize("kind", ["report", "watch", "health"])
def test_streams_beyond_the_limit_are_refused(limited: LiveServer, kind: str) -> None:
    """One client opens three times as many streams as allowed."""
    crowd(limited, kind, 3 * STREAMS, STREAMS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "allowed"), [("report", 10_000), ("watch", 10_000), ("health", 1_000)])
def test_ten_thousand_streams(server: LiveServer, kind: str, allowed: int) -> None:
    """Ten thousand streams of one kind, on 117 connections, and five hundred more."""
    crowd(server, kind, 10_500, allowed)


def processor_seconds(pid: int) -> float:
    """What a process has used."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> int:
    """How many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["report", "watch"])
def test_two_thousand_that_wait(tmp_path: Path, kind: str) -> None:
    """Two thousand streams, each on its own connection: little memory, no work at rest, and one more is refused."""
    count, seconds = 2_000, number(30, short=5)
    with LiveServer(tmp_path) as server:
        server.start("--max-streams", str(count))
        trials = Trainer(server.trainer, max_epochs=10**6, trial_lease_seconds=0)
        pid, beside = server.process.pid, Trainer(server.trainer)
        asking = v1.AcquirePowerLimitRequest(trial=beside.next().id)
        ids = [trials.next().id for _ in range(100)]
        before, files = resident(pid), open_files(pid)
        with streaming(server.address, kind, count, ids, each=1) as codes:
            assert codes == {"OPEN": count}
            held, opened, begun = resident(pid) - before, open_files(pid) - files, processor_seconds(pid)
            time.sleep(seconds)
            used = processor_seconds(pid) - begun
            with Victim(lambda: beside.stub.AcquirePowerLimit(asking)) as victim:
                wait_until(lambda: len(victim.seconds) > 200, 60)
            with refused() as refusal:
                next(server.admin.WatchJob(v1.WatchJobRequest(job_id=beside.job_id)))
            assert refusal.reason == "ERROR_REASON_TOO_MANY_STREAMS"
        wait_until(lambda: open_files(pid) <= files, 60)
        sys.stdout.write(
            f"{count} that wait, {kind}: {held:.0f} MB, {opened} files, {100 * used / seconds:.1f}% of a core at rest, "
            f"p99 of a caller {victim.p99:.0f} ms beside them\n"
        )
        assert held < CONNECTION_KILOBYTES * count / 1e3
        assert opened == count
        assert used < 0.1 * seconds or not quiet()


async def open_and_cancel(address: str, trial: v1.TrialId, number: int) -> None:
    """Opens streams and cancels them, many at a time, some before and some after the server's first answer."""
    beat = v1.StreamResultsRequest(heartbeat=v1.HeartbeatRequest(trial=trial))
    result = v1.TrainingResult(
        trial=trial, measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.1, epoch=1)
    )

    async with grpc.aio.insecure_channel(address) as channel:
        trainer, reader = v1.BatchSizeOptimizerStub(channel), v1.JobReaderStub(channel)

        async def watch() -> None:
            call = reader.WatchJob(v1.WatchJobRequest(job_id=trial.job_id))
            await call.read()
            call.cancel()

        async def talk(*messages: v1.StreamResultsRequest, answered: bool) -> None:
            call = trainer.StreamResults()
            for message in messages:
                await call.write(message)
            if answered:
                await call.read()
            call.cancel()

        def one(kind: int) -> Coroutine[None, None, None]:
            if kind == 0:
                return watch()
            return talk(*((), (beat,), (v1.StreamResultsRequest(result=result),))[kind - 1], answered=kind == 3)

        async def accepted(kind: int) -> bool:
            """Whether the server took the stream: not always while earlier ones, cancelled, are not freed yet."""
            try:
                await one(kind)
            except grpc.aio.AioRpcError as error:
                # INTERNAL is what grpc.aio makes of a refusal that arrives while it writes.
                assert error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}  # noqa: PT017
                return False
            return True

        async def until_accepted(kind: int) -> None:
            while not await accepted(kind):
                pass

        for start in range(0, number, 100):
            await asyncio.gather(*(until_accepted((start + n) % 4) for n in range(min(100, number - start))))


async def churn(server: LiveServer, number: int) -> None:
    """Opens and cancels streams, and compares the memory with that after the first tenth."""
    job = Trainer(server.trainer, max_epochs=10**6)
    trial = job.next()
    await open_and_cancel(server.address, trial.id, number // 10)
    before = resident(server.process.pid)
    await open_and_cancel(server.address, trial.id, number - number // 10)
    wait_until(lambda: has_room(server, job))
    after = resident(server.process.pid)
    sys.stdout.write(f"{number} streams: {before:.1f} MB after a tenth of them, {after:.1f} MB after all\n")
    assert after - before < FLAT_MEGABYTES
    assert not job.report(trial, 2.0, metric=0.1, epoch=2, time=2.0).stop_train
    assert "Traceback" not in server.log.read_text()


async def test_cancelled_streams_leave_memory_flat(server: LiveServer) -> None:
    """Two thousand streams that were opened and cancelled leave nothing behind."""
    await churn(server, 2_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_many_cancelled_streams_leave_memory_flat(server: LiveServer) -> None:
    """A hundred thousand streams leave nothing behind either."""
    await churn(server, number(100_000, short=10_000))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_days_reports_leave_memory_flat(server: LiveServer) -> None:
    """A day of 64 trainers that report twice a minute, as fast as possible: memory and -wal stay small."""
    reports = number(184_320, short=12_800)
    jobs = [Trainer(server.trainer, max_epochs=10**6) for _ in range(64)]

    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = v1.BatchSizeOptimizerStub(channel)

        async def train(job: Trainer, number: int) -> None:
            """Trials of fifty epochs, one after the other."""
            for step in range(number):
                epoch = step % 50 + 1
                if epoch == 1:
                    response = await stub.GetNextBatchSize(
                        v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id())
                    )
                result = v1.TrainingResult(
                    trial=response.trial.id,
                    measurement=v1.Measurement(
                        time_seconds=epoch, energy_joules=epoch, metric=0.95 if epoch == 50 else 0.1, epoch=epoch
                    ),
                )
                await stub.ReportResult(v1.ReportResultRequest(result=result))

        held = []
        for share in (0.2, 0.8):
            await asyncio.gather(*(train(job, int(reports * share / 64)) for job in jobs))
            held.append(resident(server.process.pid))
    sys.stdout.write(f"{reports} reports: {held[0]:.1f} MB after a fifth of them, {held[1]:.1f} MB after all\n")
    assert held[1] - held[0] < FLAT_MEGABYTES
    assert server.database.with_name("wattwise.db-wal").stat().st_size < 32e6
