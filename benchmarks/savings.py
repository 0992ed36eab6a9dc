"""Prints how honest the claim of what a job has saved is: whether it holds where the truth is known.

    python -m benchmarks.savings --traces DIR

Exits with 1 if in any case and after any number of recurrences the estimate overstates on average, or if a lower bound
holds in less than 95% of the seeds by more than chance explains, or of all seeds and cases together.

One launch in ten is a baseline, as after `wattwise jobs baseline ID --every 10`: without them, most jobs run their
default once or twice, and nothing is claimed.

The replay knows what a delivery costs with the default: the mean over all its recorded runs that reach the target. Only
cost is looked at. A batch size has one power limit in a replay, so that energy and time are in proportion to cost.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from wattwise_replay.compare import POLICIES
from wattwise_replay.engines import Dispatch, TrialEnd, WithFallback, to_the_end
from wattwise_replay.errors import ReplayError
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import PlayedTrial, play
from wattwise_replay.statistics import mean_of
from wattwise_replay.tables import counted
from wattwise_replay.traces import WORKLOADS
from wattwise_replay.workload import Workload, cheapest, epoch_cost, job_spec
from wattwise_replay.world import TrialCourse, World, course
from wattwise_server.domain import SavingsVerdict
from wattwise_server.policy.savings import Delivered, SavingsEstimate, estimate
from wattwise_server.store.base import PolicyState
from wattwise_server.usecases.changes import compared_from

from benchmarks.decisions.cases import Case, Folders, beside
from benchmarks.decisions.worlds import UNLUCKY

HORIZONS = (20, 40, 100)
EVERY = 10
"""Launches of which one is a baseline."""

LEAST_COVERED = 0.95
_UNLIKELY = 0.05
"""Probability below which chance explains nothing."""

_USUAL = ("knowledge_gradient", "pruning_gts")
_WIDTH = 80
_CHANGES = " *"
"""Marks a line whose default changes."""
_ROUNDING = 1e-9
"""A truth that a bound exceeds by less than this share is met."""

_NAMED = (
    "flat-noisy",
    "steep-noisy",
    "large-optimum",
    "small-optimum",
    "two-humps",
    "small-diverge",
    "one-converges",
    "all-fail",
    "default-crashes",
    "bimodal",
    "heavy-tailed",
    "lucky",
    "lucky-default",
    "uneven-noise",
    "best-default",
    "best-default-noisy",
)

_RECORDED = ("blobs-sgd", "cancer-adam", "digits-adam")
"""Real trainings on processors, of which about one run in 16 takes two to four times as long, or never ends."""

_CHANGING = ("drift", "epochs-triple", "epochs-halve", "epoch-cost-doubles")


@dataclass(frozen=True)
class Line:
    """Cases that share a line of the table.

    Attributes:
        title: What it is called.
        cases: What is played.
        judged: Whether the limits apply. No claim can know how the default has changed since it was run last, until
            the policy has detected the change.
    """

    title: str
    cases: Sequence[Case]
    judged: bool = True


def lines() -> Iterator[Line]:
    """Yields all lines, in the order of the table."""
    for name, gpu in product(WORKLOADS, ("v100", "a40")):
        yield Line(f"{name}/{gpu}", [Case(f"{name}/{gpu}")])
    for name in _NAMED:
        yield Line(name, [Case(name)])
    yield Line("20 random worlds", [Case(f"random-{number}") for number in range(20)])
    yield Line("10 far defaults", [Case(f"far-{number}") for number in range(10)])
    for name in _RECORDED:
        yield Line(name, [Case(f"{name}/{name}.toml")])
    yield Line(f"{len(UNLUCKY)} unlucky worlds", [Case(name) for name in UNLUCKY])
    for name in _CHANGING:
        yield Line(f"{name}{_CHANGES}", [Case(name)], judged=False)


class Claim(NamedTuple):
    """A claim after some recurrences of a seed, and the truth, both relative to what the default would have cost.

    Both are about the trials since the newest change that the policy has detected.

    Attributes:
        verdict: The verdict.
        runs: Trials of the default that it rests on.
        true: The true saving.
        plain: Deliveries × mean − spent.
        saved: The estimate.
        at_least: The bound.
    """

    verdict: SavingsVerdict
    runs: int
    true: float
    plain: float
    saved: float
    at_least: float

    @property
    def holds(self) -> bool:
        """Whether the bound holds."""
        return self.at_least <= self.true + _ROUNDING


class _Recorded(WithFallback):
    """Notes what the server would know of every trial, and makes one launch in `every` a baseline; 0: none.

    Attributes:
        numbers: The number of each trial; below 0 for those without an answer, which are not in a job's history.
        compared_from: The first trial that a claim compares once each has ended.
    """

    def __init__(self, engine: InProcess, workload: Workload, policy: str, every: int) -> None:
        super().__init__(engine, workload)
        self._job, self._policy, self._every = engine, policy, every
        self.numbers: list[int] = []
        self.compared_from: list[int] = []

    def dispatch(self) -> Dispatch:
        due = self._every and (len(self.numbers) + 1) % self._every == 0
        return self._job.dispatch_baseline() if due else super().dispatch()

    def run(self, trial: Dispatch, epochs: TrialCourse) -> TrialEnd:
        end = super().run(trial, epochs)
        self.numbers.append(trial.number)
        self.compared_from.append(compared_from(PolicyState(self._policy, self._job.search.notes)))
        return end


def default_cost(workload: Workload, eta: float) -> float:
    """Returns the expected cost, in J, of a trial of the default that nothing stops and that reaches the target.

    NaN if no trial can reach it.
    """
    default = workload.of(workload.default_batch_size)
    point = cheapest(default.points, eta, workload.max_power_watts)
    ends = [to_the_end(course(run, point), workload.max_epochs) for run in default.runs]
    epochs = [end.epochs for end in ends if end.target_reached]
    return float(np.mean(epochs)) * epoch_cost(point, eta, workload.max_power_watts) if epochs else float("nan")


def claims(
    case: Case, workload: Workload, policy: str, seed: int, horizons: Sequence[int] = HORIZONS, *, every: int = EVERY
) -> list[Claim | None]:
    """Returns the claim after each number of recurrences; None for no claim.

    Raises:
        ReplayError: the server would refuse the job.
    """
    job = job_spec(workload, "replay-savings", policy=policy, eta=case.eta, beta=2.0, seed=seed, window=case.window)
    engine = _Recorded(InProcess(job), workload, policy, every)
    world = World(workload, case.eta)
    ledger = play(engine, world, seed, max(horizons), case.overlap)
    costs = np.empty(max(horizons))
    for stretch, stage in workload.stages(max(horizons)):
        costs[stretch] = default_cost(stage, case.eta)
    found = []
    for horizon in horizons:
        past = [place for place, trial in enumerate(ledger.trials) if trial.recurrence < horizon]
        first = max(1, engine.compared_from[past[-1]])
        compared = [ledger.trials[place] for place in past if engine.numbers[place] >= first]
        claim = claimed(compared, workload.default_batch_size)
        would = sum(costs[trial.recurrence] for trial in compared if trial.target_reached)
        found.append(_relative(claim, would))
    return found


def claimed(trials: Sequence[PlayedTrial], default_batch_size: int) -> SavingsEstimate:
    """Returns the claim about the cost of trials."""
    reached = defaultdict(list)
    for trial in trials:
        if trial.target_reached:
            reached[trial.batch_size].append(trial.cost)
    of_default = [trial.cost for trial in trials if trial.batch_size == default_batch_size]
    delivered = len(reached[default_batch_size])
    return estimate(
        {size: Delivered.of(values) for size, values in reached.items()},
        default_batch_size=default_batch_size,
        deliveries=sum(map(len, reached.values())),
        spent=sum(trial.cost for trial in trials),
        launches=len(trials),
        with_default=sum(of_default) / delivered if delivered else None,
    )


def _relative(claim: SavingsEstimate, would: float) -> Claim | None:
    """Returns a claim beside what the default would have cost, in J."""
    if claim.baseline is None or claim.saved is None or claim.at_least is None:
        return None
    plain = claim.deliveries * claim.baseline.mean - claim.spent
    plain, saved, at_least = (each / would for each in (plain, claim.saved, claim.at_least))
    return Claim(claim.verdict, claim.baseline.runs, 1 - claim.spent / would, plain, saved, at_least)


class _Task(NamedTuple):
    folders: Folders
    case: Case
    policy: str
    seeds: range
    every: int


def _played(task: _Task) -> list[list[Claim | None]]:
    """Returns the claims by seed and horizon."""
    workload = task.case.load(task.folders)
    return [claims(task.case, workload, task.policy, seed, every=task.every) for seed in task.seeds]


class Summary(NamedTuple):
    """The claims of some seeds after one number of recurrences, and the number of seeds without one."""

    claims: Sequence[Claim]
    without: int

    @property
    def covered(self) -> float:
        """Share of the claims whose bound holds."""
        return float(np.mean([claim.holds for claim in self.claims]))

    @property
    def over(self) -> np.ndarray:
        """The amount by which each estimate overstates."""
        return np.array([claim.saved - claim.true for claim in self.claims])

    @property
    def met(self) -> bool:
        """Whether both limits are met; that of the bound is not if a right bound fails so often in one of 20 tries."""
        missed = sum(not claim.holds for claim in self.claims)
        return not self.claims or (
            chance(missed, len(self.claims)) >= _UNLIKELY and float(self.over.mean()) <= _ROUNDING
        )


def chance(missed: int, seeds: int) -> float:
    """Returns the probability that a bound that holds in 95% of all seeds is missed at least so often in some."""
    return sum(
        math.comb(seeds, each) * (1 - LEAST_COVERED) ** each * LEAST_COVERED ** (seeds - each)
        for each in range(missed, seeds + 1)
    )


def summary(found: Sequence[Claim | None]) -> Summary:
    """Returns the claims among what was found."""
    kept = [claim for claim in found if claim is not None]
    return Summary(kept, len(found) - len(kept))


_Played = Mapping[tuple[str, Case], Sequence[Sequence["Claim | None"]]]


def main(words: Sequence[str] | None = None) -> int:
    """Plays all lines and prints a table for each policy; returns 1 if a limit is missed."""
    parser = _parser()
    args = parser.parse_args(words)
    if args.seeds < 1:
        parser.error(f"--seeds is {args.seeds}; use a number from 1")
    wanted = [line for line in lines() if not args.lines or line.title.removesuffix(_CHANGES) in args.lines]
    folders = Folders(args.traces, args.workloads or beside(args.traces))
    kept = [line for line in wanted if all(case.needs is None or getattr(folders, case.needs) for case in line.cases)]
    left_out = ", ".join(line.title for line in wanted if line not in kept)
    policies = args.policy or _USUAL
    seeds = range(args.seeds)
    tasks = [_Task(folders, case, policy, seeds, args.every) for policy in policies for case in _cases(kept)]
    try:
        if not kept:
            _refuse(left_out)
        with ProcessPoolExecutor(args.processes) as pool:
            found = list(pool.map(_played, tasks))
    except ReplayError as error:
        print(f"savings: {error}", file=sys.stderr)
        return 1
    played = {(task.policy, task.case): each for task, each in zip(tasks, found, strict=True)}
    console = Console(width=_WIDTH, highlight=False)
    console.print(_explanation(args.seeds, args.every))
    met = [_print_policy(console, policy, kept, played) for policy in policies]
    if left_out:
        console.print(f"Left out, since they need --traces DIR or --workloads DIR: {left_out}.")
    limits = "no estimate overstates on average, and bounds hold in at least 95% of the seeds"
    console.print(f"Limits met: {limits}." if all(met) else f"Limits missed (!); wanted: {limits}.")
    return int(not all(met))


def _cases(kept: Sequence[Line]) -> Iterator[Case]:
    return (case for line in kept for case in line.cases)


def _refuse(left_out: str) -> None:
    raise ReplayError(
        f"these lines need --traces DIR, the folder of the traces (docs/results.md), or --workloads DIR: {left_out}"
    )


class _Entry(NamedTuple):
    """One line after one number of recurrences: its cases together, and each of them by a name for it."""

    line: Line
    horizon: int
    whole: Summary
    each: Mapping[str, Summary]

    @property
    def met(self) -> bool:
        return not self.line.judged or all(one.met for one in self.each.values())


def _entries(policy: str, kept: Sequence[Line], played: _Played) -> Iterator[_Entry]:
    for line in kept:
        for place, horizon in enumerate(HORIZONS):
            found = {case: [seed[place] for seed in played[policy, case]] for case in line.cases}
            each = {f"{case.workload} after {horizon}": summary(seeds) for case, seeds in found.items()}
            yield _Entry(line, horizon, summary([claim for seeds in found.values() for claim in seeds]), each)


def _print_policy(console: Console, policy: str, kept: Sequence[Line], played: _Played) -> bool:
    """Prints one policy's table and its totals; returns whether all its limits are met."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title=policy, title_justify="left")
    table.add_column("case", no_wrap=True)
    for name in ("after", "none", "runs", "true", "plain", "saved", "doubt", "holds"):
        table.add_column(name, justify="right", no_wrap=True)
    entries = list(_entries(policy, kept, played))
    for entry in entries:
        title = entry.line.title if entry.horizon == HORIZONS[0] else ""
        *cells, last = _cells(entry.whole)
        table.add_row(title, f"{entry.horizon}", *cells, last if entry.met else f"! {last}")
    console.print(table)
    judged = [entry for entry in entries if entry.line.judged]
    _print_totals(console, judged)
    holds = [claim.holds for entry in judged for claim in entry.whole.claims]
    return all(entry.met for entry in entries) and float(np.mean(holds or 1.0)) >= LEAST_COVERED


