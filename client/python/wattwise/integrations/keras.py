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
from wattwise.integrations.steps import StepListener
from wattwise.integrations.training import Training
from wattwise.training.optimizer import BatchSizeOptimizer
from wattwise.training.split import Split

_SPLIT = Split("batch_size", "gradient_accumulation_steps")


class WattwiseCallback(Callback):
    """Reports every epoch, and stops the training when the trial is decided.

        with BatchSizeOptimizer("localhost:50051", spec) as bso:
            callback = WattwiseCallback(bso, metric="val_accuracy")  # asks for the batch size
            model.fit(..., batch_size=callback.fit_batch_size(), validation_data=..., callbacks=[callback])

    A trial that is over without its target stops the training as usual; once that has wrapped up, `fit()` raises
    `TrainFailError`. An exception that leaves the block or ends the process ends the trial and says why.

    Time and energy run from the beginning of `fit()`; the validation after an epoch is part of the epoch. Keras does
    not tell its callbacks the batch size that `fit()` was given: nothing checks that it is the trial's.

    Args:
        bso: the trial's.
        metric: name of the metric as `fit()` logs it, such as "val_accuracy" or "val_loss".
        power: `PowerLimitOptimizer(bso)`, to be told of every training step; None leaves the power limit alone.

    Raises:
        TrainerSetupError: if a launcher started several processes that do not know of each other yet.
        WattwiseError: whatever `get_batch_size` raises.
    """

    def __init__(self, bso: BatchSizeOptimizer, metric: str, *, power: StepListener | None = None) -> None:
        super().__init__()
        self._training = Training(bso, metric, power)
        # Keras need not wait for a batch before it begins the next, where nobody measures the steps.
        self.async_safe = power is None
        self._steps = 1

    @property
    def bso(self) -> BatchSizeOptimizer:
        """The trial's, which knows the decision."""
        return self._training.bso

    @property
    def batch_size(self) -> int:
        """The trial's batch size, which is the global one."""
        return self._training.batch_size

    def fit_batch_size(self, *, gradient_accumulation_steps: int = 1) -> int:
        """What to pass to `fit()`, or to the data set that is passed to it. Keras itself shares it out among devices.

        Args:
            gradient_accumulation_steps: those of the optimizer; 1 where it has none.

        Raises:
            TrainerSetupError: if it does not come out even; says which sizes would.
        """
        size = _SPLIT.size_for(self._training.batch, devices=1, steps=gradient_accumulation_steps)
        self._steps = gradient_accumulation_steps
        return size

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Checks the optimizer and opens the measurement window.

        Raises:
            TrainerSetupError: if the optimizer accumulates otherwise than `fit_batch_size` was told.
        """
        steps = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        if steps != self._steps:
            raise TrainerSetupError(
                f"the optimizer has gradient_accumulation_steps={steps}, the batch size was made for {self._steps}: "
                f"pass batch_size=callback.fit_batch_size(gradient_accumulation_steps={steps}) to fit()"
            )
        self._training.begin(self.params["epochs"])

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tells of the step that begins, if one does."""
        self._training.steps.begin()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tells of the step that ends, if one does, and stops in the middle of an epoch if the server has said so."""
        if (batch + 1) % self._steps == 0:
            self._training.steps.end()
        if self._training.finished:
            self.model.stop_training = True

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Tells of the epoch whose steps are done."""
        if self._training.running:
            self._training.steps.end_epoch()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports the epoch, and stops the training if that decides the trial.

        Raises:
            TrainerSetupError: if the metric is not logged; names those that are.
        """
        if self._training.report(logs or {}):
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Ends the trial.

        Raises:
            TrainFailError: if the target was not reached.
        """
        self._training.end()
