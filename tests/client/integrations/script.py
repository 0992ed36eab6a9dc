"""A training of a test, for any trainer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch.distributed
from wattwise import BatchSizeOptimizer
from wattwise.integrations.steps import StepListener

EXAMPLES = 64
"""Size of the training data: four steps per epoch with batch size 16."""

FEATURES = 4


def nothing() -> None:
    """Does nothing."""


def disconnect() -> None:
    """Ends the threads of the process group, if there is one: PyTorch's may abort a process that ends before them."""
    # A model that is still there keeps the group alive.
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@dataclass
class Script:
    """One training.

    Attributes:
        metrics: the results of the evaluations, in order.
        epochs: the number of epochs after which the trainer stops by itself.
        metric: the metric that the callback reports; None is the trainer's default.
        in_step: called in every training step.
        in_evaluation: called in every step of an evaluation.
        power: is notified of the steps.
        sizes: the number of examples in each training step.
    """

    metrics: Iterator[float]
    epochs: int = 10
    metric: str | None = None
    in_step: Callable[[], None] = nothing
    in_evaluation: Callable[[], None] = nothing
    power: StepListener | None = None
    sizes: list[int] = field(default_factory=list)

    def step(self, examples: int) -> None:
        """Called by every step of a trainer."""
        self.sizes.append(examples)
        self.in_step()


class Fit(Protocol):
    """Runs a script with one trainer and its callback."""

    def __call__(self, bso: BatchSizeOptimizer, script: Script, /) -> None:
        """Trains."""
