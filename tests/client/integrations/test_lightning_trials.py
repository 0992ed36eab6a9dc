"""What Lightning's Trainer does, and what becomes of the trial: refused, not counted, or ended for a reason."""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.trainers,
    # Lightning's own, which its users see too.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Total length of `.*` across ranks is zero"),
    pytest.mark.filterwarnings("ignore:Found .* in eval mode at the start of training"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
]
pytest.importorskip("lightning", reason="needs Lightning: make test-trainers")

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    Timer,
)
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, IterableDataset
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import ResumeError, TrainerSetupError, TrainFailError
from wattwise.integrations.lightning import WattwiseCallback

from tests.client.integrations.script import EXAMPLES, FEATURES, Script
from tests.client.integrations.with_lightning import Model, loader, trainer
from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer


class Launch:
    """A launch of a job, whose trial has batch size 16 unless the job says otherwise."""

    def __init__(self, server: LiveServer, metrics: Iterator[float], job: Mapping[str, Any], **callback: Any) -> None:
        self.bso = BatchSizeOptimizer(server.address, job_spec(**job), monitor=StepMonitor())
        self.callback = WattwiseCallback(self.bso, "val_accuracy", **callback)
        self.script = Script(metrics)
        self.model = Model(self.script)
        self.server = server

    def trainer(self, **options: Any) -> pl.Trainer:
        """A Trainer with the callback, and further ones."""
        options["callbacks"] = [self.callback, *options.get("callbacks", ())]
        return trainer(self.callback, self.script, **options)

    def fit(self, running: pl.Trainer | None = None, data: Any = None, **options: Any) -> None:
        """Trains with the trial's batch size."""
        running = self.trainer() if running is None else running
        data = loader(EXAMPLES, self.callback.loader_batch_size()) if data is None else data
        running.fit(self.model, data, loader(8, 8), **options)

    def end(self) -> tuple[str, int]:
        """Why the trial ended, and its last epoch."""
        with Client(self.server.address) as client:
            trial = client.get_trial(self.bso.trial).trial
        return v1.EndReason.Name(trial.end_reason).removeprefix("END_REASON_"), trial.newest.epoch


Start = Callable[..., Launch]


@pytest.fixture
def start(grpc_server: LiveServer) -> Iterator[Start]:
    """Starts launches; their trials end after the test, and Ctrl-C works again."""
    launches: list[Launch] = []
    before = signal.getsignal(signal.SIGINT)

    def begin(metrics: Iterator[float] | None = None, /, *, job: Mapping[str, Any] | None = None, **of: Any) -> Launch:
        launches.append(Launch(grpc_server, metrics or itertools.repeat(0.1), job or {}, **of))
        return launches[-1]

    yield begin
    for launch in launches:
        launch.bso.close()
    signal.signal(signal.SIGINT, before)


def reaches(evaluation: int) -> Iterator[float]:
    """Metrics that reach the target in an evaluation."""
    return iter([0.1] * (evaluation - 1) + [0.95])


class Loaders(pl.LightningDataModule):
    """Data whose loader has the sizes of a list, a size per reload."""

    def __init__(self, *sizes: int, examples: int = EXAMPLES) -> None:
        super().__init__()
        self.batch_size = sizes[0]
        self.sizes = iter(sizes)
        self.examples = examples

    def train_dataloader(self) -> DataLoader[Any]:
        """The next loader."""
        return loader(self.examples, next(self.sizes, self.batch_size))

    def val_dataloader(self) -> DataLoader[Any]:
        """The evaluation's data."""
        return loader(8, 8)


class Stream(IterableDataset[Any]):
    """Data without a length and, if `examples` is None, without an end."""

    def __init__(self, examples: int | None) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        numbers = itertools.count() if self.examples is None else range(self.examples)
        return ([torch.zeros(FEATURES)] for _ in numbers)


