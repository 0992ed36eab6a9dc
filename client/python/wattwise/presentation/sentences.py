"""Sentences about a job: what a launch costs now, what was saved, which batch size is used, and what comes next.

The page, the terminal, `wattwise run` and the demo show the same sentences.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from wattwise import v1
from wattwise.presentation.quantities import joules, marked, money, percent
from wattwise.presentation.states import banned, baseline_waits, choosable, mark_of

Kind = Literal["saving", "loss", "exploring", "uncertain", "none"]

_KINDS: dict[int, Kind] = {
    v1.SAVINGS_VERDICT_SAVING: "saving",
    v1.SAVINGS_VERDICT_LOSS: "loss",
    v1.SAVINGS_VERDICT_EXPLORING: "exploring",
    v1.SAVINGS_VERDICT_UNCERTAIN: "uncertain",
}

_CHOICES = 3
"""The most choices of the next launch that a sentence names."""

_ABOUT_THE_SAME = 0.005
"""Smaller differences are shown as none."""


class Quantity(NamedTuple):
    """The main quantity of savings.

    Attributes:
        name: "money" or "cost".
        saving: What was saved of it.
        text: Formats an amount.
    """

    name: Literal["money", "cost"]
    saving: v1.SavingsEstimate
    text: Callable[[float], str]

    def of(self, usage: v1.Usage) -> float:
        """Returns what training took of it."""
        return usage.money if self.name == "money" else usage.cost


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
    statistics: v1.JobStatistics,
    factors: v1.Factors,
    choices: Sequence[v1.PreviewedChoice] | None = None,
) -> Answer:
    """Returns what the figures of a job say.

    Args:
        job: The job.
        details: What it knows about its batch sizes.
        statistics: Its figures.
        factors: The operator's factors, for the currency.
        choices: What the next launch may get, the most probable first; None if that was not asked for.
    """
    savings, proof = statistics.savings, statistics.proof
    quantity = main_quantity(savings, factors, mark_of(job))
    return Answer(
        _KINDS.get(quantity.saving.verdict, "none"),
        _now(job, savings, quantity),
        _saved(job, savings, proof, quantity),
        _settle(job, details, savings, proof, quantity),
        _used(job),
        "" if choices is None else upcoming(job, choices),
    )


def main_quantity(savings: v1.Savings, factors: v1.Factors, mark: str) -> Quantity:
    """Returns the main quantity of savings, with a mark before amounts that are estimates."""
    if savings.main_quantity == v1.SAVINGS_QUANTITY_MONEY:
        return Quantity("money", savings.money, money_text(factors, mark))
    return Quantity("cost", savings.cost, marked(joules, mark))


def money_text(factors: v1.Factors, mark: str) -> Callable[[float], str]:
    """Returns the function that formats amounts in the operator's currency, with a mark before them."""
    return marked(partial(money, currency=factors.currency), mark)


def has_prices(factors: v1.Factors) -> bool:
    """Returns whether a price is above 0: with free energy and hours, there is no money to show."""
    return bool(factors.electricity_price_per_kwh or factors.gpu_hour_price)


def since_trial(savings: v1.Savings) -> str:
    """Returns the trial from which savings are compared, to follow a noun; empty if all trials are."""
    return f" since trial {savings.compared_from_trial}" if savings.compared_from_trial else ""


