"""Wattwise in Lightning: `pip install "wattwise[lightning]"`, or beside the package `pytorch-lightning`."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch

    # Of the two packages, the one that the user has imported: their classes are not interchangeable.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.callbacks import (
            BatchSizeFinder,
            GradientAccumulationScheduler,
            LearningRateFinder,
            Timer,
        )
        from pytorch_lightning.profilers import PassThroughProfiler
        from pytorch_lightning.utilities.exceptions import SIGTERMException
    else:
        from lightning.pytorch import Callback, LightningModule, Trainer
        from lightning.pytorch.callbacks import (
            BatchSizeFinder,
            GradientAccumulationScheduler,
            LearningRateFinder,
            Timer,
        )
        from lightning.pytorch.profilers import PassThroughProfiler
        from lightning.pytorch.utilities.exceptions import SIGTERMException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'wattwise.integrations.lightning needs Lightning: pip install "wattwise[lightning]", or import '
        f"pytorch_lightning first ({error})",
        name=error.name,
    ) from error

from wattwise.errors import TrainerSetupError
from wattwise.files import FileError, open_regular
from wattwise.integrations.callback import CallbackTrial, Plan
from wattwise.integrations.loader import batch_size_of, length_of
from wattwise.integrations.steps import StepListener
from wattwise.rules import EndReason
from wattwise.training.exits import end_reason
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "accumulate_grad_batches")
_STATE = "wattwise"
"""The name of the trial's state among the callbacks of a checkpoint."""
_FIRST = "first_batch"
"""Key of a saved state for `WattwiseCallback._first`."""


