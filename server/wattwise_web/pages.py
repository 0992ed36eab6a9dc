"""What each page shows: the calls that it needs, all at once, and their answers as a template's values."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
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
from wattwise.monitor.kind import EnergyQuality, energy_quality, monitor_text
from wattwise.presentation.quantities import energy_of, percent
from wattwise.presentation.sentences import (
    Answer,
    answer,
    change_now,
    main_quantity,
    since_trial,
    total_answer,
)
from wattwise.presentation.states import JobTrial, batch_size_in_use, job_state, listed_state, other_monitors, uncounted
from wattwise.rpc.address import is_loopback
from wattwise.rpc.async_client import AsyncClient
from wattwise.rpc.credentials import Credentials
from wattwise.rules import MAX_ID_LENGTH, MAX_MEASUREMENT_PAGE, MAX_PAGE
from wattwise.spec import enum_name

from wattwise_web import amounts, charts, facts, savings
from wattwise_web.charts.curves import POINTS
from wattwise_web.charts.marks import thinned
from wattwise_web.trial_filter import RESULT_WORDS, TrialFilter, ignored, whole

Values = dict[str, Any]
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
        self._terms = facts.glossary()
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
        """What the server says about itself and the visitor; up to half a minute old unless `fresh`."""
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

    async def jobs(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/`."""
        search, after = wanted.get("q", "")[:MAX_ID_LENGTH], wanted.get("after", "")
        state = wanted.get("state", "")
        order = wanted.get("order", "attention")
        order = order if order in _ORDERS else "attention"
        request = v1.ListJobsRequest(
            page_size=PAGE_SIZE,
            page_token=after,
            contains=search,
            states=[_STATES[state]] if state in _STATES else [],
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
        return {
            "title": "Jobs",
            "info": info,
            "totals": _totals(totals.totals, info.factors),
            "rows": [_job_row(row, info.factors) for row in listed.jobs],
            "total": listed.total_size,
            "search": search,
            "state": state,
            "order": order,
            "states": [
                {"name": name, "word": word, "query": _query(kept | {"state": name}), "current": state == name}
                for name, word in _STATE_WORDS.items()
            ],
            "orders": [
                {"name": name, "word": word, "query": _query(kept | {"order": name}), "current": order == name}
                for name, word in _ORDER_WORDS.items()
            ],
            "first": _query(kept) if after else None,
            "next": _query(kept | {"after": listed.next_page_token}) if listed.next_page_token else None,
            "filtered": bool(search or state),
            "server": self.address,
            "factors": savings.factor_lines(info.factors),
            "needs_token": info.role != v1.ROLE_ANYONE,
        }

    async def job(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/job?id=`."""
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
        return {
            "title": job_id,
            "info": info,
            "job_id": job_id,
            "badge": amounts.job_badge(job_state(job, details)),
            "sentence": _sentence(found, running.total_size),
            "warnings": _warnings(job, details),
            "answer": found,
            "card": savings.card(job, details, statistics, info.factors, found),
            "advice": [f"{text[:1].upper()}{text[1:]}." for text in statistics.advice],
            "factors": savings.factor_lines(info.factors),
            "factor_source": info.factors.source,
            "facts": facts.job_facts(job, details),
            "by_people": facts.by_people(job, details, statistics),
            "choices": list(preview.choices)[:3],
            "chooser": facts.chooser(job, preview.choices),
            "charts": [
                chart
                for chart in (
                    charts.cost_by_trial(job, details, figures, bounds[0] if bounds else None),
                    charts.expected_costs(job, details, preview.choices, statistics, info.factors),
                    charts.curves(job.spec, curves),
                    charts.saved_so_far(job, figures),
                    charts.model_by_month(statistics, info.factors),
                    charts.epochs(job, statistics),
                    charts.power(job, details, profiles),
                )
                if chart is not None
            ],
            "running": [_trial_row(job, trial) for trial in running.trials],
            "running_total": running.total_size,
            "trials": [_trial_row(job, trial) for trial in listed.trials],
            "trials_total": listed.total_size,
            "events": [_event_row(event) for event in events.events],
            "more_events": bool(events.next_page_token),
            "server": self.address,
        }

    async def _newest_curves(
        self, visitor: Visitor, job: v1.Job, running: Sequence[v1.Trial], buckets: Sequence[v1.TrialBucket]
    ) -> list[charts.Curve]:
        """The epochs of running trials, and of the newest ended one of each batch size."""
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
        """That of a trial of a job that the visitor may read. It may go on, but then it ends again."""
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

    async def trials(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/job/trials?id=`."""
        job_id = wanted.get("id", "")
        answer = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        job: v1.Job = answer.job
        shown = TrialFilter.of(job, wanted)
        request = shown.request(job_id, page_size=PAGE_SIZE)
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        kept = {"id": job_id} | shown.parameters
        last = listed.trials[-1].id.trial_number if listed.trials else 0
        return {
            "title": f"Trials of {job_id}",
            "info": info,
            "job_id": job_id,
            "filter": shown,
            "bad_label": wanted.get("label", "") if not shown.label else "",
            "ignored": [f"{name}={wanted[name]}" for name in ignored(job, wanted) if name != "label"],
            "trials": [_trial_row(job, trial) for trial in listed.trials],
            "trials_total": listed.total_size,
            "batch_sizes": sorted(job.spec.batch_sizes),
            "results": [
                {"word": word, "query": _query(kept | {"result": name, "from": ""}), "current": shown.result == name}
                for name, word in RESULT_WORDS.items()
            ],
            "first": _query(kept | {"from": ""}) if shown.start else None,
            "next": _query(kept | {"from": str(last - 1)}) if listed.next_page_token and last > 1 else None,
        }

    async def compare(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/compare?a=&b=`."""
        first, second = wanted.get("a", ""), wanted.get("b", "")[:MAX_ID_LENGTH]
        answer = await self._call(visitor, v1.GetJobRequest(job_id=first))
        one: v1.GetJobResponse = answer
        info, other = await asyncio.gather(self.info(visitor), self._job_or_none(visitor, second))
        values: Values = {"title": f"{first} compared", "info": info, "job_id": first, "other": second}
        if other is None or second == first:
            # The jobs of its name come first, which are probably about the same model.
            request = v1.ListJobsRequest(page_size=PAGE_SIZE, contains=second, order=v1.JOB_ORDER_LAST_ACTIVITY)
            listed = await self._call(visitor, request)
            ids = [row.job.spec.job_id for row in listed.jobs if row.job.spec.job_id != first]
            prefix = one.job.spec.job_id_prefix
            ids.sort(key=lambda job_id: not job_id.startswith(prefix))
            return values | {"found": ids, "more": bool(listed.next_page_token), "rows": [], "charts": [], "notes": []}
        known = [one, other]
        jobs = [each.job for each in known]
        figures = await asyncio.gather(
            *(self._figures(visitor, job_id, job) for job_id, job in zip((first, second), jobs, strict=True))
        )
        top = max(map(charts.highest_cost, figures)) * _ROOM or None
        sizes = {size for job in jobs for size in job.spec.batch_sizes}
        pairs = list(zip(jobs, figures, strict=True))
        found = [
            charts.cost_by_trial(
                each.job, each.details, of, name=f"cost-{place}", title=each.job.spec.job_id, sizes=sizes, top=top
            )
            for place, (each, of) in enumerate(zip(known, figures, strict=True), 1)
        ]
        return values | {
            "found": [],
            "more": False,
            "rows": facts.compared([(job, of.statistics) for job, of in pairs], info.factors),
            "notes": facts.incomparable(one.job, other.job),
            "charts": [chart for chart in (charts.cost_per_delivery(pairs), *found) if chart is not None],
        }

    async def _job_or_none(self, visitor: Visitor, job_id: str) -> v1.GetJobResponse | None:
        if not job_id:
            return None
        try:
            found: v1.GetJobResponse = await self._call(visitor, v1.GetJobRequest(job_id=job_id))
        except (JobNotFoundError, PermissionDeniedError):
            return None
        return found

    async def _figures(self, visitor: Visitor, job_id: str, job: v1.Job) -> charts.History:
        """The figures of a job, with at most `_MARKS` buckets if it has too many trials to show each one."""
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
        """All pages of the buckets of a job."""
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

    async def trial(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/trial?job=&number=`."""
        job_id, trial_number = wanted.get("job", ""), whole(wanted.get("number", ""))
        info, known, found, measurements = await asyncio.gather(
            self.info(visitor),
            self._call(visitor, v1.GetJobRequest(job_id=job_id)),
            self._trial(visitor, job_id, trial_number),
            self._measurements(visitor, job_id, trial_number),
        )
        job, trial = known.job, found.trial
        curve = charts.Curve(trial_number, trial.batch_size, trial.status == v1.TRIAL_STATUS_RUNNING, measurements)
        return {
            "title": f"Trial {trial_number} of {job_id}",
            "info": info,
            "job_id": job_id,
            "trial": trial,
            "number": trial_number,
            "row": _trial_row(job, trial),
            "facts": facts.trial_facts(job, trial),
            "labels": [facts.label(key, value) for key, value in sorted(trial.labels.items())],
            "warnings": [(amounts.warning_kind(each.reason), each.message) for each in trial.warnings],
            "charts": [
                chart
                for chart in (
                    charts.curves(job.spec, [curve], of_job=False),
                    charts.power(job, known.details, [found.power_profile] if found.HasField("power_profile") else []),
                )
                if chart is not None
            ],
            "previous": trial_number - 1 if trial_number > 1 else None,
            "following": trial_number + 1 if trial_number < job.num_trials else None,
            "server": self.address,
        }

    async def running(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/running`."""
        request = v1.ListTrialsRequest(
            job_id_prefix="",
            page_size=200,
            page_token=wanted.get("after", ""),
            statuses=[v1.TRIAL_STATUS_RUNNING],
            with_total_size=True,
        )
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        rows = [_trial_row(None, trial) for trial in listed.trials]
        rows.sort(key=lambda row: row["silent_since"])
        return {
            "title": "Running",
            "info": info,
            "rows": rows,
            "total": listed.total_size,
            "next": _query({"after": listed.next_page_token}) if listed.next_page_token else None,
            "first": "" if wanted.get("after") else None,
        }

    async def events(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/events`."""
        job_id, kind = wanted.get("job", ""), wanted.get("kind", "")
        value = v1.EventKind.Value(kind) if kind in v1.EventKind.keys() else v1.EVENT_KIND_UNSPECIFIED  # noqa: SIM118
        request = v1.ListEventsRequest(
            job_id=job_id, page_size=PAGE_SIZE, page_token=wanted.get("after", ""), kinds=[value] if value else []
        )
        info, listed = await asyncio.gather(self.info(visitor), self._call(visitor, request))
        kept = ({"job": job_id} if job_id else {}) | ({"kind": kind} if value else {})
        return {
            "title": "Events",
            "info": info,
            "events": [_event_row(event) for event in listed.events],
            "job_id": job_id,
            "kind": kind if value else "",
            "kinds": [(name, amounts.event_kind(number)) for name, number in v1.EventKind.items() if number],
            "first": _query(kept) if wanted.get("after") else None,
            "next": _query(kept | {"after": listed.next_page_token}) if listed.next_page_token else None,
        }

    async def about(self, visitor: Visitor, _wanted: Parameters) -> Values:
        """`/about`."""
        info = await self.info(visitor, fresh=True)
        return {
            "title": "About",
            "info": info,
            "role": role_name(info.role),
            "started": amounts.moment(info.start_time),
            "factors": savings.factor_lines(info.factors),
            "server": self.address,
        }

    async def glossary(self, visitor: Visitor, _wanted: Parameters) -> Values:
        """`/glossary`."""
        return {"title": "Glossary", "info": await self.info(visitor), "terms": self._terms}

    async def filtered(self, visitor: Visitor, wanted: Parameters) -> AsyncIterator[JobTrial]:
        """The trials of a job by number, for a file; the first ones are read at once.

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


def role_name(value: int) -> str:
    """A token's role in words; empty where the server needs no token."""
    return "" if value == v1.ROLE_ANYONE else enum_name(v1.Role, value)


def _query(parameters: Mapping[str, str]) -> str:
    filled = {name: text for name, text in parameters.items() if text}
    return f"?{urlencode(filled)}" if filled else "?"


_STATE_WORDS = {
    "": "all",
    "attention": "needs attention",
    "running": "running",
    "idle": "idle",
    "new": "new",
    "held": "held",
}
_STATES = {
    "running": v1.JOB_STATE_RUNNING,
    "idle": v1.JOB_STATE_IDLE,
    "new": v1.JOB_STATE_NEW,
    "held": v1.JOB_STATE_HELD,
    "attention": v1.JOB_STATE_ATTENTION,
}
_ORDER_WORDS = {"attention": "attention first", "activity": "last activity", "newest": "newest", "id": "name"}
_ORDERS = {
    "attention": v1.JOB_ORDER_ATTENTION,
    "activity": v1.JOB_ORDER_LAST_ACTIVITY,
    "newest": v1.JOB_ORDER_NEWEST,
    "id": v1.JOB_ORDER_ID,
}


def _totals(totals: v1.Totals, factors: v1.Factors) -> Values:
    measured = totals.spent.HasField("energy_joules")
    field = "energy_joules" if measured else "time_seconds"
    text = amounts.energy if measured else amounts.span
    quantity = main_quantity(totals.savings, factors)
    paid = amounts.money(totals.spent.money, factors.currency) if quantity.name == "money" else ""
    return {
        "jobs": totals.num_jobs,
        "running": totals.num_running_trials,
        "deliveries": totals.num_deliveries,
        "spent": text(getattr(totals.spent, field)),
        "measured": measured,
        "time": amounts.span(totals.spent.time_seconds),
        "paid": paid,
        "per_model": quantity.text(totals.spent_per_delivery.money) if paid and totals.num_deliveries else "",
        "saved": total_answer(totals, factors),
        "attention": totals.num_jobs_needing_attention,
    }


def _job_row(row: v1.JobListing, factors: v1.Factors) -> Values:
    job, summary, found = row.job, row.summary, row.summary.savings
    saving, text = main_quantity(found, factors)[1:]
    match saving.verdict:
        case v1.SAVINGS_VERDICT_SAVING:
            saved = (percent(saving.at_least_share), "gain", text(saving.at_least))
        case v1.SAVINGS_VERDICT_LOSS:
            saved = (f"+{percent(saving.lost_share)}", "loss", "costs more")
        case v1.SAVINGS_VERDICT_EXPLORING:
            saved = ("exploring", "none", "")
        case v1.SAVINGS_VERDICT_UNCERTAIN:
            saved = ("not certain", "none", "")
        case v1.SAVINGS_VERDICT_NO_BASELINE:
            missing = found.min_baseline_trials - found.num_baseline_trials
            saved = (amounts.unknown(), "none", f"needs {amounts.plural(missing, 'run')} of the default")
        case _:
            saved = (amounts.unknown(), "none", "")
    has_activity = summary.HasField("last_activity_time")
    return {
        "id": job.spec.job_id,
        "badge": amounts.job_badge(listed_state(row)),
        "used": batch_size_in_use(job),
        "default": job.spec.default_batch_size,
        "now": text(saving.in_use) if saving.HasField("in_use") else amounts.unknown(),
        "change": "" if job.batch_size_in_use == job.spec.default_batch_size else change_now(saving),
        "running": summary.num_running_trials,
        "trials": job.num_trials,
        "deliveries": summary.num_deliveries,
        "saved": dict(zip(("text", "kind", "amount"), saved, strict=True)),
        "since": since_trial(found).strip(),
        "estimated": energy_quality(job.monitor) is not EnergyQuality.MEASURED,
        "activity": amounts.moment(summary.last_activity_time if has_activity else job.create_time),
        "active": has_activity,
    }


def _sentence(found: Answer, running: int) -> str:
    """What a launch costs, what was saved, what is used, what is next, and what runs."""
    runs = f"{amounts.plural(running, 'trial is', 'trials are')} running." if running else "Nothing is running."
    return " ".join(filter(None, (found.now, found.saved, found.used, found.upcoming, runs)))


def _warnings(job: v1.Job, details: v1.JobDetails) -> list[tuple[str, str]]:
    found = [("advice", details.advice)] if details.advice else []
    found += [
        (f"{amounts.warning_kind(each.reason)}, trial {each.trial_number}", each.message) for each in job.warnings
    ]
    if job.other_monitors:
        found.append(
            (
                "mixed monitors",
                (
                    f"Trials measured energy with {monitor_text(job.monitor)} and {other_monitors(job)}: "
                    "their costs cannot be compared. Use one job id per monitor."
                ),
            )
        )
    return found


def _trial_row(job: v1.Job | None, trial: v1.Trial) -> Values:
    has_cost = trial.HasField("cost")
    reported = trial.newest.HasField("report_time")
    energy = energy_of(trial.newest)
    silent_since = trial.newest.report_time if reported else trial.start_time
    lease = amounts.moment(trial.lease_expire_time, is_ahead=True) if trial.HasField("lease_expire_time") else None
    why = uncounted(job, trial) if job is not None else ""
    return {
        "job": trial.id.job_id,
        "number": trial.id.trial_number,
        "size": trial.batch_size,
        "badge": amounts.trial_badge(trial, uncounted=why),
        "struck": bool(why),
        "epochs": trial.newest.epoch,
        "metric": amounts.metric(trial.newest.metric) if trial.HasField("newest") else amounts.unknown(),
        "time": amounts.span(trial.newest.time_seconds) if has_cost else amounts.unknown(),
        "energy": amounts.unknown() if energy is None else amounts.energy(energy),
        "cost": amounts.cost(trial.cost) if has_cost else amounts.unknown(),
        "estimated": energy_quality(trial.monitor) is not EnergyQuality.MEASURED,
        "computed": trial.newest.HasField("computed"),
        "started": amounts.moment(trial.start_time) if trial.HasField("start_time") else None,
        "reported": amounts.moment(trial.newest.report_time) if reported else None,
        "silent_since": silent_since.ToNanoseconds(),
        "lease": lease,
        "host": trial.labels.get("host", ""),
        "log": facts.web_url(trial.labels.get(facts.LOG_URL, "")),
        "warned": bool(trial.warnings),
        "running": trial.status == v1.TRIAL_STATUS_RUNNING,
    }


def _event_row(event: v1.Event) -> Values:
    return {
        "time": amounts.moment(event.time),
        "kind": amounts.event_kind(event.kind),
        "job": event.job_id,
        "trial": event.trial_number if event.HasField("trial_number") else None,
        "message": event.message,
        "token": event.token_id,
    }


def is_old_page(error: WattwiseError) -> bool:
    """Returns whether a list's page token is refused: it belongs to another visitor, list or server."""
    return "page_token" in str(error)
