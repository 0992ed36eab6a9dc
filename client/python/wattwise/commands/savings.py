"""`wattwise jobs savings`: what jobs saved compared with their default batch size, what that rests on, and totals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Literal, NamedTuple

from wattwise import v1
from wattwise.commands.actions import AddAction, add_jobs, newer_calls, plain, print_json
from wattwise.commands.columns import (
    Column,
    Mark,
    add_table_options,
    arrange,
    numbers,
    print_table,
    print_text,
    table_options,
    unused_without_rows,
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
from wattwise.commands.main import complain
from wattwise.commands.tables import batch_size_in_use, job_state, mark_of, monitors, print_facts, seconds_since
from wattwise.errors import UnsupportedCallError
from wattwise.rpc.client import Client
from wattwise.streams import MISUSED

_PAGE = 1000
_NOTHING = 1e-9
"""A relative difference below this is a rounding error, as for the server."""
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
    if args.job_id is not None and (wrong := unused_without_rows(args)):
        complain(f"wattwise jobs savings: {wrong}")
        return MISUSED
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
        first, _ = arrange(JOB_SAVINGS_COLUMNS, jobs, options)
        print_json({"jobs": [plain(job) for job in first], "totals": plain(totals), "factors": plain(factors)})
    else:
        rows = print_table(
            JOB_SAVINGS_COLUMNS, jobs, options, empty="no jobs", marks=[SAVINGS_ESTIMATES], notes=_since_note
        )
        if totals.num_jobs and options.headers:
            _print_totals(totals, factors, sum(_loses(job) for job in rows))
    return 0


def _loses(job: v1.Job) -> bool:
    return job.summary.savings.verdict == v1.SAVINGS_VERDICT_LOSS


def headline(job: v1.Job, savings: v1.Savings) -> str:
    """What a job saved or lost in a sentence; never more than its data show."""
    cost, deliveries, default = savings.cost, savings.num_deliveries, job.spec.default_batch_size
    since, mark = since_trial(savings), mark_of(job)
    many = f"{number_of(deliveries, 'delivery', 'deliveries')}{since}"
    match savings.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            share = saved_share(cost, cost.at_least)
            return (
                f"saves: at least {joules(cost.at_least)}{mark} of cost in {many}, {share:.0%} of what the default "
                f"{default} would have taken"
            )
        case v1.SAVINGS_VERDICT_LOSS:
            share = lost_share(cost)
            return (
                f"loss: about {joules(-cost.uncorrected)}{mark} of cost in {many}, {share:.0%} MORE than the "
                f"default {default} would have taken"
            )
    reasons: Mapping[int, str] = {
        v1.SAVINGS_VERDICT_NO_BASELINE: f"the default batch size {default} has not reached the target{since}",
        v1.SAVINGS_VERDICT_NO_DELIVERY: f"no trial has reached the target{since}",
        v1.SAVINGS_VERDICT_NOT_MEASURED: f"some trials that reached the target{since} have no measurement of the cost",
        v1.SAVINGS_VERDICT_UNCERTAIN: f"{many} cannot show yet whether the job saves anything",
    }
    return f"no claim yet: {reasons.get(savings.verdict, 'this client is older than the server')}"


def since_trial(savings: v1.Savings) -> str:
    """From which trial a claim compares, to follow a noun; empty if it compares all trials."""
    return f" since trial {savings.compared_from_trial}" if savings.compared_from_trial else ""


def saved_share(saving: v1.Saving, saved: float) -> float:
    """What was saved, by the estimate or the lower bound, as a share of what the default would have taken by it."""
    would_have = saving.spent + saved
    return saved / would_have if would_have > 0 else 0.0


def lost_share(saving: v1.Saving) -> float:
    """What was lost as a share of what the default would have taken by its plain mean.

    The mean flatters the search: by `saved` the loss would be larger.
    """
    if not (saving.least_baseline and saving.baseline):
        return 0.0
    # Everything spent, as `saved_share` takes it, would include running trials, which `uncorrected` leaves out.
    deliveries = round((saving.spent + saving.at_least) / saving.least_baseline)
    return -saving.uncorrected / (deliveries * saving.baseline) if deliveries else 0.0


def total_savings(totals: v1.Totals) -> v1.Savings:
    """What several jobs saved together, as that of one job: with a verdict, and without baselines.

    They save if the sum of the lower bounds is above 0. They have lost if the sum by the plain means is below 0, which
    tends to overstate what was saved. A quantity that no job has a claim about has none here.
    """
    cost = _total(totals, "cost")
    if not totals.num_jobs_with_savings:
        verdict = v1.SAVINGS_VERDICT_NO_BASELINE
    elif cost.at_least > 0:
        verdict = v1.SAVINGS_VERDICT_SAVING
    else:
        lost = cost.uncorrected < -_NOTHING * cost.spent
        verdict = v1.SAVINGS_VERDICT_LOSS if lost else v1.SAVINGS_VERDICT_UNCERTAIN
    return v1.Savings(
        verdict=verdict,
        cost=cost,
        energy=_total(totals, "energy_joules"),
        time=_total(totals, "time_seconds"),
        money=_total(totals, "money") if totals.spent.HasField("money") else None,
        carbon=_total(totals, "carbon_grams") if totals.spent.HasField("carbon_grams") else None,
        num_deliveries=totals.num_deliveries,
    )


def _total(totals: v1.Totals, name: str) -> v1.Saving:
    """The sums of a quantity, which is a field of `Usage`."""
    spent, saved, at_least = (
        float(getattr(usage, name)) for usage in (totals.spent, totals.saved, totals.saved_at_least)
    )
    if saved == at_least == 0:
        # The sums of no claim. Those of claims are not both 0, since a bound is below its estimate.
        return v1.Saving(spent=spent)
    return v1.Saving(spent=spent, saved=saved, at_least=at_least, uncorrected=getattr(totals.uncorrected, name))


def measured_part(savings: v1.Savings, factors: v1.Factors) -> v1.Savings:
    """The savings without what follows from energy that was not measured: energy, CO2, and money if energy has a price.

    Where only some trials have energy, there is no claim about it, and none about its money.
    """
    found = v1.Savings()
    found.CopyFrom(savings)
    if savings.energy.spent <= 0 < savings.time.spent:
        found.ClearField("energy")
        found.ClearField("carbon")
        if factors.electricity_price_per_kwh:
            found.ClearField("money")
    elif found.HasField("money") and factors.electricity_price_per_kwh and not savings.energy.HasField("saved"):
        found.money.CopyFrom(v1.Saving(spent=savings.money.spent))
    return found


def print_savings(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> None:
    """What a job saved: the claim, its quantities, what they rest on, what to do, and what a model took."""
    savings = statistics.savings
    print_text(headline(job, savings), 2)
    print()  # noqa: T201 - the command's answer
    _print_amounts(savings, factors, mark_of(job))
    print()  # noqa: T201 - the command's answer
    print_facts([("job", job.spec.job_id), *_grounds(job, statistics, factors), ("factors", factors_text(factors))])
    print()  # noqa: T201 - the command's answer
    print_models(statistics.trials, factors, mark_of(job))


def number_of(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 run", "3 runs"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def factor_parts(factors: v1.Factors) -> list[str]:
    """The operator's prices and carbon intensity; empty without any."""
    parts = []
    if factors.HasField("electricity_price_per_kwh"):
        parts.append(f"{factors.electricity_price_per_kwh:g} {factors.currency} per kWh")
    if factors.HasField("gpu_hour_price"):
        parts.append(f"{factors.gpu_hour_price:g} {factors.currency} per GPU and hour")
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        parts.append(f"{factors.carbon_intensity_grams_per_kwh:g} g CO2 per kWh")
    return parts


