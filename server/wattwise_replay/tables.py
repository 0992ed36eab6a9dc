"""A comparison as tables and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from wattwise_server.policy.cost import unit_of, with_unit

from wattwise_replay.belief import Snapshot
from wattwise_replay.compare import DEFAULT, EARLY, HINDSIGHT, Comparison
from wattwise_replay.play import PlayedTrial
from wattwise_replay.statistics import Mean, mean_of
from wattwise_replay.workload import Workload

WIDTH = 100_000
_NOTHING = 1e-9
"""A relative interval below this is a rounding error."""

_NO_MODEL = "-"

_SUMS = {"cost": "costs", "energy": "joules", "time": "seconds"}
_RATIOS = tuple(f"{name} ÷ default" for name in _SUMS)
_REGRET = "regret, kJ a recurrence"


def print_comparison(comparison: Comparison) -> None:
    """One workload: each contender's sums over all and over the first recurrences, and its choices."""
    workload = comparison.world.workload
    console = Console(width=WIDTH)
    best = " then ".join(map(str, comparison.best_sizes))
    console.print(
        f"{workload.setting}: {counted(comparison.recurrences, 'recurrence')}, {counted(_seeds(comparison), 'seed')}; "
        f"default batch size {workload.default_batch_size}, best in hindsight {best}\n",
        highlight=False,
    )
    for first in (None, EARLY) if comparison.recurrences > EARLY else (None,):
        console.print(_sums(comparison, first))
    _print_notes(console, _notes(comparison))
    choices = markdown_table("trials by batch size", *(f"*{size}" for size in workload.sizes))
    for name in comparison.ledgers:
        choices.add_row(name, *_shares(comparison, name))
    console.print(choices)


def print_all(comparisons: Sequence[Comparison]) -> None:
    """All workloads in one table, with a row per contender."""
    columns = (*_RATIOS, f"cost ÷ default, first {EARLY}", _REGRET)
    table = markdown_table("setting", "", *(f"*{name}" for name in columns))
    for comparison in comparisons:
        for place, name in enumerate(comparison.ledgers):
            setting = "" if place else comparison.world.workload.setting
            early = _text(_ratio(comparison, name, "costs", first=EARLY), 3)
            table.add_row(setting, name, *_ratios(comparison, name), early, _regret(comparison, name))
    console = Console(width=WIDTH)
    console.print(table)
    _print_notes(console, [f"{each.world.workload.setting}, {note}" for each in comparisons for note in _notes(each)])


def print_beliefs(found: Sequence[Snapshot], workload: Workload, policy: str) -> None:
    """After some recurrences: the best known batch size, what it is expected to cost and does, and the next choice."""
    console = Console(width=WIDTH, highlight=False)
    console.print(f"{workload.setting}: {policy}, seed 0\n")
    table = markdown_table("*recurrences", "*trials", "*best known", "*expected", "*true mean", "*bound", "next trial")
    for each in found:
        best, bound = each.best, "" if each.bound is None else with_unit(each.bound)
        known = ("", "", "")
        if best is not None:
            place = workload.sizes.index(best)
            true = with_unit(each.costs[place]) if math.isfinite(each.costs[place]) else _NO_MODEL
            known = (f"{best}", with_unit(each.beliefs[place].expected_cost or 0.0), true)
        upcoming = f"{each.next.batch_size}: {each.next.reason}" if each.next else "no batch size is left"
        table.add_row(f"{each.recurrences}", f"{len(each.trials)}", *known, bound, upcoming)
    console.print(table)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """One workload: everything in the tables, and every trial's choice."""
    workload = comparison.world.workload
    return {
        "workload": workload.name,
        "gpu": workload.gpu,
        "eta": comparison.world.eta,
        "drift_at": comparison.world.drift_at,
        "recurrences": comparison.recurrences,
        "seeds": _seeds(comparison),
        "best_batch_sizes": list(comparison.best_sizes),
        "contenders": {name: _contender(comparison, name) for name in comparison.ledgers},
    }


def _contender(comparison: Comparison, name: str) -> dict[str, Any]:
    ledgers = comparison.ledgers[name]
    sums = {
        key: {
            "all": _interval(mean_of(comparison.totals(name, what))),
            f"first_{EARLY}": _interval(mean_of(comparison.totals(name, what, EARLY))),
        }
        for key, what in (("cost_joules", "costs"), ("energy_joules", "joules"), ("time_seconds", "seconds"))
    }
    return {
        **sums,
        "cost_ratio_to_default": _interval(_ratio(comparison, name, "costs")),
        "cost_ratio_to_best": _interval(_ratio(comparison, name, "costs", HINDSIGHT)),
        "regret_joules": _interval(mean_of(comparison.regret(name)[:, -1])),
        "cumulative_regret_joules": comparison.regret(name).mean(axis=0).tolist(),
        "undelivered": [int((~ledger.delivered).sum()) for ledger in ledgers],
        "fallbacks": list(comparison.fallbacks.get(name, [0] * len(ledgers))),
        "choices": [[_choice(trial) for trial in ledger.trials] for ledger in ledgers],
    }


