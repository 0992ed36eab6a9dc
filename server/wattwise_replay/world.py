"""How the trials of a workload go: for each, one recorded run of its batch size is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattwise_replay.workload import PowerPoint, Workload, cheapest

MAX_TRIES = 20
"""Trials of one recurrence at most."""


class Epochs(NamedTuple):
    """A trial that is about to run.

    Attributes:
        seconds: Time of an epoch.
        joules: Energy of an epoch.
        target_epoch: The epoch that reaches the target; None if none does.
        power_limit_watts: The GPU's limit meanwhile.
    """

    seconds: float
    joules: float
    target_epoch: int | None
    power_limit_watts: float


@dataclass(frozen=True)
class World:
    """A workload over its recurrences.

    Attributes:
        workload: The workload.
        eta: The balance of energy and time by which power limits are chosen.
        drift_at: The recurrence, from 0, at which its measurements are mirrored over the batch sizes; None never.
    """

    workload: Workload
    eta: float = 0.5
    drift_at: int | None = None

    def epochs(self, recurrence: int, batch_size: int, draw: float, *, power: str = "cheapest") -> Epochs:
        """What a trial of a batch size does in a recurrence.

        Args:
            recurrence: From 0.
            batch_size: One of the workload's.
            draw: In [0, 1): which of the recorded runs.
            power: "cheapest" for the cheapest power limit, "highest" for the highest.
        """
        known = self.at(recurrence).of(batch_size)
        point = known.points[-1] if power == "highest" else self._cheapest(known.points)
        run = known.runs[int(draw * len(known.runs))]
        return Epochs(point.epoch_seconds, point.epoch_joules, run.target_epoch, point.power_limit_watts)

    def at(self, recurrence: int) -> Workload:
        """The workload as it is in a recurrence."""
        drifted = self.drift_at is not None and recurrence >= self.drift_at
        return self.workload.mirrored() if drifted else self.workload

    def _cheapest(self, points: tuple[PowerPoint, ...]) -> PowerPoint:
        return cheapest(points, self.eta, self.workload.max_power_watts)


def draws(seed: int, recurrences: int) -> np.ndarray:
    """Which recorded run each try of each recurrence draws; the same for all who are compared.

    Returns:
        Numbers in [0, 1), of shape (recurrences, MAX_TRIES).
    """
    return np.random.default_rng([seed, 0]).random((recurrences, MAX_TRIES))


def overlaps(seed: int, recurrences: int, rate: float) -> np.ndarray:
    """Which recurrences are submitted while the one before still runs.

    Returns:
        Booleans, of shape (recurrences,).
    """
    return np.random.default_rng([seed, 1]).random(recurrences) < rate
