"""The use cases of trainers that set power limits: who profiles, and what is known. Rules are in `policy/power.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from wattwise_server.clock import Clock
from wattwise_server.domain import ArmState, Job, PowerSample, Trial, TrialKey
from wattwise_server.errors import InvalidRequestError, Violation
from wattwise_server.observability.events import UNOBSERVED, Observer, PowerProfiled
from wattwise_server.policy.explorer import with_arm
from wattwise_server.policy.power import cheapest
from wattwise_server.store.base import Store, Transaction
from wattwise_server.usecases.lookup import job_of, trial_of
from wattwise_server.usecases.power_profile import check_profile


class KnownLimit(NamedTuple):
    """What a trainer is told: the cheapest limit in watts, if any is known, and whether another trial profiles."""

    power_limit_watts: float | None
    profiled_by_another: bool


class PowerLimits:
    """Finds out the cheapest power limit of every batch size. Every method may raise `StorageUnavailableError`.

    One trial of a batch size profiles at a time, for as long as it runs: what it holds needs no release of its own,
    and survives a restart of the server as the trial does.
    """

    def __init__(self, store: Store, clock: Clock, observer: Observer = UNOBSERVED) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer

    async def limit(self, key: TrialKey) -> KnownLimit:
        """The cheapest limit of a batch size; lets the trial that asks profile if nothing is known and nobody does.

        Args:
            key: The job, the batch size, and the trial that asks; 0 only looks.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: the job has no such batch size.
        """
        async with self._store.transaction(key.job_id) as tx:
            job = job_of(tx, key.job_id)
            arm = _arm(job, key.batch_size)
            asking = (await trial_of(tx, key))[1] if key.trial_number else None
            profiling = await self._profiling(tx, arm)
            limit = arm.power.power_limit_watts if arm.power else None
            if limit is None and profiling is None and asking is not None:
                if not asking.running:
                    # Lost, or over: it is to ask again once it is heard of.
                    return KnownLimit(None, profiled_by_another=True)
                search = with_arm(job.search, arm.batch_size, lambda arm: replace(arm, profiling=asking.number))
                tx.save_job(replace(job, search=search))
                return KnownLimit(None, profiled_by_another=False)
            by_another = profiling is not None and (asking is None or profiling.number != asking.number)
            return KnownLimit(limit, by_another)

    async def report(self, key: TrialKey, samples: Sequence[PowerSample]) -> float:
        """Takes a profile; returns the cheapest limit that is known then, in watts.

        A trial that has ended may still report: what it measured is no less true.

        Raises:
            JobNotFoundError, TrialNotFoundError: there is no such trial.
            InvalidRequestError: the profile makes no sense; nothing was changed.
        """
        async with self._store.transaction(key.job_id) as tx:
            job, trial = await trial_of(tx, key)
            check_profile(job.spec, samples)
            arm = job.search.arm(trial.batch_size)
            best = cheapest(job.spec, samples if arm.power is None else (arm.power, *samples))
            profiling = None if arm.profiling == trial.number else arm.profiling
            if (best, profiling) != (arm.power, arm.profiling):
                known = replace(arm, power=best, profiling=profiling)
                job = replace(job, search=with_arm(job.search, trial.batch_size, lambda _: known))
                tx.save_job(job)
                tx.once_durable(self._observer.witness(PowerProfiled(trial, len(samples), best)))
            return best.power_limit_watts

    async def _profiling(self, tx: Transaction, arm: ArmState) -> Trial | None:
        """The trial that profiles this batch size, if it still runs."""
        trial = await tx.trial(arm.profiling) if arm.profiling is not None else None
        return trial if trial is not None and self._runs(trial) else None

    def _runs(self, trial: Trial) -> bool:
        expires = trial.lease_expire_time
        return trial.running and (expires is None or expires > self._clock())


def _arm(job: Job, batch_size: int) -> ArmState:
    sizes = job.spec.batch_sizes
    if batch_size not in sizes:
        listed = ", ".join(map(str, sizes))
        fault = f"{batch_size} is not a batch size of this job; use one of {listed}"
        raise InvalidRequestError(Violation("batch_size", fault))
    return job.search.arm(batch_size)