def factors_text(factors: v1.Factors) -> str:
    """The operator's factors in a line, with their source."""
    parts = factor_parts(factors)
    if not parts:
        return "none: the server has no prices and no carbon intensity"
    return f"{', '.join(parts)}, PUE {factors.pue:g}; source: {factors.source or 'not said'}"


def has_prices(factors: v1.Factors) -> bool:
    """Whether the operator has set a price above 0: with free energy and hours, there is no money to show."""
    return bool(factors.electricity_price_per_kwh or factors.gpu_hour_price)


def mean_money(trials: Iterable[v1.TrialStatistics], factors: v1.Factors) -> dict[int, float]:
    """What a delivery costs on average in money, by batch size, over all types of trials.

    Batch sizes are left out that have no delivery, or no measurement of what has a price.
    """
    means = {size: _mean(list(these)) for size, these in groupby(trials, key=lambda each: each.batch_size)}
    return {size: mean.money for size, mean in means.items() if mean is not None and _has_money(mean, factors)}


def money_per_model(statistics: v1.JobStatistics, factors: v1.Factors) -> float | None:
    """All money spent, by the deliveries: failed, exploring and running trials are paid for, too. None: not known."""
    deliveries, spent = all_deliveries(statistics), statistics.spent
    return spent.money / deliveries if deliveries and _has_money(spent, factors) else None


