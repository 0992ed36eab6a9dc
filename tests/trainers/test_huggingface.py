"""The callback for Hugging Face's Trainer."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.trainers
pytest.importorskip("transformers", reason="needs Transformers: make test-trainers")

from tests.trainers.conformance import TrainerConformance
from tests.trainers.with_huggingface import fit


class TestConformance(TrainerConformance):
    """What every trainer's callback does."""

    name = "with_huggingface"
    fit = staticmethod(fit)
