"""A training with the Trainer of Hugging Face Transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from wattwise import BatchSizeOptimizer
from wattwise.integrations.huggingface import WattwiseCallback

from tests.client.integrations.script import EXAMPLES, FEATURES, Script

DATA = [{"inputs": torch.full((FEATURES,), i / EXAMPLES), "labels": torch.tensor(i % 2)} for i in range(EXAMPLES)]


class Model(torch.nn.Module):
    """A layer that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 2)
        self.script = script

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Overrides the Trainer's hook."""
        if self.training:
            self.script.step(len(inputs))
        else:
            self.script.in_evaluation()
        logits = self.layer(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer(callback: WattwiseCallback, script: Script, **options: Any) -> Trainer:
    """A Trainer that is about to train."""
    arguments: dict[str, Any] = {
        "output_dir": f"{tempfile.gettempdir()}/wattwise-test-trainers",  # nothing is saved
        "use_cpu": True,
        "num_train_epochs": script.epochs,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return Trainer(
        Model(script),
        TrainingArguments(**(arguments | options)),
        train_dataset=DATA,
        eval_dataset=DATA[:8],
        compute_metrics=lambda _: {"accuracy": next(script.metrics)},
        callbacks=[callback],
    )


def fit(bso: BatchSizeOptimizer, script: Script, /) -> None:
    """Trains."""
    callback = WattwiseCallback(bso, script.metric or "eval_accuracy", power=script.power)
    trainer(callback, script, **callback.batch_arguments()).train()


def fit_and_save(bso: BatchSizeOptimizer, script: Script, folder: Path) -> None:
    """Trains and saves a checkpoint after every epoch; continues the newest one in the folder."""
    last = get_last_checkpoint(str(folder))
    callback = WattwiseCallback(bso, "eval_accuracy", checkpoint=last)
    options = {"output_dir": str(folder), "save_strategy": "epoch", **callback.batch_arguments()}
    trainer(callback, script, **options).train(resume_from_checkpoint=last)
