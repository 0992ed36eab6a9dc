"""Random jobs and metrics."""

from __future__ import annotations

import math
import random
import uuid

from wattwise import v1

SIZES = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 2**31 - 1]


def random_spec(rng: random.Random, lease: float, *, seeded: bool = True) -> v1.JobSpec:
    """A job of any policy."""
    sizes = rng.sample(SIZES, rng.choice([1, 2, 3, 3, 4, 5, 7]))
    spec = v1.JobSpec(
        job_id=f"m-{uuid.UUID(int=rng.getrandbits(128)).hex[:12]}",
        job_id_prefix="m",
        batch_sizes=sizes,
        default_batch_size=rng.choice(sizes),
        eta_knob=rng.choice([0, 0.5, 0.5, 1, 0.3]),
        target_metric=rng.choice([0.5, 0, -1.5]),
        higher_is_better_metric=rng.random() < 0.7,
        max_epochs=rng.choice([1, 3, 8, 100, 2**31 - 1]),
        num_pruning_rounds=rng.choice([0, 1, 2, 2, 3]),
        window_size=rng.choice([0, 0, 0, 1, 2, 5]),
        mab_prior_mean=rng.choice([0, 0, -500.0]),
        mab_prior_precision=rng.choice([0, 0, 1e-6, 1.0]),
        mab_num_explorations=rng.choice([0, 1, 2, 3]),
        trial_lease_seconds=lease,
        policy=rng.choice([v1.POLICY_PRUNING_GTS] * 2 + [v1.POLICY_GTS] + [v1.POLICY_KNOWLEDGE_GRADIENT] * 2),
        gpu=v1.GpuConfig(max_power_watts=rng.choice([1.0, 300.0, 700.5]), number_of_gpus=1, gpu_model="V100"),
    )
    if seeded:
        spec.mab_seed = rng.choice([0, 7, -3, 2**63 - 1])
    if rng.random() < 0.25:
        spec.disable_early_stopping = True
    else:
        spec.beta_knob = rng.choice([2.0, 2.0, 1.0, 1.3, 5.0])
    if spec.policy == v1.POLICY_GTS and rng.random() < 0.5:
        spec.learn_reward_precision, spec.reward_precision = False, rng.choice([1e-4, 0.5])
    return spec


def good_metric(spec: v1.JobSpec, rng: random.Random) -> float:
    """A metric that reaches the target."""
    return spec.target_metric + (1 if spec.higher_is_better_metric else -1) * rng.choice([0, 0.25])


def bad_metric(spec: v1.JobSpec, rng: random.Random) -> float:
    """A metric that misses the target; sometimes NaN."""
    if rng.random() < 0.1:
        return math.nan
    return spec.target_metric + (-1 if spec.higher_is_better_metric else 1) * (rng.random() + 0.01)
