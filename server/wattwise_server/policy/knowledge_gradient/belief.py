"""The belief about the epochs to the target and the cost of an epoch, over all batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattwise_server.policy.knowledge_gradient.constants import Constants, Deviation
from wattwise_server.policy.knowledge_gradient.edges import Edges, edges
from wattwise_server.policy.knowledge_gradient.evidence import Evidence, Floats, Knowledge
from wattwise_server.policy.knowledge_gradient.mixture import Fit, Mixture, at
from wattwise_server.policy.knowledge_gradient.unusual import Misses, Rates, learned, no_misses

_VAGUE = 25.0
"""Variance of the constant of k: nothing is known about it."""

LEAST_TRUST = 0.05
"""Probability that the prior jobs tell the epochs of this one, below which they are taken to be wrong."""

_KNOWN = 1e-6
"""Variance of an observation that is assumed."""


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
        """The covariances that will be left once the running trials have ended, whatever their results."""
        epochs_cov, cost_cov = self.epochs_cov, self.cost_cov
        for place in np.flatnonzero(running).tolist():
            epochs_cov = _conditioned(epochs_cov, place, self.noise[place] / running[place])
            if not known[place].epoch_cost.count:
                cost_cov = _conditioned(cost_cov, place, self.cost_noise / running[place])
        return replace(self, epochs_cov=epochs_cov, cost_cov=cost_cov)


def _conditioned(cov: Floats, place: int, noise: float) -> Floats:
    return np.asarray(cov - np.outer(cov[place], cov[place]) / (cov[place, place] + noise))


class _Epochs(NamedTuple):
    """What is known about the epochs; see `Belief`."""

    fit: Fit
    rates: Rates
    misses: Misses
    unlucky: Floats
    prior_trust: float
    prior_reached: Floats | None = None


class Model:
    """What the belief of a job starts from: the laws and processes at its batch sizes.

    Args:
        sizes: The batch sizes, ascending.
        constants: The constants.
    """

    def __init__(self, sizes: tuple[int, ...], constants: Constants) -> None:
        self.constants = constants
        self.octaves: Floats = np.log2(sizes)
        x = self.octaves
        knots = np.arange(x[0] - 2, x[-1] + 2.01, 1.5)
        ratio = 2.0 ** (x[:, None] - knots)
        # Only where batches are small for the job.
        left = knots[knots < (x[0] + x[-1]) / 2][::2]
        risen = [np.log(1 + ratio + 2.0 ** (knot - x)[:, None]) for knot in left]
        flat, rise = np.full(len(knots), 1 / len(knots)), constants.rise
        distance = (x[:, None] - x) ** 2

        def mixture(
            curves: Floats,
            weights: Floats,
            processes: Sequence[Deviation],
            apart: float,
            *,
            variance: float,
            center: float | None = None,
        ) -> Mixture:
            smooth = [each.amplitude**2 * np.exp(-distance / (2 * each.octaves**2)) for each in processes]
            kernels = variance + np.array(smooth) + apart**2 * np.eye(len(x))
            amplitudes = np.array([each.amplitude for each in processes])
            return Mixture(constants.laws * curves, weights, kernels, amplitudes, center)

        self._epochs = mixture(
            np.hstack([np.log(1 + ratio), *risen]),
            np.concatenate([flat * (1 - rise)] + [flat * rise / len(left)] * len(left)),
            constants.epochs_deviations,
            constants.epochs_apart,
            variance=constants.usual_spread**2,
            center=math.log(constants.usual_epochs),
        )
        costs = np.log(1 + 1 / ratio)
        self._cost = mixture(costs, flat, [constants.cost_deviation], constants.cost_apart, variance=_VAGUE)

    def belief(self, knowledge: Knowledge) -> Belief:
        """The belief after at least one trial has reached the target."""
        constants = self.constants
        found = self._learned(knowledge)
        known = [place for place, each in enumerate(knowledge.evidence) if each.epoch_cost.count]
        evidence = [knowledge.evidence[place] for place in known]
        own = sum(each.epoch_cost.deviation for each in evidence)
        freedom = sum(each.epoch_cost.count - 1 for each in evidence)
        weight = constants.noise_weight
        cost_noise = (weight * constants.cost_noise**2 + own) / (weight + freedom)
        variances = [cost_noise / each.epoch_cost.count + each.cost_doubt for each in evidence]
        cost = self._cost.given(*at(known, [each.epoch_cost.mean for each in evidence], variances))
        return self._belief(found, cost, knowledge, cost_noise, weight + freedom)

    def assumed(self, knowledge: Knowledge, place: int, max_epochs: int) -> Belief:
        """The belief before any trial of the job has ended, if one batch size is taken to reach the target.

        Its epochs are the usual ones, at most half of `max_epochs`, or those of the prior jobs. An epoch costs 1: costs
        are relative to it.
        """
        constants = self.constants
        if any(each.num_reached for each in knowledge.prior):
            found = self._told(knowledge.prior)
        else:
            usual = max(1.0, min(constants.usual_epochs, max_epochs / 2))
            fit = self._epochs.given(*at([place], [math.log(usual)], [_KNOWN]))
            noise = constants.epochs_noise**2 + constants.whole_epochs / usual**2
            rates = Rates(np.full(len(self.octaves), noise), constants.unusual, constants.reaches)
            count = len(self.octaves)
            found = _Epochs(fit, rates, no_misses(count), np.zeros(count), 1.0)
        evidence = list(knowledge.evidence)
        evidence[place] = evidence[place]._replace(earlier=evidence[place].earlier.add(0.0))
        cost = self._cost.given(*at([place], [0.0], [_KNOWN]))
        assumed = replace(knowledge, evidence=tuple(evidence))
        return self._belief(found, cost, assumed, constants.cost_noise**2, constants.noise_weight)

    def _belief(
        self, found: _Epochs, cost: Fit, knowledge: Knowledge, cost_noise: float, cost_freedom: float
    ) -> Belief:
        constants = self.constants
        own = np.maximum(0.0, knowledge.reached - 1)
        freedom = np.minimum(constants.noise_weight + own.sum(), constants.noise_weight + constants.pooling + own)
        return Belief(
            found.fit.mean,
            found.fit.cov,
            cost.mean,
            cost.cov,
            found.rates,
            freedom,
            cost_noise,
            cost_freedom,
            edges(self.octaves, knowledge.reached, found.misses.logs, constants, elsewhere=found.prior_reached),
            found.misses,
            found.unlucky,
            found.fit.misfit,
            found.prior_trust,
        )

    def _told(self, *sources: Sequence[Evidence]) -> _Epochs:
        fit, rates, misses, unlucky, _ = learned(self._epochs, self.octaves, sources, self.constants)
        return _Epochs(fit, rates, misses, unlucky, 1.0)

    def _learned(self, knowledge: Knowledge) -> _Epochs:
        """What is known about the epochs: two hypotheses if there are prior jobs, which tell them or do not."""
        own, prior = knowledge.evidence, knowledge.prior
        if not any(each.num_reached or each.num_missed for each in prior):
            return self._told(own)
        constants = self.constants
        alone, together = (
            learned(self._epochs, self.octaves, sources, constants, weigh=True) for sources in ([own], [prior, own])
        )
        before = learned(self._epochs, self.octaves, [prior], constants, weigh=True).log_likelihood
        trust = constants.prior_trust
        odds = math.log(trust / (1 - trust)) + together.log_likelihood - before - alone.log_likelihood
        share = 0.5 * (1 + math.tanh(0.5 * odds))
        apart = together.fit.mean - alone.fit.mean
        cov = share * together.fit.cov + (1 - share) * alone.fit.cov + share * (1 - share) * np.outer(apart, apart)
        misfit = share * together.fit.misfit + (1 - share) * alone.fit.misfit
        fit = Fit(alone.fit.mean + share * apart, cov, 0.0, misfit)
        # Priors that are taken to be wrong say nothing about how trials differ and which batch sizes always miss.
        likelier = together if share >= LEAST_TRUST else alone
        reached = np.array([each.num_reached for each in prior], float) if likelier is together else None
        return _Epochs(fit, likelier.rates, likelier.misses, alone.unlucky, share, reached)


@lru_cache(maxsize=256)
def model(sizes: tuple[int, ...], constants: Constants) -> Model:
    """The model of jobs with these batch sizes."""
    return Model(sizes, constants)
