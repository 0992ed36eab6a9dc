"""The states of jobs, trials and batch sizes, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from wattwise import v1
from wattwise.monitor.kind import monitor_text
from wattwise.presentation.quantities import estimate_mark, optional
from wattwise.rules import DEFAULTS, STATUS_AFTER
from wattwise.spec import enum_name, enum_value, higher_is_better, policy_name

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp


def _options(enum: Any) -> Mapping[str, Any]:
    """Returns the values of an enum by the names that options use, such as "out-of-memory"."""
    return {enum_name(enum, value).replace(" ", "-"): value for value in enum.values() if value}


TRIAL_STATUSES = _options(v1.TrialStatus)
END_REASONS = _options(v1.EndReason)
EVENT_KINDS = _options(v1.EventKind)


UNDECIDED = (v1.TRIAL_STATUS_INTERRUPTED, v1.TRIAL_STATUS_FAILED)
"""The statuses of trials that ended without a decision."""


class JobTrial(NamedTuple):
    """A trial with its job: a row of `TRIAL_COLUMNS`."""

    job: v1.Job
    trial: v1.Trial


def listed_state(listing: v1.JobListing) -> str:
    """Returns the state of a job of a list with summaries, in a word or two."""
    summary = listing.summary
    return _state(listing.job, failing=summary.needs_attention, running=summary.num_running_trials > 0)


def job_state(job: v1.Job, details: v1.JobDetails) -> str:
    """Returns the state of a job in a word or two."""
    running = any(state.num_running for state in details.batch_size_states)
    return _state(job, failing=bool(details.advice), running=running)


def _state(job: v1.Job, *, failing: bool, running: bool) -> str:
    """Returns the state in a word or two, for lists and pages; what needs attention comes first."""
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
    """Returns what a launch gets unless something is tried; None if no batch size is left."""
    return cast("int | None", optional(job, "batch_size_in_use"))


def stuck(job: v1.Job) -> bool:
    """Returns whether no batch size is left to try."""
    return not job.available_batch_sizes


def stage(job: v1.Job) -> str:
    """Returns the stage: "pruning, round 1 of 2", "stuck in round 1 of 2" or "bandit"; "-" for a policy without."""
    if not has_stages(job.spec):
        return "stuck" if stuck(job) else "-"
    state = job.policy_state.pruning_gts
    if state.stage != v1.PRUNING_GTS_STAGE_PRUNING:
        return "stuck in the bandit" if stuck(job) else "bandit"
    where = f"round {state.pruning_round + 1} of {job.spec.policy.pruning_gts.num_pruning_rounds}"
    return f"stuck in {where}" if stuck(job) else f"pruning, {where}"


def has_stages(spec: v1.JobSpec) -> bool:
    """Returns whether the policy has stages, and trials of several roles."""
    return policy_name(spec) == "pruning_gts"


def policy(spec: v1.JobSpec) -> str:
    """Returns the name of a policy, as in a job file; "unknown" if it is newer than this client."""
    return policy_name(spec) or "unknown"


def policy_with_parameters(spec: v1.JobSpec) -> str:
    """Returns a policy with those of its parameters that are not the defaults: "gts (window_size 50)"."""
    name = policy_name(spec)
    if not name:
        return policy(spec)
    special = [
        f"{field.name} {value if isinstance(value, int | float) else ', '.join(value)}"
        for field, value in getattr(spec.policy, name).ListFields()
        if value != DEFAULTS.get(field.name)
    ]
    return f"{policy(spec)} ({', '.join(special)})" if special else policy(spec)


def max_epochs(spec: v1.JobSpec) -> str:
    """Returns the most epochs that a trial may take: "1 epoch"."""
    return f"{spec.max_epochs} epoch{'s' * (spec.max_epochs != 1)}"


def target_text(spec: v1.JobSpec) -> str:
    """Returns what a trial must reach: "metric at least 0.9 within 10 epochs"."""
    return f"metric {direction(spec)} {spec.target.value:g} within {max_epochs(spec)}"


def stopping_text(spec: v1.JobSpec) -> str:
    """Returns when a trial is stopped early: "never", or "above 2 times the least expected cost"."""
    rule = spec.early_stopping
    if rule.WhichOneof("rule") != "cost_bound":
        return "never"
    least = "least expected cost" if policy_name(spec) == "knowledge_gradient" else "cost of the cheapest trial"
    return f"above {rule.cost_bound.beta_knob:g} times the {least}"


def direction(spec: v1.JobSpec) -> str:
    """Returns on which side of a job's target its metric must be."""
    return "at least" if higher_is_better(spec) else "at most"


