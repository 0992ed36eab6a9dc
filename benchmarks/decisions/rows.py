"""The rows of the table of decisions: what is played, and the limits of what it may cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np
from wattwise_replay.errors import ReplayError
from wattwise_replay.named_worlds import CASES, OTHERS

from benchmarks.decisions.cases import Case, Folders, measured_settings, workload_files
from benchmarks.decisions.figures import (
    ALARMS,
    ALL,
    FAR,
    FIRST_10,
    FIRST_40,
    FIRST_WAVE,
    LAUNCHES,
    LOSING,
    TO_PAPERS,
    TOTAL,
    UNDELIVERED,
    USUAL,
    WORST,
    WORST_40,
    Figure,
)
from benchmarks.decisions.scores import SEEDS
from benchmarks.decisions.worlds import CHANGING, UNLUCKY

RANDOM_WORLDS = 60
_GPUS = ("v100", "a40")
_OTHER_TARGETS = {
    "cifar100": (0.5, 0.55),
    "imagenet": (0.55, 0.6),
    "squad": (83.0, 84.5),
    "librispeech": (50.0, 45.0),
}
_SETTINGS = [f"{name}/{gpu}" for name in _OTHER_TARGETS for gpu in _GPUS]
REAL = "real"
"""The group of recorded workloads, which has rows only if there is a folder of them."""
_QUICK = 6
"""Largest number of a row's cases in a quick table."""

Limits = Mapping[Figure, float]


@dataclass(frozen=True)
class Row:
    """Cases that are judged together.

    Attributes:
        group: What selects it on the command line.
        title: What it is called in the table.
        cases: What is played.
        limits: The largest value of a figure; no limit for other figures.
        seeds: Number of seeds in a table of 20 seeds, and in proportion in other tables.
        also: Figures to print besides the usual ones and those with a limit.
        no_worse: Whether no case may be worse than in an earlier table.
    """

    group: str
    title: str
    cases: Sequence[Case]
    limits: Limits = field(default_factory=dict)
    seeds: int = SEEDS
    also: Sequence[Figure] = ()
    no_worse: bool = False

    @property
    def figures(self) -> Sequence[Figure]:
        """The figures that are computed of it."""
        return list(dict.fromkeys((*USUAL, *self.also, *self.limits)))

    def seeds_of(self, usual: int) -> int:
        """Returns its number of seeds where usual rows have so many."""
        return max(1, round(usual * self.seeds / SEEDS))

    def quick(self) -> Row:
        """Returns the row with few of its cases, evenly distributed."""
        return replace(self, cases=evenly(self.cases, _QUICK))


def evenly(cases: Sequence[Case], most: int) -> Sequence[Case]:
    """Returns at most so many of some cases, evenly distributed."""
    places = np.linspace(0, len(cases) - 1, min(most, len(cases)))
    return [cases[round(place)] for place in places]


def rows(folders: Folders) -> Iterator[Row]:
    """Yields all rows, in the order of the table."""
    yield from _measured()
    yield from _real(folders)
    yield from _synthetic()
    yield from _changing()
    yield from _stationary(folders)
    yield from _at_once(folders)
    yield from _others()


def _costs(first_10: float, first_40: float, whole: float, losing: float) -> dict[Figure, float]:
    return {FIRST_10: first_10, FIRST_40: first_40, ALL: whole, LOSING: losing, UNDELIVERED: 0}


def _measured() -> Iterator[Row]:
    yield Row("settings", "8 settings", [Case(each) for each in _SETTINGS], _costs(1.11, 1.04, 1.017, 0.0))
    targets = [
        Case(f"{name}/{gpu}", target) for name, each in _OTHER_TARGETS.items() for target in each for gpu in _GPUS
    ]
    limits = {FIRST_40: 1.045, WORST_40: 1.12, ALL: 1.02, WORST: 1.05, UNDELIVERED: 0}
    yield Row("targets", "other targets", targets, limits)
    warm = [
        Case(f"{name}/{gpu}", prior=prior)
        for name in _OTHER_TARGETS
        for gpu, prior in zip(_GPUS, reversed(_GPUS), strict=True)
    ]
    yield Row("warm", "warm, from the other GPU", warm, {FIRST_40: 1.03, ALL: 1.01, UNDELIVERED: 0})
    mirrored = [Case(each, prior="mirrored") for each in _SETTINGS]
    yield Row("warm", "warm, from a mirrored prior", mirrored, {ALL: 1.05, UNDELIVERED: 0})


_REAL = {
    "digits-adam": _costs(1.20, 1.09, 1.04, 0.03),
    "cancer-adam": _costs(0.90, 0.70, 0.60, 0.0),
    "blobs-sgd": _costs(1.09, 1.025, 1.012, 0.0),
}


def _real_cases(folders: Folders) -> Mapping[str, Case]:
    files = workload_files(folders.workloads) if folders.workloads else ()
    return {PurePath(file).stem: Case(file, recurrences=100) for file in files}


def _real(folders: Folders) -> Iterator[Row]:
    for name, case in _real_cases(folders).items():
        yield Row(REAL, name, [case], _REAL.get(name, {}))


_NAMED = (
    ("flat-noisy", 1.10, 1.15),
    ("large-optimum", 1.10, 1.15),
    ("small-optimum", 1.10, 1.15),
    ("two-humps", 1.20, 1.30),
    ("small-diverge", 1.10, 1.15),
    ("edge-of-divergence", 1.10, 1.15),
    ("one-converges", 1.15, 1.35),
    ("all-fail", 1.10, 1.15),
    ("steep-noisy", 1.20, 1.30),
)
_RANDOM = [Case(f"random-{number}") for number in range(RANDOM_WORLDS)]


