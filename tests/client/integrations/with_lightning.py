"""A training with Lightning's Trainer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from wattwise import BatchSizeOptimizer
from wattwise.integrations.lightning import WattwiseCallback

from tests.client.integrations.script import EXAMPLES, FEATURES, Script

SANITY = 1.0
"""What the sanity check finds: better than any target."""


class Model(pl.LightningModule):
    """A layer that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)
        self.script = script

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Overrides the Trainer's hook."""
        self.script.step(len(batch[0]))
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, _batch: list[torch.Tensor]) -> None:
        """Overrides the Trainer's hook."""
        if not self.trainer.sanity_checking:
            self.script.in_evaluation()

    def on_validation_epoch_end(self) -> None:
        """Logs the metric of the script."""
        self.log("val_accuracy", SANITY if self.trainer.sanity_checking else next(self.script.metrics), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Overrides the Trainer's hook."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(callback: WattwiseCallback | None, script: Script, **options: Any) -> pl.Trainer:
    """A Trainer that is about to train."""
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": script.epochs,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tempfile.gettempdir(),
        "callbacks": [callback],
    }
    return pl.Trainer(**(arguments | options))


def loader(examples: int, batch_size: int) -> DataLoader[Any]:
    """Data."""
    return DataLoader(TensorDataset(torch.linspace(0, 1, examples * FEATURES).reshape(-1, FEATURES)), batch_size)


def fit(bso: BatchSizeOptimizer, script: Script, /) -> None:
    """Trains, with as many processes as there are."""
    callback = WattwiseCallback(bso, script.metric or "val_accuracy", power=script.power)
    running = trainer(callback, script, devices=int(os.environ.get("WORLD_SIZE", "1")))
    running.fit(Model(script), loader(EXAMPLES, callback.loader_batch_size()), loader(8, 8))


def fit_and_save(bso: BatchSizeOptimizer, script: Script, folder: Path) -> None:
    """Trains and saves a checkpoint after every epoch; continues the newest one in the folder."""
    last = folder / "last.ckpt"
    checkpoint = last if last.exists() else None
    callback = WattwiseCallback(bso, "val_accuracy", checkpoint=checkpoint)
    running = trainer(
        callback,
        script,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        enable_checkpointing=True,
        callbacks=[callback, ModelCheckpoint(folder, save_last=True)],
    )
    running.fit(Model(script), loader(EXAMPLES, callback.loader_batch_size()), loader(8, 8), ckpt_path=checkpoint)