class WattwiseCallback(Callback):
    """Reports every validation, and stops the training when the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        callback = WattwiseCallback(bso, metric="val_accuracy")  # gets the batch size
        loader = DataLoader(..., batch_size=callback.loader_batch_size())
        Trainer(..., callbacks=[callback]).fit(model, loader, validation_loader)

    If the trial ends without its target, the trainer stops as usual, and `fit()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception within `fit()` ends the trial with that
    reason.

    An epoch of the trial is what is trained between two validations: a pass over the data, several passes with
    `check_val_every_n_epoch`, a share of a pass with `val_check_interval` below 1, or a number of examples with
    `val_check_interval=callback.steps(examples)` and `check_val_every_n_epoch=None`. Time and energy are measured from
    the beginning of the first epoch, after the sanity check; an epoch includes its validation. The sanity check and
    `trainer.validate()` are not reported.

    The trainer's checkpoints have the state of the trial. To continue one, pass it to the callback as well, which then
    gets the batch size of that trial:

        callback = WattwiseCallback(bso, metric="val_accuracy", checkpoint="last.ckpt")
        ...
        trainer.fit(..., ckpt_path="last.ckpt")

    Start several processes with `torchrun` or the strategies "ddp" and "ddp_spawn". With these strategies, pass
    `devices` to `loader_batch_size`, or call it in `train_dataloader()`. Rank 0's metric counts: log it with
    `sync_dist=True`.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric that the validation logs, such as "val_accuracy".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.
        checkpoint: the file of the checkpoint that `fit()` will continue, or its content; None starts a new trial.
        count_from_zero: whether a training that continues a checkpoint without a trial counts as a complete one,
            because every launch of the job continues it. Otherwise it is refused.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet, or the checkpoint cannot
            be read.
        ResumeError: if the trial of the checkpoint cannot continue.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(
        self,
        bso: BatchSizeOptimizer,
        metric: str,
        *,
        power: StepListener | None = None,
        checkpoint: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        count_from_zero: bool = False,
    ) -> None:
        super().__init__()
        given = None if checkpoint is None else saved_state(checkpoint)
        self._trial = CallbackTrial(bso, metric, power, saved=given, count_from_zero=count_from_zero)
        self._continues = given is not None
        self._accumulated = 1
        # The state in the checkpoint that fit() has loaded.
        self._saved: Mapping[str, Any] | None = None
        # Positions are numbers of batches, as the trainer counts them on each device: where this fit() begins, and
        # where the passes over the data begin, which is not 0 if the trainer trained something else before the trial.
        self._begins_at = self._first = 0
        self._schedule: _Schedule | None = None
        self._trained = False
        self._examples: int | None = None
        # The batches that a step accumulated at the last check of the data.
        self._counted = 1

    @property
    def state_key(self) -> str:
        """The name of the trial's state in checkpoints."""
        return _STATE

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    @property
    def accumulate_grad_batches(self) -> int:
        """The value for the `Trainer` that belongs to the last `loader_batch_size`; 1 before it is called."""
        return self._accumulated

    def steps(self, examples: float) -> int:
        """Returns the number of steps that pass about `examples` examples, for `val_check_interval` or `max_steps`.

        A step is one update of the weights. `val_check_interval` and `limit_train_batches` count batches: multiply by
        `accumulate_grad_batches` if gradients are accumulated.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        return self._trial.steps_for(examples)

    def loader_batch_size(
        self,
        *,
        accumulate_grad_batches: int | None = None,
        max_per_device: int | None = None,
        devices: int | None = None,
    ) -> int:
        """Returns the batch size for the `DataLoader` of each device.

            loader = DataLoader(..., batch_size=callback.loader_batch_size(max_per_device=32))
            Trainer(..., accumulate_grad_batches=callback.accumulate_grad_batches)

        Args:
            accumulate_grad_batches: the value of the trainer (default 1).
            max_per_device: the largest size per device that fits into memory; determines `accumulate_grad_batches`. Not
                together with it.
            devices: the number of devices on all nodes; by default all ranks.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        batch = self._trial.batch
        devices = self._trial.ranks if devices is None else devices
        if max_per_device is None:
            steps = 1 if accumulate_grad_batches is None else accumulate_grad_batches
            size = _SPLIT.size_for(batch, devices=devices, steps=steps)
        elif accumulate_grad_batches is None:
            size, steps = batch.accumulated(devices, max_per_device)
        else:
            raise TrainerSetupError("pass either max_per_device or accumulate_grad_batches, which it determines")
        self._accumulated = steps
        return size

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the trial for a checkpoint; empty if the training does not count."""
        return {**self._trial.state(), _FIRST: self._first} if self._trial.counts else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state until the training begins: `trainer.test()` loads checkpoints as well."""
        self._saved = state_dict

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Shares the trial with the processes that the trainer has started, and checks the options, before a fit.

        Raises:
            TrainerSetupError: if the options do not fit a trial; says what to set.
            OperationOrderError: if the processes have trials of their own.
        """
        self._saved = None
        if stage != "fit":
            return
        if self._trial.begun or not self._trial.counts:
            raise self._trial.repeated()
        self._trial.bso.join_ranks()
        if _is_search(trainer):
            return
        if why := _dry_run(trainer):
            self._trial.skip(why)
            return
        for fault in _option_faults(trainer):
            raise self._trial.refuse(fault)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the data, continues the trial of a checkpoint, and opens the measurement window.

        Raises:
            TrainerSetupError: if the trainer does not fit the trial; says what to set.
            ResumeError: if the trial of the checkpoint cannot continue.
        """
        if not self._trial.counts:
            return
        self._continue_saved()
        if self._trial.finished:
            self._trial.begin(Plan(0, None, math.inf))
            trainer.should_stop = True
            return
        accumulated = _accumulation(trainer)
        self._check_data(trainer, accumulated)
        for fault in self._interval_faults(trainer, accumulated):
            raise self._trial.refuse(fault)
        self._begins_at, self._schedule = _batches_done(trainer), _Schedule.of(trainer)
        if self._begins_at and self._saved is None:
            if self._continues:
                raise self._trial.refuse(
                    "fit() continues a checkpoint without the trial of the callback's checkpoint: pass the same to both"
                )
            if self._schedule is not None and trainer.check_val_every_n_epoch is not None:
                self._first = self._begins_at - _batches_of_checkpoint(trainer)
        reports = self._max_reports(trainer, accumulated)
        if reports < 1:
            raise self._trial.refuse(self._too_short(trainer, accumulated))
        every = None if self._schedule is None else self._schedule.every / accumulated
        self._trial.begin(Plan(self._begins_at, every, reports))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Checks the data at the beginning of a pass; notifies `power` if a step begins.

        Raises:
            TrainerSetupError: if the batch size or the number of examples has changed.
        """
        if not self._trial.running:
            return
        if (batch_idx == 0 or trainer.accumulate_grad_batches != self._counted) and not self._trial.finished:
            self._check_data(trainer, trainer.accumulate_grad_batches)
        self._trial.steps.begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notifies `power` if a step ends; stops in the middle of an epoch if the server ended the trial."""
        if not self._trial.running:
            return
        self._trained = True
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._trial.steps.end()
        if self._trial.finished:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notifies `power` that the steps of the epoch are over."""
        if self._trial.running:
            self._trial.steps.end_epoch()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports the epoch, and stops the training if that decides the trial.

        Raises:
            TrainerSetupError: if the metric was not logged; names the metrics that were. Also if another number of
                batches was trained than planned.
        """
        if not self._trial.running:
            return
        done = _batches_done(trainer)
        planned = self._planned(trainer, done)
        if self._trial.report(trainer.callback_metrics, done, planned, complete=trainer.is_last_batch):
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
            TrainerSetupError: if there was nothing to train.
        """
        if self._trial.counts and not self._trial.begun:
            self._continue_saved()
            if not self._trial.finished:
                raise self._trial.refuse(_why_nothing_was_trained(trainer))
        self._trial.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends the trial with the reason of the exception, unless it is over."""
        if trainer.state.fn != "fit":
            return
        terminated = isinstance(exception, SIGTERMException)
        self._trial.close(EndReason.PREEMPTED if terminated else end_reason(exception))

    def _continue_saved(self) -> None:
        if self._saved is not None:
            self._trial.restore(self._saved)
            self._first = int(self._saved.get(_FIRST, 0))

    def _check_data(self, trainer: Trainer, accumulated: int) -> None:
        """Checks the batch size and the number of examples, before the training and at each pass over the data.

        Raises:
            TrainerSetupError: if the batch size is not that of the trial, or the number of examples has changed.
        """
        loader, self._counted = trainer.train_dataloader, accumulated
        fault = self._size_fault(trainer, loader, accumulated)
        if fault and not self._trained:
            raise self._trial.refuse(fault)
        if fault:
            raise self._trial.fail(f"the batch size changed during the training: {fault}")
        examples = length_of(getattr(loader, "dataset", None))
        if self._trained and examples != self._examples:
            raise self._trial.fail(
                f"the training data changed during the training: {examples} examples instead of {self._examples}"
            )
        self._examples = examples

    def _size_fault(self, trainer: Trainer, loader: Any, accumulated: int) -> str:
        size = batch_size_of(loader)
        if size is None:
            self._trial.warn_of_unknown_size()
            return ""
        # Fewer than devices if several of them share a model.
        replicas = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        try:
            _SPLIT.check(self._trial.batch, devices=replicas, steps=accumulated, size=size)
        except TrainerSetupError as error:
            return str(error)
        return ""

    def _is_declared(self, batches: int, accumulated: int) -> bool:
        return batches % accumulated == 0 and self._trial.is_declared(batches // accumulated)

    def _interval_faults(self, trainer: Trainer, accumulated: int) -> Iterator[str]:
        """Yields which intervals pass a number of examples that depends on the batch size."""
        advice = "callback.steps(examples)" + " * accumulate_grad_batches" * (accumulated > 1)
        limit, interval = trainer.limit_train_batches, trainer.val_check_interval
        batches, passes = trainer.num_training_batches, trainer.check_val_every_n_epoch
        if isinstance(limit, int) and not self._is_declared(limit, accumulated) and _leaves_out(trainer, limit):
            yield (
                f"limit_train_batches is {limit}, which are more examples the larger the batch size: remove it, or set "
                f"it to {advice}"
            )
        if isinstance(interval, int):
            if not self._is_declared(interval, accumulated):
                yield (
                    f"val_check_interval is {interval}, which are more examples the larger the batch size: set it to "
                    f"{advice} with check_val_every_n_epoch=None, or to 1.0 for whole passes over the data"
                )
            if passes is not None and (batches == math.inf or batches % interval):
                yield (
                    f"val_check_interval is {interval}, but a pass over the data ends in between: set "
                    "check_val_every_n_epoch=None as well"
                )
        elif interval < 1 and not (interval and batches // trainer.val_check_batch == math.floor(1 / interval + 1e-9)):
            yield (
                f"val_check_interval is {interval}, but with batch size {self.batch_size} a pass over the data has "
                f"only {batches} batches: set it to 1.0, or to {advice} with check_val_every_n_epoch=None"
            )
        if passes not in (None, 1) and interval != 1.0:
            yield (
                f"check_val_every_n_epoch is {passes} and val_check_interval {interval}, so that the evaluations are "
                "not evenly spaced: set only one of them"
            )

    def _too_short(self, trainer: Trainer, accumulated: int) -> str:
        """Returns the fault of a trainer that stops before its first evaluation."""
        by_steps = self._end_of_steps(trainer, accumulated) < _end_of_epochs(trainer)
        limit = f"max_steps is {trainer.max_steps}" if by_steps else f"max_epochs is {trainer.max_epochs}"
        return (
            f"{limit}, so that the trainer stops before its first evaluation at the end of an epoch: raise it, or "
            "evaluate earlier (check_val_every_n_epoch, val_check_interval)"
        )

    def _max_reports(self, trainer: Trainer, accumulated: int) -> float:
        if self._schedule is None:
            reports: float = _passes(trainer) // (trainer.check_val_every_n_epoch or 1)
            return reports
        last: float = min(_end_of_epochs(trainer), self._end_of_steps(trainer, accumulated))
        before = self._schedule.reports(self._begins_at - self._first)
        return self._trial.bso.last_epoch + self._schedule.reports(last) - before

    def _end_of_steps(self, trainer: Trainer, accumulated: int) -> float:
        """Returns the batches of the trial up to `max_steps`, as far as it is known how many steps a batch has."""
        if trainer.max_steps < 0 or not trainer.lightning_module.automatic_optimization:
            return math.inf
        batches: float = trainer.num_training_batches
        left, done = max(0, trainer.max_steps - trainer.global_step), self._begins_at - self._first
        if batches == math.inf:
            return float(done + left * accumulated)
        passes, rest = divmod(left, math.ceil(batches / accumulated))
        return float(done + passes * batches + min(batches, rest * accumulated))

    def _planned(self, trainer: Trainer, done: int) -> float | None:
        """Returns the batches since the last report that the evaluation after `done` batches should have."""
        if self._schedule is None:
            # Only the trainer knows where a pass over the data ends; the first one shows its length.
            return None
        reported = self._trial.steps_at_report
        following = self._schedule.following(reported - self._first) + self._first
        if following != done:
            # A checkpoint that was saved before an evaluation: the trainer leaves that evaluation out.
            following = self._schedule.following(max(reported, self._begins_at) - self._first) + self._first
        return following - reported


@dataclass(frozen=True)
class _Schedule:
    """When the trainer evaluates, in batches per device.

    Attributes:
        every: the batches between two evaluations.
        period: the batches after which the count starts again: those of a pass over the data, of several, or `every`.
    """

    every: int
    period: int

    @classmethod
    def of(cls, trainer: Trainer) -> _Schedule | None:
        """Returns the schedule of a trainer that has its data; None if only their end shows when it evaluates."""
        every, a_pass, passes = trainer.val_check_batch, trainer.num_training_batches, trainer.check_val_every_n_epoch
        if passes is None and every != math.inf:
            return cls(every, every)
        if a_pass == math.inf:
            return None
        period = a_pass * (passes or 1)
        return cls(int(min(every, a_pass)) if period == a_pass else period, period)

    def following(self, batch: int) -> int:
        """Returns the batch of the next evaluation after a batch."""
        begun = batch // self.period * self.period
        following = (batch - begun) // self.every * self.every + self.every
        return begun + (following if following <= self.period else self.period + self.every)

    def reports(self, batches: float) -> float:
        """Returns the number of evaluations in the first batches."""
        if batches == math.inf:
            return math.inf
        periods, rest = divmod(batches, self.period)
        return periods * (self.period // self.every) + rest // self.every


def saved_state(checkpoint: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the state of the trial in a trainer's checkpoint; None if it has none.

    Args:
        checkpoint: the file of the checkpoint, or its content.

    Raises:
        TrainerSetupError: if it is not a checkpoint, or has objects that PyTorch does not load from an untrusted file.
    """
    content: Any = checkpoint
    if not isinstance(checkpoint, Mapping):
        name = os.fspath(checkpoint)
        try:
            # PyTorch explains what is missing, but would wait for a pipe.
            with suppress(FileNotFoundError):
                os.close(open_regular(Path(name)))
            # Mapped into memory, because the weights are not needed.
            content = torch.load(name, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            raise TrainerSetupError(
                f"checkpoint={name!r} has objects that PyTorch does not load from a file that may be malicious; if you "
                f"trust it, pass checkpoint=torch.load({name!r}, weights_only=False) ({error})"
            ) from None
        except (OSError, RuntimeError, FileError) as error:
            raise TrainerSetupError(f"checkpoint={name!r} is not the file of a trainer's checkpoint: {error}") from None
    callbacks = content.get("callbacks") if isinstance(content, Mapping) else None
    saved = callbacks.get(_STATE) if isinstance(callbacks, Mapping) else None
    return saved if isinstance(saved, dict) else None


def _batches_done(trainer: Trainer) -> int:
    """Returns the batches that each device has trained, which a checkpoint continues to count."""
    total = trainer.fit_loop.epoch_loop.batch_progress.total
    # The trainer counts intervals over several passes by the batches that it began, also if an exception ended one.
    return int(total.ready if trainer.check_val_every_n_epoch is None else total.processed)


def _batches_of_checkpoint(trainer: Trainer) -> int:
    """Returns the batches of the passes that a checkpoint has, as if the data had been divided as now."""
    fit = trainer.fit_loop
    in_pass = fit.epoch_loop.batch_progress.current.processed if fit.epoch_loop.restarting else 0
    return int(fit.epoch_progress.current.processed * trainer.num_training_batches + in_pass)


def _passes(trainer: Trainer) -> float:
    """Returns the passes over the data after which the trainer stops."""
    epochs: int | None = trainer.max_epochs
    return math.inf if epochs is None or epochs < 0 else epochs


def _end_of_epochs(trainer: Trainer) -> float:
    """Returns the batches up to `max_epochs`."""
    return _passes(trainer) * float(trainer.num_training_batches)


def _accumulation(trainer: Trainer) -> int:
    """Returns the batches that the first step will accumulate."""
    for each in trainer.callbacks:
        if isinstance(each, GradientAccumulationScheduler):
            return int(each.get_accumulate_grad_batches(trainer.current_epoch))
    return int(trainer.accumulate_grad_batches)


def _is_search(trainer: Trainer) -> bool:
    """Returns whether a `Tuner` searches, which ends before the training begins."""
    finders = (each for each in trainer.callbacks if isinstance(each, LearningRateFinder | BatchSizeFinder))
    # Only a Tuner sets this attribute.
    return any(getattr(each, "_early_exit", False) for each in finders)


def _dry_run(trainer: Trainer) -> str:
    """Returns why a training is not meant to be complete, or is not as fast as usual; empty if it is."""
    if trainer.fast_dev_run:
        return f"fast_dev_run={trainer.fast_dev_run}"
    if not isinstance(trainer.profiler, PassThroughProfiler):
        return f"profiler={type(trainer.profiler).__name__}"
    return ""


def _leaves_out(trainer: Trainer, limit: int) -> bool:
    """Returns whether `limit_train_batches` leaves out a part of the data."""
    # Several loaders are a list or a dictionary, whose length says nothing.
    several = isinstance(trainer.train_dataloader, list | tuple | dict)
    length = None if several else length_of(trainer.train_dataloader)
    return trainer.num_training_batches == limit and (length is None or length > limit)


def _why_nothing_was_trained(trainer: Trainer) -> str:
    if trainer.num_training_batches == 0:
        return (
            "the training data has no batch: it is empty, or has fewer examples than the batch size, and drop_last "
            "drops them"
        )
    return (
        f"nothing was trained, because the trainer stops at max_epochs={trainer.max_epochs} or "
        f"max_steps={trainer.max_steps}, and has trained {trainer.current_epoch} epochs and {trainer.global_step} steps"
    )


def _option_faults(trainer: Trainer) -> Iterator[str]:
    """Yields which options do not train or report every epoch, or train on after the trial is decided."""
    for each in trainer.callbacks:
        if isinstance(each, LearningRateFinder | BatchSizeFinder):
            yield (
                f"{type(each).__name__} trains before the training, which is not measured: search once with a Tuner, "
                "and train without this callback"
            )
        if isinstance(each, Timer) and each.time_remaining() is not None:
            yield (
                "max_time (or a Timer) stops the training by the clock, even if the trial is undecided: remove it; the "
                "server limits the cost of a trial"
            )
    limit = trainer.limit_train_batches
    if trainer.barebones:
        yield "barebones=True logs no metrics, but every epoch must be reported: remove it"
    if trainer.overfit_batches:
        yield f"overfit_batches is {trainer.overfit_batches}, but every epoch must train all the data: remove it"
    elif limit == 0 or (isinstance(limit, float) and limit < 1):
        yield f"limit_train_batches is {limit}, but every epoch must train all the data: remove it"
    if trainer.limit_val_batches == 0:
        yield "limit_val_batches is 0, but every epoch must be evaluated: remove it"
    elif not trainer.enable_validation:
        yield (
            "there is no validation, but every epoch must be reported: pass validation data to fit(), and define "
            "validation_step"
        )
    if (trainer.min_epochs or 0) > 1:
        yield f"min_epochs is {trainer.min_epochs}, but the trainer must stop when the trial is decided: remove it"
    if trainer.min_steps:
        yield f"min_steps is {trainer.min_steps}, but the trainer must stop when the trial is decided: remove it"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        yield (
            "val_check_interval is a time, in which a faster batch size trains more: set it to "
            "callback.steps(examples) with check_val_every_n_epoch=None"
        )
