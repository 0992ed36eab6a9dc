"""Limits on jobs, streams, measurements and messages."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import grpc
import pytest
from wattwise import v1
from wattwise.errors import ResourceExhaustedError
from wattwise.rpc.calls import new_id
from wattwise.rpc.client import Client
from wattwise.rules import EndReason
from wattwise_server.config import Factors
from wattwise_server.domain import Job, Trial, TrialId
from wattwise_server.errors import TooManyJobsError
from wattwise_server.policy.stopping import Verdict, judge
from wattwise_server.rpc import answers
from wattwise_server.rpc.calls import StreamLimit
from wattwise_server.rpc.paging import MEASUREMENTS_AT_A_TIME, PAGE_BYTES, PageTokens
from wattwise_server.rpc.service import JobReaderService
from wattwise_server.security.tokens import Role
from wattwise_server.store import reads
from wattwise_server.store.rows import read_measurement
from wattwise_server.store.transactions import Transaction
from wattwise_server.usecases import lifecycle, training
from wattwise_server.usecases.finding import find_trial
from wattwise_server.usecases.report import Report
from wattwise_server.usecases.statistics import Statistics

from tests.client.training.script import begun
from tests.credentials import bearing, issue
from tests.jobs import Trainer, job_spec, result
from tests.live_server import LiveServer
from tests.refusals import refused
from tests.server.commands.test_serve import refuse
from tests.server.site import Site
from tests.server.site import draft as site_draft
from tests.waiting import wait_until

MESSAGE_BYTES = 4 * 1024 * 1024


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[LiveServer]:
    """A server with very low limits."""
    with LiveServer(tmp_path) as live:
        live.start("--max-jobs-per-prefix", "3", "--max-epochs-kept", "4", "--max-streams", "2")
        yield live


def test_jobs_per_prefix(limited: LiveServer) -> None:
    """Of ten concurrent jobs under a limit of three, three are created; after a deletion there is room for one."""

    def register(name: str, prefix: str = "a") -> str:
        spec = job_spec(job_id_prefix=prefix, job_id=name)
        try:
            limited.trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
            return ""
        return name

    with ThreadPoolExecutor(10) as pool:
        created = [name for name in pool.map(register, [f"a-{number}" for number in range(10)]) if name]
    assert len(created) == 3
    assert register("b-1", "b")
    assert register(created[0]), "a known job is confirmed at the limit too"
    with refused() as refusal:
        limited.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id_prefix="a", job_id="a-x")))
    assert (refusal.reason, refusal.metadata["limit"]) == ("ERROR_REASON_TOO_MANY_JOBS", "3")
    assert (refusal.metadata["retryable"], refusal.retry_seconds) == ("false", None)
    for word in ("--max-jobs-per-prefix", "delete", "job_id"):
        assert word in refusal.message
    limited.admin.DeleteJob(v1.DeleteJobRequest(job_id=created[0]))
    assert register("a-x")


def test_jobs_per_prefix_of_a_token(tmp_path: Path) -> None:
    """The jobs of a team count together, whatever prefixes it gives them; those of others do not count."""
    file = tmp_path / "server.tokens"
    teams = {name: bearing(issue(file, Role.TRAINER, f"{name}-")) for name in ("a", "b")}
    admin = bearing(issue(file, Role.ADMIN, ""))
    with LiveServer(tmp_path) as live:
        live.start("--max-jobs-per-prefix", "3", "--tokens", str(file))

        def register(job_id: str, who: tuple[tuple[str, str], ...]) -> None:
            request = v1.RegisterJobRequest(job=job_spec(job_id_prefix=job_id, job_id=job_id))
            live.trainer.RegisterJob(request, metadata=who)

        for number in range(3):
            register(f"a-{number}", teams["a"])
        with refused() as refusal:
            register("a-3", teams["a"])
        assert refusal.metadata["job_id_prefix"] == "a-"
        register("b-1", teams["b"])
        register("a-3", admin)
        register("a-0", teams["a"])


def test_epochs_kept(limited: LiveServer) -> None:
    """Only the newest epochs of a long trial are kept, but every epoch is judged, also after a kill."""
    job = Trainer(limited.trainer, max_epochs=20)
    trial = job.next()
    for epoch in range(1, 8):
        assert not job.report(trial, epoch, metric=0.1, epoch=epoch).stop_train
    job.report(trial, 15, metric=0.1, epoch=15)
    limited.kill()
    limited.start("--max-epochs-kept", "4")
    with refused() as refusal:
        job.report(trial, 14, metric=0.1, epoch=16)
    assert refusal.reason == "ERROR_REASON_INVALID_RESULT"
    for epoch in range(16, 20):
        job.report(trial, epoch, metric=0.1, epoch=epoch)
    shown = limited.admin.ListMeasurements(v1.ListMeasurementsRequest(trial=trial.id))
    assert [m.epoch for m in shown.measurements] == [16, 17, 18, 19]
    assert job.report(trial, 20, epoch=20).converged
    assert limited.admin.GetJob(v1.GetJobRequest(job_id=job.job_id)).job.min_cost == 20


def test_no_limits(tmp_path: Path) -> None:
    """0 means no limit."""
    with LiveServer(tmp_path) as live:
        live.start("--max-jobs-per-prefix", "0", "--max-streams", "0")
        job = Trainer(live.trainer)
        stream = Stream(live.trainer, job.next())
        assert not stream.report(1).stop_train
        stream.close()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-jobs-per-prefix", "-1", "0 for no limit"),
        ("--max-jobs-per-prefix", "many", "0 for no limit"),
        ("--max-streams", "1.5", "0 for no limit"),
        ("--max-epochs-kept", "0", "from 1 to 50000"),
        ("--max-epochs-kept", "50001", "from 1 to 50000"),
        ("--keep-measurements-days", "-1", "forever"),
        ("--keep-measurements-days", "nan", "forever"),
        ("--keep-measurements-days", "soon", "0 to 36500 days"),
    ],
)
def test_invalid_limits_are_refused(tmp_path: Path, option: str, value: str, message: str) -> None:
    """An invalid limit fails the start; the error names the option, the value and the valid range."""
    error = refuse("--address", "127.0.0.1:0", option, value, folder=tmp_path)
    assert all(part in error for part in (option, value, message))


class Stream:
    """A StreamResults call that has sent a heartbeat and stays open."""

    def __init__(self, stub: v1.BatchSizeOptimizerStub, trial: v1.Trial) -> None:
        self._outbox: SimpleQueue[v1.StreamResultsRequest | None] = SimpleQueue()
        self._trial = trial
        self.responses = stub.StreamResults(iter(self._outbox.get, None))

    def report(self, epoch: int) -> v1.Decision:
        """Sends an epoch and waits for the decision."""
        self._outbox.put(v1.StreamResultsRequest(result=result(self._trial, epoch, metric=0.1, epoch=epoch)))
        return next(self.responses).decision

    def close(self) -> None:
        """Ends the trainer's side."""
        self._outbox.put(None)


