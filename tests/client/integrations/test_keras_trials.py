"""What Keras does, and what becomes of the trial: refused, not counted, ended for a reason, or killed and continued."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.trainers,
    # Keras saves a model with a call that NumPy deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:Limiting "),
]
os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="needs Keras: make test-trainers")

import keras
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from wattwise import BatchSizeOptimizer, Client, EndReason, fit_attempts, v1
from wattwise.errors import ResumeError, TrainerSetupError, TrainFailError
from wattwise.integrations.keras import WattwiseCallback, saved_state
from wattwise.rpc.calls import trial_id

from tests.client.integrations import keras_resume
from tests.client.integrations.keras_resume import SITUATIONS
from tests.client.integrations.ranks import processes
from tests.client.integrations.script import EXAMPLES, Script
from tests.client.integrations.with_keras import Model, X, Y, train
from tests.client.training.script import StepMonitor, job_spec, read_line
from tests.live_server import LiveServer

STATE = "wattwise.json"


class Launch:
    """A launch of a job, whose trial has batch size 16 unless the job says otherwise."""

    def __init__(self, server: LiveServer, metrics: Iterator[float], job: Mapping[str, Any], **callback: Any) -> None:
        self.bso = BatchSizeOptimizer(server.address, job_spec(**job), monitor=StepMonitor())
        self.metric = callback.pop("metric", "val_accuracy")
        self.callback = WattwiseCallback(self.bso, self.metric, **callback)
        self.script = Script(metrics)
        self.optimizer: Any = keras.optimizers.SGD()
        self.model = Model(self.script)
        self.server = server

    def fit(self, **options: Any) -> None:
        """Trains with the trial's batch size."""
        if "batch_size" not in options:
            options["batch_size"] = self.callback.fit_batch_size()
        train(self.callback, self.script, self.optimizer, self.model, **options)

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


class Batches(keras.utils.PyDataset):
    """Data of batches that a list of numbers counts, a number for each pass."""

    def __init__(self, *numbers: int, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size, self.numbers = batch_size, list(numbers)

    @property
    def num_batches(self) -> int | None:
        """Overrides Keras's method."""
        return self.numbers[0]

    def __getitem__(self, index: int) -> Any:
        return X[: self.batch_size], Y[: self.batch_size]


class Hidden(keras.utils.PyDataset):
    """Four batches of a size that they do not state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @property
    def num_batches(self) -> int | None:
        """Overrides Keras's method."""
        return 4

    def __getitem__(self, index: int) -> Any:
        return X[: self.size], Y[: self.size]


def stream(*passes: int, size: int = 16) -> Iterator[Any]:
    """Batches without an end, or of so many."""
    numbers = itertools.count() if not passes else range(passes[0])
    return ((X[:size], Y[:size]) for _ in numbers)


def loader(examples: int, batch_size: int, *, eights: bool = False, **options: Any) -> Any:
    """The data as a DataLoader of PyTorch, on request with a sampler of batches of 8."""
    x, y = (torch.tensor(part[:examples], dtype=torch.float32) for part in (X, Y))
    data = TensorDataset(x, y)
    if eights:
        return DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 8, drop_last=False))
    return DataLoader(data, batch_size, **options)


# Refused before the first batch


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 8}, "16.* 8 .*batch_size=8.*fit_batch_size"),
        ({"batch_size": None}, "16.* 32 .*fit_batch_size"),
        ({"x": loader(EXAMPLES, 8), "y": None, "batch_size": None}, "16.* 8 .*fit_batch_size"),
        ({"x": Batches(4, batch_size=8), "y": None, "batch_size": None}, "16.* 8 .*fit_batch_size"),
        ({"x": Hidden(8), "y": None, "batch_size": None}, "16.* 8 .*fit_batch_size"),
        ({"x": loader(EXAMPLES, 1, eights=True), "y": None, "batch_size": None}, "16.* 8 .*fit_batch_size"),
        ({"steps_per_epoch": 2}, r"steps_per_epoch=2 .*callback\.steps\(examples\)"),
        ({"x": stream(), "y": None, "batch_size": None, "steps_per_epoch": 4}, r"callback\.steps\(examples\)"),
        ({"validation_freq": [1, 3]}, r"validation_freq=\[1, 3\]"),
        ({"epochs": 1, "validation_freq": 2}, "at least one epoch"),
        ({"initial_epoch": 2}, "initial_epoch=2.*checkpoint=.*count_from_zero=True"),
        ({"initial_epoch": 10}, "no epoch.*initial_epoch"),
    ],
)
def test_refused_before_training(start: Start, options: dict[str, Any], named: str) -> None:
    """A fit() that does not train complete epochs of the trial's batch size is refused; the option is named."""
    launch = start()
    with pytest.raises(TrainerSetupError, match=named):
        launch.fit(**options)
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


