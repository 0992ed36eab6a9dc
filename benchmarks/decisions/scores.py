"""Plays a case with a policy, and what the same recurrences cost with the best batch size and with the default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from wattwise_replay.engines import Dispatch, TrialEnd, WithFallback, to_the_end
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import Ledger, play, play_prior
from wattwise_replay.workload import Workload, cheapest, epoch_cost, job_spec
from wattwise_replay.world import TrialCourse, World, course, draws
from wattwise_server.domain import DetectedChange
from wattwise_server.policy.base import Policy

from benchmarks.decisions.cases import Case

SEEDS = 20
"""The usual number of seeds. The best batch size is that of so many, so that tables of fewer seeds share it."""

MAX_TRIES = 50
"""Largest number of trials per recurrence. One that gives up counts as if every trial had cost at least what the best
batch size costs."""

_END = 20
"""Last recurrences, whose most used batch size is what the search has settled on."""


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
class Played:
    """The trials of a contender in a case; each array has a line for each seed.

    Attributes:
        costs: What the trials of each recurrence cost, in joules.
        launches: Their number.
        delivered: Whether each recurrence reached the target.
        fallbacks: Launches for which the policy had no batch size left; they train the default without early stopping.
        alarms: Changes of the workload that the policy has noticed.
        settled: The batch size that most trials of the last recurrences used.
    """

    costs: np.ndarray
    launches: np.ndarray
    delivered: np.ndarray
    fallbacks: np.ndarray
    alarms: np.ndarray
    settled: np.ndarray


@dataclass(frozen=True)
class Reference:
    """The cost of the recurrences of a case without a policy, with the same draws, in joules.

    Attributes:
        best: With the best batch size at each recurrence; a line for each seed.
        default: With the default batch size.
        alone: Expected cost of a model at the last recurrence, by batch size.
    """

    best: np.ndarray
    default: np.ndarray
    alone: Mapping[int, float]


@dataclass(frozen=True)
class Score:
    """A contender's costs beside the reference."""

    played: Played
    reference: Reference

    def first_seeds(self, number: int) -> Score:
        """Returns the score of the first seeds alone."""
        played = Played(**{each.name: getattr(self.played, each.name)[:number] for each in fields(Played)})
        best, default = self.reference.best[:number], self.reference.default[:number]
        return Score(played, Reference(best, default, self.reference.alone))

    def ratios(self, first: int | None = None) -> np.ndarray:
        """Returns the total cost over the first recurrences ÷ that of the best batch size, for each seed."""
        return np.asarray(self._costs[:, :first].sum(axis=1) / self.reference.best[:, :first].sum(axis=1))

    def to_default(self, first: int) -> np.ndarray:
        """Returns the total cost over the first recurrences ÷ that of the default batch size, for each seed."""
        return np.asarray(self._costs[:, :first].sum(axis=1) / self.reference.default[:, :first].sum(axis=1))

    def ratio(self, first: int | None = None) -> float:
        """Returns the mean of `ratios`."""
        return float(self.ratios(first).mean())

    def undelivered(self) -> int:
        """Returns the number of recurrences that were given up."""
        return int((~self.played.delivered).sum())

    @property
    def excess(self) -> np.ndarray:
        """Expected cost of the batch size that the search has settled on ÷ that of the best, for each seed."""
        least = min(self.reference.alone.values())
        return np.array([self.reference.alone[int(size)] / least for size in self.played.settled])

    @property
    def _costs(self) -> np.ndarray:
        given_up = np.maximum(self.played.costs, MAX_TRIES * self.reference.best)
        return np.where(self.played.delivered, self.played.costs, given_up)


def score(
    case: Case, workload: Workload, contender: Contender, seeds: Sequence[int], prior: Workload | None = None
) -> Score:
    """Plays a case and computes its reference."""
    return Score(played(case, workload, contender, seeds, prior), reference(case, workload, seeds))


def played(
    case: Case, workload: Workload, contender: Contender, seeds: Sequence[int], prior: Workload | None = None
) -> Played:
    """Plays a case.

    Args:
        case: The case.
        workload: Its workload.
        contender: Who plays.
        seeds: The seeds.
        prior: What was trained before; None for nothing.

    Raises:
        ReplayError: the policy fails.
    """
    world = World(workload, case.eta)
    is_search = _is_search(case, workload)
    lines = []
    for seed in seeds:
        policy = contender.make()
        name = contender.name
        engine = _Launches(_job(case, workload, (name, policy), seed, prior), workload, policy, case.baseline_every)
        ledger = play(engine, world, seed, len(is_search), case.overlap, at_once=case.at_once, max_tries=MAX_TRIES)
        lines.append(_line(ledger, is_search, engine))
    return Played(**{each.name: np.array([line[each.name] for line in lines]) for each in fields(Played)})


def joined(parts: Sequence[Played]) -> Played:
    """Returns several groups of seeds as one."""
    return Played(
        **{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Played)}
    )


