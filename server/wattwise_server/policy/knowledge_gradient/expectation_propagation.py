"""The belief about ln E after trials, some of which are unusual or missed the target: expectation propagation.

The likelihood of each trial (`unusual`) is replaced by a Gaussian in e, its site, such that the belief without the
trial times the site has the moments of that belief times the likelihood (Minka, "Expectation Propagation for
Approximate Bayesian Inference", UAI 2001). All of these moments have a closed form. u, w and s² are re-estimated from
the probabilities that each trial is unusual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattwise_server.policy.knowledge_gradient.constants import Constants
from wattwise_server.policy.knowledge_gradient.edges import edges
from wattwise_server.policy.knowledge_gradient.evidence import Evidence
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Fit, Floats, LeftOut, Mixture
from wattwise_server.policy.knowledge_gradient.unusual import (
    TINY,
    Rates,
    hazard,
    later,
    likelihoods,
    tail,
)

_SWEEPS = 4
"""Largest number of times that the sites are computed."""

_STEPS = 3
"""Steps within a batch size, whose trials inform each other."""

_CLOSE = 0.3
"""The sites are good enough if they move the belief by less than this, in standard deviations."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Inference(NamedTuple):
    """The belief about the epochs after trials.

    Attributes:
        fit: The belief about e.
        rates: u, w and s².
        misses: What the misses say.
        unlucky: Expected number of misses of a batch size that were unusual trials (n,).
        log_likelihood: ln of the likelihood of the trials that reached the target, up to a constant; 0 if it was not
            asked for.
    """

    fit: Fit
    rates: Rates
    misses: Misses
    unlucky: Floats
    log_likelihood: float


class _Sites(NamedTuple):
    """One Gaussian for each row: its precision, and precision times mean."""

    precision: Floats
    product: Floats

    def moved(self, other: _Sites, share: float) -> _Sites:
        """Returns a part of the way to others."""
        return _Sites(*(mine + share * (theirs - mine) for mine, theirs in zip(self, other, strict=True)))

    def posterior(self, mixture: Mixture, trials: _Trials, *, leave_out: bool) -> Fit:
        """Returns the belief with the sites of all rows."""
        some = self.precision > 0
        precision = self.precision[some]
        return mixture.posterior(trials.place[some], self.product[some] / precision, 1 / precision, leave_out=leave_out)


class _Trials:
    """The trials of some sources. A row is a batch size of a source that has trials.

    Args:
        sources: What is known, by batch size.
    """

    def __init__(self, sources: Sequence[Sequence[Evidence]]) -> None:
        rows = [
            (place, each)
            for source in sources
            for place, each in enumerate(source)
            if each.num_reached or each.num_missed
        ]
        self.count = len(sources[0])
        self.place = np.array([place for place, _ in rows], np.int64)
        self.weight = np.array([each.weight for _, each in rows])
        earlier = [(each.earlier.count, each.earlier.mean, each.earlier.deviation) for _, each in rows]
        self.earlier = np.array(earlier, float).reshape(-1, 3).T
        self.total = float(sum(each.weight * (each.num_reached + each.num_missed) for _, each in rows))
        self.earlier_unusual = sum(each.weight * each.earlier_unusual for _, each in rows)
        # Earlier misses are taken to be like those that are kept.
        self.times = np.array([1 + each.earlier_missed / max(1, len(each.missed)) for _, each in rows])
        lengths = [(len(each.reached), len(each.missed)) for _, each in rows]
        self.row = np.repeat(np.arange(len(rows)), [sum(each) for each in lengths])
        epochs = [epoch for _, each in rows for epoch in (*each.reached, *(missed + 0.5 for missed in each.missed))]
        self.log = np.log(np.array(epochs, float))
        self.reached = np.array([flag for ok, miss in lengths for flag in (True,) * ok + (False,) * miss], bool)
        self.missed = np.flatnonzero(~self.reached)
        middles = [median(map(math.log, each.reached)) if each.reached else 0.0 for _, each in rows]
        self.beside_middle = self.log - np.array(middles)[self.row]
        self.row_weight = self.weight[self.row]
        self.miss_weight = (self.weight * self.times)[self.row[self.missed]]

    def by_row(self, values: Floats) -> Floats:
        """Returns the sum of values of trials, by row."""
        return np.asarray(np.bincount(self.row, values, len(self.place)), float)

    def by_place(self, values: Floats) -> Floats:
        """Returns the sum of values of rows, by batch size."""
        return np.asarray(np.bincount(self.place, values, self.count), float)


