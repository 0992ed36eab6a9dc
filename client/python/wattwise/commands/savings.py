"""`wattwise jobs savings`: what jobs saved compared with their default batch size, what that rests on, and totals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from wattwise import v1
from wattwise.commands.actions import AddAction, add_jobs, newer_calls, plain, print_json
from wattwise.commands.columns import (
    Column,
    Mark,
    add_table_options,
    arranged,
    numbers,
    print_table,
    print_text,
    table_options,
)
from wattwise.commands.humanize import (
    ESTIMATE_NOTE,
    age,
    carbon,
    duration,
    energy,
    exact_moment,
    joules,
    moment,
    money,
)
from wattwise.commands.tables import batch_size_in_use, job_state, mark_of, monitors, print_facts, seconds_since
from wattwise.errors import UnsupportedCallError
from wattwise.rpc.client import Client

_PAGE = 1000
_BOUND = (
    "Saved: the deliveries times what one takes with the default batch size, minus everything spent, failed and "
    "running trials included. At least: the lower 95% bound of that. The estimate does not overstate on average."
)


def add_savings(add: AddAction) -> None:
    """Declares the action."""
    parser = add("savings", "show what a job saved and what that rests on, or what all jobs saved", _savings)
    add_jobs(parser)
    add_table_options(parser, JOB_SAVINGS_COLUMNS)


def _savings(client: Client, args: argparse.Namespace) -> int:
    with newer_calls(client, "savings"):
        factors = client.get_server_info().factors
        return _all_jobs(client, args, factors) if args.job_id is None else _one_job(client, args, factors)


def _one_job(client: Client, args: argparse.Namespace, factors: v1.Factors) -> int:
    job, statistics = client.get_job(args.job_id), client.get_job_statistics(args.job_id)
    if args.json:
        print_json({"job_id": args.job_id, "statistics": plain(statistics), "factors": plain(factors)})
    else:
        print_savings(job, statistics, factors)
    return 0


def _all_jobs(client: Client, args: argparse.Namespace, factors: v1.Factors) -> int:
    options = table_options(args)
    totals = client.get_totals(job_id_prefix=args.prefix)
    few = options.limit is not None and options.sort is None and not options.reverse
    jobs = client.list_jobs(
        job_id_prefix=args.prefix,
        order=v1.JOB_ORDER_ATTENTION,
        with_summaries=True,
        page_size=min((options.limit or 0) + 1, _PAGE) if few else _PAGE,
    )
    if args.json:
        shown, _ = arranged(JOB_SAVINGS_COLUMNS, jobs, options)
        print_json({"jobs": [plain(job) for job in shown], "totals": plain(totals), "factors": plain(factors)})
    else:
        losses = 0

        def counting() -> Iterator[v1.Job]:
            nonlocal losses
            for job in jobs:
                losses += job.summary.savings.verdict == v1.SAVINGS_VERDICT_LOSS
                yield job

        print_table(JOB_SAVINGS_COLUMNS, counting(), options, empty="no jobs", marks=[_ESTIMATES])
        if totals.num_jobs and options.headers:
            _print_totals(totals, factors, losses)
    return 0


def headline(job: v1.Job, savings: v1.Savings) -> str:
    """What a job saved or lost in a sentence; never more than its data show."""
    cost, deliveries, default = savings.cost, savings.num_deliveries, job.spec.default_batch_size
    many, mark = counted(deliveries, "delivery", "deliveries"), mark_of(job)
    match savings.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            # 1 - spent / what the default would have cost, which is lowest at its lower bound.
            share = cost.at_least / (deliveries * cost.least_baseline)
            return (
                f"saves: at least {joules(cost.at_least)}{mark} of cost in {many}, {share:.0%} of what the default "
                f"{default} would have taken"
            )
        case v1.SAVINGS_VERDICT_LOSS:
            # With the mean of the default, which flatters the search: `saved` would call the loss larger.
            share = -cost.uncorrected / (deliveries * cost.baseline) if cost.baseline else 0.0
            return (
                f"loss: about {joules(-cost.uncorrected)}{mark} of cost in {many}, {share:.0%} MORE than the "
                f"default {default} would have taken"
            )
    reasons: Mapping[int, str] = {
        v1.SAVINGS_VERDICT_NO_BASELINE: f"the default batch size {default} has not reached the target",
        v1.SAVINGS_VERDICT_NO_DELIVERY: "no trial has reached the target",
        v1.SAVINGS_VERDICT_NOT_MEASURED: "some trials that reached the target have no measurement of the cost",
        v1.SAVINGS_VERDICT_UNCERTAIN: f"{many} cannot show yet whether the job saves anything",
    }
    return f"no claim yet: {reasons.get(savings.verdict, 'this client is older than the server')}"


def print_savings(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> None:
    """What a job saved: the claim, its quantities, what they rest on, what to do, and what a model took."""
    savings = statistics.savings
    print_text(headline(job, savings), 2)
    print()  # noqa: T201 - the command's answer
    _print_amounts(list(_amounts_of(savings, factors)), mark_of(job))
    print()  # noqa: T201 - the command's answer
    print_facts([("job", job.spec.job_id), *_grounds(job, statistics, factors), ("factors", factors_text(factors))])
    print()  # noqa: T201 - the command's answer
    print_models(statistics.trials, factors, mark_of(job))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 run", "3 runs"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def factors_text(factors: v1.Factors) -> str:
    """The operator's factors in a line, with their source."""
    parts = []
    if factors.HasField("electricity_price_per_kwh"):
        parts.append(f"{factors.electricity_price_per_kwh:g} {factors.currency} per kWh")
    if factors.HasField("gpu_hour_price"):
        parts.append(f"{factors.gpu_hour_price:g} {factors.currency} per GPU and hour")
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        parts.append(f"{factors.carbon_intensity_grams_per_kwh:g} g CO2 per kWh")
    if not parts:
        return "none: the server has no prices and no carbon intensity"
    return f"{', '.join(parts)}, PUE {factors.pue:g}; source: {factors.source or 'not said'}"