def test_running_trials(server: LiveServer) -> None:
    """A launch beyond the limit of its job is refused until a trial ends; other jobs, retries and resumes are not."""
    server.stop()
    server.start("--max-running-trials", "2")
    job = Trainer(server.trainer)
    first, second = job.next("first"), job.next("second")
    with refused() as refusal:
        job.next("third")
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "ERROR_REASON_TOO_MANY_TRIALS")
    assert (refusal.metadata["job_id"], refusal.metadata["limit"]) == (job.job_id, "2")
    assert refusal.metadata["retryable"] == "true"
    assert job.next("first").id == first.id
    assert Trainer(server.trainer).next().id.trial_number == 1
    job.end(second, v1.END_REASON_PREEMPTED)
    assert job.next("third").id.trial_number == 3
    assert job.next("second", resume=True).id == second.id, "its training runs in any case"


async def test_jobs_per_prefix_without_tokens(tmp_path: Path) -> None:
    """Of callers that may access every job, the limit counts the jobs whose ids start with the new one's prefix."""
    site = Site(tmp_path / "store.db", max_jobs_per_prefix=1)
    await site.open()
    await site.training.register(site_draft())
    with pytest.raises(TooManyJobsError):
        await site.training.register(site_draft("j-2"))
    await site.training.register(site_draft("k", job_id_prefix="k"))
    await site.close()


