"""What a job saved, as sentences and figures. Losses are said in the same words and size as gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from wattwise import v1
from wattwise.commands import savings as claims
from wattwise.monitor.kind import monitor_text

from wattwise_web.amounts import Moment, carbon, cost, energy, moment, money, percent, plural, span

Format: TypeAlias = Callable[[float], str]
_Quantity: TypeAlias = Literal["energy", "time", "money", "carbon", "cost"]


class Row(NamedTuple):
    """One quantity.

    Attributes:
        name: of the quantity.
        at_least: the lower bound of what was saved; empty without a claim.
        saved: the estimate; of a job that loses, by the plain mean of its default.
        baseline: what a delivery of the default batch size takes, as the estimate takes it.
        spent: everything that was spent.
        loses: whether it is part of a loss: the job has lost, and of this quantity, too, by that mean.
    """

    name: str
    at_least: str
    saved: str
    baseline: str
    spent: str
    loses: bool


class Headline(NamedTuple):
    """The answer to "is it saving, and how much".

    Attributes:
        kind: "saving", "loss", "uncertain" or "none".
        lead: the words before the figure, such as "Saves at least".
        figure: the figure; empty without a claim.
        text: one sentence that explains it.
        rows: the quantities.
        facts: what the claim rests on.
        newest_baseline: when the newest trial of the default batch size ended.
        per_model: what a model costs in money, as a sentence; empty if that is not known.
    """

    kind: str
    lead: str
    figure: str
    text: str
    rows: list[Row]
    facts: list[str]
    newest_baseline: Moment | None
    per_model: str


_NO_CLAIM = {
    v1.SAVINGS_VERDICT_NO_BASELINE: (
        "No comparison yet",
        "The default batch size {default} has not delivered a model {since}, so there is nothing to compare with.",
    ),
    v1.SAVINGS_VERDICT_NO_DELIVERY: (
        "No delivery yet",
        "No trial has reached the target {since}. The saving is computed once the default batch size {default} has.",
    ),
    v1.SAVINGS_VERDICT_NOT_MEASURED: (
        "Not measured",
        "Some deliveries{of_since} have no measurement of the cost, so nothing can be claimed.",
    ),
}


def formats(factors: v1.Factors) -> dict[_Quantity, Format]:
    """How each quantity is written, by its field in `Savings`."""
    return {
        "energy": energy,
        "time": span,
        "money": lambda value: money(value, factors.currency),
        "carbon": carbon,
        "cost": cost,
    }


_NAMES: dict[_Quantity, str] = {"energy": "energy", "time": "time", "money": "money", "carbon": "CO₂", "cost": "cost"}


def rows_of(savings: v1.Savings, factors: v1.Factors) -> list[Row]:
    """The quantities that are known; energy, and what follows from it, only where some was measured."""
    rows = []
    known = claims.measured_part(savings, factors)
    for field, text in formats(factors).items():
        if not known.HasField(field):
            continue
        saving: v1.Saving = getattr(known, field)
        if field == "energy" and saving.spent <= 0:
            continue
        claim, loss = saving.HasField("saved"), savings.verdict == v1.SAVINGS_VERDICT_LOSS
        rows.append(
            Row(
                _NAMES[field],
                text(saving.at_least) if saving.HasField("at_least") else "",
                text(saving.uncorrected if loss else saving.saved) if claim else "",
                text(saving.cautious_baseline) if saving.HasField("cautious_baseline") else "",
                text(saving.spent),
                claim and loss and saving.uncorrected < 0,
            )
        )
    return rows


def share(saving: v1.Saving, *, least: bool) -> float | None:
    """What was saved as a share of what the default would have spent; None without a claim."""
    field: Literal["at_least", "saved"] = "at_least" if least else "saved"
    return claims.saved_share(saving, getattr(saving, field)) if saving.HasField(field) else None


lost_share = claims.lost_share


def main_figure(savings: v1.Savings, factors: v1.Factors, *, least: bool) -> str:
    """The amount that stands for all: energy where some was measured, else time; empty without a claim."""
    field: _Quantity = "energy" if savings.energy.spent > 0 else "time"
    saving: v1.Saving = getattr(savings, field)
    name: Literal["at_least", "saved"] = "at_least" if least else "saved"
    return formats(factors)[field](getattr(saving, name)) if saving.HasField(name) else ""


class TotalSaved(NamedTuple):
    """What several jobs saved together.

    Attributes:
        kind: "gain", "loss" or "uncertain".
        figure: the amount.
        label: the words after it, such as "saved at least".
        estimate: the estimate of what was saved.
        jobs: the number of jobs with a claim.
        money: the same in money; empty if that is not known.
        carbon: the same in CO2; empty if that is not known.
    """

    kind: str
    figure: str
    label: str
    estimate: str
    jobs: int
    money: str
    carbon: str


def total_saved(totals: v1.Totals, factors: v1.Factors) -> TotalSaved | None:
    """What several jobs saved together; None without a claim. The verdict is that of the cost, as of a single job.

    The amount is that of the energy, or of the time where none was measured; where these do not show what the cost
    shows, it is the cost.
    """
    known = claims.measured_part(claims.total_savings(totals), factors)
    if not known.cost.HasField("saved"):
        return None
    kind = _KINDS.get(known.verdict, "uncertain")

    def amount(saving: v1.Saving) -> float:
        return -saving.uncorrected if kind == "loss" else saving.at_least

    field: _Quantity = "energy" if known.energy.spent > 0 else "time"
    saving: v1.Saving = getattr(known, field)
    if not saving.HasField("saved") or (kind != "uncertain" and amount(saving) <= 0):
        field, saving = "cost", known.cost
    text = formats(factors)[field]
    least = f"saved yet: at least {text(saving.at_least)}"
    label = {"gain": "saved at least", "loss": "more than the defaults would have taken"}.get(kind, least)
    figure = text(amount(saving)) if kind != "uncertain" else "not certain"
    of_money = formats(factors)["money"](amount(known.money)) if known.money.HasField("saved") else ""
    of_carbon = carbon(amount(known.carbon)) if known.carbon.HasField("saved") else ""
    return TotalSaved(kind, figure, label, text(saving.saved), totals.num_jobs_with_savings, of_money, of_carbon)


_KINDS = {v1.SAVINGS_VERDICT_SAVING: "gain", v1.SAVINGS_VERDICT_LOSS: "loss"}


def headline(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> Headline:
    """The answer for one job."""
    savings = statistics.savings
    rows = rows_of(savings, factors)
    newest = moment(savings.newest_baseline_time) if savings.HasField("newest_baseline_time") else None
    facts = _facts(job, savings)
    kind, lead, figure, text = _answer(job, savings)
    return Headline(kind, lead, figure, text, rows, facts, newest, _per_model(statistics, factors))


def mean_moneys(statistics: v1.JobStatistics, factors: v1.Factors) -> dict[int, str] | None:
    """What a delivery costs on average in money, by batch size; None without prices."""
    if not claims.has_prices(factors):
        return None
    return {
        size: money(value, factors.currency) for size, value in claims.mean_money(statistics.trials, factors).items()
    }


def _per_model(statistics: v1.JobStatistics, factors: v1.Factors) -> str:
    each = claims.money_per_model(statistics, factors)
    if each is None:
        return ""
    deliveries = plural(claims.all_deliveries(statistics), "delivery", "deliveries")
    total = money(statistics.spent.money, factors.currency)
    return f"A model costs {money(each, factors.currency)}: {total} for {deliveries}."


def _answer(job: v1.Job, savings: v1.Savings) -> tuple[str, str, str, str]:
    default, since = job.spec.default_batch_size, claims.since_trial(savings)
    of_cost = savings.cost
    if savings.verdict in _NO_CLAIM or not of_cost.HasField("saved"):
        lead, text = _NO_CLAIM.get(savings.verdict, ("No claim", "The data do not allow a claim."))
        return "none", lead, "", text.format(default=default, since=since.strip() or "yet", of_since=since)
    estimate, least = share(of_cost, least=False) or 0.0, share(of_cost, least=True)
    deliveries = f"{plural(savings.num_deliveries, 'delivery', 'deliveries')}{since}"
    compared = f"than launching batch size {default} for each of the {deliveries}"
    everything = f"Everything spent{since or ' so far'}, failed and exploring trials included, cost"
    if savings.verdict == v1.SAVINGS_VERDICT_SAVING and least is not None:
        text = f"{everything} at least {percent(least)} less {compared}."
        return "saving", "Saves at least", percent(least), f"{text} The estimate is {percent(estimate)}."
    if savings.verdict == v1.SAVINGS_VERDICT_LOSS:
        more = percent(lost_share(of_cost))
        return "loss", "Costs more by", more, f"{everything} {more} more {compared}, by the mean of its trials."
    known = f"the estimate is {percent(estimate)}, the lower bound {percent(least or 0.0)}"
    text = f"The data do not show yet whether everything spent cost less {compared}: {known}."
    return "uncertain", "Not certain yet", "", text


def _facts(job: v1.Job, savings: v1.Savings) -> list[str]:
    facts = []
    if since := savings.compared_from_trial:
        why = "; ".join(change.message for change in job.changes if change.since_trial == since)
        text = why or f"the job's behaviour changed at trial {since}"
        facts.append(f"Only trials from {since} on are compared: {text}")
    if savings.num_baseline_trials:
        trials = plural(savings.num_baseline_trials, "delivery", "deliveries")
        facts.append(f"Baseline: the mean of {trials} with batch size {job.spec.default_batch_size}")
    if savings.HasField("break_even_trial"):
        facts.append(f"Broke even at trial {savings.break_even_trial}")
    if job.monitor.kinds:
        mark = ", an estimate rather than a measurement" if job.monitor.estimated and not job.monitor.partly else ""
        facts.append(f"Energy by the monitor {monitor_text(job.monitor)}{mark}")
    elif job.num_trials:
        facts.append("No trial has named its energy monitor")
    if job.other_monitor.kinds:
        facts.append(f"Earlier trials used {monitor_text(job.other_monitor)}, whose costs cannot be compared")
    return facts


def factor_lines(factors: v1.Factors) -> list[str]:
    """The operator's factors, one line each; empty without any."""
    lines = [part.replace("CO2", "CO₂") for part in claims.factor_parts(factors)]
    if lines and factors.pue != 1:
        lines.append(f"power usage effectiveness {factors.pue:g}")
    return lines
