"""The state of a job between two events, as JSON in `Search.notes`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattwise_server.domain import ChangedQuantity, DetectedChange, Moments
from wattwise_server.errors import StateFormatError
from wattwise_server.policy.knowledge_gradient.evidence import Evidence, Result, num_reached, with_doubts, with_results
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats

_FORMAT = 2
"""Format of the state in `Search.notes`."""

_RECENT = 64
"""Largest number of trials that a change can begin before it is detected."""


class Expected(NamedTuple):
    """The expected logarithm of a usual trial's result: mean, variance, and the degrees of freedom of the variance."""

    mean: float
    variance: float
    freedom: float


class Comparison(NamedTuple):
    """A trial, with the ln E and ln c that were expected of its batch size before it."""

    result: Result
    epochs: Expected
    epoch_cost: Expected


class Cusum(NamedTuple):
    """A cumulative sum: its value, and how many trials it has added up since it was 0."""

    value: float = 0.0
    trials: int = 0


CUSUMS = (Cusum(),) * 4
"""One for each alternative; see `changes.surprises`."""


def newest(trials: Sequence[Comparison], count: int) -> tuple[Comparison, ...]:
    """Returns the newest of some trials, in the order in which they ended."""
    return tuple(trials[max(0, len(trials) - count) :])


def recent(trials: Sequence[Comparison], sums: Iterable[Cusum]) -> tuple[Comparison, ...]:
    """Returns the trials that the sums have added up, at most so many."""
    return newest(trials, min(_RECENT, max(each.trials for each in sums)))


@dataclass(frozen=True)
class Knowledge:
    """The state of a job: immutable, bounded, and all that the belief depends on besides the failures.

    Attributes:
        evidence: By batch size, ascending; with a window, of the trials in the window.
        prior: The same from prior jobs, without costs; empty if there are none.
        first: The batch size to try first, from the prior jobs; None: the default.
        trials: Trials that ran to a decision since the epochs changed, also those that have left the window.
        delivered: Number of the newest launch that delivered a model.
        retry: Number of the launch that ended last, if it delivered no model, and no trial imported since did.
        luck: Probability of the misses since a trial of any batch size last reached the target; that of `Evidence`
            is of the misses of one batch size.
        misses: The places of these misses, the newest ones.
        default_due: Whether the default is to be tried again, because the epochs changed.
        window: The newest trials of the job; only with a window. `domain.Arm` has the newest of each batch size.
        recent: The trials that the sums have added up, in the order in which they ended; a window may lack some.
        epochs_sums, cost_sums: The detectors, one for each alternative.
        changes: The newest change of each quantity, by the trial that revealed it.
        news: The quantities whose change no reason of a launch has named yet.
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
    window: tuple[Result, ...] = ()
    recent: tuple[Comparison, ...] = ()
    epochs_sums: tuple[Cusum, ...] = CUSUMS
    cost_sums: tuple[Cusum, ...] = CUSUMS
    changes: tuple[DetectedChange, ...] = ()
    news: tuple[ChangedQuantity, ...] = ()

    @cached_property
    def reached(self) -> Floats:
        """The number of trials that reached the target, by batch size."""
        return num_reached(self.evidence)

    @cached_property
    def missed(self) -> Floats:
        """The number of trials that missed it, by batch size."""
        return np.array([each.num_missed for each in self.evidence], float)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether a batch size has trials that ran to a decision."""
        return np.asarray(self.reached + self.missed > 0)

    def with_result(self, result: Result, window_size: int) -> Knowledge:
        """Returns the knowledge with one more trial in the evidence."""
        if not window_size:
            evidence = with_results(self.evidence, [result])
            return replace(self, evidence=evidence, trials=self.trials + 1)
        window = (*self.window, result)[-window_size:]
        evidence = with_doubts(with_results((Evidence(),) * len(self.evidence), window), self.evidence)
        return replace(self, evidence=evidence, window=window, trials=self.trials + 1)

    def to_json(self) -> str:
        """Returns the state as text; floats keep every bit."""
        state = {"format": _FORMAT} | {name: getattr(self, name) for name in _NAMES}
        state["changes"] = [(quantity.value, *others) for quantity, *others in self.changes]
        state["news"] = [quantity.value for quantity in self.news]
        state["evidence"] = [_row(each) for each in self.evidence]
        state["prior"] = [_row(each) for each in self.prior]
        return json.dumps(state, separators=(",", ":"))


_NAMES = tuple(field.name for field in fields(Knowledge))


def read(notes: str) -> Knowledge:
    """Returns the state of `Knowledge.to_json`.

    Raises:
        ValueError: it has another format.
    """
    state = _loaded(notes)
    state["misses"] = tuple(state["misses"])
    state["window"] = tuple(Result(*result) for result in state["window"])
    state["recent"] = tuple(
        Comparison(Result(*result), Expected(*epochs), Expected(*cost)) for result, epochs, cost in state["recent"]
    )
    for name in ("epochs_sums", "cost_sums"):
        state[name] = tuple(Cusum(*each) for each in state[name])
    state["changes"] = _changes(state)
    state["news"] = tuple(map(ChangedQuantity, state["news"]))
    for name in ("evidence", "prior"):
        state[name] = tuple(_evidence(row) for row in state[name])
    return Knowledge(**state)


def read_changes(notes: str) -> Sequence[DetectedChange]:
    """Returns the changes in a state, without the rest of it.

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
    version = state.pop("format", None) if isinstance(state, dict) else None
    if version != _FORMAT:
        raise StateFormatError("knowledge_gradient", version, _FORMAT)
    return state


def _changes(state: dict[str, Any]) -> tuple[DetectedChange, ...]:
    return tuple(DetectedChange(ChangedQuantity(quantity), *others) for quantity, *others in state["changes"])


def _row(evidence: Evidence) -> list[Any]:
    """Returns the fields of evidence in order, moments as lists."""
    return [_sums(each) if isinstance(each, Moments) else each for each in evidence]


def _sums(moments: Moments) -> tuple[float, ...]:
    return moments.count, moments.mean, moments.deviation


def _evidence(row: Sequence[Any]) -> Evidence:
    known = dict(zip(Evidence._fields, row, strict=True))
    known |= {name: tuple(known[name]) for name in ("reached", "missed")}
    known |= {name: Moments(*known[name]) for name in ("earlier", "epoch_cost")}
    return Evidence(**known)