def has_prices(factors: v1.Factors) -> bool:
    """Whether the operator has set a price above 0: with free energy and hours, there is no money to show."""
    return bool(factors.electricity_price_per_kwh or factors.gpu_hour_price)


def mean_money(trials: Iterable[v1.TrialStatistics]) -> dict[int, float]:
    """What a delivery costs on average in money, by batch size, over all types of trials.

    Batch sizes without a delivery are left out, and those whose money is 0: nothing with a price was measured.
    """
    means = {size: _mean(list(these)) for size, these in groupby(trials, key=lambda each: each.batch_size)}
    return {size: mean.money for size, mean in means.items() if mean is not None and mean.money}


def money_per_model(statistics: v1.JobStatistics) -> float | None:
    """All money spent, by the deliveries: failed, exploring and running trials are paid for, too. None: not known."""
    deliveries, spent = statistics.savings.num_deliveries, statistics.spent.money
    return spent / deliveries if deliveries and spent else None


class _Amount(NamedTuple):
    """A quantity: what was saved of it at least, by estimate, and what was spent, with the text of an amount."""

    name: str
    text: Callable[[float], str]
    at_least: float | None
    saved: float | None
    spent: float


def _print_amounts(amounts: Sequence[_Amount], mark: str) -> None:
    def column(name: str, value: Callable[[_Amount], float | None], priority: int) -> Column[_Amount]:
        def text(row: _Amount) -> str:
            found = value(row)
            return "no claim" if found is None else row.text(found)

        return Column(name, text, right=True, priority=priority)

    columns: Sequence[Column[_Amount]] = (
        Column("", lambda row: row.name),
        column("saved at least", lambda row: row.at_least, 1),
        column("estimate", lambda row: row.saved, 2),
        column("spent", lambda row: row.spent, 3),
    )
    notes = [_BOUND] if any(row.saved is not None for row in amounts) else []
    if mark:
        notes.append(f"Energies and costs are estimates{' in part' if 'partly' in mark else ''}, not measured.")
    print_table(columns, amounts, notes=lambda _rows, _names: notes)