def all_deliveries(statistics: v1.JobStatistics) -> int:
    """The trials that delivered a model, whether a claim compares them or not."""
    # An older server compares all of them.
    return statistics.num_deliveries or statistics.savings.num_deliveries


def _has_money(usage: v1.Usage, factors: v1.Factors) -> bool:
    """Whether the money of some training is known: whatever has a price was measured."""
    return usage.money > 0 and bool(usage.energy_joules > 0 or not factors.electricity_price_per_kwh)


class _Amount(NamedTuple):
    """A quantity with the text of an amount."""

    name: str
    text: Callable[[float], str]
    saving: v1.Saving | None

    def claim(self, name: Literal["at_least", "saved"]) -> str:
        if self.saving is None or not self.saving.HasField(name):
            return "no claim"
        return self.text(self.saving.at_least if name == "at_least" else self.saving.saved)

    def spent(self) -> str:
        return "not measured" if self.saving is None else self.text(self.saving.spent)


def _print_amounts(savings: v1.Savings, factors: v1.Factors, mark: str) -> None:
    columns: Sequence[Column[_Amount]] = (
        Column("", lambda row: row.name),
        Column("saved at least", lambda row: row.claim("at_least"), right=True, priority=1),
        Column("estimate", lambda row: row.claim("saved"), right=True, priority=2),
        Column("spent", _Amount.spent, right=True, priority=3),
    )
    notes = [_BOUND] if savings.cost.HasField("saved") else []
    if savings.compared_from_trial:
        notes.append(f"All amounts are those of the trials from {savings.compared_from_trial} on.")
    if mark:
        notes.append(f"Energies and costs are estimates{' in part' if 'partly' in mark else ''}, not measured.")
    print_table(columns, list(_amounts_of(savings, factors)), notes=lambda _rows, _names: notes)


def _amounts_of(savings: v1.Savings, factors: v1.Factors) -> Iterator[_Amount]:
    known = measured_part(savings, factors)
    yield _Amount("cost", joules, known.cost)
    yield _Amount("energy", energy, known.energy if known.HasField("energy") else None)
    yield _Amount("time", duration, known.time)
    if known.HasField("money"):
        yield _Amount("money", lambda value: money(value, factors.currency), known.money)
    if known.HasField("carbon"):
        yield _Amount("CO2", carbon, known.carbon)


