"""The job of a workload."""

from __future__ import annotations

from wattwise import GpuConfig, JobSpec
from wattwise.spec import Policy

from wattwise_replay.workload import Workload


def job_spec(
    workload: Workload, job_id: str, *, policy: Policy, eta: float, beta: float, seed: int, window: int
) -> JobSpec:
    """The job of a replay.

    Args:
        workload: The workload.
        job_id: The job's id.
        policy: The policy that chooses.
        eta: Weight of energy against time, in [0, 1].
        beta: Early-stopping factor.
        seed: Seed of the policy's draws.
        window: Number of a batch size's newest costs to use; 0 for all.
    """
    return JobSpec(
        job_id_prefix="replay",
        job_id=job_id,
        batch_sizes=workload.sizes,
        default_batch_size=workload.default_batch_size,
        eta_knob=eta,
        beta_knob=beta,
        target_metric=workload.target_metric,
        higher_is_better_metric=workload.higher_is_better,
        max_epochs=workload.max_epochs,
        window_size=window,
        mab_seed=seed,
        policy=policy,
        gpu=GpuConfig(max_power_watts=workload.max_power_watts, number_of_gpus=1, gpu_model=workload.gpu),
    )
