"""Wattwise in the Trainer of Hugging Face Transformers: `pip install "wattwise[huggingface]"`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

try:
    import torch
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "wattwise.integrations.huggingface needs PyTorch and Transformers: "
        f'pip install "wattwise[huggingface]" ({error})',
        name=error.name,
    ) from error

from wattwise.errors import TrainerSetupError
from wattwise.integrations.steps import StepListener
from wattwise.integrations.training import Training, devices_of_all_ranks
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("per_device_train_batch_size", "gradient_accumulation_steps")


class WattwiseCallback(TrainerCallback):
    """Reports every epoch's evaluation, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="eval_accuracy")  # asks for the batch size
            args = TrainingArguments(..., **callback.batch_arguments(), eval_strategy="epoch")
            Trainer(..., args=args, callbacks=[callback]).train()

    A trial that is over without its target stops the training as usual; once the trainer has wrapped up, `train()`
    raises `TrainFailError`. An exception that leaves the block or ends the process ends the trial and says why.

    Time and energy run from the beginning of `train()`; the evaluation after an epoch is part of the epoch.
    Evaluations at other times, such as `trainer.evaluate()` after the training, are not reported.

    In a training of several processes, call `torch.distributed.init_process_group()` before the callback is made.

    Args:
        bso: the trial's.
        metric: name of the metric as the evaluation gives it, such as "eval_accuracy" or "eval_loss".
        power: `PowerLimitOptimizer(bso)`, to be told of every training step; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that do not know of each other yet.
        WattwiseError: whatever `get_batch_size` raises.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._training = Training(bso, metric, power)
        # Between the end of an epoch and its report; the names are those of the evaluations in between.
        self._report_is_due = False
        self._names: set[str] = set()

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The trial's, which knows the decision."""
        return self._training.bso

    @property
    def batch_size(self) -> int:
        """The trial's batch size, which is the global one."""
        return self._training.batch_size

    def batch_arguments(
        self,
        *,
        gradient_accumulation_steps: int | None = None,
        per_device_train_batch_size: int | None = None,
        devices: int | None = None,
    ) -> dict[str, int]:
        """The arguments of `TrainingArguments` that make up the trial's batch size.

        Args:
            gradient_accumulation_steps: given, the size per device follows from it; by default 1.
            per_device_train_batch_size: given instead, the accumulated steps follow from it.
            devices: how many train together; by default all ranks, or all GPUs that a single process sees.

        Raises:
            TrainerSetupError: if it does not come out even; says which sizes would.
        """
        steps, size = gradient_accumulation_steps, per_device_train_batch_size
        devices = _devices() if devices is None else devices
        if size is None:
            steps = 1 if steps is None else steps
            size = _SPLIT.size_for(self._training.batch, devices=devices, steps=steps)
        elif steps is None:
            steps = _SPLIT.steps_for(self._training.batch, devices=devices, size=size)
        _SPLIT.check(self._training.batch, devices=devices, steps=steps, size=size)
        return {_SPLIT.size: size, _SPLIT.steps: steps}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks the arguments and opens the measurement window.

        Raises:
            TrainerSetupError: if they do not fit the trial; says what to set.
        """
        for fault in _faults(args):
            raise TrainerSetupError(fault)
        _SPLIT.check(
            self._training.batch,
            devices=args.world_size * max(1, args.n_gpu),
            steps=args.gradient_accumulation_steps,
            size=args.per_device_train_batch_size,
        )
        self._training.begin(state.num_train_epochs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tells of the step."""
        self._training.steps.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Tells of the step, and stops in the middle of an epoch if the server has said so."""
        self._training.steps.end()
        if self._training.finished:
            control.should_training_stop = True

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes sure that the epoch before was reported."""
        self._refuse_missing_report()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Waits for the evaluation that follows."""
        self._training.steps.end_epoch()
        self._report_is_due = True
        self._names.clear()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reports the epoch, and stops the training if that decides the trial."""
        if not (self._training.running and self._report_is_due):
            return
        metrics = metrics or {}
        if not self._training.has(metrics):
            # Several evaluation sets are evaluated one by one, and one of them has the metric.
            self._names.update(metrics)
            return
        self._report_is_due = False
        if self._training.report(metrics):
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._refuse_missing_report()
        self._training.end()

    def _refuse_missing_report(self) -> None:
        if self._report_is_due:
            raise self._training.missing(self._names)


def _devices() -> int:
    """The ranks, or what a single process gives to DataParallel."""
    ranks = devices_of_all_ranks()
    return ranks if ranks > 1 else max(1, torch.cuda.device_count())


def _faults(args: TrainingArguments) -> Iterator[str]:
    """What would report another thing than every epoch, or train with another batch size."""
    if args.eval_strategy != "epoch":
        yield (
            f"eval_strategy is {args.eval_strategy.value!r}, but the server hears of every epoch: "
            'set eval_strategy="epoch"'
        )
    if args.eval_delay:
        yield f"eval_delay is {args.eval_delay}, but the server hears of every epoch: leave it 0"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size changes the batch size that the server chose: leave it off"
    if args.accelerator_config.split_batches:
        yield "split_batches divides per_device_train_batch_size among the processes: leave it off"
