"""A training with an own loop and accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from wattwise import BatchSizeOptimizer

from tests.client.integrations.script import EXAMPLES, FEATURES, Script

STATE = "custom_checkpoint_0.pkl"
"""The state of the trial in a checkpoint of accelerate."""


class Training:
    """A model and its data, prepared for the trial's batch size and connected to the other processes, if any.

    Attributes:
        accelerator: has the state of the trial in its checkpoints.
        steps: the steps that a checkpoint has done.
    """

    def __init__(self, bso: BatchSizeOptimizer, script: Script) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.accelerator.register_for_checkpointing(bso)
        bso.get_batch_size()
        model = torch.nn.Linear(FEATURES, 1)
        data = DataLoader(TensorDataset(torch.rand(EXAMPLES, FEATURES)), bso.trial.per_rank_batch_size)
        prepared: Any = self.accelerator.prepare(model, data, torch.optim.SGD(model.parameters(), lr=0.01))
        self.model, self.loader, self.optimizer = prepared
        self.bso = bso
        self.script = script
        self.steps = 0

    def load(self, checkpoint: Path) -> None:
        """Continues a checkpoint."""
        self.accelerator.load_state(str(checkpoint))
        self.steps = int(checkpoint.name)

    def epoch(self, folder: Path | None = None, save_steps: int | None = None) -> None:
        """Trains the rest of an epoch; saves a checkpoint after every `save_steps` steps."""
        done = self.steps - self.bso.last_epoch * len(self.loader)
        for (inputs,) in self.accelerator.skip_first_batches(self.loader, done):
            self.script.step(len(inputs))
            self.accelerator.backward(self.model(inputs).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            if folder is not None and save_steps is not None and self.steps % save_steps == 0:
                self.save(folder)

    def save(self, folder: Path) -> None:
        """Saves a checkpoint whose name is the number of steps."""
        self.accelerator.save_state(str(folder / str(self.steps)))


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps."""
    return max(folder.iterdir(), key=lambda checkpoint: int(checkpoint.name), default=None)


def fit(bso: BatchSizeOptimizer, script: Script, /) -> None:
    """Trains, with as many processes as there are; the Accelerator connects them if they are not connected."""
    training = Training(bso, script)
    for _ in bso.epochs():
        training.epoch()
        bso.on_evaluate(next(script.metrics))


def fit_and_save(bso: BatchSizeOptimizer, script: Script, folder: Path) -> None:
    """Trains and saves a checkpoint after every epoch; continues the newest one in the folder."""
    checkpoint = newest(folder)
    if checkpoint is not None:
        bso.load_state_dict(torch.load(checkpoint / STATE))
    training = Training(bso, script)
    if checkpoint is not None:
        training.load(checkpoint)
    for _ in bso.epochs():
        training.epoch()
        bso.on_evaluate(next(script.metrics))
        training.save(folder)
