"""What the Trainer of Hugging Face does, and what becomes of the trial: refused, or ended for a reason."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trainers
pytest.importorskip("transformers", reason="needs Transformers: make test-trainers")

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import get_last_checkpoint
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import ResumeError, TrainerSetupError, TrainFailError
from wattwise.integrations.huggingface import WattwiseCallback
from wattwise.rpc.calls import trial_id

from tests.client.integrations.ranks import last_lines, processes
from tests.client.integrations.script import EXAMPLES, Script
from tests.client.integrations.with_huggingface import DATA, trainer
from tests.client.training.script import StepMonitor, job_spec, read_line
from tests.live_server import LiveServer


class Launch:
    """A launch of a job, whose trial has batch size 16 unless the job says otherwise."""

    def __init__(
        self, server: LiveServer, *metrics: float, job: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.bso = BatchSizeOptimizer(server.address, job_spec(**(job or {})), monitor=StepMonitor())
        self.callback = WattwiseCallback(self.bso, "eval_accuracy", **options)
        self.script = Script(iter(metrics) if metrics else itertools.repeat(0.1))
        self.server = server

    def train(
        self, *others: Any, data: Any = None, loader: Any = None, checkpoint: str | None = None, **options: Any
    ) -> None:
        """Trains with the trial's batch size; `loader` is what a Trainer returns that overrides its loader."""
        running = trainer(self.callback, self.script, **(self.callback.batch_arguments() | options))
        running.train_dataset = DATA if data is None else data
        if loader is not None:
            running.get_train_dataloader = lambda: running.accelerator.prepare(loader(running.data_collator))
        for other in others:
            running.add_callback(other)
        running.train(resume_from_checkpoint=checkpoint)

    @property
    def end(self) -> tuple[str, int]:
        """Why the trial ended, and its last epoch."""
        with Client(self.server.address) as client:
            trial = client.get_trial(self.bso.trial).trial
        return v1.EndReason.Name(trial.end_reason).removeprefix("END_REASON_"), trial.newest.epoch


EIGHT: BatchSampler = BatchSampler(SequentialSampler(DATA), 8, drop_last=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_steps": 3}, "at least one epoch"),
        ({"num_train_epochs": 0.5}, "at least one epoch"),
        ({"eval_strategy": "steps", "eval_steps": 4}, "eval_steps"),
        ({"eval_strategy": "steps", "eval_steps": 0.5, "max_steps": 8}, "eval_steps"),
        ({"eval_strategy": "steps", "eval_steps": 0.06}, "eval_steps=0.06 .* 2.4 steps .*callback.steps"),
        ({"per_device_train_batch_size": 8}, "gradient_accumulation_steps"),
        ({"loader": lambda collate: DataLoader(DATA, 8, collate_fn=collate)}, r"8 examples instead of 16"),
        ({"loader": lambda collate: DataLoader(DATA, batch_sampler=EIGHT, collate_fn=collate)}, "8 examples instead"),
    ],
)
def test_refused_before_training(grpc_server: LiveServer, options: dict[str, Any], names: str) -> None:
    """The error names the option; the trial ends as preempted, because its batch size is not the cause."""
    launch = Launch(grpc_server)
    with pytest.raises(TrainerSetupError, match=names):
        launch.train(**options)
    assert not launch.script.sizes
    assert launch.end == ("PREEMPTED", 0)


def test_data_without_a_batch(grpc_server: LiveServer) -> None:
    """Data that leave no batch are refused when the Trainer is created, by the option that drops them."""
    launch = Launch(grpc_server, job={"batch_sizes": [128], "default_batch_size": 128})
    with pytest.raises(TrainerSetupError, match=r"dataloader_drop_last=True.* 64 examples.* 128"):
        launch.train(dataloader_drop_last=True)
    assert launch.end == ("PREEMPTED", 0)


def test_second_training(grpc_server: LiveServer) -> None:
    """A callback is for one training: a second one is refused, and the first is what the trial was."""
    launch = Launch(grpc_server, 0.1, 0.95, 0.99)
    launch.train()
    with pytest.raises(TrainerSetupError, match="second time"):
        launch.train()
    assert launch.end == ("TARGET_REACHED", 2)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"num_train_epochs": 2}, ("STOPPED_EARLY", 2)),
        ({"max_steps": 4}, ("STOPPED_EARLY", 1)),
        # The last half of an epoch is evaluated, and no epoch.
        ({"max_steps": 6}, ("STOPPED_EARLY", 1)),
    ],
)
def test_trainer_that_stops_first(grpc_server: LiveServer, options: dict[str, Any], end: tuple[str, int]) -> None:
    """A trainer that stops before a decision has missed the target, and train() raises the error."""
    launch = Launch(grpc_server)
    with pytest.raises(TrainFailError):
        launch.train(**options)
    assert launch.end == end


