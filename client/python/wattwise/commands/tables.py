"""Jobs and trials as tables on a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.commands.humanize import (
    COMPUTED_MARK,
    duration,
    end_reason,
    enum_name,
    estimate_mark,
    joules,
    moment,
    printable,
    spread,
)
from wattwise.errors import WattwiseError
from wattwise.monitor.kind import monitor_text
from wattwise.training.rules import reaches_target

if TYPE_CHECKING:
    from rich.table import Table

# A row is always one line, for readers of a pipe.
_WIDTH = 100_000
_LEAST_TEXT = 30
"""Columns for a text on a narrow terminal."""


def print_jobs(jobs: Iterable[v1.Job]) -> None:
    """One row per job."""
    table = _table("job", "stage", "survivors", "*trials", "*min cost", "*at batch size", "monitor", "registered")
    for job in jobs:
        _add(
            table,
            job.spec.job_id,
            _mode(job),
            sizes(job.surviving_batch_sizes),
            str(job.num_trials),
            joules(job.min_cost) + mark_of(job) if job.HasField("min_cost") else "",
            str(job.min_cost_batch_size) if job.HasField("min_cost_batch_size") else "",
            _monitors(job),
            moment(job.create_time),
        )
    _show(table, "no jobs")


def print_job(job: v1.Job, trials: Iterable[v1.Trial]) -> None:
    """A job's configuration and progress, its arms, its batch sizes and its power limits."""
    facts = (*_facts(job), *_unusual(trials), *_warnings(job))
    indent = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        _print_text(f"{name:{indent}}{text}", indent)
    if job.arms:
        print()  # noqa: T201 - the command's answer
        print_arms(job.arms, mark_of(job))
    if job.batch_size_states:
        print()  # noqa: T201 - the command's answer
        print_batch_sizes(job.batch_size_states, mark_of(job))
    if job.power_limits:
        print()  # noqa: T201 - the command's answer
        print_power_limits(job.power_limits)


def print_arms(arms: Iterable[v1.Arm], mark: str) -> None:
    """One row per arm; the server's rewards are negative costs."""
    costs = (f"*{cost}{mark}" for cost in ("mean cost", "std dev of the mean", "std dev of a trial"))
    table = _table("*batch size", "*observations", *costs)
    for arm in arms:
        _add(
            table,
            str(arm.batch_size),
            str(arm.num_observations),
            joules(-arm.param_mean) if arm.param_precision > 0 else "unknown",
            spread(arm.param_precision),
            spread(arm.reward_precision),
        )
    _show(table, "")


def print_batch_sizes(states: Iterable[v1.BatchSizeState], mark: str) -> None:
    """One row per batch size, and below the table why some of them are not chosen."""
    table = _table(
        *("*batch size", "state", "*reached", "*missed", "*failed", "*running", f"*cost of a model{mark}"),
    )
    reasons = []
    for state in states:
        _add(
            table,
            str(state.batch_size),
            status_name(state),
            *map(str, (state.num_converged, state.num_missed, state.num_failed, state.num_running)),
            _expected_cost(state),
        )
        if state.status != v1.BATCH_SIZE_STATUS_ALLOWED:
            reasons.append(f"{state.batch_size}: {state.reason}")
    _show(table, "")
    for reason in reasons:
        _print_text(reason, 2)


def _expected_cost(state: v1.BatchSizeState) -> str:
    if not state.HasField("expected_cost"):
        return "unknown"
    if not state.HasField("expected_cost_deviation"):
        return joules(state.expected_cost)
    return f"{joules(state.expected_cost)} ± {joules(state.expected_cost_deviation)}"


def print_power_limits(limits: Iterable[v1.PowerLimit]) -> None:
    """One row per batch size whose cheapest power limit is known."""
    table = _table("*batch size", "*cheapest power limit", "*cost of a step", "*time of a step", "*energy of a step")
    for limit in limits:
        _add(
            table,
            str(limit.batch_size),
            f"{limit.power_limit_watts:g} W per GPU",
            joules(limit.cost_per_step),
            f"{limit.time_seconds_per_step:.3g} s",
            joules(limit.energy_joules_per_step),
        )
    _show(table, "")


