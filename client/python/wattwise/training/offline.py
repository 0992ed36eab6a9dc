"""What a trainer can decide by itself while the server is away: the job says when training has nothing more to gain."""

from __future__ import annotations

from wattwise import v1
from wattwise.training.rules import cost, reaches_target


def decision_without_server(spec: v1.JobSpec, result: v1.TrainingResult) -> v1.Decision | None:
    """Stops a training that has reached its target or its last epoch, as the server will when it hears of it.

    Whether the trial converged within its cost bound is the server's to say: `converged` stays False.

    Args:
        spec: the job, with every default filled in.
        result: the newest measurement; a metric that is not finite has not reached the target.

    Returns:
        The decision to stop; None while training goes on.
    """
    # Infinities are NaN by the time they are sent.
    reached = reaches_target(spec, result.metric)
    if not reached and result.current_epoch < spec.max_epochs:
        return None
    return v1.Decision(
        stop_train=True,
        target_reached=reached,
        message=f"{'target reached' if reached else 'max epochs reached'} while the server is away: "
        f"metric {result.metric:.6g}, target {spec.target_metric:.6g} in epoch {result.current_epoch} of "
        f"{spec.max_epochs}; the server hears of it if it is back before this process ends",
        cost=cost(spec, result.time_seconds, result.energy_joules),
    )
