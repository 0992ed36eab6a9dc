"""The figures of the table of decisions: each is a number from the scores of a row's cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
    """

    title: str
    value: Callable[[Scores, Scores], float]
    form: str = ".3f"

    def text(self, value: float) -> str:
        """A value as it is printed."""
        return "" if np.isnan(value) else format(value, self.form)

    def is_within(self, value: float, limit: float) -> bool:
        """Whether a value, rounded as it is printed, is at most a limit."""
        return float(format(value, ".3f")) <= limit


def _ratio(scores: Scores, _: Scores, first: int | None = None) -> float:
    return float(np.exp(np.mean([np.log(score.ratio(first)) for score in scores.values()])))


def _worst(scores: Scores, _: Scores, first: int | None = None) -> float:
    return max(score.ratio(first) for score in scores.values())


def _losing(scores: Scores, _: Scores) -> float:
    return float(np.mean(np.concatenate([score.ratios() for score in scores.values()]) > LOSS))


def _stuck(scores: Scores, _: Scores, limit: float = LOSS) -> float:
    return float(np.mean(np.concatenate([score.excess for score in scores.values()]) > limit))


def _launches(scores: Scores, _: Scores) -> float:
    launches = sum(int(score.played.launches.sum()) for score in scores.values())
    return launches / max(1, sum(int(score.played.delivered.sum()) for score in scores.values()))


def _total(scores: Scores, _: Scores) -> float:
    return sum(int(score.played.launches.sum()) for score in scores.values())


def _undelivered(scores: Scores, _: Scores) -> float:
    return sum(score.undelivered() for score in scores.values())


def _fallbacks(scores: Scores, _: Scores) -> float:
    return sum(int(score.played.fallbacks.sum()) for score in scores.values())


def _alarms(scores: Scores, _: Scores) -> float:
    return sum(int(score.played.alarms.sum()) for score in scores.values())


def _alarms_per_job(scores: Scores, _: Scores) -> float:
    return float(np.concatenate([score.played.alarms for score in scores.values()]).mean())


def _first_wave(scores: Scores, _: Scores) -> float:
    ratios = [score.to_default(case.at_once).mean() for case, score in scores.items()]
    return float(np.exp(np.mean(np.log(ratios))))


def _to_papers(scores: Scores, papers: Scores) -> float:
    """The largest ratio of a case's costs to those of the paper's policy, over all and over the first recurrences."""
    if not papers:
        return float("nan")
    if _undelivered(scores, {}) > _undelivered(papers, {}):
        return float("inf")
    return max(
        score.ratio(first) / papers[case].ratio(first) for case, score in scores.items() for first in (None, EARLY[-1])
    )


FIRST_5, FIRST_10, FIRST_40 = (Figure(f"first {first}", partial(_ratio, first=first)) for first in EARLY)
ALL = Figure("all", _ratio)
WORST_40 = Figure("worst, first 40", partial(_worst, first=EARLY[-1]))
WORST = Figure("worst", _worst)
LOSING = Figure("lose > 15%", _losing, ".1%")
STUCK = Figure("stuck", _stuck, ".1%")
LAUNCHES = Figure("launches", _launches)
UNDELIVERED = Figure("no model", _undelivered, ".0f")
FALLBACKS = Figure("fallbacks", _fallbacks, ".0f")
ALARMS = Figure("alarms", _alarms, ".0f")
ALARMS_PER_JOB = Figure("alarms a job", _alarms_per_job, ".2f")
TOTAL = Figure("launches in total", _total, ",.0f")
FIRST_WAVE = Figure("first wave ÷ default", _first_wave)
TO_PAPERS = Figure("÷ paper's, worst", _to_papers)
FAR = Figure("end > 10% off", partial(_stuck, limit=NEAR), ".1%")

USUAL: Sequence[Figure] = (
    FIRST_5,
    FIRST_10,
    FIRST_40,
    WORST_40,
    ALL,
    WORST,
    LOSING,
    STUCK,
    LAUNCHES,
    UNDELIVERED,
    ALARMS_PER_JOB,
)
"""The figures that every row has."""
