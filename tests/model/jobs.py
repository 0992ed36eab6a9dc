"""Random jobs and metrics."""

from __future__ import annotations

import math
import random
import uuid
from typing import Any

from wattwise import v1
from wattwise.drafts import POLICIES

from tests.jobs import policy_message

SIZES = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 2**31 - 1]


def random_spec(rng: random.Random, lease: float, *, seeded: bool = True) -> v1.JobSpec:
    """A job of any policy."""
    sizes = rng.sample(SIZES, rng.choice([1, 2, 3, 3, 4, 5, 7]))
    policy = rng.choice(["pruning_gts"] * 2 + ["gts"] + ["knowledge_gradient"] * 2)
    parameters: dict[str, Any] = {
        "num_pruning_rounds": rng.choice([0, 1, 2, 2, 3]),
        "window_size": rng.choice([0, 0, 0, 1, 2, 5]),
        "prior_mean": rng.choice([0.0, 0.0, -500.0]),
        "prior_precision": rng.choice([0.0, 0.0, 1e-6, 1.0]),
        "num_explorations": rng.choice([0, 1, 2, 3]),
    }
    if seeded:
        parameters["seed"] = rng.choice([0, 7, -3, 2**63 - 1])
    if rng.random() < 0.5:
        parameters |= {"learn_reward_precision": False, "reward_precision": rng.choice([1e-4, 0.5])}
    better = v1.DIRECTION_HIGHER_IS_BETTER if rng.random() < 0.7 else v1.DIRECTION_LOWER_IS_BETTER
    spec = v1.JobSpec(
        job_id=f"m-{uuid.UUID(int=rng.getrandbits(128)).hex[:12]}",
        job_id_prefix="m",
        batch_sizes=sizes,
        default_batch_size=rng.choice(sizes),
        eta_knob=rng.choice([0, 0.5, 0.5, 1, 0.3]),
        target=v1.Target(value=rng.choice([0.5, 0, -1.5]), direction=better),
        max_epochs=rng.choice([1, 3, 8, 100, 2**31 - 1]),
        trial_lease_seconds=lease,
        policy=policy_message(policy, **{name: parameters[name] for name in POLICIES[policy] if name in parameters}),
        gpus=[v1.GpuGroup(gpu_model="V100", count=1, max_power_watts_per_gpu=rng.choice([1.0, 300.0, 700.5]))],
    )
    if rng.random() < 0.25:
        spec.early_stopping.off.SetInParent()
    else:
        spec.early_stopping.cost_bound.beta_knob = rng.choice([2.0, 2.0, 1.0, 1.3, 5.0])
    return spec


def good_metric(spec: v1.JobSpec, rng: random.Random) -> float:
    """A metric that reaches the target."""
    return spec.target.value + _better(spec) * rng.choice([0, 0.25])


def bad_metric(spec: v1.JobSpec, rng: random.Random) -> float:
    """A metric that misses the target; sometimes NaN."""
    if rng.random() < 0.1:
        return math.nan
    return spec.target.value - _better(spec) * (rng.random() + 0.01)


def _better(spec: v1.JobSpec) -> int:
    return 1 if spec.target.direction == v1.DIRECTION_HIGHER_IS_BETTER else -1
