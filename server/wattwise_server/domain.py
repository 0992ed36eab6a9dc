"""The nouns: job, trial, measurement, arm, decision. Immutable values, no I/O, no gRPC.

Values that are created with every report are NamedTuples, which take a third of a frozen dataclass's time to create.

Units are joules, seconds and watts throughout; times are UTC.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from wattwise.rules import EndReason, ResolvedJob, TrialStatus

FAILURES_TO_SET_ASIDE = 3
"""Failures in a row after which a batch size is set aside, and a job needs attention."""


class Stage(Enum):
    """Where a search stands under pruning_gts; every other policy is in the bandit."""

    PRUNING = "PRUNING"
    BANDIT = "BANDIT"


class TrialOrigin(Enum):
    """Who chose the batch size of a trial: the policy, a person, or nobody, since it was imported."""

    SEARCH = "SEARCH"
    REQUESTED = "REQUESTED"
    IMPORTED = "IMPORTED"


class PruningGtsRole(Enum):
    """What a trial is for under pruning_gts."""

    EXPLORATION = "EXPLORATION"
    CONCURRENT = "CONCURRENT"
    BANDIT = "BANDIT"


class PruningGtsTrial(NamedTuple):
    """What pruning_gts knows of a trial that it chose: its role, and the round in which it was dispatched."""

    role: PruningGtsRole
    pruning_round: int


class WarningReason(Enum):
    """What a warning is about."""

    TARGET_REACHED_AT_ONCE = "TARGET_REACHED_AT_ONCE"
    METRIC_OUT_OF_RANGE = "METRIC_OUT_OF_RANGE"
    METRIC_MOVES_AWAY = "METRIC_MOVES_AWAY"
    NO_ENERGY = "NO_ENERGY"
    MONITORS_DIFFER = "MONITORS_DIFFER"
    UNCONNECTED_RANKS = "UNCONNECTED_RANKS"
    POWER_OUT_OF_RANGE = "POWER_OUT_OF_RANGE"
    EPOCHS_CHANGED = "EPOCHS_CHANGED"
    EPOCH_COST_CHANGED = "EPOCH_COST_CHANGED"
    DELIVERY_UNUSUALLY_CHEAP = "DELIVERY_UNUSUALLY_CHEAP"
    END_REASON_UNKNOWN = "END_REASON_UNKNOWN"


class UnknownEndReason(NamedTuple):
    """The number of an end reason that newer clients know and this server does not."""

    number: int


UNDECIDED = frozenset({TrialStatus.INTERRUPTED, TrialStatus.FAILED})
"""The statuses of the trials that ended without a decision."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of a series, updated one value at a time.

    Welford's update (Technometrics 4(3), 1962) keeps equal values at a deviation of exactly zero.
    """

    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """Returns the moments of values that are known at once."""
        if not values:
            return cls()
        least = min(values)
        if least == max(values):
            return cls(len(values), least)
        mean = math.fsum(values) / len(values)
        return cls(len(values), mean, math.fsum((value - mean) ** 2 for value in values))

    def add(self, value: float) -> Moments:
        """Returns the moments with one more value."""
        count = self.count + 1
        step = value - self.mean
        mean = self.mean + step / count
        return Moments(count, mean, self.deviation + step * (value - mean))

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of both series together (Chan, Golub, LeVeque, 1979)."""
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        step = other.mean - self.mean
        mean = self.mean + step * other.count / count
        spread = step * step * self.count * other.count / count
        return Moments(count, mean, self.deviation + other.deviation + spread)

    @property
    def variance(self) -> float:
        """The population variance; 0 for one value or none."""
        return self.deviation / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One decided trial of an arm: its cost in joules, and whether it converged."""

    cost: float
    converged: bool


@dataclass(frozen=True, slots=True)
class Arm:
    """One batch size of a job: its status, and sums over its trials.

    All policies share it. `pruned` and `round_cost` are set by pruning_gts only; they are fields because every policy
    asks which batch sizes are available, and because clients list them. What the trials teach a policy besides, such as
    their epochs, is in `Search.notes`.

    Attributes:
        batch_size: The batch size.
        pruned: Whether it was pruned.
        excluded: Whether it does not fit into memory.
        banned: Whether a person banned it.
        round_cost: Cost of its exploration in this round; None while it has no result.
        num_decided: Decided trials of all origins, also those that have left the window.
        num_converged: Those of them that converged.
        num_failed: Trials that failed; a preemption is no failure.
        num_out_of_memory: Those of them that ran out of memory.
        failed_cost: What the failed ones cost together, in joules.
        failed_trials: Numbers of the trials that failed since one was decided, the newest ones, oldest first.
        out_of_memory: Trials that ran out of memory since one of this or a larger batch size was decided.
        running: Running trials.
        reached: Costs of the trials that converged; of the window only, if there is one.
        cheapest: The least of these costs above 0; None if there is none.
        kept: The decided trials that are kept one by one: with a window the newest ones, else those that did not
            converge.
    """

    batch_size: int
    pruned: bool = False
    excluded: bool = False
    banned: bool = False
    round_cost: float | None = None
    num_decided: int = 0
    num_converged: int = 0
    num_failed: int = 0
    num_out_of_memory: int = 0
    failed_cost: float = 0.0
    failed_trials: tuple[int, ...] = ()
    out_of_memory: int = 0
    running: int = 0
    reached: Moments = field(default=Moments())
    cheapest: float | None = None
    kept: tuple[Observation, ...] = ()

    def costs(self, floor: float = 0.0) -> Moments:
        """Returns the costs of the trials in joules, where one that did not converge costs at least the floor."""
        return self.reached.merge(Moments.of([max(seen.cost, floor) for seen in self.kept if not seen.converged]))

    @property
    def available(self) -> bool:
        """Whether it is neither pruned, excluded nor banned."""
        return not (self.pruned or self.excluded or self.banned)


@dataclass(frozen=True)
class Search:
    """What decides a job's next batch size: its history in sums, and its policy's state.

    Attributes:
        stage: The stage.
        arms: One per batch size, ascending.
        pruning_round: The round being walked, from 0.
        round_default: Where this round's walk starts.
        exploring: Number of the trial that holds the exploration slot.
        min_cost: Cheapest cost of a converged trial of a batch size that may be chosen, in joules.
        min_cost_batch_size: Its batch size.
        bound_stops: Trials of the bandit stage in a row that were stopped at the bound, since a trial converged.
        num_trials: Trials that were dispatched.
        best_known: The batch size with the least expected cost of those that may be chosen and have converged.
        best_known_cost: What a model is expected to cost with it, in joules.
        notes: A string for the policy's own state; the server stores it unchanged.
    """

    stage: Stage
    arms: tuple[Arm, ...]
    pruning_round: int
    round_default: int
    exploring: int | None = None
    min_cost: float | None = None
    min_cost_batch_size: int | None = None
    bound_stops: int = 0
    num_trials: int = 0
    best_known: int | None = None
    best_known_cost: float | None = None
    notes: str = ""

    @cached_property
    def available(self) -> tuple[Arm, ...]:
        """The arms that are neither pruned, excluded nor banned, ascending."""
        return tuple(arm for arm in self.arms if arm.available)

    def arm(self, batch_size: int) -> Arm:
        """Returns the arm of one batch size of the job."""
        return next(arm for arm in self.arms if arm.batch_size == batch_size)


class ChangedQuantity(Enum):
    """What a job's behaviour is measured by.

    EPOCHS: epochs to the target. EPOCH_COST: the cost of an epoch.
    """

    EPOCHS = "EPOCHS"
    EPOCH_COST = "EPOCH_COST"


ENDS = {
    EndReason.COMPLETED: "completed without a decision",
    EndReason.ERROR: "crashed",
    EndReason.OUT_OF_MEMORY: "ran out of memory",
    EndReason.PREEMPTED: "was preempted",
    EndReason.LOST: (
        "was lost: its process ended without saying why, or its lease expired without a report or a heartbeat"
    ),
}
"""How undecided trials ended, by their end reasons."""


class DetectedChange(NamedTuple):
    """A change of a job's behaviour: earlier trials no longer count for one quantity.

    Attributes:
        quantity: The quantity that has changed.
        since_trial: Number of the first trial that counts.
        batch_size: The batch size whose trials show the change most clearly.
        factor: The quantity after the change divided by that before; infinite if the batch size reached the target
            before and misses it now.
        factor_is_lower_limit: Because trials were stopped before they reached the target.
        detected_by_trial: Number of the trial whose result revealed the change.
    """

    quantity: ChangedQuantity
    since_trial: int
    batch_size: int
    factor: float
    factor_is_lower_limit: bool
    detected_by_trial: int

    @property
    def finite_factor(self) -> float | None:
        """The factor; None if it is infinite."""
        return self.factor if math.isfinite(self.factor) else None

    @property
    def message(self) -> str:
        """What has changed since when, for people."""
        times = _times(self.factor)
        if self.factor_is_lower_limit:
            times = f"at least {times.removeprefix('about ')}"
        if self.quantity is ChangedQuantity.EPOCH_COST:
            what = f"an epoch of batch size {self.batch_size} costs {times} times as much"
            return f"since trial {self.since_trial}, {what}; older costs no longer count"
        what = "misses the target"
        if self.factor < math.inf:
            what = f"takes {times} times as many epochs"
        return f"since trial {self.since_trial}, batch size {self.batch_size} {what}; older trials no longer count"


def _times(factor: float) -> str:
    """Returns a factor with two digits: "0.48", "2.1", "about 350"; with three close to 1, where two would hide it."""
    if factor >= 9.95:
        return f"about {float(f'{factor:.2g}'):,.0f}"
    return f"{factor:{'.3g' if 0.9 < factor < 1.1 else '.1f' if factor >= 1 else '.2g'}}"


def batch_size_in_use(
    *, pinned: int | None, best_known: int | None, default: int, available: Collection[int], failing: Collection[int]
) -> int | None:
    """Returns the batch size that a launch gets unless another one is tried; None if no batch size is left.

    Without a pinned or a best known one, it is the available one that is nearest to the default, the smaller of two.
    One whose last three or more trials failed is used only if there is no other.
    """
    usual = [size for size in available if size not in failing] or available
    return pinned or best_known or min(usual, key=lambda size: (abs(size - default), size), default=None)


class PowerSample(NamedTuple):
    """Time and energy of some training steps with every GPU at one power limit.

    Attributes:
        energy_joules: Of all GPUs; None if it was not measured.
    """

    limit_watts_per_gpu: float
    time_seconds: float
    energy_joules: float | None
    steps: int


class ProfileResult(NamedTuple):
    """The samples of a power profile that decide: those of its cheapest limit and of its highest one."""

    cheapest: PowerSample
    highest: PowerSample


class PowerLimitState(NamedTuple):
    """What a job knows about the power limits of one batch size.

    Attributes:
        batch_size: The batch size.
        cheapest: The cheapest of all reported samples; None before the first report.
        profiling: Number of the trial that profiles this batch size; it does so for as long as it runs.
        highest: The sample of the highest limit in the profile of `cheapest`; None if it is unknown.
    """

    batch_size: int
    cheapest: PowerSample | None = None
    profiling: int | None = None
    highest: PowerSample | None = None


class EnergyQuality(Enum):
    """How much of an energy was measured."""

    MEASURED = "MEASURED"
    PARTLY_ESTIMATED = "PARTLY_ESTIMATED"
    ESTIMATED = "ESTIMATED"


class MonitorKinds(NamedTuple):
    """What energy comes from.

    Attributes:
        kinds: The kinds of monitor, in the order in which they were first used; empty while none is known.
        quality: How much of the energy was measured; MEASURED if no kind is known.
    """

    kinds: tuple[str, ...] = ()
    quality: EnergyQuality = EnergyQuality.MEASURED

    def __str__(self) -> str:
        return "+".join(self.kinds)

    def joined(self, other: MonitorKinds) -> MonitorKinds:
        """Returns the monitor of energy that comes from both."""
        if not self.kinds or not other.kinds:
            return self if self.kinds else other
        quality = self.quality if self.quality is other.quality else EnergyQuality.PARTLY_ESTIMATED
        return MonitorKinds(tuple(dict.fromkeys(self.kinds + other.kinds)), quality)

    def same_kinds(self, other: MonitorKinds) -> bool:
        """Returns whether both have the same kinds, in any order."""
        return set(self.kinds) == set(other.kinds)


class TrialWarning(NamedTuple):
    """Something about a trial that looks wrong but is not refused: the field, and a sentence with what to change."""

    reason: WarningReason
    field: str
    message: str
    trial_number: int


@dataclass(frozen=True, slots=True)
class Job:
    """A job: what was registered, and what has been learned.

    Attributes:
        spec: The configuration.
        search: Its history in sums, and its policy's state.
        create_time: When it was registered.
        num_observations: Trials that were decided, without doubtful ones.
        monitor: What the energy of its newest results comes from.
        other_monitors: What the energy of earlier results comes from, as far as that has other kinds; the newest last.
        power_limits: One per batch size that was profiled or is being profiled, ascending.
        num_search_events: Events of its trials and batch sizes so far, which are numbered in their order.
        first_notes: The notes of its search before the first trial, if they depend on other jobs; otherwise empty.
        registered: What it was registered with, if a person has changed its policy since; otherwise None.
        set_fields: The optional fields, of the policy too, that were registered with another value than their default.
        reset_after: Trials up to this number do not count, because a person has reset the search.
        reset_time: When that was last; None: never.
        paused: Whether launches get the best known batch size.
        pinned: The batch size that every launch gets, whatever its status and even if it is banned.
        requests: The newest requests of people that have an id, the newest last, such as "reset ID".
        baseline_requested: Whether one of the next launches gets the default batch size.
        baseline_every: One of so many launches gets the default batch size, because a person has asked for it; 0: none.
        warnings: What looks wrong about its trials, at most one for each reason, the newest last.
    """

    spec: ResolvedJob
    search: Search
    create_time: datetime
    num_observations: int = 0
    monitor: MonitorKinds = field(default=MonitorKinds())
    other_monitors: tuple[MonitorKinds, ...] = ()
    power_limits: tuple[PowerLimitState, ...] = ()
    num_search_events: int = 0
    first_notes: str = ""
    registered: ResolvedJob | None = None
    set_fields: frozenset[str] = frozenset()
    reset_after: int = 0
    reset_time: datetime | None = None
    paused: bool = False
    pinned: int | None = None
    requests: tuple[str, ...] = ()
    baseline_requested: bool = False
    baseline_every: int = 0
    warnings: tuple[TrialWarning, ...] = ()

    def counts(self, trial: Trial) -> bool:
        """Returns whether the search counts a trial."""
        return trial.number > self.reset_after and not trial.excluded

    @property
    def num_trials(self) -> int:
        """Trials that were dispatched."""
        return self.search.num_trials

    def power_limit(self, batch_size: int) -> PowerLimitState:
        """Returns what is known about the power limits of a batch size."""
        known = (state for state in self.power_limits if state.batch_size == batch_size)
        return next(known, PowerLimitState(batch_size))

    def with_power_limit(self, changed: PowerLimitState) -> Job:
        """Returns the job with the state of one batch size replaced."""
        others = (state for state in self.power_limits if state.batch_size != changed.batch_size)
        return replace(self, power_limits=tuple(sorted((*others, changed), key=lambda state: state.batch_size)))


class Activity(NamedTuple):
    """What the trials of a job are doing.

    Attributes:
        num_running: Running ones.
        last_time: When one was last dispatched, has reported or has ended; None if there is none.
        needs_attention: Whether no batch size is left to try, each that may be chosen has missed the target and none
            has ever reached it, there are warnings, or the newest three trials that ended have failed; a preemption is
            no failure.
    """

    num_running: int
    last_time: datetime | None
    needs_attention: bool


class ListedJob(NamedTuple):
    """A job as a list shows it.

    Attributes:
        position: Its place in the list, behind which the next page begins.
        key: Its key in the store, by which its figures are found.
        job: The job; its search has no arms, and no power limits are known.
        available: The batch sizes that are neither pruned, excluded nor banned, ascending.
        failing: The batch sizes whose last three or more trials failed, ascending.
        activity: What its trials are doing; None if the list was not asked for it.
    """

    position: int | str
    key: int
    job: Job
    available: tuple[int, ...]
    failing: tuple[int, ...]
    activity: Activity | None = None


class Usage(NamedTuple):
    """What training took; cost is in joules, and may follow from computed sums in place of measured ones.

    Attributes:
        energy_joules: As measured; None if no energy was.
        money: None without prices.
        carbon_grams: Of CO2 equivalent; None without a carbon intensity, or if no energy was measured.
    """

    time_seconds: float = 0.0
    energy_joules: float | None = None
    cost: float = 0.0
    money: float | None = None
    carbon_grams: float | None = None

    def plus(self, other: Usage) -> Usage:
        """Returns the sum; it leaves out what is unknown of one of both."""
        return Usage._make(map(_sum, self, other))

    def times(self, factor: float) -> Usage:
        """Returns a multiple."""
        return Usage._make(None if each is None else factor * each for each in self)


class Quantities(NamedTuple):
    """One figure of each quantity; None where it is unknown, or where nothing is claimed."""

    time_seconds: float | None = None
    energy_joules: float | None = None
    cost: float | None = None
    money: float | None = None
    carbon_grams: float | None = None

    def plus(self, other: Quantities) -> Quantities:
        """Returns the sum; known if either is."""
        return Quantities(*map(_sum, self, other))


class SavingsVerdict(Enum):
    """What a claim amounts to.

    NO_DELIVERY and NOT_MEASURED: nothing is claimed, since no trial reached the target, or some of those that did have
    no measurement of the quantity. SAVING: the lower bound of what was saved is above 0. EXPLORING: the job has had few
    launches, in which most jobs cost more than they save; there may be a claim. NO_BASELINE: nothing is claimed, since
    the default has too few deliveries. LOSS: ended trials cost more than the deliveries would have cost with the
    default, even if that costs a standard error more than it seems. UNCERTAIN: neither.
    """

    NO_DELIVERY = "NO_DELIVERY"
    NO_BASELINE = "NO_BASELINE"
    NOT_MEASURED = "NOT_MEASURED"
    SAVING = "SAVING"
    UNCERTAIN = "UNCERTAIN"
    LOSS = "LOSS"
    EXPLORING = "EXPLORING"


class SavingsQuantity(Enum):
    """The quantity in which people read savings."""

    COST = "COST"
    MONEY = "MONEY"


class Totals(NamedTuple):
    """What one job, or several together, did and saved. History from before their registration is left out.

    Attributes:
        num_jobs: The jobs.
        num_running_trials: Running trials.
        num_deliveries: Trials that delivered a model, without doubtful ones.
        num_missed: Trials that missed the target.
        num_failed: Trials that failed.
        num_interrupted: Trials that were interrupted.
        spent: What all trials took.
        saved: The estimate, of the jobs with a claim about a quantity.
        num_jobs_with_savings: Jobs with a claim about their cost.
        saved_at_least: Its lower bound, of the same jobs.
        at_most: What decides about a loss, of the same jobs: below 0 there is one. A job's loss in its first
            launches is 0.
        lost: What ended trials spent beyond what models take with the defaults, of the same jobs. That of a job in its
            first launches is at most 0.
        verdicts: The number of jobs by what their data say about the cost.
        num_jobs_needing_attention: Jobs that need attention.
        last_time: When a trial was last dispatched, has reported or has ended, if that was asked for.
    """

    num_jobs: int = 0
    num_running_trials: int = 0
    num_deliveries: int = 0
    num_missed: int = 0
    num_failed: int = 0
    num_interrupted: int = 0
    spent: Usage = Usage()
    saved: Quantities = Quantities()
    num_jobs_with_savings: int = 0
    saved_at_least: Quantities = Quantities()
    at_most: Quantities = Quantities()
    lost: Quantities = Quantities()
    verdicts: Mapping[SavingsVerdict, int] = MappingProxyType({})
    num_jobs_needing_attention: int = 0
    last_time: datetime | None = None

    def plus(self, other: Totals) -> Totals:
        """Returns those of both together."""
        # A field that is missing here is an error.
        return Totals._make(
            (
                self.num_jobs + other.num_jobs,
                self.num_running_trials + other.num_running_trials,
                self.num_deliveries + other.num_deliveries,
                self.num_missed + other.num_missed,
                self.num_failed + other.num_failed,
                self.num_interrupted + other.num_interrupted,
                self.spent.plus(other.spent),
                self.saved.plus(other.saved),
                self.num_jobs_with_savings + other.num_jobs_with_savings,
                self.saved_at_least.plus(other.saved_at_least),
                self.at_most.plus(other.at_most),
                self.lost.plus(other.lost),
                Counter(self.verdicts) + Counter(other.verdicts),
                self.num_jobs_needing_attention + other.num_jobs_needing_attention,
                max(filter(None, (self.last_time, other.last_time)), default=None),
            )
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


class TrialId(NamedTuple):
    """Names one trial, by its launch or its number or both. An empty launch id and the number 0 match any."""

    job_id: str
    launch_id: str = ""
    trial_number: int = 0


class ComputedUsage(NamedTuple):
    """Time and energy since the trial's start as they would be at the cheapest power limit, computed from a profile.

    Attributes:
        energy_joules: None if no energy was measured.
    """

    time_seconds: float
    energy_joules: float | None
    limit_watts_per_gpu: float


class Measurement(NamedTuple):
    """Sums since the trial's start, at the end of one epoch.

    Attributes:
        energy_joules: None if no energy was measured.
        computed: In observer mode, the sums that costs are made of instead of the measured ones; else None.
        limit_watts_per_gpu: The GPU power limit at the end of the epoch; None if it is unknown.
    """

    epoch: int
    time_seconds: float
    energy_joules: float | None
    metric: float
    report_time: datetime
    computed: ComputedUsage | None = None
    limit_watts_per_gpu: float | None = None

    @property
    def counted(self) -> ComputedUsage | Measurement:
        """The time and the energy that costs are made of."""
        return self.computed or self

    def repeats(self, other: Measurement) -> bool:
        """Returns whether both report the same epoch with the same numbers."""
        if self.epoch != other.epoch:
            return False
        same_metric = self.metric == other.metric or (math.isnan(self.metric) and math.isnan(other.metric))
        same_sums = (self.time_seconds, self.energy_joules) == (other.time_seconds, other.energy_joules)
        return same_metric and same_sums and self.computed == other.computed


class MetricSpan(NamedTuple):
    """The metrics of a trial's epochs: how many, the first, the least and the greatest; NaN counts as an epoch only.

    Attributes:
        first: None if it is NaN, or there is none.
    """

    epochs: int = 0
    first: float | None = None
    least: float | None = None
    most: float | None = None

    def add(self, metric: float) -> MetricSpan:
        """Returns the metrics with that of one more epoch."""
        if math.isnan(metric):
            return self._replace(epochs=self.epochs + 1)
        first = self.first if self.epochs else metric
        least = metric if self.least is None else min(self.least, metric)
        return MetricSpan(self.epochs + 1, first, least, metric if self.most is None else max(self.most, metric))


class Launch(NamedTuple):
    """What is known of the launch of a trial.

    Attributes:
        reason: Why it got its batch size; empty if it was not dispatched.
        labels: What it has said about itself: pairs of key and value.
        token_id: Id of the token that it was dispatched or imported with.
    """

    reason: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    token_id: str = ""


class Trial(NamedTuple):
    """The record of a training with one batch size.

    Attributes:
        policy_role: What its policy knows of it besides; None if that is nothing, or if it is not of the search.
        start_time: When it was dispatched, or started if it was imported; None if that is unknown.
        observation: Its position among the job's decided trials, from 1; None of a doubtful one.
        best_known: If it had no bound, whether because its batch size was the best known one; stored once it has ended.
        excluded: Whether the search ignores it: a person excluded it, or it was imported from before a reset.
        dispatch_event: Number of the event of its dispatch.
        end_event: Number of the event of its end; None while it runs.
        cost: Of its newest measurement, like `cost_bound`, `converged` and `target_reached`. Stored once it has ended;
            while it runs they depend on other trials' costs, and `policy.stopping` computes them.
        warnings: What looks wrong about it, without the warning that follows from `other_monitors`.
        profile: Of the power limits that it has profiled.
        launch: Of its launch; stored with the trial's creation, and never changed.
        heartbeat_interval: The longest pause between two signs of life; None if none are needed. Not stored: it
            follows from the job's lease, and `with_current_cost` sets it.
    """

    job_id: str
    number: int
    batch_size: int
    origin: TrialOrigin
    policy_role: PruningGtsTrial | None
    start_time: datetime | None
    launch_id: str
    monitor: MonitorKinds = MonitorKinds()
    other_monitors: tuple[MonitorKinds, ...] = ()
    excluded: bool = False
    dispatch_event: int = 0
    warnings: tuple[TrialWarning, ...] = ()
    profile: ProfileResult | None = None
    launch: Launch = Launch()
    # A report replaces these two. What follows, up to `heartbeat_interval`, is the outcome, which a trial that goes on
    # loses.
    last: Measurement | None = None
    lease_expire_time: datetime | None = None
    status: TrialStatus = TrialStatus.RUNNING
    end_reason: EndReason | None = None
    end_time: datetime | None = None
    end_event: int | None = None
    cost: float | None = None
    cost_bound: float | None = None
    converged: bool = False
    target_reached: bool = False
    observation: int | None = None
    best_known: bool = False
    heartbeat_interval: timedelta | None = None

    @property
    def key(self) -> TrialId:
        """The trial's name."""
        return TrialId(self.job_id, self.launch_id, self.number)

    def renew(self, last: Measurement | None, lease_expire_time: datetime | None) -> Trial:
        """Returns a running trial with its newest measurement and its lease, and without the outcome of an earlier end.

        Faster than `_replace`, for every report.
        """
        return Trial._make((*self[:_LAST], last, lease_expire_time, *_NO_OUTCOME, *self[_BEHIND_OUTCOME:]))

    @property
    def role(self) -> PruningGtsRole | None:
        """What it is for under pruning_gts; None if that policy did not choose it."""
        return self.policy_role.role if self.policy_role else None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status is TrialStatus.RUNNING

    def lease_expired(self, now: datetime) -> bool:
        """Returns whether it runs on an expired lease."""
        return self.running and self.lease_expire_time is not None and self.lease_expire_time <= now

    @property
    def lost(self) -> bool:
        """Whether its lease expired; a report or heartbeat revives it."""
        return self.end_reason is EndReason.LOST

    @property
    def doubtful(self) -> bool:
        """Whether it reached the target so cheaply that it does not count."""
        return any(warning.reason is WarningReason.DELIVERY_UNUSUALLY_CHEAP for warning in self.warnings)

    @property
    def monitor_warning(self) -> TrialWarning | None:
        """The warning of a trial whose monitor differs from earlier ones of its job."""
        if not self.other_monitors:
            return None
        others = " and ".join(map(str, self.other_monitors))
        message = (
            f"trial {self.number} is measured by {self.monitor}, earlier results of job {self.job_id!r} by "
            f"{others}: their costs cannot be compared; use a separate job_id for each monitor"
        )
        return TrialWarning(WarningReason.MONITORS_DIFFER, "result.monitor", message, self.number)

    @property
    def all_warnings(self) -> tuple[TrialWarning, ...]:
        """Its warnings, with the one that follows from `other_monitors`."""
        return (*self.warnings, warning) if (warning := self.monitor_warning) else self.warnings

    @property
    def resumable(self) -> bool:
        """Whether its launch may resume it from a checkpoint."""
        return self.status is TrialStatus.INTERRUPTED

    @property
    def undecided(self) -> bool:
        """Whether it ended without a decision."""
        return self.status in UNDECIDED


