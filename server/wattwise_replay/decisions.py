"""Prints the table of decisions: what the policies cost beside the best possible, and whether limits are met.

    python -m wattwise_replay.decisions --traces DIR

Exits with 1 if the first policy misses a limit or leaves a recurrence without a model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from wattwise_server.policy import registry

from wattwise_replay.acceptance import AnyRow, Case, ComparedRow, LaunchesRow, Limit, Row, rows
from wattwise_replay.compare import EARLY, POLICIES
from wattwise_replay.errors import ReplayError
from wattwise_replay.scores import MAX_TRIES, Contender, Score, joined, score
from wattwise_replay.tables import Table, counted
from wattwise_replay.workload import Workload

_PAPERS = "POLICY_PRUNING_GTS"
_USUAL = ("POLICY_KNOWLEDGE_GRADIENT", _PAPERS)
_SEEDS_AT_ONCE = 5

R = TypeVar("R", bound=AnyRow)


class Setup(NamedTuple):
    """What every process needs: the folder of traces, the policies, and where the variants are."""

    folder: Path | None
    policies: tuple[str, ...]
    variants: str | None


class _Task(NamedTuple):
    case: Case
    contender: str
    seeds: tuple[int, ...]


Scores = Mapping[tuple[Case, str], Score]


class Cell(NamedTuple):
    """A line of the table for one contender: what is shown, and whether the limit is met; None without a limit."""

    text: str
    met: bool | None


class Line(NamedTuple):
    """A line of the table: its title, the recurrences that it is over, its limit, and a cell for each contender."""

    title: str
    over: str
    limit: str
    cells: Sequence[Cell]


def main(words: Sequence[str] | None = None) -> int:
    """Plays all rows and prints the table; returns 1 if a limit is missed."""
    args = _parser().parse_args(words)
    setup = Setup(args.traces, tuple(args.policy or (name for name in _USUAL if name in POLICIES)), args.variants)
    try:
        names = list(_contenders(setup))
        chosen, left_out = playable([row for row in rows() if args.rows is None or row.group in args.rows], args.traces)
        cases = list(dict.fromkeys(case for row in chosen for case in row.cases))
        scores = play_all(setup, cases, names, args.seeds, args.processes)
    except ReplayError as error:
        print(f"decisions: {error}", file=sys.stderr)  # noqa: T201 - the command's output
        return 1
    lines = [line for row in chosen for line in _lines(row, names, scores)]
    print(  # noqa: T201 - the command's output
        f"Total cost ÷ cost of the best batch size in hindsight, mean over {counted(args.seeds, 'seed')}: geometric "
        f"mean over a row's cases (worst case).\nA recurrence ends after {MAX_TRIES} trials; without a model it counts "
        f"at least {MAX_TRIES} times the best."
    )
    _print(lines, names)
    if args.details:
        _print_details(cases, names, scores)
    print(left_out, end="")  # noqa: T201 - the command's output
    return int(any(line.cells[0].met is False for line in lines))


def playable(wanted: Sequence[R], folder: Path | None) -> tuple[Sequence[R], str]:
    """The rows that can be played, all of them with traces, and a note about those that are left out.

    Raises:
        ReplayError: all of them need traces, and there is no folder.
    """
    kept = [row for row in wanted if folder is not None or not any(case.needs_traces for case in row.cases)]
    names = ", ".join(row.title for row in wanted if row not in kept)
    if not kept:
        raise ReplayError(f"these rows need --traces DIR, the folder of the traces (docs/results.md): {names}")
    return kept, f"Left out, since they need --traces DIR: {names}.\n" if names else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattwise_replay.decisions",
        description="Print what the policies cost beside the best batch size in hindsight, and whether limits are met.",
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces; without it, no measured rows")
    parser.add_argument(
        "--policy", choices=POLICIES, action="append", help=f"repeatable; the first is judged (default: {_USUAL[0]})"
    )
    parser.add_argument(
        "--variants",
        metavar="MODULE:NAME",
        help="a mapping from names to callables that create a policy, such as one for each constant switched off",
    )
    groups = list(dict.fromkeys(row.group for row in rows()))
    parser.add_argument("--rows", choices=groups, action="append", help="rows to play; repeatable (default: all)")
    parser.add_argument("--seeds", type=int, default=20, metavar="K", help="from 0 (default: %(default)s)")
    parser.add_argument("--details", action="store_true", help="print each case as well")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), metavar="N", help="default: one for each processor"
    )
    return parser


@lru_cache(maxsize=1)
def _contenders(setup: Setup) -> dict[str, Contender]:
    """The policies and the variants, by name."""
    found = {
        name: Contender(name, lambda name=name: registry.POLICIES[name.removeprefix("POLICY_")])  # type: ignore[misc]
        for name in setup.policies
    }
    if setup.variants is not None:
        module, _, attribute = setup.variants.partition(":")
        try:
            variants = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ReplayError(
                f"cannot load --variants {setup.variants}: {error}; use MODULE:NAME of a mapping"
            ) from error
        found.update({name: Contender(name, make) for name, make in variants.items()})
    return found


@lru_cache(maxsize=4)
def _workloads(setup: Setup, case: Case) -> tuple[Workload, Workload | None]:
    """A case's workload and its prior."""
    return case.load(setup.folder), case.load_prior(setup.folder)


