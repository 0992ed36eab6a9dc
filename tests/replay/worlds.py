"""Workloads small enough for mental arithmetic."""

from __future__ import annotations

from wattwise import JobSpec
from wattwise.drafts import Policy
from wattwise_replay.workload import BatchSize, PowerPoint, RecordedRun, Workload, job_spec
from wattwise_replay.world import World

# At its lower limit an epoch takes 2 s and 100 J, at its highest 1 s and 150 J.
POINTS = (PowerPoint(50.0, 2.0, 50.0), PowerPoint(200.0, 1.0, 150.0))


def workload(*target_epochs: int | None, max_epochs: int = 10, points: tuple[PowerPoint, ...] = POINTS) -> Workload:
    """One batch size (8, 16, 32…) for each number of epochs, with one recorded run each; the default is the first."""
    sizes = tuple(BatchSize(8 << place, (RecordedRun(epoch),), points) for place, epoch in enumerate(target_epochs))
    return Workload("small", "made", sizes, 8, 0.9, True, max_epochs, 200.0)


def world(*target_epochs: int | None, eta: float = 1.0, drift_at: int | None = None) -> World:
    """The same over recurrences; with eta 1 an epoch costs 100 J, at the highest limit 150 J."""
    made = workload(*target_epochs)
    return World(made if drift_at is None else made.drifting(drift_at), eta)


def job(
    made: Workload, policy: Policy = "pruning_gts", *, eta: float = 0.5, beta: float = 2.0, seed: int = 1
) -> JobSpec:
    """The job of a workload."""
    return job_spec(made, f"replay-{made.name}-{policy}-{seed}", policy=policy, eta=eta, beta=beta, seed=seed, window=0)