def infer(
    mixture: Mixture,
    octaves: Floats,
    sources: Sequence[Sequence[Evidence]],
    constants: Constants,
    *,
    weigh: bool = False,
) -> Inference:
    """Returns the belief about the epochs after the trials of some sources.

    Args:
        mixture: The belief before any trial.
        octaves: log2 of the batch sizes.
        sources: A job, or prior jobs and a job; by batch size.
        constants: The constants.
        weigh: Whether to compute `Inference.log_likelihood`.
    """
    if not constants.censored:
        sources = [[each._replace(missed=(), earlier_missed=0) for each in source] for source in sources]
    trials = _Trials(sources)
    rates = Rates(_noise(trials, np.ones(len(trials.log)), constants), constants.unusual, constants.reaches)
    sites = _usual_sites(trials, rates.noise)
    num_reached = trials.by_place(trials.earlier[0] + trials.by_row(trials.reached.astype(float)))
    misses, unlucky, log_likelihood = no_misses(trials.count), np.zeros(trials.count), 0.0
    for sweep in range(_SWEEPS + 1):
        last = sweep == _SWEEPS
        fit = sites.posterior(mixture, trials, leave_out=not last)
        if last or fit.left_out is None:
            break
        cavity = _cavity(fit, trials, sites)
        always = np.zeros(len(trials.place))
        if len(trials.missed):
            misses = _misses(trials, cavity, rates, num_reached, constants)
            always = edges(octaves, num_reached, misses.logs, constants).always[trials.place]
        update = _sweep(trials, cavity, rates, always, constants)
        odd = (1 - update.usual) * trials.row_weight
        odd[trials.missed] = (1 - update.usual[trials.missed]) * trials.miss_weight
        if weigh:
            log_likelihood = _log_likelihood(mixture, trials, update, rates)
        unlucky = trials.by_place(trials.by_row(odd * ~trials.reached))
        better = _rates(trials, update, odd, constants)
        close = _close(fit, trials, sites, update.sites) and abs(np.log(better.noise / rates.noise)).max() < _CLOSE
        rates = better
        if close:
            break
        # Half a step after the first, so that batch sizes that contradict each other do not swing.
        sites = sites.moved(update.sites, 0.5) if sweep else update.sites
    return Inference(fit, rates, misses, unlucky, log_likelihood)


def _log_likelihood(mixture: Mixture, trials: _Trials, update: _Sweep, rates: Rates) -> float:
    """Returns ln of the likelihood of the trials that reached the target, up to a constant.

    A site is exp(k + q·e − p·e²/2), with k such that the belief without the trial times the site has the same integral
    as that belief times the likelihood (Rasmussen and Williams, section 3.6.3).
    """
    weight = trials.row_weight * trials.reached
    (p, q), (mean, variance) = update.by_trial, update.cavity
    integral = 0.5 * ((mean / variance + q) ** 2 / (1 / variance + p) - mean**2 / variance - np.log1p(p * variance))
    # Earlier trials count as usual ones.
    count, middle, deviation = trials.earlier
    noise = rates.noise[trials.place]
    base = trials.weight * count / noise
    k = -0.5 * trials.weight * (count * np.log(noise) + deviation / noise) - 0.5 * base * middle**2
    k += trials.by_row(weight * (update.log_tilted - integral))
    sites = _Sites(base + trials.by_row(weight * p), base * middle + trials.by_row(weight * q))
    some = sites.precision > 0
    precision, product = sites.precision[some], sites.product[some]
    constant = float(k.sum() + (0.5 * product**2 / precision - 0.5 * np.log(precision)).sum())
    return constant + sites.posterior(mixture, trials, leave_out=False).log_likelihood


def _usual_sites(trials: _Trials, noise: Floats) -> _Sites:
    """Returns the sites if every trial that reached the target is usual, and those that missed it say nothing."""
    count, mean, _ = trials.earlier
    scale = trials.weight / noise[trials.place]
    return _Sites(
        scale * (count + trials.by_row(trials.reached.astype(float))),
        scale * (count * mean + trials.by_row(np.where(trials.reached, trials.log, 0.0))),
    )


def _cavity(fit: Fit, trials: _Trials, sites: _Sites) -> LeftOut:
    """Returns the belief about e at the batch size of each row without the row."""
    mean, variance = fit.mean[trials.place], np.maximum(fit.cov.diagonal()[trials.place], 1e-9)
    some = sites.precision > 0
    if fit.left_out is not None:
        mean[some], variance[some] = fit.left_out
    return LeftOut(mean, variance)


class Misses(NamedTuple):
    """The misses of each batch size, if it does not always miss.

    Attributes:
        logs: ln of the probability of all misses of a batch size; 0 without misses (n,).
        only: Whether a batch size has misses, and no trial that reached the target (n,).
        epochs, variance: Mean and variance of e at these batch sizes, if they do not always miss (n,).
    """

    logs: Floats
    only: NDArray[np.bool_]
    epochs: Floats
    variance: Floats


