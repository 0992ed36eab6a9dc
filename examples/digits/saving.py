"""What the recurrences of the search cost, and the runs of the default batch size, from the trials' reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wattwise.presentation.quantities import estimate_mark

from examples.digits.recurrence import DemoLaunch

SETTLED = 10
"""The number of last recurrences, when the search should have settled."""


@dataclass(frozen=True)
class Usage:
    """Sums over recurrences: energy and cost in joules, time in seconds.

    Attributes:
        costs: the cost of each recurrence.
        mark: precedes energies and costs that are estimates.
    """

    costs: tuple[float, ...]
    energy: float
    time: float
    mark: str

    @property
    def recurrences(self) -> int:
        """The number of recurrences."""
        return len(self.costs)

    @property
    def cost(self) -> float:
        """The total cost."""
        return sum(self.costs)


def usage_of(launches: Sequence[DemoLaunch], first: int = 1) -> Usage:
    """Returns the usage of the recurrences from `first` on, including failed trials."""
    counted = [launch for launch in launches if launch.recurrence >= first]
    costs: dict[int, float] = {}
    for launch in counted:
        costs[launch.recurrence] = costs.get(launch.recurrence, 0.0) + launch.trial.cost
    return Usage(
        costs=tuple(costs.values()),
        energy=sum(launch.trial.newest.energy_joules for launch in counted),
        time=sum(launch.trial.newest.time_seconds for launch in counted),
        mark=estimate_mark(*(launch.trial.monitor for launch in counted)),
    )


def report(launches: Sequence[DemoLaunch], baseline: Sequence[DemoLaunch], monitor: str) -> Iterator[str]:
    """Yields the closing lines: the cost of a run of the default batch size, and of a recurrence, of all and the last.

    They have no percentage: a few runs, which vary, do not show what the search saves. The server's claim says that.
    """
    default = usage_of(baseline)
    size, runs = baseline[0].trial.batch_size, default.recurrences
    lowest, highest = min(default.costs), max(default.costs)
    yield f"The default batch size {size} had {runs} {'run' if runs == 1 else 'runs'}:"
    yield f"  {_per_recurrence(default)}; a run cost {default.mark}{lowest:.1f} to {default.mark}{highest:.1f} J"
    total = usage_of(launches)
    yield f"Wattwise, all {total.recurrences} recurrences:"
    yield f"  {_per_recurrence(total)}; {total.mark}{total.cost:.0f} J in total"
    if total.recurrences > SETTLED:
        settled = usage_of(launches, total.recurrences - SETTLED + 1)
        yield f"Wattwise, the last {SETTLED} recurrences:"
        yield f"  {_per_recurrence(settled)}"
    yield f"Energy: {monitor}."


def _per_recurrence(usage: Usage) -> str:
    n, mark = usage.recurrences, usage.mark
    costs = f"cost {mark}{usage.cost / n:.1f} J, energy {mark}{usage.energy / n:.1f} J"
    return f"{costs}, time {usage.time / n:.2f} s per recurrence"
