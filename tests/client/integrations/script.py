"""What happens in a training of a test, whichever trainer runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from wattwise import BatchSizeOptimizer
from wattwise.integrations.steps import StepListener

EXAMPLES = 64
"""Of the training data; four steps an epoch with the batch size 16."""

FEATURES = 4


def nothing() -> None:
    """Happens where a test wants nothing to happen."""


@dataclass
class Script:
    """One training: what its evaluations give, and what happens in it.

    Attributes:
        metrics: what the evaluations give, one after the other.
        epochs: after how many the trainer stops by itself.
        metric: what the callback is asked to report; None is the trainer's name of it.
        in_step: called in every training step.
        in_evaluation: called in every step of an evaluation.
        power: who is told of the steps.
        sizes: how many examples each training step had.
    """

    metrics: Iterator[float]
    epochs: int = 10
    metric: str | None = None
    in_step: Callable[[], None] = nothing
    in_evaluation: Callable[[], None] = nothing
    power: StepListener | None = None
    sizes: list[int] = field(default_factory=list)

    def step(self, examples: int) -> None:
        """What a trainer's step calls."""
        self.sizes.append(examples)
        self.in_step()


class Fit(Protocol):
    """Trains as a script says, with one trainer and its callback."""

    def __call__(self, bso: BatchSizeOptimizer, script: Script, /) -> None:
        """Trains."""
