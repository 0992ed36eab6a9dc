"""Jobs and trials as tables, and a job as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from wattwise import v1
from wattwise.commands.columns import Column, Mark, TableOptions, numbers, print_table, print_text
from wattwise.commands.humanize import (
    COMPUTED_MARK,
    COMPUTED_NOTE,
    ESTIMATE_NOTE,
    age,
    duration,
    end_reason,
    energy_of,
    estimate_mark,
    exact_moment,
    joules,
    moment,
    spread,
    step_energy,
    trial_result,
)
from wattwise.monitor.kind import monitor_text
from wattwise.spec import enum_name, gpus_text, policy_name
from wattwise.training.rules import POLICY_DEFAULTS, higher_is_better

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


def _options(enum: Any) -> Mapping[str, Any]:
    """The values of an enum by the names that options use, such as "out-of-memory"."""
    return {enum_name(enum, value).replace(" ", "-"): value for value in enum.values() if value}


TRIAL_STATUSES = _options(v1.TrialStatus)
END_REASONS = _options(v1.EndReason)

UNDECIDED = (v1.TRIAL_STATUS_INTERRUPTED, v1.TRIAL_STATUS_FAILED)
"""The statuses of trials that ended without a decision."""


def print_jobs(jobs: Iterable[v1.JobListing], options: TableOptions | None = None) -> None:
    """One row per job."""
    print_table(JOB_COLUMNS, jobs, options, empty="no jobs", marks=[_EXPECTED_COST_ESTIMATES])


class Figures(NamedTuple):
    """What the server computes of a job besides its state.

    Attributes:
        lines: names with texts.
        counts: how many trials of each batch size reached the target, and how many missed it.
        money: what a delivery costs on average, by batch size; None without prices, for no such column.
    """

    lines: Sequence[tuple[str, str]] = ()
    counts: Mapping[int, tuple[int, int]] = MappingProxyType({})
    money: Mapping[int, str] | None = None


def print_job(
    job: v1.Job, details: v1.JobDetails, trials: Iterable[v1.Trial], figures: Figures, *, wide: bool = False
) -> None:
    """A job's configuration and progress, and its batch sizes.

    Args:
        job: the job.
        details: what it knows about its batch sizes.
        trials: all its trials.
        figures: what else is known of it.
        wide: whether the table of batch sizes has the details behind the expected costs.
    """
    advice = [("advice", details.advice)] if details.advice else []
    facts = (*advice, *figures.lines, *_facts(job, details), *_unusual(trials), *_warnings(job, details))
    print_facts([("job", job.spec.job_id), *facts])
    rows = _batch_sizes(details, figures)
    if not rows:
        return
    print()  # noqa: T201 - the command's answer
    mark = mark_of(job)
    more = _wide_columns(details, mark, figures.money is not None) if wide else ()
    print_table((*_batch_size_columns(mark), *more), rows, TableOptions(wide=wide))
    for state in details.batch_size_states:
        if state.pinned or not may_be_chosen(state):
            print_text(f"{state.batch_size}: {state.reason}", 2)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Texts with their names in front, one below the other, without empty ones."""
    facts = [(name, text) for name, text in facts if text]
    indent = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        print_text(f"{name:{indent}}{text}", indent)


class _BatchSize(NamedTuple):
    """A batch size of a job, as its three lists describe it."""

    batch_size: int
    state: v1.BatchSizeState
    arm: v1.Arm
    limit: v1.PowerLimit
    reached: int
    missed: int
    money: str


def _batch_sizes(details: v1.JobDetails, figures: Figures) -> list[_BatchSize]:
    states = {each.batch_size: each for each in details.batch_size_states}
    arms = {each.batch_size: each for each in arms_of(details)}
    limits = {each.batch_size: each for each in details.power_limits}
    return [
        _BatchSize(
            size,
            states.get(size, v1.BatchSizeState()),
            arms.get(size, v1.Arm()),
            limits.get(size, v1.PowerLimit()),
            *figures.counts.get(size, (0, 0)),
            (figures.money or {}).get(size, ""),
        )
        for size in sorted({*states, *arms, *limits})
    ]