class Batches:
    """Data with a number of batches, and nothing else."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Any]:
        return iter([[torch.zeros(16, FEATURES)]] * self.number)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"limit_train_batches": 2}, "limit_train_batches is 2"),
        ({"limit_train_batches": 1}, "limit_train_batches is 1"),
        ({"limit_train_batches": 0.5}, "limit_train_batches is 0.5"),
        ({"limit_train_batches": 0}, "limit_train_batches is 0"),
        ({"barebones": True}, "barebones=True"),
        ({"overfit_batches": 1}, "overfit_batches is 1"),
        ({"overfit_batches": 0.25}, "overfit_batches is 0.25"),
        ({"limit_val_batches": 0}, "limit_val_batches is 0"),
        ({"min_epochs": 2}, "min_epochs is 2"),
        ({"min_steps": 9}, "min_steps is 9"),
        ({"max_time": "00:00:10:00"}, "max_time"),
        ({"callbacks": [Timer("00:00:10:00")]}, "Timer"),
        ({"max_steps": 3}, "max_steps is 3"),
        ({"max_epochs": 3, "check_val_every_n_epoch": 4}, "max_epochs is 3.*check_val_every_n_epoch"),
        ({"max_epochs": 0}, "max_epochs=0"),
        ({"val_check_interval": 2}, "val_check_interval is 2.*callback.steps"),
        ({"val_check_interval": 4}, "val_check_interval is 4.*callback.steps"),
        ({"val_check_interval": 2, "check_val_every_n_epoch": None}, "val_check_interval is 2"),
        ({"val_check_interval": 0.3}, "val_check_interval is 0.3"),
        ({"val_check_interval": 0.0}, "val_check_interval is 0"),
        ({"val_check_interval": dt.timedelta(minutes=1)}, "val_check_interval is a time"),
        ({"val_check_interval": 0.5, "check_val_every_n_epoch": 2}, "check_val_every_n_epoch is 2"),
        ({"accumulate_grad_batches": 2}, "16.* 32 .*accumulate_grad_batches=2"),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, "16.* 32 .*accumulate_grad_batches=2"),
        ({"callbacks": [LearningRateFinder()]}, "LearningRateFinder"),
        ({"callbacks": [BatchSizeFinder()]}, "BatchSizeFinder"),
    ],
)
def test_refused_before_training(start: Start, options: dict[str, Any], named: str) -> None:
    """An option that does not train complete epochs of the trial's batch size is refused, by its name."""
    launch = start()
    with pytest.raises(TrainerSetupError, match=named):
        launch.trainer(**options).fit(launch.model, datamodule=Loaders(16))
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (lambda: loader(EXAMPLES, 8), "16.* 8 .*batch_size=8"),
        (lambda: DataLoader(loader(10, 1).dataset, 16, drop_last=True), "drop_last"),
        (lambda: loader(40, 16), "val_check_interval is 0.5.* 3 batches"),
    ],
)
def test_data_that_is_refused(start: Start, data: Callable[[], DataLoader[Any]], named: str) -> None:
    """Data of another batch size, without a batch, or that cannot be divided are refused."""
    launch = start()
    with pytest.raises(TrainerSetupError, match=named):
        launch.fit(launch.trainer(val_check_interval=0.5), data())
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"fast_dev_run": True}, 1), ({"fast_dev_run": 3}, 3), ({"profiler": "simple", "max_epochs": 2}, 8)],
)
def test_dry_run_is_not_counted(
    start: Start, caplog: pytest.LogCaptureFixture, options: dict[str, Any], steps: int
) -> None:
    """A dry run trains, with one warning, but reports nothing; the callback cannot train again."""
    launch = start(itertools.repeat(0.95))
    with caplog.at_level(logging.WARNING, "wattwise"):
        launch.fit(launch.trainer(**options))
    assert len(launch.script.sizes) == steps
    assert launch.end() == ("PREEMPTED", 0)
    assert not launch.callback.state_dict()
    assert [next(iter(options)) in record.getMessage() for record in caplog.records if record.name == "wattwise"] == [
        True
    ]
    with pytest.raises(TrainerSetupError, match="second time"):
        launch.fit()


