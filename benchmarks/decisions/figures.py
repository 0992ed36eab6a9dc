"""The figures of the table of decisions: each is a number from the scores of a row's cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.decisions.cases import Case
from benchmarks.decisions.scores import Score

Scores = Mapping[Case, Score]

EARLY = (5, 10, 40)
"""Numbers of first recurrences that have a column of their own."""
LOSS = 1.15
"""A seed loses if it costs more than so many times the best; a search is stuck on a batch size that does."""
NEAR = 1.10
"""A batch size is near the best if it costs at most so many times as much."""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        title: What it is called.
        value: Computes it from a contender's scores and those of the paper's policy, which are empty if it was not
            played; NaN if it cannot be computed.
        form: How it is printed.
        worst: The figure of the worst case, which is printed beside it.
    """

    title: str
    value: Callable[[Scores, Scores], float]
    form: str = ".3f"
    worst: Figure | None = None

    def text(self, value: float) -> str:
        """Returns a value as it is printed."""
        return "" if np.isnan(value) else format(value, self.form)

    def shown(self, scores: Scores, papers: Scores) -> str:
        """Returns its value, with that of the worst case if there are several."""
        text = self.text(self.value(scores, papers))
        if self.worst is None or len(scores) == 1:
            return text
        return f"{text} ({self.worst.text(self.worst.value(scores, papers))})"

    def is_within(self, value: float, limit: float) -> bool:
        """Returns whether a value, rounded to three digits, is at most a limit."""
        return round(value, 3) <= limit


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _all_seeds(scores: Scores, numbers: Callable[[Score], Any]) -> np.ndarray:
    """Returns the numbers of all cases and seeds in one array."""
    return np.concatenate([np.ravel(numbers(score)) for score in scores.values()])


def _ratio(scores: Scores, _: Scores, first: int | None = None) -> float:
    return _geometric_mean([score.ratio(first) for score in scores.values()])


def _worst(scores: Scores, _: Scores, first: int | None = None) -> float:
    return max(score.ratio(first) for score in scores.values())


def _losing(scores: Scores, _: Scores) -> float:
    return float(np.mean(_all_seeds(scores, Score.ratios) > LOSS))


def _stuck(scores: Scores, _: Scores, limit: float) -> float:
    return float(np.mean(_all_seeds(scores, lambda score: score.excess) > limit))


def _launches(scores: Scores, _: Scores) -> float:
    delivered = _all_seeds(scores, lambda score: score.played.delivered).sum()
    return float(_all_seeds(scores, lambda score: score.played.launches).sum() / max(1, delivered))


def _sum(scores: Scores, _: Scores, name: str) -> float:
    return float(_all_seeds(scores, lambda score: getattr(score.played, name)).sum())


def _undelivered(scores: Scores, _: Scores) -> float:
    return float((~_all_seeds(scores, lambda score: score.played.delivered)).sum())


def _alarms_per_job(scores: Scores, _: Scores) -> float:
    return float(_all_seeds(scores, lambda score: score.played.alarms).mean())


def _first_wave(scores: Scores, _: Scores) -> float:
    return _geometric_mean([float(score.to_default(case.at_once).mean()) for case, score in scores.items()])


def _to_papers(scores: Scores, papers: Scores) -> float:
    """Returns the largest ratio of a case's cost to that of the paper's policy, over all and the first recurrences."""
    if not papers:
        return float("nan")
    if _undelivered(scores, papers) > _undelivered(papers, papers):
        return float("inf")
    return max(
        score.ratio(first) / papers[case].ratio(first) for case, score in scores.items() for first in (None, EARLY[-1])
    )


WORST_40 = Figure("worst, first 40", partial(_worst, first=EARLY[-1]))
WORST = Figure("worst", _worst)
FIRST_5, FIRST_10 = (Figure(f"first {first}", partial(_ratio, first=first)) for first in EARLY[:2])
FIRST_40 = Figure("first 40", partial(_ratio, first=EARLY[-1]), worst=WORST_40)
ALL = Figure("all", _ratio, worst=WORST)
LOSING = Figure("lose > 15%", _losing, ".1%")
STUCK = Figure("stuck", partial(_stuck, limit=LOSS), ".1%")
FAR = Figure("end > 10% off", partial(_stuck, limit=NEAR), ".1%")
LAUNCHES = Figure("launches", _launches)
TOTAL = Figure("launches in total", partial(_sum, name="launches"), ",.0f")
UNDELIVERED = Figure("no model", _undelivered, ".0f")
FALLBACKS = Figure("fallbacks", partial(_sum, name="fallbacks"), ".0f")
ALARMS_PER_JOB = Figure("alarms a job", _alarms_per_job, ".2f")
ALARMS = Figure("alarms", partial(_sum, name="alarms"), ".0f")
FIRST_WAVE = Figure("first wave ÷ default", _first_wave)
TO_PAPERS = Figure("÷ paper's, worst", _to_papers)

USUAL: Sequence[Figure] = (
    FIRST_5,
    FIRST_10,
    FIRST_40,
    ALL,
    LOSING,
    STUCK,
    LAUNCHES,
    UNDELIVERED,
    ALARMS_PER_JOB,
)
"""The figures that every row has."""