def test_data_without_a_batch(start: Start) -> None:
    """Data that leave no batch are refused; a model that has seen no data is Keras's own error."""
    launch = start()
    launch.model.compile(launch.optimizer, "mse")
    launch.model.evaluate(X[:8], Y[:8], verbose=0)
    launch.optimizer.build(launch.model.trainable_variables)
    with pytest.raises(TrainerSetupError, match="no batch"):
        launch.model.fit(loader(10, 16, drop_last=True), callbacks=[launch.callback], shuffle=False, verbose=0)
    assert launch.end() == ("PREEMPTED", 0)


def test_steps_that_do_not_divide_a_pass(start: Start) -> None:
    """Epochs that would end with the data are refused."""
    launch = start()
    with pytest.raises(TrainerSetupError, match=r"steps_per_epoch=3 .* 4 batches.*validation_freq"):
        launch.fit(steps_per_epoch=launch.callback.steps(48))
    assert launch.end() == ("PREEMPTED", 0)


def test_first_epoch_between_two_evaluations(start: Start) -> None:
    """A training that begins between two evaluations would have a short first epoch."""
    launch = start(count_from_zero=True)
    with pytest.raises(TrainerSetupError, match=r"initial_epoch=1 .*validation_freq=2"):
        launch.fit(initial_epoch=1, validation_freq=2)
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize("how", ["fitted", "recompiled", "loaded"])
@pytest.mark.parametrize("count_from_zero", [False, True])
def test_model_that_was_trained_before(start: Start, tmp_path: Path, how: str, count_from_zero: bool) -> None:
    """A trained model is refused, unless each launch begins with one."""
    first, launch = start(reaches(1)), start(reaches(2), count_from_zero=count_from_zero)
    first.fit()
    if how == "loaded":
        first.model.save_weights(tmp_path / "model.weights.h5")
        launch.optimizer.build(launch.model.trainable_variables)
        launch.model.compile(launch.optimizer, "mse")
        launch.model.load_weights(tmp_path / "model.weights.h5")
    else:
        launch.model = first.model
        launch.model.script = launch.script
    if how == "fitted":
        launch.optimizer = first.optimizer
    if count_from_zero:
        launch.fit()
        assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), 8)
        return
    with pytest.raises(TrainerSetupError, match="count_from_zero=True"):
        launch.fit()
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


@pytest.mark.parametrize("again", ["callback", "optimizer"])
@pytest.mark.parametrize("epochs", [1, 10])
def test_second_fit(start: Start, again: str, epochs: int) -> None:
    """A second training of a trial is refused, with the callback or another one, whether or not it was decided."""
    launch = start(reaches(2))
    if epochs == 1:
        with pytest.raises(TrainFailError):
            launch.fit(epochs=epochs)
    else:
        launch.fit()
    before = launch.end(), len(launch.script.sizes)
    if again == "optimizer":
        launch.callback = WattwiseCallback(launch.bso, "val_accuracy")
    with pytest.raises(TrainerSetupError, match="BatchSizeOptimizer and a callback"):
        launch.fit(initial_epoch=5)
    assert (launch.end(), len(launch.script.sizes)) == before


def test_fit_again_after_a_refusal(start: Start) -> None:
    """A refused trial cannot train any more, not even a corrected fit()."""
    launch = start(reaches(1))
    for callback in (launch.callback, launch.callback, WattwiseCallback(launch.bso, "val_accuracy")):
        launch.callback = callback
        with pytest.raises(TrainerSetupError):
            launch.fit(batch_size=16 if callback is not launch.callback else 8)
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


# Not counted


