"""Many concurrent trainers, with unary calls and streams: some end their trials, some give up, jobs are deleted.

In every second job trials are also resumed and imported, and power limits profiled.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Protocol, TypeVar

import grpc
from wattwise import v1

from tests.faults.ledger import JobBook, Ledger, SentReport, TrialBook
from tests.jobs import job_spec, power_sample
from tests.people import PeopleStub

T = TypeVar("T")

REASONS = (v1.END_REASON_COMPLETED, v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY, v1.END_REASON_PREEMPTED)
NVML = v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_MEASURED)
MONITORS = (NVML, NVML, None, v1.Monitor(kinds=["estimate"], quality=v1.ENERGY_QUALITY_ESTIMATED))
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_PAUSE_SECONDS = 0.01
"""After a call that failed, so that trainers of a server that is away leave the processors to the others."""


class Served(Protocol):
    """A server, or several that look like one: the stubs may be those of another one at every call."""

    @property
    def trainer(self) -> v1.BatchSizeOptimizerStub:
        """The stub of `BatchSizeOptimizer`."""

    @property
    def admin(self) -> PeopleStub:
        """The stubs of people and tools."""


class GaveUpError(Exception):
    """A trainer got no response and does not retry."""


class GoneError(Exception):
    """The job was deleted, or has no batch size left."""


def insist(attempt: Callable[[], T]) -> T:
    """The response of a call that is repeated while the server is not available."""
    while True:
        try:
            return attempt()
        except grpc.RpcError as error:  # noqa: PERF203 - it asks again
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(_PAUSE_SECONDS)


class Gate:
    """Holds all trainers between two calls, so that the file can be read while there are no writes."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._open = True
        self._inside = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call."""
        with self._state:
            self._state.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._state:
                self._inside -= 1
                self._state.notify_all()

    def shut(self) -> None:
        """Starts no more calls."""
        with self._state:
            self._open = False

    def wait_empty(self) -> None:
        """Returns once no call is in flight."""
        with self._state:
            assert self._state.wait_for(lambda: self._inside == 0, 60), "a call never ended"

    def open(self) -> None:
        """Calls continue."""
        with self._state:
            self._open = True
            self._state.notify_all()


class Worker:
    """Runs trials, one after the other, of changing jobs."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._random = random.Random(f"{load.seed} worker {number}")

    def run(self) -> None:
        """Runs until the load ends."""
        while not self._load.stopping:
            try:
                self._trial()
            except (GaveUpError, GoneError):  # noqa: PERF203 - one trainer after another
                continue

    def _trial(self) -> None:
        rng, load = self._random, self._load
        job = load.some_job(rng)
        if len(job.requests) > 30 and rng.random() < 0.05:
            self._delete(job)
            return
        launch_id = str(uuid.UUID(int=rng.getrandbits(128)))
        job.requests[launch_id] = None
        if job.mixed and rng.random() < 0.2:
            self._import(job, launch_id)
            return
        request = v1.GetNextBatchSizeRequest(job_id=job.spec.job_id, launch_id=launch_id)
        answer = self._call(job, lambda: load.server.trainer.GetNextBatchSize(request, timeout=60))
        book = job.requests[launch_id] = TrialBook(answer.trial)
        load.ledger.acknowledge()
        if job.mixed and rng.random() < 0.2:
            self._profile(job, book)
        self._train(job, book)
        while job.mixed and book.ended is not None and book.ended.end_reason == v1.END_REASON_PREEMPTED:
            if rng.random() < 0.3:
                return
            # Until there is an answer it may have been resumed or not.
            book.ended, request.resume = None, True
            book.trial = self._call(job, lambda: load.server.trainer.GetNextBatchSize(request, timeout=60)).trial
            load.ledger.acknowledge()
            self._train(job, book)

    def _train(self, job: JobBook, book: TrialBook) -> None:
        rng = self._random
        if rng.random() < 0.3:
            request = v1.HeartbeatRequest(trial=book.trial.id)
            book.heartbeat = self._call(job, lambda: self._load.server.trainer.Heartbeat(request, timeout=60)).decision
            self._load.ledger.acknowledge()
        if not book.stopped:
            report = self._stream if rng.random() < 0.4 else self._report_each
            report(job, book, rng.randint(1, 5))
        if not book.stopped and rng.random() < 0.9:
            self._end(job, book)

    def _import(self, job: JobBook, launch_id: str) -> None:
        """A trial that ran without the server, which takes all of it or nothing."""
        rng, load = self._random, self._load
        reports = job.imports[launch_id] = {
            epoch: SentReport(float(epoch), 100.0 * epoch, 0.1) for epoch in range(1, rng.randint(2, 6))
        }
        reason = rng.choice((v1.END_REASON_COMPLETED, v1.END_REASON_ERROR))
        request = v1.ImportTrialRequest(
            job_id=job.spec.job_id,
            launch_id=launch_id,
            batch_size=rng.choice(job.spec.batch_sizes),
            end_reason=reason,
            measurements=[
                v1.Measurement(
                    epoch=epoch,
                    time_seconds=report.time,
                    energy_joules=report.energy,
                    metric=report.metric,
                )
                for epoch, report in reports.items()
            ],
        )
        request.start_time.GetCurrentTime()
        trial = self._call(job, lambda: load.server.trainer.ImportTrial(request, timeout=60)).trial
        job.requests[launch_id] = TrialBook(trial, reports, ending=reason, ended=trial, imported=True)
        load.ledger.acknowledge()

    def _profile(self, job: JobBook, book: TrialBook) -> None:
        """Asks for a power limit, and reports a profile if there is none."""
        rng, trainer, trial = self._random, self._load.server.trainer, book.trial.id
        ask = v1.AcquirePowerLimitRequest(trial=trial)
        acquired = self._call(job, lambda: trainer.AcquirePowerLimit(ask, timeout=60))
        if acquired.action != v1.POWER_ACTION_PROFILE:
            return
        samples = [power_sample(watts, rng.randint(100, 200)) for watts in (100.0, 150.0, 200.0)]
        energy = min(sample.energy_joules / sample.steps for sample in samples)
        size = book.trial.batch_size
        sent, acknowledged = job.profiles.get(size, (math.inf, math.inf))
        job.profiles[size] = min(sent, energy), acknowledged
        report = v1.ReportPowerProfileRequest(trial=trial, samples=samples)
        self._call(job, lambda: trainer.ReportPowerProfile(report, timeout=60))
        sent, acknowledged = job.profiles[size]
        job.profiles[size] = sent, min(acknowledged, energy)
        self._load.ledger.acknowledge()

    def _epochs(self, book: TrialBook, number: int) -> Iterator[tuple[int, SentReport]]:
        rng, size = self._random, book.trial.batch_size
        epoch = max(book.reports, default=0)
        energy = book.reports[epoch].energy if epoch else 0.0
        for step in range(number):
            epoch += rng.choice((1, 1, 1, 2))
            energy += abs(size - 20) + rng.random() * 20
            metric = 0.95 if step == number - 1 and rng.random() < 0.9 else rng.choice((0.1, float("nan")))
            book.reports[epoch] = SentReport(float(epoch), energy, metric)
            yield epoch, book.reports[epoch]

    def _report_each(self, job: JobBook, book: TrialBook, number: int) -> None:
        for epoch, report in self._epochs(book, number):
            self._report(job, book, epoch, report)
            if book.stopped:
                return

    def _report(self, job: JobBook, book: TrialBook, epoch: int, report: SentReport) -> None:
        request = v1.ReportResultRequest(result=_result(book, epoch, report))

        def attempt() -> v1.ReportResultResponse:
            report.tries += 1
            return self._load.server.trainer.ReportResult(request, timeout=60)

        report.decision = self._call(job, attempt).decision
        self._load.ledger.acknowledge()

    def _stream(self, job: JobBook, book: TrialBook, number: int) -> None:
        outbox: SimpleQueue[v1.StreamResultsRequest | None] = SimpleQueue()
        answers = self._load.server.trainer.StreamResults(iter(outbox.get, None))
        try:
            for epoch, report in self._epochs(book, number):
                try:
                    with self._load.gate.call():
                        report.tries += 1
                        outbox.put(v1.StreamResultsRequest(result=_result(book, epoch, report)))
                        report.decision = next(answers).decision
                    self._load.ledger.acknowledge()
                except (grpc.RpcError, StopIteration):
                    # The unary call shows what happened to the stream.
                    self._report(job, book, epoch, report)
                    return
                if book.stopped:
                    return
        finally:
            outbox.put(None)
            # Most trainers end their streams; of each that is cancelled instead, gRPC keeps about a hundred bytes.
            if self._random.random() < 0.1:
                answers.cancel()
            with suppress(grpc.RpcError):
                list(answers)

    def _end(self, job: JobBook, book: TrialBook) -> None:
        book.ending = self._random.choice(REASONS)
        request = v1.EndTrialRequest(trial=book.trial.id, end_reason=book.ending)
        book.ended = self._call(job, lambda: self._load.server.trainer.EndTrial(request, timeout=60)).trial
        self._load.ledger.acknowledge()

    def _delete(self, job: JobBook) -> None:
        self._load.retire(job)
        job.delete_requested = True
        request = v1.DeleteJobRequest(job_id=job.spec.job_id)
        self._call(job, lambda: self._load.server.admin.DeleteJob(request, timeout=60))
        job.deleted = True
        # Nothing of it is compared any more, and there may be hours of it.
        job.requests, job.imports = {}, {}
        self._load.ledger.acknowledge()

    def _call(self, job: JobBook, attempt: Callable[[], T]) -> T:
        """The response; a call without one is usually retried.

        Raises:
            GaveUpError: there was none.
            GoneError: the job has no further use.
        """
        while True:
            try:
                with self._load.gate.call():
                    return attempt()
            except grpc.RpcError as error:  # noqa: PERF203 - it asks again
                if error.code() in _AWAY:
                    if self._random.random() < self._load.impatience:
                        raise GaveUpError from None
                    time.sleep(_PAUSE_SECONDS)
                elif error.code() is grpc.StatusCode.NOT_FOUND and job.delete_requested:
                    # A valid response too: the trainer may register the job again.
                    job.deleted = True
                    raise GoneError from None
                elif error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    if self._load.tidy:
                        self._delete(job)
                    self._load.retire(job)
                    raise GoneError from None
                else:
                    raise


