"""What each page shows: the calls that it needs, all at once, and their answers as a template's values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from wattwise import v1
from wattwise.commands.savings import since_trial
from wattwise.commands.tables import policy, uncounted
from wattwise.errors import WattwiseError
from wattwise.monitor.kind import monitor_text
from wattwise.spec import enum_name

from wattwise_web import amounts, charts, savings
from wattwise_web.backend import Backend

Values = dict[str, Any]
Answer = TypeVar("Answer")
Parameters = Mapping[str, str]

PAGE_SIZE = 50
_SINGLE_TRIALS = 1000
"""Up to so many trials, charts show each one."""
_RANGES = 250
"""In charts of more trials; a range of trials has a mark for each batch size."""
_MARKS = 600
"""With more marks, such a chart has fewer ranges."""
_CURVES = 6
"""Running trials whose epochs are drawn; each takes one call."""
_INFO_SECONDS = 30.0
_LONGEST_SEARCH = 200


@dataclass(frozen=True)
class Visitor:
    """Who reads: the token, if there is one."""

    token: str | None = field(repr=False)


class Reader:
    """The pages of one server.

    Args:
        backend: the server.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._infos: dict[str | None, tuple[float, v1.GetServerInfoResponse]] = {}

    async def info(self, visitor: Visitor, *, fresh: bool = False) -> v1.GetServerInfoResponse:
        """What the server says about itself and the visitor; up to half a minute old unless `fresh`."""
        known = self._infos.get(visitor.token)
        if known is not None and not fresh and time.monotonic() - known[0] < _INFO_SECONDS:
            return known[1]
        request = v1.GetServerInfoRequest()
        answer: v1.GetServerInfoResponse = await self._call(visitor, lambda stub: stub.GetServerInfo, request)
        if len(self._infos) > 1000:
            self._infos.clear()
        self._infos[visitor.token] = (time.monotonic(), answer)
        return answer

    def forget(self, token: str | None) -> None:
        """Drops what is kept for a token."""
        self._infos.pop(token, None)

    async def _call(self, visitor: Visitor, method: Callable[[Any], Any], request: Any) -> Any:
        return await self.backend.call(method, request, visitor.token)

    async def jobs(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/`."""
        search, after = wanted.get("q", "")[:_LONGEST_SEARCH], wanted.get("after", "")
        state = wanted.get("state", "")
        order = wanted.get("order", "attention")
        order = order if order in _ORDERS else "attention"
        request = v1.ListJobsRequest(
            page_size=PAGE_SIZE,
            page_token=after,
            contains=search,
            state=_STATES.get(state, v1.JOB_STATE_UNSPECIFIED),
            order=_ORDERS[order],
            with_summaries=True,
            with_total_size=True,
        )
        info, totals, listed = await asyncio.gather(
            self.info(visitor),
            self._call(visitor, lambda stub: stub.GetTotals, v1.GetTotalsRequest()),
            self._call(visitor, lambda stub: stub.ListJobs, request),
        )
        kept = {name: text for name, text in (("q", search), ("state", state), ("order", order)) if text}
        if order == "attention":
            kept.pop("order")
        return {
            "title": "Jobs",
            "info": info,
            "totals": _totals(totals.totals, info.factors),
            "rows": [_job_row(job, info.factors) for job in listed.jobs],
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
            "server": self.backend.address,
            "factors": savings.factor_lines(info.factors),
            "needs_token": info.role != v1.ROLE_UNSPECIFIED,
        }

    async def job(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/job?id=`."""
        job_id = wanted.get("id", "")
        answer = await self._call(visitor, lambda stub: stub.GetJob, v1.GetJobRequest(job_id=job_id))
        job: v1.Job = answer.job
        start, size = _whole(wanted.get("from", "")), _whole(wanted.get("batch", ""))
        size = size if size in job.spec.batch_sizes else 0
        result = wanted.get("result", "")
        result = result if result in _RESULT_WORDS else ""
        trials_request = v1.ListTrialsRequest(
            job_id=job_id,
            page_size=PAGE_SIZE,
            newest_first=True,
            from_trial_number=start,
            end_reason=_RESULTS.get(result, v1.END_REASON_UNSPECIFIED),
            status=v1.TRIAL_STATUS_DISPATCHED if result == "running" else v1.TRIAL_STATUS_UNSPECIFIED,
            batch_size=size,
            with_total_size=True,
        )
        running_request = v1.ListTrialsRequest(
            job_id=job_id,
            page_size=PAGE_SIZE,
            newest_first=True,
            status=v1.TRIAL_STATUS_DISPATCHED,
            with_total_size=True,
        )
        info, statistics, listed, running, events, preview = await asyncio.gather(
            self.info(visitor),
            self._statistics(visitor, job),
            self._call(visitor, lambda stub: stub.ListTrials, trials_request),
            self._call(visitor, lambda stub: stub.ListTrials, running_request),
            self._call(visitor, lambda stub: stub.ListEvents, v1.ListEventsRequest(job_id=job_id, page_size=20)),
            self._call(visitor, lambda stub: stub.PreviewNext, v1.PreviewNextRequest(job_id=job_id)),
        )
        newest = listed
        if start or result or size:
            # The chart's bound is that of the newest trial, whichever trials are listed.
            request = v1.ListTrialsRequest(job_id=job_id, page_size=1, newest_first=True)
            newest = await self._call(visitor, lambda stub: stub.ListTrials, request)
        details = await asyncio.gather(
            *(self._trial(visitor, trial) for trial in running.trials[:_CURVES]), return_exceptions=True
        )
        found = [(each.trial, each.measurements) for each in details if isinstance(each, v1.GetTrialResponse)]
        kept = {"id": job_id} | ({"result": result} if result else {}) | ({"batch": str(size)} if size else {})
        last = listed.trials[-1].id.trial_number if listed.trials else 0
        bounds = [trial.cost_bound for trial in newest.trials if trial.HasField("cost_bound")]
        return {
            "title": job_id,
            "info": info,
            "job_id": job_id,
            "badge": _page_badge(job, running.total_size),
            "sentence": _sentence(job, preview, running.total_size),
            "warnings": _warnings(job),
            "headline": savings.headline(job, statistics, info.factors),
            "advice": [f"{text[:1].upper()}{text[1:]}." for text in _advice(statistics.savings)],
            "factors": savings.factor_lines(info.factors),
            "factor_source": info.factors.source,
            "facts": _job_facts(job, statistics),
            "choices": list(preview.choices)[:3],
            # Those with nothing to draw come last.
            "charts": sorted(
                [
                    charts.cost_by_trial(job, statistics, bounds[0] if bounds else None),
                    charts.beliefs(job, preview.choices, savings.mean_moneys(statistics, info.factors)),
                    charts.curves(job.spec, found) if found else _no_curves(running.total_size),
                    charts.saved_so_far(statistics),
                    charts.epochs(job, statistics),
                    charts.power(job, statistics.power_profiles),
                ],
                key=lambda chart: not chart.wide and chart.spec is None,
            ),
            "running": [_trial_row(job, trial) for trial in running.trials],
            "running_total": running.total_size,
            "trials": [_trial_row(job, trial) for trial in listed.trials],
            "trials_total": listed.total_size,
            "start": start,
            "result": result,
            "batch": size,
            "batch_sizes": sorted(job.spec.batch_sizes),
            "results": [
                {"word": word, "query": _query(kept | {"result": name}), "current": result == name}
                for name, word in _RESULT_WORDS.items()
            ],
            "first": _query(kept) if start else None,
            "next": _query(kept | {"from": str(last - 1)}) if listed.next_page_token and last > 1 else None,
            "events": [_event_row(event) for event in events.events],
            "more_events": bool(events.next_page_token),
            "server": self.backend.address,
        }

    async def _statistics(self, visitor: Visitor, job: v1.Job) -> v1.JobStatistics:
        """The figures of a job, with at most `_MARKS` buckets if it has too many trials to show each one."""

        async def ask(num_buckets: int) -> v1.JobStatistics:
            request = v1.GetJobStatisticsRequest(job_id=job.spec.job_id, num_buckets=num_buckets)
            answer: v1.GetJobStatisticsResponse = await self._call(visitor, lambda stub: stub.GetJobStatistics, request)
            return answer.statistics

        if job.num_trials - job.reset_after <= _SINGLE_TRIALS:
            return await ask(_SINGLE_TRIALS)
        statistics = await ask(_RANGES)
        if len(statistics.buckets) > _MARKS:
            # Each range may have a bucket for each batch size that was ever used.
            sizes = {bucket.batch_size for bucket in statistics.buckets}
            statistics = await ask(max(1, _MARKS // len(sizes)))
        return statistics

    async def _trial(self, visitor: Visitor, trial: v1.Trial) -> v1.GetTrialResponse:
        request = v1.GetTrialRequest(trial=v1.TrialId(job_id=trial.id.job_id, trial_number=trial.id.trial_number))
        answer: v1.GetTrialResponse = await self._call(visitor, lambda stub: stub.GetTrial, request)
        return answer

    async def trial(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/trial?job=&number=`."""
        job_id, trial_number = wanted.get("job", ""), _whole(wanted.get("number", ""))
        named = v1.Trial(id=v1.TrialId(job_id=job_id, trial_number=trial_number))
        info, job, found = await asyncio.gather(
            self.info(visitor),
            self._call(visitor, lambda stub: stub.GetJob, v1.GetJobRequest(job_id=job_id)),
            self._trial(visitor, named),
        )
        job, trial = job.job, found.trial
        return {
            "title": f"Trial {trial_number} of {job_id}",
            "info": info,
            "job_id": job_id,
            "trial": trial,
            "number": trial_number,
            "row": _trial_row(job, trial),
            "facts": _trial_facts(job, trial),
            "labels": sorted(trial.labels.items()),
            "warnings": [(amounts.warning_kind(each.reason), each.message) for each in trial.warnings],
            "charts": [charts.curves(job.spec, [(trial, found.measurements)], title="Metric by epoch")]
            + ([charts.power(job, [found.power_profile])] if found.HasField("power_profile") else []),
            "previous": trial_number - 1 if trial_number > 1 else None,
            "following": trial_number + 1 if trial_number < job.num_trials else None,
            "server": self.backend.address,
        }

    async def running(self, visitor: Visitor, wanted: Parameters) -> Values:
        """`/running`."""
        request = v1.ListTrialsRequest(
            job_id_prefix="",
            page_size=200,
            page_token=wanted.get("after", ""),
            status=v1.TRIAL_STATUS_DISPATCHED,
            with_total_size=True,
        )
        info, listed = await asyncio.gather(
            self.info(visitor), self._call(visitor, lambda stub: stub.ListTrials, request)
        )
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
            job_id=job_id, page_size=PAGE_SIZE, page_token=wanted.get("after", ""), kind=value
        )
        info, listed = await asyncio.gather(
            self.info(visitor), self._call(visitor, lambda stub: stub.ListEvents, request)
        )
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
            "role": _role(info.role),
            "started": amounts.moment(info.start_time),
            "factors": savings.factor_lines(info.factors),
            "server": self.backend.address,
        }

    async def job_with_trials(self, visitor: Visitor, job_id: str) -> tuple[v1.Job, v1.ListTrialsResponse]:
        """A job, and the first page of its trials, by number, for a file."""
        found = await self._call(visitor, lambda stub: stub.GetJob, v1.GetJobRequest(job_id=job_id))
        return found.job, await self.trials(visitor, job_id)

    async def trials(self, visitor: Visitor, job_id: str, page_token: str = "") -> v1.ListTrialsResponse:
        """One page of a job's trials, by number, for a file."""
        request = v1.ListTrialsRequest(job_id=job_id, page_size=1000, page_token=page_token)
        answer: v1.ListTrialsResponse = await self._call(visitor, lambda stub: stub.ListTrials, request)
        return answer