def _batch_size_columns(mark: str) -> Sequence[Column[_BatchSize]]:
    return (
        numbers("batch size", lambda row: row.batch_size),
        Column("state", lambda row: status_name(row.state), priority=1),
        numbers("reached", lambda row: row.reached, priority=3),
        numbers("missed", lambda row: row.missed, priority=4),
        numbers("failed", lambda row: row.state.num_failed, priority=5),
        numbers("running", lambda row: row.state.num_running, priority=6),
        Column(f"expected cost per model{mark}", lambda row: _expected_cost(row.state), right=True, priority=2),
    )


def _wide_columns(details: v1.JobDetails, mark: str, with_money: bool) -> Iterator[Column[_BatchSize]]:
    """What the expected costs rest on, and what else is known by batch size."""
    if arms_of(details):
        yield numbers("observations", lambda row: row.arm.num_observations)
        yield Column(f"expected cost of a delivery{mark}", lambda row: _mean_cost(row.arm), right=True)
        yield Column(f"std dev of that{mark}", lambda row: spread(row.arm.param_precision), right=True)
        yield Column(f"std dev of a trial{mark}", lambda row: spread(row.arm.reward_precision), right=True)
    if details.power_limits:
        yield numbers(
            "cheapest power limit", lambda row: row.limit.power_setting.limit_watts_per_gpu or None, watts_per_gpu
        )
        yield numbers("cost of a step", lambda row: row.limit.cost_per_step or None, joules)
        yield numbers("time of a step", lambda row: row.limit.time_seconds_per_step or None, step_time)
        yield numbers("energy of a step", lambda row: step_energy(row.limit), joules)
    if with_money:
        yield Column("mean money of a delivery", lambda row: row.money, right=True)


def arms_of(details: v1.JobDetails) -> Sequence[v1.Arm]:
    """The beliefs of the job's policy; empty for a policy that this client does not know."""
    of_policy = details.policy_details
    known: Mapping[str | None, Sequence[v1.Arm]] = {
        "pruning_gts": of_policy.pruning_gts.arms,
        "gts": of_policy.gts.arms,
        "knowledge_gradient": of_policy.knowledge_gradient.arms,
    }
    return known.get(of_policy.WhichOneof("details"), ())


def _mean_cost(arm: v1.Arm) -> str:
    """The server's rewards are negative costs."""
    return joules(-arm.param_mean) if arm.param_precision > 0 else "unknown"


def _expected_cost(state: v1.BatchSizeState) -> str:
    if not state.HasField("expected_cost"):
        return "unknown"
    if not state.HasField("expected_cost_deviation"):
        return joules(state.expected_cost)
    return f"{joules(state.expected_cost)} ± {joules(state.expected_cost_deviation)}"


def watts_per_gpu(watts: float) -> str:
    """A power limit."""
    return f"{watts:g} W per GPU"


def step_time(seconds: float) -> str:
    """The duration of a training step."""
    return f"{seconds:.3g} s"


class JobTrial(NamedTuple):
    """A trial with its job: a row of `TRIAL_COLUMNS`."""

    job: v1.Job
    trial: v1.Trial


def print_trials(job: v1.Job, trials: Iterable[v1.Trial], options: TableOptions | None = None) -> None:
    """One row per trial of a job."""
    rows = (JobTrial(job, trial) for trial in trials)
    marks = [USAGE_ESTIMATES, COMPUTED_COSTS]
    print_table(TRIAL_COLUMNS, rows, options, empty="no trials", marks=marks, notes=_trial_notes)


def _trial_notes(rows: Sequence[JobTrial], names: Sequence[str]) -> Iterable[str]:
    """The warnings, unless their column is shown."""
    found: dict[str, set[int]] = {}
    for row in rows if "warnings" not in names else ():
        for warning in row.trial.warnings:
            found.setdefault(warning_name(warning), set()).add(row.trial.id.trial_number)
    for name, numbered in found.items():
        yield f"Warning: {name}, {'trial' if len(numbered) == 1 else 'trials'} {ranges(sorted(numbered))}."


def result(row: JobTrial) -> str:
    """How a trial ended, its target and whether it counts, such as "missed: cost bound, excluded"."""
    trial, text = row.trial, "running"
    if trial.status != v1.TRIAL_STATUS_RUNNING:
        text = trial_result(end_reason(trial.end_reason), reached=trial.target_reached, status=trial.status)
    return _with_uncounted(text, row)