def stop_in_step(number: int) -> Callable[[Launch], None]:
    """Lets something else stop the trainer in a step."""

    def install(launch: Launch) -> None:
        def stop() -> None:
            if len(launch.script.sizes) == number:
                launch.model.trainer.should_stop = True

        launch.script.in_step = stop

    return install


def skip_rest(launch: Launch) -> None:
    """Lets the model leave out the rest of the second pass from its third batch on."""

    def on_train_batch_start(_batch: Any, index: int) -> int | None:
        return -1 if (launch.model.current_epoch, index) == (1, 2) else None

    launch.model.on_train_batch_start = on_train_batch_start


def nothing(_launch: Launch) -> None:
    """Changes nothing."""


@pytest.mark.parametrize(
    ("options", "change", "error", "end"),
    [
        (
            {"callbacks": [EarlyStopping("val_accuracy", mode="max", patience=2)]},
            nothing,
            TrainFailError,
            ("STOPPED_EARLY", 3),
        ),
        ({"max_epochs": 2}, nothing, TrainFailError, ("STOPPED_EARLY", 2)),
        ({"max_steps": 10}, nothing, TrainFailError, ("STOPPED_EARLY", 2)),
        ({}, stop_in_step(6), TrainFailError, ("STOPPED_EARLY", 1)),
        ({}, stop_in_step(8), TrainFailError, ("STOPPED_EARLY", 2)),
        (
            {"callbacks": [GradientAccumulationScheduler({2: 2})]},
            nothing,
            TrainerSetupError,
            ("ERROR", 2),
        ),
        ({}, skip_rest, TrainerSetupError, ("ERROR", 1)),
        ({}, nothing, TrainFailError, ("MAX_EPOCHS", 10)),
    ],
)
def test_end_without_the_target(
    start: Start,
    options: dict[str, Any],
    change: Callable[[Launch], None],
    error: type[Exception],
    end: tuple[str, int],
) -> None:
    """A training that ends undecided, or changes on its way, is an error, and the trial ends with the reason."""
    launch = start()
    change(launch)
    with pytest.raises(error):
        launch.fit(launch.trainer(**options))
    assert launch.end() == end


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (Loaders(16, 16, 32), ("ERROR", 1)),
        (Loaders(16, 16, 16, 16), ("TARGET_REACHED", 3)),
    ],
)
def test_reloaded_data(start: Start, data: Loaders, end: tuple[str, int]) -> None:
    """Data that are loaded again with another batch size fail the trial."""
    launch = start(reaches(3))
    running = launch.trainer(reload_dataloaders_every_n_epochs=1)
    next(data.sizes)
    if end[0] == "ERROR":
        with pytest.raises(TrainerSetupError, match="changed"):
            running.fit(launch.model, datamodule=data)
    else:
        running.fit(launch.model, datamodule=data)
    assert launch.end() == end


@pytest.mark.parametrize("examples", [EXAMPLES - 1, 2 * EXAMPLES])
def test_number_of_examples_that_changes(start: Start, examples: int) -> None:
    """A pass over another number of examples fails the trial."""
    launch, data = start(), Loaders(16)
    launch.script.in_step = lambda: setattr(data, "examples", examples)
    with pytest.raises(TrainerSetupError, match=f"{examples} examples instead of {EXAMPLES}"):
        launch.trainer(reload_dataloaders_every_n_epochs=1).fit(launch.model, datamodule=data)
    assert launch.end() == ("ERROR", 1)


def test_number_of_batches_that_changes(start: Start) -> None:
    """A pass with another number of batches fails the trial, also if the number of examples is unknown."""

    class Lists(Loaders):
        def train_dataloader(self) -> Any:
            return Batches(8 if launch.script.sizes else 4)

    launch, data = start(), Lists(16)
    with pytest.raises(TrainerSetupError, match="8 steps instead of 4"):
        launch.trainer(reload_dataloaders_every_n_epochs=1).fit(launch.model, datamodule=data)
    assert launch.end() == ("ERROR", 1)


