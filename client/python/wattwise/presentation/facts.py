"""The facts of a job and of a trial, which the terminal prints as lines and the page as lists.

Commands in their texts are in backquotes.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

from wattwise import v1
from wattwise.monitor.kind import monitor_text
from wattwise.presentation.quantities import (
    COMPUTED_NOTE,
    duration,
    energy,
    energy_of,
    estimate_mark,
    joules,
    marked,
    metric,
    moment,
    watts_per_gpu,
)
from wattwise.presentation.sentences import number_of
from wattwise.presentation.states import (
    banned,
    baseline_waits,
    direction,
    has_stages,
    lease,
    mark_of,
    monitors,
    other_monitors,
    policy_with_parameters,
    ranges,
    sizes,
    stage,
    stopping_text,
    target_text,
    trial_origin,
    warning_kind,
)
from wattwise.spec import gpus_text


class Fact(NamedTuple):
    """A text with its name."""

    label: str
    text: str


def job_warnings(job: v1.Job, details: v1.JobDetails) -> list[Fact]:
    """Returns what is wrong with a job: what to change about it, and warnings about its trials."""
    facts = [Fact("advice", details.advice)] if details.advice else []
    facts += [
        Fact("warning", f"trial {each.trial_number}, {warning_kind(each.reason)}: {each.message}")
        for each in job.warnings
    ]
    if job.other_monitors:
        used = f"{monitor_text(job.monitor)} and {other_monitors(job)}"
        text = f"trials measured energy with {used}: their costs cannot be compared; use one job id per monitor"
        facts.append(Fact("mixed monitors", text))
    return facts


def trial_warnings(trial: v1.Trial) -> list[Fact]:
    """Returns what looks wrong about a trial."""
    return [Fact("warning", f"{warning_kind(each.reason)}: {each.message}") for each in trial.warnings]


def set_by_people(job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics) -> list[Fact]:
    """Returns what people have set, which the search does not change, and how to undo it."""
    default, job_id = job.spec.default_batch_size, shlex.quote(job.spec.job_id)
    waits = baseline_waits(job, details)
    but = f", but not {waits}" if waits else ""
    facts = []
    if job.HasField("pinned_batch_size"):
        text = f"every launch gets batch size {job.pinned_batch_size}; `wattwise jobs unpin {job_id}` undoes it"
        facts.append(Fact("pinned", text))
    if job.paused:
        text = "launches get the best known batch size, and no other one is tried"
        if job.HasField("pinned_batch_size"):
            text = f"once nothing is pinned, {text}"
        facts.append(Fact("paused", f"{text}; `wattwise jobs resume {job_id}` undoes it"))
    if job.baseline_requested:
        facts.append(Fact("baseline", f"the next launch gets the default batch size, {default}{but}"))
    if job.HasField("baseline_every"):
        text = f"one launch in {job.baseline_every} gets the default batch size, {default}{but}"
        facts.append(Fact("baselines", f"{text}; `wattwise jobs baseline {job_id} --every 0` undoes it"))
    if bans := banned(details):
        which = f"batch size {bans[0]}" if len(bans) == 1 else f"batch sizes {sizes(bans)}"
        undo = f"wattwise jobs unban {job_id} {bans[0] if len(bans) == 1 else 'BATCH_SIZE'}"
        facts.append(Fact("banned", f"the search does not choose {which}; `{undo}` undoes it"))
    if excluded := statistics.excluded_trials:
        which = f"trial {excluded[0]} does" if len(excluded) == 1 else f"trials {ranges(excluded)} do"
        facts.append(Fact("excluded", f"{which} not count; `wattwise jobs include-trial {job_id} N` undoes it"))
    if job.HasField("reset_after"):
        when = f"{moment(job.reset_time)}: " if job.HasField("reset_time") else ""
        which = "trial 1 does" if job.reset_after == 1 else f"trials 1-{job.reset_after} do"
        facts.append(Fact("reset", f"{when}{which} not count, because the search began again after them"))
    return facts


def job_facts(job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics) -> list[Fact]:
    """Returns how a job is configured, and what has changed."""
    spec = job.spec
    stopping = stopping_text(spec)
    if stopping != "never" and (job.HasField("pinned_batch_size") or job.paused):
        exempt = "a pinned batch size" if job.HasField("pinned_batch_size") else "a paused search"
        stopping += f"; trials of {exempt} are not"
    facts = [
        Fact("policy", policy_with_parameters(spec)),
        *([Fact("stage", stage(job))] if has_stages(spec) else []),
        Fact("available", f"{sizes(job.available_batch_sizes)} (of {sizes(spec.batch_sizes)}): launches may get these"),
        Fact("default", str(spec.default_batch_size)),
        Fact("target", target_text(spec)),
        Fact("eta", f"{spec.eta_knob:g} (1: only energy, 0: only time)"),
        Fact("stopped early", stopping),
        Fact("GPUs", gpus_text(spec)),
        Fact("monitor", monitor_of(job)),
        Fact("trials", f"{job.num_trials:,}"),
        Fact("registered", moment(job.create_time)),
    ]
    if job.HasField("best_known_batch_size"):
        cost = marked(joules, mark_of(job))(job.best_known_cost)
        text = f"batch size {job.best_known_batch_size}: expected cost {cost} per model"
        facts.insert(0, Fact("cheapest so far", text))
    if requested := statistics.num_requested:
        facts.append(Fact("set by a person", number_of(requested, "trial")))
    if imported := statistics.num_imported:
        facts.append(Fact("imported", number_of(imported, "trial")))
    warned = {warning.message for warning in job.warnings}
    facts += [Fact("changed", change.message) for change in details.changes if change.message not in warned]
    return facts


def monitor_of(job: v1.Job) -> str:
    """Returns which monitors measured the energy of a job, and what follows for its costs."""
    if not job.monitor.kinds:
        return "no trial has named one yet"
    return f"{monitors(job)}{': these costs cannot be compared' if job.other_monitors else ''}"


def trial_reasons(trial: v1.Trial) -> list[Fact]:
    """Returns why a trial has its batch size, and why it goes on or ended."""
    running = trial.status == v1.TRIAL_STATUS_RUNNING
    facts = [Fact(f"why batch size {trial.batch_size}", trial.reason or "not recorded: it was imported")]
    if trial.decision_message:
        facts.append(Fact("why it goes on" if running else "why it ended", trial.decision_message))
    return facts


def trial_facts(job: v1.Job, trial: v1.Trial) -> list[Fact]:
    """Returns what a trial has taken and reached, and how it came about."""
    spec, newest, mark = job.spec, trial.newest, estimate_mark(trial.monitor)
    facts = [
        Fact("batch size", f"{trial.batch_size}{', the default' * (trial.batch_size == spec.default_batch_size)}"),
        Fact("origin", trial_origin(trial)),
        Fact("epochs", f"{newest.epoch} of at most {spec.max_epochs}"),
    ]
    if trial.HasField("newest"):
        facts.append(Fact("metric", f"{metric(newest.metric)}; the target is {direction(spec)} {spec.target.value:g}"))
    if trial.HasField("cost"):
        bound = f"stopped above {joules(trial.cost_bound)}" if trial.HasField("cost_bound") else "without a bound"
        used = energy_of(newest)
        facts += [
            Fact("cost", f"{marked(joules, mark)(trial.cost)}, {bound}"),
            Fact("time", duration(newest.time_seconds)),
            Fact("energy", "not measured" if used is None else marked(energy, mark)(used)),
        ]
    if newest.HasField("computed"):
        limit = watts_per_gpu(newest.computed.power_setting.limit_watts_per_gpu)
        facts.append(Fact("computed", f"the cost is {COMPUTED_NOTE}: {limit}"))
    if newest.power_setting.HasField("limit_watts_per_gpu"):
        facts.append(Fact("power limit", watts_per_gpu(newest.power_setting.limit_watts_per_gpu)))
    if trial.monitor.kinds:
        facts.append(Fact("monitor", monitor_text(trial.monitor)))
    if trial.HasField("recurrence"):
        before = number_of(trial.recurrence - 1, "delivery", "deliveries")
        facts.append(Fact("recurrence", f"{trial.recurrence:,}: the job had {before} when it started"))
    if trial.HasField("start_time"):
        facts.append(Fact("started", moment(trial.start_time)))
    if trial.HasField("end_time"):
        facts.append(Fact("ended", moment(trial.end_time)))
    if expires := lease(trial, moment):
        facts.append(Fact("lease expires", expires))
    if trial.token_id:
        facts.append(Fact("token", trial.token_id))
    return facts