async def test_many_trials_are_stopped_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls are answered while hundreds of trials are compared with a bound that has fallen."""
    site = Site(tmp_path / "store.db", max_running_trials=0)
    await site.open()
    await site.training.register(site_draft(policy="gts", batch_sizes=(8, 16)))
    await site.training.register(site_draft("j-other", policy="gts"))
    other = await site.training.next_trial("j-other", new_id())
    trials = [await site.training.next_trial("j", new_id()) for _ in range(400)]
    # Trials of the best known batch size are not stopped.
    cheap = next(trial.key for trial in trials if trial.batch_size == 8)
    expensive = [trial.key for trial in trials if trial.batch_size == 16]
    for key in expensive:
        await site.training.report(Report(key, 1, 1.0, 1000.0, 0.1))
    stopping = asyncio.create_task(site.training.report(Report(cheap, 1, 1.0, 1.0, 0.95)))
    compared: list[int] = [0]

    def counted(*args: Any) -> Verdict:
        compared[-1] += 1
        return judge(*args)

    monkeypatch.setattr(lifecycle, "judge", counted)
    while not stopping.done():
        await asyncio.sleep(0)
        await site.training.heartbeat(other.key)
        compared.append(0)
    assert (await stopping).converged
    assert sum(compared) >= len(expensive)
    assert max(compared) <= 32, "between two answers"
    ends = [(await site.administration.trial(key)).trial.trial.end_reason for key in expensive]
    # Not all: with each that is stopped the bound of the next rises.
    assert EndReason.COST_BOUND in ends
    await site.close()


async def test_waiting_trainer_is_not_woken_by_other_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of trainers of one job wait for their stop: the start of another trial costs them nothing."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(site_draft())
    waiting = (await site.training.next_trial("j", new_id())).key
    looked: list[TrialId] = []

    async def counted(tx: Transaction, key: TrialId) -> tuple[Job, Trial]:
        looked.append(key)
        return await find_trial(tx, key)

    monkeypatch.setattr(training, "find_trial", counted)
    stop = asyncio.create_task(site.training.wait_for_stop(waiting))
    for _ in range(5):
        await site.training.next_trial("j", new_id())
    await site.administration.delete_job("j")
    assert (await stop).stop_train
    assert looked == [waiting] * 2, "when it began to wait, and at its end"
    await site.close()


def test_concurrent_streams(limited: LiveServer) -> None:
    """Streams and watches beyond the limit are refused, open ones continue, and a closed one makes room."""
    job = Trainer(limited.trainer)
    trials = [job.next() for _ in range(3)]
    first, second = (Stream(limited.trainer, trial) for trial in trials[:2])
    assert not first.report(1).stop_train
    assert not second.report(1).stop_train
    third = Stream(limited.trainer, trials[2])
    with refused() as refusal:
        third.report(1)
    third.close()
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "ERROR_REASON_TOO_MANY_STREAMS",
    )
    assert refusal.metadata["retryable"] == "true"
    assert "--max-streams" in refusal.message
    with refused() as refusal:
        next(limited.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id)))
    assert refusal.reason == "ERROR_REASON_TOO_MANY_STREAMS"
    assert not job.report(trials[2], 1, metric=0.1).stop_train, "unary calls are still answered"
    assert not first.report(2).stop_train
    second.close()

    def watched() -> bool:
        watch = limited.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id))
        try:
            return bool(next(watch).job.num_trials == 3)
        except grpc.RpcError:
            return False
        finally:
            watch.cancel()

    wait_until(watched)
    first.close()


def test_trainer_without_a_stream(limited: LiveServer) -> None:
    """A trainer without a stream trains to its target with unary calls."""
    job = Trainer(limited.trainer)
    streams = [Stream(limited.trainer, job.next()) for _ in range(2)]
    for stream in streams:
        stream.report(1)
    with begun(limited.address, job_id_prefix="single", job_id="single") as bso:
        for metric in (0.1, 0.2, 0.95):
            bso.on_evaluate(metric)
        assert bso.training_finished
    (trial,) = limited.admin.ListTrials(v1.ListTrialsRequest(job_id="single")).trials
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 3)
    for stream in streams:
        stream.close()


def test_stream_message_size(server: LiveServer) -> None:
    """A message of a stream above 16 KiB ends it: there is no such result."""
    job = Trainer(server.trainer)
    trial = job.next()
    message = result(trial, 1, metric=0.1, epoch=1)
    message.monitor.kinds.extend([""] * 10_000)
    with refused() as refusal:
        next(server.trainer.StreamResults(iter([v1.StreamResultsRequest(result=message)])))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ERROR_REASON_INVALID_REQUEST")
    assert not job.report(trial, 1, metric=0.1, epoch=1).stop_train


def test_message_size(server: LiveServer) -> None:
    """A request above 4 MiB is RESOURCE_EXHAUSTED; the client's error says so and names the server."""
    spec = job_spec(job_id_prefix="x" * (MESSAGE_BYTES + 1))
    with pytest.raises(grpc.RpcError) as refusal:
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with (
        Client(server.address) as client,
        pytest.raises(ResourceExhaustedError, match="send a smaller message") as caught,
    ):
        client.register_job(spec)
    assert server.address in str(caught.value)


