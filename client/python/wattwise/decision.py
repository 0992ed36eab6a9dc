"""The decision on a trial, as a trainer reads it."""

from __future__ import annotations

from dataclasses import dataclass

from wattwise import v1
from wattwise.rules import EndReason


@dataclass(frozen=True)
class Decision:
    """What the server decided after a report, or the trainer while the server was away or when it ended the trial.

    Attributes:
        stop_train: whether the trial is over and training must stop.
        message: one sentence with the numbers of the decision; if the target was missed, also with what to do next.
        target_reached: whether the metric reached the target at any cost: the model is good.
        converged: whether the metric reached the target within the cost bound. False in this trainer's own decision,
            because only the server knows the bound.
        end_reason: why the trial ended; None if it runs, or ended for a reason that only a newer client knows.
        last_epoch: the newest epoch that the server has of the trial; 0 if there is none.
        cost: the cost of the newest report, in joules; None before the first.
        cost_bound: the cost at which the trial is stopped, in joules; None without a bound.
        warnings: what looks wrong about the trial, one sentence each.
    """

    stop_train: bool
    message: str
    target_reached: bool = False
    converged: bool = False
    end_reason: EndReason | None = None
    last_epoch: int = 0
    cost: float | None = None
    cost_bound: float | None = None
    warnings: tuple[str, ...] = ()


def decision_of(message: v1.Decision) -> Decision:
    """Returns the decision of a message."""
    reason = message.end_reason
    name = v1.EndReason.Name(reason) if reason in v1.EndReason.values() else ""
    return Decision(
        stop_train=message.stop_train,
        message=message.message,
        target_reached=message.target_reached,
        converged=message.converged,
        end_reason=EndReason.__members__.get(name.removeprefix("END_REASON_")),
        last_epoch=message.last_epoch,
        cost=message.cost if message.HasField("cost") else None,
        cost_bound=message.cost_bound if message.HasField("cost_bound") else None,
        warnings=tuple(warning.message for warning in message.warnings),
    )
