"""The table of decisions as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from wattwise_replay.errors import ReplayError
from wattwise_replay.tables import Table

from benchmarks.decisions.figures import EARLY, FALLBACKS, USUAL, Figure, Scores
from benchmarks.decisions.rows import Limits, Row
from benchmarks.decisions.scores import Score

PAPERS = "pruning_gts"
_WORSE = 0.01
"""How much more a case may cost than in an earlier table, as a share of the best's cost."""


@dataclass(frozen=True)
class Line:
    """A row of the table for one contender.

    Attributes:
        row: The row.
        contender: The contender's name.
        scores: Its scores.
        papers: Those of the paper's policy; empty if it was not played.
        worse: Cases that cost more than in an earlier table; empty without one.
    """

    row: Row
    contender: str
    scores: Scores
    papers: Scores
    worse: Sequence[str] = ()

    @cached_property
    def values(self) -> Mapping[Figure, float]:
        """The figures."""
        return {figure: figure.value(self.scores, self.papers) for figure in self.row.figures}

    @property
    def met(self) -> bool | None:
        """Whether all limits are met; None if none applies."""
        return not self.missed if self._judged else None

    @property
    def missed(self) -> Sequence[str]:
        """The limits that it misses."""
        beyond = [
            figure.title for figure, limit in self._judged.items() if not figure.is_within(self.values[figure], limit)
        ]
        return [*beyond, "worse than before"] if self.worse and self.row.no_worse else beyond

    @property
    def _judged(self) -> Limits:
        """The limits of figures that could be computed."""
        return {figure: limit for figure, limit in self.row.limits.items() if not math.isnan(self.values[figure])}


def lines(
    rows: Sequence[Row], scores: Mapping[str, Scores], usual_seeds: int, earlier: Mapping[str, Sequence[float]]
) -> Iterator[Line]:
    """Yields all lines of the table.

    Args:
        rows: The rows.
        scores: The scores by contender; the first one is compared with an earlier table.
        usual_seeds: The number of seeds of a usual row.
        earlier: The ratios of each seed by case, of an earlier table.
    """
    for row in rows:
        parts = {
            name: {case: by_case[case].first_seeds(row.seeds_of(usual_seeds)) for case in row.cases}
            for name, by_case in scores.items()
        }
        for place, (name, part) in enumerate(parts.items()):
            papers = {} if name == PAPERS else parts.get(PAPERS, {})
            worse = [case.name for case in row.cases if not place and _is_worse(part[case], earlier.get(case.name, ()))]
            yield Line(row, name, part, papers, worse)


def _is_worse(score: Score, earlier: Sequence[float]) -> bool:
    ratios = score.ratios()
    common = min(len(ratios), len(earlier))
    return bool(common and ratios[:common].mean() > np.mean(earlier[:common]) + _WORSE)


def print_lines(found: Sequence[Line]) -> None:
    """Prints a table for each group: the limits of each row, and the figures of each contender."""
    for group, of_group in groupby(found, lambda line: line.row.group):
        rows = [list(of_row) for _, of_row in groupby(of_group, lambda line: line.row.title)]
        wanted = dict.fromkeys(figure for (line, *_) in rows for figure in line.row.figures)
        columns = [figure for figure in wanted if figure not in {other.worst for other in wanted}]
        table = Table(group, "", *(f"*{figure.title}" for figure in columns), "limits met")
        for of_row in rows:
            row = of_row[0].row
            titles = iter([row.title])
            if row.limits:
                table.add_row(next(titles), "limit", *(_limit(row, figure) for figure in columns), "")
            for line in of_row:
                its = line.row.figures
                cells = (figure.shown(line.scores, line.papers) if figure in its else "" for figure in columns)
                table.add_row(next(titles, ""), line.contender, *cells, _verdict(line))
        table.print()


def _limit(row: Row, figure: Figure) -> str:
    text = figure.text(row.limits.get(figure, math.nan))
    worst = math.nan if figure.worst is None else row.limits.get(figure.worst, math.nan)
    return text if math.isnan(worst) else f"{text} ({figure.text(worst)})"


def _verdict(line: Line) -> str:
    if line.met is None:
        return ""
    return "yes" if line.met else f"**no**: {', '.join(line.missed)}"


def print_details(scores: Mapping[str, Scores]) -> None:
    """Prints the figures of each case."""
    columns = (*USUAL, FALLBACKS)
    table = Table("case", "", *(f"*{figure.title}" for figure in columns))
    for case in next(iter(scores.values())):
        for place, (name, by_case) in enumerate(scores.items()):
            cells = (figure.shown({case: by_case[case]}, {}) for figure in columns)
            table.add_row("" if place else case.name, name, *cells)
    table.print()


def print_worse(found: Sequence[Line]) -> None:
    """Names the cases that cost more than in an earlier table."""
    if worse := list(dict.fromkeys(name for line in found for name in line.worse)):
        print(f"\nWorse than in the earlier table by more than {_WORSE}: {'; '.join(worse)}.")


def write(path: Path, found: Sequence[Line], scores: Mapping[str, Scores], seeds: int) -> None:
    """Writes everything as JSON."""
    document = {
        "seeds": seeds,
        "contenders": list(scores),
        "rows": [_row(line) for line in found],
        "cases": {name: {case.name: _case(score) for case, score in each.items()} for name, each in scores.items()},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _row(line: Line) -> dict[str, Any]:
    return {
        "group": line.row.group,
        "row": line.row.title,
        "contender": line.contender,
        "cases": [case.name for case in line.scores],
        "figures": {figure.title: _finite(value) for figure, value in line.values.items()},
        "limits": {figure.title: limit for figure, limit in line.row.limits.items()},
        "met": line.met,
        "missed": list(line.missed),
    }


def _case(score: Score) -> dict[str, Any]:
    played = score.played
    return {
        **{f"first {first}": score.ratios(first).tolist() for first in EARLY},
        "all": score.ratios().tolist(),
        "launches": played.launches.sum(axis=1).tolist(),
        "undelivered": (~played.delivered).sum(axis=1).tolist(),
        "fallbacks": played.fallbacks.tolist(),
        "settled": played.settled.tolist(),
        "excess": [_finite(each) for each in score.excess.tolist()],
        "alarms": played.alarms.tolist(),
    }


def _finite(value: float) -> float | None:
    """Returns a value that JSON has a number for."""
    return value if math.isfinite(value) else None


def earlier_ratios(path: Path) -> Mapping[str, Sequence[float]]:
    """Returns the ratios of each seed by case, of the first contender of an earlier table.

    Raises:
        ReplayError: the file is not one that `write` has written.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        cases = document["cases"][document["contenders"][0]]
        return {name: case["all"] for name, case in cases.items()}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ReplayError(f"cannot read {path}: {error}; --baseline is a file of --json") from error
