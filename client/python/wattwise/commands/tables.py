"""Jobs and trials as tables, and a job as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from wattwise import v1
from wattwise.commands.rows import TableOptions, print_table
from wattwise.monitor.kind import monitor_text
from wattwise.presentation.facts import job_facts, job_warnings, set_by_people
from wattwise.presentation.quantities import (
    ESTIMATE_MARK,
    ESTIMATE_NOTE,
    PLUS_MINUS,
    duration,
    energy,
    estimate_mark,
    exact_moment,
    joules,
    marked,
    metric,
    moment,
    optional,
    spread,
    step_energy,
    step_time,
    watts_per_gpu,
)
from wattwise.presentation.sentences import has_prices, main_quantity, mean_money, money_text
from wattwise.presentation.states import (
    BatchSize,
    JobTrial,
    arms_of,
    batch_size_in_use,
    batch_sizes,
    end_reason,
    lease,
    listed_state,
    mark_of,
    may_be_chosen,
    monitors,
    ranges,
    result,
    sizes,
    stage,
    status_name,
    target,
    trial_origin,
    warning_kind,
    with_uncounted,
)
from wattwise.presentation.terminal import (
    Column,
    Mark,
    ages,
    computed_marks,
    estimate_marks,
    numbers,
    print_facts,
    print_text,
    times,
)
from wattwise.spec import enum_name

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from wattwise.rpc.client import Client


def listed_jobs(client: Client, prefix: str, options: TableOptions) -> Iterator[v1.JobListing]:
    """Returns the jobs of a table with their summaries, those that need attention first."""
    order = v1.JOB_ORDER_ATTENTION
    return client.jobs(job_id_prefix=prefix, order=order, with_summaries=True, page_size=options.page_size)


def print_jobs(jobs: Iterable[v1.JobListing], factors: v1.Factors, options: TableOptions | None = None) -> None:
    """Prints one row per job."""
    print_table(job_columns(factors), jobs, options, empty="no jobs", marks=[JOB_ESTIMATES])


class Figures(NamedTuple):
    """The figures of a job, and what they say, as names with texts."""

    statistics: v1.JobStatistics
    factors: v1.Factors
    lines: Sequence[tuple[str, str]]


def print_job(job: v1.Job, details: v1.JobDetails, figures: Figures, *, wide: bool = False) -> None:
    """Prints a job's configuration and progress, and its batch sizes.

    Args:
        job: the job.
        details: what it knows about its batch sizes.
        figures: what else is known of it.
        wide: whether the table of batch sizes has the details behind the expected costs.
    """
    facts = (
        *figures.lines,
        *set_by_people(job, details, figures.statistics),
        *job_facts(job, details, figures.statistics),
    )
    warnings = job_warnings(job, details)
    print_facts([("job", job.spec.job_id), *warnings, *facts])
    rows = batch_sizes(details, figures.statistics)
    if not rows:
        return
    print()  # noqa: T201 - the command's answer
    mark = mark_of(job)
    more = _wide_columns(details, mark, figures.factors) if wide else ()
    deviations = any(row.deviation is not None for row in rows)
    notes = [PLUS_MINUS] if deviations else []
    notes += [f"{ESTIMATE_MARK} marks {ESTIMATE_NOTE}."] if mark else []
    print_table(
        (*_batch_size_columns(marked(joules, mark)), *more),
        rows,
        TableOptions(wide=wide),
        notes=lambda _rows, _names: notes,
    )
    for state in details.batch_size_states:
        if state.pinned or not may_be_chosen(state):
            print_text(f"{state.batch_size}: {state.reason}", 2)


def _batch_size_columns(text: Callable[[float], str]) -> Sequence[Column[BatchSize]]:
    return (
        numbers("batch size", lambda row: row.state.batch_size),
        Column("state", lambda row: status_name(row.state), priority=1),
        numbers("reached", lambda row: row.trials.num_deliveries, priority=3),
        numbers("missed", lambda row: row.trials.num_missed, priority=4),
        numbers("undecided", lambda row: row.trials.num_undecided, priority=5),
        numbers("running", lambda row: row.state.num_running, priority=6),
        Column("expected cost per model", lambda row: _expected_cost(row, text), right=True, priority=2),
    )


def _wide_columns(details: v1.JobDetails, mark: str, factors: v1.Factors) -> Iterator[Column[BatchSize]]:
    """Yields what the expected costs rest on, and what else is known by batch size."""
    text = marked(joules, mark)
    if arms_of(details):
        yield numbers("observations", lambda row: row.arm.num_observations)
        yield Column("expected cost of a delivery", lambda row: _mean_cost(row.arm, text), right=True)
        yield Column("std dev of that", lambda row: spread(row.arm.param_precision, text), right=True)
        yield Column("std dev of a trial", lambda row: spread(row.arm.reward_precision, text), right=True)
    if details.power_limits:
        yield numbers(
            "cheapest power limit", lambda row: row.limit.power_setting.limit_watts_per_gpu or None, watts_per_gpu
        )
        yield numbers("cost of a step", lambda row: row.limit.cost_per_step or None, text)
        yield numbers("time of a step", lambda row: row.limit.time_seconds_per_step or None, step_time)
        yield numbers("energy of a step", lambda row: step_energy(row.limit), text)
    if has_prices(factors):
        yield Column("mean money of a delivery", lambda row: mean_money(row.trials, factors, mark), right=True)


def _mean_cost(arm: v1.Arm, text: Callable[[float], str]) -> str:
    """Returns an expected cost: the server's rewards are negative costs."""
    return text(-arm.param_mean) if arm.param_precision > 0 else "unknown"


