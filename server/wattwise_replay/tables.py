"""A comparison as tables and as JSON.

A table is Markdown where it fits, and in a pipe or a file. On a narrower terminal it is plain text, in blocks of
columns.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from wattwise.presentation.quantities import number
from wattwise.presentation.terminal import Column, fit, print_text, terminal_width, width_of
from wattwise_server.cost import unit_of, with_unit

from wattwise_replay.belief import Snapshot
from wattwise_replay.compare import DEFAULT, EARLY, HINDSIGHT, Comparison
from wattwise_replay.play import PlayedTrial
from wattwise_replay.statistics import Mean, mean_of
from wattwise_replay.workload import Workload

_NOTHING = 1e-9
"""A relative interval below this is a rounding error."""

_NO_MODEL = "-"

_SUMS = {"cost": "costs", "energy": "joules", "time": "seconds"}
_RATIOS = tuple(f"{name} ÷ default" for name in _SUMS)
_REGRET = "regret, kJ a recurrence"


class Table:
    """A table of texts.

    Args:
        columns: their names; a star marks a column of numbers.
        grouped: whether the first column names groups of rows, by its cells that are not empty.
    """

    def __init__(self, *columns: str, grouped: bool = False) -> None:
        self._names = [name.removeprefix("*") for name in columns]
        self._rights = [name.startswith("*") for name in columns]
        self._grouped = grouped
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Adds a row."""
        self._rows.append(cells)

    def print(self) -> None:
        """Prints it after an empty line."""
        print()  # noqa: T201 - the command's answer
        for line in self.lines(terminal_width()):
            print(line)  # noqa: T201 - the command's answer

    def lines(self, width: int | None) -> Iterator[str]:
        """Yields its lines on a terminal of this width; None for a pipe or a file."""
        markdown = self._markdown()
        if width is None or width_of(markdown[0]) <= width:
            yield from markdown
            return
        key = 1 if self._grouped else 0
        for place, block in enumerate(self._blocks(key, width)):
            if place:
                yield ""
            yield from self._block(key, block, width)

    def _markdown(self) -> list[str]:
        places = range(len(self._names))
        sizes = [max(width_of(cells[place]) for cells in (self._names, *self._rows)) for place in places]
        heading, *rows = (
            "".join(f"| {_padded(cells[place], sizes[place], self._rights[place])} " for place in places) + "|"
            for cells in (self._names, *self._rows)
        )
        rule = "".join(f"|{'-' * (size + 2)}" for size in sizes)
        return [heading, f"{rule}|", *rows]

    def _blocks(self, key: int, width: int) -> Iterator[list[int]]:
        """Yields the places of the columns that fit beside the key."""
        left = self._size(key)
        block: list[int] = []
        for place in range(key + 1, len(self._names)):
            if block and left + sum(2 + self._size(each) for each in (*block, place)) > width:
                yield block
                block = []
            block.append(place)
        yield block

    def _size(self, place: int) -> int:
        return max(map(width_of, (self._names[place], *(row[place] for row in self._rows))))

    def _block(self, key: int, block: Sequence[int], width: int) -> Iterator[str]:
        left = self._size(key)
        if left + sum(2 + self._size(place) for place in block) > width:
            # A column of texts.
            yield f"{_padded(self._names[key], left, self._rights[key])}  {self._names[block[0]]}"
            for row in self._rows:
                text = f"{_padded(row[key], left, self._rights[key])}  {row[block[0]]}"
                yield textwrap.fill(text, width, subsequent_indent=" " * (left + 2))
            return
        heading, *lines = fit([self._column(place) for place in (key, *block)], self._rows).lines()
        yield heading
        for row, line in zip(self._rows, lines, strict=True):
            if self._grouped and row[0]:
                yield row[0]
            yield line

    def _column(self, place: int) -> Column[tuple[str, ...]]:
        return Column(self._names[place], lambda row: row[place], right=self._rights[place])


def _padded(cell: str, size: int, right: bool) -> str:
    space = " " * (size - width_of(cell))
    return space + cell if right else cell + space


def print_comparison(comparison: Comparison) -> None:
    """One workload: each contender's sums over all and over the first recurrences, and its choices."""
    workload = comparison.world.workload
    best = " then ".join(map(str, comparison.best_sizes))
    print_text(
        f"{workload.setting}: {counted(comparison.recurrences, 'recurrence')}, {counted(_seeds(comparison), 'seed')}; "
        f"default batch size {workload.default_batch_size}, best in hindsight {best}",
        2,
    )
    for first in (None, EARLY) if comparison.recurrences > EARLY else (None,):
        _sums(comparison, first).print()
    _print_notes(_notes(comparison))
    choices = Table("trials by batch size", *(f"*{size}" for size in workload.sizes))
    for name in comparison.ledgers:
        choices.add_row(name, *_shares(comparison, name))
    choices.print()


