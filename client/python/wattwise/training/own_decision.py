"""The decision of a trainer while the server is away."""

from __future__ import annotations

from wattwise import v1
from wattwise.spec import cost, reaches_target


def own_decision(spec: v1.JobSpec, result: v1.TrainingResult) -> v1.Decision:
    """Returns the trainer's own decision: training stops at the target or the last epoch.

    `converged` stays False: only the server knows the cost bound.

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
