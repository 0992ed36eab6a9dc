"""The pages, each composed by a function from the server's answers and the parameters of the address."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from wattwise import v1
from wattwise.presentation.facts import (
    job_facts,
    job_warnings,
    set_by_people,
    trial_facts,
    trial_reasons,
    trial_warnings,
)
from wattwise.presentation.quantities import estimate_mark
from wattwise.presentation.savings import NO_FACTORS, factors_text
from wattwise.presentation.sentences import answer, number_of
from wattwise.presentation.states import event_kind, job_state, mark_of
from wattwise.spec import enum_name

from wattwise_web import amounts, charts, sections
from wattwise_web.comparison import compared, incomparable
from wattwise_web.filters import ORDER_WORDS, RESULT_WORDS, STATE_WORDS, EventFilter, JobFilter, TrialFilter, ignored
from wattwise_web.sections import (
    About,
    Beside,
    Candidates,
    Choice,
    Events,
    EventSearch,
    Facts,
    FirstSteps,
    Head,
    Jobs,
    JobSearch,
    Page,
    Pager,
    Pair,
    PairSearch,
    Paragraph,
    Section,
    SetByPeople,
    Terms,
    Trials,
    TrialSearch,
    Warnings,
)

Parameters = Mapping[str, str]

_ROOM = 1.1
"""The end of the axis that two charts share, relative to the highest mark."""


class JobAnswers(NamedTuple):
    """The server's answers about a job."""

    known: v1.GetJobResponse
    figures: charts.History
    choices: Sequence[v1.PreviewedChoice]
    newest: v1.ListTrialsResponse
    running: v1.ListTrialsResponse
    events: v1.ListEventsResponse
    profiles: Sequence[v1.PowerProfile]
    curves: Sequence[charts.Curve]


def jobs(
    info: v1.GetServerInfoResponse,
    address: str,
    totals: v1.Totals,
    listed: v1.ListJobsResponse,
    wanted: Parameters,
) -> Page:
    """Returns the list of jobs."""
    shown = JobFilter.of(wanted)
    found: list[Section | None] = [Head("Jobs", style="sr"), sections.totals(totals, info.factors)]
    is_filtered = bool(shown.text or shown.state)
    if not totals.num_jobs and not is_filtered:
        found.append(FirstSteps(address, needs_token=info.role != v1.ROLE_ANYONE))
        return Page("Jobs", info, found)
    kept = shown.parameters
    states = _choices(STATE_WORDS, "state", shown.state, kept)
    orders = _choices(ORDER_WORDS, "order", shown.order, kept)
    usual_order = {"order"} if wanted.get("order") == shown.order else set()
    found += [JobSearch(shown, states, orders), *_ignored(wanted, {"after", *kept, *usual_order})]
    if listed.jobs:
        caption = number_of(listed.total_size, "job")
        if is_filtered:
            caption += " matches" if listed.total_size == 1 else " match"
        rows = [sections.job_row(row, info.factors) for row in listed.jobs]
        found += [Jobs(caption, rows), _pager("/", kept, wanted, listed.next_page_token)]
    else:
        found.append(Paragraph("No job matches.", "empty", path="/", link="Show all jobs"))
    return Page("Jobs", info, found)


def job(info: v1.GetServerInfoResponse, answers: JobAnswers) -> Page:
    """Returns the page of a job."""
    known, figures, choices, newest, running, events, profiles, curves = answers
    job, details, statistics, factors = known.job, known.details, figures.statistics, info.factors
    job_id = job.spec.job_id
    found = answer(job, details, statistics, factors, choices)
    bounds = [trial.cost_bound for trial in newest.trials if trial.HasField("cost_bound")]
    warnings, held = job_warnings(job, details), set_by_people(job, details, statistics)
    rows = [sections.trial_row(job, trial) for trial in newest.trials]
    events_of = Events(sections.event_rows(events.events), job_id, has_more=bool(events.next_page_token))
    return Page(
        job_id,
        info,
        [
            Head(job_id, crumbs=True, badge=amounts.job_badge(job_state(job, details)), style="id"),
            sections.job_sentence(found, running.total_size),
            Warnings(warnings) if warnings else None,
            Beside(
                "answer",
                [
                    sections.savings_card(job, details, statistics, factors, found),
                    sections.next_launch(job, choices, running),
                ],
            ),
            SetByPeople(held) if held else None,
            sections.charts_of(
                charts.cost_by_trial(job, details, figures, bounds[0] if bounds else None),
                charts.expected_costs(job, details, choices, statistics, factors),
                charts.curves(job.spec, curves),
                charts.saved_so_far(job, figures),
                charts.spent_by_month(statistics, factors),
                charts.epochs(job, statistics),
                charts.power(job, details, profiles),
                estimated=[job_id] if mark_of(job) else (),
                compare=job_id,
            ),
            Beside(
                "columns",
                [
                    events_of if events.events else None,
                    Facts("Configuration", job_facts(job, details, statistics)),
                ],
            ),
            Trials(f"Trials of {job_id}, newest first", rows, job_id=job_id, total=newest.total_size) if rows else None,
        ],
        job_id,
    )


