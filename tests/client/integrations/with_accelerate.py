"""A training with an own loop and accelerate."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from wattwise import BatchSizeOptimizer

from tests.client.integrations.script import EXAMPLES, FEATURES, Script


def fit(bso: BatchSizeOptimizer, script: Script, /) -> None:
    """Trains, with as many processes as there are; the Accelerator connects them if they are not connected."""
    accelerator = Accelerator(cpu=True)
    bso.get_batch_size()
    model = torch.nn.Linear(FEATURES, 1)
    data = DataLoader(TensorDataset(torch.rand(EXAMPLES, FEATURES)), bso.trial.per_rank_batch_size)
    model, loader, optimizer = accelerator.prepare(model, data, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in bso.epochs():
        for (inputs,) in loader:
            script.step(len(inputs))
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        bso.on_evaluate(next(script.metrics))