def end_reason(value: v1.EndReason.ValueType) -> str:
    """Returns why a trial ended, such as "target reached"."""
    return enum_name(v1.EndReason, value)


_STATUSES = {
    end_reason(enum_value(v1.EndReason, reason)): v1.TrialStatus.Value(f"TRIAL_STATUS_{status.value}")
    for reason, status in STATUS_AFTER.items()
}


def trial_result(reason: str, *, reached: bool, status: v1.TrialStatus.ValueType = v1.TRIAL_STATUS_UNSPECIFIED) -> str:
    """Returns how a trial ended in a few words: "reached", "missed: cost bound", "failed: out of memory".

    Args:
        reason: its end reason, as `end_reason` names it.
        reached: whether its metric reached the target, at any cost.
        status: its status, by which it ended if the reason is newer than this client.
    """
    if reached:
        return "reached: over budget" if reason == end_reason(v1.END_REASON_COST_BOUND) else "reached"
    status = _STATUSES.get(reason, status)
    if status == v1.TRIAL_STATUS_DECIDED:
        return f"missed: {reason}"
    if status == v1.TRIAL_STATUS_INTERRUPTED:
        return f"interrupted: {reason}"
    return "failed: no decision" if reason == end_reason(v1.END_REASON_COMPLETED) else f"failed: {reason}"


def result(row: JobTrial) -> str:
    """Returns how a trial ended, its target and whether it counts, such as "missed: cost bound, excluded"."""
    trial, text = row.trial, "running"
    if trial.status != v1.TRIAL_STATUS_RUNNING:
        text = trial_result(end_reason(trial.end_reason), reached=trial.target_reached, status=trial.status)
    return with_uncounted(text, row)


def uncounted(job: v1.Job, trial: v1.Trial) -> str:
    """Returns why a trial does not count; empty if it does."""
    if trial.id.trial_number <= job.reset_after:
        return "before reset"
    if trial.excluded:
        return "excluded"
    doubts = any(warning.reason == v1.WARNING_REASON_DELIVERY_UNUSUALLY_CHEAP for warning in trial.warnings)
    return "doubtful" if doubts else ""


def with_uncounted(text: str, row: JobTrial) -> str:
    """Returns a text about a trial with why it does not count, if it does not."""
    why = uncounted(row.job, row.trial)
    return f"{text}, {why}" if why else text


def target(trial: v1.Trial) -> str:
    """Returns whether a trial has reached its job's target; empty if it was never evaluated, or failed."""
    if not trial.HasField("newest") or trial.status in UNDECIDED:
        return ""
    if trial.status == v1.TRIAL_STATUS_RUNNING:
        return "not yet"
    if not trial.target_reached:
        return "missed"
    return "reached" if trial.converged else "reached, over budget"


def lease(trial: v1.Trial, text: Callable[[Timestamp], str]) -> str:
    """Returns when the lease of a running trial expires, as a text of that time."""
    if trial.status != v1.TRIAL_STATUS_RUNNING:
        return ""
    return text(trial.lease_expire_time) if trial.HasField("lease_expire_time") else "never"


def trial_origin(trial: v1.Trial) -> str:
    """Returns who chose a trial's batch size, and what for if its policy says so: "search, exploration"."""
    origin = enum_name(v1.TrialOrigin, trial.origin)
    if not trial.HasField("pruning_gts"):
        return origin
    return f"{origin}, {enum_name(v1.PruningGtsRole, trial.pruning_gts.role)}"


def warning_kind(value: int) -> str:
    """Returns what a warning is about, such as "no energy"."""
    return enum_name(v1.WarningReason, value)


def event_kind(value: int) -> str:
    """Returns the kind of an event, such as "trial failed"."""
    return enum_name(v1.EventKind, value)


def ranges(numbers: Iterable[int]) -> str:
    """Returns ascending numbers, with those that follow each other as a range: "1-3, 7"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def monitors(job: v1.Job) -> str:
    """Returns the monitor of a job's trials, and earlier ones."""
    monitor = monitor_text(job.monitor)
    return f"{monitor}, {other_monitors(job)} before" if job.other_monitors else monitor