def _role(value: int) -> str:
    """A token's role in words; empty where the server needs no token."""
    return enum_name(v1.Role, value) if value else ""


def _whole(text: str) -> int:
    """A positive 32-bit number; 0 for anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**31:
        return int(text)
    return 0


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
_RESULT_WORDS = {
    "": "all",
    "running": "running",
    "reached": "target reached",
    "bound": "cost bound",
    "epochs": "max epochs",
    "stopped": "stopped early",
    "error": "error",
    "memory": "out of memory",
    "lost": "lost",
    "preempted": "preempted",
}
_RESULTS = {
    "reached": v1.END_REASON_TARGET_REACHED,
    "bound": v1.END_REASON_COST_BOUND,
    "epochs": v1.END_REASON_MAX_EPOCHS,
    "stopped": v1.END_REASON_STOPPED_EARLY,
    "error": v1.END_REASON_ERROR,
    "memory": v1.END_REASON_OUT_OF_MEMORY,
    "lost": v1.END_REASON_LOST,
    "preempted": v1.END_REASON_PREEMPTED,
}


def _totals(totals: v1.Totals, factors: v1.Factors) -> Values:
    measured = totals.spent.energy_joules > 0
    field = "energy_joules" if measured else "time_seconds"
    text = amounts.energy if measured else amounts.span
    return {
        "jobs": totals.num_jobs,
        "running": totals.num_running_trials,
        "deliveries": totals.num_deliveries,
        "spent": text(getattr(totals.spent, field)),
        "measured": measured,
        "time": amounts.span(totals.spent.time_seconds),
        "saved": savings.total_saved(totals, factors),
        "attention": totals.num_jobs_needing_attention,
    }


def _job_row(job: v1.Job, factors: v1.Factors) -> Values:
    summary, found = job.summary, job.summary.savings
    least = savings.share(found.cost, least=True)
    verdict = found.verdict
    if verdict == v1.SAVINGS_VERDICT_SAVING and least is not None:
        saved = {
            "text": amounts.percent(least),
            "kind": "gain",
            "amount": savings.main_figure(found, factors, least=True),
        }
    elif verdict == v1.SAVINGS_VERDICT_LOSS:
        saved = {
            "text": f"+{amounts.percent(savings.lost_share(found.cost))}",
            "kind": "loss",
            "amount": "costs more",
        }
    elif verdict == v1.SAVINGS_VERDICT_UNCERTAIN:
        saved = {"text": "not certain", "kind": "none", "amount": ""}
    else:
        saved = {"text": amounts.unknown(), "kind": "none", "amount": ""}
    default = job.spec.default_batch_size
    size = job.pinned_batch_size or job.min_cost_batch_size or default
    has_activity = summary.HasField("last_activity_time")
    return {
        "id": job.spec.job_id,
        "badge": amounts.job_badge(job),
        "size": size,
        "default": default,
        "known": bool(job.pinned_batch_size or job.min_cost_batch_size),
        "running": summary.num_running_trials,
        "trials": job.num_trials,
        "deliveries": summary.num_deliveries,
        "saved": saved,
        "since": since_trial(found).strip(),
        "estimated": job.monitor.estimated,
        "activity": amounts.moment(summary.last_activity_time if has_activity else job.create_time),
        "active": has_activity,
    }


def _page_badge(job: v1.Job, running: int) -> amounts.Badge:
    summary = v1.JobSummary(num_running_trials=running, needs_attention=bool(job.advice or job.warnings))
    return amounts.job_badge(job, summary)


def _sentence(job: v1.Job, preview: v1.PreviewNextResponse, running: int) -> str:
    """The state in one sentence: what is used, what is next, what runs."""
    stage = amounts.stage_word(job)
    parts = []
    if job.HasField("pinned_batch_size"):
        parts.append(f"Batch size {job.pinned_batch_size} is pinned: every launch gets it.")
    elif job.paused:
        parts.append("The search is paused: launches get the best known batch size.")
    elif job.HasField("min_cost_batch_size"):
        best, default = job.min_cost_batch_size, job.spec.default_batch_size
        same = ", the default" if best == default else f"; the default is {default}"
        parts.append(f"Batch size {best} is the cheapest so far, at {amounts.cost(job.min_cost)}{same}.")
    elif not job.num_trials:
        parts.append("No trial yet: the first launch begins the search.")
    else:
        parts.append("No trial has reached the target within its bound yet.")
    if preview.choices:
        choice = preview.choices[0]
        chance = f" with {amounts.percent(choice.probability)}" if len(preview.choices) > 1 else ""
        parts.append(f"Next: batch size {choice.batch_size}{chance} ({stage}).")
    else:
        parts.append("No batch size is left to try.")
    parts.append(f"{amounts.plural(running, 'trial')} running." if running else "Nothing is running.")
    return " ".join(parts)


def _warnings(job: v1.Job) -> list[tuple[str, str]]:
    found = [("advice", job.advice)] if job.advice else []
    found += [
        (f"{amounts.warning_kind(each.reason)}, trial {each.trial_number}", each.message) for each in job.warnings
    ]
    if job.other_monitor.kinds:
        found.append(
            (
                "mixed monitors",
                (
                    f"Trials measured energy with {monitor_text(job.monitor)} and {monitor_text(job.other_monitor)}: "
                    "their costs cannot be compared. Use one job id per monitor."
                ),
            )
        )
    return found


def _job_facts(job: v1.Job, statistics: v1.JobStatistics) -> list[tuple[str, str]]:
    spec = job.spec
    sign = "at least" if spec.higher_is_better_metric else "at most"
    stopping = "never" if spec.disable_early_stopping else f"above {spec.beta_knob:g} × the lowest cost"
    facts = [
        (
            "Policy",
            amounts.stage_word(job)
            if spec.policy != v1.POLICY_PRUNING_GTS
            else f"{policy(spec)}: {amounts.stage_word(job)}",
        ),
        ("Batch sizes", ", ".join(map(str, spec.batch_sizes))),
        ("Default", str(spec.default_batch_size)),
        ("Target", f"metric {sign} {amounts.metric(spec.target_metric)} within {spec.max_epochs} epochs"),
        ("Energy against time", f"η = {spec.eta_knob:g}"),
        ("Stopped early", stopping),
        ("GPUs", f"{spec.gpu.number_of_gpus} × {spec.gpu.gpu_model}, {spec.gpu.max_power_watts:g} W in total"),
        ("Monitor", monitor_text(job.monitor) or "none named yet"),
        ("Registered", amounts.moment(job.create_time).exact),
    ]
    if statistics.num_excluded:
        facts.append(("Excluded", amounts.plural(statistics.num_excluded, "trial")))
    if job.reset_after:
        facts.append(("Reset", f"after trial {job.reset_after}: earlier trials do not count"))
    facts += [("Changed", change.message) for change in job.changes]
    if job.baseline_requested:
        facts.append(("Baseline", "requested: a coming launch gets the default batch size"))
    return facts


def _no_curves(running: int) -> charts.Chart:
    text = "Nothing is running. The metric of running trials is drawn here, epoch by epoch."
    return charts.Chart("curves", "Running trials", "", empty="The epochs cannot be read now." if running else text)


def _trial_row(job: v1.Job | None, trial: v1.Trial) -> Values:
    has_cost = trial.HasField("cost")
    report = trial.last_report_time if trial.HasField("last_report_time") else trial.start_time
    silent = amounts.moment(report) if report.ByteSize() else None
    lease = amounts.moment(trial.lease_expire_time, is_ahead=True) if trial.HasField("lease_expire_time") else None
    return {
        "job": trial.id.job_id,
        "number": trial.id.trial_number,
        "size": trial.id.batch_size,
        "type": amounts.trial_type(trial.type),
        "badge": amounts.trial_badge(trial, uncounted=uncounted(job, trial) if job is not None else ""),
        "epochs": trial.last_epoch,
        "metric": amounts.metric(trial.last_metric) if trial.HasField("last_metric") else amounts.unknown(),
        "time": amounts.span(trial.time_seconds) if has_cost else amounts.unknown(),
        "energy": amounts.energy(trial.energy_joules) if trial.energy_joules > 0 else amounts.unknown(),
        "cost": amounts.cost(trial.cost) if has_cost else amounts.unknown(),
        "estimated": trial.monitor.estimated,
        "computed": trial.HasField("computed"),
        "started": amounts.moment(trial.start_time) if trial.HasField("start_time") else None,
        "silent": silent,
        "silent_since": silent.seconds if silent else 0.0,
        "lease": lease,
        "host": trial.labels.get("host", ""),
        "warned": bool(trial.warnings),
        "running": trial.status == v1.TRIAL_STATUS_DISPATCHED,
    }


def _trial_facts(job: v1.Job, trial: v1.Trial) -> list[tuple[str, str]]:
    facts = [
        (
            "Batch size",
            f"{trial.id.batch_size}{' (the default)' if trial.id.batch_size == job.spec.default_batch_size else ''}",
        ),
        ("Type", amounts.trial_type(trial.type) if _has_stages(job, trial) else "chosen by the search"),
        ("Epochs", f"{trial.last_epoch} of at most {job.spec.max_epochs}"),
        (
            "Metric",
            f"{amounts.metric(trial.last_metric)}, target {amounts.metric(job.spec.target_metric)}"
            if trial.HasField("last_metric")
            else "no report yet",
        ),
        ("Time", amounts.span(trial.time_seconds)),
        ("Energy", amounts.energy(trial.energy_joules) if trial.energy_joules > 0 else "not measured"),
    ]
    if trial.HasField("cost"):
        bound = (
            f", stopped above {amounts.cost(trial.cost_bound)}" if trial.HasField("cost_bound") else ", without a bound"
        )
        facts.append(("Cost", f"{amounts.cost(trial.cost)}{bound}"))
    if trial.HasField("computed"):
        watts = f"{trial.computed.power_limit_watts:g} W"
        facts.append(("Computed", f"the cost is computed for the power limit of {watts}, not measured"))
    if trial.HasField("power_limit_watts"):
        facts.append(("Power limit", f"{trial.power_limit_watts:g} W per GPU"))
    if trial.monitor.kinds:
        facts.append(("Monitor", monitor_text(trial.monitor)))
    if trial.recurrence:
        facts.append(("Recurrence", f"for need {trial.recurrence} of a model"))
    if trial.HasField("start_time"):
        facts.append(("Started", amounts.moment(trial.start_time).exact))
    if trial.HasField("end_time"):
        facts.append(("Ended", amounts.moment(trial.end_time).exact))
    if trial.HasField("lease_expire_time"):
        facts.append(("Lease", f"expires {amounts.moment(trial.lease_expire_time, is_ahead=True).ago}"))
    if trial.token_id:
        facts.append(("Token", trial.token_id))
    return facts


def _advice(savings: v1.Savings) -> list[str]:
    """What to do about the savings; without a delivery the headline says it."""
    return [] if savings.verdict == v1.SAVINGS_VERDICT_NO_DELIVERY else list(savings.advice)


def _has_stages(job: v1.Job, trial: v1.Trial) -> bool:
    """Whether a trial's type says something: without stages, every trial that the search chose has the same one."""
    by_hand = trial.type in (v1.TRIAL_TYPE_REQUESTED, v1.TRIAL_TYPE_IMPORTED)
    return by_hand or job.spec.policy == v1.POLICY_PRUNING_GTS


def _event_row(event: v1.Event) -> Values:
    return {
        "time": amounts.moment(event.time),
        "kind": amounts.event_kind(event.kind),
        "job": event.job_id,
        "trial": event.trial_number,
        "message": event.message,
        "token": event.token_id,
    }


def is_old_page(error: WattwiseError) -> bool:
    """Whether a list's page token is refused: it belongs to another visitor, list or server."""
    return "page_token" in str(error)