def status_name(state: v1.BatchSizeState) -> str:
    """The status of a batch size in words, such as "set aside" or "banned, out of memory"."""
    people = [word for word, is_so in (("pinned", state.pinned), ("banned", state.banned)) if is_so]
    if people and state.status == v1.BATCH_SIZE_STATUS_AVAILABLE:
        return ", ".join(people)
    return ", ".join((*people, enum_name(v1.BatchSizeStatus, state.status)))


def may_be_chosen(state: v1.BatchSizeState) -> bool:
    """Whether the search may choose a batch size."""
    return state.status == v1.BATCH_SIZE_STATUS_AVAILABLE and not state.banned


def choosable(details: v1.JobDetails) -> list[int]:
    """The batch sizes that the search may choose."""
    return [state.batch_size for state in details.batch_size_states if may_be_chosen(state)]


def banned(details: v1.JobDetails) -> list[int]:
    """The batch sizes that a person has banned."""
    return [state.batch_size for state in details.batch_size_states if state.banned]


def next_launch(job: v1.Job, details: v1.JobDetails) -> str:
    """What the job's next launch gets, which depends on what a person has requested."""
    default = job.spec.default_batch_size
    if job.HasField("pinned_batch_size"):
        return f"batch size {job.pinned_batch_size}, like every launch until it is unpinned; no cost bound"
    if stuck(job):
        return "none: no batch size is left to try"
    available = choosable(details)
    if job.paused:
        known = job.HasField("min_cost") or any(state.num_converged for state in details.batch_size_states)
        near = f"batch size {default}, the default" if default in available else "the batch size nearest to the default"
        best = "the best known batch size" if known else f"{near}, since nothing is known yet"
        return f"{best}; no cost bound"
    if job.baseline_requested and not baseline_waits(job, details):
        return f"batch size {default}, as a baseline; no cost bound"
    return (
        f"{'one of the batch sizes' if len(available) > 1 else 'batch size'} {sizes(available)}, as the search chooses"
    )


def baseline_waits(job: v1.Job, details: v1.JobDetails) -> str:
    """Until when a requested baseline waits; empty if the next launch is it."""
    if job.HasField("pinned_batch_size"):
        return f"until {job.pinned_batch_size} is unpinned"
    if job.paused:
        return "until the search is resumed"
    default = job.spec.default_batch_size
    return "" if default in choosable(details) else f"until {default} may be chosen"


def mark_of(job: v1.Job) -> str:
    """The mark behind a job's costs if all or some of them are estimates."""
    return estimate_mark(job.monitor, *job.other_monitors)


def policy(spec: v1.JobSpec) -> str:
    """A policy in words, such as "knowledge gradient"; "unknown" if it is newer than this client."""
    return policy_name(spec).replace("_", " ") or "unknown"


def max_epochs(spec: v1.JobSpec) -> str:
    """The most epochs that a trial may take: "1 epoch"."""
    return f"{spec.max_epochs} epoch{'s' * (spec.max_epochs != 1)}"


def policy_with_parameters(spec: v1.JobSpec) -> str:
    """A policy in words with those of its parameters that are not the defaults: "gts (window_size 50)"."""
    name = policy_name(spec)
    if not name:
        return policy(spec)
    defaults = {field.name: value for field, value in POLICY_DEFAULTS[name].ListFields()}
    special = [
        f"{field.name} {value if isinstance(value, int | float) else ', '.join(value)}"
        for field, value in getattr(spec.policy, name).ListFields()
        if value != defaults.get(field.name)
    ]
    return f"{policy(spec)} ({', '.join(special)})" if special else policy(spec)


def direction(spec: v1.JobSpec) -> str:
    """On which side of a job's target its metric must be."""
    return "at least" if higher_is_better(spec) else "at most"


def beta_knob(spec: v1.JobSpec) -> float | None:
    """The multiple of the least cost at which a registered job's trials are stopped; None if they are not."""
    rule = spec.early_stopping
    return rule.cost_bound.beta_knob if rule.WhichOneof("rule") == "cost_bound" else None


def has_stages(spec: v1.JobSpec) -> bool:
    """Whether the policy has stages, and trials of several roles."""
    return policy_name(spec) == "pruning_gts"


def stage(job: v1.Job) -> str:
    """The stage, such as "pruning, round 1 of 2", "stuck in round 1 of 2" or "bandit"; "-" for a policy without."""
    if not has_stages(job.spec):
        return "stuck" if stuck(job) else "-"
    state = job.policy_state.pruning_gts
    if state.stage != v1.PRUNING_GTS_STAGE_PRUNING:
        return "stuck in the bandit" if stuck(job) else "bandit"
    where = f"round {state.pruning_round + 1} of {job.spec.policy.pruning_gts.num_pruning_rounds}"
    return f"stuck in {where}" if stuck(job) else f"pruning, {where}"


