"""Wattwise in the Trainer of Hugging Face Transformers: `pip install "wattwise[huggingface]"`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

try:
    import torch
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "wattwise.integrations.huggingface needs PyTorch and Transformers: "
        f'pip install "wattwise[huggingface]" ({error})',
        name=error.name,
    ) from error

from wattwise.errors import TrainerSetupError, log
from wattwise.files import LARGE, read_json
from wattwise.integrations.callback import CallbackTrial, Plan
from wattwise.integrations.frames import callers
from wattwise.integrations.loader import batch_size_of, length_of
from wattwise.integrations.steps import StepListener
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import ROUNDING, Split

_SPLIT = Split("per_device_train_batch_size", "gradient_accumulation_steps")
_STATE = "wattwise"
"""The name of the trial's state among `TrainerState.stateful_callbacks`, which a checkpoint has."""

Arguments = TypeVar("Arguments", bound=TrainingArguments)


class WattwiseCallback(TrainerCallback):
    """Reports every evaluation, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="eval_accuracy")  # gets the batch size
            args = TrainingArguments(..., **callback.batch_arguments(), eval_strategy="epoch")
            Trainer(..., args=args, callbacks=[callback]).train()

    If the trial ends without its target, the trainer stops as usual, and `train()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception that leaves the block or ends the process
    ends the trial with that reason.

    An epoch of the trial is what is trained between two evaluations: a pass over the data with `eval_strategy="epoch"`,
    a number of examples with `eval_strategy="steps"` and `eval_steps=callback.steps(examples)`, or a part of the
    training with `eval_steps` below 1. Time and energy are measured from the beginning of `train()`; an epoch includes
    its evaluation. Other evaluations, such as `trainer.evaluate()` after the training, are not reported.

    The trainer's checkpoints have the state of the trial. To continue one, pass it to the callback as well, which then
    gets the batch size of that trial:

        callback = WattwiseCallback(bso, metric="eval_accuracy", checkpoint=last)
        ...
        trainer.train(resume_from_checkpoint=last)

    With several processes, the callback calls `torch.distributed.init_process_group()` unless that has been done.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric in the evaluation, such as "eval_accuracy" or "eval_loss".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.
        checkpoint: the folder of the checkpoint that `train()` will resume from; None starts a new trial.
        count_from_zero: whether a training that resumes from a checkpoint without a trial counts as a complete one,
            because every launch of the job resumes from it. Otherwise it is refused.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        ResumeError: if the trial of the checkpoint cannot continue.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(
        self,
        bso: BatchSizeOptimizer,
        metric: str,
        *,
        power: StepListener | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        count_from_zero: bool = False,
    ) -> None:
        super().__init__()
        saved = None if checkpoint is None else saved_state(checkpoint)
        self._trial = CallbackTrial(bso, metric, power, saved=saved, count_from_zero=count_from_zero)
        # The metrics of evaluations since the last report, which do not have the trial's metric.
        self._names: set[str] = set()
        # The step after which the trainer evaluates, and whether a pass over its data has ended there.
        self._evaluates_at: int | None = None
        self._complete = False
        self._length: int | None = None

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    def steps(self, examples: float) -> int:
        """Returns the number of steps that pass about `examples` examples, for `eval_steps` and the like.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        return self._trial.steps_for(examples)

    def batch_arguments(
        self,
        *,
        gradient_accumulation_steps: int | None = None,
        per_device_train_batch_size: int | None = None,
        max_per_device: int | None = None,
        devices: int | None = None,
    ) -> dict[str, int]:
        """Returns the arguments of `TrainingArguments` that add up to the trial's batch size.

        Args:
            gradient_accumulation_steps: the accumulated steps (default 1); determines the size per device.
            per_device_train_batch_size: the size per device; determines the accumulated steps.
            max_per_device: the largest size per device that fits into memory; determines both. Not together with one of
                them.
            devices: the number of devices; by default all ranks, or all GPUs that a single process sees.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        steps, size = gradient_accumulation_steps, per_device_train_batch_size
        devices = _devices(self._trial.ranks) if devices is None else devices
        if max_per_device is not None:
            if steps is not None or size is not None:
                raise TrainerSetupError("pass either max_per_device, or the accumulated steps or the size per device")
            size, steps = self._trial.batch.accumulated(devices, max_per_device)
        elif size is None:
            steps = 1 if steps is None else steps
            size = _SPLIT.size_for(self._trial.batch, devices=devices, steps=steps)
        elif steps is None:
            steps = _SPLIT.steps_for(self._trial.batch, devices=devices, size=size)
        _SPLIT.check(self._trial.batch, devices=devices, steps=steps, size=size)
        return {_SPLIT.size: size, _SPLIT.steps: steps}

    def apply(self, args: Arguments, *, max_per_device: int | None = None) -> Arguments:
        """Sets the batch size in arguments that a script has parsed, and scales what they count in steps.

            args = callback.apply(parser.parse_args_into_dataclasses()[0])

        The arguments are those for the job's default batch size: `eval_steps`, `save_steps`, `max_steps` and
        `warmup_steps` change so that as many examples are passed with the trial's batch size. The accumulated steps
        stay as they are, unless `max_per_device` is given.

        Args:
            args: the arguments, which are changed.
            max_per_device: the largest size per device that fits into memory.

        Returns:
            The arguments.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        accumulated, devices = args.gradient_accumulation_steps, args.world_size * max(1, args.n_gpu)
        if max_per_device is None:
            batch = self.batch_arguments(gradient_accumulation_steps=accumulated, devices=devices)
        else:
            batch = self.batch_arguments(max_per_device=max_per_device, devices=devices)
        if batch[_SPLIT.steps] != accumulated:
            log.info("gradient_accumulation_steps is %d instead of %d", batch[_SPLIT.steps], accumulated)
        default = self._trial.default_batch_size
        every = getattr(args, "eval_steps", None)
        for name in ("eval_steps", "save_steps", "max_steps", "warmup_steps"):
            given = getattr(args, name, None)
            if not isinstance(given, int | float) or given < 1:
                # Unset, or a share of the training.
                continue
            scaled = self.steps(given * default)
            if name == "save_steps" and isinstance(every, int | float) and every >= 1 and given % every == 0:
                # The best model can be loaded at the end only if every save follows an evaluation.
                scaled = round(given / every) * int(args.eval_steps or 1)
            setattr(args, name, scaled)
        for name, value in batch.items():
            setattr(args, name, value)
        return args

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Checks that there is a batch to train: the error that a Trainer raises otherwise does not say so.

        Raises:
            TrainerSetupError: if there is none.
        """
        examples = length_of(_data_of_trainer())
        size = args.train_batch_size * args.world_size
        if args.dataloader_drop_last and examples is not None and examples < size:
            raise self._trial.refuse(
                f"dataloader_drop_last=True leaves no batch to train: there are {examples} examples, and a batch on "
                f"all devices has {size}; set it to False, or register a job with smaller batch_sizes"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks the arguments, continues the trial of a checkpoint, and opens the measurement window.

        Raises:
            TrainerSetupError: if the arguments do not fit the trial; says what to set.
            ResumeError: if the trial of the checkpoint cannot continue.
        """
        saved = state.stateful_callbacks.get(_STATE)
        if isinstance(saved, Mapping):
            self._trial.restore(saved)
        loader = kwargs.get("train_dataloader")
        self._length = length_of(loader)
        plan = _plan(args, state, self._length)
        faults = (*_faults(args, state), *self._step_faults(args, state), *self._data_faults(args, loader))
        for fault in (*faults, *self._resume_faults(args, plan)):
            raise self._trial.refuse(fault)
        self._trial.begin(plan)
        # A checkpoint that another callback asks for has a state in any case.
        self._save(state, within_epoch=False)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks that the data is that with which the training began.

        Raises:
            TrainerSetupError: if the batch size or the number of batches has changed.
        """
        if not self._trial.running or self._trial.finished:
            return
        loader = kwargs.get("train_dataloader")
        for fault in self._data_faults(args, loader):
            raise self._trial.fail(f"the batch size changed during the training: {fault}")
        if (length := length_of(loader)) != self._length:
            raise self._trial.fail(
                f"the training data changed during the training: {length} batches instead of {self._length}"
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notifies `power` of the step; checks the batch size, and that the last evaluation was reported.

        Raises:
            TrainerSetupError: if the batch size has changed, or the evaluation did not have the metric.
        """
        self._refuse_missing_report()
        if self._trial.running and (fault := self._split_fault(args)):
            raise self._trial.fail(f"the batch size changed during the training: {fault}")
        self._trial.steps.begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Notifies `power` of the step; stops in the middle of an epoch if the server ended the trial."""
        self._trial.steps.end()
        if self._trial.finished:
            control.should_training_stop = True
        self._look(state, control, complete=False)
        if control.should_save:
            self._save(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notifies `power` of the end of the steps."""
        self._trial.steps.end_epoch()
        # Whether a pass that was stopped is whole, only the length of the data or a number of examples can say.
        whole = state.global_step == state.max_steps and self._trial.is_declared(state.max_steps)
        self._look(state, control, complete=whole or not (control.should_training_stop or control.should_epoch_stop))
        if control.should_save:
            self._save(state)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reports the epoch, and stops the training if that decides the trial."""
        if not self._trial.running or state.global_step == self._trial.steps_at_report:
            return
        if state.global_step != self._evaluates_at:
            # An evaluation that the program has asked for.
            return
        metrics = metrics or {}
        if not self._trial.has_metric(metrics):
            # Several evaluation sets are evaluated one by one; one of them has the metric.
            self._names.update(metrics)
            return
        self._names.clear()
        if self._trial.report(metrics, state.global_step, complete=self._complete):
            control.should_training_stop = True
        # Whether a checkpoint follows may depend on the metric.
        self._save(state, within_epoch=False)

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
        if self._names:
            raise self._trial.missing_metric(self._names)

    def _save(self, state: TrainerState, *, within_epoch: bool = True) -> None:
        """Puts the state of the trial where the trainer's next checkpoint takes it from."""
        if self._trial.counts:
            state.stateful_callbacks[_STATE] = self._trial.state(within_epoch=within_epoch)

    def _look(self, state: TrainerState, control: TrainerControl, *, complete: bool) -> None:
        """Notes whether an evaluation follows."""
        if control.should_evaluate:
            self._evaluates_at, self._complete = state.global_step, complete

    def _split_fault(self, args: TrainingArguments) -> str:
        try:
            _SPLIT.check(
                self._trial.batch,
                devices=args.world_size * max(1, args.n_gpu),
                steps=args.gradient_accumulation_steps,
                size=args.per_device_train_batch_size,
            )
        except TrainerSetupError as error:
            return str(error)
        return ""

    def _data_faults(self, args: TrainingArguments, loader: Any) -> Iterator[str]:
        """Yields what makes the batches others than the trial's."""
        if fault := self._split_fault(args):
            yield fault
        if length_of(loader) == 0:
            yield "the training data has no batch: it has fewer examples than the batch size, and drop_last drops them"
        size = batch_size_of(loader)
        if size is None:
            self._trial.warn_of_unknown_size()
        elif size != args.train_batch_size:
            yield (
                f"the batches of get_train_dataloader() have {size} examples instead of {args.train_batch_size}: use "
                "batch_size=self.args.train_batch_size there"
            )

    def _resume_faults(self, args: TrainingArguments, plan: Plan) -> Iterator[str]:
        """Yields why the trainer cannot continue a checkpoint in the middle of a pass over the data."""
        within = plan.steps_done - self._trial.steps_at_report
        if args.eval_strategy != "epoch" or not (self._trial.restored and within):
            return
        if args.ignore_data_skip:
            yield (
                f"ignore_data_skip begins a pass over the data {within} steps after the last report, so that its epoch "
                "would be longer than the others: turn it off"
            )
        elif plan.steps_per_report is None:
            yield (
                "the checkpoint was saved in the middle of a pass over data without a length, which a Trainer does not "
                'continue: save at the end of a pass (save_strategy="epoch"), or evaluate after '
                "eval_steps=callback.steps(examples)"
            )

    def _step_faults(self, args: TrainingArguments, state: TrainerState) -> Iterator[str]:
        """Yields which intervals pass a number of examples that depends on the batch size."""
        if args.eval_strategy != "steps" or self._trial.is_declared(state.eval_steps):
            return
        if args.eval_steps is not None and args.eval_steps < 1 and args.max_steps <= 0:
            exact = args.eval_steps * state.max_steps
            if abs(state.eval_steps - exact) > ROUNDING * exact:
                yield (
                    f"eval_steps={args.eval_steps} of the training is {exact:g} steps with batch size "
                    f"{self.batch_size}, which is rounded too far: set eval_steps=callback.steps(examples)"
                )
            return
        yield (
            f"every evaluation follows {state.eval_steps} steps, which are more examples the larger the batch size: "
            "set eval_steps=callback.steps(examples), the same number of examples in every launch, or use "
            'callback.apply(args), or set eval_strategy="epoch"'
        )