@pytest.mark.parametrize("examples", [EXAMPLES // 2, 2 * EXAMPLES])
def test_stream_that_changes(start: Start, examples: int) -> None:
    """A pass over another number of examples fails the trial, although the data have no length."""
    launch, data = start(), Stream(EXAMPLES)
    launch.script.in_step = lambda: setattr(data, "examples", examples)
    with pytest.raises(TrainerSetupError, match=f"{examples // 16} steps instead of 4"):
        launch.fit(data=DataLoader(data, 16))
    assert launch.end() == ("ERROR", 1)


def test_accumulated_batches_that_change(start: Start) -> None:
    """Another number of accumulated batches fails the trial within its pass."""
    launch = start()
    launch.script.in_step = lambda: setattr(launch.model.trainer, "accumulate_grad_batches", 2)
    with pytest.raises(TrainerSetupError, match=r"changed.*accumulate_grad_batches=2"):
        launch.fit()
    assert launch.end() == ("ERROR", 0)


def test_stream_that_is_stopped_in_a_pass(start: Start) -> None:
    """Without the length of the data, an evaluation in the middle of a pass is not reported either."""
    launch = start(itertools.chain([0.1], itertools.repeat(0.95)))
    stop_in_step(6)(launch)
    with pytest.raises(TrainFailError):
        launch.fit(data=DataLoader(Stream(EXAMPLES), 16))
    assert launch.end() == ("STOPPED_EARLY", 1)


@pytest.mark.parametrize("batch_size", [8, 16, 32])
@pytest.mark.parametrize(
    ("interval", "examples"),
    [
        (lambda _: {}, EXAMPLES),
        (lambda _: {"check_val_every_n_epoch": 2}, 2 * EXAMPLES),
        (lambda _: {"val_check_interval": 0.5}, EXAMPLES / 2),
        (lambda each: {"val_check_interval": each.steps(32)}, 32),
        (lambda each: {"val_check_interval": each.steps(96), "check_val_every_n_epoch": None}, 96),
        (lambda each: {"limit_train_batches": each.steps(32)}, 32),
        (lambda _: {"limit_train_batches": 8}, EXAMPLES),
    ],
)
def test_epochs_have_the_same_examples_with_every_batch_size(
    start: Start, batch_size: int, interval: Callable[[WattwiseCallback], dict[str, Any]], examples: float
) -> None:
    """Every evaluation ends an epoch of the same number of examples, and the third one stops the training."""
    launch = start(reaches(3), job={"default_batch_size": batch_size})
    launch.fit(launch.trainer(**interval(launch.callback)))
    assert launch.end() == ("TARGET_REACHED", 3)
    assert sum(launch.script.sizes) == 3 * examples
    assert set(launch.script.sizes) == {batch_size}


def test_interval_of_a_stream(start: Start) -> None:
    """Data without an end have epochs of a number of examples."""
    launch = start(reaches(2))
    launch.fit(launch.trainer(limit_train_batches=launch.callback.steps(48)), DataLoader(Stream(None), 16))
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), 6)


def test_shares_that_do_not_divide_a_pass(start: Start) -> None:
    """A half of five batches is two; the rest of a pass belongs to the first epoch of the next."""
    launch = start(reaches(4))
    launch.fit(launch.trainer(val_check_interval=0.5), loader(80, 16))
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 4), 9)