def stuck(job: v1.Job) -> bool:
    """Whether no batch size is left to try."""
    return not job.available_batch_sizes


def target(trial: v1.Trial) -> str:
    """Whether a trial has reached its job's target; empty if it was never evaluated, or failed."""
    if not trial.HasField("newest") or trial.status in UNDECIDED:
        return ""
    if trial.status == v1.TRIAL_STATUS_RUNNING:
        return "not yet"
    if not trial.target_reached:
        return "missed"
    return "reached" if trial.converged else "reached, over budget"


def lease(trial: v1.Trial, text: Callable[[Timestamp], str]) -> str:
    """When the lease of a running trial expires, as a text of that time."""
    if trial.status != v1.TRIAL_STATUS_RUNNING:
        return ""
    return text(trial.lease_expire_time) if trial.HasField("lease_expire_time") else "never"


def sizes(batch_sizes: Iterable[int]) -> str:
    """Batch sizes, separated by commas."""
    return ", ".join(map(str, batch_sizes)) or "none"


def _facts(job: v1.Job, details: v1.JobDetails) -> Iterable[tuple[str, str]]:
    spec = job.spec
    yield "policy", policy_with_parameters(spec)
    if has_stages(spec):
        yield "stage", stage(job)
    pinned = job.HasField("pinned_batch_size")
    if pinned:
        yield "pinned", str(job.pinned_batch_size)
    if job.paused:
        yield "paused", "once nothing is pinned" if pinned else "nothing is tried"
    if sizes_banned := banned(details):
        yield "banned", sizes(sizes_banned)
    if job.HasField("reset_after"):
        when = f"{moment(job.reset_time)}, " if job.HasField("reset_time") else ""
        yield "reset", f"{when}after trial {job.reset_after}: {_numbered(job.reset_after)} not count"
    if job.baseline_requested:
        waits = baseline_waits(job, details)
        yield "baseline", f"requested: batch size {spec.default_batch_size}, {f'waits {waits}' if waits else 'next'}"
    if job.HasField("baseline_every"):
        waits = baseline_waits(job, details)
        often = f"one launch in {job.baseline_every} gets batch size {spec.default_batch_size}"
        yield "baselines", f"{often}, but not {waits}" if waits else often
    warned = {warning.message for warning in job.warnings}
    for change in details.changes:
        if change.message not in warned:
            yield "changed", change.message
    yield "available", f"{sizes(job.available_batch_sizes)} (of {sizes(spec.batch_sizes)}): launches may get these"
    yield "target", f"metric {direction(spec)} {spec.target.value:g} within {max_epochs(spec)}"
    yield "eta", f"{spec.eta_knob:g} (1: only energy, 0: only time)"
    least = "least expected cost" if policy_name(spec) == "knowledge_gradient" else "cost of the cheapest trial"
    beta = beta_knob(spec)
    stopping = "never" if beta is None else f"above {beta:g} times the {least}"
    without = (
        "; trials of a pinned batch size are not"
        if pinned
        else "; trials of a paused search are not"
        if job.paused
        else ""
    )
    yield "stopped early", stopping if beta is None else stopping + without
    yield "GPUs", gpus_text(spec)
    if job.monitor.kinds:
        mixed = ": these costs cannot be compared" if job.other_monitors else ""
        yield "monitor", f"{monitors(job)}{mixed}"
    yield "trials", str(job.num_trials)
    yield "registered", moment(job.create_time)


def _numbered(last: int) -> str:
    """The trials up to a number, and the verb that follows."""
    return "trial 1 does" if last == 1 else f"trials 1-{last} do"


def uncounted(job: v1.Job, trial: v1.Trial) -> str:
    """Why a trial does not count; empty if it does."""
    if trial.id.trial_number <= job.reset_after:
        return "before reset"
    return "excluded" if trial.excluded else ""


def _with_uncounted(text: str, row: JobTrial) -> str:
    why = uncounted(row.job, row.trial)
    return f"{text}, {why}" if why else text