def no_misses(count: int) -> Misses:
    """Returns the values for batch sizes without a miss."""
    none = np.zeros(count)
    return Misses(none, np.zeros(count, bool), none, none)


def _misses(trials: _Trials, cavity: LeftOut, rates: Rates, reached: Floats, constants: Constants) -> Misses:
    """Returns the misses by batch size: the trials share e, over which is integrated by Gauss-Hermite quadrature."""
    count, rows = trials.count, trials.row[trials.missed]
    places, late = trials.place[rows], trials.log[trials.missed]
    # By batch size and node (n, z): of prior jobs and the job together, the cavity of the last one.
    mean, deviation = np.zeros(count), np.zeros(count)
    mean[places], deviation[places] = cavity.mean[rows], np.sqrt(cavity.variance[rows])
    epochs = mean[:, None] + deviation[:, None] * _NODES
    variance = rates.noise[places, None]
    each = np.maximum(later(late[:, None] - epochs[places], variance, rates, constants), 1e-9)
    logs = np.zeros(epochs.shape)
    np.add.at(logs, places, np.log(each) * trials.miss_weight[:, None])
    shares = np.exp(logs) * _WEIGHTS
    together = shares.sum(1)
    shares /= together[:, None]
    center = (shares * epochs).sum(1)
    spread = (shares * (epochs - center[:, None]) ** 2).sum(1)
    only = (np.bincount(places, minlength=count) > 0) & (reached == 0)
    return Misses(np.log(together), only, center, spread)


class _Sweep(NamedTuple):
    """The sites, and what the trials are.

    Attributes:
        sites: The sites of the rows.
        by_trial: Those of the trials.
        cavity: The belief about e without each trial.
        log_tilted: ln of the probability of each trial under that belief, up to a constant.
        usual: The probability that each trial is usual, or that its batch size always misses.
        late: The expected number of misses that would have reached the target later although they are unusual.
        always: The expected number of misses whose batch size always misses.
    """

    sites: _Sites
    by_trial: _Sites
    cavity: LeftOut
    log_tilted: Floats
    usual: Floats
    late: float
    always: float


def _sweep(trials: _Trials, cavity: LeftOut, rates: Rates, always: Floats, constants: Constants) -> _Sweep:
    """Returns the sites of all rows. Those of the trials of one batch size are computed in turn, in a few steps."""
    row, log, missed, weight = trials.row, trials.log, trials.missed, trials.row_weight
    noise = rates.noise[trials.place]
    own, spread = noise[row], constants.unusual_spread**2
    prior = 1 / cavity.variance
    base = trials.weight * trials.earlier[0] / noise
    base_product = base * trials.earlier[1]
    # Trials far from the others of their batch size start as unusual ones: beside a small s², a single one would pull
    # the belief away, and all others would look unusual.
    usual, odd = likelihoods(trials.beside_middle, own, rates, spread)
    precision = np.where(trials.reached, np.maximum(usual / (usual + odd), own / (own + spread)) / own, 0.0)
    product = precision * log
    usual, late, of_always = np.ones(len(log)), 0.0, 0.0
    for step in range(_STEPS):
        # Without the trial; at least the cavity is left.
        without = (prior + base + trials.by_row(weight * precision))[row] - weight * precision
        without_product = (prior * cavity.mean + base_product + trials.by_row(weight * product))[row] - weight * product
        mean = without_product / without
        variance = 1 / without
        near, far = variance + own, variance + own + spread
        error = log - mean
        of_near, of_far = likelihoods(error, near, rates, spread)
        usual = of_near / (of_near + of_far)
        shift_near, shift_far = variance / near * error, variance / far * error
        shift = usual * shift_near + (1 - usual) * shift_far
        left = variance * (usual * own / near + (1 - usual) * (own + spread) / far)
        left += usual * (1 - usual) * (shift_near - shift_far) ** 2
        if len(missed):
            at_miss = _Miss(variance[missed], near[missed], far[missed], error[missed], always[row[missed]])
            shift[missed], left[missed], usual[missed], share_late, share_always = at_miss.moments(rates)
            late, of_always = float(trials.miss_weight @ share_late), float(trials.miss_weight @ share_always)
        new = np.maximum(1 / np.maximum(left, 1e-12) - without, 0.0)
        new_product = (mean + shift) * (new + without) - without * mean
        # Half a step, so that trials that contradict each other do not swing.
        share = 0.5 if step else 1.0
        precision, product = precision + share * (new - precision), product + share * (new_product - product)
    sites = _Sites(base + trials.by_row(weight * precision), base_product + trials.by_row(weight * product))
    by_trial = _Sites(new, new_product)
    log_tilted = np.log(of_near + of_far)
    return _Sweep(_vague(sites, prior, cavity), by_trial, LeftOut(mean, variance), log_tilted, usual, late, of_always)


