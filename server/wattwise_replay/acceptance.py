"""The rows of the table of decisions: what is played, and the limits of what it may cost.

A limit bounds the total cost over the cost of the best batch size in hindsight: the geometric mean over a row's cases,
and the worst case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wattwise_replay import traces
from wattwise_replay.named_worlds import named_world
from wattwise_replay.synthetic import synthetic
from wattwise_replay.workload import Workload

_GPUS = ("v100", "a40")
_OTHER_TARGETS = {
    "cifar100": (0.5, 0.55),
    "imagenet": (0.55, 0.6),
    "squad": (83.0, 84.5),
    "librispeech": (50.0, 45.0),
}
RANDOM_WORLDS = 60


@dataclass(frozen=True)
class Case:
    """A job to play.

    Attributes:
        workload: The name of a synthetic workload, a seed, or `workload/gpu` of the traces.
        target: Another target than the workload's; only for traces.
        recurrences: Their number; None for the workload's horizon.
        window: The job's window.
        eta: Weight of energy against time.
        overlap: Share of recurrences that overlap with the one before.
        prior: The GPU on which the same workload was trained before, or "mirrored" for the same workload with its
            measurements reversed over the batch sizes; None for none.
    """

    workload: str
    target: float | None = None
    recurrences: int | None = None
    window: int = 0
    eta: float = 0.5
    overlap: float = 0.0
    prior: str | None = None

    @property
    def name(self) -> str:
        """The workload and everything that is not usual."""
        usual = Case(self.workload)
        names = ("target", "recurrences", "window", "eta", "overlap", "prior")
        changed = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(usual, name)]
        workload = f"seed {self.workload}" if self.workload.isdecimal() else self.workload
        return ", ".join((workload, *changed))

    @property
    def needs_traces(self) -> bool:
        """Whether it is measured, not synthetic."""
        return "/" in self.workload

    def load(self, folder: Path | None) -> Workload:
        """Its workload.

        Args:
            folder: The folder of traces; may be None if it needs none.

        Raises:
            ReplayError: there is no such workload.
        """
        if self.needs_traces and folder is not None:
            name, gpu = self.workload.split("/")
            return traces.load(folder, name, gpu, self.target)
        return synthetic(int(self.workload)) if self.workload.isdecimal() else named_world(self.workload)

    def load_prior(self, folder: Path | None) -> Workload | None:
        """What was trained before.

        Args:
            folder: The folder of traces; may be None if it needs none.

        Raises:
            ReplayError: there is no such workload.
        """
        if self.prior is None:
            return None
        if self.prior == "mirrored":
            return self.load(folder).mirrored()
        name, _ = self.workload.split("/")
        return Case(f"{name}/{self.prior}", self.target).load(folder)


class Limit(NamedTuple):
    """The largest geometric mean over a row's cases, and the largest of a single case; None for no limit."""

    mean: float | None
    worst: float | None = None


@dataclass(frozen=True)
class Row:
    """Cases that are judged together.

    Attributes:
        group: What selects it on the command line.
        title: What it is called in the table.
        cases: What is played.
        whole: The limit over all recurrences.
        early: The limit over the first 40; None if it is not looked at.
    """

    group: str
    title: str
    cases: Sequence[Case]
    whole: Limit
    early: Limit | None


@dataclass(frozen=True)
class LaunchesRow:
    """Launches per delivered model, over all recurrences of all cases.

    Attributes:
        group, title, cases: As for `Row`.
        mean: The largest mean.
        percentile_99: The largest 99th percentile.
        early_mean: The largest mean over the first 40 recurrences.
    """

    group: str
    title: str
    cases: Sequence[Case]
    mean: float
    percentile_99: int
    early_mean: float


@dataclass(frozen=True)
class ComparedRow:
    """Cases, each of which may cost at most `factor` times what the paper's policy costs.

    Attributes:
        group, title, cases: As for `Row`.
        factor: The largest ratio of the costs, over all and over the first 40 recurrences.
    """

    group: str
    title: str
    cases: Sequence[Case]
    factor: float


AnyRow = Row | LaunchesRow | ComparedRow


def rows() -> Iterator[AnyRow]:
    """All rows, in the order of the table."""
    settings = [f"{name}/{gpu}" for name in _OTHER_TARGETS for gpu in _GPUS]
    targets = [
        Case(f"{name}/{gpu}", target) for name, each in _OTHER_TARGETS.items() for target in each for gpu in _GPUS
    ]
    warm = [
        Case(f"{name}/{gpu}", prior=prior)
        for name in _OTHER_TARGETS
        for gpu, prior in zip(_GPUS, reversed(_GPUS), strict=True)
    ]
    yield Row("settings", "8 settings", [Case(each) for each in settings], Limit(1.015, 1.03), Limit(1.04, 1.08))
    yield Row("targets", "other targets", targets, Limit(1.02, 1.05), Limit(1.045, 1.12))
    yield Row("warm", "warm, from the other GPU", warm, Limit(1.01), Limit(1.03))
    mirrored = [Case(each, prior="mirrored") for each in settings]
    yield Row("warm", "warm, from a mirrored prior", mirrored, Limit(1.05), None)
    for name, whole, early in _NAMED:
        yield Row("named", name, [Case(name)], Limit(whole), Limit(early))
    yield Row("humps", "two-humps over 1,000", [Case("two-humps", recurrences=1000)], Limit(1.05), None)
    random = [Case(f"random-{number}") for number in range(RANDOM_WORLDS)]
    yield Row("random", f"{RANDOM_WORLDS} random worlds", random, Limit(1.04, 1.35), Limit(1.09))
    yield LaunchesRow("random", "their launches per delivered model", random, 1.03, 2, 1.04)
    for title, cases in _others(settings):
        yield ComparedRow("others", title, cases, 1.01)


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


def _others(settings: Sequence[str]) -> Iterator[tuple[str, Sequence[Case]]]:
    yield "8 settings, time only", [Case(each, eta=0.0) for each in settings]
    yield "8 settings, energy only", [Case(each, eta=1.0) for each in settings]
    yield "8 settings, 30% overlap", [Case(each, overlap=0.3) for each in settings]
    yield "20 far defaults", [Case(f"far-{number}") for number in range(20)]
    yield "10 synthetic seeds", [Case(str(seed)) for seed in range(10)]
    yield "drift", [Case("drift"), Case("drift", window=10)]
    crashes = ("default-crashes", "all-crash", "memory-limit", "default-out-of-memory")
    yield "crashing trainers", [Case(name) for name in crashes]