def trials(info: v1.GetServerInfoResponse, job: v1.Job, listed: v1.ListTrialsResponse, wanted: Parameters) -> Page:
    """Returns the list of the trials of a job."""
    job_id, shown = job.spec.job_id, TrialFilter.of(job, wanted)
    kept = {"id": job_id} | shown.parameters
    results = _choices(RESULT_WORDS, "result", shown.result, kept | {"from": ""})
    bad_label = wanted.get("label", "") if not shown.label else ""
    found: list[Section | None] = [
        Head("Trials", crumbs=True, job_id=job_id),
        TrialSearch(job_id, results, sorted(job.spec.batch_sizes), shown, bad_label),
    ]
    found += _ignored(wanted, {"id", "label", *shown.parameters})
    if bad_label:
        text = "Write a label as key=value, such as host=node-7. It is ignored now."
        found.append(Paragraph(text, "fault", id="bad-label"))
    if listed.trials:
        match = ""
        if shown.parameters:
            match = " that matches" if listed.total_size == 1 else " that match"
        limit = f", up to trial {shown.start}" if shown.start else ""
        text = f"{number_of(listed.total_size, 'trial')}{match}, newest first{limit}"
        rows = [sections.trial_row(job, trial) for trial in listed.trials]
        last = listed.trials[-1].id.trial_number
        first = _query(kept | {"from": ""}) if shown.start else None
        following = _query(kept | {"from": str(last - 1)}) if listed.next_page_token and last > 1 else None
        found += [
            Paragraph(text, "note"),
            Trials(f"Trials of {job_id}, newest first", rows),
            Pager("/job/trials", first, following),
        ]
    elif shown.parameters:
        found.append(Paragraph("No trial matches.", "empty", "", "/job/trials", job_id, "Show all trials"))
    else:
        found.append(Paragraph("No trial yet. The first launch of a trainer with this job begins one.", "empty"))
    return Page(f"Trials of {job_id}", info, found, job_id)


def candidates(info: v1.GetServerInfoResponse, job: v1.Job, text: str, listed: v1.ListJobsResponse) -> Page:
    """Returns the page that lists jobs to compare a job with, whose ids contain a text."""
    first, prefix = job.spec.job_id, job.spec.job_id_prefix
    ids = [row.job.spec.job_id for row in listed.jobs if row.job.spec.job_id != first]
    # The jobs of its name come first, which are probably about the same model.
    ids.sort(key=lambda job_id: not job_id.startswith(prefix))
    found: list[Section | None] = [Head("Compare", crumbs=True, job_id=first), PairSearch(first, text)]
    if ids:
        unknown = f"No other job has the id {text}. " if text else ""
        found += [Paragraph(f"{unknown}Jobs to compare with:", ""), Candidates(first, ids)]
        if listed.next_page_token:
            found.append(Paragraph("There are more; search for a part of the id.", "note"))
    else:
        none = f"No other job has {text} in its id." if text else "There is no other job."
        found.append(Paragraph(none, "empty"))
    return Page(f"{first} compared", info, found, is_live=False)


def pair(
    info: v1.GetServerInfoResponse,
    known: tuple[v1.GetJobResponse, v1.GetJobResponse],
    figures: Sequence[charts.History],
) -> Page:
    """Returns the page of two jobs beside each other."""
    one, other = (each.job for each in known)
    first, second = one.spec.job_id, other.spec.job_id
    top = max(map(charts.highest_cost, figures)) * _ROOM or None
    sizes = {*one.spec.batch_sizes, *other.spec.batch_sizes}
    pairs = list(zip((one, other), figures, strict=True))
    costs = [
        charts.cost_by_trial(
            each.job, each.details, of, name=f"cost-{place}", title=each.job.spec.job_id, sizes=sizes, top=top
        )
        for place, (each, of) in enumerate(zip(known, figures, strict=True), 1)
    ]
    return Page(
        f"{first} compared",
        info,
        [
            Head("Compare with", second, crumbs=True, job_id=first),
            PairSearch(first, second),
            *(Paragraph(note, "advice") for note in incomparable(one, other)),
            Pair((first, second), compared([(job, of.statistics) for job, of in pairs], info.factors)),
            sections.charts_of(
                charts.cost_per_delivery(pairs),
                *costs,
                estimated=[each.spec.job_id for each in (one, other) if mark_of(each)],
            ),
        ],
    )


