"""Plays one case of the table of decisions with one contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from wattwise_server.policy.base import Policy

from wattwise_replay.acceptance import Case
from wattwise_replay.engines import WithFallback, to_the_end
from wattwise_replay.in_process import InProcess, reads_priors
from wattwise_replay.play import play, play_prior
from wattwise_replay.workload import Workload, cheapest, epoch_cost, job_spec
from wattwise_replay.world import World, course, draws

MAX_TRIES = 50
"""Largest number of trials per recurrence. One that gives up counts as if every trial had cost at least what the best
batch size costs."""


@dataclass(frozen=True)
class Contender:
    """A policy by its name, or a variant of one.

    Attributes:
        name: What it is called.
        make: Creates the policy.
    """

    name: str
    make: Callable[[], Policy]


@dataclass(frozen=True)
class Score:
    """What a contender did in a case.

    Attributes:
        costs: What each recurrence counts as, in joules; shape (seeds, recurrences).
        best: The same for the best batch size in hindsight, with the same draws.
        launches: Trials of each recurrence.
        delivered: Whether each recurrence reached the target.
        fallbacks: Launches for which the policy had no batch size left; they train the default without early stopping.
    """

    costs: np.ndarray
    best: np.ndarray
    launches: np.ndarray
    delivered: np.ndarray
    fallbacks: int

    def ratio(self, first: int | None = None) -> float:
        """Total cost over the first recurrences ÷ that of the best batch size; the mean over the seeds."""
        return float(np.mean(self.costs[:, :first].sum(axis=1) / self.best[:, :first].sum(axis=1)))

    def undelivered(self, first: int | None = None) -> int:
        """Number of the first recurrences that were given up."""
        return int((~self.delivered[:, :first]).sum())


def score(
    case: Case, workload: Workload, contender: Contender, seeds: Sequence[int], prior: Workload | None = None
) -> Score:
    """Plays a case.

    Args:
        case: The case.
        workload: Its workload.
        contender: Who plays.
        seeds: The seeds.
        prior: What was trained before; None for nothing.
    """
    world = World(workload, case.eta, workload.drift_at)
    recurrences = workload.horizon if case.recurrences is None else case.recurrences
    ledgers, launches, fallbacks = [], [], 0
    for seed in seeds:
        engine = WithFallback(_engine(case, workload, contender, seed, prior), workload)
        ledger = play(engine, world, seed, recurrences, case.overlap, max_tries=MAX_TRIES)
        ledgers.append(ledger)
        launches.append(np.bincount([trial.recurrence for trial in ledger.trials], minlength=recurrences))
        fallbacks += engine.fallbacks
    costs, delivered = (np.array([getattr(each, name) for each in ledgers]) for name in ("costs", "delivered"))
    best = best_in_hindsight(world, seeds, recurrences)
    costs = np.where(delivered, costs, np.maximum(costs, MAX_TRIES * best))
    return Score(costs, best, np.array(launches), delivered, fallbacks)


def _engine(case: Case, workload: Workload, contender: Contender, seed: int, prior: Workload | None) -> InProcess:
    def engine(its: Workload, priors: Sequence[InProcess]) -> InProcess:
        job = job_spec(
            its, "replay-decisions", policy="POLICY_GTS", eta=case.eta, beta=2.0, seed=seed, window=case.window
        )
        return InProcess(job, (contender.name.removeprefix("POLICY_"), contender.make()), priors)

    if prior is None or not reads_priors(contender.make()):
        return engine(workload, ())
    earlier = engine(prior, ())
    play_prior(earlier, prior, case.eta, seed)
    return engine(workload, [earlier])


def best_in_hindsight(world: World, seeds: Sequence[int], recurrences: int) -> np.ndarray:
    """The cost of each recurrence with the best batch size of all that deliver, before and after the drift; in J."""
    drawn = np.array([draws(seed, recurrences, MAX_TRIES) for seed in seeds])
    drift = recurrences if world.drift_at is None else min(world.drift_at, recurrences)
    # The measurements of the best batch size are the same before and after; they only belong to another one.
    parts = [_best(world.workload, world.eta, part) for part in (drawn[:, :drift], drawn[:, drift:]) if part.size]
    return np.concatenate(parts, axis=1)


def _best(workload: Workload, eta: float, drawn: np.ndarray) -> np.ndarray:
    alone = [_alone(workload, size, eta, drawn) for size in workload.sizes]
    return min(alone, key=lambda found: (int((~found[1]).sum()), float(found[0].sum())))[0]


def _alone(workload: Workload, size: int, eta: float, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cost of each recurrence with one batch size, retried until it delivers, and whether it did."""
    known = workload.of(size)
    point = cheapest(known.points, eta, workload.max_power_watts)
    ends = [to_the_end(course(run, point), workload.max_epochs) for run in known.runs]
    chosen = (drawn * len(known.runs)).astype(int)
    reached = np.array([end.target_reached for end in ends])[chosen]
    epochs = np.array([end.epochs for end in ends])[chosen]
    # All trials up to the first that reached the target.
    needed = np.cumsum(reached, axis=-1) - reached == 0
    price = epoch_cost(point, eta, workload.max_power_watts)
    return price * (epochs * needed).sum(axis=-1), reached.any(axis=-1)


def joined(parts: Sequence[Score]) -> Score:
    """The scores of several groups of seeds as one."""
    names = ("costs", "best", "launches", "delivered")
    costs, best, launches, delivered = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Score(costs, best, launches, delivered, sum(part.fallbacks for part in parts))