def test_accumulated_gradients(start: Start) -> None:
    """`max_per_device` divides the batch size, and intervals count batches."""
    launch = start(reaches(2))
    size = launch.callback.loader_batch_size(max_per_device=6)
    accumulated = launch.callback.accumulate_grad_batches
    assert (size, accumulated) == (4, 4)
    running = launch.trainer(
        accumulate_grad_batches=accumulated,
        val_check_interval=launch.callback.steps(32) * accumulated,
        check_val_every_n_epoch=None,
    )
    launch.fit(running, loader(EXAMPLES, size))
    assert (launch.end(), sum(launch.script.sizes)) == (("TARGET_REACHED", 2), 64)
    assert running.global_step == 4


def test_interval_in_steps_where_batches_count(start: Start) -> None:
    """With accumulated gradients, `val_check_interval=callback.steps(…)` is too short and refused."""
    launch = start()
    size = launch.callback.loader_batch_size(max_per_device=8)
    interval = launch.callback.steps(EXAMPLES)
    with pytest.raises(TrainerSetupError, match=r"val_check_interval.*accumulate_grad_batches"):
        launch.fit(launch.trainer(accumulate_grad_batches=2, val_check_interval=interval), loader(EXAMPLES, size))


def test_both_ways_to_split(start: Start) -> None:
    """The accumulated batches are either given or computed."""
    callback = start().callback
    with pytest.raises(TrainerSetupError, match="max_per_device"):
        callback.loader_batch_size(max_per_device=8, accumulate_grad_batches=2)
    assert callback.loader_batch_size(accumulate_grad_batches=2) == 8
    assert callback.accumulate_grad_batches == 2


def test_constant_schedule_of_accumulation(start: Start) -> None:
    """A GradientAccumulationScheduler may set the number that the batch size needs."""
    launch = start(reaches(2))
    data = loader(EXAMPLES, launch.callback.loader_batch_size(accumulate_grad_batches=2))
    launch.fit(launch.trainer(callbacks=[GradientAccumulationScheduler({0: 2})]), data)
    assert launch.end() == ("TARGET_REACHED", 2)


class TwoOptimizers(Model):
    """A model that steps two optimizers by itself."""

    automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor]) -> None:
        """Overrides the Trainer's hook."""
        loss = super().training_step(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> Any:
        """Overrides the Trainer's hook."""
        return [torch.optim.SGD(self.parameters(), lr=0.01) for _ in range(2)]


def test_several_optimizers(start: Start) -> None:
    """With several optimizers a batch has several steps; epochs are counted in batches."""
    launch = start(reaches(3))
    launch.model = TwoOptimizers(launch.script)
    running = launch.trainer(val_check_interval=launch.callback.steps(32), check_val_every_n_epoch=None)
    launch.fit(running)
    assert (launch.end(), running.global_step) == (("TARGET_REACHED", 3), 12)


class Tuned(Model):
    """A model that a Tuner can tune."""

    lr = 0.01


def test_tuner_before_the_training(start: Start, tmp_path: Path) -> None:
    """A search for the learning rate reports nothing, and the training after it is complete."""
    launch = start(itertools.chain([0.95] * 9, [0.1, 0.95]))
    launch.script.metrics = itertools.repeat(0.95)
    launch.model = Tuned(launch.script)
    running = launch.trainer(default_root_dir=tmp_path, max_epochs=10)
    Tuner(running).lr_find(launch.model, loader(EXAMPLES, 16), loader(8, 8), num_training=8)
    assert launch.end() == ("UNSPECIFIED", 0)
    launch.script.metrics, launch.script.sizes = reaches(2), []
    launch.fit(running)
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), 8)


def test_tuned_batch_size_is_refused(start: Start, tmp_path: Path) -> None:
    """A batch size that a Tuner has found is not that of the trial."""

    class Data(Loaders):
        def train_dataloader(self) -> DataLoader[Any]:
            return loader(EXAMPLES, self.batch_size)

    launch, data = start(), Data(16)
    running = launch.trainer(default_root_dir=tmp_path)
    Tuner(running).scale_batch_size(launch.model, datamodule=data, max_trials=1, init_val=4)
    with pytest.raises(TrainerSetupError, match=r"16.* 4 "):
        running.fit(launch.model, datamodule=data)
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize("again", ["callback", "optimizer"])
def test_second_fit(start: Start, again: str) -> None:
    """A second training of a trial is refused, with the callback or with another one."""
    launch = start(reaches(2))
    launch.fit()
    if again == "optimizer":
        launch.callback = WattwiseCallback(launch.bso, "val_accuracy")
    steps = len(launch.script.sizes)
    with pytest.raises(TrainerSetupError, match="second time"):
        launch.fit()
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), steps)


