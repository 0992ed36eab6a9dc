"""The belief about the epochs to the target and the cost of an epoch, over all batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattwise_server.policy.knowledge_gradient.edges import Edges, edges
from wattwise_server.policy.knowledge_gradient.evidence import Evidence, num_reached
from wattwise_server.policy.knowledge_gradient.expectation_propagation import Misses, infer, no_misses
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Fit, Floats
from wattwise_server.policy.knowledge_gradient.model import Model
from wattwise_server.policy.knowledge_gradient.unusual import Rates

LEAST_TRUST = 0.05
"""Probability that the prior jobs tell the epochs of this one, below which they are taken to be wrong."""

_EXACT = 1e-6
"""Variance of an assumed observation."""


@dataclass(frozen=True)
class Belief:
    """The belief about ln E and ln c at n batch sizes.

    Attributes:
        epochs, epochs_cov: Mean (n,) and covariance (n, n) of ln E without the noise.
        cost, cost_cov: The same of ln c.
        rates: s² by batch size, u and w.
        freedom: Degrees of freedom of s² (n,).
        cost_noise: Variance of ln c between trials.
        cost_freedom: Its degrees of freedom.
        edges: Which batch sizes always miss the target.
        misses: What the misses say.
        unlucky: Expected number of misses that were unusual trials (n,).
        misfit: Expected variance of the deviation from the law, relative to that before any trial.
        prior_trust: Probability that the prior jobs tell the epochs of this one; 1 without prior jobs.
    """

    epochs: Floats
    epochs_cov: Floats
    cost: Floats
    cost_cov: Floats
    rates: Rates
    freedom: Floats
    cost_noise: float
    cost_freedom: float
    edges: Edges
    misses: Misses
    unlucky: Floats
    misfit: float
    prior_trust: float

    @property
    def noise(self) -> Floats:
        """s², by batch size (n,)."""
        return self.rates.noise

    @cached_property
    def mean(self) -> Floats:
        """Mean of ln C without the noise."""
        return self.epochs + self.cost

    @cached_property
    def variance(self) -> Floats:
        """Variance of that belief."""
        return np.maximum(self.epochs_cov.diagonal() + self.cost_cov.diagonal(), 1e-12)

    @cached_property
    def expected(self) -> Floats:
        """Expected cost of a usual trial that reaches the target, without a limit, in joules."""
        return np.asarray(np.exp(self.mean + 0.5 * (self.variance + self.noise)))

    def once_ended(self, running: NDArray[np.int64], known: Sequence[Evidence]) -> Belief:
        """Returns the belief with the covariances once the running trials have ended, whatever their results."""
        epochs_cov, cost_cov = self.epochs_cov, self.cost_cov
        for place in np.flatnonzero(running).tolist():
            epochs_cov = _conditioned(epochs_cov, place, self.noise[place] / running[place])
            if not known[place].epoch_cost.count:
                cost_cov = _conditioned(cost_cov, place, self.cost_noise / running[place])
        return replace(self, epochs_cov=epochs_cov, cost_cov=cost_cov)


def _conditioned(cov: Floats, place: int, noise: float) -> Floats:
    return np.asarray(cov - np.outer(cov[place], cov[place]) / (cov[place, place] + noise))


def belief(model: Model, evidence: Sequence[Evidence], prior: Sequence[Evidence]) -> Belief:
    """Returns the belief after at least one trial has reached the target.

    Args:
        model: The model.
        evidence: What the trials have shown, by batch size.
        prior: What those of the prior jobs have shown; empty if there are none.
    """
    constants = model.constants
    places = [place for place, each in enumerate(evidence) if each.epoch_cost.count]
    costs = [evidence[place].epoch_cost for place in places]
    squares = sum(each.deviation for each in costs)
    freedom = sum(each.count - 1 for each in costs)
    weight = constants.noise_weight
    noise = (weight * constants.cost_noise**2 + squares) / (weight + freedom)
    variances = [noise / evidence[place].epoch_cost.count + evidence[place].cost_doubt for place in places]
    cost = model.epoch_cost.posterior(places, [each.mean for each in costs], variances)
    return _belief(model, _epochs(model, evidence, prior), cost, noise, weight + freedom, num_reached(evidence))


def assumed_belief(model: Model, prior: Sequence[Evidence], place: int, max_epochs: int) -> Belief:
    """Returns the belief before any trial of the job has ended, if one batch size is assumed to reach the target.

    Its epochs are the usual ones, at most half of `max_epochs`, or those of the prior jobs. An epoch costs 1: costs
    are relative to it.
    """
    constants, count = model.constants, len(model.octaves)
    if any(each.num_reached for each in prior):
        epochs = _from_one_source(model, prior)
    else:
        usual = max(1.0, min(constants.usual_epochs, max_epochs / 2))
        noise = constants.epochs_noise**2 + constants.whole_epochs / usual**2
        rates = Rates(np.full(count, noise), constants.unusual, constants.reaches)
        fit = model.epochs.posterior([place], [math.log(usual)], [_EXACT])
        epochs = _Epochs(fit, rates, no_misses(count), np.zeros(count), 1.0)
    cost = model.epoch_cost.posterior([place], [0.0], [_EXACT])
    reached = np.zeros(count)
    reached[place] = 1.0
    return _belief(model, epochs, cost, constants.cost_noise**2, constants.noise_weight, reached)


class _Epochs(NamedTuple):
    """The belief about the epochs, as in `Belief`; `prior_reached` is the `elsewhere` of `edges`."""

    fit: Fit
    rates: Rates
    misses: Misses
    unlucky: Floats
    prior_trust: float
    prior_reached: Floats | None = None


def _epochs(model: Model, evidence: Sequence[Evidence], prior: Sequence[Evidence]) -> _Epochs:
    """Returns the belief about the epochs: a mixture of two hypotheses, that the prior jobs tell them or do not."""
    if not any(each.num_reached or each.num_missed for each in prior):
        return _from_one_source(model, evidence)
    constants = model.constants
    alone, together = (
        infer(model.epochs, model.octaves, sources, constants, weigh=True)
        for sources in ([evidence], [prior, evidence])
    )
    before = infer(model.epochs, model.octaves, [prior], constants, weigh=True).log_likelihood
    trust = constants.prior_trust
    odds = math.log(trust / (1 - trust)) + together.log_likelihood - before - alone.log_likelihood
    share = 0.5 * (1 + math.tanh(0.5 * odds))
    apart = together.fit.mean - alone.fit.mean
    cov = share * together.fit.cov + (1 - share) * alone.fit.cov + share * (1 - share) * np.outer(apart, apart)
    misfit = share * together.fit.misfit + (1 - share) * alone.fit.misfit
    fit = Fit(alone.fit.mean + share * apart, cov, 0.0, misfit)
    # Priors that are taken to be wrong say nothing about how trials differ and which batch sizes always miss.
    likelier = together if share >= LEAST_TRUST else alone
    reached = num_reached(prior) if likelier is together else None
    return _Epochs(fit, likelier.rates, likelier.misses, alone.unlucky, share, reached)


def _from_one_source(model: Model, evidence: Sequence[Evidence]) -> _Epochs:
    fit, rates, misses, unlucky, _ = infer(model.epochs, model.octaves, [evidence], model.constants)
    return _Epochs(fit, rates, misses, unlucky, 1.0)


def _belief(  # noqa: PLR0917 - the parts of one value
    model: Model, epochs: _Epochs, cost: Fit, cost_noise: float, cost_freedom: float, reached: Floats
) -> Belief:
    constants = model.constants
    own = np.maximum(0.0, reached - 1)
    freedom = np.minimum(constants.noise_weight + own.sum(), constants.noise_weight + constants.pooling + own)
    return Belief(
        epochs.fit.mean,
        epochs.fit.cov,
        cost.mean,
        cost.cov,
        epochs.rates,
        freedom,
        cost_noise,
        cost_freedom,
        edges(model.octaves, reached, epochs.misses.logs, constants, elsewhere=epochs.prior_reached),
        epochs.misses,
        epochs.unlucky,
        epochs.fit.misfit,
        epochs.prior_trust,
    )