class Load:
    """Trainers in threads, with a few jobs at a time.

    Args:
        server: the server, or several.
        seed: of what the trainers do.
        workers: how many trainers.
        jobs: how many jobs at a time.
        tidy: whether jobs without a batch size left are deleted, so that the server keeps a few jobs only.
        impatience: how often a trainer that got no response gives up instead of asking again.
    """

    def __init__(
        self, server: Served, seed: int, workers: int, jobs: int, *, tidy: bool = False, impatience: float = 0.2
    ) -> None:
        self.server = server
        self.tidy = tidy
        self.impatience = impatience
        self.seed = seed
        self.ledger = Ledger()
        self.gate = Gate()
        self.stopping = False
        self._workers = workers
        self._numbers = iter(range(10**6))
        self._lock = threading.Lock()
        self._living = [self._register() for _ in range(jobs)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the trainers during the block; raises an error of one of them at its end."""
        with ThreadPoolExecutor(self._workers) as pool:
            done: list[Future[None]] = [pool.submit(Worker(self, n).run) for n in range(self._workers)]
            try:
                yield
            finally:
                self.stopping = True
                self.gate.open()
        for each in done:
            each.result()

    def some_job(self, rng: random.Random) -> JobBook:
        """One of the existing jobs."""
        with self._lock:
            return rng.choice(self._living)

    def retire(self, job: JobBook) -> None:
        """Replaces a job by a new one."""
        with self._lock:
            if job not in self._living:
                return
            self._living.remove(job)
        fresh = self._register()
        with self._lock:
            self._living.append(fresh)

    def _register(self) -> JobBook:
        with self._lock:
            number = next(self._numbers)
        window, policy = (0, 3)[number % 2], ("pruning_gts", "gts")[number % 3 == 2]
        spec = job_spec(
            job_id=f"test-{self.seed}-{number}",
            window_size=window,
            policy=policy,
            seed=self.seed + number,
            max_epochs=8,
            trial_lease_seconds=86400,
        )
        job = JobBook(spec, mixed=number % 4 >= 2)
        # In the ledger before it is sent: it may be stored although no response arrived.
        self.ledger.jobs[spec.job_id] = job
        while not job.registered:
            try:
                with self.gate.call():
                    self.server.trainer.RegisterJob(v1.RegisterJobRequest(job=spec), timeout=60)
                    job.registered = True
            except grpc.RpcError as error:  # noqa: PERF203 - it asks again
                if error.code() not in _AWAY:
                    raise
                if self.stopping:
                    raise GaveUpError from None
                time.sleep(_PAUSE_SECONDS)
        return job


def _result(book: TrialBook, epoch: int, report: SentReport) -> v1.TrainingResult:
    return v1.TrainingResult(
        trial=book.trial.id,
        measurement=v1.Measurement(
            time_seconds=report.time, energy_joules=report.energy, metric=report.metric, epoch=epoch
        ),
        monitor=MONITORS[book.trial.id.trial_number % len(MONITORS)],
    )
