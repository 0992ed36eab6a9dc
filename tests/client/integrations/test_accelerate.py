"""Checkpoints of accelerate, which have the state of the trial."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trainers
pytest.importorskip("accelerate", reason="needs accelerate: make test-trainers")

import torch
from accelerate import Accelerator, PartialState
from wattwise import BatchSizeOptimizer, Client, data_loader, v1
from wattwise.errors import ResumeError, TrainerSetupError

from tests.client.integrations.ranks import last_lines, processes
from tests.client.integrations.script import FEATURES, Script
from tests.client.integrations.with_accelerate import STATE, Training, newest
from tests.client.training.script import StepMonitor, job_spec, read_line
from tests.live_server import LiveServer


class Launch:
    """A launch of a job, whose trial has batch size 16: four steps in an epoch."""

    def __init__(
        self, server: LiveServer, *metrics: float, job_id: str | None = None, early: Path | None = None
    ) -> None:
        job = job_spec(policy="knowledge_gradient", **({"job_id": job_id} if job_id else {}))
        self.bso = BatchSizeOptimizer(server.address, job, monitor=StepMonitor())
        if early is not None:
            self.bso.load_state_dict(torch.load(early / STATE, weights_only=True))
        self.script = Script(iter(metrics) if metrics else itertools.repeat(0.1))
        self.server = server

    def train(self, checkpoint: Path | None = None, folder: Path | None = None, save_steps: int | None = None) -> None:
        """Trains, after `load_state` of a checkpoint."""
        with self.bso:
            training = Training(self.bso, self.script)
            if checkpoint is not None:
                training.load(checkpoint)
            for _ in self.bso.epochs():
                training.epoch(folder, save_steps)
                self.bso.on_evaluate(next(self.script.metrics))
                if folder is not None and save_steps is None:
                    training.save(folder)

    @property
    def trials(self) -> list[v1.Trial]:
        """The trials of the job, by number."""
        with Client(self.server.address) as client:
            found = client.trials(self.bso.trial.job_id)
            return sorted(found, key=lambda trial: trial.id.trial_number)

    @property
    def ends(self) -> list[tuple[str, int]]:
        """Why the trials ended, and their last epochs."""
        return [
            (v1.EndReason.Name(trial.end_reason).removeprefix("END_REASON_"), trial.newest.epoch)
            for trial in self.trials
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the checkpoints."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def saved(server: LiveServer, folder: Path, *, steps: int, save_steps: int | None = None) -> tuple[str, Path]:
    """The job of a launch that is preempted in a step, and its newest checkpoint."""
    launch = Launch(server)

    def interrupt() -> None:
        if len(launch.script.sizes) == steps:
            raise KeyboardInterrupt

    launch.script.in_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        launch.train(folder=folder, save_steps=save_steps)
    last = newest(folder)
    assert last is not None
    return launch.bso.trial.job_id, last


def pin(server: LiveServer, job_id: str, size: int) -> None:
    """Makes the job's next new trial have a batch size."""
    with Client(server.address) as client:
        client.set_pinned_batch_size(job_id, size)


@pytest.mark.parametrize("early", [True, False])
def test_checkpoint_continues_its_trial(grpc_server: LiveServer, folder: Path, *, early: bool) -> None:
    """The same trial goes on, whether its state is loaded before the batch size is known or by load_state()."""
    job_id, last = saved(grpc_server, folder, steps=9)
    pin(grpc_server, job_id, 16)
    launch = Launch(grpc_server, 0.3, 0.95, job_id=job_id, early=last if early else None)
    launch.train(last)
    assert launch.script.sizes == [16] * 8
    assert launch.ends == [("TARGET_REACHED", 4)] + ([] if early else [("PREEMPTED", 0)])
    assert launch.trials[0].newest.time_seconds == 4


def test_checkpoint_of_another_batch_size(grpc_server: LiveServer, folder: Path) -> None:
    """A new trial of another batch size cannot continue a checkpoint's trial; it ends without blame."""
    job_id, last = saved(grpc_server, folder, steps=9)
    pin(grpc_server, job_id, 32)
    launch = Launch(grpc_server, job_id=job_id)
    with pytest.raises(ResumeError, match="batch size 16"):
        launch.train(last)
    assert launch.ends == [("PREEMPTED", 2), ("PREEMPTED", 0)]


def test_checkpoint_within_an_epoch(grpc_server: LiveServer, folder: Path) -> None:
    """The rest of the epoch is trained; the cost up to the checkpoint is part of the trial."""
    job_id, last = saved(grpc_server, folder, steps=7, save_steps=3)
    assert last.name == "6"
    launch = Launch(grpc_server, 0.95, job_id=job_id, early=last)
    launch.train(last)
    assert launch.script.sizes == [16] * 2
    assert launch.ends == [("TARGET_REACHED", 2)]
    # A second for each window of the monitor: to step 3, 4, 6 and 8.
    assert launch.trials[0].newest.time_seconds == 4