def _choice(trial: PlayedTrial) -> dict[str, Any]:
    return {
        "recurrence": trial.recurrence + 1,
        "try": trial.attempt + 1,
        "batch_size": trial.batch_size,
        "power_limit_watts": trial.power_limit_watts,
        "epochs": trial.epochs,
        "cost_joules": trial.cost,
        "target_reached": trial.target_reached,
        "failure": trial.failure.value if trial.failure else None,
    }


def _interval(value: Mean | None) -> dict[str, float | None]:
    if value is None:
        return {"mean": None, "half_width_95": None}
    known = np.isfinite(value.half_width)
    return {"mean": value.mean, "half_width_95": value.half_width if known else None}


def _notes(comparison: Comparison) -> Iterator[str]:
    """What the numbers do not say: launches for which no batch size was left, and recurrences without a model."""
    recurrences = comparison.recurrences * _seeds(comparison)
    for name, ledgers in comparison.ledgers.items():
        fallbacks = comparison.fallbacks.get(name, ())
        if any(fallbacks):
            seeds = f"{sum(map(bool, fallbacks))} of {counted(len(fallbacks), 'seed')}"
            default = comparison.world.workload.default_batch_size
            yield (
                f"{name}: no batch size was left for {counted(sum(fallbacks), 'launch')} in {seeds}; they trained the "
                f"default, {default}, without early stopping"
            )
        if undelivered := sum(int((~ledger.delivered).sum()) for ledger in ledgers):
            yield f"{name}: {undelivered:,} of {counted(recurrences, 'recurrence')} ended without a model"


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    if lines := "\n".join(f"- {note}" for note in notes):
        console.print(f"{lines}\n", highlight=False)


def _sums(comparison: Comparison, first: int | None) -> Table:
    """Each contender's sums over all recurrences, or the first of them."""
    title = "all recurrences" if first is None else f"first {first} recurrences"
    # The same units in both tables, so that their numbers can be compared.
    compared = [name for name in comparison.ledgers if comparison.delivers(name)] or [HINDSIGHT]
    unit, joules = unit_of(max(comparison.totals(name, "costs").mean() for name in compared))
    regrets = [comparison.regret(name)[:, -1].mean() / comparison.recurrences for name in compared]
    regret_unit, regret_joules = unit_of(max(map(abs, regrets)))
    regret = f"regret, {regret_unit} a recurrence"
    columns = (f"total cost, {unit}", f"energy, {unit}", "time, h", *_RATIOS, "cost ÷ best", regret)
    table = markdown_table(title, *(f"*{name}" for name in columns))
    for name in comparison.ledgers:
        sums = (("costs", joules), ("joules", joules), ("seconds", 3600))
        amounts = [_text(_amount(comparison, name, what, first, size), 4) for what, size in sums]
        to_best = _text(_ratio(comparison, name, "costs", HINDSIGHT, first), 3)
        ratios = _ratios(comparison, name, first)
        table.add_row(name, *amounts, *ratios, to_best, _regret(comparison, name, first, regret_joules))
    return table


def _amount(comparison: Comparison, name: str, what: str, first: int | None, unit: float) -> Mean | None:
    """A sum over recurrences; None for 0, since what costs nothing delivers no model."""
    totals = comparison.totals(name, what, first)
    return mean_of(totals).times(1 / unit) if totals.any() else None


def _ratios(comparison: Comparison, name: str, first: int | None = None) -> Sequence[str]:
    return [_text(_ratio(comparison, name, what, first=first), 3) for what in _SUMS.values()]


def _regret(comparison: Comparison, name: str, first: int | None = None, unit: float = 1e3) -> str:
    if not comparison.delivers(name, first):
        return _NO_MODEL
    cumulative = comparison.regret(name)[:, :first]
    return _text(mean_of(cumulative[:, -1]).times(1 / unit / cumulative.shape[1]), 3)


def _ratio(comparison: Comparison, name: str, what: str, other: str = DEFAULT, first: int | None = None) -> Mean | None:
    """The ratio to another contender, by seed, so that both had the same draws; None where one has no model."""
    if not (comparison.delivers(name, first) and comparison.delivers(other, first)):
        return None
    return mean_of(comparison.totals(name, what, first) / comparison.totals(other, what, first))


def _shares(comparison: Comparison, name: str) -> Sequence[str]:
    chosen = Counter(trial.batch_size for ledger in comparison.ledgers[name] for trial in ledger.trials)
    total = chosen.total()
    return [f"{chosen[size] / total:.0%}" if chosen[size] else "" for size in comparison.world.workload.sizes]


def _seeds(comparison: Comparison) -> int:
    return len(next(iter(comparison.ledgers.values())))


def _text(value: Mean | None, digits: int) -> str:
    if value is None:
        return _NO_MODEL
    mean = f"{value.mean:.{digits}g}"
    if not value.half_width > _NOTHING * abs(value.mean):
        return mean
    return f"{mean} ± {value.half_width:.2g}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 seed", "20 seeds"."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def markdown_table(*columns: str) -> Table:
    """A Markdown table; a star marks a column of numbers."""
    table = Table(box=box.MARKDOWN)
    for name in columns:
        table.add_column(name.lstrip("*"), justify="right" if name.startswith("*") else "left", no_wrap=True)
    return table