def test_failure_outside_of_a_fit(start: Start) -> None:
    """An error in `trainer.validate()` does not end the trial."""
    launch = start(reaches(2))
    running = launch.trainer()

    def fail() -> None:
        raise ZeroDivisionError

    launch.script.in_evaluation = fail
    with pytest.raises(ZeroDivisionError):
        running.validate(launch.model, loader(8, 8), verbose=False)
    launch.script.in_evaluation = lambda: None
    launch.fit(running)
    assert launch.end() == ("TARGET_REACHED", 2)


# Checkpoints


@dataclass(frozen=True)
class Resume:
    """A training that is interrupted and resumed.

    Attributes:
        interrupted: the step in which it is interrupted.
        saved: the step of its newest checkpoint.
        evaluations: those after which the resumed training reaches the target.
        steps: those that it trains.
        epochs: those of the trial at the end.
        saving: when checkpoints are saved.
        options: of the Trainer.
    """

    interrupted: int
    saved: int
    evaluations: int
    steps: int
    epochs: int
    saving: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[WattwiseCallback], dict[str, Any]] = lambda _: {}


@pytest.fixture
def preempted(start: Start, tmp_path: Path) -> Callable[..., tuple[Launch, Path]]:
    """Trains until Ctrl-C in a step, and returns the launch and its newest checkpoint."""

    def train(step: int, *, case: Resume | None = None, **saving: Any) -> tuple[Launch, Path]:
        launch = start()

        def interrupt() -> None:
            if len(launch.script.sizes) == step:
                raise KeyboardInterrupt

        launch.script.in_step = interrupt
        options = {} if case is None else case.options(launch.callback)
        saving |= {} if case is None else case.saving
        keeps = ModelCheckpoint(tmp_path, save_last=True, **saving)
        with pytest.raises(SystemExit):
            launch.fit(launch.trainer(callbacks=[keeps], enable_checkpointing=True, **options))
        assert launch.end()[0] == "PREEMPTED"
        return launch, tmp_path / "last.ckpt"

    return train


Preempted = Callable[..., tuple[Launch, Path]]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        # Saved at the end of passes.
        Resume(interrupted=10, saved=8, evaluations=2, steps=8, epochs=4),
        # In the middle of the second pass, and of the first.
        Resume(interrupted=7, saved=6, evaluations=2, steps=6, epochs=3, saving={"every_n_train_steps": 3}),
        Resume(interrupted=3, saved=2, evaluations=2, steps=6, epochs=2, saving={"every_n_train_steps": 2}),
        # Before an evaluation, which Lightning then leaves out: the first epoch, known already, has two passes.
        Resume(interrupted=5, saved=4, evaluations=2, steps=8, epochs=2, saving={"every_n_train_steps": 4}),
        # In the middle of a step that an exception ended.
        Resume(interrupted=7, saved=6, evaluations=2, steps=6, epochs=3, saving={"save_on_exception": True}),
        Resume(
            interrupted=6,
            saved=5,
            evaluations=2,
            # Lightning counts the step that the exception ended.
            steps=6,
            epochs=3,
            saving={"save_on_exception": True},
            options=lambda each: {"val_check_interval": each.steps(64), "check_val_every_n_epoch": None},
        ),
        Resume(
            interrupted=8,
            saved=7,
            evaluations=2,
            steps=3,
            epochs=5,
            saving={"every_n_train_steps": 7},
            options=lambda _: {"val_check_interval": 0.5},
        ),
        Resume(
            interrupted=10, saved=8, evaluations=2, steps=16, epochs=3, options=lambda _: {"check_val_every_n_epoch": 2}
        ),
    ],
)
def test_resume(start: Start, preempted: Preempted, case: Resume, given: bool) -> None:
    """A resumed training continues its trial, with its time, from where the checkpoint was saved."""
    first, checkpoint = preempted(case.interrupted, case=case)
    assert torch.load(checkpoint, weights_only=True)["global_step"] == case.saved
    trial, metrics = first.bso.trial, reaches(case.evaluations)
    again = start(metrics, job={"job_id": trial.job_id}, **({"checkpoint": checkpoint} if given else {}))
    # The policy repeats the batch size of a preempted trial.
    assert (again.callback.batch_size, again.bso.trial.number == 1) == (16, given)
    again.fit(again.trainer(**case.options(again.callback)), ckpt_path=checkpoint)
    assert again.bso.trial.number == trial.number
    assert (again.end(), len(again.script.sizes)) == (("TARGET_REACHED", case.epochs), case.steps)
    with Client(again.server.address) as client:
        measured = list(client.measurements(trial))
    assert [each.time_seconds >= each.epoch for each in measured] == [True] * case.epochs