def _grounds(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> Iterator[tuple[str, str]]:
    """What a claim rests on, and what to do about it."""
    savings, spec = statistics.savings, job.spec
    cost, deliveries = savings.cost, savings.num_deliveries
    running = sum(each.num_running for each in statistics.trials)
    yield "deliveries", f"{_deliveries(statistics)}{f', {running} still running' if running else ''}"
    yield from _money_facts(statistics, factors)
    for change in job.changes:
        yield "changed", change.message
    if since := savings.compared_from_trial:
        of_all = f"{joules(cost.spent)} of {joules(statistics.spent.cost)}"
        yield (
            "since",
            f"trial {since}: {deliveries} of {all_deliveries(statistics)} deliveries are compared, for {of_all}",
        )
    runs = number_of(savings.num_baseline_trials, "run")
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
        # What running trials spent is no loss before they end.
        ended = f"{joules(deliveries * cost.baseline - cost.uncorrected)}{' of ended trials' if running else ''}"
        yield "loss", f"{ended} - {deliveries} x {joules(cost.baseline)}, the default's mean: {lost}"
    if savings.HasField("break_even_trial"):
        yield "break-even", f"has saved since trial {savings.break_even_trial}, also by the lower bound"
    elif cost.HasField("saved"):
        yield "break-even", "not reached by the lower bound"
    if statistics.num_excluded:
        yield "left out", f"{number_of(statistics.num_excluded, 'trial')} that a person has excluded"
    if job.monitor.kinds:
        mixed = ": these costs cannot be compared" if job.other_monitor.kinds else ""
        yield "monitor", f"{monitors(job)}{mark_of(job)}{mixed}"
    for line in savings.advice:
        yield "advice", line


def _money_facts(statistics: v1.JobStatistics, factors: v1.Factors) -> Iterator[tuple[str, str]]:
    each = money_per_model(statistics, factors)
    if each is not None:
        total = money(statistics.spent.money, factors.currency)
        deliveries = number_of(all_deliveries(statistics), "delivery", "deliveries")
        text = f"{money(each, factors.currency)}: {total} for {deliveries}, failed and running trials included"
        yield "paid per model", text


def _deliveries(statistics: v1.JobStatistics) -> str:
    deliveries, groups = all_deliveries(statistics), statistics.trials
    # The statistics do not say how many of the imported trials are older than the job, and thus no deliveries of it.
    if any(each.type == v1.TRIAL_TYPE_IMPORTED for each in groups):
        return f"{number_of(deliveries, 'trial')} reached the target"
    return f"{deliveries} of {number_of(sum(each.num_trials for each in groups), 'trial')} reached the target"


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
    rows = [_models_of(list(these)) for _, these in groupby(groups, key=lambda each: each.batch_size)]
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
        moneys = mean_money(groups, factors)
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


def _models_of(groups: Sequence[v1.TrialStatistics]) -> _Models:
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
    savings = total_savings(totals)
    print_text(_total_headline(totals, savings), 2)
    print()  # noqa: T201 - the command's answer
    _print_amounts(savings, factors, "")
    print()  # noqa: T201 - the command's answer
    jobs = number_of(totals.num_jobs, "job")
    attention = totals.num_jobs_needing_attention
    facts = [
        ("jobs", f"{totals.num_jobs}, of which {totals.num_jobs_with_savings} can be compared with their default"),
        ("losses", f"{number_of(losses, 'job')} of those above" if losses else "none of those above"),
        (
            "trials",
            f"{totals.num_running_trials} running, {number_of(totals.num_deliveries, 'delivery', 'deliveries')}",
        ),
        ("attention", f"{attention} of {jobs} should be looked at"),
        ("factors", factors_text(factors)),
    ]
    print_facts(facts)


def _total_headline(totals: v1.Totals, savings: v1.Savings) -> str:
    jobs, cost = number_of(totals.num_jobs_with_savings, "job"), savings.cost
    match savings.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            return f"total: saves at least {joules(cost.at_least)} of cost in {jobs}, losses included"
        case v1.SAVINGS_VERDICT_LOSS:
            return (
                f"total: costs about {joules(-cost.uncorrected)} MORE in {jobs}, savings included, than the default "
                "batch sizes would have"
            )
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            return "total: no claim yet: no job can be compared with its default batch size"
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
    numbers("since trial", lambda job: job.summary.savings.compared_from_trial or None, priority=11, appended=True),
)
"""Columns of a list of jobs with their summaries; costs in joules. `since trial`: the first trial that a claim
compares, if it does not compare all of them."""


def _since_note(rows: Sequence[v1.Job], names: Sequence[str]) -> Iterator[str]:
    """From which trials claims compare, unless their column is shown."""
    found = {job.spec.job_id: job.summary.savings for job in rows if job.summary.savings.compared_from_trial}
    if found and "since trial" not in names:
        of_jobs = ", ".join(f"{job_id}{since_trial(savings)}" for job_id, savings in found.items())
        yield f"Compared only since a change of behaviour: {of_jobs}."


SAVINGS_ESTIMATES = Mark[v1.Job](
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
            found = mean_money(statistics.trials, factors)
            moneys = {size: money(value, factors.currency) for size, value in found.items()}
        choices = client.preview_next(job_id).choices
        if choices:
            shares = ", ".join(f"{choice.batch_size} ({choice.probability:.0%})" for choice in choices)
            lines += [("likely next", shares), (f"why {choices[0].batch_size}", choices[0].reason)]
    return Figures(lines, moneys)