def _cells(found: Summary) -> Sequence[str]:
    """Returns the columns from `none` to `holds`."""
    if not found.claims:
        return [f"{found.without}", *[""] * 6]
    runs = np.mean([claim.runs for claim in found.claims])
    true = np.mean([claim.true for claim in found.claims])
    plain = np.mean([claim.plain - claim.true for claim in found.claims])
    doubt = np.mean([claim.saved - claim.at_least for claim in found.claims])
    over = mean_of(found.over)
    interval = f" ±{100 * over.half_width:.1f}" if len(found.claims) > 1 else ""
    return [
        f"{found.without or ''}",
        f"{runs:.1f}",
        f"{true:+.0%}",
        f"{plain:+.0%}",
        f"{100 * over.mean:+.1f}%{interval}",
        f"{100 * doubt:.0f}%",
        f"{found.covered:.1%}",
    ]


def _print_totals(console: Console, entries: Sequence[_Entry]) -> None:
    """Prints what holds over all lines that are judged, the worst cases, and how often a verdict is wrong."""
    claims = [claim for entry in entries for claim in entry.whole.claims]
    each = {name: found for entry in entries for name, found in entry.each.items() if found.claims}
    if not claims:
        return
    least = min(each, key=lambda name: each[name].covered)
    most = max(each, key=lambda name: float(each[name].over.mean()))
    holds = np.mean([claim.holds for claim in claims])
    saved = [bool(claim.true > 0) for claim in claims]
    verdicts = []
    for verdict, truth in ((SavingsVerdict.SAVING, True), (SavingsVerdict.LOSS, False)):
        said = [gain is truth for claim, gain in zip(claims, saved, strict=True) if claim.verdict is verdict]
        wrong = f", wrong in {1 - np.mean(said):.1%} of these" if said else ""
        verdicts.append(f"{verdict.value}: {len(said) / len(claims):.0%}{wrong}.")
    console.print(
        f"{len(claims):,} claims: the bound holds in {holds:.1%}.\nWorst case: {each[least].covered:.1%} ({least}).\n"
        f"The estimate overstates at most by {each[most].over.mean():+.1%} on average ({most}).\n"
        f"Truly saved: {np.mean(saved):.0%}. {' '.join(verdicts)}\n"
    )