def _unusual(trials: Iterable[v1.Trial]) -> Iterable[tuple[str, str]]:
    """The numbers of the trials that do not count, or that the search did not choose."""
    numbers: dict[str, list[int]] = {"excluded trials": [], "set by a person": [], "imported trials": []}
    for trial in trials:
        if trial.excluded:
            numbers["excluded trials"].append(trial.id.trial_number)
        if trial.origin == v1.TRIAL_ORIGIN_REQUESTED:
            numbers["set by a person"].append(trial.id.trial_number)
        if trial.origin == v1.TRIAL_ORIGIN_IMPORTED:
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


def _warnings(job: v1.Job, details: v1.JobDetails) -> Iterable[tuple[str, str]]:
    changes = {change.message for change in details.changes}
    for warning in job.warnings:
        where = "" if warning.message in changes else f"trial {warning.trial_number}, {warning.field}: "
        yield "warning", f"{where}{warning.message}"


def trial_origin(trial: v1.Trial) -> str:
    """Who chose a trial's batch size, and what the trial is for if its policy says so: "search, exploration"."""
    origin = enum_name(v1.TrialOrigin, trial.origin)
    if not trial.HasField("pruning_gts"):
        return origin
    return f"{origin}, {enum_name(v1.PruningGtsRole, trial.pruning_gts.role)}"


def monitors(job: v1.Job) -> str:
    """The monitor of a job's trials, and earlier ones."""
    monitor = monitor_text(job.monitor)
    return f"{monitor}, {other_monitors(job)} before" if job.other_monitors else monitor


def other_monitors(job: v1.Job) -> str:
    """The other monitors of a job's trials, such as "estimate and nvml+rapl"."""
    return " and ".join(map(monitor_text, job.other_monitors))


def listed_state(listing: v1.JobListing) -> str:
    """The state of a job of a list with summaries, in a word or two."""
    summary = listing.summary
    return _state(listing.job, failing=summary.needs_attention, running=summary.num_running_trials > 0)


def job_state(job: v1.Job, details: v1.JobDetails) -> str:
    """The state of a job in a word or two."""
    running = any(state.num_running for state in details.batch_size_states)
    return _state(job, failing=bool(details.advice), running=running)


def _state(job: v1.Job, *, failing: bool, running: bool) -> str:
    """The state in a word or two, for lists and pages; what needs attention comes first."""
    if stuck(job):
        state = "stuck"
    elif job.warnings:
        state = "warning"
    elif failing:
        state = "failing"
    elif job.HasField("pinned_batch_size"):
        state = f"pinned to {job.pinned_batch_size}"
    elif job.paused:
        state = "paused"
    elif running:
        state = "running"
    else:
        state = "idle" if job.num_trials else "new"
    return state


def batch_size_in_use(job: v1.Job) -> int | None:
    """What a launch gets unless something is tried; None if no batch size is left."""
    return job.batch_size_in_use if job.HasField("batch_size_in_use") else None


def _best_known_cost(job: v1.Job) -> float | None:
    return job.best_known_cost if job.HasField("best_known_cost") else None


def seconds_since(timestamp: Timestamp) -> float:
    """The seconds since a time."""
    return time.time() - timestamp.ToNanoseconds() / 1e9


def _status(row: JobTrial) -> str:
    return _with_uncounted(enum_name(v1.TrialStatus, row.trial.status), row)


def metric_of(row: JobTrial) -> float | None:
    """The metric of the newest report; None before it."""
    return row.trial.newest.metric if row.trial.HasField("newest") else None


def _time(row: JobTrial) -> float | None:
    """Seconds; None before the first report."""
    return row.trial.newest.time_seconds if row.trial.HasField("newest") else None


def _energy(row: JobTrial) -> float | None:
    return energy_of(row.trial.newest)


def cost_of(row: JobTrial) -> float | None:
    """The cost of the newest report in joules; None before it."""
    return row.trial.cost if row.trial.HasField("cost") else None


def _start_nanoseconds(row: JobTrial) -> int | None:
    """Nanoseconds of Unix time; None if unknown."""
    return row.trial.start_time.ToNanoseconds() if row.trial.HasField("start_time") else None


def _lease_end(row: JobTrial) -> int | None:
    return row.trial.lease_expire_time.ToNanoseconds() if row.trial.HasField("lease_expire_time") else None


def warning_name(warning: v1.TrialWarning) -> str:
    """What a warning is about, such as "no energy"."""
    return enum_name(v1.WarningReason, warning.reason)


