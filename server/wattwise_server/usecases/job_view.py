"""What answers show of a job and of its trials: values with the names of the messages' fields, which explain them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from wattwise.rules import ResolvedJob

from wattwise_server.domain import (
    Arm,
    DetectedChange,
    Job,
    PowerSample,
    Search,
    Stage,
    Trial,
    TrialWarning,
    batch_size_in_use,
)
from wattwise_server.errors import jobs_command
from wattwise_server.policy.base import ArmBelief
from wattwise_server.policy.explorer import next_exploration
from wattwise_server.policy.failures import Status, advice, failing, state
from wattwise_server.policy.power import cost_per_step
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.requests import BaselineWait, baseline_wait
from wattwise_server.store.base import StoredProfile
from wattwise_server.usecases.changes import changes


class JobView(NamedTuple):
    """A job, and what answers say of it besides."""

    job: Job
    available_batch_sizes: Sequence[int]
    batch_size_in_use: int | None

    @property
    def reset_after(self) -> int | None:
        """None: the job was never reset."""
        return self.job.reset_after or None

    @property
    def baseline_every(self) -> int | None:
        """None: nobody has asked for baselines."""
        return self.job.baseline_every or None


class TrialView(NamedTuple):
    """A trial, and what answers say of it besides.

    Attributes:
        trial: The trial.
        decision_message: The message of its newest decision, without advice; None in answers to its trainer.
        recurrence: Which need for a model it served, from 1; None if that is unknown.
    """

    trial: Trial
    decision_message: str | None = None
    recurrence: int | None = None

    @property
    def warnings(self) -> Sequence[TrialWarning]:
        """All warnings."""
        return self.trial.all_warnings

    @property
    def labels(self) -> Mapping[str, str]:
        """What its launch has said about itself."""
        return dict(self.trial.launch.labels)


class PruningGtsBatchSize(NamedTuple):
    """A batch size in a pruning round."""

    batch_size: int
    round_cost: float | None
    exploring: bool


class PolicyDetails(NamedTuple):
    """What a policy knows about the batch sizes: while it prunes, their costs in the round, and else its beliefs."""

    policy: str
    batch_sizes: Sequence[PruningGtsBatchSize]
    arms: Sequence[ArmBelief]


class BatchSizeState(NamedTuple):
    """What is known about a batch size."""

    batch_size: int
    status: Status
    banned: bool
    pinned: bool
    reason: str
    expected_cost: float | None
    expected_cost_deviation: float | None
    failure_rate: float | None
    num_converged: int
    num_not_converged: int
    num_failed: int
    num_running: int


class ProfiledLimit(NamedTuple):
    """What a step takes with a power limit."""

    limit_watts_per_gpu: float
    time_seconds_per_step: float
    energy_joules_per_step: float | None
    cost_per_step: float


class PowerLimit(NamedTuple):
    """The cheapest power limit of a batch size."""

    batch_size: int
    limit: ProfiledLimit


class PowerProfile(NamedTuple):
    """The power limits that a trial has profiled."""

    trial_number: int
    batch_size: int
    limits: Sequence[ProfiledLimit]


class JobDetails(NamedTuple):
    """What a job knows about its batch sizes."""

    policy_details: PolicyDetails
    batch_size_states: Sequence[BatchSizeState]
    power_limits: Sequence[PowerLimit]
    changes: Sequence[DetectedChange]
    advice: str
    baseline_wait: BaselineWait | None


class JobWithDetails(NamedTuple):
    """A job, and what it knows about its batch sizes."""

    job: JobView
    details: JobDetails


def job_with_details(job: Job) -> JobWithDetails:
    """Returns a job, and what it knows about its batch sizes."""
    return JobWithDetails(job_view(job), job_details(job))


def job_view(job: Job) -> JobView:
    """Returns a job as answers show it."""
    arms = job.search.available
    return listed_job_view(job, [arm.batch_size for arm in arms], [arm.batch_size for arm in arms if failing(arm)])


def listed_job_view(job: Job, available: Sequence[int], failing: Collection[int]) -> JobView:
    """Returns a job of a list: its search has no arms, so that its available and its failing batch sizes are given."""
    in_use = batch_size_in_use(
        pinned=job.pinned,
        best_known=job.search.best_known,
        default=job.spec.default_batch_size,
        available=available,
        failing=failing,
    )
    return JobView(job, available, in_use)


def job_details(job: Job) -> JobDetails:
    """Returns what a job knows about its batch sizes."""
    search = job.search
    beliefs = POLICIES[job.spec.policy].belief(job.spec, search)
    by_size = {belief.batch_size: belief for belief in beliefs}
    return JobDetails(
        policy_details=_policy_details(job, beliefs),
        batch_size_states=[_batch_size_state(job, arm, by_size.get(arm.batch_size)) for arm in search.arms],
        power_limits=[
            PowerLimit(known.batch_size, _profiled_limit(job.spec, known.cheapest))
            for known in job.power_limits
            if known.cheapest is not None
        ],
        changes=changes(job),
        advice=advice(search, job.spec.job_id),
        baseline_wait=baseline_wait(job),
    )


def _policy_details(job: Job, beliefs: Sequence[ArmBelief]) -> PolicyDetails:
    search = job.search
    if search.stage is Stage.PRUNING:
        return PolicyDetails(job.spec.policy, list(_batch_sizes_of_round(search)), ())
    available = {arm.batch_size for arm in search.available}
    return PolicyDetails(job.spec.policy, (), [belief for belief in beliefs if belief.batch_size in available])


def _batch_sizes_of_round(search: Search) -> Iterator[PruningGtsBatchSize]:
    exploring = next_exploration(search) if search.exploring is not None else None
    explored = exploring.batch_size if exploring is not None and exploring.running else None
    for arm in search.arms:
        yield PruningGtsBatchSize(arm.batch_size, arm.round_cost, explored == arm.batch_size)


def _batch_size_state(job: Job, arm: Arm, belief: ArmBelief | None) -> BatchSizeState:
    known, pinned = state(job.search, arm, job.spec.job_id), arm.batch_size == job.pinned
    reason = known.reason
    if pinned:
        reason = f"pinned: every launch gets it until {jobs_command('unpin', job.spec.job_id)}; {reason}"
    return BatchSizeState(
        batch_size=arm.batch_size,
        status=known.status,
        banned=arm.banned,
        pinned=pinned,
        reason=reason,
        expected_cost=belief.expected_cost if belief else None,
        expected_cost_deviation=belief.deviation if belief else None,
        failure_rate=belief.failure_rate if belief else None,
        num_converged=arm.num_converged,
        num_not_converged=arm.num_decided - arm.num_converged,
        num_failed=arm.num_failed,
        num_running=arm.running,
    )


def power_profile(spec: ResolvedJob, stored: StoredProfile) -> PowerProfile:
    """Returns the power limits that a trial has profiled."""
    limits = [_profiled_limit(spec, sample) for sample in stored.samples]
    return PowerProfile(stored.trial_number, stored.batch_size, limits)


def _profiled_limit(spec: ResolvedJob, sample: PowerSample) -> ProfiledLimit:
    """Returns what a step of a job takes with the power limit of a sample."""
    joules = None if sample.energy_joules is None else sample.energy_joules / sample.steps
    return ProfiledLimit(
        sample.limit_watts_per_gpu, sample.time_seconds / sample.steps, joules, cost_per_step(spec, sample)
    )