def test_batch_sizes_per_job(server: LiveServer) -> None:
    """A job may have 64 batch sizes; with one more it is refused with that limit."""
    most = job_spec(batch_sizes=range(1, 65))
    assert server.trainer.RegisterJob(v1.RegisterJobRequest(job=most)).created
    with refused() as refusal:
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(batch_sizes=range(1, 66))))
    assert refusal.reason == "ERROR_REASON_INVALID_JOB_SPEC"
    assert "64" in refusal.faults["job.batch_sizes"]


def test_long_lists_are_split_into_pages_that_fit(server: LiveServer) -> None:
    """Jobs that exceed one message together are split into pages, and none is missing."""
    sizes = range(2**30, 2**30 + 64)
    spec = job_spec(job_id="test-wide", policy="gts", batch_sizes=sizes, default_batch_size=2**30)
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec))
    server.kill()
    multiply(server.database, 900)
    server.start()
    seen: list[str] = []
    sizes_of_pages: list[int] = []
    request = v1.ListJobsRequest(page_size=1000, job_id_prefix="test-wide-")
    while not sizes_of_pages or request.page_token:
        page = server.admin.ListJobs(request)
        sizes_of_pages.append(page.ByteSize())
        seen += [row.job.spec.job_id for row in page.jobs]
        request.page_token = page.next_page_token
    assert seen == [f"test-wide-{number:03}" for number in range(900)]
    assert max(sizes_of_pages) < MESSAGE_BYTES < sum(sizes_of_pages)


@pytest.mark.thorough
def test_long_trials_are_split_into_pages_that_fit(server: LiveServer) -> None:
    """Trials with the longest names, most monitors and a warning are split into pages, and none is missing."""
    job_id = "\U0001f680" * 200
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix=job_id[:1])))
    request = v1.ImportTrialRequest(job_id=job_id, batch_size=16, end_reason=v1.END_REASON_PREEMPTED)
    request.start_time.GetCurrentTime()
    request.measurements.add(epoch=1, time_seconds=1.0, energy_joules=10.0, metric=0.1)
    for number in range(1000):
        # Others than in the first trial are worth a warning.
        kinds = [chr(0x20000 + 8 * bool(number) + kind) * 50 for kind in range(8)]
        request.monitor.CopyFrom(v1.Monitor(kinds=kinds, quality=v1.ENERGY_QUALITY_MEASURED))
        request.launch_id = "\U0001f680" * 190 + str(number)
        server.trainer.ImportTrial(request)
    seen: list[int] = []
    sizes_of_pages: list[int] = []
    listed = v1.ListTrialsRequest(job_id=job_id, page_size=1000)
    while not sizes_of_pages or listed.page_token:
        page = server.admin.ListTrials(listed)
        sizes_of_pages.append(page.ByteSize())
        seen += [trial.id.trial_number for trial in page.trials]
        listed.page_token = page.next_page_token
    assert seen == list(range(1, 1001))
    assert max(sizes_of_pages) < MESSAGE_BYTES < sum(sizes_of_pages)


@pytest.mark.thorough
def test_trials_with_the_longest_labels_fit_into_messages(server: LiveServer) -> None:
    """A page of 200 trials with the most and longest labels and kinds, and each message of a watch, is below 4 MiB."""
    job_id = "\U0001f680" * 200
    server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id, job_id_prefix=job_id[:1])))
    labels = {f"{key:02}" + "k" * 61: "\U0001f680" * 200 for key in range(16)}
    for number in range(200):
        launch_id = "\U0001f680" * 190 + str(number)
        request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=launch_id, labels=labels)
        trial = server.trainer.GetNextBatchSize(request).trial
        monitor = v1.Monitor(quality=v1.ENERGY_QUALITY_MEASURED)
        monitor.kinds.extend(chr(0x20000 + 8 * bool(number) + kind) * 50 for kind in range(8))
        server.trainer.ReportResult(v1.ReportResultRequest(result=result(trial, 1.0, 0.1, monitor=monitor)))
    seen: list[int] = []
    listed = v1.ListTrialsRequest(job_id=job_id, page_size=1000)
    while not seen or listed.page_token:
        page = server.admin.ListTrials(listed)
        seen += [trial.id.trial_number for trial in page.trials]
        listed.page_token = page.next_page_token
        assert page.ByteSize() < PAGE_BYTES + 1000
    assert seen == list(range(1, 201))
    watched: list[int] = []
    answers = server.admin.WatchTrials(v1.WatchTrialsRequest(job_id=job_id))
    while len(watched) < 200:
        watched += [trial.id.trial_number for trial in next(answers).trials]
    answers.cancel()
    assert watched == seen


