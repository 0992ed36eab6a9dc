"""The answer to what a job's reader asks first: what a launch costs now, what was saved, what is used, what comes next.

The page, the terminal, `wattwise run` and the demo show these sentences, so that they never differ.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from wattwise import v1
from wattwise.presentation.quantities import joules, money, percent
from wattwise.presentation.states import banned, baseline_waits, choosable, mark_of, sizes, stuck

Kind = Literal["saving", "loss", "exploring", "uncertain", "none"]

_KINDS: dict[int, Kind] = {
    v1.SAVINGS_VERDICT_SAVING: "saving",
    v1.SAVINGS_VERDICT_LOSS: "loss",
    v1.SAVINGS_VERDICT_EXPLORING: "exploring",
    v1.SAVINGS_VERDICT_UNCERTAIN: "uncertain",
}

_CHOICES = 3
"""Choices of the next launch that are named."""

_ABOUT_THE_SAME = 0.005
"""A difference below this is said as none."""


class Quantity(NamedTuple):
    """What savings are told in.

    Attributes:
        name: "money" or "cost".
        saving: What was saved of it.
        text: Formats an amount.
    """

    name: Literal["money", "cost"]
    saving: v1.SavingsEstimate
    text: Callable[[float], str]


class Answer(NamedTuple):
    """Sentences about a job, each with its full stop.

    Attributes:
        kind: What was saved, in a word.
        now: What a launch costs now, and with the default batch size.
        saved: What was saved at least, or lost, or why that is not known.
        settle: What would show a saving, what that costs, and how to request it; empty if there is nothing to show.
        used: Which batch size is used now, and why.
        upcoming: What the next launch gets; empty if nothing is left to try.
    """

    kind: Kind
    now: str
    saved: str
    settle: str
    used: str
    upcoming: str

    @property
    def brief(self) -> str:
        """What a launch costs, what was saved and which batch size is used, in a line."""
        return " ".join(filter(None, (self.now, self.saved, self.settle, self.used)))


def answer(
    job: v1.Job,
    details: v1.JobDetails,
    savings: v1.Savings,
    factors: v1.Factors,
    choices: Sequence[v1.PreviewedChoice] | None = None,
) -> Answer:
    """What the figures of a job say.

    Args:
        job: The job.
        details: What it knows about its batch sizes.
        savings: Its savings.
        factors: The operator's prices: with them, money is the quantity that is told.
        choices: What the next launch may get, the most probable first; None if that was not asked for.
    """
    quantity = main_quantity(savings, factors)
    return Answer(
        kind_of(job, quantity.saving),
        _now(job, savings, quantity),
        _saved(job, savings, quantity),
        _settle(job, details, savings, quantity),
        _used(job, quantity),
        "" if choices is None else _upcoming(job, choices),
    )


def main_quantity(savings: v1.Savings, factors: v1.Factors) -> Quantity:
    """Money where the operator has set prices and all of it is known, else cost."""
    known = measured_part(savings, factors)
    if has_prices(factors) and known.HasField("money") and known.money.verdict != v1.SAVINGS_VERDICT_NOT_MEASURED:
        return Quantity("money", known.money, lambda value: money(value, factors.currency))
    return Quantity("cost", savings.cost, joules)


def has_prices(factors: v1.Factors) -> bool:
    """Whether the operator has set a price above 0: with free energy and hours, there is no money to show."""
    return bool(factors.electricity_price_per_kwh or factors.gpu_hour_price)


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
    elif factors.electricity_price_per_kwh and savings.energy.verdict == v1.SAVINGS_VERDICT_NOT_MEASURED:
        found.money.CopyFrom(v1.SavingsEstimate(spent=savings.money.spent, verdict=v1.SAVINGS_VERDICT_NOT_MEASURED))
    return found


def kind_of(job: v1.Job, saving: v1.SavingsEstimate) -> Kind:
    """What a verdict amounts to; "none" if nothing can be claimed yet. A job without a search does not explore."""
    if saving.verdict == v1.SAVINGS_VERDICT_EXPLORING and _is_held(job):
        return "uncertain" if saving.HasField("at_least") else "none"
    return _KINDS.get(saving.verdict, "none")


def _is_held(job: v1.Job) -> bool:
    """Whether an operator has paused the search or pinned a batch size."""
    return job.paused or job.HasField("pinned_batch_size")


def since_trial(savings: v1.Savings) -> str:
    """The trial from which savings are compared, to follow a noun; empty if all trials are."""
    return f" since trial {savings.compared_from_trial}" if savings.compared_from_trial else ""


def number_of(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 run", "1,204 runs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def share_saved(saving: v1.SavingsEstimate) -> float:
    """What was saved at least, as a share of what the default would have taken at least."""
    would_have = saving.spent + saving.at_least
    return saving.at_least / would_have if would_have > 0 else 0.0


def share_lost(savings: v1.Savings, saving: v1.SavingsEstimate) -> float:
    """What was lost, as a share of what the default would have taken; 0 if that is not known."""
    would_have = savings.num_deliveries * saving.with_default
    return saving.lost / would_have if would_have > 0 else 0.0


def change_now(savings: v1.Savings, saving: v1.SavingsEstimate) -> str:
    """What a model costs now compared with the default: "44% less", "12% more" or "about the same".

    Empty if either batch size has too few deliveries for a comparison.
    """
    few = min(savings.num_baseline_trials, savings.num_in_use_trials) < savings.min_baseline_trials
    if few or not (saving.HasField("in_use") and saving.with_default):
        return ""
    return _more_or_less(saving.in_use / saving.with_default - 1)


def shown_saving(saving: v1.SavingsEstimate, text: Callable[[float], str]) -> tuple[str, str]:
    """What was saved at least, and the estimate, or what was lost; empty where that is not shown."""
    if saving.verdict == v1.SAVINGS_VERDICT_SAVING:
        return text(saving.at_least), text(saving.saved)
    if saving.verdict == v1.SAVINGS_VERDICT_LOSS:
        return "", f"lost {text(saving.lost)}"
    return "", ""


def _now(job: v1.Job, savings: v1.Savings, quantity: Quantity) -> str:
    saving, text, mark = quantity.saving, quantity.text, mark_of(job)
    default, used = job.spec.default_batch_size, savings.batch_size_in_use
    if not (savings.num_deliveries or saving.HasField("in_use") or saving.HasField("with_default")):
        return _no_delivery(job, savings)
    if saving.verdict == v1.SAVINGS_VERDICT_NOT_MEASURED:
        return f"Some launches have no measurement of their {quantity.name}, so what a model costs is not known."
    usual = ""
    if saving.HasField("with_default") and used != default:
        usual = f"{text(saving.with_default)} with the default, {default}{_few(savings, savings.num_baseline_trials)}"
    if not saving.HasField("in_use"):
        none = f"Batch size {used} has not reached the target{_since(job, savings)}"
        return f"{none}; a model costs {usual}{mark}." if usual else f"{none}."
    now = f"A model costs {text(saving.in_use)} now"
    if used == default:
        return f"{now}, with the default, {default}{_few(savings, savings.num_baseline_trials)}{mark}."
    now += _few(savings, savings.num_in_use_trials)
    if not usual:
        return f"{now}{mark}; the default, {default}, has not reached the target{_since(job, savings)}."
    return ": ".join(filter(None, (f"{now}, {usual}", change_now(savings, saving)))) + f"{mark}."


def _no_delivery(job: v1.Job, savings: v1.Savings) -> str:
    if job.num_trials:
        return f"No launch that counts has reached the target{_since(job, savings) or ' yet'}."
    return "No launch yet." if _is_held(job) else "No launch yet: the first one begins the search."


def _few(savings: v1.Savings, deliveries: int) -> str:
    """How few deliveries a cost is from, if they are too few for a comparison."""
    if deliveries >= savings.min_baseline_trials:
        return ""
    return " (one delivery)" if deliveries == 1 else f" ({deliveries} deliveries)"


def _since(job: v1.Job, savings: v1.Savings) -> str:
    """The time or trial from which deliveries count, to follow a noun; empty if all do."""
    if since := since_trial(savings):
        return since
    return f" since the reset after trial {job.reset_after}" if job.HasField("reset_after") else ""


def _more_or_less(change: float) -> str:
    if abs(change) < _ABOUT_THE_SAME:
        return "about the same"
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'}"


def _saved(job: v1.Job, savings: v1.Savings, quantity: Quantity) -> str:
    saving, text, default = quantity.saving, quantity.text, job.spec.default_batch_size
    deliveries = f"{number_of(savings.num_deliveries, 'delivery', 'deliveries')}{since_trial(savings)}"
    found = "What was saved is not known: this client is older than the server."
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            share = f"at least {percent(share_saved(saving))} of what the default would have cost"
            found = f"Saved at least {text(saving.at_least)} in {deliveries}, {share}."
        case v1.SAVINGS_VERDICT_LOSS:
            share = f"{percent(share_lost(savings, saving))} more than the default would have cost"
            found = f"Lost about {text(saving.lost)} in {deliveries}, {share}."
        case v1.SAVINGS_VERDICT_UNCERTAIN | v1.SAVINGS_VERDICT_EXPLORING if _keeps_default(job):
            found = "Nothing can be saved while every launch gets the default batch size."
        case v1.SAVINGS_VERDICT_EXPLORING if not _is_held(job):
            found = f"Exploring: {_so_far(savings, saving)} in the first {savings.num_exploring_launches} launches."
        case v1.SAVINGS_VERDICT_UNCERTAIN | v1.SAVINGS_VERDICT_EXPLORING if saving.HasField("at_least"):
            found = f"Whether it has saved anything in {deliveries} is not certain yet."
        case v1.SAVINGS_VERDICT_NO_BASELINE | v1.SAVINGS_VERDICT_EXPLORING:
            needed = f"{savings.num_baseline_trials} of the {savings.min_baseline_trials} deliveries"
            found = f"What was saved is not known: the default, {default}, has {needed} that a comparison needs."
        case v1.SAVINGS_VERDICT_NOT_MEASURED:
            found = f"What was saved is not known, since some deliveries have no measurement of the {quantity.name}."
        case v1.SAVINGS_VERDICT_NO_DELIVERY:
            found = "Nothing was saved since then." if _since(job, savings) else "Nothing was saved yet."
            if job.num_trials and quantity.saving.HasField("in_use"):
                found = f"{_no_delivery(job, savings)} {found}"
    return found


def _so_far(savings: v1.Savings, saving: v1.SavingsEstimate) -> str:
    more = share_lost(savings, saving) if saving.HasField("lost") else 0.0
    if more < _ABOUT_THE_SAME:
        return "trying batch sizes usually costs more than it saves"
    return f"{percent(more)} more so far than with the default, which is usual"


def _settle(job: v1.Job, details: v1.JobDetails, savings: v1.Savings, quantity: Quantity) -> str:
    saving = quantity.saving
    if (
        not job.available_batch_sizes
        or kind_of(job, saving) in ("saving", "loss")
        or _keeps_default(job)
        or saving.verdict in (v1.SAVINGS_VERDICT_NO_DELIVERY, v1.SAVINGS_VERDICT_NOT_MEASURED)
    ):
        return ""
    missing = savings.min_baseline_trials - savings.num_baseline_trials
    if missing > 0:
        runs = f"{number_of(missing, 'more run')} of the default {'that reaches' if missing == 1 else 'that reach'}"
        price = _price(missing, savings, quantity)
        return f"{runs} the target would allow a comparison{price}; {_request(job, details)}."
    if saving.HasField("baselines_to_settle"):
        return _way(job, details, savings, quantity)
    if savings.batch_size_in_use == job.spec.default_batch_size:
        return "Nothing is saved while the default is the best known batch size."
    if saving.in_use < saving.with_default:
        return "So small a saving takes more than 20 further runs of the default to be shown."
    return "A model costs no less than with the default so far."


def _way(job: v1.Job, details: v1.JobDetails, savings: v1.Savings, quantity: Quantity) -> str:
    runs, launches = quantity.saving.baselines_to_settle, quantity.saving.launches_to_settle
    if not runs:
        more = number_of(launches, "more launch", "more launches")
        return f"About {more} would prove a saving, if they go on to cost the same."
    then = f", followed by about {number_of(launches, 'launch', 'launches')}," if launches else ""
    what = f"{number_of(runs, 'more run')} of the default{then} would prove a saving, if they go on to cost the same"
    return f"{what}{_price(runs, savings, quantity)}; {_request(job, details)}."


def _price(runs: int, savings: v1.Savings, quantity: Quantity) -> str:
    saving = quantity.saving
    if not (saving.HasField("with_default") and saving.HasField("in_use")):
        return ""
    more = runs * (saving.with_default - saving.in_use)
    if more <= 0:
        return ", and cost no more than other launches"
    return f", and cost about {quantity.text(more)} more than with {savings.batch_size_in_use}"


def _request(job: v1.Job, details: v1.JobDetails) -> str:
    """How to request a baseline, or what is known of the request."""
    job_id, default = shlex.quote(job.spec.job_id), job.spec.default_batch_size
    command = f"wattwise jobs baseline {job_id}"
    requested = f"`{command}` requests one, `{command} --every 20` one in 20 launches"
    if job.HasField("baseline_every"):
        requested = f"one launch in {job.baseline_every} is one"
    elif job.baseline_requested:
        requested = "one is requested already"
    elif default not in (*choosable(details), job.pinned_batch_size):
        action = "unban" if default in banned(details) else "readmit"
        return f"it may not be chosen: `wattwise jobs {action} {job_id} {default}` first"
    waits = baseline_waits(job, details)
    return f"{requested}, but it waits {waits}" if waits else requested


def _keeps_default(job: v1.Job) -> bool:
    """Whether every launch gets the default: it is pinned, or the only batch size."""
    default = job.spec.default_batch_size
    return job.pinned_batch_size == default or list(job.spec.batch_sizes) == [default]


def _used(job: v1.Job, quantity: Quantity) -> str:
    default, size = job.spec.default_batch_size, f"Batch size {job.batch_size_in_use}"
    paused = "; the search is paused" if job.paused else ""
    if job.HasField("pinned_batch_size"):
        return f"{size} is used now, because it is pinned{paused}."
    if not job.available_batch_sizes:
        return "No batch size is used now, since none is left to try."
    if job.HasField("best_known_batch_size"):
        cost = ", as far as known"
        if math.isfinite(job.best_known_cost):
            # Joules beside money would be a second unit for the same thing.
            cost = f", {joules(job.best_known_cost)} per model" if quantity.name == "cost" else ""
        return f"{size} is used now, because its expected cost is the lowest{cost}{paused}."
    which = "the default" if job.batch_size_in_use == default else f"the nearest to the default, {default}"
    return f"{size}, {which}, is used now, since no batch size is known to reach the target{paused}."


def _upcoming(job: v1.Job, choices: Sequence[v1.PreviewedChoice]) -> str:
    if not choices:
        return ""
    if len(choices) > 1:
        shares = ", ".join(f"{choice.batch_size} ({percent(choice.probability)})" for choice in choices[:_CHOICES])
        return f"The next launch gets one of {shares}{' or another one' if len(choices) > _CHOICES else ''}."
    (choice,) = choices
    if choice.batch_size == job.batch_size_in_use:
        return f"The next launch gets {choice.batch_size}, too."
    if choice.origin == v1.TRIAL_ORIGIN_REQUESTED:
        return f"The next launch gets {choice.batch_size}, as requested."
    return f"The next launch tries {choice.batch_size}."


class Total(NamedTuple):
    """What several jobs saved together.

    Attributes:
        kind: What it amounts to.
        figure: The amount that was saved at least, or lost; empty without one.
        text: What it is, to follow the figure, or why there is none; without a full stop.
    """

    kind: Kind
    figure: str
    text: str


def total_answer(totals: v1.Totals, factors: v1.Factors) -> Total:
    """What the figures of several jobs say, by the rule of a single job."""
    quantity = main_quantity(totals.savings, factors)
    saving, text = quantity.saving, quantity.text
    jobs = f"{totals.num_jobs_with_savings:,} of {number_of(totals.num_jobs, 'job')}"
    found = Total("none", "", "no saving yet: no trial has reached its target")
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            found = Total("saving", text(saving.at_least), f"saved at least, in {jobs}")
        case v1.SAVINGS_VERDICT_LOSS:
            found = Total("loss", text(saving.lost), f"more than with the default batch sizes, in {jobs}")
        case v1.SAVINGS_VERDICT_EXPLORING:
            first = totals.savings.num_exploring_launches
            found = Total("exploring", "", f"no saving yet: no job has had more than {first} launches, which explore")
        case v1.SAVINGS_VERDICT_UNCERTAIN:
            found = Total("uncertain", "", f"whether {jobs} saved anything together is not certain yet")
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            needed = totals.savings.min_baseline_trials
            found = Total("none", "", f"no saving is known: no default has the {needed} deliveries that it takes")
        case v1.SAVINGS_VERDICT_NOT_MEASURED:
            found = Total("none", "", f"no saving is known: deliveries have no measurement of the {quantity.name}")
    return found


def spent_per_model(statistics: v1.JobStatistics, factors: v1.Factors) -> str:
    """What all trials of a job took, and that by its deliveries."""
    quantity = main_quantity(statistics.savings, factors)
    return _per_model(statistics.num_deliveries, getattr(statistics.spent, quantity.name), quantity.text)


def spent_by_month(statistics: v1.JobStatistics, factors: v1.Factors) -> str:
    """What the newest month took, and how that compares with the month before; empty without a month."""
    if not statistics.months:
        return ""
    quantity = main_quantity(statistics.savings, factors)
    *_, newest = statistics.months
    now = _per_model(newest.num_deliveries, getattr(newest.spent, quantity.name), quantity.text)
    found = f"{month_name(newest)}: {now}"
    if len(statistics.months) == 1 or not newest.num_deliveries:
        return f"{found}."
    before = statistics.months[-2]
    earlier = per_delivery(before, quantity)
    if earlier is None:
        return f"{found}."
    change = _more_or_less((per_delivery(newest, quantity) or 0.0) / earlier - 1)
    return f"{found}; {month_name(before)} had {quantity.text(earlier)} each: {change}."


def per_delivery(month: v1.MonthStatistics, quantity: Quantity) -> float | None:
    """What a delivery of a month took, missed and failed trials included; None without one, or if that is nothing."""
    spent = float(getattr(month.spent, quantity.name))
    return spent / month.num_deliveries if month.num_deliveries and spent > 0 else None


def month_name(month: v1.MonthStatistics) -> str:
    """Such as "November 2026"."""
    return month.start_time.ToDatetime().strftime("%B %Y")


def _per_model(deliveries: int, spent: float, text: Callable[[float], str]) -> str:
    if not deliveries:
        return f"{text(spent)} for no delivery"
    return f"{number_of(deliveries, 'delivery', 'deliveries')} for {text(spent)}, {text(spent / deliveries)} each"


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
