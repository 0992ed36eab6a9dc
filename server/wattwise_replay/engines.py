"""Engines, which choose batch sizes and decide trials: the protocol, and the baselines."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from wattwise import rules
from wattwise.rules import EndReason

from wattwise_replay.errors import ExhaustedError
from wattwise_replay.workload import Workload
from wattwise_replay.world import TrialCourse


class Dispatch(NamedTuple):
    """A dispatched trial: its number from 1, and its batch size."""

    number: int
    batch_size: int


class TrialEnd(NamedTuple):
    """The end of a trial.

    Attributes:
        epochs: Whole epochs that it trained.
        target_reached: Whether it reached the target, at any cost.
        failure: Why its trainer failed; None if it did not.
    """

    epochs: int
    target_reached: bool
    failure: EndReason | None = None


class Engine(Protocol):
    """Chooses batch sizes, and runs trials to their decision."""

    power: str
    """The power limit of its trials: "cheapest" or "highest"."""

    def dispatch(self) -> Dispatch:
        """Returns the next trial.

        Raises:
            ExhaustedError: no batch size is left.
        """

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Runs a trial epoch by epoch until it is decided."""


class Fixed:
    """Always the same batch size, without early stopping."""

    def __init__(self, workload: Workload, batch_size: int, power: str = "cheapest") -> None:
        self.power = power
        self._batch_size = batch_size
        self._max_epochs = workload.max_epochs
        self._number = 0

    def dispatch(self) -> Dispatch:
        """Returns the fixed batch size."""
        self._number += 1
        return Dispatch(self._number, self._batch_size)

    def run(self, _: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Runs a trial to the target, or to the last epoch."""
        return to_the_end(epochs, self._max_epochs)


class GridSearch:
    """Each batch size once, ascending; then always the cheapest that reached the target."""

    power = "cheapest"

    def __init__(self, workload: Workload, eta: float) -> None:
        self._workload = workload
        self._eta = eta
        self._left = list(workload.sizes)
        self._costs: dict[int, float] = {}
        self._number = 0

    def dispatch(self) -> Dispatch:
        """Returns the next of the grid, then the cheapest; the default if nothing has reached the target."""
        self._number += 1
        if self._left:
            return Dispatch(self._number, self._left.pop(0))
        default = self._workload.default_batch_size
        return Dispatch(self._number, min(self._costs, key=self._costs.__getitem__, default=default))

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Runs a trial to the target, or to the last epoch."""
        ended = to_the_end(epochs, self._workload.max_epochs)
        if ended.target_reached and trial.number <= len(self._workload.sizes):
            each = rules.cost(self._eta, self._workload.max_power_watts, epochs.joules, epochs.seconds)
            self._costs[trial.batch_size] = ended.epochs * each
        return ended


class WithFallback:
    """An engine whose launches train the default batch size when no other is left, as a trainer without an answer does.

    Args:
        engine: The engine.
        workload: Its workload.
    """

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self.power = engine.power
        self.fallbacks = 0
        self._engine = engine
        self._workload = workload

    def dispatch(self) -> Dispatch:
        """Returns the engine's choice, or the default with a number below 0."""
        try:
            return self._engine.dispatch()
        except ExhaustedError:
            self.fallbacks += 1
            return Dispatch(-self.fallbacks, self._workload.default_batch_size)

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Follows the engine, or runs to the target or the last epoch."""
        if trial.number < 0:
            return to_the_end(epochs, self._workload.max_epochs)
        return self._engine.run(trial, epochs)


def to_the_end(epochs: TrialCourse, max_epochs: int) -> TrialEnd:
    """Returns the end of a trial without early stopping."""
    target = epochs.target_epoch if epochs.target_epoch is not None else math.inf
    last = int(min(target, max_epochs))
    if epochs.crash is not None and epochs.crash.epochs < last:
        return TrialEnd(epochs.crash.epochs, target_reached=False, failure=epochs.crash.reason)
    return TrialEnd(last, target <= max_epochs)
