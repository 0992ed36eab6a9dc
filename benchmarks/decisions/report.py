"""The table of decisions as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from wattwise_replay.errors import ReplayError
from wattwise_replay.tables import Table

from benchmarks.decisions.figures import ALL, EARLY, FALLBACKS, FIRST_40, USUAL, WORST, WORST_40, Figure, Scores
from benchmarks.decisions.rows import Row
from benchmarks.decisions.scores import Score

PAPERS = "POLICY_PRUNING_GTS"
_WORSE = 0.01
"""How much more a case may cost than in an earlier table, as a share of the best's cost."""
_IN_PARENTHESES = {FIRST_40: WORST_40, ALL: WORST}


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
    def missed(self) -> Sequence[str]:
        """The limits that it misses."""
        found = [figure.title for figure, limit in self.row.limits.items() if self.misses(figure, limit)]
        return [*found, *(["worse than before"] if self.worse and self.row.no_worse else [])]

    @property
    def met(self) -> bool | None:
        """Whether all limits are met; None without a limit."""
        if (
            not self.row.limits
            or (self.contender == PAPERS
            and all(math.isnan(self.values[each]) for each in self.row.limits))
        ):
            return None
        return not self.missed

    def misses(self, figure: Figure, limit: float) -> bool:
        """Whether a figure is beyond a limit."""
        value = self.values[figure]
        return not math.isnan(value) and not figure.is_within(value, limit)


def lines(
    rows: Sequence[Row], scores: Mapping[str, Scores], seeds: int, earlier: Mapping[str, Sequence[float]]
) -> Sequence[Line]:
    """All lines of the table.

    Args:
        rows: The rows.
        scores: The scores by contender; the first one is compared with an earlier table.
        seeds: The usual number of seeds.
        earlier: The ratios of each seed by case, of an earlier table.
    """
    found = []
    for row in rows:
        parts = {
            name: {case: by_case[case].first_seeds(row.seeds_of(seeds)) for case in row.cases}
            for name, by_case in scores.items()
        }
        for place, (name, part) in enumerate(parts.items()):
            papers = {} if name == PAPERS else parts.get(PAPERS, {})
            worse = [case.name for case in row.cases if not place and _is_worse(part[case], earlier.get(case.name))]
            found.append(Line(row, name, part, papers, worse))
    return found


def _is_worse(score: Score, earlier: Sequence[float] | None) -> bool:
    if not earlier:
        return False
    ratios = score.ratios()
    common = min(len(ratios), len(earlier))
    return bool(ratios[:common].mean() > np.mean(earlier[:common]) + _WORSE)


def print_lines(found: Sequence[Line]) -> None:
    """Prints a table for each group: the limits of each row, and the figures of each contender."""
    for _, group in groupby(found, lambda line: line.row.group):
        of_group = list(group)
        wanted = dict.fromkeys(figure for line in of_group for figure in line.row.figures)
        columns = [figure for figure in wanted if figure not in _IN_PARENTHESES.values()]
        table = Table(of_group[0].row.group, "", *(f"*{figure.title}" for figure in columns), "limits met")
        for _, each in groupby(of_group, lambda line: line.row.title):
            contenders = list(each)
            row = contenders[0].row
            title = row.title
            if row.limits:
                table.add_row(title, "limit", *(_limit(row, figure) for figure in columns), "")
                title = ""
            for line in contenders:
                table.add_row(title, line.contender, *(_cell(line, figure) for figure in columns), _verdict(line))
                title = ""
        table.print()


def _limit(row: Row, figure: Figure) -> str:
    limit = figure.text(row.limits.get(figure, math.nan))
    worst = row.limits.get(_IN_PARENTHESES.get(figure, figure)) if figure in _IN_PARENTHESES else None
    return limit if worst is None else f"{limit} ({worst:.3f})"


def _cell(line: Line, figure: Figure) -> str:
    text = figure.text(line.values.get(figure, math.nan))
    if figure in _IN_PARENTHESES and len(line.row.cases) > 1:
        text += f" ({line.values[_IN_PARENTHESES[figure]]:.3f})"
    return text


def _verdict(line: Line) -> str:
    if line.met is None:
        return ""
    return "yes" if line.met else f"**no**: {', '.join(line.missed)}"


def print_details(scores: Mapping[str, Scores]) -> None:
    """Prints the figures of each case."""
    columns = (*(figure for figure in USUAL if figure not in _IN_PARENTHESES.values()), FALLBACKS)
    table = Table("case", "", *(f"*{figure.title}" for figure in columns))
    for case in next(iter(scores.values())):
        for place, (name, by_case) in enumerate(scores.items()):
            cells = (figure.text(figure.value({case: by_case[case]}, {})) for figure in columns)
            table.add_row("" if place else case.name, name, *cells)
    table.print()


def print_worse(found: Sequence[Line]) -> None:
    """Names the cases that cost more than in an earlier table."""
    if worse := list(dict.fromkeys(name for line in found for name in line.worse)):
        print(f"\nWorse than in the earlier table by more than {_WORSE}: {'; '.join(worse)}.")


def write(path: Path, found: Sequence[Line], scores: Mapping[str, Scores], seeds: int) -> None:
    """Writes everything as JSON.

    Raises:
        ReplayError: the file cannot be written.
    """
    document = {
        "seeds": seeds,
        "contenders": list(scores),
        "rows": [_row(line) for line in found],
        "cases": {name: {case.name: _case(score) for case, score in each.items()} for name, each in scores.items()},
    }
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error


def _row(line: Line) -> dict[str, Any]:
    return {
        "group": line.row.group,
        "row": line.row.title,
        "contender": line.contender,
        "cases": [case.name for case in line.scores],
        "figures": {figure.title: value if math.isfinite(value) else None for figure, value in line.values.items()},
        "limits": {figure.title: limit for figure, limit in line.row.limits.items()},
        "met": line.met,
        "missed": list(line.missed),
    }


def _case(score: Score) -> dict[str, Any]:
    played = score.played
    return {
        **{f"first_{first}": score.ratios(first).tolist() for first in EARLY},
        "all": score.ratios().tolist(),
        "launches": played.launches.sum(axis=1).tolist(),
        "undelivered": (~played.delivered).sum(axis=1).tolist(),
        "fallbacks": played.fallbacks.tolist(),
        "settled": played.settled.tolist(),
        "excess": [each if math.isfinite(each) else None for each in score.excess.tolist()],
        "alarms": played.alarms.tolist(),
    }


def earlier_ratios(path: Path) -> Mapping[str, Sequence[float]]:
    """The ratios of each seed by case, of the first contender of an earlier table.

    Raises:
        ReplayError: the file is not one that `write` has written.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        first = document["contenders"][0]
        return {name: case["all"] for name, case in document["cases"][first].items()}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ReplayError(f"cannot read {path}: {error}; --baseline is a file of --json") from error
