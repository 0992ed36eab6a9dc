"""What pages say of a job or a trial in names and texts: its facts, what people have set, and how two jobs compare."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from wattwise import v1
from wattwise.monitor.kind import monitor_text
from wattwise.presentation.quantities import energy_of
from wattwise.presentation.sentences import main_quantity, number_of, shown_saving
from wattwise.presentation.states import (
    banned,
    baseline_waits,
    has_stages,
    max_epochs,
    policy,
    stopping_text,
    target_text,
)
from wattwise.spec import gpus_text, max_power_watts

from wattwise_web import amounts

LOG_URL = "log_url"
"""The label whose value leads to the log of a trial."""
_GLOSSARY = (Path(__file__).with_name("glossary.md"), Path(__file__).parents[2] / "docs/glossary.md")
"""The places of the glossary: in a package, and in a checkout."""


class Held(NamedTuple):
    """Something that a person has set, and the command that undoes it.

    Attributes:
        name: what it is.
        text: what it means for launches, as a sentence.
        command: the command; empty if there is none.
    """

    name: str
    text: str
    command: str = ""


def by_people(job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics) -> list[Held]:
    """Returns what people have set, which the search does not change."""
    spec, job_id = job.spec, shlex.quote(job.spec.job_id)
    found = []
    if job.HasField("pinned_batch_size"):
        text = f"Every launch gets batch size {job.pinned_batch_size}."
        found.append(Held("pinned", text, f"wattwise jobs unpin {job_id}"))
    if job.paused:
        text = "Launches get the best known batch size, and no other one is tried."
        found.append(Held("paused", text, f"wattwise jobs resume {job_id}"))
    if job.baseline_requested:
        waits = baseline_waits(job, details)
        when = (
            f"A launch gets the default batch size, {spec.default_batch_size}, but not {waits}"
            if waits
            else (f"The next launch gets the default batch size, {spec.default_batch_size}")
        )
        found.append(Held("baseline", f"{when}."))
    if job.HasField("baseline_every"):
        waits = baseline_waits(job, details)
        what = f"One launch in {job.baseline_every} gets the default batch size, {spec.default_batch_size}"
        text = f"{what}, but not {waits}." if waits else f"{what}."
        found.append(Held("baselines", text, f"wattwise jobs baseline {job_id} --every 0"))
    if bans := banned(details):
        text = f"The search does not choose batch size{'' if len(bans) == 1 else 's'} {', '.join(map(str, bans))}."
        which = bans[0] if len(bans) == 1 else "BATCH_SIZE"
        found.append(Held("banned", text, f"wattwise jobs unban {job_id} {which}"))
    if excluded := len(statistics.excluded_trials):
        verb = "does" if excluded == 1 else "do"
        text = f"{number_of(excluded, 'trial')} {verb} not count."
        found.append(Held("excluded", text, f"wattwise jobs include-trial {job_id} N"))
    if job.HasField("reset_after"):
        found.append(Held("reset", f"Trials up to {job.reset_after} do not count: the search began again after them."))
    return found


def chooser(job: v1.Job, choices: Sequence[v1.PreviewedChoice]) -> str:
    """Returns who chooses the batch size of the next launch."""
    if not choices:
        return ""
    if all(choice.origin == v1.TRIAL_ORIGIN_REQUESTED for choice in choices):
        return "Set by a person."
    return f"Chosen by the search: {amounts.stage_word(job)}."


def job_facts(job: v1.Job, details: v1.JobDetails) -> list[tuple[str, str]]:
    """Returns which batch size a job uses, and how it is configured."""
    spec = job.spec
    facts = [
        ("Used now", _used(job)),
        (
            "Policy",
            amounts.stage_word(job) if not has_stages(spec) else f"{policy(spec)}: {amounts.stage_word(job)}",
        ),
        ("Batch sizes", ", ".join(map(str, spec.batch_sizes))),
        ("Default", str(spec.default_batch_size)),
        ("Target", target_text(spec)),
        ("Energy against time", f"η = {spec.eta_knob:g} (1: only energy, 0: only time)"),
        ("Stopped early", stopping_text(spec, "×")),
        ("GPUs", gpus_text(spec, "×")),
        ("Monitor", monitor_text(job.monitor) or "none named yet"),
        ("Registered", amounts.moment(job.create_time).exact),
    ]
    if job.HasField("best_known_batch_size"):
        cost = amounts.cost(job.best_known_cost)
        facts.insert(1, ("Cheapest so far", f"batch size {job.best_known_batch_size}: {cost} expected for a model"))
    facts += [("Changed", change.message) for change in details.changes]
    return facts


def _used(job: v1.Job) -> str:
    if not job.HasField("batch_size_in_use"):
        return "none: no batch size is left to try"
    size = job.batch_size_in_use
    notes = [
        *(["pinned"] if job.HasField("pinned_batch_size") else []),
        *(["the default"] if size == job.spec.default_batch_size else []),
    ]
    return f"batch size {size} ({', '.join(notes)})" if notes else f"batch size {size}"


def compared(pairs: Sequence[tuple[v1.Job, v1.JobStatistics]], factors: v1.Factors) -> list[tuple[str, Sequence[str]]]:
    """Returns the key figures of two jobs."""
    dash = amounts.unknown()
    columns = []
    for job, of in pairs:
        spec, spent, deliveries, cost = job.spec, of.spent, of.num_deliveries, of.savings.cost
        quantity = main_quantity(of.savings, factors)
        told = quantity.name == "money"
        each = of.spent_per_delivery
        money = each.money if told and deliveries else None
        at_least, lost = shown_saving(quantity.saving, quantity.text)
        now = amounts.cost(cost.in_use) if cost.HasField("in_use") else dash
        with_default = amounts.cost(cost.with_default) if cost.HasField("with_default") else dash
        columns.append(
            {
                "used now": str(job.batch_size_in_use) if job.HasField("batch_size_in_use") else dash,
                "default": str(spec.default_batch_size),
                "cost of a model now": now,
                "cost of a model with the default": with_default,
                "trials": f"{job.num_trials:,}",
                "deliveries": f"{deliveries:,}",
                "cost per delivery so far": amounts.cost(each.cost) if deliveries else dash,
                **(
                    {"money per delivery so far": dash if money is None else amounts.money(money, factors.currency)}
                    if told
                    else {}
                ),
                "energy so far": amounts.energy(spent.energy_joules) if spent.HasField("energy_joules") else dash,
                "time so far": amounts.span(spent.time_seconds),
                "saved at least, or lost": at_least or lost or "not shown yet",
                "mean epochs of a delivery": amounts.number(of.mean_epochs) if of.HasField("mean_epochs") else dash,
                "policy": policy(spec),
                "target": f"{spec.target.value:g} within {max_epochs(spec)}",
                "η": f"{spec.eta_knob:g}",
                "GPUs": gpus_text(spec, "×"),
                "monitor": monitor_text(job.monitor) or dash,
            }
        )
    one, other = columns
    return [(name, (text, other.get(name, dash))) for name, text in one.items()]


def incomparable(one: v1.Job, other: v1.Job) -> list[str]:
    """Returns why the costs of two jobs cannot be compared."""
    notes = []
    if one.spec.eta_knob != other.spec.eta_knob:
        notes.append(
            f"The costs weigh energy and time differently: η is {one.spec.eta_knob:g} and {other.spec.eta_knob:g}."
        )
    elif one.spec.eta_knob < 1 and max_power_watts(one.spec) != max_power_watts(other.spec):
        notes.append(
            "The costs count time at different powers: the GPUs of the jobs may draw different maximum powers."
        )
    if one.monitor.kinds and other.monitor.kinds and set(one.monitor.kinds) != set(other.monitor.kinds):
        monitors = f"{monitor_text(one.monitor)} and {monitor_text(other.monitor)}"
        notes.append(f"The energy was measured by different monitors: {monitors}.")
    if one.spec.target != other.spec.target:
        notes.append("The targets differ, so a delivery of one job is not that of the other.")
    return notes


def glossary() -> list[tuple[str, str]]:
    """Returns the terms of the glossary of the docs, with their meanings; empty if it is not installed."""
    file = next((file for file in _GLOSSARY if file.is_file()), None)
    text = "" if file is None else file.read_text(encoding="utf-8")
    found = re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=\n\S|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return [(term, _without_markup(" ".join(meaning.split()))) for term, meaning in found]


def _without_markup(text: str) -> str:
    """Returns a line of Markdown without its links, code and emphasis."""
    return re.sub(r"\*(.+?)\*", r"\1", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text.replace("`", "")))


def web_url(text: str) -> str:
    """Returns a text that is an address of the web, so that it may become a link; empty for any other text."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return ""
    return text if good and text.isprintable() and " " not in text else ""


