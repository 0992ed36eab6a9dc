"""The statistics of jobs: what their trials took, and what they saved.

Values have the names of the messages' fields, which explain them. The store adds up the ended trials of a job once
after each of its events, and the running ones at every call: first, so that a trial that ends meanwhile is counted
twice rather than not at all.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from wattwise_server.config import Factors
from wattwise_server.domain import (
    Activity,
    Job,
    ListedJob,
    Moments,
    SavingsQuantity,
    SavingsVerdict,
    Totals,
    TrialOrigin,
    Usage,
)
from wattwise_server.errors import JobNotFoundError
from wattwise_server.policy.savings import Baseline, SavingsEstimate, SavingsProof, advice, proof
from wattwise_server.store.base import (
    Bucket,
    Day,
    JobList,
    JobOrder,
    JobPlace,
    JobVersion,
    Spent,
    TrialGroup,
)
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.changes import compared_from
from wattwise_server.usecases.finding import find_job
from wattwise_server.usecases.job_savings import (
    Pricing,
    Savings,
    TotalEstimate,
    job_savings,
    num_deliveries_of,
    total_savings,
    usage_of,
)
from wattwise_server.usecases.job_view import JobView, PowerProfile, listed_job_view, power_profile

Answer = TypeVar("Answer")

CACHED_JOBS = 2_000
"""Jobs whose sums by batch size are kept: a few kilobytes each."""

CLAIMED_JOBS = 50_000
"""Jobs without running trials whose totals are kept: about a kilobyte each."""

_KEPT_ANSWERS = 80
"""Answers about ended trials that are kept, up to five for each of the jobs that people look at."""

_JOBS_AT_A_TIME = 200
_JOBS_AT_A_STRETCH = 20
"""Jobs whose claims are computed before other calls get their turn: a few milliseconds."""

MAX_RANGES = 1000
"""The largest number of ranges into which the trials of a job are divided."""
MONTHS = 12
"""Calendar months that a trend shows."""

OTHER = "other"
"""Stands for all jobs whose totals are not named, a job with this id among them."""


class TrialStatistics(NamedTuple):
    """Trials of one batch size."""

    batch_size: int
    num_trials: int
    num_running: int
    num_deliveries: int
    num_missed: int
    num_undecided: int
    spent: Usage
    mean_delivery: Usage | None
    log_cost_deviation: float | None
    mean_epochs: float | None
    least_epochs: int | None
    most_epochs: int | None
    mean_epoch_energy_joules: float | None


class JobSummary(NamedTuple):
    """What a list shows of a job."""

    activity: Activity
    num_deliveries: int
    spent: Usage
    savings: Savings[SavingsEstimate]


class JobListing(NamedTuple):
    """A job of a list.

    Attributes:
        position: Its place in the list, behind which the next page begins.
        job: The job.
        summary: None if the list was not asked for it, or if the job was deleted since the list was read.
    """

    position: JobPlace
    job: JobView
    summary: JobSummary | None


class MonthStatistics(NamedTuple):
    """The trials that ended in a calendar month, in UTC."""

    start_time: datetime
    num_trials: int
    num_deliveries: int
    spent: Usage
    change: float | None

    @property
    def spent_per_delivery(self) -> Usage | None:
        """None without a delivery."""
        return _per_delivery(self.spent, self.num_deliveries)


class TotalsView(NamedTuple):
    """The totals of several jobs, with what they saved together."""

    totals: Totals
    savings: Savings[TotalEstimate]

    @property
    def spent_per_delivery(self) -> Usage | None:
        """None without a delivery."""
        return _per_delivery(self.totals.spent, self.totals.num_deliveries)


class Division(NamedTuple):
    """How the trials of a job are divided into ranges: from a first number on, so many in each."""

    first: int
    width: int


class SavingsPoint(NamedTuple):
    """What was spent and saved up to the end of a range of trial numbers, which is a trial's number.

    Attributes:
        cost_per_delivery: None before the first delivery.
        num_compared_deliveries: Those of the deliveries that are compared.
        saved_cost: By the trials that are compared; None before the first one of them.
        saved_cost_at_least: Likewise.
    """

    trial_number: int
    num_deliveries: int
    cost_per_delivery: float | None
    num_compared_deliveries: int
    saved_cost: float | None
    saved_cost_at_least: float | None


class TrialBucket(NamedTuple):
    """The ended trials of a range that have one batch size."""

    first_trial: int
    last_trial: int
    bucket: Bucket


class TrialRange(NamedTuple):
    """A range of consecutive trials.

    Attributes:
        place: 0 is the first range.
        buckets: Its ended trials, by batch size.
        savings_points: What was spent and saved up to its end; empty if no trial has ended in it that counts.
    """

    place: int
    buckets: Sequence[TrialBucket]
    savings_points: Sequence[SavingsPoint]


class Course(NamedTuple):
    """The ranges of a job in which trials have ended."""

    division: Division
    ranges: Sequence[TrialRange]

    async def behind(self, place: int, limit: int) -> Sequence[TrialRange]:
        """Returns at most so many ranges behind one."""
        return [each for each in self.ranges if each.place > place][:limit]


class _Read(NamedTuple):
    """What the statistics of a job are computed from."""

    job: Job
    version: JobVersion
    ended: Sequence[TrialGroup]
    groups: Sequence[TrialGroup]
    compared_from: int


class JobStatistics(NamedTuple):
    """The statistics of a job."""

    trials: Sequence[TrialStatistics]
    num_deliveries: int
    spent: Usage
    savings: Savings[SavingsEstimate]
    excluded_trials: Sequence[int]
    months: Sequence[MonthStatistics]
    advice: Sequence[str]
    break_even_trial: int | None
    proof: SavingsProof
    mean_epochs: float | None
    num_imported: int
    num_requested: int

    @property
    def spent_per_delivery(self) -> Usage | None:
        """None without a delivery."""
        return _per_delivery(self.spent, self.num_deliveries)

    @property
    def num_trials(self) -> int:
        """The number of trials of all batch sizes."""
        return sum(trials.num_trials for trials in self.trials)

    @property
    def num_running(self) -> int:
        """The number of running trials of all batch sizes."""
        return sum(trials.num_running for trials in self.trials)


class _Ended(NamedTuple):
    """The ended trials of a job, and the first trial that a claim compares: before it are other groups. 0: all are."""

    groups: Sequence[TrialGroup]
    compared_from: int


@dataclass(frozen=True)
class _Kept(Generic[Answer]):
    """A figure of a job, and the version of the job that it was computed from."""

    version: JobVersion
    answer: Answer

    def fits(self, version: JobVersion) -> bool:
        """Returns whether the ended trials of a job are the same in another version, and its policy too."""
        return _deciding(self.version) == _deciding(version)


_deciding = attrgetter("key", "num_search_events", "reset_after", "excluded", "policy")


class Statistics:
    """The statistics of jobs. Every method may raise `StorageUnavailableError`.

    Args:
        store: The store.
        factors: The operator's prices and carbon intensity.
    """

    def __init__(self, store: Store, factors: Factors) -> None:
        self._store = store
        self._pricing = Pricing(factors)
        # The sums of ended trials.
        self._known: OrderedDict[int, _Kept[_Ended]] = OrderedDict()
        # The totals of those of these jobs that have no running trial.
        self._claimed: dict[int, _Kept[Totals]] = {}
        # What else was read of the ended trials of a job.
        self._answers: OrderedDict[tuple[object, ...], _Kept[Any]] = OrderedDict()

    async def job(self, job_id: str) -> JobStatistics:
        """Returns the statistics of a job.

        Raises:
            JobNotFoundError: there is no such job.
        """
        read = await self._read(job_id)
        job, version, groups = read.job, read.version, read.groups
        savings = job_savings(self._pricing, version, groups, read.compared_from)
        return JobStatistics(
            trials=self._by_batch_size(groups, version.num_gpus),
            num_deliveries=num_deliveries_of(groups),
            spent=self._pricing.spent(groups, version.num_gpus),
            savings=savings,
            excluded_trials=[number for number in version.excluded if number > job.reset_after],
            months=self._months(await self._days(version, read.ended), version.num_gpus, savings.main_quantity),
            advice=await self._advice(savings, version, job),
            break_even_trial=await self._break_even(savings, version),
            proof=_proof(savings, job),
            mean_epochs=_mean_epochs([group for group in groups if group.delivered]),
            num_imported=_number_of(groups, TrialOrigin.IMPORTED),
            num_requested=_number_of(groups, TrialOrigin.REQUESTED),
        )

    async def course(
        self, job_id: str, max_ranges: int, division: Division | None = None, *, with_excluded: bool = False
    ) -> Course:
        """Returns what the trials of a job cost and saved, by ranges of trial numbers.

        Args:
            job_id: The job.
            max_ranges: At most so many ranges.
            division: How an earlier answer has divided the trials; None divides them again.
            with_excluded: Whether excluded trials are among them, in buckets of their own.

        Raises:
            JobNotFoundError: there is no such job.
        """
        read = await self._read(job_id)
        job, version, compared_from = read.job, read.version, read.compared_from
        if division is None:
            width = max(1, -(-(job.num_trials - job.reset_after) // max_ranges))
            division = Division(job.reset_after + 1, width)
        first, width = division.first, division.width
        baseline = job_savings(self._pricing, version, read.groups, compared_from).cost.baseline
        found = await self._of_ended(version, self._store.reads.buckets, first, width, with_excluded=with_excluded)
        spent = await self._of_ended(version, self._store.reads.spent, first, width, compared_from)

        def last(place: int) -> int:
            return min(first + (place + 1) * width - 1, job.num_trials)

        buckets = {place: list(these) for place, these in groupby(found, key=lambda bucket: bucket.place)}
        points = _points(spent, last, compared_from=compared_from, baseline=baseline)
        by_place = {each.place: point for each, point in zip(spent, points, strict=True)}
        ranges = [
            TrialRange(
                place,
                [TrialBucket(first + place * width, last(place), bucket) for bucket in buckets.get(place, ())],
                [by_place[place]] if place in by_place else (),
            )
            for place in sorted(buckets.keys() | by_place.keys())
        ]
        return Course(division, ranges)

    async def profiles(self, job_id: str, after: int, limit: int) -> Sequence[PowerProfile]:
        """Returns the newest power profiles of a job's batch sizes, ascending: at most `limit` of those above `after`.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
        versions = await self._store.reads.job_versions(job_id=job_id)
        if not versions:
            # It was deleted in between.
            raise JobNotFoundError(job_id)
        (version,) = versions
        stored = [each for each in await self._store.reads.profiles(version.key) if each.batch_size > after]
        return [power_profile(job.spec, each) for each in stored[:limit]]

    async def _read(self, job_id: str) -> _Read:
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
        keys = [version.key for version in await self._store.reads.job_versions(job_id=job_id)]
        running = await self._store.reads.running_groups(keys)
        versions = await self._store.reads.job_versions(keys=keys)
        if not versions:
            # It was deleted in between.
            raise JobNotFoundError(job_id)
        (version,) = versions
        ended = (await self._ended(versions))[version.key]
        groups = [*ended.groups, *running.get(version.key, ())]
        return _Read(job, version, ended.groups, groups, ended.compared_from)

    async def listings(self, wanted: JobList, after: JobPlace, limit: int) -> Sequence[JobListing]:
        """Returns a page of jobs, with summaries if their activity is wanted; only those behind the place `after`."""
        found: list[JobListing] = []
        listed = await self._store.reads.jobs(wanted, after, limit)
        for begin in range(0, len(listed), _JOBS_AT_A_TIME):
            part = listed[begin : begin + _JOBS_AT_A_TIME]
            summaries = await self._summaries(part) if wanted.with_activity else {}
            found += (
                JobListing(job.position, listed_job_view(job.job, job.available, job.failing), summaries.get(job.key))
                for job in part
            )
            # Others go on meanwhile.
            await asyncio.sleep(0)
        return found

    async def _summaries(self, listed: Sequence[ListedJob]) -> Mapping[int, JobSummary]:
        """Returns the summaries of jobs that were listed with their activity, by key; deleted jobs are missing."""
        keys = [job.key for job in listed]
        running = await self._store.reads.running_groups(keys)
        versions = {version.key: version for version in await self._store.reads.job_versions(keys=keys)}
        ended = await self._ended(list(versions.values()))
        found: dict[int, JobSummary] = {}
        for job in listed:
            if job.key in versions:
                version, of_job = versions[job.key], ended[job.key]
                groups = [*of_job.groups, *running.get(job.key, ())]
                found[job.key] = JobSummary(
                    job.activity or Activity(0, None, needs_attention=False),
                    num_deliveries_of(groups),
                    self._pricing.spent(groups, version.num_gpus),
                    job_savings(self._pricing, version, groups, of_job.compared_from),
                )
        return found

    async def totals(self, prefix: str) -> TotalsView:
        """Returns the totals of all jobs whose ids start with a prefix."""
        totals = await self._together((await self._by_job(prefix)).values())
        return TotalsView(totals, total_savings(self._pricing, totals))

    async def named_totals(self, num_named: int) -> tuple[Totals, Mapping[str, Totals]]:
        """Returns the totals of all jobs, and those of the most recently active ones by id, with the rest under OTHER.

        The second part adds up to the first one. It is empty without `num_named`.
        """
        by_key = dict(await self._by_job())
        total = await self._together(by_key.values())
        if not num_named or not by_key:
            return total, {}
        # Two more: one may be called OTHER, and the next one tells when one of the others was last active.
        wanted = JobList(order=JobOrder.LAST_ACTIVITY, with_activity=True)
        listed = [job for job in await self._store.reads.jobs(wanted, 0, num_named + 2) if job.key in by_key]
        times = {job.key: job.activity.last_time for job in listed if job.activity is not None}
        named = [job for job in listed if job.job.spec.job_id != OTHER][:num_named]
        found = {job.job.spec.job_id: by_key.pop(job.key)._replace(last_time=times.get(job.key)) for job in named}
        if by_key:
            rest = await self._together(by_key.values())
            newest = max(filter(None, (times.get(key) for key in by_key)), default=None)
            found[OTHER] = rest._replace(last_time=newest)
        return total, found

    async def _by_job(self, prefix: str = "") -> Mapping[int, Totals]:
        """Returns the totals of each job whose id starts with a prefix, by key."""
        running = await self._store.reads.running_groups(None)
        versions = await self._store.reads.job_versions(prefix)
        found: dict[int, Totals] = {}
        stale = []
        for version in versions:
            known = self._claimed.get(version.key)
            if known is not None and known.version == version and version.key not in running:
                found[version.key] = known.answer
            else:
                stale.append(version)
        for begin in range(0, len(stale), _JOBS_AT_A_TIME):
            part = stale[begin : begin + _JOBS_AT_A_TIME]
            ended = await self._ended(part)
            for place, version in enumerate(part):
                if place % _JOBS_AT_A_STRETCH == 0:
                    await asyncio.sleep(0)
                found[version.key] = self._of_job(version, ended[version.key], running.get(version.key, ()))
                self._claimed.pop(version.key, None)
                # Where there are more, the first ones stay: a cache that drops the oldest would be of no use to a
                # reader of all.
                if version.key not in running and len(self._claimed) < CLAIMED_JOBS:
                    self._claimed[version.key] = _Kept(version, found[version.key])
        if not prefix:
            for key in self._claimed.keys() - found.keys():
                # It was deleted.
                del self._claimed[key]
        return found

    async def _together(self, totals: Iterable[Totals]) -> Totals:
        """Returns the totals of several jobs together."""
        total = Totals(spent=self._pricing.priced(Usage(), 0))
        for place, each in enumerate(totals):
            if place % _JOBS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            total = total.plus(each)
        return total

    def _of_job(self, version: JobVersion, ended: _Ended, running: Sequence[TrialGroup]) -> Totals:
        groups = [*ended.groups, *running]
        savings = job_savings(self._pricing, version, groups, ended.compared_from)
        own = [group for group in groups if group.own]
        others = [group for group in own if not (group.running or group.delivered or group.doubtful)]
        num_undecided = sum(group.num_undecided for group in others)
        num_interrupted = sum(group.num_interrupted for group in others)
        # A job has not lost in its first launches.
        early = savings.num_launches <= savings.num_exploring_launches
        return Totals(
            num_jobs=1,
            num_running_trials=sum(group.num_trials for group in own if group.running),
            num_deliveries=num_deliveries_of(groups),
            num_missed=sum(group.num_trials for group in others) - num_undecided,
            num_failed=num_undecided - num_interrupted,
            num_interrupted=num_interrupted,
            spent=self._pricing.spent(own, version.num_gpus),
            saved=savings.quantities(lambda claim: claim.saved),
            num_jobs_with_savings=int(savings.cost.saved is not None),
            saved_at_least=savings.quantities(lambda claim: claim.at_least),
            at_most=savings.quantities(lambda claim: _limited(max, claim.at_most) if early else claim.at_most),
            lost=savings.quantities(lambda claim: _limited(min, claim.lost) if early else claim.lost),
            verdicts={savings.cost.verdict: 1},
            num_jobs_needing_attention=int(version.needs_attention),
        )

    async def _ended(self, versions: Sequence[JobVersion]) -> Mapping[int, _Ended]:
        """Returns the ended trials of jobs by key; reads those of jobs that have changed."""
        found: dict[int, _Ended] = {}
        stale = []
        for version in versions:
            known = self._known.get(version.key)
            if known is not None and known.fits(version):
                self._known.move_to_end(version.key)
                found[version.key] = known.answer
            else:
                stale.append(version)
        if stale:
            keys = [version.key for version in stale]
            splits = await self._compared_from(keys)
            groups = await self._store.reads.trial_groups(keys, self._pricing.prices, splits)
            for version in stale:
                found[version.key] = _Ended(groups.get(version.key, ()), splits.get(version.key, 0))
                self._known[version.key] = _Kept(version, found[version.key])
                self._known.move_to_end(version.key)
        while len(self._known) > CACHED_JOBS:
            self._known.popitem(last=False)
        return found

    async def _compared_from(self, keys: Sequence[int]) -> Mapping[int, int]:
        """Returns the first trial that is compared of each job whose behaviour has changed."""
        found = {}
        for place, (key, state) in enumerate((await self._store.reads.policy_states(keys)).items()):
            if place % _JOBS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            if number := compared_from(state):
                found[key] = number
        return found

    async def _of_ended(
        self, version: JobVersion, read: Callable[..., Awaitable[Answer]], *arguments: object, **options: object
    ) -> Answer:
        """Returns what a query says of the ended trials of a job; repeats the query after each of the job's events."""
        what = (read.__name__, version.key, *arguments, *options.items())
        known = self._answers.pop(what, None)
        if known is None or not known.fits(version):
            known = _Kept(version, await read(version.key, *arguments, **options))
        self._answers[what] = known
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        answer: Answer = known.answer
        return answer

    async def _advice(self, savings: Savings[SavingsEstimate], version: JobVersion, job: Job) -> Sequence[str]:
        """Returns what to do about the savings of one job."""
        since, first = 0, savings.compared_from_trial or 0
        if savings.newest_baseline_time is not None:
            since = await self._of_ended(
                version, self._store.reads.deliveries_since, savings.newest_baseline_time, first
            )
        return advice(
            savings.cost,
            job.spec.job_id,
            job.spec.default_batch_size,
            in_use=savings.batch_size_in_use,
            deliveries_since_default=since,
        )

    async def _break_even(self, savings: Savings[SavingsEstimate], version: JobVersion) -> int | None:
        """Returns the trial since which the lower bound of the saved cost has been above 0; None if it is not."""
        if savings.cost.verdict is not SavingsVerdict.SAVING or savings.cost.baseline is None:
            return None
        least, first = savings.cost.baseline.least, savings.compared_from_trial or 0
        return await self._of_ended(version, self._store.reads.break_even, least, first)

    async def _days(self, version: JobVersion, ended: Sequence[TrialGroup]) -> Sequence[Day]:
        """Returns the days of the months that a trend shows."""
        newest = max((group.newest_end for group in ended if group.newest_end), default=None)
        if newest is None:
            return ()
        year, month = divmod(newest.year * 12 + newest.month - MONTHS, 12)
        since = newest.replace(year=year, month=month + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
        return await self._of_ended(version, self._store.reads.days, since)

    def _months(self, days: Sequence[Day], num_gpus: int, main_quantity: SavingsQuantity) -> Sequence[MonthStatistics]:
        """Returns the months with trials."""
        found: list[MonthStatistics] = []
        for start, group in groupby(days, key=lambda day: day.start.replace(day=1)):
            of_month = list(group)
            usage = Usage()
            for day in of_month:
                usage = usage.plus(day.usage)
            month = MonthStatistics(
                start_time=start,
                num_trials=sum(day.num_trials for day in of_month),
                num_deliveries=sum(day.num_deliveries for day in of_month),
                spent=self._pricing.priced(usage, num_gpus),
                change=None,
            )
            found.append(month._replace(change=_change(month, found[-1], main_quantity) if found else None))
        return found

    def _by_batch_size(self, groups: Sequence[TrialGroup], num_gpus: int) -> Sequence[TrialStatistics]:
        size = attrgetter("batch_size")
        return [self._of_groups(list(these), num_gpus) for _, these in groupby(sorted(groups, key=size), key=size)]

    def _mean(self, usage: Usage, num_gpus: int) -> Usage:
        """Returns what a delivery took, with its money if that is known."""
        priced = self._pricing.priced(usage, num_gpus)
        return priced if self._pricing.is_known(usage) else priced._replace(money=None)

    def _of_groups(self, groups: Sequence[TrialGroup], num_gpus: int) -> TrialStatistics:
        delivered = [group for group in groups if group.delivered]
        num_deliveries = sum(group.num_trials for group in delivered)
        num_trials = sum(group.num_trials for group in groups)
        num_running = sum(group.num_trials for group in groups if group.running)
        num_undecided = sum(group.num_undecided for group in groups if not group.delivered)
        num_doubtful = sum(group.num_trials for group in groups if group.doubtful)
        logs = Moments()
        for group in delivered:
            logs = logs.merge(group.logs.cost)
        mean_delivery = usage_of(delivered).times(1 / num_deliveries) if num_deliveries else None
        joules, mean_epochs = mean_delivery and mean_delivery.energy_joules, _mean_epochs(delivered)
        return TrialStatistics(
            batch_size=groups[0].batch_size,
            num_trials=num_trials,
            num_running=num_running,
            num_deliveries=num_deliveries,
            num_missed=num_trials - num_running - num_deliveries - num_doubtful - num_undecided,
            num_undecided=num_undecided,
            spent=self._pricing.priced(usage_of(groups), num_gpus),
            mean_delivery=None if mean_delivery is None else self._mean(mean_delivery, num_gpus),
            log_cost_deviation=math.sqrt(logs.variance) if logs.count > 1 else None,
            mean_epochs=mean_epochs,
            least_epochs=min((group.least_epochs for group in delivered), default=None),
            most_epochs=max((group.most_epochs for group in delivered), default=None),
            mean_epoch_energy_joules=joules / mean_epochs if joules is not None and mean_epochs else None,
        )


def _number_of(groups: Sequence[TrialGroup], origin: TrialOrigin) -> int:
    return sum(group.num_trials for group in groups if group.origin is origin)


def _per_delivery(spent: Usage, num_deliveries: int) -> Usage | None:
    return spent.times(1 / num_deliveries) if num_deliveries else None


def _mean_epochs(delivered: Sequence[TrialGroup]) -> float | None:
    num_deliveries = sum(group.num_trials for group in delivered)
    return sum(group.epochs for group in delivered) / num_deliveries if num_deliveries else None


def _change(month: MonthStatistics, before: MonthStatistics, main_quantity: SavingsQuantity) -> float | None:
    """Returns what a delivery took compared with the month before; None if one of both is unknown or nothing."""
    quantity = attrgetter(f"spent_per_delivery.{main_quantity.value.lower()}")
    if month.spent_per_delivery is None or before.spent_per_delivery is None:
        return None
    now, then = quantity(month), quantity(before)
    return now / then - 1 if now and then else None


def _proof(savings: Savings[SavingsEstimate], job: Job) -> SavingsProof:
    """Returns what would prove a saving of a job in the main quantity of its savings."""
    default = job.spec.default_batch_size
    default_only = job.pinned == default or job.spec.batch_sizes == (default,)
    if not (default_only or job.search.available):
        return SavingsProof()
    return proof(
        savings.main_estimate,
        num_baselines=savings.num_baseline_trials,
        default_only=default_only,
        default_in_use=savings.batch_size_in_use == default,
    )


def _limited(limit: Callable[[float, float], float], value: float | None) -> float | None:
    return None if value is None else limit(0.0, value)


def _points(
    spent: Sequence[Spent], last_of: Callable[[int], int], *, compared_from: int, baseline: Baseline | None
) -> Sequence[SavingsPoint]:
    """Returns the ends of the ranges that have trials.

    Args:
        spent: The ranges.
        last_of: Returns the last number of a range.
        compared_from: The first trial that is compared.
        baseline: What a delivery costs with the default; None where nothing is claimed.
    """
    sums = (
        accumulate(each.num_deliveries for each in spent),
        accumulate(each.cost for each in spent),
        accumulate(each.num_compared for each in spent),
        accumulate(each.compared_cost for each in spent),
    )
    points = []
    for each, delivered, cost, compared, compared_cost in zip(spent, *sums, strict=True):
        last = last_of(each.place)
        known = baseline if last >= compared_from else None
        points.append(
            SavingsPoint(
                last,
                delivered,
                cost / delivered if delivered else None,
                compared,
                None if known is None else compared * known.cautious - compared_cost,
                None if known is None else compared * known.least - compared_cost,
            )
        )
    return points
