"""Prints what each part of `POLICY_KNOWLEDGE_GRADIENT` brings: what decisions cost with the part switched off.

    python -m benchmarks.decisions.ablation --traces DIR

The parts are also variants of the table of decisions: `--variants benchmarks.decisions.ablation:PARTS`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from wattwise_replay.errors import ReplayError
from wattwise_replay.tables import Table, counted
from wattwise_server.domain import JobSpec, Search
from wattwise_server.policy.base import Choice, Exhausted, Policy
from wattwise_server.policy.cost import cost_bound
from wattwise_server.policy.knowledge_gradient import Constants, Deviation, Floats, Knowledge, KnowledgeGradient

from benchmarks.decisions.cases import NOWHERE, Folders
from benchmarks.decisions.figures import ALL, FIRST_40, UNDELIVERED, Figure, Scores
from benchmarks.decisions.playing import Setup, play_all
from benchmarks.decisions.rows import RANDOM_WORLDS, Row, playable, rows, seeds_of

_COMPLETE = "POLICY_KNOWLEDGE_GRADIENT"
_COLUMNS = {
    "settings": "8 settings",
    "targets": "other targets",
    "named": "named worlds",
    "random": f"{RANDOM_WORLDS} random worlds",
    "8 settings, 30% overlap": "30% overlap",
    "crashing trainers": "crashing trainers",
}
"""Titles by the group or the title of rows of the table of decisions. In the last two there are running trials and
crashes, without which the parts for them have nothing to do."""


class _WithoutRunning(KnowledgeGradient):
    """Chooses as if no trial were running."""

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:
        arms = tuple(replace(arm, running=0) for arm in search.arms)
        return super().next(spec, replace(search, arms=arms), trial_number, rng)


class _WithoutMisses(KnowledgeGradient):
    """Compares batch sizes by trials that reach the target."""

    def ends(
        self, knowledge: Knowledge, places: NDArray[np.int64] | slice, mean: Floats, spread: Floats, log_limit: Floats
    ) -> tuple[Floats, Floats]:
        ok, miss = super().ends(knowledge, places, mean, spread, log_limit)
        return ok, np.zeros_like(miss)


class _PapersBound(KnowledgeGradient):
    """Stops trials at β times the lowest cost of a trial, as the paper does."""

    def bound(self, spec: JobSpec, search: Search, batch_size: int) -> float | None:
        return cost_bound(spec, search, batch_size)


def _with(**constants: Any) -> Callable[[], Policy]:
    return partial(KnowledgeGradient, replace(Constants(), **constants))


_STRAIGHT = 1e-6
"""Amplitude of a process that never deviates."""

PARTS: Mapping[str, Callable[[], Policy]] = {
    "the laws": _with(laws=False),
    # Not 0, whose logarithm is infinite.
    "their rise to the left": _with(rise=1e-9),
    # A factor of e^5 more or less.
    "the usual number of epochs": _with(usual_spread=5.0),
    "the processes": _with(epochs_deviations=(Deviation(_STRAIGHT, 2.0),), cost_deviation=Deviation(_STRAIGHT, 3.0)),
    "censored observations": _with(censored=False),
    "running trials": _WithoutRunning,
    "misses in the cost of a model": _WithoutMisses,
    # A prior of no crashes that no evidence outweighs.
    "crashes in the cost of a model": _with(crash_weight=1e12),
    "the bound by expected cost": _PapersBound,
    "cheap trials first": _with(soon=math.inf),
    "the second look": _with(second_look=-math.inf),
    "the power hint": _with(hint=0.0),
    "stopping the best batch size": _with(patience=1e9),
    "the insurance": _with(insurance=-1.0),
    "the reach": _with(reach=math.inf),
}
"""The policy without each of its parts, by the part."""


def columns() -> Iterator[Row]:
    """What is played: the cases of some rows of the table of decisions, without limits."""
    for key, title in _COLUMNS.items():
        cases = [case for row in rows(NOWHERE) if key in (row.group, row.title) for case in row.cases]
        yield Row(key, title, list(dict.fromkeys(cases)))


def main(words: Sequence[str] | None = None) -> int:
    """Plays all columns and prints the table."""
    args = _parser().parse_args(words)
    folders = Folders(args.traces)
    names = [_COMPLETE, *PARTS]
    try:
        chosen, left_out = playable(list(columns()), folders)
        setup = Setup(folders, (_COMPLETE,), "benchmarks.decisions.ablation:PARTS")
        scores = play_all(setup, seeds_of(chosen, args.seeds), names, args.processes)
    except ReplayError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 1
    print(
        f"Total cost ÷ cost of the best batch size in hindsight, mean over {counted(args.seeds, 'seed')}: geometric "
        "mean over a column's cases (worst case), over all recurrences and over the first 40."
    )
    table = Table("without", *(f"*{title}" for row in chosen for title in (row.title, FIRST_40.title)))
    for name in names:
        of_rows = [{case: scores[name][case] for case in row.cases} for row in chosen]
        cells = (_cell(figure, of_row) for of_row in of_rows for figure in (ALL, FIRST_40))
        table.add_row("(complete)" if name == _COMPLETE else name, *cells)
    table.print()
    if left_out:
        print(left_out)
    return 0


def _cell(figure: Figure, scores: Scores) -> str:
    undelivered = UNDELIVERED.value(scores, {})
    without = f"; {UNDELIVERED.text(undelivered)} {UNDELIVERED.title}" if undelivered else ""
    return figure.shown(scores, {}) + without


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decisions.ablation",
        description=f"Print what each part of {_COMPLETE} brings: what decisions cost with the part switched off.",
    )
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="folder of the traces; without it, synthetic worlds only"
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="K", help="from 0 (default: %(default)s)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), metavar="N", help="default: one for each processor"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