def other_monitors(job: v1.Job) -> str:
    """Returns the other monitors of a job's trials, such as "estimate and nvml+rapl"."""
    return " and ".join(map(monitor_text, job.other_monitors))


def mark_of(job: v1.Job) -> str:
    """Returns the mark before a job's energies and costs if all or some of them are estimates."""
    return estimate_mark(job.monitor, *job.other_monitors)


class BatchSize(NamedTuple):
    """A batch size of a job, as the lists of the job's details and statistics describe it.

    Attributes:
        state: What the search knows about it.
        arm: The belief of the policy; empty for a policy without beliefs.
        limit: Its cheapest power limit; empty if it has none.
        trials: The figures of its trials; empty without trials.
    """

    state: v1.BatchSizeState
    arm: v1.Arm
    limit: v1.PowerLimit
    trials: v1.TrialStatistics

    @property
    def expected_cost(self) -> float | None:
        """The expected cost of a model, in joules; None if it is not known."""
        return _finite(self.state, "expected_cost")

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the expected cost, in joules; None if it is not known."""
        return _finite(self.state, "expected_cost_deviation")


def _finite(message: Any, name: str) -> float | None:
    value = optional(message, name)
    return value if value is not None and math.isfinite(value) else None


def batch_sizes(details: v1.JobDetails, statistics: v1.JobStatistics) -> list[BatchSize]:
    """Returns the batch sizes of a job, the smallest one first."""
    arms = {each.batch_size: each for each in arms_of(details)}
    limits = {each.batch_size: each for each in details.power_limits}
    trials = {each.batch_size: each for each in statistics.trials}
    return [
        BatchSize(
            state,
            arms.get(state.batch_size, v1.Arm()),
            limits.get(state.batch_size, v1.PowerLimit()),
            trials.get(state.batch_size, v1.TrialStatistics()),
        )
        for state in sorted(details.batch_size_states, key=lambda state: state.batch_size)
    ]


def arms_of(details: v1.JobDetails) -> Sequence[v1.Arm]:
    """Returns the beliefs of the job's policy; empty for a policy that this client does not know."""
    of_policy = details.policy_details
    known: Mapping[str | None, Sequence[v1.Arm]] = {
        "pruning_gts": of_policy.pruning_gts.arms,
        "gts": of_policy.gts.arms,
        "knowledge_gradient": of_policy.knowledge_gradient.arms,
    }
    return known.get(of_policy.WhichOneof("details"), ())


def status_name(state: v1.BatchSizeState) -> str:
    """Returns the status of a batch size in words, such as "set aside" or "banned, out of memory"."""
    people = [word for word, is_so in (("pinned", state.pinned), ("banned", state.banned)) if is_so]
    if people and state.status == v1.BATCH_SIZE_STATUS_AVAILABLE:
        return ", ".join(people)
    return ", ".join((*people, enum_name(v1.BatchSizeStatus, state.status)))


def may_be_chosen(state: v1.BatchSizeState) -> bool:
    """Returns whether the search may choose a batch size."""
    return state.status == v1.BATCH_SIZE_STATUS_AVAILABLE and not state.banned


def choosable(details: v1.JobDetails) -> list[int]:
    """Returns the batch sizes that the search may choose."""
    return [state.batch_size for state in details.batch_size_states if may_be_chosen(state)]


def banned(details: v1.JobDetails) -> list[int]:
    """Returns the batch sizes that a person has banned."""
    return [state.batch_size for state in details.batch_size_states if state.banned]


def baseline_waits(job: v1.Job, details: v1.JobDetails) -> str:
    """Returns until when a baseline waits; empty if the next launch can be one."""
    match details.baseline_wait:
        case v1.BASELINE_WAIT_PINNED:
            return f"until {job.pinned_batch_size} is unpinned"
        case v1.BASELINE_WAIT_PAUSED:
            return "until the search is resumed"
        case v1.BASELINE_WAIT_NOT_CHOOSABLE:
            return f"until {job.spec.default_batch_size} may be chosen"
    return ""


def sizes(batch_sizes: Iterable[int]) -> str:
    """Returns batch sizes, separated by commas."""
    return ", ".join(map(str, batch_sizes)) or "none"
