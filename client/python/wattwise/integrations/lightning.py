"""Wattwise in Lightning: `pip install "wattwise[lightning]"`, or beside the package `pytorch-lightning`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

try:
    # The name that the user's code has imported, if any, since the two packages have classes of their own.
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
from wattwise.integrations.steps import StepListener
from wattwise.integrations.training import Training, devices_of_all_ranks
from wattwise.training.exits import end_reason
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "accumulate_grad_batches")


class WattwiseCallback(Callback):
    """Reports every epoch's validation, and stops the training when the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        callback = WattwiseCallback(bso, metric="val_accuracy")  # asks for the batch size
        loader = DataLoader(..., batch_size=callback.loader_batch_size())
        Trainer(..., callbacks=[callback]).fit(model, loader, validation_loader)

    A trial that is over without its target stops the training as usual; once the trainer has wrapped up, `fit()` raises
    `TrainFailError`. An exception within `fit()` ends the trial and says why.

    Time and energy run from the first epoch's beginning, after the sanity check; the validation after an epoch is part
    of the epoch. What the sanity check and `trainer.validate()` find is not reported.

    Several processes are started by `torchrun`, and call `torch.distributed.init_process_group()` before the callback
    is made. Rank 0's metric counts: log it with `sync_dist=True`.

    Args:
        bso: the trial's.
        metric: name of the metric as the validation logs it, such as "val_accuracy".
        power: `PowerLimitOptimizer(bso)`, to be told of every training step; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that do not know of each other yet.
        WattwiseError: whatever `get_batch_size` raises.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._training = Training(bso, metric, power)

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The trial's, which knows the decision."""
        return self._training.bso

    @property
    def batch_size(self) -> int:
        """The trial's batch size, which is the global one."""
        return self._training.batch_size

    def loader_batch_size(self, *, accumulate_grad_batches: int = 1, devices: int | None = None) -> int:
        """What to pass to the `DataLoader`, of which every device has one.

        Args:
            accumulate_grad_batches: as given to the trainer.
            devices: how many train together on all nodes; by default all ranks.

        Raises:
            TrainerSetupError: if it does not come out even; says which sizes would.
        """
        devices = devices_of_all_ranks() if devices is None else devices
        return _SPLIT.size_for(self._training.batch, devices=devices, steps=accumulate_grad_batches)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the trainer and opens the measurement window.

        Raises:
            TrainerSetupError: if the trainer does not fit the trial; says what to set.
        """
        for fault in _faults(trainer):
            raise TrainerSetupError(fault)
        self._check_batch_size(trainer)
        endless = trainer.max_epochs is None or trainer.max_epochs < 0
        self._training.begin(math.inf if endless else trainer.max_epochs)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tells of the step that begins, if one does."""
        self._training.steps.begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tells of the step that ends, if one does, and stops in the middle of an epoch if the server has said so."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._training.steps.end()
        if self._training.finished:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tells of the epoch whose steps are done."""
        if self._training.running:
            self._training.steps.end_epoch()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports the epoch, and stops the training if that decides the trial.

        Raises:
            TrainerSetupError: if the metric was not logged; names those that were.
        """
        if self._training.running and self._training.report(trainer.callback_metrics):
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._training.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends the trial, unless it is over, and says why."""
        terminated = isinstance(exception, SIGTERMException)
        self._training.give_up(v1.END_REASON_PREEMPTED if terminated else end_reason(exception))

    def _check_batch_size(self, trainer: Trainer) -> None:
        size = getattr(trainer.train_dataloader, "batch_size", None)
        if size is None:
            log.warning("the training data has no batch_size: that it trains with %d is not checked", self.batch_size)
            return
        # As many as get data of their own; fewer than there are devices where some share a model.
        replicas = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        _SPLIT.check(self._training.batch, devices=replicas, steps=trainer.accumulate_grad_batches, size=size)


def _faults(trainer: Trainer) -> Iterator[str]:
    """What would report another thing than every epoch."""
    if not trainer.enable_validation:
        yield "there is no validation, but the server hears of every epoch: give fit() validation data"
    if trainer.check_val_every_n_epoch != 1:
        yield (
            f"check_val_every_n_epoch is {trainer.check_val_every_n_epoch}, but the server hears of every epoch: "
            "leave it 1"
        )
    if trainer.val_check_interval != 1.0:
        yield (
            f"val_check_interval is {trainer.val_check_interval}, but the server hears of whole epochs: leave it 1.0"
        )
