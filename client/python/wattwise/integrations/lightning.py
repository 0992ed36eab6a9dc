"""Wattwise in Lightning: `pip install "wattwise[lightning]"`, or beside the package `pytorch-lightning`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

try:
    # Of the two packages, the one that the user has imported: their classes are not interchangeable.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.utilities.exceptions import SIGTERMException
    else:
        from lightning.pytorch import Callback, LightningModule, Trainer
        from lightning.pytorch.utilities.exceptions import SIGTERMException
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'wattwise.integrations.lightning needs Lightning: pip install "wattwise[lightning]", or import '
        f"pytorch_lightning first ({error})",
        name=error.name,
    ) from error

from wattwise import v1
from wattwise.errors import TrainerSetupError, log
from wattwise.integrations.callback import CallbackTrial
from wattwise.integrations.steps import StepListener
from wattwise.training.exits import end_reason
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "accumulate_grad_batches")


class WattwiseCallback(Callback):
    """Reports every epoch's validation, and stops the training when the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        callback = WattwiseCallback(bso, metric="val_accuracy")  # gets the batch size
        loader = DataLoader(..., batch_size=callback.loader_batch_size())
        Trainer(..., callbacks=[callback]).fit(model, loader, validation_loader)

    If the trial ends without its target, the trainer stops as usual, and `fit()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception within `fit()` ends the trial with that
    reason.

    Time and energy are measured from the beginning of the first epoch, after the sanity check; an epoch includes its
    validation. The sanity check and `trainer.validate()` are not reported.

    Start several processes with `torchrun` or the strategies "ddp" and "ddp_spawn". With these strategies, pass
    `devices` to `loader_batch_size`, or call it in `train_dataloader()`. Rank 0's metric counts: log it with
    `sync_dist=True`.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric that the validation logs, such as "val_accuracy".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._trial = CallbackTrial(bso, metric, power)

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    def loader_batch_size(self, *, accumulate_grad_batches: int = 1, devices: int | None = None) -> int:
        """The batch size for the `DataLoader` of each device.

        Args:
            accumulate_grad_batches: the value of the trainer.
            devices: the number of devices on all nodes; by default all ranks.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        devices = self._trial.ranks if devices is None else devices
        return _SPLIT.size_for(self._trial.batch, devices=devices, steps=accumulate_grad_batches)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Shares the trial with the processes that the trainer has started, before it asks for the data.

        Raises:
            OperationOrderError: if they have trials of their own.
        """
        if stage == "fit":
            self._trial.bso.join_ranks()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the trainer and opens the measurement window.

        Raises:
            TrainerSetupError: if the trainer does not fit the trial; says what to set.
        """
        for fault in _faults(trainer):
            raise TrainerSetupError(fault)
        self._check_batch_size(trainer)
        endless = trainer.max_epochs is None or trainer.max_epochs < 0
        self._trial.begin(math.inf if endless else trainer.max_epochs)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Notifies `power` if a step begins."""
        self._trial.steps.begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notifies `power` if a step ends; stops in the middle of an epoch if the server ended the trial."""
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
            TrainerSetupError: if the metric was not logged; names the metrics that were.
        """
        if self._trial.running and self._trial.report(trainer.callback_metrics):
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._trial.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends the trial with the reason of the exception, unless it is over."""
        terminated = isinstance(exception, SIGTERMException)
        self._trial.close(v1.END_REASON_PREEMPTED if terminated else end_reason(exception))

    def _check_batch_size(self, trainer: Trainer) -> None:
        size = getattr(trainer.train_dataloader, "batch_size", None)
        if size is None:
            log.warning(
                "the training data has no batch_size attribute: whether it is %d is not checked", self.batch_size
            )
            return
        # Fewer than devices if several of them share a model.
        replicas = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        _SPLIT.check(self._trial.batch, devices=replicas, steps=trainer.accumulate_grad_batches, size=size)


def _faults(trainer: Trainer) -> Iterator[str]:
    """Settings that do not report every epoch."""
    if not trainer.enable_validation:
        yield "there is no validation, but every epoch must be reported: pass validation data to fit()"
    if trainer.check_val_every_n_epoch != 1:
        yield (
            f"check_val_every_n_epoch is {trainer.check_val_every_n_epoch}, but every epoch must be reported: "
            "set it to 1"
        )
    if trainer.val_check_interval != 1.0:
        yield (f"val_check_interval is {trainer.val_check_interval}, but only whole epochs are reported: set it to 1.0")
