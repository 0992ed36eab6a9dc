"""The recurrences of a job, one after another or overlapping."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from wattwise import rules
from wattwise.rules import EndReason

from wattwise_replay.engines import Engine
from wattwise_replay.errors import ExhaustedError
from wattwise_replay.workload import Workload
from wattwise_replay.world import MAX_TRIES, World, draws, overlaps

_PRIOR_SEEDS = 1_000_000
"""More than anybody replays, so that a job and its prior never have the same draws."""


@dataclass(frozen=True)
class PlayedTrial:
    """One trial of a replay: its recurrence and attempt, its batch size and power limit, what it cost, how it ended."""

    recurrence: int
    attempt: int
    batch_size: int
    limit_watts_per_gpu: float
    epochs: int
    seconds: float
    joules: float
    cost: float
    target_reached: bool
    failure: EndReason | None = None


@dataclass(frozen=True)
class Ledger:
    """Costs of a job's recurrences.

    Attributes:
        trials: In the order in which they ended.
        costs, joules, seconds: Sums over each recurrence's trials, in J, J and s; shape (recurrences,).
        delivered: Whether each recurrence reached the target; shape (recurrences,).
    """

    trials: tuple[PlayedTrial, ...]
    costs: np.ndarray
    joules: np.ndarray
    seconds: np.ndarray
    delivered: np.ndarray


def play(
    engine: Engine,
    world: World,
    seed: int,
    recurrences: int,
    overlap: float = 0.0,
    *,
    at_once: int = 1,
    max_tries: int = MAX_TRIES,
) -> Ledger:
    """Runs a job over its recurrences.

    A recurrence ends when a trial reaches the target; otherwise it tries again, up to `max_tries` times. Overlapping
    recurrences dispatch their first trials before any of them ends; these run in the order of dispatch.

    Args:
        engine: Chooses batch sizes and decides trials.
        world: Determines the course of trials.
        seed: Seed of the world's draws; the same for all compared engines.
        recurrences: Number of recurrences.
        overlap: Share of recurrences that are submitted while the one before runs, in [0, 1).
        at_once: Number of recurrences of which each is submitted before any of them ends.
        max_tries: Largest number of trials per recurrence.

    Raises:
        ReplayError: the engine has no batch size left.
    """
    drawn, joins = draws(seed, recurrences, max_tries), overlaps(seed, recurrences, overlap)
    trials: list[PlayedTrial] = []
    joins |= np.arange(recurrences) % at_once > 0
    for together in _groups(joins):
        waiting = [(recurrence, 0, engine.dispatch()) for recurrence in together]
        while waiting:
            recurrence, attempt, dispatched = waiting.pop(0)
            epochs = world.epochs(recurrence, dispatched.batch_size, drawn[recurrence, attempt], power=engine.power)
            ended = engine.run(dispatched, epochs)
            price = ended.epochs * rules.cost(world.eta, world.workload.max_power_watts, epochs.joules, epochs.seconds)
            seconds, joules = ended.epochs * epochs.seconds, ended.epochs * epochs.joules
            limit = epochs.limit_watts_per_gpu
            trials.append(
                PlayedTrial(
                    recurrence,
                    attempt,
                    dispatched.batch_size,
                    limit,
                    ended.epochs,
                    seconds,
                    joules,
                    price,
                    ended.target_reached,
                    ended.failure,
                )
            )
            if not ended.target_reached and attempt + 1 < max_tries:
                waiting.append((recurrence, attempt + 1, engine.dispatch()))
    return _ledger(trials, recurrences)


def play_prior(engine: Engine, workload: Workload, eta: float, seed: int) -> None:
    """Runs an earlier job over its horizon, with other draws than those of the job that it is a prior of.

    Args:
        engine: The engine of the earlier job; it keeps what it has learned.
        workload: What was trained before.
        eta: Weight of energy against time.
        seed: Seed of the later job.
    """
    with suppress(ExhaustedError):
        play(engine, World(workload, eta), seed + _PRIOR_SEEDS, workload.horizon)


def _groups(joins: np.ndarray) -> list[list[int]]:
    """Returns the recurrences in groups that overlap."""
    groups: list[list[int]] = []
    for recurrence, joined in enumerate(joins):
        if joined and groups:
            groups[-1].append(recurrence)
        else:
            groups.append([recurrence])
    return groups


def _ledger(trials: list[PlayedTrial], recurrences: int) -> Ledger:
    places = [trial.recurrence for trial in trials]

    def sums(name: str) -> np.ndarray:
        return np.bincount(places, [getattr(trial, name) for trial in trials], recurrences)

    return Ledger(tuple(trials), sums("cost"), sums("joules"), sums("seconds"), sums("target_reached") > 0)
