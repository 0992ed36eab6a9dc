"""Jobs of the knowledge-gradient policy without a server, and what tests ask of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from wattwise.rules import EndReason, ResolvedJob
from wattwise_server.domain import Measurement, Search, Trial
from wattwise_server.policy.base import ArmBelief, Choice
from wattwise_server.policy.registry import POLICIES

from tests.server.policy.simulated import NOW, SimulatedJob, spec

POLICY = POLICIES["knowledge_gradient"]
SIZES = (8, 16, 32, 64, 128)
ERROR, OUT_OF_MEMORY = EndReason.ERROR, EndReason.OUT_OF_MEMORY


def kg_spec(**fields: Any) -> ResolvedJob:
    """A job of five batch sizes with default 32."""
    usual: dict[str, Any] = {"batch_sizes": SIZES, "default_batch_size": 32, "target_metric": 0.9}
    return spec(**(usual | {"policy": "knowledge_gradient"} | fields))


def kg_job(**fields: Any) -> SimulatedJob:
    """A job without trials."""
    return SimulatedJob(kg_spec(**fields))


def course(batch_size: int) -> tuple[int, float]:
    """Epochs to the target and the cost of an epoch: 32 costs the least, 1.8 kJ; 8 takes 16 epochs, 128 takes 26."""
    return round(5 + 5 * batch_size / 32 + 80 / batch_size), 100 * (1 + 16 / batch_size)


def run_all(job: SimulatedJob, launches: int) -> list[Trial]:
    """This many launches, one after another, that all run their course."""
    return [job.run(trial, *course(trial.batch_size)) for trial in (job.next() for _ in range(launches))]


def sizes(trials: list[Trial]) -> list[int]:
    """Their batch sizes."""
    return [trial.batch_size for trial in trials]


def show(job: SimulatedJob, batch_size: int, epochs: int, *, reached: bool = True) -> None:
    """Adds a trial of so many epochs of 100 J, whatever the bound."""
    last = Measurement(epochs, 2.0 * epochs, 100.0 * epochs, 1.0 if reached else 0.0, NOW)
    trial = job.dispatch(batch_size)._replace(last=last, target_reached=reached)
    reason = EndReason.TARGET_REACHED if reached else EndReason.MAX_EPOCHS
    job.decide(trial, 100.0 * epochs, reason, converged=reached)


def next_size(job: SimulatedJob) -> int:
    """The batch size that the next trial would have."""
    choice = job.choose()
    assert isinstance(choice, Choice)
    return choice.batch_size


def belief_of(job: SimulatedJob, batch_size: int) -> ArmBelief:
    """The belief about one batch size."""
    return next(belief for belief in job.policy.belief(job.spec, job.search) if belief.batch_size == batch_size)


def bound(job: SimulatedJob, batch_size: int) -> float | None:
    """The bound of one batch size."""
    return job.policy.bound(job.spec, job.search, batch_size)


def least_expected(job: SimulatedJob) -> float:
    """The least expected cost of a trial that reaches the target, over the batch sizes that have reached it."""
    reached = [arm.batch_size for arm in job.search.arms if arm.num_converged]
    return min(-belief_of(job, size).mean for size in reached)


def state_of(job: SimulatedJob) -> Any:
    """What the policy keeps."""
    return json.loads(job.search.notes)


def beliefs(job: SimulatedJob) -> Sequence[ArmBelief]:
    """The belief about every batch size."""
    return POLICY.belief(job.spec, job.search)


def lasts(job: SimulatedJob, launches: int, epochs: int | None, epoch_cost: float, *steps: int) -> list[Trial]:
    """This many launches, all with the same course."""
    return [job.run(job.next(), epochs, epoch_cost, steps or None) for _ in range(launches)]


def check_belief(job: SimulatedJob) -> None:
    """Every number of the belief is finite, and costs are positive; a bound is None or above 0."""
    for belief in job.policy.belief(job.spec, job.search):
        numbers = [belief.mean, belief.precision, belief.reward_precision, float(belief.observations)]
        numbers += [each for each in (belief.expected_cost, belief.deviation, belief.failure_rate) if each is not None]
        assert all(map(math.isfinite, numbers)), belief
        assert belief.expected_cost is None or belief.expected_cost > 0
        assert belief.failure_rate is None or 0 <= belief.failure_rate < 1
        limit = bound(job, belief.batch_size)
        assert limit is None or 0 < limit < math.inf


def exploring_job() -> SimulatedJob:
    """A job whose only trial had 32; another batch size is worth the next one."""
    job = kg_job()
    run_all(job, 1)
    assert next_size(job) != 32
    return job


def miss(job: SimulatedJob, trial: Trial) -> None:
    """Ends a trial at its bound."""
    assert job.run(trial, None, course(trial.batch_size)[1]).end_reason is EndReason.COST_BOUND


def crash(job: SimulatedJob, trial: Trial) -> None:
    """Ends a trial with a crash that costs as much as an epoch."""
    job.fail(trial, ERROR, cost=course(trial.batch_size)[1])


def fresh(search: Search) -> Search:
    """The search as another process reads it from the database; the other text of its notes is in no cache."""
    return replace(search, notes=json.dumps(json.loads(search.notes)))


def bound_without_stops(job: SimulatedJob, batch_size: int) -> float | None:
    """The same if no trial had been stopped since one converged."""
    return job.policy.bound(job.spec, replace(job.search, bound_stops=0), batch_size)


World: TypeAlias = Callable[[int], tuple[int | None, float]]
"""Epochs to the target of a trial of a batch size, or None if it never gets there, and the cost of an epoch."""


def launch(job: SimulatedJob, world: World) -> Trial:
    """One launch in a world."""
    trial = job.next()
    return job.run(trial, *world(trial.batch_size))


def launches(job: SimulatedJob, world: World, count: int) -> list[int]:
    """The batch sizes of this many launches in a world, one after another."""
    return [launch(job, world).batch_size for _ in range(count)]


def choice_of(job: SimulatedJob) -> Choice:
    """The next choice; there is one."""
    choice = job.choose()
    assert isinstance(choice, Choice)
    return choice
