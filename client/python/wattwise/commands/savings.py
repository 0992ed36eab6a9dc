"""`wattwise jobs savings`: what jobs saved compared with their default batch size, what that rests on, and totals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from wattwise import v1
from wattwise.commands.actions import add_jobs, plain, print_json
from wattwise.commands.main import complain
from wattwise.commands.rows import add_table_options, arrange, print_table, table_options, unused_without_rows
from wattwise.commands.tables import JOB_ESTIMATES, Figures, listed_jobs, main_amounts
from wattwise.presentation.quantities import (
    age,
    carbon,
    duration,
    energy,
    exact_moment,
    joules,
    marked,
    optional,
    seconds_since,
)
from wattwise.presentation.savings import NO_FACTORS, Amount, amounts_of, factors_text, savings_facts, spending
from wattwise.presentation.sentences import (
    answer,
    has_prices,
    main_quantity,
    money_text,
    number_of,
    since_trial,
    total_answer,
    why_no_figure,
)
from wattwise.presentation.states import batch_size_in_use, listed_state, mark_of
from wattwise.presentation.terminal import Column, numbers, print_facts, print_text
from wattwise.rpc.client import Client
from wattwise.streams import MISUSED

_SAVED = (
    "Saved: the deliveries times what one takes with the default batch size, minus everything spent, failed and "
    "running trials included. At least: the lower {:.0%} bound of that. The estimate does not overstate on average."
)
_LOST = (
    "Lost: what ended trials took, failed ones included, minus the deliveries times what a model takes with the "
    "default batch size."
)


def add_savings(parser: argparse.ArgumentParser) -> None:
    """Declares the action."""
    parser.set_defaults(handler=_savings)
    add_jobs(parser)
    add_table_options(parser, JOB_SAVINGS_COLUMNS)


def _savings(client: Client, args: argparse.Namespace) -> int:
    if args.job_id is not None and (wrong := unused_without_rows(args)):
        complain(f"wattwise jobs savings: {wrong}")
        return MISUSED
    factors = client.get_server_info().factors
    return _all_jobs(client, args, factors) if args.job_id is None else _one_job(client, args, factors)


def _one_job(client: Client, args: argparse.Namespace, factors: v1.Factors) -> int:
    known, statistics = client.get_job(args.job_id), client.get_job_statistics(args.job_id)
    if args.json:
        print_json({"job_id": args.job_id, "statistics": plain(statistics), "factors": plain(factors)})
    else:
        print_savings(known.job, known.details, statistics, factors)
    return 0


def _all_jobs(client: Client, args: argparse.Namespace, factors: v1.Factors) -> int:
    options, columns = table_options(args), job_savings_columns(factors)
    totals = client.get_totals(job_id_prefix=args.prefix)
    jobs = listed_jobs(client, args.prefix, options)
    if args.json:
        first, _ = arrange(columns, jobs, options)
        print_json({"jobs": [plain(job) for job in first], "totals": plain(totals), "factors": plain(factors)})
    else:
        marks = [JOB_ESTIMATES]
        rows = print_table(columns, jobs, options, empty="no jobs", marks=marks, notes=_since_note)
        if totals.num_jobs and options.headers and not options.tsv:
            _print_totals(totals, factors, sum(_loses(row, factors) for row in rows))
    return 0


def _loses(row: v1.JobListing, factors: v1.Factors) -> bool:
    return _main_estimate(row, factors).verdict == v1.SAVINGS_VERDICT_LOSS


def _main_estimate(row: v1.JobListing, factors: v1.Factors) -> v1.SavingsEstimate:
    return main_quantity(row.summary.savings, factors, mark="").saving


def print_savings(job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics, factors: v1.Factors) -> None:
    """Prints what a job saved: the answer, its quantities, what they rest on, what to do, and what a delivery took."""
    savings = statistics.savings
    print_text(answer(job, details, statistics, factors).brief, 2)
    print()  # noqa: T201 - the command's answer
    _print_amounts(savings, factors, mark_of(job))
    print()  # noqa: T201 - the command's answer
    advice = [("advice", line) for line in (details.advice, *statistics.advice)]
    print_facts([("job", job.spec.job_id), *advice, *savings_facts(job, details, statistics, factors)])
    print()  # noqa: T201 - the command's answer
    print_models(statistics, factors, mark_of(job))


def _print_amounts(savings: v1.Savings, factors: v1.Factors, mark: str) -> None:
    rows = amounts_of(savings, factors, mark)
    columns: list[Column[Amount]] = [
        Column("", lambda row: row.name),
        Column("saved at least", lambda row: row.at_least, right=True, priority=1),
        Column("estimate", lambda row: row.estimate, right=True, priority=4),
        Column("spent", lambda row: row.spent, right=True, priority=5),
    ]
    if savings.HasField("batch_size_in_use"):
        columns[1:1] = [
            Column("a model now", lambda row: row.now, right=True, priority=2),
            Column("with the default", lambda row: row.default, right=True, priority=3),
        ]
    estimates = (savings.cost, savings.energy, savings.time, savings.money, savings.carbon)
    confidence = [each.confidence for each in estimates if each.verdict == v1.SAVINGS_VERDICT_SAVING]
    notes = [_SAVED.format(confidence[0])] if confidence else []
    notes += [_LOST] if any(row.loses for row in rows) else []
    if savings.compared_from_trial:
        notes.append(f"All amounts are those of the trials from {savings.compared_from_trial} on.")
    print_table(columns, rows, notes=lambda _rows, _names: notes)


def print_models(statistics: v1.JobStatistics, factors: v1.Factors, mark: str) -> None:
    """Prints one row per batch size: how often it delivered a model, and what one took on average."""

    def mean(
        name: Literal["cost", "energy_joules", "time_seconds", "money", "carbon_grams"],
    ) -> Callable[[v1.TrialStatistics], float | None]:
        return lambda row: getattr(row.mean_delivery, name) if row.mean_delivery.HasField(name) else None

    columns: list[Column[v1.TrialStatistics]] = [
        numbers("batch size", lambda row: row.batch_size),
        numbers("trials", lambda row: row.num_trials, priority=6),
        numbers("deliveries", lambda row: row.num_deliveries, priority=3),
        numbers("missed", lambda row: row.num_missed, priority=7),
        numbers("undecided", lambda row: row.num_undecided, priority=8),
        numbers("mean cost", mean("cost"), marked(joules, mark), priority=1),
        numbers("mean energy", mean("energy_joules"), marked(energy, mark), priority=4),
        numbers("mean time", mean("time_seconds"), duration, priority=2),
    ]
    if has_prices(factors):
        columns.append(numbers("mean money", mean("money"), money_text(factors, mark), priority=3))
    if factors.HasField("carbon_intensity_grams_per_kwh"):
        columns.append(numbers("mean CO2", mean("carbon_grams"), marked(carbon, mark), priority=5))
    every = ""
    if since := statistics.savings.compared_from_trial:
        every = f" All trials are counted, also those from before trial {since}."
    note = f"Means per delivery: trials that missed the target or ended undecided are left out.{every}"
    print_table(columns, statistics.trials, notes=lambda _rows, _names: [note])


def _print_totals(totals: v1.Totals, factors: v1.Factors, losses: int) -> None:
    """Prints the totals of all jobs, also of those that are not shown, and how many of the shown ones lost."""
    print()  # noqa: T201 - the command's answer
    total = total_answer(totals, factors)
    print_text(f"total: {' '.join(filter(None, (total.figure, total.text)))}", 2)
    print()  # noqa: T201 - the command's answer
    # The totals do not say which of them are estimates.
    _print_amounts(totals.savings, factors, mark="")
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
        ("factors", factors_text(factors) or NO_FACTORS),
    ]
    print_facts(facts)


_VERDICTS = {v1.SAVINGS_VERDICT_SAVING: "saves", v1.SAVINGS_VERDICT_LOSS: "LOSS"}


def _verdict(row: v1.JobListing, factors: v1.Factors) -> str:
    saving = _main_estimate(row, factors)
    return _VERDICTS.get(saving.verdict) or why_no_figure(saving)


def _last_activity(row: v1.JobListing, text: Callable[[float], str]) -> str:
    summary = row.summary
    return text(seconds_since(summary.last_activity_time)) if summary.HasField("last_activity_time") else ""


def job_savings_columns(factors: v1.Factors) -> Sequence[Column[v1.JobListing]]:
    """Returns columns of a list of jobs with their summaries: amounts of money with prices, else of cost, in joules.

    `since trial` is the first trial that a claim compares, if it does not compare all of them.
    """
    amount = partial(main_amounts, factors=factors)

    def if_saved(name: str) -> Callable[[v1.SavingsEstimate], float | None]:
        # Below 0 it proves nothing.
        return lambda saving: getattr(saving, name) if saving.verdict == v1.SAVINGS_VERDICT_SAVING else None

    def lost(saving: v1.SavingsEstimate) -> float | None:
        return saving.lost if saving.verdict == v1.SAVINGS_VERDICT_LOSS else None

    return (
        Column("job", lambda row: row.job.spec.job_id),
        Column("savings", lambda row: _verdict(row, factors), priority=1),
        amount("a model now", lambda saving: optional(saving, "in_use"), priority=2),
        amount("with the default", lambda saving: optional(saving, "with_default"), priority=3),
        amount("saved at least", if_saved("at_least"), priority=1),
        amount("lost", lost, priority=2),
        amount("estimate", if_saved("saved"), priority=4),
        amount("spent", lambda saving: saving.spent if saving.verdict else None, priority=5),
        numbers("deliveries", lambda row: row.summary.savings.num_deliveries, priority=2),
        numbers("default runs", lambda row: row.summary.savings.num_baseline_trials, priority=6),
        Column("state", listed_state, priority=8),
        numbers("used now", lambda row: batch_size_in_use(row.job), priority=7),
        numbers("running", lambda row: row.summary.num_running_trials, priority=9),
        Column(
            "last activity",
            lambda row: _last_activity(row, age),
            exact=lambda row: exact_moment(row.summary.last_activity_time) if _last_activity(row, age) else "",
            right=True,
            order=lambda row: row.summary.last_activity_time.ToNanoseconds() or None,
            priority=4,
        ),
        Column("attention", lambda row: "yes" if row.summary.needs_attention else "", priority=10),
        numbers("since trial", lambda row: row.summary.savings.compared_from_trial or None, priority=11),
    )


JOB_SAVINGS_COLUMNS = job_savings_columns(v1.Factors())
"""Those without prices."""


def _since_note(rows: Sequence[v1.JobListing], names: Sequence[str]) -> Iterator[str]:
    """Yields the trials from which claims compare, unless their column is shown."""
    found = {row.job.spec.job_id: row.summary.savings for row in rows if row.summary.savings.compared_from_trial}
    if found and "since trial" not in names:
        of_jobs = ", ".join(f"{job_id}{since_trial(savings)}" for job_id, savings in found.items())
        yield f"Compared only since a change of behaviour: {of_jobs}."


def figures_of(client: Client, job: v1.Job, details: v1.JobDetails) -> Figures:
    """Returns the figures of a job."""
    job_id = job.spec.job_id
    statistics, factors = client.get_job_statistics(job_id), client.get_server_info().factors
    choices = client.preview_next(job_id).choices
    found = answer(job, details, statistics, factors, choices)
    lines = [
        ("cost", found.now),
        ("savings", " ".join(filter(None, (found.saved, found.settle)))),
        ("used now", found.used),
        *([("running", _running(statistics))] if statistics.num_running else []),
        *([("next launch", found.upcoming)] if found.upcoming else []),
        *(("advice", line) for line in statistics.advice),
        *([(f"why {choices[0].batch_size}", choices[0].reason)] if choices else []),
        *spending(statistics, main_quantity(statistics.savings, factors, mark_of(job))),
    ]
    return Figures(statistics, factors, lines)


def _running(statistics: v1.JobStatistics) -> str:
    """Returns how many trials of which batch sizes are running."""
    sizes = [f"{each.num_running} with batch size {each.batch_size}" for each in statistics.trials if each.num_running]
    return f"{number_of(statistics.num_running, 'trial')}: {', '.join(sizes)}"