def print_trials(job: v1.Job, trials: Iterable[v1.Trial]) -> None:
    """One row per trial of a job."""
    spec = job.spec
    table = _table(
        *("*trial", "*batch size", "type", "status", "ended by", "target"),
        *("*epoch", "*metric", "*time", "*energy", "*cost", "monitor", "started", "lease expires", "warnings"),
    )
    for trial in trials:
        mark = estimate_mark(trial.monitor)
        _add(
            table,
            str(trial.id.trial_number),
            str(trial.id.batch_size),
            _type(spec, trial),
            enum_name(v1.TrialStatus.Name(trial.status), "TRIAL_STATUS_") + _uncounted(job, trial),
            end_reason(trial.end_reason) if trial.end_reason else "",
            target(spec, trial),
            str(trial.last_epoch) if trial.last_epoch else "",
            f"{trial.last_metric:.6g}" if trial.HasField("last_metric") else "",
            duration(trial.time_seconds) if trial.HasField("cost") else "",
            joules(trial.energy_joules) + mark if trial.HasField("cost") else "",
            joules(trial.cost) + mark + _computed(trial) if trial.HasField("cost") else "",
            monitor_text(trial.monitor),
            moment(trial.start_time) if trial.HasField("start_time") else "unknown",
            lease(trial),
            ", ".join(enum_name(v1.WarningReason.Name(each.reason), "WARNING_REASON_") for each in trial.warnings),
        )
    _show(table, "no trials")


def status_name(state: v1.BatchSizeState) -> str:
    """The status of a batch size in words, such as "set aside"."""
    return enum_name(v1.BatchSizeStatus.Name(state.status), "BATCH_SIZE_STATUS_")


def with_status(job: v1.Job, status: v1.BatchSizeStatus.ValueType) -> list[int]:
    """The job's batch sizes with a status."""
    return [state.batch_size for state in job.batch_size_states if state.status == status]


def next_launch(job: v1.Job) -> str:
    """What the job's next launch gets, which depends on what a person has requested."""
    pinned = with_status(job, v1.BATCH_SIZE_STATUS_PINNED)
    default = job.spec.default_batch_size
    if pinned:
        return f"batch size {sizes(pinned)}, like every launch until it is unpinned; no cost bound"
    if stuck(job):
        return "none: no batch size is left to try"
    allowed = with_status(job, v1.BATCH_SIZE_STATUS_ALLOWED)
    if job.paused:
        known = job.HasField("min_cost") or any(state.num_converged for state in job.batch_size_states)
        near = f"batch size {default}, the default" if default in allowed else "the batch size nearest to the default"
        best = "the best known batch size" if known else f"{near}, since nothing is known yet"
        return f"{best}; no cost bound"
    if job.baseline_requested and not baseline_waits(job):
        return f"batch size {default}, as a baseline; no cost bound"
    return f"{'one of the batch sizes' if len(allowed) > 1 else 'batch size'} {sizes(allowed)}, as the search chooses"


def baseline_waits(job: v1.Job) -> str:
    """Until when a requested baseline waits; empty if the next launch is it."""
    if pinned := with_status(job, v1.BATCH_SIZE_STATUS_PINNED):
        return f"until {sizes(pinned)} is unpinned"
    if job.paused:
        return "until the search is resumed"
    default = job.spec.default_batch_size
    return "" if default in with_status(job, v1.BATCH_SIZE_STATUS_ALLOWED) else f"until {default} may be chosen"


def mark_of(job: v1.Job) -> str:
    """The mark behind a job's costs if all or some of them are estimates."""
    return estimate_mark(job.monitor, job.other_monitor)


def policy(spec: v1.JobSpec) -> str:
    """A policy in words, such as "knowledge gradient"; its number if it is newer than this client."""
    known = spec.policy in v1.Policy.values()
    return enum_name(v1.Policy.Name(spec.policy), "POLICY_") if known else f"policy {spec.policy}"


def has_stages(spec: v1.JobSpec) -> bool:
    """Whether the policy has stages, and trials of several types. Other policies have one, whose name says nothing."""
    return spec.policy == v1.POLICY_PRUNING_GTS


def stage(job: v1.Job) -> str:
    """The stage, such as "pruning, round 1 of 2", "stuck in round 1 of 2" or "bandit"; "-" for a policy without."""
    if not has_stages(job.spec):
        return "stuck" if stuck(job) else "-"
    if job.stage != v1.STAGE_PRUNING:
        return "stuck in the bandit" if stuck(job) else "bandit"
    where = f"round {job.pruning_round + 1} of {job.spec.num_pruning_rounds}"
    return f"stuck in {where}" if stuck(job) else f"pruning, {where}"


