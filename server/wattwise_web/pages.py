"""The pages: the calls that each one needs, all at once, and the sections that it makes of their answers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from google.protobuf.message import Message
from wattwise import v1
from wattwise.errors import (
    CredentialsError,
    InvalidRequestError,
    JobNotFoundError,
    PermissionDeniedError,
    WattwiseError,
)
from wattwise.presentation.facts import (
    Fact,
    job_facts,
    job_warnings,
    set_by_people,
    trial_facts,
    trial_reasons,
    trial_warnings,
)
from wattwise.presentation.savings import NO_FACTORS, factors_text
from wattwise.presentation.sentences import answer, number_of
from wattwise.presentation.states import JobTrial, event_kind, job_state
from wattwise.rpc.address import is_loopback
from wattwise.rpc.async_client import AsyncClient
from wattwise.rpc.credentials import Credentials
from wattwise.rules import MAX_ID_LENGTH, MAX_MEASUREMENT_PAGE, MAX_PAGE
from wattwise.spec import enum_name

from wattwise_web import amounts, charts, sections
from wattwise_web.charts.curves import POINTS
from wattwise_web.charts.marks import thinned
from wattwise_web.comparison import compared, incomparable
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
from wattwise_web.trial_filter import RESULT_WORDS, TrialFilter, ignored, whole

Parameters = Mapping[str, str]

PAGE_SIZE = 50
_NEWEST_TRIALS = 10
_NEWEST_EVENTS = 8
"""What the page of a job shows of its lists; their own pages have all."""
_SINGLE_TRIALS = 1000
"""Up to so many trials, charts show each one."""
_RANGES = 250
"""A chart of more trials has one mark for each batch size in a range of trials."""
_MARKS = 600
"""A chart of ranges with more marks gets fewer ranges."""
_CURVES = 8
"""Trials whose epochs are drawn; each takes some calls, and those that have ended are kept."""
_KEPT_CURVES = 100
_INFO_SECONDS = 30.0
_SECONDS = 15.0
"""The time for a call."""
_ROOM = 1.1
"""Above the highest mark of two charts with the same axis."""


@dataclass(frozen=True)
class Visitor:
    """Who reads: the token, if there is one."""

    token: str | None = field(repr=False)


class Reader:
    """The pages of one server.

    Args:
        address: of the server, or of several.
        credentials: how the server is reached.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._credentials = credentials
        self._client = AsyncClient(address, timeout=_SECONDS, retry=False, credentials=credentials)
        self._terms = sections.glossary()
        self._infos: dict[str | None, tuple[float, v1.GetServerInfoResponse]] = {}
        self._curves: OrderedDict[tuple[object, ...], charts.Curve] = OrderedDict()

    def client(self, visitor: Visitor) -> AsyncClient:
        """Returns a client with the visitor's token.

        Raises:
            CredentialsError: if the token would be sent in clear text to another machine.
        """
        credentials = self._credentials
        if visitor.token is not None and not (
            credentials.uses_tls() or credentials.insecure or is_loopback(self.address)
        ):
            raise CredentialsError(
                f"refusing to send a token to {self.address} in clear text: start wattwise web with --server-tls, or "
                "with --server-insecure if the network is trusted"
            )
        return self._client.with_token(visitor.token)

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def info(self, visitor: Visitor, *, fresh: bool = False) -> v1.GetServerInfoResponse:
        """Returns what the server says about itself and the visitor; up to half a minute old unless `fresh`."""
        known = self._infos.get(visitor.token)
        if known is not None and not fresh and time.monotonic() - known[0] < _INFO_SECONDS:
            return known[1]
        request = v1.GetServerInfoRequest()
        answer: v1.GetServerInfoResponse = await self._call(visitor, request)
        if len(self._infos) > 1000:
            self._infos.clear()
        self._infos[visitor.token] = (time.monotonic(), answer)
        return answer

    def forget(self, token: str | None) -> None:
        """Drops what is kept for a token."""
        self._infos.pop(token, None)

    async def _call(self, visitor: Visitor, request: Message) -> Any:
        return await self.client(visitor).send(request)

    async def jobs(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/`."""
        search, after = wanted.get("q", "")[:MAX_ID_LENGTH], wanted.get("after", "")
        state = wanted.get("state", "")
        order = wanted.get("order", "attention")
        order = order if order in _ORDERS else "attention"
        request = v1.ListJobsRequest(
            page_size=PAGE_SIZE,
            page_token=after,
            contains=search,
            states=[v1.JobState.Value(f"JOB_STATE_{state.upper()}")] if state and state in _STATE_WORDS else [],
            order=_ORDERS[order],
            with_summaries=True,
            with_total_size=True,
        )
        info, totals, listed = await asyncio.gather(
            self.info(visitor),
            self._call(visitor, v1.GetTotalsRequest()),
            self._call(visitor, request),
        )
        kept = {name: text for name, text in (("q", search), ("state", state), ("order", order)) if text}
        if order == "attention":
            kept.pop("order")
        found: list[Section | None] = [
            Head("Jobs", style="sr"),
            sections.totals(totals.totals, info.factors),
        ]
        filtered = bool(search or state)
        if totals.totals.num_jobs or filtered:
            states = _choices(_STATE_WORDS, "state", state, kept)
            found.append(JobSearch(search, state, order, states, _choices(_ORDER_WORDS, "order", order, kept)))
            if listed.jobs:
                caption = f"{number_of(listed.total_size, 'job')}{' match' if filtered else ''}"
                rows = [sections.job_row(row, info.factors) for row in listed.jobs]
                found += [Jobs(caption, rows), _pager("/", kept, wanted, listed.next_page_token)]
            else:
                found.append(Paragraph("No job matches.", "empty", path="/", link="Show all jobs"))
        else:
            found.append(FirstSteps(self.address, needs_token=info.role != v1.ROLE_ANYONE))
        return Page("Jobs", info, found)

    async def job(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/job?id=`."""
        job_id = wanted.get("id", "")
        known = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        job: v1.Job = known.job
        details: v1.JobDetails = known.details
        trials_request = TrialFilter().request(job_id, page_size=_NEWEST_TRIALS)
        running_request = TrialFilter(result="running").request(job_id, page_size=PAGE_SIZE)
        events_request = v1.ListEventsRequest(job_id=job_id, page_size=_NEWEST_EVENTS)
        info, figures, profiles, listed, running, events, preview = await asyncio.gather(
            self.info(visitor),
            self._figures(visitor, job_id, job),
            self._power_profiles(visitor, job_id),
            self._call(visitor, trials_request),
            self._call(visitor, running_request),
            self._call(visitor, events_request),
            self._call(visitor, v1.PreviewNextRequest(job_id=job_id)),
        )
        curves = await self._newest_curves(visitor, job, running.trials, figures.buckets)
        statistics = figures.statistics
        bounds = [trial.cost_bound for trial in listed.trials if trial.HasField("cost_bound")]
        found = answer(job, details, statistics, info.factors, preview.choices)
        rows = [sections.trial_row(job, trial) for trial in listed.trials]
        events_of = Events(sections.event_rows(events.events), job_id, has_more=bool(events.next_page_token))
        return Page(
            job_id,
            info,
            [
                Head(job_id, crumbs=True, badge=amounts.job_badge(job_state(job, details)), style="id"),
                sections.job_sentence(found, running.total_size),
                _unless_empty(Warnings, job_warnings(job, details)),
                Beside(
                    "answer",
                    [
                        sections.savings_card(job, details, statistics, info.factors, found),
                        sections.next_launch(job, preview.choices, running),
                    ],
                ),
                _unless_empty(SetByPeople, set_by_people(job, details, statistics)),
                sections.charts_of(
                    charts.cost_by_trial(job, details, figures, bounds[0] if bounds else None),
                    charts.expected_costs(job, details, preview.choices, statistics, info.factors),
                    charts.curves(job.spec, curves),
                    charts.saved_so_far(job, figures),
                    charts.model_by_month(statistics, info.factors),
                    charts.epochs(job, statistics),
                    charts.power(job, details, profiles),
                    compare=job_id,
                ),
                Beside(
                    "columns",
                    [
                        events_of if events.events else None,
                        Facts("Configuration", job_facts(job, details, statistics)),
                    ],
                ),
                Trials(f"Trials of {job_id}, newest first", rows, job_id=job_id, total=listed.total_size)
                if rows
                else None,
            ],
            job_id,
        )

    async def _newest_curves(
        self, visitor: Visitor, job: v1.Job, running: Sequence[v1.Trial], buckets: Sequence[v1.TrialBucket]
    ) -> list[charts.Curve]:
        """Returns the epochs of running trials, and of the newest ended trial of each batch size."""
        newest = {bucket.batch_size: bucket for bucket in buckets if not bucket.excluded and bucket.newest_trial}
        ended = sorted(newest.values(), key=lambda bucket: -bucket.newest_trial)
        # Each of both kinds has some of them, whatever the number of the other.
        shown = list(running)[: max(_CURVES - len(ended), _CURVES // 2)]
        reads = [self._curve(visitor, job, trial.id.trial_number, trial.batch_size, running=True) for trial in shown]
        reads += [self._ended_curve(visitor, job, bucket) for bucket in ended[: _CURVES - len(shown)]]
        found = await asyncio.gather(*reads, return_exceptions=True)
        return [curve for curve in found if isinstance(curve, charts.Curve)]

    async def _curve(
        self, visitor: Visitor, job: v1.Job, trial_number: int, batch_size: int, *, running: bool
    ) -> charts.Curve:
        measurements = await self._measurements(visitor, job.spec.job_id, trial_number)
        return charts.Curve(trial_number, batch_size, running, thinned(measurements, POINTS))

    async def _ended_curve(self, visitor: Visitor, job: v1.Job, bucket: v1.TrialBucket) -> charts.Curve:
        """Returns the curve of an ended trial. The trial may go on, but then it ends again."""
        end = bucket.last_end_time.ToNanoseconds()
        key = (job.spec.job_id, job.create_time.ToNanoseconds(), bucket.newest_trial, end)
        known = self._curves.get(key)
        if known is None:
            known = await self._curve(visitor, job, bucket.newest_trial, bucket.batch_size, running=False)
            self._curves[key] = known
        self._curves.move_to_end(key)
        while len(self._curves) > _KEPT_CURVES:
            self._curves.popitem(last=False)
        return known

    async def trials(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/job/trials?id=`."""
        job_id = wanted.get("id", "")
        answer = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        job: v1.Job = answer.job
        shown = TrialFilter.of(job, wanted)
        request = shown.request(job_id, page_size=PAGE_SIZE)
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        kept = {"id": job_id} | shown.parameters
        last = listed.trials[-1].id.trial_number if listed.trials else 0
        results = _choices(RESULT_WORDS, "result", shown.result, kept | {"from": ""})
        bad_label = wanted.get("label", "") if not shown.label else ""
        found: list[Section | None] = [
            Head("Trials", crumbs=True, job_id=job_id),
            TrialSearch(job_id, results, sorted(job.spec.batch_sizes), shown, bad_label),
        ]
        found += [
            Paragraph(f"There is no filter {name}={wanted[name]}. It is ignored now.", "fault")
            for name in ignored(job, wanted)
            if name != "label"
        ]
        if bad_label:
            text = "Write a label as key=value, such as host=node-7. It is ignored now."
            found.append(Paragraph(text, "fault", id="bad-label"))
        if listed.trials:
            match = " that match" if shown.parameters else ""
            limit = f", up to trial {shown.start}" if shown.start else ""
            text = f"{number_of(listed.total_size, 'trial')}{match}, newest first{limit}"
            rows = [sections.trial_row(job, trial) for trial in listed.trials]
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

    async def compare(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/compare?a=&b=`."""
        first, second = wanted.get("a", ""), wanted.get("b", "")[:MAX_ID_LENGTH]
        answer = await self._call(visitor, v1.GetJobRequest(job_id=first))
        one: v1.GetJobResponse = answer
        info, other = await asyncio.gather(self.info(visitor), self._job_or_none(visitor, second))
        title, search = f"{first} compared", PairSearch(first, second)
        if other is None or second == first:
            # The jobs of its name come first, which are probably about the same model.
            request = v1.ListJobsRequest(page_size=PAGE_SIZE, contains=second, order=v1.JOB_ORDER_LAST_ACTIVITY)
            listed = await self._call(visitor, request)
            ids = [row.job.spec.job_id for row in listed.jobs if row.job.spec.job_id != first]
            prefix = one.job.spec.job_id_prefix
            ids.sort(key=lambda job_id: not job_id.startswith(prefix))
            found: list[Section | None] = [Head("Compare", crumbs=True, job_id=first), search]
            if ids:
                unknown = f"No other job has the id {second}. " if second else ""
                found += [Paragraph(f"{unknown}Jobs to compare with:", ""), Candidates(first, ids)]
                if listed.next_page_token:
                    found.append(Paragraph("There are more; search for a part of the id.", "note"))
            else:
                none = f"No other job has {second} in its id." if second else "There is no other job."
                found.append(Paragraph(none, "empty"))
            return Page(title, info, found, is_live=False)
        known = [one, other]
        jobs = [each.job for each in known]
        figures = await asyncio.gather(
            *(self._figures(visitor, job_id, job) for job_id, job in zip((first, second), jobs, strict=True))
        )
        top = max(map(charts.highest_cost, figures)) * _ROOM or None
        sizes = {size for job in jobs for size in job.spec.batch_sizes}
        pairs = list(zip(jobs, figures, strict=True))
        costs = [
            charts.cost_by_trial(
                each.job, each.details, of, name=f"cost-{place}", title=each.job.spec.job_id, sizes=sizes, top=top
            )
            for place, (each, of) in enumerate(zip(known, figures, strict=True), 1)
        ]
        return Page(
            title,
            info,
            [
                Head("Compare with", second, crumbs=True, job_id=first),
                search,
                *(Paragraph(note, "advice") for note in incomparable(one.job, other.job)),
                Pair((first, second), compared([(job, of.statistics) for job, of in pairs], info.factors)),
                sections.charts_of(charts.cost_per_delivery(pairs), *costs),
            ],
        )

    async def _job_or_none(self, visitor: Visitor, job_id: str) -> v1.GetJobResponse | None:
        if not job_id:
            return None
        try:
            found: v1.GetJobResponse = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        except (JobNotFoundError, PermissionDeniedError):
            return None
        return found

    async def _figures(self, visitor: Visitor, job_id: str, job: v1.Job) -> charts.History:
        """Returns the figures of a job, with at most `_MARKS` buckets if it has too many trials to show each one."""
        request = v1.GetJobStatisticsRequest(job_id=job_id)
        single = job.num_trials - job.reset_after <= _SINGLE_TRIALS
        answer, found = await asyncio.gather(
            self._call(visitor, request),
            self._buckets(visitor, job_id, _SINGLE_TRIALS if single else _RANGES),
        )
        if not single and len(found.buckets) > _MARKS:
            # Each range may have a bucket for each batch size that was ever used.
            sizes = {bucket.batch_size for bucket in found.buckets}
            found = await self._buckets(visitor, job_id, max(1, _MARKS // len(sizes)))
        return charts.History(answer.statistics, found.buckets, found.savings_points)

    async def _buckets(self, visitor: Visitor, job_id: str, max_ranges: int) -> v1.ListTrialBucketsResponse:
        """Returns all pages of the buckets of a job."""
        return await self.client(visitor).list_trial_buckets(job_id, max_ranges=max_ranges, with_excluded=True)

    async def _power_profiles(self, visitor: Visitor, job_id: str) -> list[v1.PowerProfile]:
        return [profile async for profile in self.client(visitor).power_profiles(job_id)]

    async def _trial(self, visitor: Visitor, job_id: str, trial_number: int) -> v1.GetTrialResponse:
        request = v1.GetTrialRequest(trial=v1.TrialId(job_id=job_id, trial_number=trial_number))
        answer: v1.GetTrialResponse = await self._call(visitor, request)
        return answer

    async def _measurements(self, visitor: Visitor, job_id: str, trial_number: int) -> list[v1.Measurement]:
        trial = v1.TrialId(job_id=job_id, trial_number=trial_number)
        measurements = self.client(visitor).measurements(trial, page_size=MAX_MEASUREMENT_PAGE)
        return [measurement async for measurement in measurements]

    async def trial(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/trial?job=&number=`."""
        job_id, trial_number = wanted.get("job", ""), whole(wanted.get("number", ""))
        info, known, found, measurements = await asyncio.gather(
            self.info(visitor),
            self._call(visitor, v1.GetJobRequest(job_id=job_id)),
            self._trial(visitor, job_id, trial_number),
            self._measurements(visitor, job_id, trial_number),
        )
        job, trial = known.job, found.trial
        curve = charts.Curve(trial_number, trial.batch_size, trial.status == v1.TRIAL_STATUS_RUNNING, measurements)
        row = sections.trial_row(job, trial)
        head = Head(
            f"Trial {trial_number}",
            crumbs=True,
            job_id=job_id,
            badge=row.badge,
            previous=trial_number - 1 if trial_number > 1 else None,
            following=trial_number + 1 if trial_number < job.num_trials else None,
        )
        return Page(
            f"Trial {trial_number} of {job_id}",
            info,
            [
                head,
                _unless_empty(Warnings, trial_warnings(trial)),
                Facts("", trial_reasons(trial), "why"),
                sections.charts_of(
                    charts.curves(job.spec, [curve], of_job=False),
                    charts.power(job, known.details, [found.power_profile] if found.HasField("power_profile") else []),
                ),
                Beside("columns", [Facts("Facts", trial_facts(job, trial)), sections.labels(trial, self.address)]),
            ],
            job_id,
        )

    async def running(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/running`."""
        request = v1.ListTrialsRequest(
            job_id_prefix="",
            page_size=200,
            page_token=wanted.get("after", ""),
            statuses=[v1.TRIAL_STATUS_RUNNING],
            with_total_size=True,
        )
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        rows = sorted((sections.trial_row(None, trial) for trial in listed.trials), key=lambda row: row.silent_since)
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

    async def events(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/events`."""
        job_id, kind = wanted.get("job", ""), wanted.get("kind", "")
        value = v1.EventKind.Value(kind) if kind in v1.EventKind.keys() else v1.EVENT_KIND_UNSPECIFIED  # noqa: SIM118
        request = v1.ListEventsRequest(
            job_id=job_id, page_size=PAGE_SIZE, page_token=wanted.get("after", ""), kinds=[value] if value else []
        )
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        kept = ({"job": job_id} if job_id else {}) | ({"kind": kind} if value else {})
        kinds = [(name, event_kind(number)) for name, number in v1.EventKind.items() if number]
        found: list[Section | None] = [
            Head("Events of" if job_id else "Events", job_id),
            EventSearch(job_id, kind if value else "", kinds),
        ]
        if listed.events:
            rows = sections.event_rows(listed.events)
            found += [Events(rows, with_job=not job_id), _pager("/events", kept, wanted, listed.next_page_token)]
        else:
            text = (
                "No event matches. Events are what people changed and what the search found. What a trial reported is "
                "on its own page."
            )
            found.append(Paragraph(text, "empty"))
        return Page("Events", info, found, job_id)

    async def about(self, visitor: Visitor, _wanted: Parameters) -> Page:
        """Returns `/about`."""
        info = await self.info(visitor, fresh=True)
        factors = factors_text(info.factors) or NO_FACTORS
        about = About(self.address, info, role_name(info.role), amounts.moment(info.start_time), factors)
        return Page("About", info, [Head("About"), about], is_live=False)

    async def glossary(self, visitor: Visitor, _wanted: Parameters) -> Page:
        """Returns `/glossary`."""
        return Page("Glossary", await self.info(visitor), [Head("Glossary"), Terms(self._terms)], is_live=False)

    async def filtered(self, visitor: Visitor, wanted: Parameters) -> AsyncIterator[JobTrial]:
        """Returns the trials of a job by number, for a file; the first ones are read at once.

        Raises:
            InvalidRequestError: the address has an unknown filter.
        """
        job_id = wanted.get("id", "")
        answer = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        job: v1.Job = answer.job
        if unknown := ignored(job, wanted):
            raise InvalidRequestError(f"unknown filters: {', '.join(unknown)}; use those of the list of trials")
        shown = TrialFilter.of(job, wanted)
        trials = self.client(visitor).trials(job_id, page_size=MAX_PAGE, **shown.arguments)
        first = await anext(trials, None)

        async def rows() -> AsyncIterator[JobTrial]:
            trial = first
            while trial is not None and not (shown.start and trial.id.trial_number > shown.start):
                yield JobTrial(job, trial)
                trial = await anext(trials, None)

        return rows()


def _unless_empty(section: Callable[[Sequence[Fact]], Section], facts: Sequence[Fact]) -> Section | None:
    return section(facts) if facts else None


def role_name(value: int) -> str:
    """Returns a token's role in words; empty where the server needs no token."""
    return "" if value == v1.ROLE_ANYONE else enum_name(v1.Role, value)


def _query(parameters: Mapping[str, str]) -> str:
    filled = {name: text for name, text in parameters.items() if text}
    return f"?{urlencode(filled)}" if filled else "?"


def _pager(path: str, kept: Parameters, wanted: Parameters, following: str) -> Pager:
    """Returns the links from a part of a list; `following` is the token of the next part."""
    first = _query(kept) if wanted.get("after") else None
    return Pager(path, first, _query({**kept, "after": following}) if following else None)


def _choices(words: Mapping[str, str], name: str, current: str, kept: Parameters) -> list[Choice]:
    """Returns the values of a parameter, which keep the other parameters."""
    return [Choice(word, _query({**kept, name: value}), value == current) for value, word in words.items()]


_STATE_WORDS = {
    "": "all",
    "attention": "needs attention",
    "running": "running",
    "idle": "idle",
    "new": "new",
    "held": "held",
}
_ORDER_WORDS = {"attention": "attention first", "activity": "last activity", "newest": "newest", "id": "name"}
_ORDERS = {
    "attention": v1.JOB_ORDER_ATTENTION,
    "activity": v1.JOB_ORDER_LAST_ACTIVITY,
    "newest": v1.JOB_ORDER_NEWEST,
    "id": v1.JOB_ORDER_ID,
}


def is_old_page(error: WattwiseError) -> bool:
    """Returns whether a list's page token is refused: it belongs to another visitor, list or server."""
    return "page_token" in str(error)
