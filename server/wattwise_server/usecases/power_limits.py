"""The use cases of trainers that set power limits: which trial profiles, and which limit is the cheapest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from wattwise.rules import ResolvedJob

from wattwise_server.domain import Job, PowerLimitState, PowerSample, ProfileResult, Trial, TrialId
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.events import Event, PowerProfiled, ProfileReported
from wattwise_server.policy.power import cheapest, cost_per_step
from wattwise_server.store.transactions import Store, Transaction
from wattwise_server.usecases.finding import find_trial
from wattwise_server.usecases.report import LARGEST_COST, power_limit_fault
from wattwise_server.usecases.retries import retried

MAX_SAMPLES = 1000
"""Far more than the distinct power limits of any GPU."""


class PowerAction(Enum):
    """What a trial does about the power limit of its batch size."""

    USE_LIMIT = "USE_LIMIT"
    PROFILE = "PROFILE"
    WAIT = "WAIT"


class AcquiredLimit(NamedTuple):
    """The answer to a trial that asks for a power limit.

    Attributes:
        action: What the trial does.
        cheapest: The sample of the cheapest limit; None unless the action is USE_LIMIT.
        highest: The sample of the highest limit of the same profile; None unless the action is USE_LIMIT.
    """

    action: PowerAction
    cheapest: PowerSample | None = None
    highest: PowerSample | None = None

    @property
    def limit_watts_per_gpu(self) -> float | None:
        """The cheapest limit."""
        return self.cheapest.limit_watts_per_gpu if self.cheapest else None


class PowerLimitProfiler:
    """Finds the cheapest power limit of every batch size. Every method may raise `StorageUnavailableError`.

    One trial per batch size profiles at a time, for as long as it runs: the role needs no release, and survives a
    restart of the server as the trial does.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @retried
    async def acquire(self, key: TrialId) -> AcquiredLimit:
        """Says what a trial does about the limit of its batch size.

        If no limit is known and no trial profiles, the asking trial now does.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
        """
        async with self._store.transaction(key.job_id) as tx:
            job, asking = await find_trial(tx, key)
            state = job.power_limit(asking.batch_size)
            if state.cheapest is not None:
                return AcquiredLimit(PowerAction.USE_LIMIT, state.cheapest, state.highest)
            profiling = await self._profiling(tx, state)
            if profiling is not None:
                return AcquiredLimit(PowerAction.PROFILE if profiling.number == asking.number else PowerAction.WAIT)
            if not asking.running or asking.excluded:
                # Lost or ended: it may ask again after it was revived. An excluded one does not count.
                return AcquiredLimit(PowerAction.WAIT)
            tx.record(job.with_power_limit(state._replace(profiling=asking.number)))
            return AcquiredLimit(PowerAction.PROFILE)

    @retried
    async def report(self, key: TrialId, samples: Sequence[PowerSample]) -> float:
        """Saves a profile; returns the cheapest known limit, in watts. A trial that has ended may report too.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: the profile is invalid; nothing was changed.
        """
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await find_trial(tx, key)
            _check_profile(job.spec, samples)
            highest = max(samples, key=lambda sample: sample.limit_watts_per_gpu)
            profile = ProfileResult(cheapest(job.spec, samples), highest)
            state = job.power_limit(trial.batch_size)
            changed = state._replace(profiling=None) if state.profiling == trial.number else state
            if not trial.excluded:
                changed = _with_profile(job.spec, changed, profile)
            best = changed.cheapest or profile.cheapest
            events: list[Event] = []
            if changed != state:
                job = job.with_power_limit(changed)
                events.append(PowerProfiled(trial, len(samples), best))
            if profile != trial.profile:
                events.append(ProfileReported(trial._replace(profile=profile), samples))
            tx.record(job, *events)
            return best.limit_watts_per_gpu

    async def _profiling(self, tx: Transaction, state: PowerLimitState) -> Trial | None:
        trial = await tx.trial(state.profiling) if state.profiling is not None else None
        runs = trial is not None and trial.running and not trial.excluded and not tx.lease_expired(trial)
        return trial if runs else None


def with_counted_profiles(job: Job, batch_size: int, trials: Iterable[Trial]) -> Job:
    """Returns the job with what the profiles of one batch size tell, without those of excluded trials.

    Args:
        job: The job.
        batch_size: The batch size.
        trials: All its trials, in their order.
    """
    state = job.power_limit(batch_size)._replace(cheapest=None, highest=None)
    for trial in trials:
        if trial.profile and trial.batch_size == batch_size and not trial.excluded:
            state = _with_profile(job.spec, state, trial.profile)
    return job.with_power_limit(state)


def _with_profile(spec: ResolvedJob, state: PowerLimitState, profile: ProfileResult) -> PowerLimitState:
    best = profile.cheapest if state.cheapest is None else cheapest(spec, (state.cheapest, profile.cheapest))
    # The highest limit is that of the profile with the cheapest one.
    return state._replace(cheapest=best, highest=profile.highest if best == profile.cheapest else state.highest)


def _check_profile(spec: ResolvedJob, samples: Sequence[PowerSample]) -> None:
    """Raises InvalidRequestError with one violation per fault."""
    if not samples:
        raise InvalidRequestError(Violation("samples", "is empty; report at least one power limit"))
    if len(samples) > MAX_SAMPLES:
        raise InvalidRequestError(Violation("samples", f"has more than {MAX_SAMPLES} samples; report at most so many"))
    faults = []
    seen: set[float] = set()
    has_energy = any(sample.energy_joules is not None for sample in samples)
    for place, sample in enumerate(samples):
        found = _sample_faults(spec, sample)
        limit = sample.limit_watts_per_gpu
        if limit in seen:
            found.append(
                ("power_setting.limit_watts_per_gpu", f"{limit:g} is listed more than once; report every limit once")
            )
        seen.add(limit)
        if sample.energy_joules is None and has_energy:
            found.append(("energy_joules", "is not set, but other samples have energy; set it in all samples or none"))
        faults += [Violation(f"samples[{place}].{name}", fault) for name, fault in found]
    if faults:
        raise InvalidRequestError(*faults)


def _sample_faults(spec: ResolvedJob, sample: PowerSample) -> list[tuple[str, str]]:
    limit, seconds, joules = sample.limit_watts_per_gpu, sample.time_seconds, sample.energy_joules
    faults = []
    if fault := power_limit_fault(limit):
        faults.append(("power_setting.limit_watts_per_gpu", fault))
    if not 0 < seconds < math.inf:
        faults.append(("time_seconds", f"is {seconds}; report the seconds that the steps took, above 0 and finite"))
    if joules is not None and not 0 <= joules < math.inf:
        faults.append(("energy_joules", f"is {joules}; report the joules of all GPUs, 0 or more and finite"))
    if sample.steps < 1:
        faults.append(("steps", f"is {sample.steps}; report the number of measured steps, 1 or more"))
    if not faults and not cost_per_step(spec, sample) <= LARGEST_COST:
        faults.append(("energy_joules", f"makes the cost exceed {LARGEST_COST:g} J; report joules and seconds"))
    return faults
