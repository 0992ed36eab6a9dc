"""The state of a job: what its trials have shown, by batch size, as JSON in `Search.notes`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattwise_server.domain import ChangedQuantity, DetectedChange, Moments
from wattwise_server.errors import StateFormatError

Floats: TypeAlias = NDArray[np.float64]

_FORMAT = 2
"""Format of the state in `Search.notes`."""

KEPT = 16
"""Trials of a batch size that are kept one by one, of those that reached the target and of those that missed it."""

_RECENT = 64
"""Largest number of trials that a change can begin before it is detected."""

_UNUSUAL = 3.0
"""Standard deviations from the median at which a trial that is no longer kept by itself counts as unusual."""

_LEAST_SPREAD = 0.1
"""Least standard deviation of ln E for that."""


class Seen(NamedTuple):
    """A trial that ran to a decision.

    Attributes:
        number: Its number.
        place: Index of its batch size.
        epochs: Epochs that it trained; 0 if they no longer count.
        epoch_cost: ln of the cost of one; None if it cost nothing, or if that no longer counts.
        reached: Whether it reached the target.
        chance: Of a trial that missed the target, the probability that it would; 1 while nothing was known.
    """

    number: int
    place: int
    epochs: int
    epoch_cost: float | None
    reached: bool
    chance: float = 1.0

    @property
    def log_epochs(self) -> float:
        """Ln E, or ln of a lower bound of E: after n epochs without the target, E is at least n + 1."""
        return math.log(self.epochs if self.reached else self.epochs + 0.5)


class Expected(NamedTuple):
    """What was expected of the logarithm of a usual trial's result: mean, variance, and its degrees of freedom."""

    mean: float
    variance: float
    freedom: float


class Watched(NamedTuple):
    """A trial, with the ln E and ln c that were expected of its batch size before it."""

    seen: Seen
    epochs: Expected
    epoch_cost: Expected


class Cusum(NamedTuple):
    """A cumulative sum: its value, and how many trials it has added up since it was 0."""

    value: float = 0.0
    trials: int = 0


CUSUMS = (Cusum(),) * 4
"""One for each alternative; see `changes.surprises`."""


class Evidence(NamedTuple):
    """What the trials of one batch size have shown.

    Attributes:
        reached, missed: Epochs of the newest trials that reached the target, and of the newest that missed it.
        earlier: ln E of the earlier ones that reached it, unusual ones moved closer.
        earlier_unusual: The number of these unusual ones.
        earlier_missed: The number of earlier ones that missed it.
        luck: Probability of the misses since a trial last reached the target.
        epoch_cost: ln c of all trials.
        cost_doubt: Variance of a systematic error of `epoch_cost`, after the cost of other batch sizes has changed.
        weight: What a trial counts; less than 1 for prior jobs with many trials.
    """

    reached: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    earlier: Moments = Moments()
    earlier_unusual: int = 0
    earlier_missed: int = 0
    luck: float = 1.0
    epoch_cost: Moments = Moments()
    cost_doubt: float = 0.0
    weight: float = 1.0

    @property
    def num_reached(self) -> int:
        """The number of trials that reached the target."""
        return len(self.reached) + self.earlier.count

    @property
    def num_missed(self) -> int:
        """The number of trials that missed it."""
        return len(self.missed) + self.earlier_missed

    def with_miss(self, epochs: int, chance: float) -> Evidence:
        """Adds a trial that missed the target, with the probability that it would."""
        missed = (*self.missed, epochs)
        more = max(0, len(missed) - KEPT)
        luck = self.luck * chance
        return self._replace(missed=missed[more:], earlier_missed=self.earlier_missed + more, luck=luck)

    def with_success(self, epochs: int) -> Evidence:
        """Adds a trial that reached the target."""
        reached = (*self.reached, epochs)
        if len(reached) <= KEPT:
            return self._replace(reached=reached, luck=1.0)
        logs = [math.log(each) for each in reached]
        middle = median(logs)
        # 1.4826 times the median absolute deviation of normal values is their standard deviation.
        reach = _UNUSUAL * max(_LEAST_SPREAD, 1.4826 * median(abs(each - middle) for each in logs))
        oldest = min(max(logs[0], middle - reach), middle + reach)
        unusual = self.earlier_unusual + (oldest != logs[0])
        return self._replace(reached=reached[1:], earlier=self.earlier.add(oldest), earlier_unusual=unusual, luck=1.0)

    def with_cost(self, epoch_cost: float) -> Evidence:
        """Adds the ln c of a trial."""
        before = Moments() if self.cost_doubt else self.epoch_cost
        return self._replace(epoch_cost=before.add(epoch_cost), cost_doubt=0.0)

    def doubted(self, log_factor: float) -> Evidence:
        """After the cost of an epoch changed at other batch sizes: here it did, or did not, or something in between."""
        if not self.epoch_cost.count:
            return self
        moved = Moments(1, self.epoch_cost.mean + 0.5 * log_factor, 0.0)
        return self._replace(epoch_cost=moved, cost_doubt=self.cost_doubt + 0.25 * log_factor**2)


