"""Wattwise in Keras 3, whatever its backend: `pip install "wattwise[keras]"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from keras.callbacks import Callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'wattwise.integrations.keras needs Keras 3 and a backend: pip install "wattwise[keras]" ({error})',
        name=error.name,
    ) from error

from wattwise.errors import TrainerSetupError
from wattwise.integrations.callback import CallbackTrial
from wattwise.integrations.steps import StepListener
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "gradient_accumulation_steps")


class WattwiseCallback(Callback):
    """Reports every epoch, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="val_accuracy")  # gets the batch size
            model.fit(..., batch_size=callback.fit_batch_size(), validation_data=..., callbacks=[callback])

    If the trial ends without its target, training stops as usual, and `fit()` raises `TrainFailError` once it has
    wrapped up. In `fit_attempts` the next trial begins instead. An exception that leaves the block or ends the process
    ends the trial with that reason.

    Time and energy are measured from the beginning of `fit()`; an epoch includes its validation. Keras does not pass
    the batch size of `fit()` to callbacks, so nothing checks that it is the trial's.

    Args:
        bso: the optimizer of the trial.
        metric: the name of the metric in the logs of `fit()`, such as "val_accuracy" or "val_loss".
        power: `PowerLimitOptimizer(bso)`; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that are not connected yet.
        WattwiseError: as documented at `get_batch_size`.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._trial = CallbackTrial(bso, metric, power)
        # Without step measurements Keras need not wait for a batch before it begins the next.
        self.async_safe = power is None
        self._steps = 1

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The optimizer, which has the decision."""
        return self._trial.bso

    @property
    def batch_size(self) -> int:
        """The trial's global batch size."""
        return self._trial.batch_size

    def fit_batch_size(self, *, gradient_accumulation_steps: int = 1) -> int:
        """The batch size for `fit()`, or for the data set that is passed to it.

        Keras splits it over its devices. With several ranks of `torch.distributed` it is each rank's share.

        Args:
            gradient_accumulation_steps: the value of the optimizer; 1 if it has none.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the sizes that can.
        """
        size = _SPLIT.size_for(self._trial.batch, devices=self._trial.ranks, steps=gradient_accumulation_steps)
        self._steps = gradient_accumulation_steps
        return size

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Checks the optimizer and opens the measurement window.

        Raises:
            TrainerSetupError: if the optimizer accumulates another number of steps than `fit_batch_size` was given.
        """
        steps = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        if steps != self._steps:
            raise TrainerSetupError(
                f"the optimizer has gradient_accumulation_steps={steps}, but fit_batch_size() was given {self._steps}: "
                f"pass batch_size=callback.fit_batch_size(gradient_accumulation_steps={steps}) to fit()"
            )
        self._trial.begin(self.params["epochs"])

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` if a step begins."""
        self._trial.steps.begin()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` if a step ends; stops in the middle of an epoch if the server ended the trial."""
        if (batch + 1) % self._steps == 0:
            self._trial.steps.end()
        if self._trial.finished:
            self.model.stop_training = True

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Notifies `power` that the steps of the epoch are over."""
        if self._trial.running:
            self._trial.steps.end_epoch()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports the epoch, and stops the training if that decides the trial.

        Raises:
            TrainerSetupError: if the metric is not logged; names the metrics that are.
        """
        if self._trial.report(logs or {}):
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._trial.end()