def _vague(sites: _Sites, prior: Floats, cavity: LeftOut) -> _Sites:
    """Raises the precision of sites to a least one: a miss can make the belief vaguer, which no site can."""
    least = 0.03 * prior
    mean = (prior * cavity.mean + sites.product) / (prior + sites.precision)
    low = sites.precision < least
    return _Sites(
        np.where(low, least, sites.precision),
        np.where(low, mean * (prior + least) - prior * cavity.mean, sites.product),
    )


class _Miss(NamedTuple):
    """Trials that missed the target.

    Attributes:
        variance: Of the belief about e without the trial.
        near, far: Of ln E of a usual trial, and of an unusual one that reaches the target.
        error: ln of the epochs, less the mean of that belief.
        always: Probability that its batch size always misses.
    """

    variance: Floats
    near: Floats
    far: Floats
    error: Floats
    always: Floats

    def moments(self, rates: Rates) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Returns the shift and the variance of the belief with the trial, and what it is.

        That is the probabilities that it is not unusual, that it is unusual but late, and that its batch size always
        misses.
        """
        shift_near, left_near, tail_near = self._later(self.near)
        shift_far, left_far, tail_far = self._later(self.far)
        sometimes = 1 - self.always
        near = sometimes * (1 - rates.unusual) * tail_near
        far = sometimes * rates.unusual * rates.reaches * tail_far
        never = sometimes * rates.unusual * (1 - rates.reaches)
        total = near + far + never + self.always + TINY
        near, far, never = near / total, far / total, never / total
        shift = near * shift_near + far * shift_far
        left = near * (left_near + shift_near**2) + far * (left_far + shift_far**2)
        left += (1 - near - far) * self.variance - shift**2
        return shift, left, 1 - far - never, far, self.always / total

    def _later(self, spread: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns shift and variance if E is larger, and the probability of that: moments of a truncated normal."""
        deviation = np.sqrt(spread)
        z = self.error / deviation
        probability = tail(z)
        expected = hazard(z, probability)
        gain = self.variance / deviation
        return gain * expected, self.variance - gain**2 * expected * (expected - z), probability


def _close(fit: Fit, trials: _Trials, before: _Sites, after: _Sites) -> bool:
    precision = 1 / np.maximum(fit.cov.diagonal(), 1e-9)[trials.place]
    gained = after.precision - before.precision
    moved = (after.product - before.product - fit.mean[trials.place] * gained) / np.sqrt(precision)
    return bool(abs(moved).max() < _CLOSE and (abs(gained) / precision).max() < _CLOSE)


def _rates(trials: _Trials, update: _Sweep, odd: Floats, constants: Constants) -> Rates:
    """Estimates u, w and s² with their priors as if these were earlier trials.

    Trials of a batch size that always misses tell nothing about how often trials are unusual.
    """
    total = trials.earlier_unusual + float(odd.sum())
    reached = trials.earlier_unusual + float(odd[trials.reached].sum()) + update.late
    weight, of_reaches = constants.unusual_weight, constants.reaches_weight
    return Rates(
        _noise(trials, update.usual, constants),
        (weight * constants.unusual + total) / (weight + trials.total - update.always),
        (of_reaches * constants.reaches + reached) / (of_reaches + total),
    )


def _noise(trials: _Trials, usual: Floats, constants: Constants) -> Floats:
    """Estimates s² of each batch size (n,): inverse-gamma from the usual trials, pooled with that of the job."""
    count, mean, deviation = trials.earlier
    share = np.where(trials.reached, usual, 0.0)
    counts = count + trials.by_row(share)
    sums = count * mean + trials.by_row(share * trials.log)
    middle = sums / np.maximum(counts, 1e-9)
    squares = deviation + count * (mean - middle) ** 2
    squares = squares + trials.by_row(share * (trials.log - middle[trials.row]) ** 2)
    missed = trials.log[trials.missed]
    usual_log = (sums.sum() + missed.sum()) / max(1e-9, counts.sum() + len(missed))
    prior = constants.epochs_noise**2 + constants.whole_epochs * math.exp(-2 * usual_log)
    own = trials.by_place(trials.weight * squares)
    freedom = trials.by_place(trials.weight * np.maximum(0.0, counts - 1))
    weight, pooling = constants.noise_weight, constants.pooling
    job = max(1e-4, (weight * prior + own.sum()) / (weight + freedom.sum()))
    return np.asarray((weight * prior + pooling * job + own) / (weight + pooling + freedom))
