"""What a job saved by quantity, and the facts behind the claim, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from wattwise import v1
from wattwise.presentation.facts import Fact, monitor_of
from wattwise.presentation.quantities import (
    ESTIMATE_MARK,
    ESTIMATE_NOTE,
    age,
    carbon,
    duration,
    energy,
    joules,
    marked,
    moment,
    seconds_since,
)
from wattwise.presentation.sentences import (
    Quantity,
    main_quantity,
    money_text,
    number_of,
    shown_saving,
    spent_by_month,
    spent_per_model,
    why_no_figure,
)
from wattwise.presentation.states import mark_of

NO_FACTORS = (
    "none: `wattwise serve` has `--electricity-price`, `--gpu-hour-price` and `--carbon-intensity` for money and CO2"
)


_ROUNDING = 1e-9
"""The relative difference of equal sums."""


class Amount(NamedTuple):
    """What is known of a quantity.

    Attributes:
        name: The quantity.
        now: What a model takes with the batch size in use; empty if that is unknown.
        default: What a model takes with the default batch size; empty if that is unknown.
        at_least: The lower bound of what was saved if that is above 0, or why it is not shown.
        estimate: The estimate of what was saved, or what was lost; empty if neither is shown.
        spent: What all trials took.
        loses: Whether the verdict is a loss.
    """

    name: str
    now: str
    default: str
    at_least: str
    estimate: str
    spent: str
    loses: bool


def amounts_of(savings: v1.Savings, factors: v1.Factors, mark: str) -> list[Amount]:
    """Returns the quantities, the main one first; money and CO2 only with the factors for them.

    Args:
        savings: What was saved of each quantity.
        factors: The operator's factors.
        mark: The mark before amounts that follow from energy.
    """
    quantities: list[tuple[str, v1.SavingsEstimate, Callable[[float], str]]] = [
        ("cost", savings.cost, marked(joules, mark)),
        ("energy", savings.energy, marked(energy, mark)),
        ("time", savings.time, duration),
    ]
    if savings.HasField("money"):
        quantities.append(("money", savings.money, money_text(factors, mark)))
    if savings.HasField("carbon"):
        quantities.append(("CO2", savings.carbon, marked(carbon, mark)))
    main = main_quantity(savings, factors, mark).name
    return [_amount(*each) for each in sorted(quantities, key=lambda quantity: quantity[0] != main)]


def _amount(name: str, saving: v1.SavingsEstimate, text: Callable[[float], str]) -> Amount:
    at_least, estimate = shown_saving(saving, text)
    return Amount(
        name,
        text(saving.in_use) if saving.HasField("in_use") else "",
        text(saving.with_default) if saving.HasField("with_default") else "",
        at_least or (why_no_figure(saving) if saving.HasField("spent") else "not measured"),
        estimate,
        text(saving.spent) if saving.HasField("spent") else "not measured",
        saving.verdict == v1.SAVINGS_VERDICT_LOSS,
    )


def savings_facts(
    job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics, factors: v1.Factors
) -> Iterator[Fact]:
    """Yields the facts behind a claim."""
    savings, running = statistics.savings, statistics.num_running
    quantity = main_quantity(savings, factors, mark_of(job))
    yield Fact("deliveries", f"{_deliveries(statistics)}{f', {running} still running' if running else ''}")
    yield from spending(statistics, quantity)
    for change in details.changes:
        yield Fact("changed", change.message)
    if since := savings.compared_from_trial:
        text = marked(joules, mark_of(job))
        of_all = f"{text(savings.cost.spent)} of {text(statistics.spent.cost)}"
        deliveries = f"{savings.num_deliveries} of {statistics.num_deliveries} deliveries"
        yield Fact("since", f"trial {since}: {deliveries}, for {of_all}")
    newest = ""
    if savings.HasField("newest_baseline_time"):
        when = savings.newest_baseline_time
        newest = f", the newest {age(seconds_since(when))} old ({moment(when)})"
    runs = number_of(savings.num_baseline_trials, "delivery", "deliveries")
    yield Fact("compared with", f"{runs} of the default batch size {job.spec.default_batch_size}{newest}")
    yield from _arithmetic(savings, quantity, running=bool(running))
    if statistics.HasField("break_even_trial"):
        of_cost = "" if quantity.name == "cost" else " of cost"
        yield Fact("break-even", f"at trial {statistics.break_even_trial}, by today's lower bound{of_cost}")
    if statistics.excluded_trials:
        yield Fact("left out", f"{number_of(len(statistics.excluded_trials), 'trial')} that a person has excluded")
    yield Fact("monitor", monitor_of(job))
    if mark_of(job):
        yield Fact("estimates", f"{ESTIMATE_MARK} marks {ESTIMATE_NOTE}")
    yield Fact("factors", factors_text(factors) or NO_FACTORS)


def spending(statistics: v1.JobStatistics, quantity: Quantity) -> Iterator[Fact]:
    """Yields what all trials took, and what those of the newest month took."""
    spent = f"{spent_per_model(statistics, quantity)}, failed and running trials included"
    every = sum(quantity.of(trials.spent) for trials in statistics.trials)
    earlier = every - quantity.of(statistics.spent)
    # Sums of floats differ by a rounding.
    if earlier > _ROUNDING * every:
        spent += f"; without {quantity.text(earlier)} of imported trials from before the registration"
    yield Fact("spent", spent)
    if months := spent_by_month(statistics, quantity):
        without = "; without running trials" if statistics.num_running else ""
        yield Fact("by month", f"{months.removesuffix('.')}{without}")


def _arithmetic(savings: v1.Savings, quantity: Quantity, *, running: bool) -> Iterator[Fact]:
    """Yields how the figures of a claim follow from what a delivery takes with the default."""
    saving, text = quantity.saving, quantity.text
    deliveries, mean, model = savings.num_deliveries, text(saving.default_mean), text(saving.with_default)
    if saving.verdict == v1.SAVINGS_VERDICT_SAVING:
        spent = text(saving.spent)
        least, cautious = text(saving.least_baseline), text(saving.cautious_baseline)
        why = f"{least} is the least that a delivery takes with the default"
        yield Fact("at least", f"{deliveries} x {least} - {spent} spent; {why}")
        why = f"{cautious} is the default's mean, {mean}, less its standard error"
        yield Fact("estimate", f"{deliveries} x {cautious} - {spent} spent; {why}")
    elif saving.verdict == v1.SAVINGS_VERDICT_LOSS:
        # What running trials spent is no loss before they end.
        ended = f"{text(saving.spent_by_ended_trials)}{' of ended trials' if running else ''}"
        why = f"{model} is what a model takes with the default"
        yield Fact("loss", f"{ended} - {deliveries} x {model} = {text(saving.lost)}; {why}")


def _deliveries(statistics: v1.JobStatistics) -> str:
    deliveries = statistics.num_deliveries
    # The statistics do not say how many of the imported trials are older than the job, and thus no deliveries of it.
    if statistics.num_imported:
        return f"{deliveries} since the job was registered"
    return f"{deliveries} of {number_of(statistics.num_trials, 'trial')}"


def factors_text(factors: v1.Factors) -> str:
    """Returns the operator's factors in a line, with their source; empty without any."""
    parts = []
    if factors.HasField("electricity_price_per_kwh"):
        parts.append(f"{factors.electricity_price_per_kwh:g} {factors.currency} per kWh")
    if factors.HasField("gpu_hour_price"):
        parts.append(f"{factors.gpu_hour_price:g} {factors.currency} per GPU and hour")
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        parts.append(f"{factors.carbon_intensity_grams_per_kwh:g} g CO2 per kWh")
    if not parts:
        return ""
    return f"{', '.join(parts)}, PUE {factors.pue:g}; source: {factors.source or 'not said'}"