def stuck(job: v1.Job) -> bool:
    """Whether no batch size is left to try."""
    return not job.surviving_batch_sizes


def target(spec: v1.JobSpec, trial: v1.Trial) -> str:
    """Whether a trial has reached its job's target; empty if it was never evaluated, or failed."""
    if not trial.HasField("last_metric") or trial.status == v1.TRIAL_STATUS_FAILED:
        return ""
    if trial.status == v1.TRIAL_STATUS_DISPATCHED:
        return "not yet"
    if not reaches_target(spec, trial.last_metric):
        return "missed"
    return "reached" if trial.converged else "reached, over budget"


def lease(trial: v1.Trial) -> str:
    """When the lease of a running trial expires."""
    if trial.status != v1.TRIAL_STATUS_DISPATCHED:
        return ""
    return moment(trial.lease_expire_time) if trial.HasField("lease_expire_time") else "never"


def sizes(batch_sizes: Iterable[int]) -> str:
    """Batch sizes, separated by commas."""
    return ", ".join(map(str, batch_sizes)) or "none"


def _facts(job: v1.Job) -> Iterable[tuple[str, str]]:
    spec = job.spec
    yield "job", spec.job_id
    yield "policy", policy(spec)
    if has_stages(spec):
        yield "stage", stage(job)
    yield "next launch", next_launch(job)
    pinned = with_status(job, v1.BATCH_SIZE_STATUS_PINNED)
    if pinned:
        yield "pinned", sizes(pinned)
    if job.paused:
        yield "paused", "once nothing is pinned" if pinned else "nothing is tried"
    if banned := with_status(job, v1.BATCH_SIZE_STATUS_BANNED):
        yield "banned", sizes(banned)
    if job.reset_after:
        when = f"{moment(job.reset_time)}, " if job.HasField("reset_time") else ""
        yield "reset", f"{when}after trial {job.reset_after}: {_numbered(job.reset_after)} not count"
    if job.baseline_requested:
        waits = baseline_waits(job)
        yield "baseline", f"requested: batch size {spec.default_batch_size}, {f'waits {waits}' if waits else 'next'}"
    if job.advice:
        yield "advice", job.advice
    yield "survivors", f"{sizes(job.surviving_batch_sizes)} (of {sizes(spec.batch_sizes)})"
    if job.HasField("min_cost"):
        yield "min cost", f"{joules(job.min_cost)}{mark_of(job)} at batch size {job.min_cost_batch_size}"
    else:
        yield "min cost", "none: no trial has converged yet"
    sign = "at least" if spec.higher_is_better_metric else "at most"
    yield "target", f"metric {sign} {spec.target_metric:g} within {spec.max_epochs} epochs"
    yield "eta", f"{spec.eta_knob:g} (1: only energy, 0: only time)"
    least = "least expected cost" if spec.policy == v1.POLICY_KNOWLEDGE_GRADIENT else "min cost"
    stopping = "never" if spec.disable_early_stopping else f"above {spec.beta_knob:g} times the {least}"
    without = "; pinned launches are not" if pinned else "; launches of a paused search are not" if job.paused else ""
    yield "stopped early", stopping if spec.disable_early_stopping else stopping + without
    gpu = spec.gpu
    yield "GPUs", f"{gpu.number_of_gpus} x {gpu.gpu_model}, {gpu.max_power_watts:g} W in total"
    if job.monitor.kinds:
        mixed = ": these costs cannot be compared" if job.other_monitor.kinds else ""
        yield "monitor", f"{_monitors(job)}{mixed}"
    yield "trials", str(job.num_trials)
    yield "registered", moment(job.create_time)


def _numbered(last: int) -> str:
    """The trials up to a number, and the verb that follows."""
    return "trial 1 does" if last == 1 else f"trials 1-{last} do"


def _uncounted(job: v1.Job, trial: v1.Trial) -> str:
    """Why a trial does not count; empty if it does."""
    if trial.id.trial_number <= job.reset_after:
        return ", before reset"
    return ", excluded" if trial.excluded else ""


