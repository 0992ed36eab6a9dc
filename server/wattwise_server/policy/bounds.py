"""The bound of a trial's cost. Symbol: β early-stopping factor."""

from wattwise.rules import ResolvedJob

from wattwise_server.domain import Search

UNBOUNDED_PENALTY_FACTOR = 2.0
"""Replaces β in `missed_floor` where early stopping is off."""

_MOST_DOUBLINGS = 64
"""Keeps the bound finite; no real cost is 2^64 times the cheapest."""


def cost_bound(spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
    """Returns the cost `β·min_cost` at which a trial is stopped (NSDI 2023, section 4.4); None while there is none.

    `min_cost` is that of the batch sizes that may be chosen. A job always delivers: after two trials in a row that were
    stopped at the bound it doubles with each further one, and the best known batch size has none.
    """
    if spec.beta_knob is None or not search.min_cost or batch_size == search.min_cost_batch_size:
        return None
    return spec.beta_knob * search.min_cost * relaxation(search.bound_stops)


def relaxation(bound_stops: int) -> float:
    """Returns the factor of a bound: it doubles with each trial that it stops, after two in a row."""
    return 2.0 ** min(max(0, bound_stops - 1), _MOST_DOUBLINGS)


def missed_floor(spec: ResolvedJob, min_cost: float | None) -> float:
    """Returns the least cost in joules that a trial without convergence counts as, so that it never looks cheap.

    Args:
        spec: The job.
        min_cost: That of its search.
    """
    if min_cost is None:
        return 0.0
    factor = UNBOUNDED_PENALTY_FACTOR if spec.beta_knob is None else spec.beta_knob
    return factor * min_cost
