"""The stopping rule: β times the least expected cost; for the best batch size, where starting again costs less."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wattwise_server.policy.knowledge_gradient.unusual import later
from wattwise_server.policy.knowledge_gradient.values import Outlook

_STOPS = 60
"""Candidates for the epoch after which a trial is stopped."""

_LATEST_STOP = 50.0
"""The last of them, as a multiple of the first."""


def bounds(outlook: Outlook) -> Mapping[int, float | None]:
    """Returns the cost at which trials of each batch size are stopped, in joules, unrelaxed; None: no bound."""
    sizes = outlook.spec.batch_sizes
    if math.isinf(outlook.limit):
        return dict.fromkeys(sizes)
    usual: dict[int, float | None] = dict.fromkeys(sizes, outlook.limit)
    return usual | {sizes[outlook.best]: _restart(outlook)}


def _restart(outlook: Outlook) -> float | None:
    """Returns the cost at which a trial of the best batch size is stopped, because starting again is cheaper.

    With S(n) the probability that a trial has not reached the target after n epochs, c the cost of an epoch and m the
    expected cost of a new trial, stopping at N costs f(N) = c·ΣS(n) + S(N)·m, summed over n < N. The N with the least f
    is taken. None if f only falls.
    """
    belief, best, constants = outlook.belief, outlook.best, outlook.constants
    epoch_cost, again = math.exp(belief.cost[best]), float(belief.expected[best])
    first = float(math.ceil(constants.patience * again / epoch_cost))
    last = min(max(first, outlook.spec.max_epochs), _LATEST_STOP * first)
    epochs = np.unique(np.geomspace(first, last, _STOPS).round())
    variance = constants.heavy**2 * (belief.epochs_cov[best, best] + belief.noise[best])
    late = np.log(epochs + 0.5) - belief.epochs[best]
    alive = later(late, np.full(len(late), variance), belief.rates, constants)
    spent = epoch_cost * np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(epochs))])
    stop = epochs[np.argmin(spent + alive * again)]
    return float((stop + 0.5) * epoch_cost) if stop < last else None
