"""The sections of pages, each with a function that makes it from the server's answers.

The template `sections.html` has a macro for each type of section, with the name of the type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from wattwise import v1
from wattwise.presentation.facts import Fact
from wattwise.presentation.quantities import (
    ESTIMATE_NOTE,
    duration,
    energy,
    energy_of,
    estimate_mark,
    joules,
    marked,
    metric,
    percent,
)
from wattwise.presentation.savings import Amount, amounts_of, factors_text, savings_facts
from wattwise.presentation.sentences import (
    Answer,
    Quantity,
    Total,
    change_now,
    main_quantity,
    number_of,
    since_trial,
    total_answer,
    why_no_figure,
)
from wattwise.presentation.states import (
    batch_size_in_use,
    has_stages,
    listed_state,
    mark_of,
    policy,
    stage,
    uncounted,
)

from wattwise_web import amounts
from wattwise_web.amounts import Badge, Moment
from wattwise_web.charts import Chart
from wattwise_web.filters import EventFilter, JobFilter, TrialFilter

LOG_URL = "log_url"
"""The label whose value leads to the log of a trial."""
_GLOSSARY = (Path(__file__).with_name("glossary.md"), Path(__file__).parents[2] / "docs/glossary.md")
"""The places of the glossary: in a package, and in a checkout."""
_SHOWN_RUNNING, _SHOWN_CHOICES = 6, 3


@dataclass(frozen=True)
class Head:
    """The heading of a page, with links to what contains its subject and to its neighbours."""

    title: str
    subject: str = ""
    """The job that ends the heading, as a link."""
    crumbs: bool = False
    job_id: str = ""
    badge: Badge | None = None
    previous: int | None = None
    following: int | None = None
    style: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Sentences with commands in backquotes, and a link if `link` has a text."""

    text: str
    style: str
    id: str = ""
    path: str = ""
    job_id: str = ""
    link: str = ""


@dataclass(frozen=True)
class Warnings:
    """Warnings about a job or a trial."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class SavingsCard:
    """The card that says whether a job saves, and how much. A loss is as large and as plain as a gain."""

    kind: str
    """The kind of the `Answer`."""
    lead: str
    """The words before the figure, such as "Saved at least"."""
    figure: str
    advice: Sequence[str]
    amounts: Sequence[Amount]
    facts: Sequence[Fact]
    """What the claim rests on."""
    confidence: str
    """The confidence of the lower bound, such as "95%"."""


@dataclass(frozen=True)
class NextLaunch:
    """What the next launch may get, and the trials that run now."""

    job_id: str
    chooser: str
    choices: Sequence[v1.PreviewedChoice]
    running: Sequence[TrialRow]
    more_running: int


@dataclass(frozen=True)
class SetByPeople:
    """The settings that people have made."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class Charts:
    """Charts, a note about them, and a link that compares a job with another one unless `compare` is empty."""

    charts: Sequence[Chart]
    note: str = ""
    compare: str = ""

    @property
    def has_dates(self) -> bool:
        """Whether some charts can be drawn by date."""
        return any(chart.drawing is not None and chart.drawing.has_dates for chart in self.charts)


class EventRow(NamedTuple):
    """An event of a job."""

    time: Moment
    job: str
    trial: int | None
    message: str
    token: str

    @property
    def behind_trial(self) -> str:
        """The message behind a link with the trial's number."""
        rest = self.message.removeprefix(f"trial {self.trial}")
        return rest if rest.startswith(",") else f": {self.message}"


@dataclass(frozen=True)
class Events:
    """A list of events: the newest ones of `job_id`, or a page of its own."""

    events: Sequence[EventRow]
    job_id: str = ""
    with_job: bool = False
    has_more: bool = False


@dataclass(frozen=True)
class Facts:
    """Facts, under a title unless that is empty."""

    title: str
    facts: Sequence[Fact]
    style: str = "facts"


@dataclass(frozen=True)
class TrialRow:
    """A trial of a list; a text is a dash if nothing is known."""

    job: str
    number: int
    size: int
    badge: Badge
    struck: bool
    epochs: int
    metric: str
    time: str
    energy: str
    cost: str
    computed: bool
    """Whether the cost is computed for another power limit than the trial's."""
    started: Moment | None
    reported: Moment | None
    lease: Moment | None
    host: str
    log: str
    warned: bool
    running: bool