def number_of(number: int, noun: str, plural: str = "") -> str:
    """Returns a number of things: "1 run", "1,204 runs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def change_now(saving: v1.SavingsEstimate) -> str:
    """Returns what a model costs now compared with the default: "44% less", "12% more" or "about the same".

    Empty if the server does not compare them.
    """
    return _more_or_less(saving.change) if saving.HasField("change") else ""


def shown_saving(saving: v1.SavingsEstimate, text: Callable[[float], str]) -> tuple[str, str]:
    """Returns what was saved at least, and the estimate, or what was lost; empty where that is not shown."""
    if saving.verdict == v1.SAVINGS_VERDICT_SAVING:
        return text(saving.at_least), text(saving.saved)
    if saving.verdict == v1.SAVINGS_VERDICT_LOSS:
        return "", f"lost {text(saving.lost)}"
    return "", ""


def why_no_figure(saving: v1.SavingsEstimate) -> str:
    """Returns what stands in place of a lower bound of what was saved, such as "not certain yet"."""
    return _NO_FIGURES.get(saving.verdict, _NO_COMPARISON)


_NO_COMPARISON = "no comparison yet"
_NO_FIGURES: Mapping[int, str] = {
    v1.SAVINGS_VERDICT_LOSS: "nothing",
    v1.SAVINGS_VERDICT_EXPLORING: "exploring",
    v1.SAVINGS_VERDICT_UNCERTAIN: "not certain yet",
    v1.SAVINGS_VERDICT_NOT_MEASURED: "not measured",
}


def _now(job: v1.Job, savings: v1.Savings, quantity: Quantity) -> str:
    saving, text = quantity.saving, quantity.text
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
        return f"{none}; a model costs {usual}." if usual else f"{none}."
    now = f"A model costs {text(saving.in_use)} now"
    if used == default:
        return f"{now}, with the default, {default}{_few(savings, savings.num_baseline_trials)}."
    now += _few(savings, savings.num_in_use_trials)
    if not usual:
        return f"{now}; the default, {default}, has not reached the target{_since(job, savings)}."
    return ": ".join(filter(None, (f"{now}, {usual}", change_now(saving)))) + "."


def _no_delivery(job: v1.Job, savings: v1.Savings) -> str:
    if job.num_trials:
        since = _since(job, savings) or " since the job was registered"
        return f"No launch that counts has reached the target{since}."
    if job.paused or job.HasField("pinned_batch_size"):
        return "No launch yet."
    return "No launch yet: the first one begins the search."


def _few(savings: v1.Savings, deliveries: int) -> str:
    """Returns the number of deliveries behind a cost if that number is too small for a comparison."""
    if deliveries >= savings.min_baseline_trials:
        return ""
    return " (one delivery)" if deliveries == 1 else f" ({deliveries} deliveries)"


def _since(job: v1.Job, savings: v1.Savings) -> str:
    """Returns the time or trial from which deliveries count, to follow a noun; empty if all do."""
    if since := since_trial(savings):
        return since
    return f" since the reset after trial {job.reset_after}" if job.HasField("reset_after") else ""


def _more_or_less(change: float) -> str:
    if abs(change) < _ABOUT_THE_SAME:
        return "about the same"
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'}"


def _saved(job: v1.Job, savings: v1.Savings, proof: v1.SavingsProof, quantity: Quantity) -> str:
    saving, text, default = quantity.saving, quantity.text, job.spec.default_batch_size
    deliveries = f"{number_of(savings.num_deliveries, 'delivery', 'deliveries')}{since_trial(savings)}"
    found = "What was saved is not known: this client is older than the server."
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            share = f"at least {percent(saving.at_least_share)} of what the default would have cost"
            found = f"Saved at least {text(saving.at_least)} in {deliveries}, {share}."
        case v1.SAVINGS_VERDICT_LOSS:
            share = f"{percent(saving.lost_share)} more than the default would have cost"
            found = f"Lost {text(saving.lost)} in {deliveries}, {share}."
        case _ if proof.state == v1.PROOF_STATE_DEFAULT_ONLY:
            found = "Nothing can be saved while every launch gets the default batch size."
        case v1.SAVINGS_VERDICT_EXPLORING:
            found = f"Exploring: {_so_far(saving)} in the first {savings.num_exploring_launches} launches."
        case v1.SAVINGS_VERDICT_UNCERTAIN:
            found = f"It is not certain yet whether {deliveries} saved anything."
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            has = f"{savings.num_baseline_trials} of the {savings.min_baseline_trials} deliveries"
            found = f"{_NO_COMPARISON.capitalize()}: the default, {default}, has {has} that a comparison needs."
        case v1.SAVINGS_VERDICT_NOT_MEASURED:
            found = f"What was saved is not known, because some deliveries have no measurement of the {quantity.name}."
        case v1.SAVINGS_VERDICT_NO_DELIVERY:
            found = "Nothing was saved since then." if _since(job, savings) else "Nothing was saved yet."
            if job.num_trials and quantity.saving.HasField("in_use"):
                found = f"{_no_delivery(job, savings)} {found}"
    return found


def _so_far(saving: v1.SavingsEstimate) -> str:
    if saving.lost_share < _ABOUT_THE_SAME:
        return "trying batch sizes usually costs more than it saves"
    return f"{percent(saving.lost_share)} more than with the default so far, which is usual"


def _settle(
    job: v1.Job, details: v1.JobDetails, savings: v1.Savings, proof: v1.SavingsProof, quantity: Quantity
) -> str:
    """Returns what would prove a saving, and how to request it."""
    runs, launches = proof.num_baselines, proof.num_launches
    price = _price(savings, proof, quantity)
    match proof.state:
        case v1.PROOF_STATE_NEEDS_BASELINES:
            what = f"{number_of(runs, 'more run')} of the default {'that reaches' if runs == 1 else 'that reach'}"
            return f"{what} the target would allow a comparison{price}; {_request(job, details)}."
        case v1.PROOF_STATE_NEEDS_LAUNCHES if not runs:
            more = number_of(launches, "more launch", "more launches")
            return f"About {more} would prove a saving, if they go on to cost the same."
        case v1.PROOF_STATE_NEEDS_LAUNCHES:
            then = f", followed by about {number_of(launches, 'launch', 'launches')}," if launches else ""
            what = f"{number_of(runs, 'more run')} of the default{then} would prove a saving"
            return f"{what}, if they go on to cost the same{price}; {_request(job, details)}."
    return _UNPROVEN.get(proof.state, "")


_UNPROVEN: dict[int, str] = {
    v1.PROOF_STATE_DEFAULT_IN_USE: "Nothing is saved while the default is the best known batch size.",
    v1.PROOF_STATE_TOO_SMALL: "To prove so small a saving takes more than 20 further runs of the default.",
    v1.PROOF_STATE_NO_SAVING: "So far a model costs no less than with the default.",
}


def _price(savings: v1.Savings, proof: v1.SavingsProof, quantity: Quantity) -> str:
    if not proof.HasField("price"):
        return ""
    if proof.price <= 0:
        return ", and cost no more than other launches"
    return f", and cost {quantity.text(proof.price)} more than with {savings.batch_size_in_use}"


def _request(job: v1.Job, details: v1.JobDetails) -> str:
    """Returns how to request a baseline, or what is known of the request."""
    job_id, default = shlex.quote(job.spec.job_id), job.spec.default_batch_size
    command = f"wattwise jobs baseline {job_id}"
    requested = f"`{command}` requests one, `{command} --every 20` requests one in 20 launches"
    if job.HasField("baseline_every"):
        requested = f"one launch in {job.baseline_every} gets the default"
    elif job.baseline_requested:
        requested = "one is requested already"
    elif default not in (*choosable(details), job.pinned_batch_size):
        action = "unban" if default in banned(details) else "readmit"
        return f"the default may not be chosen before `wattwise jobs {action} {job_id} {default}`"
    waits = baseline_waits(job, details)
    return f"{requested}, but it waits {waits}" if waits else requested


def _used(job: v1.Job) -> str:
    default, size = job.spec.default_batch_size, f"Batch size {job.batch_size_in_use}"
    paused = "; the search is paused" if job.paused else ""
    if job.HasField("pinned_batch_size"):
        return f"{size} is used now, because it is pinned{paused}."
    if not job.available_batch_sizes:
        return "No batch size is used now, because no batch size is left to try."
    if job.HasField("best_known_batch_size"):
        as_known = "" if math.isfinite(job.best_known_cost) else ", as far as known"
        return f"{size} is used now, because its expected cost is the lowest{as_known}{paused}."
    which = "the default" if job.batch_size_in_use == default else f"the nearest to the default, {default}"
    return f"{size}, {which}, is used now, because no batch size is known to reach the target{paused}."


def upcoming(job: v1.Job, choices: Sequence[v1.PreviewedChoice]) -> str:
    """Returns what the next launch gets, in a sentence; empty if nothing is left to try."""
    if not choices:
        return ""
    if len(choices) > 1:
        return f"The next launch gets one of {_shares(choices)}."
    (choice,) = choices
    if choice.batch_size == job.batch_size_in_use:
        return f"The next launch gets {choice.batch_size}, too."
    if choice.origin == v1.TRIAL_ORIGIN_REQUESTED:
        return f"The next launch gets {choice.batch_size}, as requested."
    return f"The next launch tries {choice.batch_size}."


def _shares(choices: Sequence[v1.PreviewedChoice]) -> str:
    shares = ", ".join(f"{choice.batch_size} ({percent(choice.probability)})" for choice in choices[:_CHOICES])
    return f"{shares}{' or another one' if len(choices) > _CHOICES else ''}"


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
    """Returns what the figures of several jobs say, by the rule of a single job."""
    quantity = main_quantity(totals.savings, factors, mark="")
    saving, text = quantity.saving, quantity.text
    compared = totals.num_jobs_with_savings
    jobs = number_of(totals.num_jobs, "job")
    if totals.num_jobs > 1:
        jobs = f"{compared:,} of {jobs}"
    found = Total("none", "", "no saving yet: no trial has reached its target")
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            found = Total("saving", text(saving.at_least), f"saved at least, in {jobs}")
        case v1.SAVINGS_VERDICT_LOSS:
            found = Total("loss", text(saving.lost), f"more than with the default batch sizes, in {jobs}")
        case v1.SAVINGS_VERDICT_EXPLORING:
            first = totals.savings.num_exploring_launches
            found = Total("exploring", "", f"no saving yet: the first {first} launches of each job explore")
        case v1.SAVINGS_VERDICT_UNCERTAIN:
            together = " together" if compared > 1 else ""
            found = Total("uncertain", "", f"it is not certain yet whether {jobs} saved anything{together}")
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            needed = totals.savings.min_baseline_trials
            needs = f"no default batch size has the {needed} deliveries that a comparison needs"
            found = Total("none", "", f"{_NO_COMPARISON}: {needs}")
        case v1.SAVINGS_VERDICT_NOT_MEASURED:
            unknown = f"some deliveries have no measurement of the {quantity.name}"
            found = Total("none", "", f"what was saved is not known, because {unknown}")
    return found


def spent_by_month(statistics: v1.JobStatistics, quantity: Quantity) -> str:
    """Returns what the newest month took, and how that compares with the month before; empty without a month."""
    if not statistics.months:
        return ""
    newest = statistics.months[-1]
    found = f"{month_name(newest)}: {spent_per_model(newest, quantity)}"
    if not newest.HasField("change"):
        return f"{found}."
    before = statistics.months[-2]
    earlier = quantity.text(quantity.of(before.spent_per_delivery))
    return f"{found}; {month_name(before)} had {earlier} each: {_more_or_less(newest.change)}."


def month_name(month: v1.MonthStatistics) -> str:
    """Returns the name of a month, such as "November 2026"."""
    return month.start_time.ToDatetime().strftime("%B %Y")


def spent_per_model(figures: v1.JobStatistics | v1.MonthStatistics, quantity: Quantity) -> str:
    """Returns what all trials of a job or a month took, in total and by their deliveries."""
    spent = quantity.text(quantity.of(figures.spent))
    if not figures.num_deliveries:
        return f"{spent} for no delivery"
    each = quantity.text(quantity.of(figures.spent_per_delivery))
    return f"{number_of(figures.num_deliveries, 'delivery', 'deliveries')} for {spent}, {each} each"


def next_launch(choices: Sequence[v1.PreviewedChoice]) -> str:
    """Returns what the next launch gets and why, to follow "gets"."""
    if not choices:
        return "nothing: no batch size is left to try"
    if len(choices) > 1:
        return f"one of {_shares(choices)}"
    (choice,) = choices
    bound = "; no cost bound" if choice.origin == v1.TRIAL_ORIGIN_REQUESTED else ""
    return f"batch size {choice.batch_size}: {choice.reason}{bound}"


def mean_money(trials: v1.TrialStatistics, factors: v1.Factors, mark: str) -> str:
    """Returns what a delivery with a batch size costs on average in money; empty if that is unknown."""
    mean = trials.mean_delivery
    return money_text(factors, mark)(mean.money) if mean.HasField("money") else ""
