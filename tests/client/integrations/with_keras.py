"""A training with Keras on PyTorch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from wattwise import BatchSizeOptimizer
from wattwise.integrations.keras import WattwiseCallback

from tests.client.integrations.script import EXAMPLES, FEATURES, Script

X = np.linspace(0, 1, EXAMPLES * FEATURES).reshape(-1, FEATURES)
Y = X.sum(axis=1, keepdims=True)


class Accuracy(keras.metrics.Metric):
    """Returns the metrics of the script."""

    def __init__(self) -> None:
        super().__init__(name="accuracy")
        self.value = 0.0

    def update_state(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing to keep."""

    def reset_state(self) -> None:
        """Nothing to forget."""

    def result(self) -> float:
        """Overrides Keras's method."""
        return self.value


class Model(keras.Sequential):
    """A layer that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
        self.script = script

    def train_step(self, data: Any) -> Any:
        """Overrides Keras's method."""
        self.script.step(len(data[0]))
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        """Overrides Keras's method."""
        self.script.in_evaluation()
        return super().test_step(data)


def fit(bso: BatchSizeOptimizer, script: Script, /) -> None:
    """Trains."""
    callback = WattwiseCallback(bso, script.metric or "val_accuracy", power=script.power)
    train(callback, script, keras.optimizers.SGD(), batch_size=callback.fit_batch_size())


def train(
    callback: WattwiseCallback,
    script: Script,
    optimizer: keras.optimizers.Optimizer,
    model: Model | None = None,
    **options: Any,
) -> None:
    """Trains with a callback."""
    accuracy, model = Accuracy(), Model(script) if model is None else model
    model.compile(optimizer, "mse", metrics=[accuracy])

    def next_metric(_logs: object) -> None:
        accuracy.value = next(script.metrics)

    each = keras.callbacks.LambdaCallback()
    each.on_test_begin = next_metric
    arguments = {
        "x": X,
        "y": Y,
        "epochs": script.epochs,
        "validation_data": (X[:8], Y[:8]),
        "verbose": 0,
        "shuffle": False,
    }
    model.fit(**(arguments | options | {"callbacks": [each, callback, *options.get("callbacks", ())]}))