@dataclass(frozen=True)
class Trials:
    """A table of trials: the newest ones of the `total` of `job_id`, or a page of its own."""

    caption: str
    rows: Sequence[TrialRow]
    with_job: bool = False
    job_id: str = ""
    total: int = 0


@dataclass(frozen=True)
class Pager:
    """Links to the first and the next part of a list; a query is None if there is no such part."""

    path: str
    first: str | None
    next: str | None


@dataclass(frozen=True)
class Totals:
    """The totals of all jobs."""

    running: int
    deliveries: int
    spent: str
    """Energy, or time if no energy was measured."""
    measured: bool
    time: str
    paid: str
    per_delivery: str
    saved: Total
    attention: int
    factors: str
    """Empty without any."""


@dataclass(frozen=True)
class FirstSteps:
    """The steps until the first job appears."""

    server: str
    needs_token: bool


class Choice(NamedTuple):
    """A filter or an order to choose."""

    word: str
    query: str
    current: bool


@dataclass(frozen=True)
class JobSearch:
    """The search, the filters and the orders of a list of jobs."""

    shown: JobFilter
    states: Sequence[Choice]
    orders: Sequence[Choice]


class Saved(NamedTuple):
    """What a job of a list saved: a text, the kind of its style, and an amount or a note."""

    text: str
    kind: Literal["saving", "loss", "none"] = "none"
    amount: str = ""


@dataclass(frozen=True)
class JobRow:
    """A job of a list."""

    id: str
    badge: Badge
    used: int | None
    default: int
    now: str
    change: str
    running: int
    trials: int
    deliveries: int
    saved: Saved
    since: str
    """The first trial that the claim compares; empty for all trials."""
    activity: Moment
    """The registration if there was no activity since."""
    active: bool


@dataclass(frozen=True)
class Jobs:
    """A table of jobs."""

    caption: str
    rows: Sequence[JobRow]


@dataclass(frozen=True)
class TrialSearch:
    """The filters of a list of trials."""

    job_id: str
    results: Sequence[Choice]
    batch_sizes: Sequence[int]
    shown: TrialFilter
    bad_label: str
    """A malformed label, as it was typed."""


@dataclass(frozen=True)
class PairSearch:
    """The choice of a job to compare with."""

    job_id: str
    other: str