def test_checkpoint_of_another_epoch(grpc_server: LiveServer, folder: Path) -> None:
    """A model of another epoch than the state is refused."""
    job_id, last = saved(grpc_server, folder, steps=9)
    launch = Launch(grpc_server, job_id=job_id, early=folder / "4")
    with pytest.raises(ResumeError, match=r"after epoch 1, .* epoch 2"):
        launch.train(last)
    assert launch.ends == [("PREEMPTED", 2)]


def test_checkpoint_of_a_trial_that_is_over(grpc_server: LiveServer, folder: Path) -> None:
    """Nothing is trained."""
    launch = Launch(grpc_server, 0.1, 0.95)
    launch.train(folder=folder)
    last = newest(folder)
    again = Launch(grpc_server, job_id=launch.bso.trial.job_id, early=last)
    again.train(last)
    assert not again.script.sizes
    assert (again.bso.target_reached, again.ends) == (True, [("TARGET_REACHED", 2)])


@pytest.mark.parametrize("early", [True, False])
def test_checkpoint_of_an_attempt(grpc_server: LiveServer, folder: Path, *, early: bool) -> None:
    """The first attempt continues the trial of the checkpoint; the next one trains from the start."""
    job_id, last = saved(grpc_server, folder, steps=9)
    pin(grpc_server, job_id, 16)
    launch = Launch(grpc_server, *[0.1] * 8, 0.95, job_id=job_id, early=last if early else None)
    checkpoint: Path | None = last
    for attempt in launch.bso.attempts():
        training = Training(launch.bso, launch.script)
        if checkpoint is not None:
            training.load(checkpoint)
            checkpoint = None
        for _ in attempt.epochs():
            training.epoch()
            attempt.on_evaluate(next(launch.script.metrics))
    assert launch.bso.target_reached
    assert launch.ends == [("MAX_EPOCHS", 10), *([] if early else [("PREEMPTED", 0)]), ("TARGET_REACHED", 1)]


class Counter:
    """An object of a program that a checkpoint has."""

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"count": 1}

    def load_state_dict(self, _state: object) -> None:
        """Restores nothing."""


@pytest.mark.parametrize(
    ("objects", "error", "end"),
    [
        ([], RuntimeError, "ERROR"),
        ([Counter(), Counter()], RuntimeError, "ERROR"),
        ([Counter()], ResumeError, "PREEMPTED"),
    ],
)
def test_checkpoint_without_a_trial(
    grpc_server: LiveServer, folder: Path, objects: list[Counter], error: type[Exception], end: str
) -> None:
    """A foreign checkpoint is refused: by accelerate if it has another number of objects, otherwise by its content."""
    plain = Accelerator(cpu=True)
    plain.register_for_checkpointing(*objects)
    model = torch.nn.Linear(FEATURES, 1)
    plain.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    plain.save_state(str(folder / "4"))
    launch = Launch(grpc_server)
    with pytest.raises(error):
        launch.train(folder / "4")
    assert not launch.script.sizes
    assert launch.ends == [(end, 0)]


@pytest.mark.parametrize(("ranks", "ranks_after"), [(1, 1), (2, 2), (2, 1)])
def test_killed_and_resumed(grpc_server: LiveServer, folder: Path, ranks: int, ranks_after: int) -> None:
    """A training that SIGKILL ends in the second epoch continues its trial, also with another number of processes."""
    job_id = f"test-killed-accelerate-{ranks}-{ranks_after}"
    arguments = ["with_accelerate", grpc_server.address, job_id, str(folder)]
    with processes("killed", arguments, ranks) as running:
        assert [read_line(process) for process in running] == ["in a step"] * ranks
    with processes("killed", arguments, ranks_after) as running:
        assert last_lines(running) == [str([16 // ranks_after] * 8)] * ranks_after
    with Client(grpc_server.address) as client:
        (trial,) = client.trials(job_id)
        assert (trial.converged, trial.newest.epoch) == (True, 3)


def test_accelerate_launch(grpc_server: LiveServer) -> None:
    """Two processes of accelerate's command train one trial."""
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
    ]
    command += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0", "--module"]
    command += ["tests.client.integrations.rank", "with_accelerate", grpc_server.address, "callback"]
    root, environment = Path(__file__).parents[3], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.count(str([8] * 4 * 3))) == (0, 2), done.stderr
    with Client(grpc_server.address) as client:
        (trial,) = client.trials("test-ranks-with_accelerate")
        assert (trial.converged, trial.newest.epoch) == (True, 3)


def test_loader_that_would_be_split_twice(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`data_loader` splits the data over the ranks, as `prepare` does: only one of them may."""
    ranks: dict[str, Any] = {"rank": 0, "world_size": 2, "broadcast": lambda message: message}
    data = torch.rand(64, FEATURES)
    with BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor(), **ranks) as bso:
        Accelerator(cpu=True)
        assert len(data_loader(bso, data)) == 4
        monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)  # noqa: SLF001 - accelerate's
        with pytest.raises(TrainerSetupError, match="per_rank_batch_size"):
            data_loader(bso, data)
        assert len(data_loader(bso, data, sampler=range(32))) == 4