class Hook(TrainerCallback):
    """Another callback, which acts in a hook if its state has a number of steps."""

    def __init__(self, hook: str, steps: int, action: Callable[..., None]) -> None:
        def act(args: TrainingArguments, state: TrainerState, control: TrainerControl, **_kwargs: Any) -> None:
            if state.global_step == steps:
                action(args, control)

        setattr(self, hook, act)


class Stream(IterableDataset[Any]):
    """Data without a length."""

    examples = EXAMPLES

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(DATA), self.examples)


def stop(_args: TrainingArguments, control: TrainerControl) -> None:
    """Stops the training."""
    control.should_training_stop = True


@pytest.mark.parametrize(
    ("max_steps", "others", "end"),
    [
        (40, [], ("TARGET_REACHED", 2)),
        # The second pass is cut, and the first one.
        (6, [], ("STOPPED_EARLY", 1)),
        (3, [], ("COMPLETED", 0)),
        (40, [Hook("on_step_end", 6, stop)], ("STOPPED_EARLY", 1)),
        (40, [Hook("on_step_end", 2, stop)], ("COMPLETED", 0)),
    ],
)
def test_stream(grpc_server: LiveServer, max_steps: int, others: list[Any], end: tuple[str, int]) -> None:
    """A pass over data without a length counts if the data have ended, and not if the training has."""
    launch = Launch(grpc_server, 0.1 if end[1] else 0.95, 0.95)
    with contextlib.nullcontext() if end[0] == "TARGET_REACHED" else pytest.raises(TrainFailError):
        launch.train(*others, data=Stream(), max_steps=max_steps)
    launch.bso.close()
    assert launch.end == end