@dataclass(frozen=True)
class Pair:
    """The key figures of two jobs."""

    job_ids: tuple[str, str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Candidates:
    """The jobs with which a job can be compared."""

    job_id: str
    ids: Sequence[str]


@dataclass(frozen=True)
class EventSearch:
    """The kinds of events to choose from, for one job or for all jobs."""

    shown: EventFilter
    kinds: Sequence[tuple[str, str]]


class Label(NamedTuple):
    """A label of a launch, and its value as an address if it is that of a log."""

    key: str
    value: str
    url: str


@dataclass(frozen=True)
class Labels:
    """The labels of a trial, and the command that shows the trial."""

    job_id: str
    number: int
    labels: Sequence[Label]
    server: str


@dataclass(frozen=True)
class About:
    """The server, and what the visitor may see; `role` is empty if the server needs no token."""

    server: str
    role: str
    started: Moment
    factors: str


@dataclass(frozen=True)
class Terms:
    """The glossary."""

    terms: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Beside:
    """Sections beside each other; the style is "answer" or "columns"."""

    style: str
    sections: Sequence[Section | None]


Section: TypeAlias = (
    Head
    | Paragraph
    | Warnings
    | SavingsCard
    | NextLaunch
    | SetByPeople
    | Charts
    | Events
    | Facts
    | Trials
    | Pager
    | Totals
    | FirstSteps
    | JobSearch
    | Jobs
    | TrialSearch
    | PairSearch
    | Pair
    | Candidates
    | EventSearch
    | Labels
    | About
    | Terms
    | Beside
)


@dataclass(frozen=True)
class Page:
    """A page: its sections from top to bottom, without those that are None."""

    title: str
    info: v1.GetServerInfoResponse
    sections: Sequence[Section | None]
    job_id: str = ""
    """The only job whose changes concern the page; empty for all jobs."""
    is_live: bool = True

    @property
    def has_charts(self) -> bool:
        """Whether it needs the scripts that draw charts."""
        return any(isinstance(section, Charts) for section in self.sections)


def job_sentence(found: Answer, running: int) -> Paragraph:
    """Returns what a launch costs, what was saved, what is used, what is next, and what runs."""
    runs = f"{number_of(running, 'trial is', 'trials are')} running." if running else "Nothing is running."
    return Paragraph(" ".join(filter(None, (found.now, found.saved, found.used, found.upcoming, runs))), "sentence")


_LEADS = {"saving": "saved at least", "loss": "lost"}


def savings_card(
    job: v1.Job, details: v1.JobDetails, statistics: v1.JobStatistics, factors: v1.Factors, found: Answer
) -> SavingsCard:
    """Returns the savings of one job."""
    mark = mark_of(job)
    _, saving, text = main_quantity(statistics.savings, factors, mark)
    figure = {"saving": saving.at_least, "loss": saving.lost}.get(found.kind)
    return SavingsCard(
        kind=found.kind,
        lead=_LEADS.get(found.kind) or why_no_figure(saving),
        figure="" if figure is None else text(figure),
        advice=[*filter(None, (found.settle, *statistics.advice))],
        amounts=amounts_of(statistics.savings, factors, mark) if statistics.num_trials else [],
        facts=[*savings_facts(job, details, statistics, factors)],
        confidence=f"{saving.confidence:.0%}",
    )


def next_launch(job: v1.Job, choices: Sequence[v1.PreviewedChoice], running: v1.ListTrialsResponse) -> NextLaunch:
    """Returns what the next launch of a job may get, and what runs."""
    chooser = f"Chosen by the search: {stage(job) if has_stages(job.spec) else policy(job.spec)}."
    if all(choice.origin == v1.TRIAL_ORIGIN_REQUESTED for choice in choices):
        chooser = "Set by a person."
    rows = [trial_row(job, trial) for trial in running.trials[:_SHOWN_RUNNING]]
    return NextLaunch(job.spec.job_id, chooser, choices[:_SHOWN_CHOICES], rows, running.total_size - len(rows))


def charts_of(*found: Chart | None, estimated: Sequence[str] = (), compare: str = "") -> Charts | None:
    """Returns the charts with something to show; None without any.

    Args:
        found: the charts; None for one with nothing to show.
        estimated: the jobs, or the trial, whose energies are estimates.
        compare: the job that a link compares with another one; empty for no link.
    """
    shown = [chart for chart in found if chart is not None]
    note = f"The energies and costs of {' and '.join(estimated)} are {ESTIMATE_NOTE}." if estimated else ""
    return Charts(shown, note, compare) if shown else None


def event_rows(events: Sequence[v1.Event]) -> list[EventRow]:
    """Returns events as rows of a list."""
    return [
        EventRow(
            amounts.moment(event.time),
            event.job_id,
            event.trial_number if event.HasField("trial_number") else None,
            event.message,
            event.token_id,
        )
        for event in events
    ]


def trial_row(job: v1.Job | None, trial: v1.Trial) -> TrialRow:
    """Returns a trial as a row of a list; without its job it is not known whether it counts."""
    has_cost, reported = trial.HasField("cost"), trial.newest.HasField("report_time")
    energy_joules, mark = energy_of(trial.newest), estimate_mark(trial.monitor)
    why = uncounted(job, trial) if job is not None else ""
    return TrialRow(
        job=trial.id.job_id,
        number=trial.id.trial_number,
        size=trial.batch_size,
        badge=amounts.trial_badge(trial, uncounted=why),
        struck=bool(why),
        epochs=trial.newest.epoch,
        metric=metric(trial.newest.metric) if trial.HasField("newest") else amounts.UNKNOWN,
        time=duration(trial.newest.time_seconds) if has_cost else amounts.UNKNOWN,
        energy=amounts.UNKNOWN if energy_joules is None else marked(energy, mark)(energy_joules),
        cost=marked(joules, mark)(trial.cost) if has_cost else amounts.UNKNOWN,
        computed=trial.newest.HasField("computed"),
        started=amounts.moment(trial.start_time) if trial.HasField("start_time") else None,
        reported=amounts.moment(trial.newest.report_time) if reported else None,
        lease=amounts.moment(trial.lease_expire_time, is_ahead=True) if trial.HasField("lease_expire_time") else None,
        host=trial.labels.get("host", ""),
        log=web_url(trial.labels.get(LOG_URL, "")),
        warned=bool(trial.warnings),
        running=trial.status == v1.TRIAL_STATUS_RUNNING,
    )


def labels(trial: v1.Trial, server: str) -> Labels:
    """Returns the labels of a trial; the label of the log is a link if its value is an address."""
    found = [Label(key, value, web_url(value) if key == LOG_URL else "") for key, value in sorted(trial.labels.items())]
    return Labels(trial.id.job_id, trial.id.trial_number, found, server)


def totals(found: v1.Totals, factors: v1.Factors) -> Totals:
    """Returns the totals of all jobs."""
    measured = found.spent.HasField("energy_joules")
    time, quantity = duration(found.spent.time_seconds), main_quantity(found.savings, factors, mark="")
    paid = quantity.text(found.spent.money) if quantity.name == "money" else ""
    return Totals(
        running=found.num_running_trials,
        deliveries=found.num_deliveries,
        spent=energy(found.spent.energy_joules) if measured else time,
        measured=measured,
        time=time,
        paid=paid,
        per_delivery=quantity.text(found.spent_per_delivery.money) if paid and found.num_deliveries else "",
        saved=total_answer(found, factors),
        attention=found.num_jobs_needing_attention,
        factors=factors_text(factors),
    )


def job_row(listing: v1.JobListing, factors: v1.Factors) -> JobRow:
    """Returns a job as a row of a list."""
    job, summary = listing.job, listing.summary
    has_activity = summary.HasField("last_activity_time")
    quantity = main_quantity(summary.savings, factors, mark_of(job))
    saving = quantity.saving
    return JobRow(
        id=job.spec.job_id,
        badge=amounts.job_badge(listed_state(listing)),
        used=batch_size_in_use(job),
        default=job.spec.default_batch_size,
        now=quantity.text(saving.in_use) if saving.HasField("in_use") else amounts.UNKNOWN,
        change="" if job.batch_size_in_use == job.spec.default_batch_size else change_now(saving),
        running=summary.num_running_trials,
        trials=job.num_trials,
        deliveries=summary.num_deliveries,
        saved=_saved(summary.savings, quantity),
        since=since_trial(summary.savings).strip(),
        activity=amounts.moment(summary.last_activity_time if has_activity else job.create_time),
        active=has_activity,
    )


def _saved(savings: v1.Savings, quantity: Quantity) -> Saved:
    saving = quantity.saving
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            return Saved(percent(saving.at_least_share), "saving", quantity.text(saving.at_least))
        case v1.SAVINGS_VERDICT_LOSS:
            return Saved(f"+{percent(saving.lost_share)}", "loss", "costs more")
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            missing = savings.min_baseline_trials - savings.num_baseline_trials
            return Saved(why_no_figure(saving), amount=f"needs {number_of(missing, 'run')} of the default")
    return Saved(why_no_figure(saving))


def web_url(text: str) -> str:
    """Returns a text that is an address of the web, so that it may become a link; empty for any other text."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return ""
    return text if good and text.isprintable() and " " not in text else ""


def glossary() -> list[tuple[str, str]]:
    """Returns the terms of the glossary of the docs, with their meanings; empty if it is not installed."""
    file = next((file for file in _GLOSSARY if file.is_file()), None)
    text = "" if file is None else file.read_text(encoding="utf-8")
    found = re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=\n\S|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return [(term, _without_markup(" ".join(meaning.split()))) for term, meaning in found]


def _without_markup(text: str) -> str:
    """Returns a line of Markdown without its links, code and emphasis."""
    return re.sub(r"\*(.+?)\*", r"\1", re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text.replace("`", "")))
