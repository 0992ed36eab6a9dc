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
from wattwise.integrations.callback import CallbackTrial
from wattwise.integrations.steps import StepListener
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("per_device_train_batch_size", "gradient_accumulation_steps")


class WattwiseCallback(TrainerCallback):
    """Reports every epoch's evaluation, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="eval_accuracy")  # gets the batch size
            args = TrainingArguments(..., **callback.batch_arguments(), eval_strategy="epoch")
            Trainer(..., args=args, callbacks=[callback]).train()

    If the trial ends without its target, the trainer stops as usual, and `train()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception that leaves the block or ends the process
    ends the trial with that reason.

    Time and energy are measured from the beginning of `train()`; an epoch includes its evaluation. Other evaluations,
    such as `trainer.evaluate()` after the training, are not reported.

    With several processes, the callback calls `torch.distributed.init_process_group()` unless that has been done.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric in the evaluation, such as "eval_accuracy" or "eval_loss".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._trial = CallbackTrial(bso, metric, power)
        # True from the end of an epoch to its report; the names are the metrics of the evaluations in between.
        self._report_is_due = False
        self._names: set[str] = set()

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    def batch_arguments(
        self,
        *,
        gradient_accumulation_steps: int | None = None,
        per_device_train_batch_size: int | None = None,
        devices: int | None = None,
    ) -> dict[str, int]:
        """The arguments of `TrainingArguments` that add up to the trial's batch size.

        Args:
            gradient_accumulation_steps: the accumulated steps (default 1); determines the size per device.
            per_device_train_batch_size: the size per device; determines the accumulated steps.
            devices: the number of devices; by default all ranks, or all GPUs that a single process sees.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        steps, size = gradient_accumulation_steps, per_device_train_batch_size
        devices = _devices(self._trial.ranks) if devices is None else devices
        if size is None:
            steps = 1 if steps is None else steps
            size = _SPLIT.size_for(self._trial.batch, devices=devices, steps=steps)
        elif steps is None:
            steps = _SPLIT.steps_for(self._trial.batch, devices=devices, size=size)
        _SPLIT.check(self._trial.batch, devices=devices, steps=steps, size=size)
        return {_SPLIT.size: size, _SPLIT.steps: steps}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks the arguments and opens the measurement window.

        Raises:
            TrainerSetupError: if the arguments do not fit the trial; says what to set.
        """
        for fault in _faults(args):
            raise TrainerSetupError(fault)
        _SPLIT.check(
            self._trial.batch,
            devices=args.world_size * max(1, args.n_gpu),
            steps=args.gradient_accumulation_steps,
            size=args.per_device_train_batch_size,
        )
        self._trial.begin(state.num_train_epochs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notifies `power` of the step."""
        self._trial.steps.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Notifies `power` of the step; stops in the middle of an epoch if the server ended the trial."""
        self._trial.steps.end()
        if self._trial.finished:
            control.should_training_stop = True

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks that the previous epoch was reported."""
        self._refuse_missing_report()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Waits for the evaluation that follows."""
        self._trial.steps.end_epoch()
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
        if not (self._trial.running and self._report_is_due):
            return
        metrics = metrics or {}
        if not self._trial.has_metric(metrics):
            # Several evaluation sets are evaluated one by one; one of them has the metric.
            self._names.update(metrics)
            return
        self._report_is_due = False
        if self._trial.report(metrics):
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._refuse_missing_report()
        self._trial.end()

    def _refuse_missing_report(self) -> None:
        if self._report_is_due:
            raise self._trial.missing_metric(self._names)


def _devices(ranks: int) -> int:
    """All ranks, or the GPUs that a single process uses with DataParallel."""
    return ranks if ranks > 1 else max(1, torch.cuda.device_count())


def _faults(args: TrainingArguments) -> Iterator[str]:
    """Arguments that do not report every epoch, or that change the batch size."""
    if args.eval_strategy != "epoch":
        yield (
            f"eval_strategy is {args.eval_strategy.value!r}, but every epoch must be reported: "
            'set eval_strategy="epoch"'
        )
    if args.eval_delay:
        yield f"eval_delay is {args.eval_delay}, but every epoch must be reported: set it to 0"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size changes the batch size that the server chose: turn it off"
    if args.accelerator_config.split_batches:
        yield "split_batches divides per_device_train_batch_size among the processes: turn it off"
