"""The course of a workload's trials: for each, a recorded run of its batch size is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wattwise_replay.workload import Crash, PowerPoint, RecordedRun, Workload, cheapest

MAX_TRIES = 20
"""Usual largest number of trials per recurrence."""


class TrialCourse(NamedTuple):
    """The course of a trial that nothing stops.

    Attributes:
        seconds: Time of an epoch.
        joules: Energy of an epoch.
        target_epoch: The epoch that reaches the target; None if none does.
        limit_watts_per_gpu: The GPU's power limit.
        crash: How its trainer fails; None if it does not.
    """

    seconds: float
    joules: float
    target_epoch: int | None
    limit_watts_per_gpu: float
    crash: Crash | None = None


@dataclass(frozen=True)
class World:
    """A workload over its recurrences.

    Attributes:
        workload: The workload.
        eta: Weight of energy against time in the choice of power limits.
    """

    workload: Workload
    eta: float = 0.5
    _looked_up: dict[tuple[int, int, str], tuple[Sequence[RecordedRun], PowerPoint]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def epochs(self, recurrence: int, batch_size: int, draw: float, *, power: str = "cheapest") -> TrialCourse:
        """Returns the course of a trial in a recurrence.

        Args:
            recurrence: From 0.
            batch_size: One of the workload's.
            draw: In [0, 1): selects one of the recorded runs.
            power: "cheapest" for the cheapest power limit, "highest" for the highest.
        """
        runs, point = self._known(self.workload_at(recurrence), batch_size, power)
        return course(runs[int(draw * len(runs))], point)

    def workload_at(self, recurrence: int) -> Workload:
        """Returns the workload in a recurrence, from 0."""
        return self.workload.at(recurrence)

    def _known(self, workload: Workload, size: int, power: str) -> tuple[Sequence[RecordedRun], PowerPoint]:
        """Returns the recorded runs and the epoch of a batch size, which are looked up once."""
        # The world keeps its workloads, so that no other one gets their ids.
        key = (id(workload), size, power)
        if key not in self._looked_up:
            known = workload.of(size)
            cheap = cheapest(known.points, self.eta, workload.max_power_watts)
            self._looked_up[key] = known.runs, known.points[-1] if power == "highest" else cheap
        return self._looked_up[key]


def course(run: RecordedRun, point: PowerPoint) -> TrialCourse:
    """Returns a recorded run at a power limit."""
    return TrialCourse(point.epoch_seconds, point.epoch_joules, run.target_epoch, point.limit_watts_per_gpu, run.crash)


def draws(seed: int, recurrences: int, max_tries: int = MAX_TRIES) -> np.ndarray:
    """Selects the recorded run of each attempt of each recurrence; the same for all contenders.

    Returns:
        Numbers in [0, 1), of shape (recurrences, max_tries); the first 20 of a recurrence do not depend on max_tries.
    """
    usual = np.random.default_rng([seed, 0]).random((recurrences, MAX_TRIES))
    if max_tries <= MAX_TRIES:
        return usual[:, :max_tries]
    more = np.random.default_rng([seed, 2]).random((recurrences, max_tries - MAX_TRIES))
    return np.hstack([usual, more])


def overlaps(seed: int, recurrences: int, rate: float) -> np.ndarray:
    """Returns whether each recurrence is submitted while the one before still runs.

    Returns:
        Booleans, of shape (recurrences,).
    """
    return np.random.default_rng([seed, 1]).random(recurrences) < rate
