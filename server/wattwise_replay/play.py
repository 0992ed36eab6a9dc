"""The recurrences of a job, one after another or overlapping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from wattwise_server.policy.cost import weighed

from wattwise_replay.engines import Engine
from wattwise_replay.world import MAX_TRIES, World, draws, overlaps


@dataclass(frozen=True)
class Trial:
    """One trial of a replay: which recurrence it was a try of, what it trained with, and what it took."""

    recurrence: int
    attempt: int
    batch_size: int
    power_limit_watts: float
    epochs: int
    seconds: float
    joules: float
    cost: float
    target_reached: bool


@dataclass(frozen=True)
class Ledger:
    """What a job's recurrences took.

    Attributes:
        trials: In the order of their ends.
        costs, joules, seconds: Sums of each recurrence's trials, in J, J and s; of shape (recurrences,).
    """

    trials: tuple[Trial, ...]
    costs: np.ndarray
    joules: np.ndarray
    seconds: np.ndarray


def play(engine: Engine, world: World, seed: int, recurrences: int, overlap: float = 0.0) -> Ledger:
    """Runs a job over its recurrences.

    A recurrence ends when a trial reaches the target; otherwise it tries again, 20 times at most. Recurrences that
    overlap have their first trials dispatched before any of them ends; then these run in the order of dispatch.

    Args:
        engine: Who chooses and decides.
        world: How trials go.
        seed: Of what is drawn in the world; the same for all engines that are compared.
        recurrences: How many.
        overlap: The share of recurrences that are submitted while the one before runs, in [0, 1).

    Raises:
        ReplayError: The engine has no batch size left.
    """
    drawn, joins = draws(seed, recurrences), overlaps(seed, recurrences, overlap)
    trials: list[Trial] = []
    for together in _groups(joins):
        waiting = [(recurrence, 0, engine.dispatch()) for recurrence in together]
        while waiting:
            recurrence, attempt, given = waiting.pop(0)
            epochs = world.epochs(recurrence, given.batch_size, drawn[recurrence, attempt], power=engine.power)
            ended = engine.run(given, epochs)
            price = ended.epochs * weighed(world.eta, world.workload.max_power_watts, epochs.joules, epochs.seconds)
            seconds, joules = ended.epochs * epochs.seconds, ended.epochs * epochs.joules
            limit = epochs.power_limit_watts
            trials.append(
                Trial(
                    recurrence,
                    attempt,
                    given.batch_size,
                    limit,
                    ended.epochs,
                    seconds,
                    joules,
                    price,
                    ended.target_reached,
                )
            )
            if not ended.target_reached and attempt + 1 < MAX_TRIES:
                waiting.append((recurrence, attempt + 1, engine.dispatch()))
    return _ledger(trials, recurrences)


def _groups(joins: np.ndarray) -> list[list[int]]:
    """The recurrences, those that overlap together."""
    groups: list[list[int]] = []
    for recurrence, joined in enumerate(joins):
        if joined and groups:
            groups[-1].append(recurrence)
        else:
            groups.append([recurrence])
    return groups


def _ledger(trials: list[Trial], recurrences: int) -> Ledger:
    places = [trial.recurrence for trial in trials]

    def sums(name: str) -> np.ndarray:
        return np.bincount(places, [getattr(trial, name) for trial in trials], recurrences)

    return Ledger(tuple(trials), sums("cost"), sums("joules"), sums("seconds"))
