"""The callback for Keras, on PyTorch."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.trainers
os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="needs Keras: make test-trainers")

from tests.trainers.conformance import TrainerConformance
from tests.trainers.with_keras import fit


class TestConformance(TrainerConformance):
    """What every trainer's callback does."""

    name = "with_keras"
    fit = staticmethod(fit)