@pytest.mark.parametrize("examples", [EXAMPLES // 2, 2 * EXAMPLES])
def test_stream_that_changes(grpc_server: LiveServer, examples: int) -> None:
    """A pass over another number of examples than the first one fails the trial."""
    launch, data = Launch(grpc_server), Stream()
    launch.script.in_step = lambda: setattr(data, "examples", examples)
    with pytest.raises(TrainerSetupError, match=f"{examples // 16} steps instead of 4"):
        launch.train(data=data, max_steps=40)
    assert launch.end == ("ERROR", 1)


@pytest.mark.parametrize(("hook", "steps"), [("on_epoch_begin", 4), ("on_step_end", 5)])
def test_accumulated_steps_that_change(grpc_server: LiveServer, hook: str, steps: int) -> None:
    """Another number of accumulated steps during the training fails the trial."""
    launch = Launch(grpc_server)

    def accumulate(args: TrainingArguments, _control: TrainerControl) -> None:
        args.gradient_accumulation_steps = 2

    with pytest.raises(TrainerSetupError, match=r"changed.*16.* 32 .*gradient_accumulation_steps=2"):
        launch.train(Hook(hook, steps, accumulate))
    assert launch.end == ("ERROR", 1)


@pytest.mark.parametrize("prefix", ["eval", "small"])
def test_evaluation_that_the_program_asks_for(grpc_server: LiveServer, prefix: str) -> None:
    """An evaluation in the middle of an epoch is not the trial's, whatever its metrics are."""
    launch = Launch(grpc_server, 0.99, 0.1, 0.95)
    running = trainer(launch.callback, launch.script, **launch.callback.batch_arguments())
    evaluate = Hook("on_step_end", 2, lambda *_: running.evaluate(metric_key_prefix=prefix))
    running.add_callback(evaluate)
    running.train()
    assert launch.end == ("TARGET_REACHED", 2)


def test_early_stopping(grpc_server: LiveServer, tmp_path: Path) -> None:
    """EarlyStoppingCallback ends the trial as stopped early."""
    launch = Launch(grpc_server)
    options: dict[str, Any] = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    with pytest.raises(TrainFailError):
        launch.train(EarlyStoppingCallback(2), output_dir=str(tmp_path), save_strategy="epoch", **options)
    assert launch.end == ("STOPPED_EARLY", 3)


@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize(("examples", "epochs"), [(32, 2), (64, 1), (128, 0.5)])
def test_evaluation_by_steps(grpc_server: LiveServer, size: int, examples: int, epochs: float) -> None:
    """An epoch is a number of examples, the same for every batch size: a part of a pass, or several passes."""
    job = {"batch_sizes": [size], "default_batch_size": size}
    launch = Launch(grpc_server, 0.1, 0.2, 0.95, job=job)
    launch.train(eval_strategy="steps", eval_steps=launch.callback.steps(examples))
    assert launch.end == ("TARGET_REACHED", 3)
    assert sum(launch.script.sizes) == 3 * examples == 3 * EXAMPLES / epochs


def test_evaluation_by_share(grpc_server: LiveServer) -> None:
    """Below 1, eval_steps is a share of the whole training."""
    launch = Launch(grpc_server, 0.1, 0.95)
    launch.train(eval_strategy="steps", eval_steps=0.05)
    assert launch.end == ("TARGET_REACHED", 2)
    assert sum(launch.script.sizes) == EXAMPLES


@pytest.mark.parametrize(("size", "steps"), [(8, 4), (16, 2), (32, 1)])
def test_apply_to_parsed_arguments(grpc_server: LiveServer, tmp_path: Path, size: int, steps: int) -> None:
    """Steps are scaled from the default batch size, and the user's accumulated steps stay."""
    job: dict[str, Any] = {"job_id": f"test-apply-{size}", "batch_sizes": [8, 16, 32], "default_batch_size": 16}
    Launch(grpc_server, job=job).bso.close(EndReason.PREEMPTED)
    with Client(grpc_server.address) as client:
        client.set_pinned_batch_size(job["job_id"], size)
    launch = Launch(grpc_server, job=job)
    assert launch.callback.batch_size == size
    parsed = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=4,
        warmup_steps=2,
        max_steps=40,
    )
    applied = launch.callback.apply(parsed)
    assert (applied.per_device_train_batch_size, applied.gradient_accumulation_steps) == (size // 2, 2)
    assert (applied.eval_steps, applied.save_steps, applied.max_steps) == (steps, 2 * steps, 20 * steps)
    launch.bso.close(EndReason.PREEMPTED)


def test_max_per_device(grpc_server: LiveServer) -> None:
    """The largest size per device that divides the batch size, and accumulated steps for the rest."""
    launch = Launch(grpc_server, 0.95)
    arguments = launch.callback.batch_arguments(max_per_device=6)
    assert arguments == {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    with pytest.raises(TrainerSetupError, match="max_per_device"):
        launch.callback.batch_arguments(max_per_device=6, gradient_accumulation_steps=2)
    options: dict[str, Any] = {**arguments}
    launch.train(**options)
    assert launch.end == ("TARGET_REACHED", 1)


def saved(server: LiveServer, folder: Path, **options: Any) -> tuple[Launch, str]:
    """A launch that was preempted after two epochs, and its checkpoint of the second."""
    launch = Launch(server, 0.1, 0.2, 0.3)

    def interrupt() -> None:
        if len(launch.script.sizes) == 9:
            raise KeyboardInterrupt

    launch.script.in_step = interrupt
    with pytest.raises(KeyboardInterrupt), launch.bso:
        launch.train(output_dir=str(folder), **({"save_strategy": "epoch"} | options))
    last = get_last_checkpoint(str(folder))
    assert last is not None
    return launch, last


@pytest.mark.parametrize("early", [True, False])
def test_checkpoint_continues_its_trial(grpc_server: LiveServer, tmp_path: Path, *, early: bool) -> None:
    """Resumed, the same trial goes on, whether the callback knows the checkpoint or finds it when training begins."""
    first, last = saved(grpc_server, tmp_path)
    job = {"job_id": first.bso.trial.job_id}
    launch = Launch(grpc_server, 0.3, 0.95, job=job, checkpoint=last if early else None)
    launch.train(output_dir=str(tmp_path), checkpoint=last)
    assert launch.bso.trial.number == first.bso.trial.number
    assert launch.end == ("TARGET_REACHED", 4)
    with Client(grpc_server.address) as client:
        ends = [trial.end_reason for trial in client.trials(job["job_id"]) if trial.newest.epoch == 0]
    assert ends == [] if early else [v1.END_REASON_PREEMPTED]


def test_checkpoint_of_another_batch_size(grpc_server: LiveServer, tmp_path: Path) -> None:
    """A new trial of another batch size cannot continue a checkpoint's trial; it ends without blame."""
    first, last = saved(grpc_server, tmp_path)
    job_id = first.bso.trial.job_id
    with Client(grpc_server.address) as client:
        client.set_pinned_batch_size(job_id, 32)
    launch = Launch(grpc_server, job={"job_id": job_id})
    with pytest.raises(ResumeError, match="batch size 16"):
        launch.train(output_dir=str(tmp_path), checkpoint=last)
    assert launch.end == ("PREEMPTED", 0)


@pytest.mark.parametrize("counted", [True, False])
def test_checkpoint_without_a_trial(grpc_server: LiveServer, tmp_path: Path, *, counted: bool) -> None:
    """A foreign checkpoint is refused, unless the user asks to count from zero."""
    plain = Script(itertools.repeat(0.1), epochs=1)
    foreign = trainer(
        WattwiseCallback.__new__(WattwiseCallback), plain, output_dir=str(tmp_path), per_device_train_batch_size=16
    )
    foreign.remove_callback(WattwiseCallback)
    foreign.args.save_strategy = "epoch"
    foreign.train()
    last = get_last_checkpoint(str(tmp_path))
    launch = Launch(grpc_server, 0.1, 0.95, checkpoint=last, count_from_zero=counted)
    if counted:
        launch.train(output_dir=str(tmp_path), checkpoint=last)
        assert launch.end == ("TARGET_REACHED", 2)
    else:
        with pytest.raises(TrainerSetupError, match="count_from_zero"):
            launch.train(output_dir=str(tmp_path), checkpoint=last)
        assert launch.end == ("PREEMPTED", 0)


def test_trial_of_a_checkpoint_without_the_checkpoint(grpc_server: LiveServer, tmp_path: Path) -> None:
    """A trainer that starts from scratch does not train the trial of a checkpoint."""
    first, last = saved(grpc_server, tmp_path)
    launch = Launch(grpc_server, job={"job_id": first.bso.trial.job_id}, checkpoint=last)
    with pytest.raises(TrainerSetupError, match="from the beginning"):
        launch.train()
    assert launch.end == ("PREEMPTED", 2)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"data": DATA[:32]}, "every 4 steps.* every 2"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
        ({"data": Stream(), "max_steps": 40}, "without a length.*save_strategy"),
    ],
)
def test_continuation_that_does_not_fit(
    grpc_server: LiveServer, tmp_path: Path, options: dict[str, Any], names: str
) -> None:
    """A training that continues with other data, or repeats a part of a pass, is refused."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    first, last = saved(grpc_server, tmp_path, **saving)
    launch = Launch(grpc_server, job={"job_id": first.bso.trial.job_id}, checkpoint=last)
    steps = len(launch.script.sizes)
    with pytest.raises(TrainerSetupError, match=names):
        launch.train(output_dir=str(tmp_path), checkpoint=last, **options)
    assert len(launch.script.sizes) == steps
    assert launch.end[0] == "PREEMPTED"


def test_checkpoint_that_another_callback_saves(grpc_server: LiveServer, tmp_path: Path) -> None:
    """A checkpoint has the trial's state although it was asked for after the callback was notified."""
    launch = Launch(grpc_server)

    def save(_args: TrainingArguments, control: TrainerControl) -> None:
        control.should_save = True

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), launch.bso:
        launch.train(Hook("on_step_end", 2, save), Hook("on_step_end", 3, interrupt), output_dir=str(tmp_path))
    last = get_last_checkpoint(str(tmp_path))
    again = Launch(grpc_server, 0.95, job={"job_id": launch.bso.trial.job_id}, checkpoint=last)
    again.train(output_dir=str(tmp_path), checkpoint=last)
    assert trial_id(again.bso.trial) == trial_id(launch.bso.trial)
    assert (again.end, len(again.script.sizes)) == (("TARGET_REACHED", 1), 2)


def test_folder_that_is_no_checkpoint(grpc_server: LiveServer, tmp_path: Path) -> None:
    """The error names the folder."""
    with pytest.raises(TrainerSetupError, match=tmp_path.name):
        Launch(grpc_server, checkpoint=tmp_path)


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_and_resumed(grpc_server: LiveServer, tmp_path: Path, ranks: int) -> None:
    """A training that SIGKILL ends in the second epoch continues its trial from the checkpoint of the first."""
    job_id = f"test-killed-huggingface-{ranks}"
    arguments = ["with_huggingface", grpc_server.address, job_id, str(tmp_path)]
    with processes("killed", arguments, ranks) as running:
        for process in running:
            # The Trainer prints its evaluations.
            while read_line(process) != "in a step":
                pass
    with processes("killed", arguments, ranks) as running:
        assert last_lines(running) == [str([16 // ranks] * 8)] * ranks
    with Client(grpc_server.address) as client:
        (trial,) = client.trials(job_id)
        assert (trial.converged, trial.newest.epoch) == (True, 3)
