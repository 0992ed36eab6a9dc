"""The calls behind each page, which run concurrently. `pages` composes the pages from the answers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from wattwise import v1
from wattwise.errors import (
    CredentialsError,
    InvalidRequestError,
    JobNotFoundError,
    PermissionDeniedError,
    WattwiseError,
)
from wattwise.presentation.states import JobTrial
from wattwise.rpc.address import is_loopback
from wattwise.rpc.async_client import AsyncClient
from wattwise.rpc.credentials import Credentials
from wattwise.rules import MAX_ID_LENGTH, MAX_MEASUREMENT_PAGE, MAX_PAGE

from wattwise_web import charts, pages, sections
from wattwise_web.charts.curves import POINTS
from wattwise_web.charts.marks import thinned
from wattwise_web.filters import PAGE_SIZE, EventFilter, JobFilter, TrialFilter, ignored, whole
from wattwise_web.pages import JobAnswers, Parameters
from wattwise_web.sections import Page

_NEWEST_TRIALS = 10
_NEWEST_EVENTS = 8
"""The rows of its lists that the page of a job shows; other pages have all rows."""
_SINGLE_TRIALS = 1000
"""The most trials of which charts show each one."""
_RANGES = 250
"""The ranges in a chart of more trials, which has one mark for each batch size in a range."""
_MARKS = 600
"""The most marks in a chart of ranges; otherwise it gets fewer ranges."""
_CURVES = 8
"""The most trials whose epochs are drawn; each takes some calls, and ended trials are kept."""
_KEPT_CURVES = 100
_INFO_SECONDS = 30.0
_SECONDS = 15.0
"""The timeout of a call."""


@dataclass(frozen=True)
class Visitor:
    """A visitor of the page, with a token or without one."""

    token: str | None = field(repr=False)


class Reader:
    """The pages of one server.

    Args:
        address: the address of the server, or of several servers.
        credentials: the credentials for the server.
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
        answer = await self.client(visitor).get_server_info()
        if len(self._infos) > 1000:
            self._infos.clear()
        self._infos[visitor.token] = (time.monotonic(), answer)
        return answer

    def forget(self, token: str | None) -> None:
        """Drops what is kept for a token."""
        self._infos.pop(token, None)

    async def jobs(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/`."""
        client, request = self.client(visitor), JobFilter.of(wanted).request(wanted.get("after", ""))
        info, totals, listed = await asyncio.gather(self.info(visitor), client.get_totals(), client.send(request))
        return pages.jobs(info, self.address, totals, listed, wanted)

    async def job(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/job?id=`."""
        job_id, client = wanted.get("id", ""), self.client(visitor)
        known = await client.get_job(job_id)
        info, figures, profiles, listed, running, events, preview = await asyncio.gather(
            self.info(visitor),
            self._figures(visitor, known.job),
            self._power_profiles(visitor, job_id),
            client.send(TrialFilter().request(job_id, page_size=_NEWEST_TRIALS)),
            client.send(TrialFilter(result="running").request(job_id, page_size=PAGE_SIZE)),
            client.send(v1.ListEventsRequest(job_id=job_id, page_size=_NEWEST_EVENTS)),
            client.preview_next(job_id),
        )
        curves = await self._newest_curves(visitor, known.job, running.trials, figures.buckets)
        answers = JobAnswers(known, figures, preview.choices, listed, running, events, profiles, curves)
        return pages.job(info, answers)

    async def _newest_curves(
        self, visitor: Visitor, job: v1.Job, running: Sequence[v1.Trial], buckets: Sequence[v1.TrialBucket]
    ) -> list[charts.Curve]:
        """Returns the epochs of running trials, and of the newest ended trial of each batch size."""
        newest = {bucket.batch_size: bucket for bucket in buckets if not bucket.excluded and bucket.newest_trial}
        ended = sorted(newest.values(), key=lambda bucket: -bucket.newest_trial)
        # Both kinds get some of the curves, however many trials of the other kind there are.
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
        job_id, client = wanted.get("id", ""), self.client(visitor)
        job = (await client.get_job(job_id)).job
        request = TrialFilter.of(job, wanted).request(job_id, page_size=PAGE_SIZE)
        info, listed = await asyncio.gather(self.info(visitor), client.send(request))
        return pages.trials(info, job, listed, wanted)

    async def compare(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/compare?a=&b=`."""
        first, second = wanted.get("a", ""), wanted.get("b", "")[:MAX_ID_LENGTH]
        client = self.client(visitor)
        one = await client.get_job(first)
        info, other = await asyncio.gather(self.info(visitor), self._job_or_none(visitor, second))
        if other is None or second == first:
            request = v1.ListJobsRequest(page_size=PAGE_SIZE, contains=second, order=v1.JOB_ORDER_LAST_ACTIVITY)
            return pages.candidates(info, one.job, second, await client.send(request))
        figures = await asyncio.gather(self._figures(visitor, one.job), self._figures(visitor, other.job))
        return pages.pair(info, (one, other), figures)

    async def _job_or_none(self, visitor: Visitor, job_id: str) -> v1.GetJobResponse | None:
        if not job_id:
            return None
        try:
            return await self.client(visitor).get_job(job_id)
        except (JobNotFoundError, PermissionDeniedError):
            return None

    async def _figures(self, visitor: Visitor, job: v1.Job) -> charts.History:
        """Returns the figures of a job, with at most `_MARKS` buckets if it has too many trials to show each one."""
        job_id = job.spec.job_id
        single = job.num_trials - job.reset_after <= _SINGLE_TRIALS
        statistics, found = await asyncio.gather(
            self.client(visitor).get_job_statistics(job_id),
            self._buckets(visitor, job_id, _SINGLE_TRIALS if single else _RANGES),
        )
        if not single and len(found.buckets) > _MARKS:
            # Each range may have a bucket for each batch size that was ever used.
            sizes = {bucket.batch_size for bucket in found.buckets}
            found = await self._buckets(visitor, job_id, max(1, _MARKS // len(sizes)))
        return charts.History(statistics, found.buckets, found.savings_points)

    async def _buckets(self, visitor: Visitor, job_id: str, max_ranges: int) -> v1.ListTrialBucketsResponse:
        """Returns all pages of the buckets of a job."""
        return await self.client(visitor).list_trial_buckets(job_id, max_ranges=max_ranges, with_excluded=True)

    async def _power_profiles(self, visitor: Visitor, job_id: str) -> list[v1.PowerProfile]:
        return [profile async for profile in self.client(visitor).power_profiles(job_id)]

    async def _measurements(self, visitor: Visitor, job_id: str, trial_number: int) -> list[v1.Measurement]:
        trial = v1.TrialId(job_id=job_id, trial_number=trial_number)
        measurements = self.client(visitor).measurements(trial, page_size=MAX_MEASUREMENT_PAGE)
        return [measurement async for measurement in measurements]

    async def trial(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/trial?job=&number=`."""
        job_id, trial_number = wanted.get("job", ""), whole(wanted.get("number", ""))
        client = self.client(visitor)
        info, known, found, measurements = await asyncio.gather(
            self.info(visitor),
            client.get_job(job_id),
            client.get_trial(v1.TrialId(job_id=job_id, trial_number=trial_number)),
            self._measurements(visitor, job_id, trial_number),
        )
        return pages.trial(info, self.address, known, found, measurements)

    async def running(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/running`."""
        request = v1.ListTrialsRequest(
            job_id_prefix="",
            page_size=200,
            page_token=wanted.get("after", ""),
            statuses=[v1.TRIAL_STATUS_RUNNING],
            with_total_size=True,
        )
        info, listed = await asyncio.gather(self.info(visitor), self.client(visitor).send(request))
        return pages.running(info, listed, wanted)

    async def events(self, visitor: Visitor, wanted: Parameters) -> Page:
        """Returns `/events`."""
        request = EventFilter.of(wanted).request(wanted.get("after", ""))
        info, listed = await asyncio.gather(self.info(visitor), self.client(visitor).send(request))
        return pages.events(info, listed, wanted)

    async def about(self, visitor: Visitor, _wanted: Parameters) -> Page:
        """Returns `/about`."""
        return pages.about(await self.info(visitor, fresh=True), self.address)

    async def glossary(self, visitor: Visitor, _wanted: Parameters) -> Page:
        """Returns `/glossary`."""
        return pages.glossary(await self.info(visitor), self._terms)

    async def filtered(self, visitor: Visitor, wanted: Parameters) -> AsyncIterator[JobTrial]:
        """Returns the trials of a job by number, for a file. The first page is read before this returns.

        Raises:
            InvalidRequestError: the address has an unknown filter.
        """
        job_id = wanted.get("id", "")
        job = (await self.client(visitor).get_job(job_id)).job
        shown = TrialFilter.of(job, wanted)
        if unknown := ignored(wanted, {"id", *shown.parameters}):
            raise InvalidRequestError(f"unknown filters: {', '.join(unknown)}; use those of the list of trials")
        trials = self.client(visitor).trials(job_id, page_size=MAX_PAGE, **shown.arguments)
        first = await anext(trials, None)

        async def rows() -> AsyncIterator[JobTrial]:
            trial = first
            while trial is not None and not (shown.start and trial.id.trial_number > shown.start):
                yield JobTrial(job, trial)
                trial = await anext(trials, None)

        return rows()


def is_old_page(error: WattwiseError) -> bool:
    """Returns whether a list's page token is refused: it belongs to another visitor, list or server."""
    return "page_token" in str(error)