def _explanation(seeds: int, every: int) -> str:
    often = f"; one launch in {every} is a baseline" if every else ""
    return (
        f"Claims of what a job has saved against the truth, in % of what the default would\n"
        f"have cost; means over {counted(seeds, 'seed')}{often}:\n"
        "  after  recurrences                    none   seeds without a claim\n"
        "  runs   of the default                 true   true saving\n"
        "  plain  how much `deliveries * mean - spent` overstates\n"
        "  saved  how much the estimate overstates, with its 95% interval\n"
        "  doubt  estimate less lower bound      holds  seeds whose bound holds\n"
        "  *      the default changes: not judged   !  a limit is missed\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.savings",
        description="Print whether claims of what a job has saved hold where the truth is known.",
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces; else no measured lines")
    parser.add_argument(
        "--workloads",
        type=Path,
        metavar="DIR",
        help="folder of recorded workloads (default: the folder cpu of the traces, if it exists)",
    )
    parser.add_argument(
        "--every", type=int, default=EVERY, metavar="N", help="one launch in N is a baseline; 0: none (default: 10)"
    )
    parser.add_argument(
        "--policy", choices=POLICIES, action="append", help=f"repeatable (default: {' and '.join(_USUAL)})"
    )
    names = [line.title.removesuffix(_CHANGES) for line in lines()]
    parser.add_argument("--lines", choices=names, action="append", metavar="LINE", help="repeatable (default: all)")
    parser.add_argument("--seeds", type=int, default=40, metavar="K", help="from 0 (default: %(default)s)")
    parser.add_argument(
        "--processes", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="default: %(default)s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