def _unusual(trials: Iterable[v1.Trial]) -> Iterable[tuple[str, str]]:
    """The numbers of the trials that do not count, or that the search did not choose."""
    numbers: dict[str, list[int]] = {"excluded trials": [], "requested trials": [], "imported trials": []}
    for trial in trials:
        if trial.excluded:
            numbers["excluded trials"].append(trial.id.trial_number)
        if trial.type == v1.TRIAL_TYPE_REQUESTED:
            numbers["requested trials"].append(trial.id.trial_number)
        if trial.type == v1.TRIAL_TYPE_IMPORTED:
            numbers["imported trials"].append(trial.id.trial_number)
    for name, found in numbers.items():
        if found:
            yield name, ranges(found)


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, with those that follow each other as a range: "1-3, 7"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _warnings(job: v1.Job) -> Iterable[tuple[str, str]]:
    for warning in job.warnings:
        yield "warning", f"trial {warning.trial_number}, {warning.field}: {warning.message}"


def _mode(job: v1.Job) -> str:
    """The stage, and whether a person has paused the search or pinned a batch size."""
    # An older server sends the states instead, also in lists.
    size = job.pinned_batch_size or next(iter(with_status(job, v1.BATCH_SIZE_STATUS_PINNED)), 0)
    pinned = f"pinned to {size}" if size else ""
    by_person = pinned or ("paused" if job.paused else "")
    return ", ".join(part for part in (stage(job), by_person) if part and (part != "-" or not by_person))


def _computed(trial: v1.Trial) -> str:
    """The mark behind a cost that follows from computed time and energy, not from the measured ones beside it."""
    return COMPUTED_MARK if trial.HasField("computed") else ""


def _type(spec: v1.JobSpec, trial: v1.Trial) -> str:
    """The type of a trial; that of one which the search chose says nothing without stages."""
    chosen = trial.type not in (v1.TRIAL_TYPE_REQUESTED, v1.TRIAL_TYPE_IMPORTED)
    return "-" if chosen and not has_stages(spec) else enum_name(v1.TrialType.Name(trial.type), "TRIAL_TYPE_")


def _monitors(job: v1.Job) -> str:
    monitor, other = monitor_text(job.monitor), monitor_text(job.other_monitor)
    return f"{monitor}, {other} before" if other else monitor


def _table(*columns: str) -> Table:
    """A table with these headings; a star before one aligns its column to the right."""
    try:
        from rich import table  # noqa: PLC0415 - not installed with the bare package
    except ModuleNotFoundError:
        raise WattwiseError('tables need the package rich: pip install "wattwise[server]", or use --json') from None
    result = table.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        right = column.startswith("*")
        result.add_column(column.removeprefix("*"), justify="right" if right else "left", no_wrap=True)
    return result


def _terminal_width() -> int | None:
    """The columns of the terminal; None if the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print_text(text: str, indent: int) -> None:
    """A line, which a terminal gets as several lines that are indented after the first."""
    text, width = printable(text), _terminal_width()
    if width is not None:
        width = max(width, indent + _LEAST_TEXT)
        # The spaces behind a name are those of a column.
        text = textwrap.fill(
            text,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    print(text)  # noqa: T201 - the command's answer


def _add(table: Table, *cells: str) -> None:
    """Adds a row."""
    # Job ids come from users.
    table.add_row(*map(printable, cells))


def _narrow(table: Table) -> None:
    """Breaks the headings that are wider than what is below them."""
    for column in table.columns:
        heading = str(column.header)
        words = heading.split()
        width = max(map(len, (*words, *map(str, column.cells))))
        column.header = textwrap.fill(heading, width, break_long_words=False)
        column.vertical = "bottom"


def _show(table: Table, when_empty: str) -> None:
    from rich.console import Console  # noqa: PLC0415 - not installed with the bare package

    # "[red]" or ":smile:" in a job id is text.
    console = Console(width=_WIDTH, markup=False, emoji=False, highlight=False)
    width = _terminal_width()
    if width is not None and console.measure(table).maximum > width:
        _narrow(table)
    # Not printed by rich, which handles a closed pipe differently and fills every line with spaces.
    with console.capture() as shown:
        console.print(table if table.row_count else when_empty)
    for line in shown.get().splitlines():
        print(line.rstrip())  # noqa: T201 - the command's answer
