"""One training workload on one GPU: its recorded runs, the time and energy of an epoch, and its job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wattwise import GpuGroup, JobSpec, rules
from wattwise.drafts import POLICIES, Policy
from wattwise.rules import EndReason

from wattwise_replay.errors import ReplayError


class Crash(NamedTuple):
    """The end of a run whose trainer fails.

    Attributes:
        epochs: Whole epochs that it trains and reports before.
        reason: ERROR, or OUT_OF_MEMORY.
    """

    epochs: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One recorded training run.

    Attributes:
        target_epoch: The epoch after which the metric first reached the target, from 1; None if it never did.
        crash: How its trainer fails; None if it does not.
    """

    target_epoch: int | None
    crash: Crash | None = None


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """Time and power of an epoch at one power limit.

    Attributes:
        limit_watts_per_gpu: The limit of the GPU.
        epoch_seconds: Time of an epoch.
        average_watts: Average power during an epoch.
    """

    limit_watts_per_gpu: float
    epoch_seconds: float
    average_watts: float

    @property
    def epoch_joules(self) -> float:
        """Energy of an epoch."""
        return self.average_watts * self.epoch_seconds


@dataclass(frozen=True, slots=True)
class BatchSize:
    """One batch size: its recorded runs, and an epoch at each power limit, by ascending limit."""

    size: int
    runs: tuple[RecordedRun, ...]
    points: tuple[PowerPoint, ...]


class Change(NamedTuple):
    """A change of a workload.

    Attributes:
        at: The recurrence, from 0, from which on it is another one.
        workload: The other one, with the same batch sizes; its job stays the same.
    """

    at: int
    workload: Workload


@dataclass(frozen=True, slots=True)
class Workload:
    """A recurring training job as measured.

    Attributes:
        name: Its name, such as "cifar100".
        gpu: The GPU that it was measured on, such as "v100".
        batch_sizes: Ascending.
        default_batch_size: The batch size before anything was learned.
        target_metric: The metric to reach.
        higher_is_better: Whether a higher metric is better.
        max_epochs: Epochs after which a trial is over.
        max_power_watts: The GPU's highest power limit.
        usual_recurrences: Recurrences of a replay; None for the paper's horizon.
        changes: What it becomes later, by ascending recurrence.
        unmeasured_default: The usual default batch size, if it has no measurements and another one replaces it.
        has_estimates: Whether some of its energies were not measured.
    """

    name: str
    gpu: str
    batch_sizes: tuple[BatchSize, ...]
    default_batch_size: int
    target_metric: float
    higher_is_better: bool
    max_epochs: int
    max_power_watts: float
    usual_recurrences: int | None = None
    changes: tuple[Change, ...] = ()
    unmeasured_default: int | None = None
    has_estimates: bool = False

    @property
    def setting(self) -> str:
        """Name and GPU."""
        return f"{self.name}/{self.gpu}"

    @property
    def sizes(self) -> Sequence[int]:
        """The batch sizes, ascending."""
        return [each.size for each in self.batch_sizes]

    @property
    def horizon(self) -> int:
        """Recurrences of a replay, usually 2 · |batch sizes| · |power limits| (NSDI 2023, section 6.2)."""
        if self.usual_recurrences is not None:
            return self.usual_recurrences
        return 2 * len(self.batch_sizes) * max(len(each.points) for each in self.batch_sizes)

    def of(self, size: int) -> BatchSize:
        """One batch size."""
        return next(each for each in self.batch_sizes if each.size == size)

    def at(self, recurrence: int) -> Workload:
        """Returns the workload of a recurrence, from 0."""
        return next((change.workload for change in reversed(self.changes) if change.at <= recurrence), self)

    def stages(self, recurrences: int) -> Iterator[tuple[slice, Workload]]:
        """Yields the recurrences between two changes, and what it is there."""
        starts = [0, *(change.at for change in self.changes if change.at < recurrences)]
        for start, end in zip(starts, (*starts[1:], recurrences), strict=True):
            yield slice(start, end), self.at(start)

    def drifting(self, at: int) -> Workload:
        """Returns the same, with the measurements in reverse order over the batch sizes from a recurrence on."""
        return replace(self, changes=(Change(at, self.mirrored()),))

    def mirrored(self) -> Workload:
        """Returns the same batch sizes with the measurements in reverse order, so that cheap sizes become expensive."""
        others = reversed(self.batch_sizes)
        swapped = (replace(other, size=each.size) for each, other in zip(self.batch_sizes, others, strict=True))
        return replace(self, batch_sizes=tuple(swapped), changes=())


def validated(workload: Workload) -> Workload:
    """Returns the workload, if it can be replayed.

    Raises:
        ReplayError: it has no batch size, or lacks its default.
    """
    if not workload.batch_sizes:
        raise ReplayError(
            f"no batch size of {workload.setting} has both recorded runs and measured power; check its files and filter"
        )
    if workload.default_batch_size not in workload.sizes:
        known = ", ".join(map(str, workload.sizes))
        raise ReplayError(
            f"{workload.setting} has no measurements of its default batch size {workload.default_batch_size}; "
            f"there are {known}"
        )
    return workload


def job_spec(
    workload: Workload, job_id: str, *, policy: Policy, eta: float, beta: float | None, seed: int, window: int
) -> JobSpec:
    """Returns the job of a replay.

    Args:
        workload: The workload.
        job_id: The job's id.
        policy: The policy that chooses.
        eta: Weight of energy against time, in [0, 1].
        beta: Early-stopping factor; None for no early stopping.
        seed: Seed of the policy's draws.
        window: Number of a batch size's newest costs to use; 0 for all.
    """
    return JobSpec(
        job_id=job_id,
        batch_sizes=workload.sizes,
        default_batch_size=workload.default_batch_size,
        eta_knob=eta,
        beta_knob="off" if beta is None else beta,
        target_metric=workload.target_metric,
        higher_is_better=workload.higher_is_better,
        max_epochs=workload.max_epochs,
        window_size=window,
        seed=seed if "seed" in POLICIES[policy] else None,
        policy=policy,
        gpu=GpuGroup(gpu_model=workload.gpu, count=1, max_power_watts_per_gpu=workload.max_power_watts),
    )


def cheapest(points: Sequence[PowerPoint], eta: float, max_power_watts: float) -> PowerPoint:
    """Returns the power limit at which an epoch costs least; the lower one of equals.

    The cost is `(η · average power + (1 − η) · P) · time`, with P the highest power limit (NSDI 2023, equation 7).
    """
    return min(points, key=lambda point: (epoch_cost(point, eta, max_power_watts), point.limit_watts_per_gpu))


def epoch_cost(point: PowerPoint, eta: float, max_power_watts: float) -> float:
    """Returns the cost of an epoch at a power limit, in joules."""
    return rules.cost(eta, max_power_watts, point.epoch_joules, point.epoch_seconds)