class _Launches(WithFallback):
    """The launches of a job: baselines that a person requests, and the changes that the policy notices.

    Args:
        job: The job.
        workload: Its workload.
        policy: The job's policy.
        baseline_every: A baseline follows the first of so many recurrences, which must not overlap then; None for
            never.
    """

    def __init__(self, job: InProcess, workload: Workload, policy: Policy, baseline_every: int | None) -> None:
        super().__init__(job, workload)
        self.changes: list[DetectedChange] = []
        self._job = job
        self._policy = policy
        self._every = baseline_every
        self._recurrence = 0
        self._tries = 0

    def dispatch(self) -> Dispatch:
        """Returns the policy's choice, or the default."""
        if self._every is not None and _is_baseline(self._recurrence, self._every):
            return self._job.dispatch_baseline()
        return super().dispatch()

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        """Runs a trial and looks for changes that were not noticed before."""
        end = super().run(trial, epochs)
        self._tries += 1
        if end.target_reached or self._tries == MAX_TRIES:
            self._recurrence, self._tries = self._recurrence + 1, 0
        self.changes += [each for each in self._policy.changes(self._job.search) if each not in self.changes]
        return end


def _is_baseline(recurrence: int, every: int) -> bool:
    return recurrence % (every + 1) == 1


def _is_search(case: Case, workload: Workload) -> np.ndarray:
    """Returns whether each recurrence is one of the search, not a baseline between two of them."""
    recurrences = workload.horizon if case.recurrences is None else case.recurrences
    if case.baseline_every is None:
        return np.full(recurrences, fill_value=True)
    places = range(recurrences + -(-recurrences // case.baseline_every))
    return np.array([not _is_baseline(place, case.baseline_every) for place in places])


def _line(ledger: Ledger, is_search: np.ndarray, engine: _Launches) -> Mapping[str, Any]:
    launches = np.bincount([trial.recurrence for trial in ledger.trials], minlength=len(is_search))
    last = set(np.flatnonzero(is_search)[-_END:])
    ((settled, _),) = Counter(trial.batch_size for trial in ledger.trials if trial.recurrence in last).most_common(1)
    return {
        "costs": ledger.costs[is_search],
        "launches": launches[is_search],
        "delivered": ledger.delivered[is_search],
        "fallbacks": engine.fallbacks,
        "alarms": len(engine.changes),
        "settled": settled,
    }


def _job(case: Case, workload: Workload, policy: tuple[str, Policy], seed: int, prior: Workload | None) -> InProcess:
    def job(its: Workload, priors: Sequence[InProcess]) -> InProcess:
        spec = job_spec(
            its, "replay-decisions", policy="gts", eta=case.eta, beta=case.beta, seed=seed, window=case.window
        )
        return InProcess(spec, policy, priors)

    if prior is None:
        return job(workload, ())
    earlier = job(prior, ())
    play_prior(earlier, prior, case.eta, seed)
    return job(workload, [earlier])


def reference(case: Case, workload: Workload, seeds: Sequence[int]) -> Reference:
    """Returns the cost of a case with the best batch size and with the default, for each seed."""
    is_search = _is_search(case, workload)
    drawn = np.array([draws(seed, len(is_search), MAX_TRIES) for seed in range(max(SEEDS, max(seeds) + 1))])
    best, default = [], []
    for stretch, stage in workload.stages(len(is_search)):
        costs = {size: _alone(stage, size, case.eta, drawn[:, stretch]) for size in stage.sizes}
        best.append(min(costs.values(), key=lambda found: (int((~found[1]).sum()), float(found[0].sum())))[0])
        default.append(costs[workload.default_batch_size][0])
    last = workload.at(len(is_search) - 1)
    alone = {size: model_cost(last, size, case.eta) for size in last.sizes}
    wanted = list(seeds)
    return Reference(np.hstack(best)[wanted][:, is_search], np.hstack(default)[wanted][:, is_search], alone)


def _alone(workload: Workload, size: int, eta: float, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cost of each recurrence with one batch size, retried until it delivers, and whether it did."""
    price, epochs, reached = _ends(workload, size, eta)
    chosen = (drawn * len(epochs)).astype(int)
    # All trials up to the first that reached the target.
    needed = np.cumsum(reached[chosen], axis=-1) - reached[chosen] == 0
    return price * (epochs[chosen] * needed).sum(axis=-1), reached[chosen].any(axis=-1)


def _ends(workload: Workload, size: int, eta: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the cost of an epoch, and of each recorded run its epochs and whether it reaches the target."""
    known = workload.of(size)
    point = cheapest(known.points, eta, workload.max_power_watts)
    ends = [to_the_end(course(run, point), workload.max_epochs) for run in known.runs]
    price = epoch_cost(point, eta, workload.max_power_watts)
    return price, np.array([end.epochs for end in ends]), np.array([end.target_reached for end in ends])


def model_cost(workload: Workload, size: int, eta: float) -> float:
    """Returns the expected cost of a model with one batch size, retried until it delivers, stopped at the best epoch.

    Infinite if no recorded run reaches the target.
    """
    price, epochs, reached = _ends(workload, size, eta)
    stops = np.unique(epochs[reached])
    return min(
        (float(price * np.minimum(epochs, stop).mean() / (reached & (epochs <= stop)).mean()) for stop in stops),
        default=float("inf"),
    )
