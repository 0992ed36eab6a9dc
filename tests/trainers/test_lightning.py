"""The callback for Lightning's Trainer."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.trainers,
    # Lightning's own, which its users see too.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]
pytest.importorskip("lightning", reason="needs Lightning: make test-trainers")

from tests.trainers.conformance import TrainerConformance
from tests.trainers.with_lightning import fit


class TestConformance(TrainerConformance):
    """What every trainer's callback does."""

    name = "with_lightning"
    fit = staticmethod(fit)