@dataclass(frozen=True)
class Knowledge:
    """The state of a job: immutable, bounded, and all that the belief depends on besides the failures.

    Attributes:
        evidence: By batch size, ascending.
        prior: The same from prior jobs, without costs; empty if there are none.
        first: The batch size to try first, from the prior jobs; None: the default.
        trials: Trials that ran to a decision, since the epochs changed.
        delivered: Number of the newest launch that delivered a model.
        retry: Number of the launch that ended last, if it delivered no model, and no trial imported since did.
        luck: Probability of the misses since a trial last reached the target.
        misses: The places of these misses, the newest ones.
        default_due: Whether the default is to be tried again, because the epochs changed.
        window: The newest trials; only for a job with a window.
        recent: The trials that the sums have added up, in the order in which they ended.
        epochs_sums, cost_sums: The detectors, one for each alternative.
        changes: The newest change of each quantity, by the trial that revealed it.
        news: The quantities whose change no launch has been told yet.
    """

    evidence: tuple[Evidence, ...]
    prior: tuple[Evidence, ...] = ()
    first: int | None = None
    trials: int = 0
    delivered: int = 0
    retry: int | None = None
    luck: float = 1.0
    misses: tuple[int, ...] = ()
    default_due: bool = False
    window: tuple[Seen, ...] = ()
    recent: tuple[Watched, ...] = ()
    epochs_sums: tuple[Cusum, ...] = CUSUMS
    cost_sums: tuple[Cusum, ...] = CUSUMS
    changes: tuple[DetectedChange, ...] = ()
    news: tuple[ChangedQuantity, ...] = ()

    @cached_property
    def derived(self) -> dict[object, Any]:
        """What was computed from it, so that it is computed once."""
        return {}

    @cached_property
    def reached(self) -> Floats:
        """The number of trials that reached the target, by batch size."""
        return np.array([each.num_reached for each in self.evidence], float)

    @cached_property
    def missed(self) -> Floats:
        """The number of trials that missed it, by batch size."""
        return np.array([each.num_missed for each in self.evidence], float)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether a batch size has trials that ran to a decision."""
        return np.asarray(self.reached + self.missed > 0)

    def to_json(self) -> str:
        """The state as text; floats keep every bit."""
        state = {"format": _FORMAT} | {name: getattr(self, name) for name in _PLAIN}
        state["changes"] = [(change.quantity.value, *change[1:]) for change in self.changes]
        state["news"] = [quantity.value for quantity in self.news]
        state["evidence"] = [_flat(known) for known in self.evidence]
        state["prior"] = [_flat(known) for known in self.prior]
        return json.dumps(state, separators=(",", ":"))


_PLAIN = (
    "first",
    "trials",
    "delivered",
    "retry",
    "luck",
    "misses",
    "default_due",
    "window",
    "recent",
    "epochs_sums",
    "cost_sums",
)


# Large enough for the jobs that are launched at the same time; a state with what is derived from it takes up to 300 KB.
@lru_cache(maxsize=64)
def read(notes: str) -> Knowledge:
    """The state of `Knowledge.to_json`.

    Raises:
        ValueError: it has another format.
    """
    state = _loaded(notes)
    state["misses"] = tuple(state["misses"])
    state["window"] = tuple(Seen(*seen) for seen in state["window"])
    state["recent"] = tuple(
        Watched(Seen(*seen), Expected(*epochs), Expected(*costs)) for seen, epochs, costs in state["recent"]
    )
    for name in ("epochs_sums", "cost_sums"):
        state[name] = tuple(Cusum(*each) for each in state[name])
    state["changes"] = _changes(state)
    state["news"] = tuple(map(ChangedQuantity, state["news"]))
    for name in ("evidence", "prior"):
        state[name] = tuple(_unflat(row) for row in state[name])
    return Knowledge(**state)


def read_changes(notes: str) -> Sequence[DetectedChange]:
    """The changes in a state, without the rest of it and without a place in the cache of states.

    Raises:
        ValueError: it has another format.
    """
    # Most jobs have none.
    if '"changes":[]' in notes and f'"format":{_FORMAT},' in notes:
        return ()
    state = _loaded(notes)
    try:
        return _changes(state)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the state of knowledge_gradient is damaged: {error!r}") from error


def _loaded(notes: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(notes)
    found = state.pop("format", None) if isinstance(state, dict) else None
    if found != _FORMAT:
        raise StateFormatError("knowledge_gradient", found, _FORMAT)
    return state


def _changes(state: dict[str, Any]) -> tuple[DetectedChange, ...]:
    return tuple(DetectedChange(ChangedQuantity(quantity), *others) for quantity, *others in state["changes"])


def _flat(known: Evidence) -> list[Any]:
    return [*known[:2], *_sums(known.earlier), *known[3:6], *_sums(known.epoch_cost), *known[7:]]


def _sums(moments: Moments) -> tuple[float, ...]:
    return moments.count, moments.mean, moments.deviation


def _unflat(row: Sequence[Any]) -> Evidence:
    reached, missed, count, mean, deviation, unusual, earlier_missed, luck, *others = row
    costs, doubt, weight = Moments(*others[:3]), *others[3:]
    earlier = Moments(count, mean, deviation)
    return Evidence(tuple(reached), tuple(missed), earlier, unusual, earlier_missed, luck, costs, doubt, weight)


def with_seen(
    evidence: Sequence[Evidence], trials: Iterable[Seen], *, epochs: bool = True, costs: bool = True
) -> tuple[Evidence, ...]:
    """The evidence with more trials, or with only their epochs or only their costs."""
    every = list(evidence)
    for seen in trials:
        known = every[seen.place]
        if costs and seen.epoch_cost is not None:
            known = known.with_cost(seen.epoch_cost)
        if epochs and seen.epochs:
            known = known.with_success(seen.epochs) if seen.reached else known.with_miss(seen.epochs, seen.chance)
        every[seen.place] = known
    return tuple(every)


def without_epochs(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """What is left if the epochs are no longer known."""
    return tuple(Evidence(epoch_cost=known.epoch_cost, cost_doubt=known.cost_doubt) for known in evidence)


def newest(trials: Sequence[Watched], count: int) -> tuple[Watched, ...]:
    """The newest of some trials, in the order in which they ended."""
    return tuple(trials[max(0, len(trials) - count) :])


def recent(trials: Sequence[Watched], sums: Iterable[Cusum]) -> tuple[Watched, ...]:
    """The trials that the sums have added up, at most so many."""
    return newest(trials, min(_RECENT, max(each.trials for each in sums)))
