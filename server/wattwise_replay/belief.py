"""The belief of a policy about the cost of a model at every batch size, beside the true cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattwise_server.cost import unit_of
from wattwise_server.policy.base import ArmBelief, Choice

from wattwise_replay.engines import WithFallback, to_the_end
from wattwise_replay.in_process import InProcess
from wattwise_replay.play import PlayedTrial, play
from wattwise_replay.plot import new_figure, save
from wattwise_replay.workload import Workload, cheapest, epoch_cost
from wattwise_replay.world import World, course

_EARLY = (1, 4)
"""Panels besides the last one: what one trial tells, and a few."""

_EXPECTED, _TRUE, _MISSED, _CRASHED, _REACHED = "#009E73", "black", "#D55E00", "#CC79A7", "#0072B2"
# Okabe and Ito's palette, as in plot.py.


@dataclass(frozen=True)
class Snapshot:
    """A policy's belief after some recurrences.

    Attributes:
        recurrences: Their number.
        beliefs: By batch size, ascending.
        trials: All trials so far.
        costs: What a model costs with each batch size alone, without a bound, in joules; NaN if it delivers none.
        next: The choice of the next trial; None if no batch size is left.
        bound: The cost at which trials are stopped, in joules, but not those of the best batch size; None: no bound.
    """

    recurrences: int
    beliefs: Sequence[ArmBelief]
    trials: Sequence[PlayedTrial]
    costs: Sequence[float]
    next: Choice | None
    bound: float | None

    @property
    def best(self) -> int | None:
        """The best known batch size: of those that have reached the target, the one that is expected to cost least."""
        return _best(self.beliefs, self.trials)


def snapshots(
    make: Callable[[], InProcess], world: World, recurrences: int, overlap: float = 0.0
) -> Iterator[Snapshot]:
    """Yields the belief after the first recurrence, after four, and after the last one, with seed 0.

    Args:
        make: Creates the engine.
        world: Determines the course of trials.
        recurrences: The number of the last one.
        overlap: Share of recurrences that overlap with the one before.

    Raises:
        ReplayError: the policy fails.
    """
    for number in (*(early for early in _EARLY if early < recurrences), recurrences):
        # Played again from the start: the draws of the first recurrences do not depend on how many follow.
        engine = make()
        trials = play(WithFallback(engine, world.workload), world, 0, number, overlap).trials
        beliefs = engine.beliefs
        best = _best(beliefs, trials)
        bounds = [engine.bound(each.batch_size) for each in beliefs if each.batch_size != best]
        workload = world.workload_at(number - 1)
        costs = [_cost(workload, size, world.eta) for size in workload.sizes]
        bound = max((each for each in bounds if each is not None), default=None)
        yield Snapshot(number, beliefs, trials, costs, engine.upcoming(), bound)


def _best(beliefs: Sequence[ArmBelief], trials: Sequence[PlayedTrial]) -> int | None:
    delivering = {trial.batch_size for trial in trials if trial.target_reached}
    known = {each.batch_size: each.expected_cost for each in beliefs if each.expected_cost is not None}
    return min(delivering & set(known), key=known.__getitem__, default=None)


def _cost(workload: Workload, size: int, eta: float) -> float:
    """Returns mean cost of a model with one batch size, retried until it delivers."""
    known = workload.of(size)
    point = cheapest(known.points, eta, workload.max_power_watts)
    ends = [to_the_end(course(run, point), workload.max_epochs) for run in known.runs]
    models = sum(end.target_reached for end in ends)
    price = epoch_cost(point, eta, workload.max_power_watts)
    return price * sum(end.epochs for end in ends) / models if models else math.nan


def draw_beliefs(found: Sequence[Snapshot], title: str, path: Path) -> None:
    """Draws one panel per snapshot.

    Args:
        found: The snapshots.
        title: What was replayed.
        path: The file; its extension selects the format: .svg, .png, .pdf.

    Raises:
        ReplayError: matplotlib is missing or does not know the format, or the file cannot be written.
    """
    figure = new_figure(4.4 * len(found), 4.2)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    low, high, least = _range(found)
    unit, joules = unit_of(least)
    for panel, snapshot in zip(panels, found, strict=True):
        _panel(panel, snapshot, joules)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    panels[0].set_ylabel(f"cost of a model, {unit}")
    panels[0].set_ylim(low / joules, high / joules)
    figure.suptitle(title, fontsize="medium")
    columns = min(len(handles), {1: 3, 2: 5}.get(len(found), 10))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
    save(figure, path)


def _panel(panel: Any, snapshot: Snapshot, joules: float) -> None:
    sizes = [each.batch_size for each in snapshot.beliefs]
    _draw_belief(panel, snapshot, joules)
    panel.plot(sizes, [cost / joules for cost in snapshot.costs], color=_TRUE, linewidth=0.9, label="true mean")
    _draw_trials(panel, snapshot.trials, joules)
    if snapshot.bound is not None:
        panel.axhline(snapshot.bound / joules, color="#777777", linewidth=1.0, linestyle="--", label="bound")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 6 else 0, minor=False)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    panel.set_title(_after(snapshot))
    panel.set_xlabel("batch size")
    panel.spines[["top", "right"]].set_visible(False)


def _draw_belief(panel: Any, snapshot: Snapshot, joules: float) -> None:
    """The expected cost, its bands, the best known batch size and the next one."""
    sizes = [each.batch_size for each in snapshot.beliefs]
    expected = [math.nan if each.expected_cost is None else each.expected_cost / joules for each in snapshot.beliefs]
    for deviations, alpha in ((2, 0.15), (1, 0.25)):
        bands = [_band(each, deviations) for each in snapshot.beliefs]
        panel.fill_between(
            sizes,
            [low / joules for low, _ in bands],
            [high / joules for _, high in bands],
            color=_EXPECTED,
            alpha=alpha,
            linewidth=0,
            label=f"{deviations} std dev",
        )
    panel.plot(sizes, expected, color=_EXPECTED, linewidth=1.8, label="expected")
    if snapshot.best is not None:
        best = expected[sizes.index(snapshot.best)]
        panel.plot(snapshot.best, best, "*", color=_EXPECTED, markersize=13, label="best known")
    if snapshot.next is not None:
        at_the_bottom = panel.get_xaxis_transform()
        panel.plot(snapshot.next.batch_size, 0.02, "^", color="black", transform=at_the_bottom, label="next")


def _band(belief: ArmBelief, deviations: int) -> tuple[float, float]:
    """Returns an interval of the cost in joules, above 0 because ln cost is taken as normal; NaN while unknown."""
    if not belief.expected_cost or belief.deviation is None:
        return math.nan, math.nan
    variance = math.log1p((belief.deviation / belief.expected_cost) ** 2)
    median, factor = belief.expected_cost * math.exp(-variance / 2), math.exp(deviations * math.sqrt(variance))
    return median / factor, median * factor


def _draw_trials(panel: Any, trials: Sequence[PlayedTrial], joules: float) -> None:
    reached = [trial for trial in trials if trial.target_reached]
    crashed = [trial for trial in trials if trial.failure is not None]
    missed = [trial for trial in trials if not trial.target_reached and trial.failure is None]
    for shown, marker, color, label in (
        (reached, "o", _REACHED, "reached"),
        (missed, "X", _MISSED, "missed"),
        (crashed, "s", _CRASHED, "crashed"),
    ):
        if shown:
            places, costs = [trial.batch_size for trial in shown], [trial.cost / joules for trial in shown]
            panel.plot(places, costs, marker, color=color, markersize=5.5, alpha=0.75, linewidth=0, label=label)


def _after(snapshot: Snapshot) -> str:
    trials, recurrences = len(snapshot.trials), snapshot.recurrences
    after = f"after {recurrences} recurrence{'s' if recurrences > 1 else ''}"
    return after if trials == recurrences else f"{after}, {trials} trials"


def _range(found: Sequence[Snapshot]) -> tuple[float, float, float]:
    """Limits of the cost axis, and the least true mean; in joules. Vague beliefs and outliers may leave the panel."""
    spent = [trial.cost for each in found for trial in each.trials if trial.cost > 0]
    true = [cost for each in found for cost in each.costs if cost > 0]
    least = min(true or spent)
    return max(0.5 * min(spent + true), 0.1 * least), min(2 * max(spent + true), 20 * least), least