def multiply(database: Path, number: int) -> None:
    """Makes `number` copies of the only job, with long warnings."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        columns = {
            table: ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
            for table in ("jobs", "arms")
        }
        warned = [("METRIC_OUT_OF_RANGE", "result.measurement.metric", "x" * 1_000, 1)] * 6
        connection.execute("UPDATE jobs SET warnings = ?", (json.dumps(warned),))
        connection.execute("BEGIN")
        for copy in range(number):
            for table, text in columns.items():
                chosen = text.replace("job_key", f"{100 + copy}").replace("job_id,", f"'test-wide-{copy:03}',")
                connection.execute(f"INSERT INTO {table} SELECT {chosen} FROM {table} WHERE job_key = 1")  # noqa: S608
        connection.execute("COMMIT")


def test_largest_page_of_measurements_fits_into_one_message() -> None:
    """A page ends at 2 MiB with the measurements that were read last, far below what clients accept."""
    page = v1.ListMeasurementsResponse(measurements=[_widest()] * MEASUREMENTS_AT_A_TIME)
    assert PAGE_BYTES + page.ByteSize() < MESSAGE_BYTES


def _widest() -> v1.Measurement:
    widest = v1.Measurement(epoch=2**31 - 1, time_seconds=1.5, energy_joules=1.5, metric=0.5)
    widest.report_time.FromNanoseconds(1_999_999_999_999_999_999)
    return widest


@pytest.mark.thorough
async def test_many_epochs_are_shown_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls are answered while thousands of epochs are read and converted; all of them are in the answer."""
    site = Site(tmp_path / "store.db")
    await site.open()
    await site.training.register(site_draft(max_epochs=5_000))
    shown = await site.training.next_trial("j", new_id())
    for epoch in range(1, 3_501):
        await site.training.report(Report(shown.key, epoch, float(epoch), 0.01 * epoch, 0.1))
    pieces = {read_measurement: [0], answers.message: [0]}

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            pieces[function][-1] += 1
            return function(*arguments)

        return called

    monkeypatch.setattr(reads, "read_measurement", counted(read_measurement))
    monkeypatch.setattr(answers, "message", counted(answers.message))
    tokens, statistics = PageTokens(site.store.page_token_key), Statistics(site.store, Factors())
    service, context = JobReaderService(site.administration, statistics, StreamLimit(0), tokens), cast("Any", None)
    trial = v1.TrialId(job_id="j", trial_number=shown.key.trial_number)
    request = v1.ListMeasurementsRequest(trial=trial, page_size=5_000)
    answer = asyncio.create_task(service.ListMeasurements(request, context))
    while not answer.done():
        await asyncio.sleep(0)
        for counts in pieces.values():
            counts.append(0)
    assert [measured.epoch for measured in (await answer).measurements] == list(range(1, 3_501))
    # Of each piece one more is read, to see whether more follow.
    assert [sum(counts) for counts in pieces.values()] == [3_503, 3_500]
    assert max(map(max, pieces.values())) <= 1_001, "between two answers"
    await site.close()


def test_watches_of_one_caller_share_a_pace(server: LiveServer) -> None:
    """Fifty watches of a caller get fifty states a second together, not one each per change, and all the newest."""
    job = Trainer(server.trainer)
    watching = threading.Barrier(51)

    def watch() -> int:
        """The states that a watch got after its first, until the last launch."""
        states = server.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id), timeout=60)
        next(states)
        watching.wait()
        return 1 + sum(1 for _ in takewhile(lambda state: state.job.num_trials < 40, states))

    with ThreadPoolExecutor(50) as pool:
        counts = [pool.submit(watch) for _ in range(50)]
        watching.wait()
        began = time.monotonic()
        for _ in range(40):
            job.next()
        sent = sum(count.result() for count in counts)
        elapsed = time.monotonic() - began
    # The first state after the pause comes at once.
    assert sent <= 50 * (1 + elapsed)