_LAST, _BEHIND_OUTCOME = Trial._fields.index("last"), Trial._fields.index("heartbeat_interval") + 1
_NO_OUTCOME = tuple(Trial._field_defaults[name] for name in Trial._fields[_LAST + 2 : _BEHIND_OUTCOME])


class RecordedSearchEvent(NamedTuple):
    """One of the numbered events that a job's search follows from.

    Attributes:
        number: Its number among the job's events, from 1.
        kind: What happened: the kind of a `SearchEvent`.
        batch_size: The batch size that it happened to.
        trial: The trial that it happened to, in its state at that time; None if it is about the batch size alone.
    """

    number: int
    kind: str
    batch_size: int
    trial: Trial | None = None


class RecordedEvent(NamedTuple):
    """Something that happened to a job and that people want to know later.

    Attributes:
        time: When.
        kind: What: the kind of an event.
        job_id: The job, which may have been deleted since.
        message: One sentence.
        trial_number: The trial that it is about, if any.
        batch_size: The batch size that it is about, if any.
        token_id: Id of the token of the call that caused it; empty if no call did, or without tokens.
    """

    time: datetime
    kind: str
    job_id: str
    message: str
    trial_number: int | None = None
    batch_size: int | None = None
    token_id: str = ""


class Decision(NamedTuple):
    """The answer to a trainer: whether to stop, and why.

    Attributes:
        end_reason: Why the trial ended; None while it runs.
        last_epoch: Its newest epoch; 0 before the first, and for a deleted trial.
        cost: Of its newest measurement; None before the first.
        heartbeat_interval: As in the trial.
    """

    stop_train: bool
    converged: bool
    target_reached: bool
    message: str
    end_reason: EndReason | None = None
    last_epoch: int = 0
    cost: float | None = None
    cost_bound: float | None = None
    heartbeat_interval: timedelta | None = None
    warnings: tuple[TrialWarning, ...] = ()
