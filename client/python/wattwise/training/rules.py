"""The server's rules that a trainer must know too: what training costs, and when it should stop."""

from __future__ import annotations

from wattwise import v1


def cost(spec: v1.JobSpec, time_seconds: float, energy_joules: float) -> float:
    """η·E + (1−η)·P·T, in joules (You, Chung, Chowdhury, NSDI 2023, equation 2).

    Args:
        spec: the job with all defaults filled in; its P is the max power of all GPUs together.
        time_seconds: T.
        energy_joules: E.
    """
    eta = spec.eta_knob
    return eta * energy_joules + (1 - eta) * spec.gpu.max_power_watts * time_seconds


def reaches_target(spec: v1.JobSpec, metric: float) -> bool:
    """Whether a metric reaches the job's target, regardless of cost; NaN does not."""
    if spec.higher_is_better_metric:
        return metric >= spec.target_metric
    return metric <= spec.target_metric


def decision_without_server(spec: v1.JobSpec, result: v1.TrainingResult) -> v1.Decision | None:
    """Stops training at the target or the last epoch while the server is away.

    The cost bound is known to the server only, so `converged` stays False.

    Args:
        spec: the job with all defaults filled in.
        result: the newest measurement.

    Returns:
        The decision to stop; None while training continues.
    """
    # Infinite metrics were replaced by NaN before.
    reached = reaches_target(spec, result.metric)
    if not reached and result.current_epoch < spec.max_epochs:
        return None
    return v1.Decision(
        stop_train=True,
        target_reached=reached,
        message=f"{'target reached' if reached else 'max epochs reached'} while the server is away: "
        f"metric {result.metric:.6g}, target {spec.target_metric:.6g} in epoch {result.current_epoch} of "
        f"{spec.max_epochs}; the result is delivered if the server is back before this process ends",
        cost=cost(spec, result.time_seconds, result.energy_joules),
    )