JOB_COLUMNS: Sequence[Column[v1.JobListing]] = (
    Column("job", lambda row: row.job.spec.job_id),
    Column("state", listed_state, priority=1),
    numbers("used now", lambda row: batch_size_in_use(row.job), priority=2),
    Column("available", lambda row: sizes(row.job.available_batch_sizes), priority=6),
    numbers("trials", lambda row: row.job.num_trials, priority=3),
    numbers("expected cost", lambda row: _best_known_cost(row.job), joules, priority=2),
    Column("monitor", lambda row: monitors(row.job), priority=5),
    Column(
        "registered",
        lambda row: moment(row.job.create_time),
        exact=lambda row: exact_moment(row.job.create_time),
        order=lambda row: row.job.create_time.ToNanoseconds(),
        priority=8,
    ),
    Column(
        "age",
        lambda row: age(seconds_since(row.job.create_time)),
        right=True,
        exact=lambda row: f"{seconds_since(row.job.create_time):.3f}",
        order=lambda row: -row.job.create_time.ToNanoseconds(),
        priority=4,
        unit="seconds",
    ),
    Column("stage", lambda row: stage(row.job), priority=9),
)
"""The columns of a list of jobs; `expected cost` is that of a model with the best known batch size."""

TRIAL_COLUMNS: Sequence[Column[JobTrial]] = (
    numbers("trial", lambda row: row.trial.id.trial_number),
    numbers("batch size", lambda row: row.trial.batch_size, priority=1),
    Column("result", result, priority=1),
    Column("origin", lambda row: trial_origin(row.trial), priority=9),
    Column("status", _status, priority=12),
    Column("ended by", lambda row: end_reason(row.trial.end_reason) if row.trial.end_reason else "", priority=13),
    Column("target", lambda row: target(row.trial), priority=14),
    numbers("epochs", lambda row: row.trial.newest.epoch or None, priority=5),
    numbers("metric", metric_of, "{:.4g}".format, priority=4),
    numbers("time", _time, duration, priority=3),
    numbers("energy", _energy, joules, priority=7),
    numbers("cost", cost_of, joules, priority=2),
    Column("monitor", lambda row: monitor_text(row.trial.monitor), priority=8),
    Column(
        "started",
        lambda row: "unknown" if _start_nanoseconds(row) is None else moment(row.trial.start_time),
        exact=lambda row: "" if _start_nanoseconds(row) is None else exact_moment(row.trial.start_time),
        order=_start_nanoseconds,
        priority=10,
    ),
    Column(
        "age",
        lambda row: "" if _start_nanoseconds(row) is None else age(seconds_since(row.trial.start_time)),
        right=True,
        exact=lambda row: "" if _start_nanoseconds(row) is None else f"{seconds_since(row.trial.start_time):.3f}",
        order=lambda row: None if (started := _start_nanoseconds(row)) is None else -started,
        priority=6,
        unit="seconds",
    ),
    Column(
        "lease expires",
        lambda row: lease(row.trial, moment),
        exact=lambda row: lease(row.trial, exact_moment),
        order=_lease_end,
        priority=15,
    ),
    Column("warnings", lambda row: ", ".join(map(warning_name, row.trial.warnings)), priority=11),
)
"""The columns of a list of a job's trials."""

COST_AND_BOUND = "cost / bound"
"""The column of a watch with both."""

USAGE_ESTIMATES = Mark[JobTrial](
    ("energy", "cost", COST_AND_BOUND),
    lambda row: estimate_mark(row.trial.monitor),
    "~",
    ESTIMATE_NOTE,
    {
        " (estimate)": "Energies and costs are estimates.",
        " (partly estimate)": "Energies and costs are estimates in part.",
    },
)
COMPUTED_COSTS = Mark[JobTrial](
    ("cost", COST_AND_BOUND),
    lambda row: COMPUTED_MARK if row.trial.newest.HasField("computed") else "",
    "*",
    f"costs {COMPUTED_NOTE}",
    {COMPUTED_MARK: f"Costs are {COMPUTED_NOTE}."},
)
_EXPECTED_COST_ESTIMATES = Mark[v1.JobListing](
    ("expected cost",),
    lambda row: mark_of(row.job),
    "~",
    ESTIMATE_NOTE,
    {" (estimate)": "Costs are estimates.", " (partly estimate)": "Costs are estimates in part."},
)