def play_all(
    setup: Setup, cases: Sequence[Case], names: Sequence[str], seeds: int, processes: int | None
) -> dict[tuple[Case, str], Score]:
    """All cases with all contenders, on all processors."""
    parts = [tuple(range(start, min(start + _SEEDS_AT_ONCE, seeds))) for start in range(0, seeds, _SEEDS_AT_ONCE)]
    tasks = [_Task(case, name, part) for case in cases for name in names for part in parts]
    # The longest first, so that no process is left with it at the end.
    tasks.sort(key=lambda task: -(task.case.recurrences or 0))
    with ProcessPoolExecutor(processes) as pool:
        played = dict(zip(tasks, pool.map(_played, [setup] * len(tasks), tasks), strict=True))
    return {
        (case, name): joined([played[_Task(case, name, part)] for part in parts]) for case in cases for name in names
    }


def _played(setup: Setup, task: _Task) -> Score:
    workload, prior = _workloads(setup, task.case)
    return score(task.case, workload, _contenders(setup)[task.contender], task.seeds, prior)


def _lines(row: AnyRow, names: Sequence[str], scores: Scores) -> Iterator[Line]:
    match row:
        case Row(whole=whole, early=early):
            yield ratio_line(row, names, scores, whole)
            if early is not None:
                yield ratio_line(row, names, scores, early, EARLY)
        case LaunchesRow():
            yield from _launches(row, names, scores)
        case ComparedRow():
            yield from _compared(row, names, scores)


def ratio_line(row: Row, names: Sequence[str], scores: Scores, limit: Limit, first: int | None = None) -> Line:
    """The geometric mean of a row's ratios and the worst, for each contender."""
    cells = []
    for name in names:
        found = [scores[case, name] for case in row.cases]
        ratios = np.array([each.ratio(first) for each in found])
        mean, worst = float(np.exp(np.log(ratios).mean())), float(ratios.max())
        # Rounded as printed, so that the verdict agrees with what is shown.
        met = _at_most(mean, limit.mean) and _at_most(worst, limit.worst)
        text = f"{mean:.3f} ({worst:.3f})" if len(ratios) > 1 else f"{mean:.3f}"
        undelivered = sum(each.undelivered(first) for each in found)
        cells.append(Cell(text + (f"; {undelivered} undelivered" if undelivered else ""), met and not undelivered))
    shown = f"{limit.mean}" if limit.worst is None else f"{limit.mean} ({limit.worst})"
    return Line(row.title, _over(first), shown, cells)


def _launches(row: LaunchesRow, names: Sequence[str], scores: Scores) -> Iterator[Line]:
    for first, limit in ((None, row.mean), (EARLY, row.early_mean)):
        cells = []
        for name in names:
            found = [scores[case, name] for case in row.cases]
            launches = sum(each.launches[:, :first].sum() for each in found)
            mean = launches / sum(each.delivered[:, :first].sum() for each in found)
            cells.append(Cell(f"{mean:.3f}", _at_most(mean, limit)))
        yield Line(f"{row.title}, mean", _over(first), f"{limit}", cells)
    cells = []
    for name in names:
        launches = np.concatenate([scores[case, name].launches.ravel() for case in row.cases])
        tail = int(np.quantile(launches, 0.99, method="inverted_cdf"))
        cells.append(Cell(f"{tail}", tail <= row.percentile_99))
    yield Line(f"{row.title}, in 99%", _over(None), f"{row.percentile_99}", cells)


def _compared(row: ComparedRow, names: Sequence[str], scores: Scores) -> Iterator[Line]:
    for first in (None, EARLY):
        cells = []
        for name in names:
            ratios = {case: scores[case, name].ratio(first) for case in row.cases}
            mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
            if name == _PAPERS or _PAPERS not in names:
                cells.append(Cell(f"{mean:.3f}", None))
                continue
            factors = {case: ratios[case] / scores[case, _PAPERS].ratio(first) for case in row.cases}
            worst = max(factors, key=factors.__getitem__)
            undelivered = sum(scores[case, name].undelivered(first) for case in row.cases)
            theirs = sum(scores[case, _PAPERS].undelivered(first) for case in row.cases)
            text = f"{mean:.3f}; {factors[worst]:.3f} of the paper's in {worst.name}"
            cells.append(Cell(text, _at_most(factors[worst], row.factor) and undelivered <= theirs))
        yield Line(row.title, _over(first), f"{row.factor} of the paper's", cells)


def _over(first: int | None) -> str:
    return "all" if first is None else f"first {first}"


def _at_most(value: float, limit: float | None) -> bool:
    """Whether a value as printed is within a limit."""
    return limit is None or round(value, 3) <= limit


def _print(lines: Sequence[Line], names: Sequence[str]) -> None:
    shown = Table("", "recurrences", "*limit", *(f"*{name}" for name in names), "limit met")
    before = ""
    for line in lines:
        verdict = {True: "yes", False: "**no**", None: ""}[line.cells[0].met]
        title = "" if line.title == before else line.title
        shown.add_row(title, line.over, line.limit, *(cell.text for cell in line.cells), verdict)
        before = line.title
    shown.print()


def _print_details(cases: Sequence[Case], names: Sequence[str], scores: Scores) -> None:
    columns = ("all", f"first {EARLY}", "launches", "undelivered", "fallbacks")
    shown = Table("case", "", *(f"*{name}" for name in columns))
    for case in cases:
        for place, name in enumerate(names):
            found = scores[case, name]
            launches = found.launches.sum() / max(1, found.delivered.sum())
            shown.add_row(
                "" if place else case.name,
                name,
                f"{found.ratio():.3f}",
                f"{found.ratio(EARLY):.3f}",
                f"{launches:.3f}",
                f"{found.undelivered()}",
                f"{found.fallbacks}",
            )
    shown.print()


if __name__ == "__main__":
    sys.exit(main())