def _expected_cost(row: BatchSize, text: Callable[[float], str]) -> str:
    if row.expected_cost is None:
        return "unknown"
    return text(row.expected_cost) + ("" if row.deviation is None else f" ± {joules(row.deviation)}")


def print_trials(job: v1.Job, trials: Iterable[v1.Trial], options: TableOptions | None = None) -> None:
    """Prints one row per trial of a job."""
    rows = (JobTrial(job, trial) for trial in trials)
    marks = [USAGE_ESTIMATES, COMPUTED_COSTS]
    print_table(TRIAL_COLUMNS, rows, options, empty="no trials", marks=marks, notes=_trial_notes)


def _trial_notes(rows: Sequence[JobTrial], names: Sequence[str]) -> Iterable[str]:
    """Yields the warnings, unless their column is shown."""
    found: dict[str, set[int]] = {}
    for row in rows if "warnings" not in names else ():
        for warning in row.trial.warnings:
            found.setdefault(warning_kind(warning.reason), set()).add(row.trial.id.trial_number)
    for name, numbered in found.items():
        yield f"Warning: {name}, {'trial' if len(numbered) == 1 else 'trials'} {ranges(sorted(numbered))}."


def _status(row: JobTrial) -> str:
    return with_uncounted(enum_name(v1.TrialStatus, row.trial.status), row)


def _newest(name: str) -> Callable[[JobTrial], Any]:
    """Returns what reads a field of a trial's newest report; None before it."""
    return lambda row: optional(row.trial.newest, name)


def _start(row: JobTrial) -> Timestamp | None:
    return cast("Timestamp | None", optional(row.trial, "start_time"))


def _lease_end(row: JobTrial) -> int | None:
    return row.trial.lease_expire_time.ToNanoseconds() or None


def main_amounts(
    name: str, value: Callable[[v1.SavingsEstimate], float | None], factors: v1.Factors, priority: int
) -> Column[v1.JobListing]:
    """Returns a column of amounts of jobs with their summaries: amounts of money with prices, else of cost.

    Args:
        name: As of `Column`.
        value: Returns the amount; None without one.
        factors: The operator's factors.
        priority: As of `Column`.
    """

    def of_job(row: v1.JobListing) -> float | None:
        return value(main_quantity(row.summary.savings, factors, mark="").saving)

    if has_prices(factors):
        return numbers(name, of_job, money_text(factors, mark=""), priority=priority, unit="money")
    return numbers(name, of_job, joules, priority=priority)


def job_columns(factors: v1.Factors) -> Sequence[Column[v1.JobListing]]:
    """Returns the columns of a list of jobs with their summaries."""
    return (
        Column("job", lambda row: row.job.spec.job_id),
        Column("state", listed_state, priority=1),
        numbers("used now", lambda row: batch_size_in_use(row.job), priority=2),
        Column("available", lambda row: sizes(row.job.available_batch_sizes), priority=6),
        numbers("trials", lambda row: row.job.num_trials, priority=3),
        main_amounts("a model now", lambda saving: optional(saving, "in_use"), factors, 2),
        Column("monitor", lambda row: monitors(row.job), priority=5),
        times("registered", lambda row: row.job.create_time, priority=8),
        ages("age", lambda row: row.job.create_time, priority=4),
        Column("stage", lambda row: stage(row.job), priority=9),
    )


JOB_COLUMNS = job_columns(v1.Factors())
"""The columns without prices."""

TRIAL_COLUMNS: Sequence[Column[JobTrial]] = (
    numbers("trial", lambda row: row.trial.id.trial_number),
    numbers("batch size", lambda row: row.trial.batch_size, priority=1),
    Column("result", result, priority=1),
    Column("origin", lambda row: trial_origin(row.trial), priority=9),
    Column("status", _status, priority=12),
    Column("ended by", lambda row: end_reason(row.trial.end_reason) if row.trial.end_reason else "", priority=13),
    Column("target", lambda row: target(row.trial), priority=14),
    numbers("epochs", lambda row: row.trial.newest.epoch or None, priority=5),
    numbers("metric", _newest("metric"), metric, priority=4),
    numbers("time", _newest("time_seconds"), duration, priority=3),
    numbers("energy", _newest("energy_joules"), energy, priority=7),
    numbers("cost", lambda row: optional(row.trial, "cost"), joules, priority=2),
    Column("monitor", lambda row: monitor_text(row.trial.monitor), priority=8),
    times("started", _start, unknown="unknown", priority=10),
    ages("age", _start, priority=6),
    Column(
        "lease expires",
        lambda row: lease(row.trial, moment),
        exact=lambda row: lease(row.trial, exact_moment),
        order=_lease_end,
        priority=15,
    ),
    Column(
        "warnings", lambda row: ", ".join(warning_kind(warning.reason) for warning in row.trial.warnings), priority=11
    ),
)
"""The columns of a list of a job's trials."""

COST_AND_BOUND = "cost / bound"
"""The column of a watch with both."""

USAGE_ESTIMATES: Mark[JobTrial] = estimate_marks(
    ("energy", "cost", COST_AND_BOUND), lambda row: estimate_mark(row.trial.monitor)
)
COMPUTED_COSTS: Mark[JobTrial] = computed_marks(
    ("cost", COST_AND_BOUND), lambda row: row.trial.newest.HasField("computed")
)
JOB_ESTIMATES: Mark[v1.JobListing] = estimate_marks(
    ("a model now", "with the default", "saved at least", "lost", "estimate", "spent"), lambda row: mark_of(row.job)
)
