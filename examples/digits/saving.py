"""What the search gave against always using the default batch size, from what the trials reported alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wattwise.commands.estimates import estimate_mark

from examples.digits.recurrence import Launch

SETTLED = 10
"""The newest recurrences, by which the search should have settled."""


@dataclass(frozen=True)
class Spent:
    """Sums over some recurrences: energy and cost in joules, time in seconds; and each recurrence's own cost.

    Attributes:
        unit: "J", and whether they are estimates.
    """

    costs: tuple[float, ...]
    energy: float
    time: float
    unit: str

    @property
    def recurrences(self) -> int:
        """How many there were."""
        return len(self.costs)

    @property
    def cost(self) -> float:
        """What all of them cost together."""
        return sum(self.costs)


def spent(launches: Sequence[Launch], first: int = 1) -> Spent:
    """What the recurrences from number `first` on took, all their trials counted, failed tries too."""
    counted = [launch for launch in launches if launch.recurrence >= first]
    costs: dict[int, float] = {}
    for launch in counted:
        costs[launch.recurrence] = costs.get(launch.recurrence, 0.0) + launch.trial.cost
    return Spent(
        costs=tuple(costs.values()),
        energy=sum(launch.trial.energy_joules for launch in counted),
        time=sum(launch.trial.time_seconds for launch in counted),
        unit=f"J{estimate_mark(*(launch.trial.monitor for launch in counted))}",
    )


def report(launches: Sequence[Launch], baseline: Sequence[Launch], monitor: str) -> Iterator[str]:
    """The closing lines: all recurrences, then the newest, each against as many of the default batch size."""
    default = spent(baseline)
    size, runs = baseline[0].trial.id.batch_size, default.recurrences
    cheapest, dearest = min(default.costs), max(default.costs)
    yield f"The default batch size {size} had {runs} {'run' if runs == 1 else 'runs'} of its own:"
    yield f"  {_per_recurrence(default)}; a run cost {cheapest:.1f} to {dearest:.1f} {default.unit}"
    everything = spent(launches)
    yield f"Wattwise, all {everything.recurrences} recurrences, the exploring ones too:"
    yield f"  {_per_recurrence(everything)}; {_against(everything, default)}"
    n = everything.recurrences
    usual = f"{n * default.cost / runs:.0f} {default.unit}"
    yield f"  {everything.cost:.0f} {everything.unit} in all, where {n} times the default's mean is {usual}"
    if everything.recurrences > SETTLED:
        settled = spent(launches, everything.recurrences - SETTLED + 1)
        yield f"Wattwise, the last {SETTLED} recurrences:"
        yield f"  {_per_recurrence(settled)}; {_against(settled, default)}"
    yield f"Energy by {monitor}."


def _per_recurrence(some: Spent) -> str:
    n, unit = some.recurrences, some.unit
    costs = f"cost {some.cost / n:.1f} {unit}, energy {some.energy / n:.1f} {unit}"
    return f"{costs}, time {some.time / n:.2f} s per recurrence"


def _against(some: Spent, default: Spent) -> str:
    share = 1 - (some.cost / some.recurrences) / (default.cost / default.recurrences)
    return f"{abs(share):.0%} {'less' if share >= 0 else 'MORE'} cost than with the default"
