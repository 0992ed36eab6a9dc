"""What a job saved, as the page shows it. Losses are said in the same words and size as gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from wattwise import v1
from wattwise.monitor.kind import EnergyQuality, energy_quality, monitor_text
from wattwise.presentation.sentences import (
    Answer,
    factor_parts,
    main_quantity,
    number_of,
    shown_saving,
    spent_by_month,
    spent_per_model,
)
from wattwise.presentation.states import other_monitors

from wattwise_web.amounts import Moment, carbon, cost, energy, moment, money, span

_Text: TypeAlias = Callable[[float], str]


class Row(NamedTuple):
    """A quantity; a text is empty if nothing is known."""

    name: str
    now: str
    """What a model takes with the batch size in use."""
    default: str
    """What a model takes with the default batch size."""
    at_least: str
    """The lower bound of what was saved, if a saving is shown."""
    estimate: str
    """The estimate of what was saved, or what was lost."""
    spent: str
    loses: bool


@dataclass(frozen=True)
class SavingsCard:
    """The section that says whether a job saves, and how much."""

    kind: str
    """The kind of the `Answer`."""
    lead: str
    """The words before the figure, such as "Saved at least"."""
    figure: str
    settle: str
    """What would allow a claim; empty for nothing."""
    advice: Sequence[str]
    rows: Sequence[Row]
    spending: Sequence[str]
    facts: Sequence[str]
    """What the claim rests on."""
    newest_baseline: Moment | None
    """When the newest trial of the default batch size ended."""
    factors: Sequence[str]
    factor_source: str
    confidence: str
    """The confidence of the lower bound, such as "95%"."""


_LEADS = {
    "saving": "Saved at least",
    "loss": "Lost about",
    "exploring": "Exploring",
    "uncertain": "Not certain yet",
    "none": "No comparison yet",
}


def rows_of(savings: v1.Savings, factors: v1.Factors) -> list[Row]:
    """Returns the known quantities, the main one first; energy only where some was measured."""
    quantities: list[tuple[str, v1.SavingsEstimate, _Text]] = [
        ("energy", savings.energy, energy),
        ("time", savings.time, span),
        ("money", savings.money, lambda value: money(value, factors.currency)),
        ("CO₂", savings.carbon, carbon),
        ("cost", savings.cost, cost),
    ]
    main = main_quantity(savings, factors).name
    quantities.sort(key=lambda quantity: quantity[0] != main)
    return [_row(name, saving, text) for name, saving, text in quantities if saving.HasField("spent")]


def _row(name: str, saving: v1.SavingsEstimate, text: _Text) -> Row:
    at_least, estimate = shown_saving(saving, text)
    return Row(
        name,
        text(saving.in_use) if saving.HasField("in_use") else "",
        text(saving.with_default) if saving.HasField("with_default") else "",
        at_least,
        estimate,
        text(saving.spent),
        saving.verdict == v1.SAVINGS_VERDICT_LOSS,
    )


def card(
    job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics, factors: v1.Factors, found: Answer
) -> SavingsCard:
    """Returns the savings of one job."""
    savings = statistics.savings
    _, saving, text = main_quantity(savings, factors)
    figure = {"saving": saving.at_least, "loss": saving.lost}.get(found.kind)
    spent = f"Spent: {spent_per_model(statistics, factors)}, failed and running trials included."
    return SavingsCard(
        kind=found.kind,
        lead=_LEADS[found.kind],
        figure="" if figure is None else text(figure),
        settle=found.settle,
        advice=[f"{advice[:1].upper()}{advice[1:]}." for advice in statistics.advice],
        rows=rows_of(savings, factors),
        spending=[*filter(None, (spent, spent_by_month(statistics, factors)))],
        facts=_facts(job, details, statistics, factors),
        newest_baseline=moment(savings.newest_baseline_time) if savings.HasField("newest_baseline_time") else None,
        factors=factor_lines(factors),
        factor_source=factors.source,
        confidence=f"{saving.confidence:.0%}",
    )


def _facts(job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics, factors: v1.Factors) -> list[str]:
    savings, facts = statistics.savings, []
    if since := savings.compared_from_trial:
        why = "; ".join(change.message for change in details.changes if change.since_trial == since)
        text = why or f"the job's behaviour changed at trial {since}"
        facts.append(f"Only trials from {since} on are compared: {text}")
    if savings.num_baseline_trials:
        trials = number_of(savings.num_baseline_trials, "delivery", "deliveries")
        facts.append(f"The default, {job.spec.default_batch_size}, has {trials}")
    if statistics.HasField("break_even_trial"):
        of_cost = "" if main_quantity(savings, factors).name == "cost" else " of cost"
        facts.append(f"Broke even at trial {statistics.break_even_trial}, by today's lower bound{of_cost}")
    if job.monitor.kinds:
        estimated = energy_quality(job.monitor) is EnergyQuality.ESTIMATED
        mark = ", an estimate rather than a measurement" if estimated else ""
        facts.append(f"Energy by the monitor {monitor_text(job.monitor)}{mark}")
    elif job.num_trials:
        facts.append("No trial has named its energy monitor")
    if job.other_monitors:
        facts.append(f"Earlier trials used {other_monitors(job)}, whose costs cannot be compared")
    return facts


def factor_lines(factors: v1.Factors) -> list[str]:
    """Returns the operator's factors, one line each; empty without any."""
    lines = [part.replace("CO2", "CO₂") for part in factor_parts(factors)]
    if lines and factors.pue != 1:
        lines.append(f"power usage effectiveness {factors.pue:g}")
    return lines
