"""A training that is killed, or continued: `python -m tests.client.integrations.keras_resume ADDRESS FOLDER SITUATION`.

With a further argument it is continued. With torchrun's variables it is one of several ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch.distributed as dist
from wattwise import BatchSizeOptimizer
from wattwise.integrations.keras import WattwiseCallback
from wattwise.monitor import Window

from tests.client.integrations.script import disconnect
from tests.client.integrations.with_keras import Accuracy, X, Y
from tests.client.training.script import job_spec

STEPS = 4
"""The steps of an epoch of Keras."""

_AT_TARGET = 20
"""The steps of the optimizer with which the model has reached its target."""


@dataclass(frozen=True)
class Situation:
    """A training that is killed, and the trial that its continuation leads to.

    Attributes:
        step: the step before which it is killed, from 1; 0 if it is killed at the end of an epoch.
        epoch: the epoch at whose end it is killed, after the model was saved and before the epoch is reported.
        save_freq: of `BackupAndRestore`; None if the model is saved otherwise.
        own_freq: the epochs between two saves without `BackupAndRestore`.
        validation_freq: of `fit()`.
        epochs: the epochs of the trial.
        energy: its energy, a joule for each step that has led to its model or to a report.
    """

    step: int = 0
    epoch: int = 0
    save_freq: str | int | None = "epoch"
    own_freq: int = 1
    validation_freq: int = 1
    epochs: int = 5
    energy: float = 20.0


SITUATIONS = {
    "within an epoch": Situation(step=10),
    "after a backup within an epoch": Situation(step=12, save_freq=2, energy=10 + 12),
    "after a backup in the first epoch": Situation(step=3, save_freq=1, energy=2 + 20),
    "before the first backup": Situation(step=10, save_freq=100, energy=8 + 20),
    "between backup and report": Situation(epoch=3),
    "between backup and report of the target": Situation(epoch=5),
    "with own checkpoints": Situation(step=10, save_freq=None),
    "with an older checkpoint": Situation(step=14, save_freq=None, own_freq=2, energy=12 + 12),
    "between two evaluations": Situation(step=14, validation_freq=2, epochs=3, energy=24),
    "between backup and state, no evaluation": Situation(epoch=3, validation_freq=2, epochs=3, energy=24),
}


class WorkMonitor:
    """A stand-in for a GPU's energy counter: a step takes a second and uses a joule."""

    gpu_indices = (0,)
    kind = "estimate"

    def __init__(self) -> None:
        self.steps = 0
        self._begun: dict[str, int] = {}

    def begin_window(self, name: str) -> None:
        """Opens a window."""
        self._begun[name] = self.steps

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        steps = float(self.steps - self._begun.pop(name))
        return Window(time=steps, total_energy=steps)


class Training(keras.callbacks.Callback):
    """The training as its situation says.

    Args:
        situation: the situation.
        folder: where the model is saved without `BackupAndRestore`.
        stop: called at the point where the training is killed.
    """

    def __init__(self, situation: Situation, folder: Path, stop: Callable[[], None]) -> None:
        super().__init__()
        self.monitor, self.accuracy = WorkMonitor(), Accuracy()
        self._situation, self._stop = situation, stop
        self._weights, self._epoch = folder / "own.weights.h5", folder / "epoch"

    def load(self, model: keras.Model) -> int:
        """Loads the model that was saved, and returns its epoch."""
        if not self._epoch.exists():
            return 0
        model.optimizer.build(model.trainable_variables)
        model.load_weights(self._weights)
        return int(self._epoch.read_text())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        """Overrides Keras's method."""
        self.monitor.steps += 1
        if self.monitor.steps == self._situation.step:
            self._stop()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
        """Overrides Keras's method."""
        self.accuracy.value = min(1.0, int(self.model.optimizer.iterations.value) / _AT_TARGET)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        """Overrides Keras's method."""
        if self._situation.save_freq is None and (epoch + 1) % self._situation.own_freq == 0:
            self.model.save_weights(self._weights)
            self._epoch.write_text(str(epoch + 1))
        if epoch + 1 == self._situation.epoch:
            self._stop()


def job_id(name: str, ranks: int = 1) -> str:
    """The job of a situation."""
    return f"test-resume-{list(SITUATIONS).index(name)}-{ranks}"


def nothing() -> None:
    """Does nothing."""


def train(address: str, folder: Path, name: str, stop: Callable[[], None] = nothing) -> None:
    """Trains, or continues the training that `folder` has."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    situation, backup = SITUATIONS[name], folder / str(rank)
    training = Training(situation, folder, stop)
    job = job_spec(job_id=job_id(name, ranks), target_metric=1.0)
    bso = BatchSizeOptimizer(address, job, monitor=training.monitor)
    # The callback comes first, which is the order that loses the most.
    callback = WattwiseCallback(bso, "val_accuracy", checkpoint=folder / "0")
    callbacks: list[keras.callbacks.Callback] = [callback, training]
    if situation.save_freq is not None:
        callbacks.insert(1, keras.callbacks.BackupAndRestore(backup, save_freq=situation.save_freq))
    model = keras.Sequential([keras.layers.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse", metrics=[training.accuracy])
    model.fit(
        X[rank::ranks],
        Y[rank::ranks],
        batch_size=callback.fit_batch_size(),
        epochs=10,
        initial_epoch=training.load(model),
        validation_data=(X[:8], Y[:8]),
        validation_freq=situation.validation_freq,
        callbacks=callbacks,
        verbose=0,
    )


def _wait() -> None:
    sys.stdout.write("stopped\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    server_address, where, situation_name, *continued = sys.argv[1:]
    train(server_address, Path(where), situation_name, nothing if continued else _wait)
    disconnect()
