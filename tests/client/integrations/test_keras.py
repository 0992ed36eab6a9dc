"""The callback for Keras, on PyTorch."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.trainers
os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="needs Keras: make test-trainers")

import keras
from wattwise import BatchSizeOptimizer
from wattwise.errors import TrainerSetupError
from wattwise.integrations.keras import WattwiseCallback

from tests.client.integrations.conformance import Listener, TrainerConformance
from tests.client.integrations.script import Script
from tests.client.integrations.with_keras import fit, train


class TestKeras(TrainerConformance):
    """The requirements on every callback, and those on this one."""

    name = "with_keras"
    fit = staticmethod(fit)

    @pytest.fixture
    def callback(self, bso: BatchSizeOptimizer) -> WattwiseCallback:
        """The callback of a trial with batch size 16."""
        return WattwiseCallback(bso, "val_accuracy")

    def test_accumulated_gradients(self, callback: WattwiseCallback) -> None:
        """Accumulated batches add up to the trial's batch size."""
        script, sgd = Script(iter([0.95])), keras.optimizers.SGD(gradient_accumulation_steps=2)
        train(callback, script, sgd, batch_size=callback.fit_batch_size(gradient_accumulation_steps=2))
        assert script.sizes == [8] * 8

    def test_accumulated_steps_are_one_step(self, bso: BatchSizeOptimizer) -> None:
        """A step for the listener is an update of the weights."""
        events: list[str] = []
        callback = WattwiseCallback(bso, "val_accuracy", power=Listener(events))
        sgd = keras.optimizers.SGD(gradient_accumulation_steps=2)
        size = callback.fit_batch_size(gradient_accumulation_steps=2)
        train(callback, Script(iter([0.95])), sgd, batch_size=size)
        assert events == [*["begin", "end"] * 4, "epoch", "over"]

    def test_accumulation_that_fit_batch_size_was_not_given(self, callback: WattwiseCallback) -> None:
        """An optimizer that accumulates more steps than fit_batch_size was given is refused."""
        script, sgd = Script(iter([0.95])), keras.optimizers.SGD(gradient_accumulation_steps=2)
        with pytest.raises(TrainerSetupError, match=r"fit_batch_size\(gradient_accumulation_steps=2\)"):
            train(callback, script, sgd, batch_size=callback.fit_batch_size())
        assert not script.sizes

    def test_size_that_does_not_fit(self, callback: WattwiseCallback) -> None:
        """Accumulated batches that do not divide the batch size are refused; the error names the sizes that do."""
        with pytest.raises(TrainerSetupError, match=r"batch_size to one of 1, 2, 4, 8, 16"):
            callback.fit_batch_size(gradient_accumulation_steps=3)
