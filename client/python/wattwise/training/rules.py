"""Rules of the server's that a trainer must know too: what a training costs, and when its model is good enough."""

from __future__ import annotations

from wattwise import v1


def cost(spec: v1.JobSpec, time_seconds: float, energy_joules: float) -> float:
    """η·E + (1−η)·P·T, in joules (You, Chung, Chowdhury, NSDI 2023, equation 2).

    Args:
        spec: the job, with every default filled in; its P is the max power of all GPUs together.
        time_seconds: T.
        energy_joules: E.
    """
    eta = spec.eta_knob
    return eta * energy_joules + (1 - eta) * spec.gpu.max_power_watts * time_seconds


def reaches_target(spec: v1.JobSpec, metric: float) -> bool:
    """Whether a model with this metric is good enough, at whatever cost; with NaN it is not.

    Args:
        spec: the job, with every default filled in.
        metric: the validation metric.
    """
    if spec.higher_is_better_metric:
        return metric >= spec.target_metric
    return metric <= spec.target_metric