def _amounts_of(savings: v1.Savings, factors: v1.Factors) -> Iterator[_Amount]:
    for name, text, saving in (
        ("cost", joules, savings.cost),
        ("energy", energy, savings.energy),
        ("time", duration, savings.time),
        ("money", lambda value: money(value, factors.currency), savings.money if savings.HasField("money") else None),
        ("CO2", carbon, savings.carbon if savings.HasField("carbon") else None),
    ):
        if saving is not None:
            known = saving.HasField("saved")
            yield _Amount(name, text, saving.at_least if known else None, saving.saved if known else None, saving.spent)


def _grounds(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> Iterator[tuple[str, str]]:
    """What a claim rests on, and what to do about it."""
    savings, spec = statistics.savings, job.spec
    cost, deliveries = savings.cost, savings.num_deliveries
    yield "deliveries", _deliveries(statistics)
    yield from _money_facts(statistics, factors)
    runs = counted(savings.num_baseline_trials, "run")
    newest = ""
    if savings.HasField("newest_baseline_time"):
        when = savings.newest_baseline_time
        newest = f", the newest {age(seconds_since(when))} old ({moment(when)})"
    yield "compared with", f"{runs} of the default batch size {spec.default_batch_size} that reached the target{newest}"
    if cost.HasField("saved"):
        mark = mark_of(job)
        least = joules(cost.least_baseline)
        usual = f"with the default one takes {joules(cost.baseline)}{mark} on average, and at least {least}"
        yield "at least", f"{deliveries} x {least} - {joules(cost.spent)} of cost; {usual}"
        yield "estimate", f"{deliveries} x {joules(cost.cautious_baseline)} - {joules(cost.spent)}"
    if savings.verdict == v1.SAVINGS_VERDICT_LOSS:
        lost = joules(-cost.uncorrected)
        yield "loss", f"{joules(cost.spent)} - {deliveries} x {joules(cost.baseline)}, the default's mean: {lost}"
    if savings.HasField("break_even_trial"):
        yield "break-even", f"has saved since trial {savings.break_even_trial}, also by the lower bound"
    elif cost.HasField("saved"):
        yield "break-even", "not reached by the lower bound"
    if statistics.num_excluded:
        yield "left out", f"{counted(statistics.num_excluded, 'trial')} that a person has excluded"
    if job.monitor.kinds:
        mixed = ": these costs cannot be compared" if job.other_monitor.kinds else ""
        yield "monitor", f"{monitors(job)}{mark_of(job)}{mixed}"
    for line in savings.advice:
        yield "advice", line


def _money_facts(statistics: v1.JobStatistics, factors: v1.Factors) -> Iterator[tuple[str, str]]:
    each = money_per_model(statistics)
    if each is not None:
        total = money(statistics.spent.money, factors.currency)
        deliveries = counted(statistics.savings.num_deliveries, "delivery", "deliveries")
        text = f"{money(each, factors.currency)}: {total} for {deliveries}, failed and running trials included"
        yield "paid per model", text


def _deliveries(statistics: v1.JobStatistics) -> str:
    deliveries, groups = statistics.savings.num_deliveries, statistics.trials
    # The statistics do not say how many of the imported trials are older than the job, and thus no deliveries of it.
    if any(each.type == v1.TRIAL_TYPE_IMPORTED for each in groups):
        return f"{counted(deliveries, 'trial')} reached the target"
    return f"{deliveries} of {counted(sum(each.num_trials for each in groups), 'trial')} reached the target"


class _Models(NamedTuple):
    """The trials of a batch size, of all types, and the mean of what a delivery took; None without one."""

    batch_size: int
    num_trials: int
    num_deliveries: int
    num_missed: int
    num_failed: int
    mean: v1.Usage | None


def print_models(trials: Iterable[v1.TrialStatistics], factors: v1.Factors, mark: str) -> None:
    """One row per batch size: how often it delivered a model, and what one took on average."""
    groups = list(trials)
    rows = [_merged(list(these)) for _, these in groupby(groups, key=lambda each: each.batch_size)]
    columns: list[Column[_Models]] = [
        numbers("batch size", lambda row: row.batch_size),
        numbers("trials", lambda row: row.num_trials, priority=6),
        numbers("deliveries", lambda row: row.num_deliveries, priority=3),
        numbers("missed", lambda row: row.num_missed, priority=7),
        numbers("failed", lambda row: row.num_failed, priority=8),
        numbers(f"mean cost{mark}", lambda row: row.mean and row.mean.cost, joules, priority=1),
        numbers(f"mean energy{mark}", lambda row: row.mean and row.mean.energy_joules, joules, priority=4),
        numbers("mean time", lambda row: row.mean and row.mean.time_seconds, duration, priority=2),
    ]
    if has_prices(factors):
        moneys = mean_money(groups)
        columns.append(
            numbers(
                "mean money",
                lambda row: moneys.get(row.batch_size),
                lambda value: money(value, factors.currency),
                priority=3,
            )
        )
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        columns.append(numbers("mean CO2", lambda row: row.mean and row.mean.carbon_grams, carbon, priority=5))
    print_table(columns, rows, notes=lambda _rows, _names: ["Means are those of a delivery: of a model that is good."])


def _merged(groups: Sequence[v1.TrialStatistics]) -> _Models:
    return _Models(
        groups[0].batch_size,
        sum(each.num_trials for each in groups),
        sum(each.num_deliveries for each in groups),
        sum(each.num_missed for each in groups),
        sum(each.num_failed for each in groups),
        _mean(groups),
    )


def _mean(groups: Sequence[v1.TrialStatistics]) -> v1.Usage | None:
    """The mean of what a delivery took; None without one."""
    delivered = [each for each in groups if each.num_deliveries]
    deliveries = sum(each.num_deliveries for each in delivered)

    def mean(name: str) -> float:
        return sum(each.num_deliveries * float(getattr(each.mean_delivery, name)) for each in delivered) / deliveries

    return v1.Usage(**{name: mean(name) for name in v1.Usage.DESCRIPTOR.fields_by_name}) if deliveries else None


def _print_totals(totals: v1.Totals, factors: v1.Factors, losses: int) -> None:
    """The totals of all jobs, also of those that are not shown, and how many of the shown ones lost."""
    print()  # noqa: T201 - the command's answer
    print_text(_total_headline(totals), 2)
    known = bool(totals.num_jobs_with_savings)
    at_least, saved, spent = totals.saved_at_least, totals.saved, totals.spent
    amounts = [
        _Amount("cost", joules, at_least.cost, saved.cost, spent.cost),
        _Amount("energy", energy, at_least.energy_joules, saved.energy_joules, spent.energy_joules),
        _Amount("time", duration, at_least.time_seconds, saved.time_seconds, spent.time_seconds),
    ]
    if spent.HasField("money"):
        amounts.append(
            _Amount("money", lambda value: money(value, factors.currency), at_least.money, saved.money, spent.money)
        )
    if spent.HasField("carbon_grams"):
        amounts.append(_Amount("CO2", carbon, at_least.carbon_grams, saved.carbon_grams, spent.carbon_grams))
    print()  # noqa: T201 - the command's answer
    _print_amounts([each if known else each._replace(at_least=None, saved=None) for each in amounts], "")
    print()  # noqa: T201 - the command's answer
    jobs = counted(totals.num_jobs, "job")
    attention = totals.num_jobs_needing_attention
    facts = [
        ("jobs", f"{totals.num_jobs}, of which {totals.num_jobs_with_savings} can be compared with their default"),
        ("losses", f"{counted(losses, 'job')} of those above" if losses else "none of those above"),
        ("trials", f"{totals.num_running_trials} running, {counted(totals.num_deliveries, 'delivery', 'deliveries')}"),
        ("attention", f"{attention} of {jobs} should be looked at"),
        ("factors", factors_text(factors)),
    ]
    print_facts(facts)


def _total_headline(totals: v1.Totals) -> str:
    if not totals.num_jobs_with_savings:
        return "total: no claim yet: no job can be compared with its default batch size"
    jobs, at_least = counted(totals.num_jobs_with_savings, "job"), totals.saved_at_least.cost
    if at_least > 0:
        return f"total: saves at least {joules(at_least)} of cost in {jobs}, losses included"
    return f"total: no claim yet: {jobs} together do not show whether they save anything"


_VERDICTS = {
    v1.SAVINGS_VERDICT_SAVING: "saves",
    v1.SAVINGS_VERDICT_LOSS: "LOSS",
}


def _claim(job: v1.Job, name: str) -> float | None:
    cost = job.summary.savings.cost
    return float(getattr(cost, name)) if cost.HasField("saved") else None


def _last_activity(job: v1.Job, text: Callable[[float], str]) -> str:
    summary = job.summary
    return text(seconds_since(summary.last_activity_time)) if summary.HasField("last_activity_time") else ""


JOB_SAVINGS_COLUMNS: Sequence[Column[v1.Job]] = (
    Column("job", lambda job: job.spec.job_id),
    Column("savings", lambda job: _VERDICTS.get(job.summary.savings.verdict, "no claim"), priority=1),
    numbers("saved at least", lambda job: _claim(job, "at_least"), joules, priority=1),
    numbers("estimate", lambda job: _claim(job, "saved"), joules, priority=3),
    numbers("spent", lambda job: job.summary.spent.cost, joules, priority=5),
    numbers("deliveries", lambda job: job.summary.num_deliveries, priority=2),
    numbers("default runs", lambda job: job.summary.savings.num_baseline_trials, priority=6),
    Column("state", job_state, priority=8),
    numbers("batch size", batch_size_in_use, priority=7),
    numbers("running", lambda job: job.summary.num_running_trials, priority=9),
    Column(
        "last activity",
        lambda job: _last_activity(job, age),
        exact=lambda job: exact_moment(job.summary.last_activity_time) if _last_activity(job, age) else "",
        right=True,
        order=lambda job: job.summary.last_activity_time.ToNanoseconds() or None,
        priority=4,
    ),
    Column("attention", lambda job: "yes" if job.summary.needs_attention else "", priority=10),
)
"""Of a list of jobs with their summaries; costs in joules."""

_ESTIMATES = Mark[v1.Job](
    ("saved at least", "estimate", "spent"),
    mark_of,
    "~",
    f"costs that are {ESTIMATE_NOTE}",
    {
        " (estimate)": "Costs are estimates, not measured.",
        " (partly estimate)": "Costs are estimates in part.",
    },
)


class Figures(NamedTuple):
    """What the server computes for `jobs show`.

    Attributes:
        lines: what the job saved, what a model costs in money, and what its next launch gets.
        money: the mean money of a delivery by batch size; None without prices.
    """

    lines: Sequence[tuple[str, str]]
    money: Mapping[int, str] | None


def figures_of(client: Client, job: v1.Job) -> Figures:
    """The figures of a job; an older server has none, or fewer."""
    job_id = job.spec.job_id
    lines: list[tuple[str, str]] = []
    moneys: Mapping[int, str] | None = None
    with suppress(UnsupportedCallError):
        statistics = client.get_job_statistics(job_id)
        lines.append(("savings", headline(job, statistics.savings)))
        factors = client.get_server_info().factors
        lines.extend(_money_facts(statistics, factors))
        if has_prices(factors):
            found = mean_money(statistics.trials)
            moneys = {size: money(value, factors.currency) for size, value in found.items()}
        choices = client.preview_next(job_id).choices
        if choices:
            shares = ", ".join(f"{choice.batch_size} ({choice.probability:.0%})" for choice in choices)
            lines += [("likely next", shares), (f"why {choices[0].batch_size}", choices[0].reason)]
    return Figures(lines, moneys)