def print_all(comparisons: Sequence[Comparison]) -> None:
    """All workloads in one table, with a row per contender."""
    columns = (*_RATIOS, f"cost ÷ default, first {EARLY}", _REGRET)
    table = Table("setting", "", *(f"*{name}" for name in columns), grouped=True)
    for comparison in comparisons:
        for place, name in enumerate(comparison.ledgers):
            setting = "" if place else comparison.world.workload.setting
            early = _text(_ratio(comparison, name, "costs", first=EARLY), 3)
            table.add_row(setting, name, *_ratios(comparison, name), early, _regret(comparison, name))
    table.print()
    _print_notes([f"{each.world.workload.setting}, {note}" for each in comparisons for note in _notes(each)])


def print_beliefs(found: Sequence[Snapshot], workload: Workload, policy: str) -> None:
    """Prints the best known batch size after some recurrences, its expected and true cost, and the next choice."""
    print_text(f"{workload.setting}: {policy}, seed 0", 2)
    table = Table("*recurrences", "*trials", "*best known", "*expected", "*true mean", "*bound", "next trial")
    for each in found:
        best, bound = each.best, "" if each.bound is None else with_unit(each.bound)
        known = ("", "", "")
        if best is not None:
            place = workload.sizes.index(best)
            true = with_unit(each.costs[place]) if math.isfinite(each.costs[place]) else _NO_MODEL
            known = (f"{best}", with_unit(each.beliefs[place].expected_cost or 0.0), true)
        upcoming = f"{each.next.batch_size}: {each.next.reason}" if each.next else "no batch size is left"
        table.add_row(f"{each.recurrences}", f"{len(each.trials)}", *known, bound, upcoming)
    table.print()


def as_json(comparison: Comparison) -> dict[str, Any]:
    """One workload: everything in the tables, and every trial's choice."""
    workload = comparison.world.workload
    return {
        "workload": workload.name,
        "gpu": workload.gpu,
        "eta": comparison.world.eta,
        "drift_at": next((change.at for change in workload.changes), None),
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
        "limit_watts_per_gpu": trial.limit_watts_per_gpu,
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
    """Yields notes: another default, launches without a batch size, recurrences without a model."""
    workload = comparison.world.workload
    if workload.has_estimates:
        yield "its energies and costs are estimates, at least in part: they were not all measured"
    if workload.unmeasured_default is not None:
        yield (
            f"the default batch size {workload.unmeasured_default} was not measured; "
            f"{workload.default_batch_size} replaces it"
        )
    recurrences = comparison.recurrences * _seeds(comparison)
    for name, ledgers in comparison.ledgers.items():
        fallbacks = comparison.fallbacks.get(name, ())
        if any(fallbacks):
            seeds = f"{sum(map(bool, fallbacks))} of {counted(len(fallbacks), 'seed')}"
            yield (
                f"{name}: no batch size was left for {counted(sum(fallbacks), 'launch')} in {seeds}; they trained the "
                f"default, {workload.default_batch_size}, without early stopping"
            )
        if undelivered := sum(int((~ledger.delivered).sum()) for ledger in ledgers):
            yield f"{name}: {undelivered:,} of {counted(recurrences, 'recurrence')} ended without a model"


def _print_notes(notes: Iterable[str]) -> None:
    for place, note in enumerate(notes):
        if not place:
            print()  # noqa: T201 - the command's answer
        print_text(f"- {note}", 2)


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
    table = Table(title, *(f"*{name}" for name in columns))
    for name in comparison.ledgers:
        sums = (("costs", joules), ("joules", joules), ("seconds", 3600))
        amounts = [_text(_amount(comparison, name, what, first, size), 4) for what, size in sums]
        to_best = _text(_ratio(comparison, name, "costs", HINDSIGHT, first), 3)
        ratios = _ratios(comparison, name, first)
        table.add_row(name, *amounts, *ratios, to_best, _regret(comparison, name, first, regret_joules))
    return table


def _amount(comparison: Comparison, name: str, what: str, first: int | None, unit: float) -> Mean | None:
    """Returns a sum over recurrences; None for 0, since what costs nothing delivers no model."""
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
    """Returns the ratio to another contender, by seed, so that both had the same draws; None where one has no model."""
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
    mean = _plain(value.mean, digits)
    if not value.half_width > _NOTHING * abs(value.mean):
        return mean
    return f"{mean} ± {_plain(value.half_width, 2)}"


def _plain(value: float, digits: int) -> str:
    """Returns a number with so many significant digits; sums of large and small jobs need no exponent."""
    text = f"{value:.{digits}g}"
    return number(value, digits) if "e" in text else text


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 seed", "20 seeds"."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
