"""Prints what each part of `knowledge_gradient` brings, or what its constants do.

    python -m benchmarks.decisions.ablation --traces DIR
    python -m benchmarks.decisions.ablation --traces DIR --constants

The first plays workloads with one part of the policy switched off at a time; the second with one constant at a time at
a low and at a high value. Both are also variants of the table of decisions:
`--variants benchmarks.decisions.ablation:PARTS` and `--variants benchmarks.decisions.ablation:SENSITIVITY`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from wattwise.rules import ResolvedJob
from wattwise_replay.errors import ReplayError
from wattwise_replay.tables import Table, counted
from wattwise_server.domain import Search
from wattwise_server.policy.base import Choice, Exhausted, Policy
from wattwise_server.policy.bounds import cost_bound
from wattwise_server.policy.knowledge_gradient import Constants, Deviation, KnowledgeGradient
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Floats
from wattwise_server.policy.knowledge_gradient.values import Outlook

from benchmarks.decisions.cases import NOWHERE, Folders, add_options, folders_of
from benchmarks.decisions.figures import ALL, FIRST_40, UNDELIVERED, Figure, Scores
from benchmarks.decisions.playing import Setup, play_all
from benchmarks.decisions.rows import REAL, Row, evenly, playable, rows, seeds_of

_COMPLETE = "knowledge_gradient"

_COLUMNS: Mapping[str, str] = {
    "settings": "8 settings",
    REAL: "real",
    "unlucky": "unlucky worlds",
    "named": "named worlds",
    "random": "random worlds",
    "changing": "changing worlds",
    "8 at a time": "8 at a time",
    "crashing trainers": "crashing trainers",
}
"""Titles by the group or the title of rows of the table of decisions."""

_FEW: Mapping[str, str] = {
    "settings": "8 settings",
    REAL: "real",
    "unlucky": "unlucky worlds",
    "random": "random worlds",
    "changing": "changing worlds",
    "8 at a time": "8 at a time",
    "warm, from the other GPU": "prior job",
    "all that change, window 20": "window 20",
}
"""The same for the table of constants. In the last two those for prior jobs and windows have something to do."""

_MOST_CASES = 12
_FEW_CASES = 4
"""Largest number of cases of a column for parts, and for constants."""


class _WithoutRunning(KnowledgeGradient):
    """Chooses as if no trial were running."""

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        arms = tuple(replace(arm, running=0) for arm in search.arms)
        return super().next(spec, replace(search, arms=arms), trial_number, rng)


class _Converging(Outlook):
    """The value of trials if no trial missed the target."""

    def ends(
        self,
        places: NDArray[np.int64] | slice,
        mean: Floats,
        spread: Floats,
        always: Floats,
        again: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        ok, miss = super().ends(places, mean, spread, always, again)
        return ok, np.zeros_like(miss)


class _WithoutMisses(KnowledgeGradient):
    """Compares batch sizes by trials that reach the target."""

    outlook_type = _Converging


class _PapersBound(KnowledgeGradient):
    """Stops trials at β times the lowest cost of a trial, as the paper does."""

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        return cost_bound(spec, search, batch_size)


def _with(**constants: Any) -> Callable[[], Policy]:
    return partial(KnowledgeGradient, replace(Constants(), **constants))


_STRAIGHT = 1e-6
"""Amplitude of a process that never deviates."""
_NEVER = 1e-9
"""Instead of 0, whose logarithm is infinite."""
_LESS_THAN_NEVER = 1e-300
"""Instead of 0, so that nothing is divided by 0: unlikely beside many events that never happen."""
_FIXED = 1e12
"""Weight of a prior that no evidence outweighs."""

PARTS: Mapping[str, Callable[[], Policy]] = {
    "the laws": _with(laws=False),
    "their rise to the left": _with(rise=_NEVER),
    # A factor of e^5 more or less.
    "the usual number of epochs": _with(usual_spread=5.0),
    "the processes": _with(epochs_deviations=(Deviation(_STRAIGHT, 2.0),), cost_deviation=Deviation(_STRAIGHT, 3.0)),
    # A miss of a batch size that has reached the target is then never bad luck, so that doubt would begin at once.
    "unusual trials": _with(unusual=_NEVER, unusual_weight=_FIXED, doubt=0.0, begins=_LESS_THAN_NEVER),
    "trials that missed": _with(censored=False),
    # Every batch size then misses for reasons of its own. With a high rate nothing would ever be tried.
    "edges": _with(edge=_NEVER),
    "batch sizes that begin to miss": _with(begins=_LESS_THAN_NEVER),
    "doubt": _with(doubt=0.0),
    "running trials": _WithoutRunning,
    "plans before the first result": _with(waves=False),
    "misses in the cost of a model": _WithoutMisses,
    "crashes in the cost of a model": _with(crash_weight=_FIXED),
    "the bound by expected cost": _PapersBound,
    "cheap trials first": _with(soon=1.0),
    "several trials together": _with(repeats=1),
    "stopping the best batch size": _with(patience=1e9),
    "the insurance": _with(insurance=-math.inf),
    "detection of changes": _with(threshold=math.inf, cost_threshold=math.inf),
}
"""The policy without each of its parts, by the part."""


class _Range(NamedTuple):
    """A constant at a low and at a high value.

    Attributes:
        constant: Its name, with what of it is changed if it has several numbers.
        usual, low, high: The values as printed.
        make_low, make_high: Create the policy.
    """

    constant: str
    usual: str
    low: str
    high: str
    make_low: Callable[[], Policy]
    make_high: Callable[[], Policy]


_LIMITED: Mapping[str, tuple[float, float]] = {
    "reaches": (0.25, 0.75),
    "broken": (0.25, 0.75),
    "prior_trust": (0.6, 0.9),
    "soon": (0.25, 1.0),
    "repeats": (1, 4),
    "patience": (1.0, 2.0),
    "heavy": (1.0, 2.0),
    "threshold": (8.0, 25.0),
    "cost_threshold": (8.0, 25.0),
}
"""Low and high values of constants that half and double do not suit, such as large probabilities."""


def ranges() -> Iterator[_Range]:
    """Yields other values of every constant: half and double its value, or what suits it better."""
    usual = Constants()
    for field in fields(Constants):
        name, value = field.name, getattr(usual, field.name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            low, high = _LIMITED.get(name, (value / 2, value * 2))
            makes = (_with(**{name: each}) for each in (low, high))
            yield _Range(name, f"{value:g}", f"{low:g}", f"{high:g}", *makes)
            continue
        for place, what in enumerate(Deviation._fields):
            makes = (_with(**{name: _scaled(value, place, factor)}) for factor in (0.5, 2.0))
            yield _Range(f"{name}, {what}", "", "half", "double", *makes)


def _scaled(processes: Any, place: int, factor: float) -> Any:
    """Processes, or one, whose amplitudes or lengths are multiplied by a factor."""
    if isinstance(processes, Deviation):
        return Deviation(*(each * factor if at == place else each for at, each in enumerate(processes)))
    return tuple(_scaled(each, place, factor) for each in processes)


_LOW, _HIGH = "low", "high"

SENSITIVITY: Mapping[str, Callable[[], Policy]] = {
    f"{each.constant} {level}": make
    for each in ranges()
    for level, make in ((_LOW, each.make_low), (_HIGH, each.make_high))
}
"""The policy with each constant at a low and at a high value, by the constant."""


def columns(folders: Folders = NOWHERE, *, constants: bool = False) -> Iterator[Row]:
    """Yields what is played: cases of some rows of the table of decisions, without limits, evenly chosen."""
    # Launches at the same time are played with the eight settings, also if the traces have more.
    every = list(rows(folders._replace(traces=None)))
    for key, title in (_FEW if constants else _COLUMNS).items():
        cases = [case for row in every if key in (row.group, row.title) for case in row.cases]
        yield Row(key, title, evenly(list(dict.fromkeys(cases)), _FEW_CASES if constants else _MOST_CASES))


def main(words: Sequence[str] | None = None) -> int:
    """Plays all columns and prints the table."""
    args = _parser().parse_args(words)
    folders = folders_of(args)
    variants = "SENSITIVITY" if args.constants else "PARTS"
    names = [_COMPLETE, *(SENSITIVITY if args.constants else PARTS)]
    wanted = [row for row in columns(folders, constants=args.constants) if row.cases]
    seeds = args.seeds or (_FEW_SEEDS if args.constants else _SEEDS)
    try:
        chosen, left_out = playable(wanted, folders)
        setup = Setup(folders, (_COMPLETE,), f"benchmarks.decisions.ablation:{variants}")
        scores = play_all(setup, seeds_of(chosen, seeds), names, args.processes)
    except ReplayError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 1
    print(f"Total cost ÷ cost of the best batch size in hindsight, mean over {counted(seeds, 'seed')}: geometric mean")
    (_print_constants if args.constants else _print_parts)(chosen, scores)
    if left_out:
        print(left_out)
    return 0


def _print_parts(chosen: Sequence[Row], scores: Mapping[str, Scores]) -> None:
    print("over a column's cases (worst case), over all recurrences and over the first 40.")
    table = Table("without", *(f"*{title}" for row in chosen for title in (row.title, FIRST_40.title)))
    for name, of_name in scores.items():
        of_rows = [{case: of_name[case] for case in row.cases} for row in chosen]
        cells = (_cell(figure, of_row) for of_row in of_rows for figure in (ALL, FIRST_40))
        table.add_row("(complete)" if name == _COMPLETE else name, *cells)
    table.print()


def _print_constants(chosen: Sequence[Row], scores: Mapping[str, Scores]) -> None:
    print("over a column's cases, over all recurrences; how much more with the low and with the high value, in %.")
    usual = {row.title: _mean(row, scores[_COMPLETE]) for row in chosen}
    table = Table("constant", "usual", _LOW, _HIGH, *(f"*{title}" for title in usual))
    table.add_row("(usual)", "", "", "", *(f"{each:.3f}" for each in usual.values()))
    for each in ranges():
        low, high = scores[f"{each.constant} {_LOW}"], scores[f"{each.constant} {_HIGH}"]
        more = (tuple(100 * (_mean(row, one) / usual[row.title] - 1) for one in (low, high)) for row in chosen)
        cells = (f"{of_low:+.1f} {of_high:+.1f}" for of_low, of_high in more)
        table.add_row(each.constant, each.usual, each.low, each.high, *cells)
    table.print()


def _mean(row: Row, of_name: Scores) -> float:
    return ALL.value({case: of_name[case] for case in row.cases}, {})


def _cell(figure: Figure, scores: Scores) -> str:
    undelivered = UNDELIVERED.value(scores, {})
    without = f"; {UNDELIVERED.text(undelivered)} {UNDELIVERED.title}" if undelivered else ""
    return figure.shown(scores, {}) + without


_SEEDS = 2
_FEW_SEEDS = 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decisions.ablation",
        description=f"Print what each part of {_COMPLETE} brings: what decisions cost with the part switched off.",
    )
    parser.add_argument(
        "--constants", action="store_true", help="print what each constant does at a low and at a high value instead"
    )
    add_options(parser)
    parser.add_argument(
        "--seeds", type=int, metavar="K", help=f"from 0 (default: {_SEEDS}; with --constants {_FEW_SEEDS})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