def saved_state(checkpoint: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the state of the trial in a trainer's checkpoint; None if it has none.

    Raises:
        TrainerSetupError: if the folder is not a checkpoint.
    """
    path = Path(checkpoint) / "trainer_state.json"
    try:
        # It has the log of the whole training.
        state = read_json(path, LARGE)
    except (OSError, ValueError) as error:
        raise TrainerSetupError(
            f"checkpoint={os.fspath(checkpoint)!r} is not the folder of a trainer's checkpoint: {error}"
        ) from None
    callbacks = state.get("stateful_callbacks") if isinstance(state, dict) else None
    saved = callbacks.get(_STATE) if isinstance(callbacks, dict) else None
    return saved if isinstance(saved, dict) else None


def _plan(args: TrainingArguments, state: TrainerState, length: int | None) -> Plan:
    in_a_pass = None if length is None else max(1, math.ceil(length / args.gradient_accumulation_steps))
    steps = state.eval_steps if args.eval_strategy == "steps" else in_a_pass
    reports = state.max_steps // steps if steps else state.num_train_epochs
    return Plan(state.global_step, steps, float(reports))


def _devices(ranks: int) -> int:
    """Returns all ranks, or the GPUs that a single process uses with DataParallel."""
    return ranks if ranks > 1 else max(1, torch.cuda.device_count())


def _data_of_trainer() -> Any:
    """Returns the training data of the Trainer that calls; a callback gets them only once the training begins."""
    trainers = (caller for frame in callers() if isinstance(caller := frame.f_locals.get("self"), Trainer))
    return getattr(next(trainers, None), "train_dataset", None)


def _faults(args: TrainingArguments, state: TrainerState) -> Iterator[str]:
    """Yields which arguments do not report every epoch, or change the batch size."""
    if args.eval_strategy not in ("epoch", "steps"):
        yield (
            f"eval_strategy is {args.eval_strategy.value!r}, but every epoch must be reported: "
            'set eval_strategy="epoch", or "steps" with eval_steps=callback.steps(examples)'
        )
    if args.eval_delay:
        yield f"eval_delay is {args.eval_delay}, but every epoch must be reported: set it to 0"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size changes the batch size that the server chose: turn it off"
    if args.accelerator_config.split_batches:
        yield "split_batches divides per_device_train_batch_size among the processes: turn it off"
    if state.is_hyper_param_search:
        yield "hyperparameter_search() trains many models, of which a trial is one: search without the callback"
