"""The figures of jobs: what their trials took, and what they saved.

The store adds up the ended trials of a job once after each of its events, and the running ones at every call: first, so
that a trial that ends meanwhile is counted twice rather than not at all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, TypeVar

from wattwise_server.config import Factors
from wattwise_server.domain import (
    Activity,
    Amount,
    Job,
    JobSpec,
    ListedJob,
    Moments,
    PowerSample,
    Quantities,
    SavingsVerdict,
    Totals,
    TrialOrigin,
    Usage,
    batch_size_in_use,
)
from wattwise_server.errors import JobNotFoundError
from wattwise_server.policy.savings import Baseline, Delivered, SavingsEstimate, advice, estimate
from wattwise_server.store.base import Bucket, Day, JobVersion, Prices, Spent, Store, TrialGroup
from wattwise_server.usecases.changes import compared_from
from wattwise_server.usecases.lookup import find_job

Answer = TypeVar("Answer")

CACHED_JOBS = 2_000
"""Jobs whose sums by batch size are kept: a few kilobytes each."""

CLAIMED_JOBS = 50_000
"""Jobs without running trials whose figures are kept for totals: about a kilobyte each."""

_KEPT_ANSWERS = 80
"""Answers about ended trials that are kept, up to five for each of the jobs that people look at."""

_JOBS_AT_A_TIME = 200
_JOBS_AT_A_STRETCH = 20
"""Jobs whose claims are computed before other calls get their turn: a few milliseconds."""

MAX_RANGES = 1000
"""Into which the trials of a job are divided."""
MONTHS = 12
"""Calendar months that a trend shows."""

_SUMS_OF = JobVersion._fields.index("policy") + 1
"""The first fields of a version: while they are the same, so are the sums of the ended trials."""


class TrialStatistics(NamedTuple):
    """Trials of one batch size and origin; see the message of this name.

    Attributes:
        logs: Of the logarithm of what a delivery cost.
        mean_epochs: Of a delivery; None without one, like the next two.
    """

    batch_size: int
    origin: TrialOrigin
    num_trials: int
    num_running: int
    num_deliveries: int
    num_missed: int
    num_undecided: int
    spent: Amount
    mean_delivery: Amount | None
    logs: Moments
    mean_epochs: float | None
    least_epochs: int | None
    most_epochs: int | None


class Savings(NamedTuple):
    """What a job has saved; see the message of this name. The carbon is in grams.

    Attributes:
        compared_from: The first trial that is compared; 0 if all are.
        num_deliveries: Those among the compared trials.
        in_use: The batch size that a launch gets unless another one is tried; None if no batch size is left.
        num_in_use: Its deliveries among the compared trials.
    """

    cost: SavingsEstimate
    energy: SavingsEstimate
    time: SavingsEstimate
    money: SavingsEstimate | None
    carbon: SavingsEstimate | None
    num_deliveries: int
    num_baseline_trials: int
    newest_baseline_time: datetime | None
    in_use: int | None
    num_in_use: int
    compared_from: int = 0

    @property
    def verdict(self) -> SavingsVerdict:
        """What the data say about the cost."""
        return self.cost.verdict


class JobSummary(NamedTuple):
    """What a list shows of a job."""

    activity: Activity
    num_deliveries: int
    spent: Amount
    savings: Savings


class Profile(NamedTuple):
    """The power limits that a trial has profiled."""

    trial_number: int
    batch_size: int
    samples: Sequence[PowerSample]


class MonthStatistics(NamedTuple):
    """The trials that ended in a calendar month, in UTC.

    Attributes:
        start: When it began.
    """

    start: datetime
    num_trials: int
    num_deliveries: int
    spent: Amount


class Division(NamedTuple):
    """How the trials of a job are divided into ranges: from a first number on, so many in each."""

    first: int
    width: int


class SavingsPoint(NamedTuple):
    """What was spent and saved up to the end of a range of trial numbers.

    Attributes:
        saved_cost: By the trials that are compared; None before the first one of them.
        saved_at_least: Likewise.
    """

    last: int
    num_deliveries: int
    spent_cost: float
    saved_cost: float | None
    saved_at_least: float | None


class Range(NamedTuple):
    """A range of consecutive trials.

    Attributes:
        place: 0 is the first range.
        buckets: Its ended trials, by batch size.
        point: What was spent and saved up to its end; None if no trial has ended in it that counts.
    """

    place: int
    first: int
    last: int
    buckets: Sequence[Bucket]
    point: SavingsPoint | None


class Course(NamedTuple):
    """The ranges of a job in which trials have ended."""

    division: Division
    ranges: Sequence[Range]


class _Read(NamedTuple):
    """What the figures of a job are computed from."""

    job: Job
    version: JobVersion
    ended: Sequence[TrialGroup]
    groups: Sequence[TrialGroup]
    compared_from: int


class JobStatistics(NamedTuple):
    """The figures of a job."""

    trials: Sequence[TrialStatistics]
    num_deliveries: int
    spent: Amount
    savings: Savings
    num_excluded: int
    months: Sequence[MonthStatistics]
    advice: Sequence[str]
    break_even_trial: int | None


class _Ended(NamedTuple):
    """The ended trials of a job, and the first trial that a claim compares: before it are other groups. 0: all are."""

    groups: Sequence[TrialGroup]
    compared_from: int


class Statistics:
    """Every method may raise `StorageUnavailableError`.

    Attributes:
        factors: The operator's prices and carbon intensity.
    """

    def __init__(self, store: Store, factors: Factors) -> None:
        self._store = store
        self.factors = factors
        self._prices = Prices(*factors.prices)
        # The sums of ended trials, with the version of the job that they are of.
        self._known: OrderedDict[int, tuple[JobVersion, _Ended]] = OrderedDict()
        # The figures of those of these jobs that have no running trial.
        self._claimed: dict[int, tuple[JobVersion, Totals]] = {}
        # What else was read of the ended trials of a job, with its version.
        self._answers: OrderedDict[tuple[object, ...], tuple[JobVersion, Any]] = OrderedDict()

    async def job(self, job_id: str) -> JobStatistics:
        """The figures of a job.

        Raises:
            JobNotFoundError: there is no such job.
        """
        job, version, ended, groups, compared_from = await self._read(job_id)
        savings = self._savings(version, groups, compared_from)
        return JobStatistics(
            self._by_batch_size(groups, version.num_gpus),
            _num_deliveries(groups),
            self._spent(groups, version.num_gpus),
            savings,
            sum(number > job.reset_after for number in version.excluded),
            self._months(await self._days(version, ended), version.num_gpus),
            await self._advice(savings, version, job),
            await self._break_even(savings, version),
        )

    async def course(
        self, job_id: str, max_ranges: int, division: Division | None = None, *, with_excluded: bool = False
    ) -> Course:
        """What the trials of a job cost and saved, by ranges of their numbers.

        Args:
            job_id: The job.
            max_ranges: At most so many ranges.
            division: How an earlier answer has divided the trials; None divides them again.
            with_excluded: Whether excluded trials are among them, in buckets of their own.

        Raises:
            JobNotFoundError: there is no such job.
        """
        job, version, _, groups, compared_from = await self._read(job_id)
        if division is None:
            width = max(1, -(-(job.num_trials - job.reset_after) // max_ranges))
            division = Division(job.reset_after + 1, width)
        first, width = division
        baseline = self._savings(version, groups, compared_from).cost.baseline
        found = await self._of_ended(version, self._store.buckets, *division, with_excluded=with_excluded)
        spent = await self._of_ended(version, self._store.spent, *division, compared_from)

        def last(place: int) -> int:
            return min(first + (place + 1) * width - 1, job.num_trials)

        buckets = {place: list(these) for place, these in groupby(found, key=lambda bucket: bucket.place)}
        points = _points(spent, last, compared_from=compared_from, baseline=baseline)
        by_place = {each.place: point for each, point in zip(spent, points, strict=True)}
        ranges = [
            Range(place, first + place * width, last(place), buckets.get(place, ()), by_place.get(place))
            for place in sorted(buckets.keys() | by_place.keys())
        ]
        return Course(division, ranges)

    async def profiles(self, job_id: str) -> tuple[JobSpec, Sequence[Profile]]:
        """The newest power profile of each batch size of a job, ascending, and what the job was registered with.

        Raises:
            JobNotFoundError: there is no such job.
        """
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
        for version in await self._store.job_versions("", job_id):
            return job.spec, [Profile(*profile) for profile in await self._store.profiles(version.key)]
        # It was deleted in between.
        raise JobNotFoundError(job_id)

    async def _read(self, job_id: str) -> _Read:
        async with self._store.transaction(job_id) as tx:
            job = find_job(tx, job_id)
        keys = [version.key for version in await self._store.job_versions("", job_id)]
        running = await self._store.running_groups(keys)
        versions = await self._store.job_versions(keys=keys)
        if not versions:
            # It was deleted in between.
            raise JobNotFoundError(job_id)
        key = versions[0].key
        ended, compared_from = (await self._ended(versions))[key]
        return _Read(job, versions[0], ended, [*ended, *running.get(key, ())], compared_from)

    async def summaries(self, listed: Sequence[ListedJob]) -> Sequence[JobSummary | None]:
        """What a list shows of jobs that were listed with their activity; None of one that was deleted since."""
        keys = [each.key for each in listed]
        running = await self._store.running_groups(keys)
        versions = {version.key: version for version in await self._store.job_versions(keys=keys)}
        ended = await self._ended(list(versions.values()))
        found: list[JobSummary | None] = []
        for each in listed:
            version = versions.get(each.key)
            if version is None:
                # It was deleted since the list was read.
                found.append(None)
                continue
            of_job = ended[version.key]
            groups = [*of_job.groups, *running.get(version.key, ())]
            savings = self._savings(version, groups, of_job.compared_from)
            spent = self._spent(groups, version.num_gpus)
            activity = each.activity or Activity(0, None, needs_attention=False)
            found.append(JobSummary(activity, _num_deliveries(groups), spent, savings))
        return found

    async def totals(self, prefix: str) -> Totals:
        """The figures of all jobs whose ids start with a prefix, together."""
        return await self.together((await self.by_job(prefix)).values())

    async def by_job(self, prefix: str = "") -> Mapping[int, Totals]:
        """The figures of each job whose id starts with a prefix, by key."""
        running = await self._store.running_groups(None)
        versions = await self._store.job_versions(prefix)
        found: dict[int, Totals] = {}
        stale = []
        for version in versions:
            known = self._claimed.get(version.key)
            if known is not None and known[0] == version and version.key not in running:
                found[version.key] = known[1]
            else:
                stale.append(version)
        for begin in range(0, len(stale), _JOBS_AT_A_TIME):
            part = stale[begin : begin + _JOBS_AT_A_TIME]
            ended = await self._ended(part)
            for place, version in enumerate(part):
                if place % _JOBS_AT_A_STRETCH == 0:
                    await asyncio.sleep(0)
                found[version.key] = self._figures(version, ended[version.key], running.get(version.key, ()))
                self._claimed.pop(version.key, None)
                # Where there are more, the first ones stay: a cache that drops the oldest would be of no use to a
                # reader of all.
                if version.key not in running and len(self._claimed) < CLAIMED_JOBS:
                    self._claimed[version.key] = version, found[version.key]
        if not prefix:
            for key in self._claimed.keys() - found.keys():
                # It was deleted.
                del self._claimed[key]
        return found

    async def together(self, figures: Iterable[Totals]) -> Totals:
        """The figures of several jobs together."""
        total = Totals(spent=self._priced(Usage(), 0))
        for place, each in enumerate(figures):
            if place % _JOBS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            total = total.plus(each)
        return total

    def _figures(self, version: JobVersion, ended: _Ended, running: Sequence[TrialGroup]) -> Totals:
        groups = [*ended.groups, *running]
        savings = self._savings(version, groups, ended.compared_from)
        own = [group for group in groups if group.own]
        decided = [group for group in own if not group.running and not group.delivered]
        num_undecided = sum(group.num_undecided for group in decided)
        return Totals(
            1,
            sum(group.num_trials for group in own if group.running),
            _num_deliveries(groups),
            sum(group.num_trials for group in decided) - num_undecided,
            num_undecided,
            self._spent(own, version.num_gpus),
            _claimed(savings, "saved"),
            int(savings.cost.saved is not None),
            _claimed(savings, "at_least"),
            _without_exploring(savings, "at_most"),
            _without_exploring(savings, "lost"),
            {savings.verdict: 1},
            int(version.needs_attention),
        )

    async def _ended(self, versions: Sequence[JobVersion]) -> Mapping[int, _Ended]:
        """The ended trials of jobs by key, read again of those that have changed."""
        found: dict[int, _Ended] = {}
        stale = []
        for version in versions:
            known = self._known.get(version.key)
            if known is not None and _is_same(known[0], version):
                self._known.move_to_end(version.key)
                found[version.key] = known[1]
            else:
                stale.append(version)
        if stale:
            keys = [version.key for version in stale]
            splits = await self._compared_from(keys)
            groups = await self._store.trial_groups(keys, self._prices, splits)
            for version in stale:
                found[version.key] = _Ended(groups.get(version.key, ()), splits.get(version.key, 0))
                self._known[version.key] = version, found[version.key]
                self._known.move_to_end(version.key)
        while len(self._known) > CACHED_JOBS:
            self._known.popitem(last=False)
        return found

    async def _compared_from(self, keys: Sequence[int]) -> Mapping[int, int]:
        """The first trial that is compared of each job whose behaviour has changed."""
        found = {}
        for place, (key, state) in enumerate((await self._store.policy_states(keys)).items()):
            if place % _JOBS_AT_A_STRETCH == 0:
                await asyncio.sleep(0)
            if number := compared_from(state):
                found[key] = number
        return found

    async def _of_ended(
        self, version: JobVersion, read: Callable[..., Awaitable[Answer]], *arguments: object, **options: object
    ) -> Answer:
        """What a query says of the ended trials of a job, asked again after each of its events."""
        what = (read.__name__, version.key, *arguments, *options.items())
        known = self._answers.pop(what, None)
        if known is None or not _is_same(known[0], version):
            known = version, await read(version.key, *arguments, **options)
        self._answers[what] = known
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        answer: Answer = known[1]
        return answer

    async def _advice(self, savings: Savings, version: JobVersion, job: Job) -> Sequence[str]:
        """What to do about the savings of one job."""
        since, first = 0, savings.compared_from
        if savings.newest_baseline_time is not None:
            since = await self._of_ended(version, self._store.deliveries_since, savings.newest_baseline_time, first)
        return advice(
            savings.cost,
            job.spec.job_id,
            job.spec.default_batch_size,
            in_use=savings.in_use,
            deliveries_since_default=since,
        )

    async def _break_even(self, savings: Savings, version: JobVersion) -> int | None:
        """The trial since which the lower bound of the saved cost has been above 0; None if it is not."""
        if savings.verdict is not SavingsVerdict.SAVING or savings.cost.baseline is None:
            return None
        least, first = savings.cost.baseline.least, savings.compared_from
        return await self._of_ended(version, self._store.break_even, least, first)

    def _savings(self, version: JobVersion, every: Sequence[TrialGroup], compared_from: int) -> Savings:
        default = version.default_batch_size
        in_use = batch_size_in_use(
            pinned=version.pinned,
            best_known=version.best_known,
            default=default,
            available=version.available,
            failing=version.failing,
        )
        groups = [group for group in every if group.first_trial >= compared_from]
        # What doubtful deliveries cost is spent; whether they delivered a model is unknown.
        delivered = [group for group in groups if group.delivered and not group.doubtful]
        spent = self._spent(groups, version.num_gpus)
        running = self._spent((group for group in groups if group.running), version.num_gpus)
        num_deliveries = _num_deliveries(delivered)
        of_default = [group for group in delivered if group.batch_size == default]
        launches = sum(group.num_trials for group in every if group.own and not group.running)
        num_in_use = sum(group.num_trials for group in delivered if group.batch_size == in_use)

        def model(batch_size: int | None, place: int) -> float | None:
            """What a model takes: what all ended trials of a batch size took, by its deliveries."""
            ended = [group for group in groups if group.batch_size == batch_size and not group.running]
            number = sum(group.num_trials for group in ended if group.delivered and not group.doubtful)
            return sum(_quantities(group)[place] for group in ended) / number if number else None

        def saved(place: int, value: float, unfinished: float) -> SavingsEstimate:
            reached = _delivered(delivered, place)
            return estimate(
                reached,
                default_batch_size=default,
                deliveries=num_deliveries,
                spent=value,
                launches=launches,
                in_use=model(in_use, place),
                with_default=model(default, place),
                # Sums of floats: the part may exceed the whole by a rounding.
                running=min(unfinished, value),
            )

        joules = spent.usage.energy_joules
        energy = replace(saved(1, joules or 0.0, running.usage.energy_joules or 0.0), measured=joules is not None)
        money = None if spent.money is None else saved(3, spent.money, running.money or 0.0)
        if money is not None and self._prices.joule:
            money = _measured_money(money, energy)
        grams = self.factors.grams_per_joule
        return Savings(
            saved(0, spent.usage.cost, running.usage.cost),
            energy,
            saved(2, spent.usage.time_seconds, running.usage.time_seconds),
            money,
            energy.times(grams) if grams is not None and energy.measured else None,
            num_deliveries,
            sum(group.num_trials for group in of_default),
            max((group.newest_end for group in of_default if group.newest_end), default=None),
            in_use,
            num_in_use,
            compared_from,
        )

    def _spent(self, groups: Iterable[TrialGroup], num_gpus: int) -> Amount:
        return self._priced(_usage(group for group in groups if group.own), num_gpus)

    def _priced(self, usage: Usage, num_gpus: int) -> Amount:
        joules, per_joule, money = usage.energy_joules, self.factors.grams_per_joule, None
        if self.factors.has_prices:
            money = self._prices.joule * (joules or 0.0) + self._prices.gpu_second * num_gpus * usage.time_seconds
        return Amount(usage, money, None if per_joule is None or joules is None else per_joule * joules)

    async def _days(self, version: JobVersion, ended: Sequence[TrialGroup]) -> Sequence[Day]:
        """The days of the months that a trend shows."""
        newest = max((group.newest_end for group in ended if group.newest_end), default=None)
        if newest is None:
            return ()
        year, month = divmod(newest.year * 12 + newest.month - MONTHS, 12)
        since = newest.replace(year=year, month=month + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
        return await self._of_ended(version, self._store.days, since)

    def _months(self, days: Sequence[Day], num_gpus: int) -> Sequence[MonthStatistics]:
        """The months with trials."""
        found = []
        for start, group in groupby(days, key=lambda day: day.start.replace(day=1)):
            of_month = list(group)
            usage = Usage()
            for day in of_month:
                usage = usage.plus(day.usage)
            found.append(
                MonthStatistics(
                    start,
                    sum(day.num_trials for day in of_month),
                    sum(day.num_deliveries for day in of_month),
                    self._priced(usage, num_gpus),
                )
            )
        return found

    def _by_batch_size(self, groups: Sequence[TrialGroup], num_gpus: int) -> Sequence[TrialStatistics]:
        ordered = sorted(groups, key=lambda group: (group.batch_size, group.origin.value))
        return [
            self._of_groups(list(these), num_gpus)
            for _, these in groupby(ordered, key=lambda group: (group.batch_size, group.origin))
        ]

    def _of_groups(self, groups: Sequence[TrialGroup], num_gpus: int) -> TrialStatistics:
        delivered = [group for group in groups if group.delivered]
        num_deliveries = sum(group.num_trials for group in delivered)
        num_trials = sum(group.num_trials for group in groups)
        num_running = sum(group.num_trials for group in groups if group.running)
        num_undecided = sum(group.num_undecided for group in groups if not group.delivered)
        logs = Moments()
        for group in delivered:
            logs = logs.merge(group.logs.cost)
        return TrialStatistics(
            groups[0].batch_size,
            groups[0].origin,
            num_trials,
            num_running,
            num_deliveries,
            num_trials - num_running - num_deliveries - num_undecided,
            num_undecided,
            self._priced(_usage(groups), num_gpus),
            self._priced(_usage(delivered).times(1 / num_deliveries), num_gpus) if num_deliveries else None,
            logs,
            sum(group.epochs for group in delivered) / num_deliveries if num_deliveries else None,
            min((group.least_epochs for group in delivered), default=None),
            max((group.most_epochs for group in delivered), default=None),
        )


def _is_same(known: JobVersion, version: JobVersion) -> bool:
    """Whether the ended trials of a job are the same as in an earlier version, and its policy too."""
    return known[:_SUMS_OF] == version[:_SUMS_OF]


def _num_deliveries(groups: Iterable[TrialGroup]) -> int:
    return sum(group.num_trials for group in groups if group.delivered and group.own)


def _usage(groups: Iterable[TrialGroup]) -> Usage:
    total = Usage()
    for group in groups:
        total = total.plus(group.usage)
    return total


def _delivered(delivered: Sequence[TrialGroup], place: int) -> Mapping[int, Delivered]:
    """The deliveries of each batch size, in one quantity."""
    found: dict[int, Delivered] = {}
    for group in delivered:
        value = _quantities(group)[place]
        # Time is always measured; for money see `_measured_money`.
        unmeasured = (group.num_without_cost, group.num_without_energy, 0, 0)[place]
        known = found.get(group.batch_size, Delivered())
        count = known.count + group.num_trials
        mean = known.mean + (value - known.mean * group.num_trials) / count
        logs = known.logs.merge(group.logs[place])
        found[group.batch_size] = Delivered(count, mean, logs, known.unmeasured + unmeasured)
    return found


def _quantities(group: TrialGroup) -> tuple[float, float, float, float]:
    usage = group.usage
    return usage.cost, usage.energy_joules or 0.0, usage.time_seconds, group.money


def _measured_money(money: SavingsEstimate, energy: SavingsEstimate) -> SavingsEstimate:
    """The claim about money where energy has a price: without its energy, a trial seems cheaper than it was."""
    if energy.verdict is SavingsVerdict.NOT_MEASURED:
        return SavingsEstimate(money.deliveries, money.spent, SavingsVerdict.NOT_MEASURED)
    if energy.in_use is None:
        return replace(money, in_use=None, with_default=energy.with_default and money.with_default)
    return money


def _claimed(savings: Savings, figure: Literal["saved", "at_least", "at_most", "lost"]) -> Quantities:
    claims = savings.time, savings.energy, savings.cost, savings.money, savings.carbon
    return Quantities(*(None if each is None else getattr(each, figure) for each in claims))


def _without_exploring(savings: Savings, figure: Literal["at_most", "lost"]) -> Quantities:
    found = _claimed(savings, figure)
    if savings.verdict is not SavingsVerdict.EXPLORING:
        return found
    # A job that explores has not lost yet.
    limited = max if figure == "at_most" else min
    return Quantities(*(None if each is None else limited(0.0, each) for each in found))


def _points(
    spent: Sequence[Spent], last_of: Callable[[int], int], *, compared_from: int, baseline: Baseline | None
) -> Sequence[SavingsPoint]:
    """The ends of the ranges that have trials.

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
                cost,
                None if known is None else compared * known.cautious - compared_cost,
                None if known is None else compared * known.least - compared_cost,
            )
        )
    return points
