"""The requirements on every trainer's callback; the tests of each trainer run this class."""

from __future__ import annotations

import itertools
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from wattwise import Attempt, BatchSizeOptimizer, Client, fit_attempts, v1
from wattwise.errors import TrainerSetupError, TrainFailError
from wattwise.presentation.states import UNDECIDED

from tests.client.integrations.script import Fit, Script
from tests.client.training.script import StepMonitor, ended, epochs, job_spec, read_line
from tests.live_server import LiveServer
from tests.waiting import wait_until


class Listener:
    """Records its notifications in a list."""

    def __init__(self, events: list[str]) -> None:
        self.on_step_begin = lambda: events.append("begin")
        self.on_step_end = lambda: events.append("end")
        self.on_epoch_end = lambda: events.append("epoch")
        self.close = lambda: events.append("over")


class TrainerConformance:
    """The tests. `fit` trains with the module `tests.client.integrations.<name>`."""

    name: str
    fit: Fit

    @pytest.fixture
    def monitor(self) -> StepMonitor:
        """The energy monitor of the training."""
        return StepMonitor()

    @pytest.fixture
    def bso(self, grpc_server: LiveServer, monitor: StepMonitor) -> Iterator[BatchSizeOptimizer]:
        """The trial of a job with the default batch size 16 and the target 0.9."""
        bso = BatchSizeOptimizer(grpc_server.address, job_spec(), monitor=monitor)
        yield bso
        bso.close()

    @pytest.fixture
    def client(self, grpc_server: LiveServer) -> Iterator[Client]:
        """A client of the same server."""
        with Client(grpc_server.address) as client:
            yield client

    def trial(self, client: Client, bso: BatchSizeOptimizer) -> v1.Trial:
        """The trial as the server has it."""
        return client.get_trial(bso.trial).trial

    def test_every_epoch_is_reported_until_the_target(self, bso: BatchSizeOptimizer, client: Client) -> None:
        """Every epoch is reported, and training stops in the epoch that reaches the target."""
        script = Script(iter([0.1, 0.5, 0.95, 0.99]))
        self.fit(bso, script)
        assert epochs(client, bso.trial) == [1, 2, 3]
        assert script.sizes == [16] * 4 * 3
        trial = self.trial(client, bso)
        assert (trial.converged, trial.end_reason) == (True, v1.END_REASON_TARGET_REACHED)
        assert bso.target_reached
        assert trial.newest.metric == pytest.approx(0.95)

    def test_missed_target_is_raised_at_the_end(self, grpc_server: LiveServer, client: Client) -> None:
        """A training that the server stops without its target ends as usual, and then raises TrainFailError."""
        bso = BatchSizeOptimizer(grpc_server.address, job_spec(max_epochs=2), monitor=StepMonitor())
        script = Script(itertools.repeat(0.1))
        with pytest.raises(TrainFailError):
            self.fit(bso, script)
        assert len(script.sizes) == 8
        assert self.trial(client, bso).end_reason == v1.END_REASON_MAX_EPOCHS

    def test_attempts_until_the_target(self, grpc_server: LiveServer, client: Client) -> None:
        """A miss and a lack of memory are followed by another trial that is built and fitted anew."""

        def run_out() -> None:
            raise torch.OutOfMemoryError("no room")

        scripts = [
            Script(itertools.repeat(0.1)),
            Script(itertools.repeat(0.1), in_step=run_out),
            Script(iter([0.1, 0.95])),
        ]

        def fit(attempt: Attempt) -> Script:
            script = scripts[attempt.number - 1]
            self.fit(bso, script)
            return script

        job = job_spec(max_epochs=2, policy="knowledge_gradient")
        bso = BatchSizeOptimizer(grpc_server.address, job, monitor=StepMonitor())
        assert fit_attempts(bso, fit) is scripts[2]
        found = sorted(client.trials(str(job.job_id)), key=lambda trial: trial.id.trial_number)
        assert [trial.end_reason for trial in found] == [
            v1.END_REASON_MAX_EPOCHS,
            v1.END_REASON_OUT_OF_MEMORY,
            v1.END_REASON_TARGET_REACHED,
        ]
        assert [script.sizes[0] for script in scripts] == [trial.batch_size for trial in found]

    def test_no_attempt_reaches_the_target(self, grpc_server: LiveServer, client: Client) -> None:
        """After the last attempt the miss is raised, once."""

        def fit(_attempt: Attempt) -> None:
            self.fit(bso, Script(itertools.repeat(0.1)))

        job = job_spec(max_epochs=1, policy="knowledge_gradient")
        bso = BatchSizeOptimizer(grpc_server.address, job, monitor=StepMonitor())
        with pytest.raises(TrainFailError, match="2 attempts"):
            fit_attempts(bso, fit, max_tries=2)
        assert len(list(client.trials(str(job.job_id)))) == 2

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (torch.OutOfMemoryError("no room"), v1.END_REASON_OUT_OF_MEMORY),
            (torch.cuda.OutOfMemoryError("no room"), v1.END_REASON_OUT_OF_MEMORY),
            (ZeroDivisionError("a bug"), v1.END_REASON_ERROR),
            (KeyboardInterrupt(), v1.END_REASON_PREEMPTED),
        ],
    )
    def test_exception_ends_the_trial(
        self, bso: BatchSizeOptimizer, client: Client, error: BaseException, reason: v1.EndReason.ValueType
    ) -> None:
        """An exception in a training step leaves the trainer and gives the trial its end reason."""

        def fail() -> None:
            if len(script.sizes) == 6:
                raise error

        script = Script(itertools.repeat(0.1), in_step=fail)
        # Lightning turns KeyboardInterrupt into SystemExit.
        with pytest.raises((type(error), SystemExit)), bso:
            self.fit(bso, script)
        assert (self.trial(client, bso).end_reason, epochs(client, bso.trial)) == (reason, [1])

    @pytest.mark.parametrize(
        ("end", "status", "reason"),
        [
            ("wait", -signal.SIGTERM, v1.END_REASON_PREEMPTED),
            ("out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        ],
    )
    def test_end_of_the_process(
        self, grpc_server: LiveServer, client: Client, end: str, status: int, reason: v1.EndReason.ValueType
    ) -> None:
        """A process that dies of SIGTERM or of an exception in a training step ends its trial with the reason."""
        job_id = f"test-{self.name}-{end}"
        command = [
            sys.executable,
            "-m",
            "tests.client.integrations.process",
            self.name,
            grpc_server.address,
            job_id,
            end,
        ]
        pipe, root = subprocess.PIPE, Path(__file__).parents[3]
        with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                assert read_line(process) == "in a step"
                if end == "wait":
                    process.terminate()
                exit_status, errors = ended(process)
            finally:
                process.kill()
        assert exit_status == status, errors
        (trial,) = client.trials(job_id)
        assert (trial.status in UNDECIDED, trial.end_reason) == (True, reason)

    def test_server_stops_in_the_middle_of_an_epoch(self, bso: BatchSizeOptimizer, client: Client) -> None:
        """Deleting the job stops its training before the epoch is over."""

        def delete() -> None:
            if len(script.sizes) == 5:
                client.delete_job(bso.trial.job.job_id)
                wait_until(lambda: bso.training_finished)

        script = Script(itertools.repeat(0.1), in_step=delete)
        with pytest.raises(TrainFailError, match="deleted"):
            self.fit(bso, script)
        assert 5 <= len(script.sizes) < 8

    def test_trainer_that_stops_first_ends_the_trial(
        self, bso: BatchSizeOptimizer, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A trainer with fewer epochs than the job is warned of before training, and its trial ends with it."""
        with caplog.at_level(logging.WARNING, "wattwise"), pytest.raises(TrainFailError):
            self.fit(bso, Script(itertools.repeat(0.1), epochs=2))
        assert (2, 10, 10) in [record.args for record in caplog.records]
        assert self.trial(client, bso).end_reason == v1.END_REASON_STOPPED_EARLY

    def test_unknown_metric(self, bso: BatchSizeOptimizer) -> None:
        """A metric that the evaluation does not have is an error after the first epoch; it names those it has."""
        script = Script(itertools.repeat(0.1), metric="f1")
        with pytest.raises(TrainerSetupError, match=r"'f1'.*_accuracy"):
            self.fit(bso, script)
        # One epoch: its evaluation shows the metrics.
        assert len(script.sizes) == 4

    def test_evaluation_is_measured(self, bso: BatchSizeOptimizer, client: Client, monitor: StepMonitor) -> None:
        """A window is open while the model trains and while it is evaluated, and none afterwards."""
        open_windows: list[int] = []

        def look() -> None:
            open_windows.append(len(monitor.open))

        self.fit(bso, Script(iter([0.1, 0.95]), in_step=look, in_evaluation=look))
        assert open_windows == [1] * 10
        assert not monitor.open
        assert self.trial(client, bso).newest.time_seconds == 2

    def test_listener_is_notified_of_steps(self, bso: BatchSizeOptimizer) -> None:
        """A listener is notified of steps, of the end of an epoch before its evaluation, and of the end of training."""
        events: list[str] = []

        def evaluate() -> None:
            events.append("evaluation")

        def step() -> None:
            events.append("step")

        script = Script(iter([0.1, 0.95]), in_step=step, in_evaluation=evaluate, power=Listener(events))
        self.fit(bso, script)
        assert events == [*([*["begin", "step", "end"] * 4, "epoch", "evaluation"] * 2), "over"]
