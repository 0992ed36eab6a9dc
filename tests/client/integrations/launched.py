"""A training whose library starts its two processes: `python -m tests.client.integrations.launched HOW ADDRESS`.

HOW is a strategy of Lightning, "fit_attempts" with the strategy "ddp", or "accelerate".
"""

from __future__ import annotations

import importlib
import itertools
import sys
import warnings
from typing import Any

from wattwise import Attempt, BatchSizeOptimizer, EstimateMonitor, fit_attempts

from tests.client.integrations.script import EXAMPLES, Script, disconnect
from tests.client.training.script import job_spec


def optimizer(address: str, **given: Any) -> BatchSizeOptimizer:
    """The optimizer of the only job."""
    job = job_spec(job_id="test-launched", policy="knowledge_gradient", max_epochs=4, **given)
    return BatchSizeOptimizer(address, job, monitor=EstimateMonitor(watts=100))


def with_lightning(bso: BatchSizeOptimizer, strategy: str, metrics: list[float]) -> None:
    """Trains in two processes that Lightning starts."""
    lightning: Any = importlib.import_module("tests.client.integrations.with_lightning")
    callback, script = lightning.WattwiseCallback(bso, "val_accuracy"), Script(iter(metrics))
    batches = lightning.loader(EXAMPLES, callback.loader_batch_size(devices=2))
    running = lightning.trainer(callback, script, devices=2, strategy=strategy)
    running.fit(lightning.Model(script), batches, lightning.loader(8, 8))


def with_accelerate(address: str) -> None:
    """Trains in one of the processes that accelerate starts."""
    accelerate: Any = importlib.import_module("tests.client.integrations.with_accelerate")
    accelerate.fit(optimizer(address), Script(iter([0.1, 0.5, 0.95])))


def main(how: str, address: str) -> None:
    """Trains until the target is reached: by the first trial, and with "fit_attempts" by the second."""
    warnings.simplefilter("ignore")
    if how == "accelerate":
        importlib.import_module("accelerate").debug_launcher(with_accelerate, (address,), num_processes=2)
        return
    bso, attempts = optimizer(address), itertools.count(1)

    def fit(_attempt: Attempt) -> None:
        with_lightning(bso, "ddp", [0.1, 0.5, 0.95 if next(attempts) == 2 else 0.6, 0.6])

    if how == "fit_attempts":
        fit_attempts(bso, fit)
    else:
        with_lightning(bso, how, [0.1, 0.5, 0.95])


if __name__ == "__main__":
    main(*sys.argv[1:])
    disconnect()
