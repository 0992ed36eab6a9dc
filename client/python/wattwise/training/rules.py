"""The server's rules that a trainer must know too: what training costs, and when it should stop."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from wattwise import v1
from wattwise.spec import DEFAULT_POLICY, max_power_watts, policy_name

_DEFAULTS = v1.JobSpec(
    eta_knob=0.5,
    early_stopping=v1.EarlyStopping(cost_bound=v1.EarlyStopping.CostBound(beta_knob=2.0)),
    max_epochs=100,
    trial_lease_seconds=300.0,
)
POLICY_DEFAULTS: Mapping[str, Message] = {
    "knowledge_gradient": v1.KnowledgeGradientSpec(window_size=0),
    "pruning_gts": v1.PruningGtsSpec(
        num_pruning_rounds=2, window_size=0, prior_mean=0.0, prior_precision=0.0, num_explorations=2
    ),
    "gts": v1.GtsSpec(
        window_size=0,
        prior_mean=0.0,
        prior_precision=0.0,
        num_explorations=2,
        learn_reward_precision=True,
        reward_precision=0.0,
    ),
}


def resolved(spec: v1.JobSpec) -> v1.JobSpec:
    """The job with all defaults filled in, as the server does for a new job."""
    policy = policy_name(spec) or DEFAULT_POLICY
    full = v1.JobSpec()
    full.CopyFrom(_DEFAULTS)
    getattr(full.policy, policy).CopyFrom(POLICY_DEFAULTS[policy])
    full.MergeFrom(spec)
    sizes = sorted(set(full.batch_sizes))
    del full.batch_sizes[:]
    full.batch_sizes.extend(sizes)
    return full


def cost(spec: v1.JobSpec, time_seconds: float, energy_joules: float) -> float:
    """η·E + (1−η)·P·T, in joules (You, Chung, Chowdhury, NSDI 2023, equation 2).

    Args:
        spec: the job with all defaults filled in; its P is the max power of all GPUs together.
        time_seconds: T.
        energy_joules: E.
    """
    eta = spec.eta_knob
    return eta * energy_joules + (1 - eta) * max_power_watts(spec) * time_seconds


def higher_is_better(spec: v1.JobSpec) -> bool:
    """Whether a higher metric is better."""
    return spec.target.direction != v1.DIRECTION_LOWER_IS_BETTER


def reaches_target(spec: v1.JobSpec, metric: float) -> bool:
    """Whether a metric reaches the job's target, regardless of cost; NaN does not."""
    return metric >= spec.target.value if higher_is_better(spec) else metric <= spec.target.value


def own_decision(spec: v1.JobSpec, result: v1.TrainingResult) -> v1.Decision:
    """The decision while there is no answer of the server: training stops at the target or the last epoch.

    The cost bound is known to the server only, so `converged` stays False.

    Args:
        spec: the job with all defaults filled in.
        result: the newest measurement.
    """
    measured = result.measurement
    used = measured.computed if measured.HasField("computed") else measured
    # Infinite metrics were replaced by NaN before.
    reached = reaches_target(spec, measured.metric)
    over = reached or measured.epoch >= spec.max_epochs
    reason = v1.END_REASON_UNSPECIFIED
    if over:
        reason = v1.END_REASON_TARGET_REACHED if reached else v1.END_REASON_MAX_EPOCHS
    what = "target reached" if reached else "max epochs reached" if over else "continue"
    return v1.Decision(
        stop_train=over,
        target_reached=reached,
        end_reason=reason,
        message=f"{what} without the server: metric {measured.metric:.6g}, target {spec.target.value:.6g} in epoch "
        f"{measured.epoch} of {spec.max_epochs}; the server gets the result later",
        last_epoch=measured.epoch,
        cost=cost(spec, used.time_seconds, used.energy_joules),
    )