@pytest.mark.parametrize("limit", ["max_epochs", "max_steps_per_epoch"])
def test_dry_run_is_not_counted(start: Start, caplog: pytest.LogCaptureFixture, limit: str) -> None:
    """A training that a setting of Keras shortens reports nothing, with one warning."""
    launch, configure = start(itertools.repeat(0.95)), getattr(keras.config, f"set_{limit}")
    configure(1)
    try:
        with caplog.at_level(logging.WARNING, "wattwise"):
            launch.fit()
    finally:
        configure(None)
    assert launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)
    assert [limit in record.getMessage() for record in caplog.records if record.name == "wattwise"] == [True]


# Epochs


@pytest.mark.parametrize("batch_size", [8, 16, 32])
@pytest.mark.parametrize(
    ("options", "examples"),
    [
        (lambda _: {}, EXAMPLES),
        (lambda _: {"validation_freq": 2}, 2 * EXAMPLES),
        (lambda each: {"steps_per_epoch": each.steps(EXAMPLES)}, EXAMPLES),
        (lambda each: {"steps_per_epoch": each.steps(32)}, 32),
        (lambda each: {"steps_per_epoch": each.steps(32), "validation_freq": 3}, 96),
        (lambda each: {"x": loader(EXAMPLES, each.fit_batch_size()), "y": None, "batch_size": None}, EXAMPLES),
    ],
)
def test_epochs_have_the_same_examples_with_every_batch_size(
    start: Start, batch_size: int, options: Callable[[WattwiseCallback], dict[str, Any]], examples: int
) -> None:
    """Every evaluation ends an epoch of the same number of examples, and the third one stops the training."""
    launch = start(reaches(3), job={"default_batch_size": batch_size})
    launch.fit(**options(launch.callback))
    assert launch.end() == ("TARGET_REACHED", 3)
    assert launch.script.sizes == [batch_size] * (3 * examples // batch_size)


def test_epochs_of_a_stream(start: Start) -> None:
    """Data without an end have epochs of a number of examples."""
    launch = start(reaches(2))
    launch.fit(x=stream(), y=None, batch_size=None, steps_per_epoch=launch.callback.steps(96))
    assert (launch.end(), len(launch.script.sizes)) == (("TARGET_REACHED", 2), 12)


def test_metric_of_the_training(start: Start) -> None:
    """Without validation a metric of the training is reported after every epoch of Keras."""
    launch = start(metric="loss", job={"target_metric": 1e9, "higher_is_better": False})
    launch.fit(validation_data=None, validation_freq=2)
    assert launch.end() == ("TARGET_REACHED", 1)


def test_largest_batch_per_device(start: Start) -> None:
    """`max_per_device` divides the batch size, accumulates the rest, and steps count batches."""
    launch = start(reaches(2))
    size = launch.callback.fit_batch_size(max_per_device=6)
    accumulated = launch.callback.gradient_accumulation_steps
    launch.optimizer = keras.optimizers.SGD(gradient_accumulation_steps=accumulated)
    launch.fit(batch_size=size, steps_per_epoch=launch.callback.steps(32))
    assert (size, accumulated, launch.script.sizes) == (4, 4, [4] * 16)
    assert int(launch.optimizer.iterations) == 4
    assert launch.end() == ("TARGET_REACHED", 2)
    assert launch.callback.fit_batch_size(max_per_device=99) == 16
    assert launch.callback.gradient_accumulation_steps is None
    with pytest.raises(TrainerSetupError, match="either"):
        launch.callback.fit_batch_size(max_per_device=6, gradient_accumulation_steps=2)


# Ends without the target


def in_step(number: int, action: Callable[[Launch], object]) -> Callable[[Launch], None]:
    """Lets something happen in a step."""

    def install(launch: Launch) -> None:
        def act() -> None:
            if len(launch.script.sizes) == number:
                action(launch)

        launch.script.in_step = act

    return install


def stop(launch: Launch) -> None:
    """Stops the training as another callback does."""
    launch.model.stop_training = True


def break_weights(launch: Launch) -> None:
    """Makes the loss NaN."""
    launch.model.set_weights([np.full_like(weights, np.nan) for weights in launch.model.get_weights()])


def nothing(_launch: Launch) -> None:
    """Changes nothing."""


@pytest.mark.parametrize(
    ("change", "options", "error", "end"),
    [
        (nothing, {"callbacks": [keras.callbacks.EarlyStopping("val_accuracy", mode="max", patience=2)]}, None, 3),
        (in_step(6, break_weights), {"callbacks": [keras.callbacks.TerminateOnNaN()]}, None, 1),
        (in_step(6, stop), {}, None, 1),
        (in_step(8, stop), {}, None, 2),
        (in_step(8, stop), {"validation_freq": 2}, None, 1),
        (nothing, {"epochs": 2}, None, 2),
        (nothing, {"epochs": 5, "validation_freq": 2}, None, 2),
        (nothing, {"validation_data": None}, "validation_data", ("ERROR", 0)),
        (nothing, {"x": stream(6), "y": None, "batch_size": None}, "2 batches instead of 4", ("ERROR", 1)),
        (nothing, {"x": stream(4), "y": None, "batch_size": None}, "0 batches instead of 4", ("ERROR", 1)),
    ],
)
def test_end_without_the_target(
    start: Start, change: Callable[[Launch], None], options: dict[str, Any], error: str | None, end: Any
) -> None:
    """A training that ends undecided, or changes on its way, is an error, and the trial ends with the reason."""
    launch = start()
    change(launch)
    if isinstance(options.get("x"), Iterator):
        options = {**options, "steps_per_epoch": launch.callback.steps(EXAMPLES)}
    with pytest.raises(TrainFailError if error is None else TrainerSetupError, match=error):
        launch.fit(**options)
    assert launch.end() == (("STOPPED_EARLY", end) if error is None else end)


def test_stop_in_the_first_epoch(start: Start) -> None:
    """A training without a whole epoch has failed."""
    launch = start()
    in_step(2, stop)(launch)
    with pytest.raises(TrainFailError):
        launch.fit()
    assert launch.end() == ("COMPLETED", 0)


class Stream(torch.utils.data.IterableDataset[Any]):
    """Data without a length."""

    batches = 4

    def __iter__(self) -> Iterator[Any]:
        x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
        return iter(zip(x[: 16 * self.batches], y, strict=False))


@pytest.mark.parametrize("batches", [3, 0])
def test_data_that_shrink_fail_the_trial(start: Start, batches: int) -> None:
    """An epoch with fewer batches than the first one fails the trial, also one without any."""
    launch, data = start(), Stream()
    in_step(4, lambda _: setattr(data, "batches", batches))(launch)
    with pytest.raises(TrainerSetupError, match=f"{batches} batches instead of 4"):
        launch.fit(x=DataLoader(data, 16), y=None, batch_size=None)
    assert launch.end() == ("ERROR", 1)


def test_stream_that_is_stopped_in_the_first_epoch(start: Start) -> None:
    """Without the length of the data, an epoch that is stopped within is not reported either."""
    launch = start(itertools.repeat(0.95))
    in_step(2, stop)(launch)
    with pytest.raises(TrainFailError):
        launch.fit(x=DataLoader(Stream(), 16), y=None, batch_size=None)
    assert launch.end() == ("COMPLETED", 0)


def test_generator_of_another_batch_size(start: Start) -> None:
    """The first batch of a generator shows its size."""
    launch = start()
    with pytest.raises(TrainerSetupError, match=r"16.* 8 .*fit_batch_size"):
        launch.fit(x=stream(size=8), y=None, batch_size=None, steps_per_epoch=launch.callback.steps(EXAMPLES))
    assert not launch.script.sizes
    assert launch.end() == ("PREEMPTED", 0)


def test_data_of_less_than_a_batch(start: Start) -> None:
    """A data set with fewer examples than the batch size is one batch."""
    launch = start(reaches(2))
    launch.fit(x=X[:10], y=Y[:10])
    assert (launch.end(), launch.script.sizes) == (("TARGET_REACHED", 2), [10, 10])


def test_batch_size_that_changes(start: Start) -> None:
    """Batches that grow after the first epoch fail the trial."""
    launch, data = start(), Hidden(16)
    in_step(4, lambda _: setattr(data, "size", 32))(launch)
    with pytest.raises(TrainerSetupError, match=r"changed.*16.* 32 "):
        launch.fit(x=data, y=None, batch_size=None)
    assert launch.end() == ("ERROR", 1)


def test_accumulated_steps_that_change(start: Start) -> None:
    """Another number of accumulated steps during the training fails the trial."""
    launch = start()
    size = launch.callback.fit_batch_size(gradient_accumulation_steps=2)
    launch.optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    in_step(8, lambda each: setattr(each.optimizer, "gradient_accumulation_steps", 4))(launch)
    with pytest.raises(TrainerSetupError, match=r"changed.*gradient_accumulation_steps=4"):
        launch.fit(batch_size=size)
    assert launch.end() == ("ERROR", 1)


@pytest.mark.parametrize("swallowed", ["in a handler", "around fit()"])
def test_interrupt_that_is_swallowed(start: Start, swallowed: str) -> None:
    """A training that Ctrl-C ends counts as preempted, however the program handles it."""
    if swallowed == "in a handler":
        signal.signal(signal.SIGINT, lambda _number, _frame: stop(launch))
    launch = start()
    in_step(6, lambda _: os.kill(os.getpid(), signal.SIGINT))(launch)
    if swallowed == "in a handler":
        launch.fit()
    else:
        with pytest.raises(KeyboardInterrupt):
            launch.fit()
        launch.bso.close()
    assert launch.end() == ("PREEMPTED", 1)


def test_others_wrap_up_before_the_miss_is_raised(start: Start) -> None:
    """Callbacks that follow in the list still end their training."""
    launch, ended = start(), list[str]()
    other = keras.callbacks.LambdaCallback(on_train_end=lambda _logs: ended.append("other"))
    with pytest.raises(TrainFailError):
        launch.fit(epochs=1, callbacks=[other])
    assert ended == ["other"]


# Checkpoints


@pytest.mark.parametrize(("name", "ranks"), [*((name, 1) for name in SITUATIONS), ("within an epoch", 2)])
def test_killed_training_continues_its_trial(grpc_server: LiveServer, tmp_path: Path, name: str, ranks: int) -> None:
    """A training that is killed continues its trial, with all energy that has led to its model, and no epoch twice."""
    arguments = [grpc_server.address, str(tmp_path), name]
    with processes("keras_resume", arguments, ranks) as running:
        assert [read_line(process) for process in running] == ["stopped"] * ranks
    assert [process.returncode for process in running] == [-signal.SIGKILL] * ranks
    if ranks == 1:
        keras_resume.train(grpc_server.address, tmp_path, name)
    else:
        with processes("keras_resume", [*arguments, "continued"], ranks) as running:
            ended = [process.communicate(timeout=100) for process in running]
        assert [process.returncode for process in running] == [0] * ranks, ended
    with Client(grpc_server.address) as client:
        (trial,) = client.trials(keras_resume.job_id(name, ranks))
    situation = SITUATIONS[name]
    assert (trial.converged, trial.newest.epoch) == (True, situation.epochs)
    assert trial.newest.energy_joules == pytest.approx(situation.energy)
    assert not (tmp_path / "0" / STATE).exists()


@pytest.fixture
def preempted(start: Start, tmp_path: Path) -> Launch:
    """A launch that Ctrl-C has interrupted in its third epoch, with its state in the folder."""
    launch = start(checkpoint=tmp_path)

    def press(_launch: Launch) -> None:
        raise KeyboardInterrupt

    in_step(10, press)(launch)
    with pytest.raises(KeyboardInterrupt):
        launch.fit()
    launch.bso.close(EndReason.PREEMPTED)
    return launch


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"initial_epoch": 7}, r"epochs \[0, 1, 2\].*epoch 7.*initial_epoch"),
        ({"initial_epoch": 2, "validation_freq": 2}, "every 4 steps.*every 8.*validation_freq"),
        ({"initial_epoch": 2, "x": X[:32], "y": Y[:32]}, "every 4 steps.*every 2"),
    ],
)
def test_continuation_that_does_not_fit(
    start: Start, preempted: Launch, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    """A training that does not continue where the trial does, or as it did, is refused."""
    again = start(job={"job_id": preempted.bso.trial.job_id}, checkpoint=tmp_path)
    with pytest.raises(TrainerSetupError, match=named):
        again.fit(**options)
    assert not again.script.sizes
    assert again.end() == ("PREEMPTED", 2)


def test_model_without_its_epoch(start: Start, preempted: Launch, tmp_path: Path) -> None:
    """A loaded model that fit() is to train from the start is refused."""
    again = start(job={"job_id": preempted.bso.trial.job_id}, checkpoint=tmp_path)
    again.model, again.optimizer = preempted.model, preempted.optimizer
    again.model.script = again.script
    with pytest.raises(TrainerSetupError, match="initial_epoch"):
        again.fit()
    assert not again.script.sizes


@pytest.mark.parametrize("epoch", [0, 2])
def test_continuation_with_a_new_model(
    start: Start, preempted: Launch, tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    """A new model continues the trial with a warning; the time of what it repeats is added."""
    job = {"job_id": preempted.bso.trial.job_id}
    again = start(itertools.repeat(0.95), job=job, checkpoint=tmp_path)
    with caplog.at_level(logging.WARNING, "wattwise"):
        again.fit(initial_epoch=epoch)
    assert any(record.getMessage().startswith("fit() begins") for record in caplog.records)
    assert trial_id(again.bso.trial) == trial_id(preempted.bso.trial)
    assert (again.end(), len(again.script.sizes)) == (("TARGET_REACHED", 3), 4 * (3 - epoch))


def test_leftover_of_a_decided_trial(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The state of a decided trial trains at most the batch after which Keras stops, with a warning."""
    first = start(reaches(2), checkpoint=tmp_path)
    kept: list[str] = []
    first.script.in_evaluation = lambda: kept.append((tmp_path / STATE).read_text())
    first.fit()
    assert not (tmp_path / STATE).exists()
    (tmp_path / STATE).write_text(kept[-1])
    with caplog.at_level(logging.WARNING, "wattwise"):
        again = start(job={"job_id": first.bso.trial.job_id}, checkpoint=tmp_path)
    assert "nothing is trained" in caplog.text
    again.fit(initial_epoch=2)
    assert (again.end(), len(again.script.sizes)) == (("TARGET_REACHED", 2), 1)
    assert not (tmp_path / STATE).exists()


def test_state_of_a_failed_trial(start: Start, tmp_path: Path) -> None:
    """A trial that an exception has ended cannot continue; the error names the file to remove."""
    first = start(checkpoint=tmp_path)
    in_step(6, lambda _: 1 / 0)(first)
    with pytest.raises(ZeroDivisionError), first.bso:
        first.fit()
    with pytest.raises(ResumeError, match=STATE):
        start(job={"job_id": first.bso.trial.job_id}, checkpoint=tmp_path)


def test_attempts_with_a_checkpoint(start: Start, tmp_path: Path) -> None:
    """A loop over attempts continues the attempt of the state, and the next attempt begins without one."""
    first = start(checkpoint=tmp_path, job={"policy": "knowledge_gradient", "max_epochs": 3})
    in_step(10, lambda _: (_ for _ in ()).throw(KeyboardInterrupt))(first)
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    first.bso.close(EndReason.PREEMPTED)
    state, before = saved_state(tmp_path), first.bso.trial
    assert state is not None
    job = job_spec(job_id=before.job_id, policy="knowledge_gradient", max_epochs=3)
    bso = BatchSizeOptimizer(first.server.address, job, monitor=StepMonitor())
    bso.load_state_dict(state)
    seen: list[tuple[int, int]] = []

    def fit(_attempt: Any) -> None:
        seen.append((bso.trial.number, bso.last_epoch))
        callback = WattwiseCallback(bso, "val_accuracy", checkpoint=tmp_path)
        script = Script(itertools.repeat(0.1) if len(seen) == 1 else reaches(1))
        size = callback.fit_batch_size()
        train(callback, script, keras.optimizers.SGD(), batch_size=size, initial_epoch=bso.last_epoch)

    fit_attempts(bso, fit)
    assert seen == [(before.number, 2), (before.number + 1, 0)]
    assert not (tmp_path / STATE).exists()


def test_state_that_cannot_be_read(start: Start, tmp_path: Path) -> None:
    """A file of something else, or a folder that is none, is an error before the trial is asked for."""
    (tmp_path / STATE).write_text("{")
    for checkpoint in (tmp_path, tmp_path / STATE, "gs://bucket/backup"):
        with pytest.raises(TrainerSetupError):
            start(checkpoint=checkpoint)


def test_state_that_cannot_be_saved(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A state that cannot be saved does not end the training; one warning says so."""
    launch = start(reaches(3), checkpoint=tmp_path / "file" / "folder")
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING, "wattwise"):
        launch.fit()
    assert launch.end() == ("TARGET_REACHED", 3)
    assert caplog.text.count("cannot be saved") == 1