def trial_facts(job: v1.Job, trial: v1.Trial) -> list[tuple[str, str]]:
    """Returns what a trial has taken and reached, and how it came about."""
    facts = [
        (
            "Batch size",
            f"{trial.batch_size}{' (the default)' if trial.batch_size == job.spec.default_batch_size else ''}",
        ),
        ("Chosen", amounts.chooser(trial)),
        ("Epochs", f"{trial.newest.epoch} of at most {job.spec.max_epochs}"),
        (
            "Metric",
            f"{amounts.metric(trial.newest.metric)}, target {job.spec.target.value:g}"
            if trial.HasField("newest")
            else "no report yet",
        ),
        ("Time", amounts.span(trial.newest.time_seconds)),
        ("Energy", "not measured" if (energy := energy_of(trial.newest)) is None else amounts.energy(energy)),
    ]
    if trial.HasField("cost"):
        bound = (
            f", stopped above {amounts.cost(trial.cost_bound)}" if trial.HasField("cost_bound") else ", without a bound"
        )
        facts.append(("Cost", f"{amounts.cost(trial.cost)}{bound}"))
    if trial.newest.HasField("computed"):
        watts = f"{trial.newest.computed.power_setting.limit_watts_per_gpu:g} W"
        facts.append(("Computed", f"the cost is computed for the power limit of {watts}, not measured"))
    if trial.newest.power_setting.HasField("limit_watts_per_gpu"):
        facts.append(("Power limit", f"{trial.newest.power_setting.limit_watts_per_gpu:g} W per GPU"))
    if trial.monitor.kinds:
        facts.append(("Monitor", monitor_text(trial.monitor)))
    if trial.HasField("recurrence"):
        before = number_of(trial.recurrence - 1, "delivery", "deliveries")
        facts.append(("Recurrence", f"{trial.recurrence:,}: the job had {before} when it started"))
    if trial.HasField("start_time"):
        facts.append(("Started", amounts.moment(trial.start_time).exact))
    if trial.HasField("end_time"):
        facts.append(("Ended", amounts.moment(trial.end_time).exact))
    if trial.HasField("lease_expire_time"):
        facts.append(("Lease", f"expires {amounts.moment(trial.lease_expire_time, is_ahead=True).ago}"))
    if trial.token_id:
        facts.append(("Token", trial.token_id))
    return facts