def _synthetic() -> Iterator[Row]:
    limits = {ALL: 0.95, LOSING: 0.10, UNDELIVERED: 0}
    unlucky = [Case(name) for name in UNLUCKY]
    yield Row("unlucky", f"{len(UNLUCKY)} unlucky worlds", unlucky, limits, no_worse=True)
    for name, whole, early in _NAMED:
        yield Row("named", name, [Case(name)], {FIRST_40: early, ALL: whole, UNDELIVERED: 0})
    humps = [Case("two-humps", recurrences=1000)]
    yield Row("humps", "two-humps over 1,000", humps, {ALL: 1.05, UNDELIVERED: 0})
    limits = {**_costs(1.25, 1.09, 1.05, 0.05), LAUNCHES: 1.03}
    yield Row("random", f"{RANDOM_WORLDS} random worlds", _RANDOM, limits)


_CHANGING = [Case("drift"), Case("cifar100/v100", recurrences=100, mirrored_at=50), *map(Case, CHANGING)]


def _changing() -> Iterator[Row]:
    for case in _CHANGING:
        most = 1.25 if case.workload == "small-begin-to-diverge" else 1.10
        yield Row("changing", case.name, [case], {ALL: most, UNDELIVERED: 0})
    for window in (60, 20):
        cases = [replace(case, window=window) for case in _CHANGING]
        yield Row("windows", f"all that change, window {window}", cases)


def _stationary(folders: Folders) -> Iterator[Row]:
    """Yields the rows of unchanging worlds. Two seeds have somewhat more than 10,000 launches."""
    named = [name for name in (*CASES, *OTHERS) if name != "drift"]
    longer = [Case(name, recurrences=400) for name in ("all-fail", "bimodal", "heavy-tailed", "all-crash")]
    cases = [*map(Case, (*_SETTINGS, *named)), *_RANDOM[:24], *longer, *_real_cases(folders).values()]
    yield Row("stationary", "no change, 2 seeds", cases, {ALARMS: 0}, seeds=2, also=[TOTAL])
    yield Row("stationary", "no change, all seeds", cases, also=[TOTAL, ALARMS])


def _at_once(folders: Folders) -> Iterator[Row]:
    settings = _SETTINGS if folders.traces is None else measured_settings(folders.traces)
    for number in (2, 4, 8, 16):
        limits = {FIRST_40: 1.20, ALL: 1.05, WORST: 1.25, UNDELIVERED: 0}
        if number == 8:
            limits = {FIRST_WAVE: 1.08, **limits}
        cases = [Case(each, at_once=number) for each in settings]
        yield Row("concurrent", f"{number} at a time", cases, limits, also=[FIRST_WAVE])
    overlap = [Case(each, overlap=0.3) for each in _SETTINGS]
    yield Row("concurrent", "8 settings, 30% overlap", overlap, {TO_PAPERS: 1.01})


def _others() -> Iterator[Row]:
    compared = {TO_PAPERS: 1.01}
    crashes = ("default-crashes", "all-crash", "memory-limit", "default-out-of-memory")
    yield Row("others", "8 settings, time only", [Case(each, eta=0.0) for each in _SETTINGS], compared)
    yield Row("others", "8 settings, energy only", [Case(each, eta=1.0) for each in _SETTINGS], compared)
    yield Row("others", "8 settings, no early stopping", [Case(each, beta=None) for each in _SETTINGS])
    for window in (60, 20):
        yield Row("others", f"8 settings, window {window}", [Case(each, window=window) for each in _SETTINGS])
    yield Row("others", "20 far defaults", [Case(f"far-{number}") for number in range(20)], compared)
    yield Row("others", "10 synthetic seeds", [Case(str(seed)) for seed in range(10)], compared)
    yield Row("others", "drift", [Case("drift"), Case("drift", window=10)], compared)
    yield Row("others", "crashing trainers", [Case(name) for name in crashes], compared)
    demo = [Case("demo", recurrences=40, beta=3.0, baseline_every=5)]
    yield Row("demo", "the demo, 50 replays", demo, {FAR: 0.02}, seeds=50)


def playable(wanted: Sequence[Row], folders: Folders) -> tuple[Sequence[Row], str]:
    """Returns the rows with those of their cases that can be played, and a note about what is left out.

    Raises:
        ReplayError: nothing can be played, since all cases need a folder that is missing.
    """
    there = {None, *(name for name, folder in folders._asdict().items() if folder is not None)}
    kept = [replace(row, cases=[case for case in row.cases if case.needs in there]) for row in wanted]
    names = ", ".join(
        f"{row.title} (in part)" if some.cases else row.title
        for row, some in zip(wanted, kept, strict=True)
        if len(some.cases) < len(row.cases)
    )
    if not any(row.cases for row in kept):
        raise ReplayError(f"these rows need --traces DIR, the folder of the traces (docs/results.md): {names}")
    note = f"Left out, since they need --traces DIR: {names}." if names else ""
    return [row for row in kept if row.cases], note


def seeds_of(chosen: Sequence[Row], usual: int) -> Mapping[Case, int]:
    """Returns the number of seeds that each case needs for all of its rows, where usual rows have so many."""
    found: dict[Case, int] = {}
    for row in chosen:
        for case in row.cases:
            found[case] = max(found.get(case, 0), row.seeds_of(usual))
    return found