def test_resume_with_another_batch_size(start: Start, preempted: Preempted) -> None:
    """The callback with the checkpoint gets the batch size of its trial; without, another one is refused."""
    first, checkpoint = preempted(10)
    job = {"job_id": first.bso.trial.job_id}
    # A decided trial in between lets the policy go on to the next batch size.
    between = start(reaches(1), job=job)
    between.fit()
    other = start(job=job)
    assert other.callback.batch_size != 16
    with pytest.raises(ResumeError, match="batch size"):
        other.fit(ckpt_path=checkpoint)
    assert other.end() == ("PREEMPTED", 0)
    again = start(reaches(1), job=job, checkpoint=checkpoint)
    assert again.callback.batch_size == 16
    again.fit(ckpt_path=checkpoint)
    assert again.end() == ("TARGET_REACHED", 3)


def test_resume_with_other_data(start: Start, preempted: Preempted) -> None:
    """A training that continues with another number of examples is refused."""
    first, checkpoint = preempted(10)
    again = start(job={"job_id": first.bso.trial.job_id}, checkpoint=checkpoint)
    with pytest.raises(TrainerSetupError, match=r"every 4 steps.* every 2"):
        again.fit(data=loader(EXAMPLES // 2, 16), ckpt_path=checkpoint)
    assert not again.script.sizes
    assert again.end() == ("PREEMPTED", 2)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The checkpoint of three passes with batch size 32, without a trial."""
    script, path = Script(itertools.repeat(0.1)), tmp_path / "foreign.ckpt"
    running = trainer(None, script, callbacks=[], max_epochs=3)
    running.fit(Model(script), loader(EXAMPLES, 32), loader(8, 8))
    running.save_checkpoint(path)
    return path


def test_training_that_begins_in_the_middle(start: Start, foreign: Path) -> None:
    """A checkpoint without a trial is refused."""
    launch = start()
    with pytest.raises(TrainerSetupError, match="count_from_zero"):
        launch.fit(ckpt_path=foreign)
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 8), ({"check_val_every_n_epoch": 2}, 12), ({"val_check_interval": 0.5}, 4), ({"max_steps": 12}, 6)],
)
def test_count_from_zero(start: Start, foreign: Path, options: dict[str, Any], steps: int) -> None:
    """On request such a checkpoint is where the trial begins, and its resumed training continues it."""
    launch = start(reaches(2), count_from_zero=True)
    launch.fit(launch.trainer(**options), ckpt_path=foreign)
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), steps)


def test_resume_of_a_trial_that_was_counted_from_zero(start: Start, foreign: Path, tmp_path: Path) -> None:
    """The checkpoints of such a trial know where it began."""
    launch = start(count_from_zero=True)

    def interrupt() -> None:
        if len(launch.script.sizes) == 6:
            raise KeyboardInterrupt

    launch.script.in_step = interrupt
    keeps = ModelCheckpoint(tmp_path, save_last=True, every_n_train_steps=1)
    with pytest.raises(SystemExit):
        launch.fit(launch.trainer(callbacks=[keeps], enable_checkpointing=True), ckpt_path=foreign)
    again = start(reaches(1), job={"job_id": launch.bso.trial.job_id}, checkpoint=tmp_path / "last.ckpt")
    again.fit(ckpt_path=tmp_path / "last.ckpt")
    assert (again.end(), len(again.script.sizes)) == (("TARGET_REACHED", 2), 3)


@pytest.mark.parametrize("passed", ["nothing", "foreign", "older"])
def test_callback_and_fit_have_different_checkpoints(
    start: Start, preempted: Preempted, foreign: Path, tmp_path: Path, passed: str
) -> None:
    """A trainer that does not continue where the trial does is refused."""
    first, checkpoint = preempted(10, save_top_k=-1)
    path = {"nothing": None, "foreign": foreign, "older": tmp_path / "epoch=0-step=4.ckpt"}[passed]
    again = start(job={"job_id": first.bso.trial.job_id}, checkpoint=checkpoint)
    error = ResumeError if passed == "older" else TrainerSetupError
    with pytest.raises(error, match=r"after epoch 2|pass the same"):
        again.fit(ckpt_path=path)
    assert not again.script.sizes
    assert again.end() == ("PREEMPTED", 2)


def test_checkpoint_for_a_test(start: Start, preempted: Preempted) -> None:
    """A checkpoint that is loaded for an evaluation has no effect on the trial."""
    _, checkpoint = preempted(10)
    launch = start(reaches(2))
    running, metrics = launch.trainer(), launch.script.metrics
    launch.script.metrics = itertools.repeat(0.1)
    running.validate(launch.model, loader(8, 8), ckpt_path=checkpoint, verbose=False)
    launch.script.metrics = metrics
    launch.fit(running)
    assert launch.end() == ("TARGET_REACHED", 2)


@pytest.mark.parametrize("epochs", [2, 10])
def test_leftover_checkpoint(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, epochs: int) -> None:
    """The checkpoint of a decided trial trains nothing, with a warning, and the new trial does not count."""
    first, checkpoint = start(reaches(2)), tmp_path / "last.ckpt"
    running = first.trainer()
    first.fit(running)
    running.save_checkpoint(checkpoint)
    again = start(job={"job_id": first.bso.trial.job_id}, checkpoint=checkpoint)
    with caplog.at_level(logging.WARNING, "wattwise"):
        again.fit(again.trainer(max_epochs=epochs), ckpt_path=checkpoint)
    assert not again.script.sizes
    assert again.end() == ("TARGET_REACHED", 2)


def test_checkpoint_that_cannot_be_read(start: Start, tmp_path: Path) -> None:
    """A file without a checkpoint, or with objects of unknown classes, is an error; its content may be given."""
    with pytest.raises(TrainerSetupError, match=r"missing\.ckpt"):
        start(checkpoint=tmp_path / "missing.ckpt")
    (tmp_path / "text").write_text("text", encoding="utf-8")
    with pytest.raises(TrainerSetupError):
        start(checkpoint=tmp_path / "text")
    content = {"callbacks": {}, "hyper_parameters": argparse.Namespace(rate=0.1)}
    torch.save(content, tmp_path / "objects.ckpt")
    with pytest.raises(TrainerSetupError, match="weights_only=False"):
        start(checkpoint=tmp_path / "objects.ckpt")
    launch = start(reaches(1), checkpoint=content)
    launch.fit()
    assert launch.end() == ("TARGET_REACHED", 1)