def trial(
    info: v1.GetServerInfoResponse,
    address: str,
    known: v1.GetJobResponse,
    answer: v1.GetTrialResponse,
    measurements: Sequence[v1.Measurement],
) -> Page:
    """Returns the page of a trial."""
    job, trial = known.job, answer.trial
    job_id, number, row = job.spec.job_id, trial.id.trial_number, sections.trial_row(job, trial)
    curve = charts.Curve(number, trial.batch_size, row.running, measurements)
    profiles = [answer.power_profile] if answer.HasField("power_profile") else []
    warnings = trial_warnings(trial)
    return Page(
        f"Trial {number} of {job_id}",
        info,
        [
            Head(
                f"Trial {number}",
                crumbs=True,
                job_id=job_id,
                badge=row.badge,
                previous=number - 1 if number > 1 else None,
                following=number + 1 if number < job.num_trials else None,
            ),
            Warnings(warnings) if warnings else None,
            Facts("", trial_reasons(trial), "why"),
            sections.charts_of(
                charts.curves(job.spec, [curve], of_job=False),
                charts.power(job, known.details, profiles),
                estimated=[f"trial {number}"] if estimate_mark(trial.monitor) else (),
            ),
            Beside("columns", [Facts("Facts", trial_facts(job, trial)), sections.labels(trial, address)]),
        ],
        job_id,
    )


def running(info: v1.GetServerInfoResponse, listed: v1.ListTrialsResponse, wanted: Parameters) -> Page:
    """Returns the list of running trials."""
    rows = [sections.trial_row(None, trial) for trial in sorted(listed.trials, key=_last_sign)]
    pager = _pager("/running", {}, wanted, listed.next_page_token)
    part = "" if pager.first is None and pager.next is None else "of this page "
    number = number_of(listed.total_size, "running trial")
    text = f"{number}. First come those {part}whose last report is the oldest."
    found: list[Section | None] = [Head("Running"), Paragraph(text, "sentence")]
    if rows:
        found += [Trials("Running trials", rows, with_job=True), pager]
    else:
        text = (
            "No trial is running. One appears here when a launch asks for a batch size, until it ends or its "
            "lease expires."
        )
        found.append(Paragraph(text, "empty"))
    return Page("Running", info, found)


def _last_sign(trial: v1.Trial) -> int:
    """Returns the time of a trial's last report, or of its start, in nanoseconds since 1970."""
    newest = trial.newest
    return (newest.report_time if newest.HasField("report_time") else trial.start_time).ToNanoseconds()


def events(info: v1.GetServerInfoResponse, listed: v1.ListEventsResponse, wanted: Parameters) -> Page:
    """Returns the list of events."""
    shown = EventFilter.of(wanted)
    job_id = shown.job_id
    kinds = [(name, event_kind(number)) for name, number in v1.EventKind.items() if number]
    found: list[Section | None] = [
        Head("Events of" if job_id else "Events", job_id),
        EventSearch(shown, kinds),
        *_ignored(wanted, {"after", *shown.parameters}),
    ]
    if listed.events:
        rows = sections.event_rows(listed.events)
        found += [
            Events(rows, with_job=not job_id),
            _pager("/events", shown.parameters, wanted, listed.next_page_token),
        ]
    else:
        text = (
            "No event matches. Events are what people changed and what the search found. What a trial reported is "
            "on its own page."
        )
        found.append(Paragraph(text, "empty"))
    return Page("Events", info, found, job_id)


def about(info: v1.GetServerInfoResponse, address: str) -> Page:
    """Returns the page about the server and the visitor."""
    factors = factors_text(info.factors) or NO_FACTORS
    section = About(address, role_name(info.role), amounts.moment(info.start_time), factors)
    return Page("About", info, [Head("About"), section], is_live=False)


def glossary(info: v1.GetServerInfoResponse, terms: Sequence[tuple[str, str]]) -> Page:
    """Returns the glossary."""
    return Page("Glossary", info, [Head("Glossary"), Terms(terms)], is_live=False)


def role_name(value: int) -> str:
    """Returns a token's role in words; empty where the server needs no token."""
    return "" if value == v1.ROLE_ANYONE else enum_name(v1.Role, value)


def _query(parameters: Mapping[str, str]) -> str:
    filled = {name: text for name, text in parameters.items() if text}
    return f"?{urlencode(filled)}" if filled else "?"


def _ignored(wanted: Parameters, used: Collection[str]) -> list[Paragraph]:
    """Returns a sentence for each parameter of an address that is not used."""
    return [
        Paragraph(f"There is no filter {name}={wanted[name]}. It is ignored now.", "fault")
        for name in ignored(wanted, used)
    ]


def _pager(path: str, kept: Parameters, wanted: Parameters, following: str) -> Pager:
    """Returns the links from a part of a list; `following` is the token of the next part."""
    first = _query(kept) if wanted.get("after") else None
    return Pager(path, first, _query({**kept, "after": following}) if following else None)


def _choices(words: Mapping[str, str], name: str, current: str, kept: Parameters) -> list[Choice]:
    """Returns the values of a parameter, which keep the other parameters."""
    return [Choice(word, _query({**kept, name: value}), value == current) for value, word in words.items()]
