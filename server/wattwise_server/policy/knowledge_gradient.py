"""`POLICY_KNOWLEDGE_GRADIENT`: one Gaussian belief over all batch sizes; each trial is weighed by what it would teach.

The cost of a trial is its number of epochs times the cost of an epoch, and each is smooth over batch sizes, so that a
trial at one batch size says much about the others:

    b     batch size; x = log2 b
    E     epochs to the target; ln E = e(x) + noise
    c     cost of an epoch in joules; ln c = k(x) + noise, nearly without noise
    C     cost of a trial that reaches the target: C = E·c
    e(x)  = const + ln(1 + b/B + L/b) + d(x): the gradient-noise-scale law E ∝ 1 + b/B (McCandlish et al., "An Empirical
          Model of Large-Batch Training", 2018; measured by Shallue et al., "Measuring the Effects of Data Parallelism
          on Neural Network Training", JMLR 20, 2019), sometimes with a rise to the left, L/b
    k(x)  = const + ln(1 + K/b) + d(x): a batch costs a fixed part and a part for each sample
    d(x)  a Gaussian process: how far a job deviates from the law
    m, S  mean and covariance of the belief about e or k at the job's batch sizes
    s²    variance of ln E between trials of one batch size
    misfit  expected variance of d(x), relative to that before any trial: how badly the law fits

B, L and K lie on a grid of knots, and the process has one of several amplitudes, so that the belief is a mixture of
Gaussians; its first two moments are used. A trial that missed the target is a censored observation: E was larger.

    ok    expected cost of a trial that reaches the target, at most its limit
    q     probability that a trial misses the target; r that it crashes
    A     expected cost of a trial:  (1−r)·((1−q)·ok + q·limit) + r·(cost of a crash)
    R     expected cost of a model if only this batch size is used, misses and crashes included:  A / ((1−r)·(1−q))

With a small batch a training takes about ten epochs, give or take a factor of three: that is const. So a job whose
first trial takes hundreds of epochs is expected to need fewer with smaller batches.

A trial pays off if its cost now, less what knowing its result is expected to save over the coming launches, is less
than that of the best known batch size: the knowledge gradient (Frazier, Powell and Dayanik, "A Knowledge-Gradient
Policy for Sequential Information Collection", SIAM J. Control Optim. 47(5), 2008), for correlated beliefs (the same
authors, INFORMS J. Comput. 21(4), 2009) and with the cost of the trials themselves (Ryzhov, Powell and Frazier, Oper.
Res. 60(1), 2012). Of several that pay off the cheap ones come first, for the others can follow. A trial is stopped at β
times the least expected cost of one that reaches the target, a trial of the best batch size only if trials are known to
fail without a reason and starting again is expected to cost less than going on.

All is deterministic. The state is `Knowledge`, kept as JSON in `Search.notes`: a few sums for each batch size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattwise_server.domain import Arm, Change, JobSpec, Moments, Search, Stage, Trial, TrialType
from wattwise_server.policy.base import (
    Allowed,
    ArmBelief,
    Banned,
    Choice,
    Dispatched,
    Event,
    Exhausted,
    Failed,
    Prior,
    Revived,
    Succeeded,
)
from wattwise_server.policy.cost import cost_bound, relaxed, with_unit
from wattwise_server.policy.failures import available, counts_as_failure, failing, tried

Floats: TypeAlias = NDArray[np.float64]

LARGEST_WINDOW = 1000
"""The window is part of the state, which is saved with every trial."""

_FORMAT = 1
"""Of the state in `Search.notes`."""

_LEAST_COST = 1e-100
"""Joules; a trial that cost less tells nothing about costs. Squares of costs must not vanish."""

_VAGUE = 25.0
"""Variance of the constant of k: nothing is known about it."""

_USUAL_WEIGHT = 2.0
"""Trials or batch sizes without a miss that every job is taken to have had before."""

_LEAST_TRUST = 0.5
"""Probability that the prior jobs tell the epochs of this one, below which they are taken to be wrong."""

_MOST_CERTAIN = 0.99
"""Upper bound of a probability that is estimated from counts."""

_STOPS = 400
"""Candidates for the epoch after which a trial is stopped: few enough to be fast where it takes thousands of epochs."""

_LATEST_STOP = 50.0
"""The last of them, as a multiple of the first."""

# Gauss-Hermite nodes and weights for the surprise in ln E and the surprise in ln c, of which the second is small.
_EPOCHS_NODES, _EPOCHS_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_COST_NODES, _COST_WEIGHTS = np.polynomial.hermite_e.hermegauss(2)
_Z_EPOCHS, _Z_COST = (axis.ravel() for axis in np.meshgrid(_EPOCHS_NODES, _COST_NODES))
_Z_NODES = np.stack([np.ones_like(_Z_EPOCHS), _Z_EPOCHS, _Z_COST], axis=1)
_Z_WEIGHTS = np.outer(_COST_WEIGHTS, _EPOCHS_WEIGHTS).ravel() / (_EPOCHS_WEIGHTS.sum() * _COST_WEIGHTS.sum())


class Deviation(NamedTuple):
    """A Gaussian process for the deviation from a law: its standard deviation, and its length in octaves."""

    amplitude: float
    octaves: float


_EPOCHS_DEVIATIONS = (Deviation(0.1, 2.0), Deviation(0.3, 2.0), Deviation(0.6, 1.5))
_COST_DEVIATION = Deviation(0.2, 3.0)


@dataclass(frozen=True)
class Constants:
    """The model's constants, chosen on recorded traces and synthetic workloads.

    Attributes:
        usual_epochs: Epochs that a training with a small batch takes, before any trial.
        usual_spread: Standard deviation of the logarithm of that number.
        epochs_noise: Prior standard deviation of ln E between trials of one batch size.
        whole_epochs: Part of its variance that comes from whole epochs, times E².
        noise_weight: Weight of that prior, in trials.
        pooling: Weight of the job's noise in that of a batch size, in trials.
        epochs_deviations: The processes of e; the data decide which of them fits.
        epochs_apart: Standard deviation of e at a batch size apart from its neighbours.
        cost_deviation: The process of k.
        cost_apart: As `epochs_apart`, for k.
        cost_noise: Prior standard deviation of ln c between trials.
        rise: Prior probability that E rises for small batch sizes.
        hint: Accuracy of average power as a hint of saturation, in octaves; 0 ignores it.
        hint_doubt: Weight of every K beside the 1 of the K that power suggests.
        horizon: Launches for which an insight is used, besides as many as there were.
        misfit_horizon: As many more for each unit of misfit: the less the law says, the more there is to learn.
        windows: With a window, at most those of this many windows: a choice outlives the trials that led to it.
        soon: Launches for which an insight is used before that of another trial follows.
        reach: How far beyond the batch sizes that reached the target a trial may go, in octaves, or to the next one.
        second_look: Standard deviations within which the end of the known range is tried a second time.
        model_weight: Weight of the model in the probability of a miss, in trials.
        crash_weight: Weight of the job's crash rate in that of a batch size, in trials.
        never: Prior probability that a trial never reaches the target, whatever its batch size.
        never_weight: Weight of that prior, in trials.
        patience: A trial of the best batch size is not stopped before this multiple of its expected cost.
        insurance: Share of all cost that may go into first trials that the model does not recommend, for each unit of
            misfit and after many trials.
        insured_later: Trials after which half of that share may be spent.
        prior_weight: Largest weight of a prior job, in trials of each batch size.
        prior_trust: Prior probability that the prior jobs tell the epochs of this one.
        laws, censored: Whether the laws and the trials that missed are used; to measure what they bring.
    """

    usual_epochs: float = 10.0
    usual_spread: float = 1.3
    epochs_noise: float = 0.10
    whole_epochs: float = 0.5
    noise_weight: float = 8.0
    pooling: float = 12.0
    epochs_deviations: tuple[Deviation, ...] = _EPOCHS_DEVIATIONS
    epochs_apart: float = 0.05
    cost_deviation: Deviation = _COST_DEVIATION
    cost_apart: float = 0.03
    cost_noise: float = 0.01
    rise: float = 0.35
    hint: float = 2.0
    hint_doubt: float = 1.5
    horizon: float = 50.0
    misfit_horizon: float = 70.0
    windows: float = 3.0
    soon: float = 40.0
    reach: float = 1.6
    second_look: float = 1.0
    model_weight: float = 3.0
    crash_weight: float = 2.0
    never: float = 0.002
    never_weight: float = 2.0
    patience: float = 1.3
    insurance: float = 0.012
    insured_later: float = 200.0
    prior_weight: float = 4.0
    prior_trust: float = 0.8
    laws: bool = True
    censored: bool = True


class Evidence(NamedTuple):
    """What the trials of one batch size have shown.

    Attributes:
        epochs: ln E of the trials that reached the target.
        epoch_cost: ln c of all trials.
        missed: Trials that did not reach the target.
        longest: Largest ln of their epochs.
        weight: What a trial counts; less than 1 for prior jobs with many trials.
    """

    epochs: Moments = Moments()
    epoch_cost: Moments = Moments()
    missed: int = 0
    longest: float = 0.0
    weight: float = 1.0


class Seen(NamedTuple):
    """One trial in the window: index of its batch size, ln of its epochs and of their cost, and whether it reached."""

    place: int
    epochs: float
    epoch_cost: float | None
    reached: bool


@dataclass(frozen=True)
class Knowledge:
    """The state of a job: immutable, bounded, and all that the belief depends on besides the failures.

    Attributes:
        evidence: By batch size, ascending.
        prior: The same from prior jobs, without costs; empty if there are none.
        first: The batch size to try first, from the prior jobs; None: the default.
        hint: log2 of the K that the first trial's power draw suggests; None if unknown.
        trials: Trials that ran to a decision.
        total: What they cost, in joules.
        insuring: Numbers of the running trials that the model did not recommend.
        insured: What such trials cost beyond the best known batch size, in joules.
        delivered: Number of the newest launch that delivered a model.
        retry: Number of the launch that ended last, if it delivered no model, and no trial imported since did.
        window: The newest trials; only for a job with a window.
    """

    evidence: tuple[Evidence, ...]
    prior: tuple[Evidence, ...] = ()
    first: int | None = None
    hint: float | None = None
    trials: int = 0
    total: float = 0.0
    insuring: tuple[int, ...] = ()
    insured: float = 0.0
    delivered: int = 0
    retry: int | None = None
    window: tuple[Seen, ...] = ()

    @cached_property
    def derived(self) -> dict[object, Any]:
        """What was computed from it, so that it is computed once."""
        return {}

    @cached_property
    def reached(self) -> Floats:
        """The number of trials that reached the target, by batch size."""
        return np.array([each.epochs.count for each in self.evidence], float)

    @cached_property
    def missed(self) -> Floats:
        """The number of trials that missed it, by batch size."""
        return np.array([each.missed for each in self.evidence], float)

    @cached_property
    def usual_misses(self) -> float:
        """How often trials of batch sizes that do reach the target miss it."""
        missed = float(self.missed[self.reached > 0].sum())
        return missed / (missed + float(self.reached.sum()) + _USUAL_WEIGHT)

    @cached_property
    def usual_failures(self) -> float:
        """How often batch sizes do not reach the target at all; one at either end is no sign of that."""
        failed = float(((self.missed > 0) & (self.reached == 0)).sum())
        return max(0.0, failed - 2) / (float(self.known.sum()) + _USUAL_WEIGHT)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether a batch size has trials that ran to a decision."""
        return np.asarray(self.reached + self.missed > 0)

    def to_json(self) -> str:
        """The state as text; floats keep every bit."""
        names = ("first", "hint", "trials", "total", "insuring", "insured", "delivered", "retry", "window")
        state = {"format": _FORMAT} | {name: getattr(self, name) for name in names}
        state["evidence"] = [_flat(known) for known in self.evidence]
        state["prior"] = [_flat(known) for known in self.prior]
        return json.dumps(state, separators=(",", ":"))


# Large enough for the jobs that are launched at the same time; a state with what is derived from it takes up to 300 KB.
@lru_cache(maxsize=64)
def read(notes: str) -> Knowledge:
    """The state of `Knowledge.to_json`.

    Raises:
        ValueError: it has another format.
    """
    state: dict[str, Any] = json.loads(notes)
    if (found := state.pop("format", None)) != _FORMAT:
        raise ValueError(
            f"the state of POLICY_KNOWLEDGE_GRADIENT has format {found}; this version reads {_FORMAT}: "
            "use the server version that wrote it"
        )
    state["window"] = tuple(Seen(*seen) for seen in state["window"])
    state["insuring"] = tuple(state["insuring"])
    for name in ("evidence", "prior"):
        state[name] = tuple(_unflat(row) for row in state[name])
    return Knowledge(**state)


def _flat(known: Evidence) -> list[float]:
    epochs, costs = known.epochs, known.epoch_cost
    sums = [epochs.count, epochs.mean, epochs.deviation, costs.count, costs.mean, costs.deviation]
    return [*sums, known.missed, known.longest, known.weight]


def _unflat(row: Sequence[Any]) -> Evidence:
    return Evidence(Moments(*row[0:3]), Moments(*row[3:6]), *row[6:])


@dataclass(frozen=True)
class Belief:
    """The belief about ln E and ln c at n batch sizes.

    Attributes:
        epochs, epochs_cov: Mean (n,) and covariance (n, n) of ln E without the noise.
        cost, cost_cov: The same of ln c.
        noise: s², by batch size (n,).
        cost_noise: Variance of ln c between trials.
        misfit: See the glossary of the module.
        prior_trust: Probability that the prior jobs tell the epochs of this one; 1 without prior jobs.
    """

    epochs: Floats
    epochs_cov: Floats
    cost: Floats
    cost_cov: Floats
    noise: Floats
    cost_noise: float
    misfit: float
    prior_trust: float

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
        """Expected cost of a trial that reaches the target, without a limit, in joules."""
        return np.asarray(np.exp(self.mean + 0.5 * (self.variance + self.noise)))

    def once_ended(self, running: NDArray[np.int64], known: Sequence[Evidence]) -> Belief:
        """The covariances that will be left once the running trials have ended, whatever their results."""
        epochs_cov, cost_cov = self.epochs_cov, self.cost_cov
        for place, trials in enumerate(running):
            if trials:
                epochs_cov = _conditioned(epochs_cov, place, self.noise[place] / trials)
                if not known[place].epoch_cost.count:
                    cost_cov = _conditioned(cost_cov, place, self.cost_noise)
        return replace(self, epochs_cov=epochs_cov, cost_cov=cost_cov)


def _conditioned(cov: Floats, place: int, noise: float) -> Floats:
    return np.asarray(cov - np.outer(cov[place], cov[place]) / (cov[place, place] + noise))


class _Fit(NamedTuple):
    """A mixture of Gaussian processes after some observations.

    Attributes:
        mean, cov: Its moments.
        log_likelihood: ln of the likelihood of the observations, up to a constant.
        misfit: Mean square of the amplitude, relative to the prior one.
    """

    mean: Floats
    cov: Floats
    log_likelihood: float
    misfit: float


class _Mixture(NamedTuple):
    """Gaussian processes with several mean functions and kernels.

    Attributes:
        curves: The mean functions (n, h).
        weights: Their prior weights (h,).
        kernels: The covariances (k, n, n), each with the same prior weight.
        amplitudes: The amplitudes of their processes (k,).
        center: Mean of the constant; None: the mean of the observations, so that their unit does not matter.
    """

    curves: Floats
    weights: Floats
    kernels: Floats
    amplitudes: Floats
    center: float | None = None

    def given(self, at: Sequence[int], observed: Sequence[float], variances: Sequence[float]) -> _Fit:
        """Regression (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1).

        The weight of a curve and a kernel is their prior weight times their likelihood.

        Args:
            at: The indices of the observed batch sizes (m,); one may occur several times.
            observed: The observations (m,).
            variances: Their variances (m,).
        """
        places = np.array(at, int)
        curves, kernels, count = self.curves, self.kernels, self.curves.shape[1]
        factors = np.linalg.cholesky(kernels[:, places][:, :, places] + np.diag(variances))
        center = sum(observed) / max(1, len(observed)) if self.center is None else self.center
        residuals = (np.array(observed) - center)[:, None] - curves[places]
        for_each = np.broadcast_to(residuals, (len(kernels), *residuals.shape))
        solved = np.linalg.solve(factors, np.concatenate([for_each, kernels[:, places]], axis=2))
        whitened, cross = solved[:, :, :count], solved[:, :, count:]
        log_determinants = np.log(factors.diagonal(axis1=1, axis2=2)).sum(1)
        logs = np.log(self.weights) - 0.5 * (whitened**2).sum(1) - log_determinants[:, None]
        shares = np.exp(logs - logs.max())
        likelihood = float(logs.max() + math.log(shares.sum() / len(kernels)))
        shares /= shares.sum()
        across = cross.transpose(0, 2, 1)
        means = curves + across @ whitened
        mean = (means @ shares[:, :, None]).sum(0)[:, 0]
        apart = (means - mean[:, None]) * np.sqrt(shares)[:, None, :]
        cov = (shares.sum(1)[:, None, None] * (kernels - across @ cross) + apart @ apart.transpose(0, 2, 1)).sum(0)
        return _Fit(
            mean + center, cov, likelihood, float(shares.sum(1) @ self.amplitudes**2 / (self.amplitudes**2).mean())
        )


class _Model:
    """What the belief of a job starts from: its curves and processes at its batch sizes.

    Args:
        sizes: The batch sizes, ascending.
        constants: The constants.
    """

    def __init__(self, sizes: tuple[int, ...], constants: Constants) -> None:
        self.constants = constants
        x: Floats = np.log2(sizes)
        self._count = len(sizes)
        knots = self._knots = np.arange(x[0] - 2, x[-1] + 2.01, 1.5)
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
        ) -> _Mixture:
            smooth = [each.amplitude**2 * np.exp(-distance / (2 * each.octaves**2)) for each in processes]
            kernels = variance + np.array(smooth) + apart**2 * np.eye(len(x))
            amplitudes = np.array([each.amplitude for each in processes])
            return _Mixture(constants.laws * curves, weights, kernels, amplitudes, center)

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
        epochs, noise, trust = self._with_prior(knowledge)
        known = [place for place, each in enumerate(knowledge.evidence) if each.epoch_cost.count]
        costs = [knowledge.evidence[place].epoch_cost for place in known]
        own = sum(each.deviation for each in costs)
        freedom = sum(each.count - 1 for each in costs)
        weight = self.constants.noise_weight
        cost_noise = (weight * self.constants.cost_noise**2 + own) / (weight + freedom)
        variances = [cost_noise / each.count for each in costs]
        cost = self._hinted(knowledge.hint).given(known, [each.mean for each in costs], variances)
        return Belief(epochs.mean, epochs.cov, cost.mean, cost.cov, noise, cost_noise, epochs.misfit, trust)

    def _hinted(self, hint: float | None) -> _Mixture:
        """The mixture of ln c, with more weight on the K that power suggests."""
        trust = self.constants.hint
        if hint is None or not trust:
            return self._cost
        factors = np.exp(-0.5 * ((self._knots - hint) / trust) ** 2) + self.constants.hint_doubt
        return self._cost._replace(weights=self._cost.weights * factors)

    def _with_prior(self, knowledge: Knowledge) -> tuple[_Fit, Floats, float]:
        """The belief about ln E, its noise, and the probability that the prior jobs tell the epochs of this one."""
        own = knowledge.evidence
        if not any(each.epochs.count or each.missed for each in knowledge.prior):
            noise = self._noise([own])
            fit = self._fit_epochs([own], noise)
            return fit, noise, 1.0  # pragma: no mutate: whatever is more is trusted as much
        # Two hypotheses: the prior jobs tell the epochs of this one, or they don't.
        noise = self._noise([knowledge.prior, own])
        alone, before = self._fit_epochs([own], noise), self._fit_epochs([knowledge.prior], noise)
        together = self._fit_epochs([knowledge.prior, own], noise)
        trust = self.constants.prior_trust
        odds = math.log(trust / (1 - trust)) + together.log_likelihood - before.log_likelihood
        share = 0.5 * (1 + math.tanh(0.5 * (odds - alone.log_likelihood)))
        apart = together.mean - alone.mean
        cov = share * together.cov + (1 - share) * alone.cov + share * (1 - share) * np.outer(apart, apart)
        misfit = share * together.misfit + (1 - share) * alone.misfit
        return together._replace(mean=alone.mean + share * apart, cov=cov, misfit=misfit), noise, share

    def _fit_epochs(self, sources: Sequence[tuple[Evidence, ...]], noise: Floats) -> _Fit:
        """The belief about ln E."""
        rows = [(place, each) for source in sources for place, each in enumerate(source)]
        reached = [(place, each) for place, each in rows if each.epochs.count]
        places = [place for place, _ in reached]
        means = [each.epochs.mean for _, each in reached]
        variances = [noise[place] / (each.epochs.count * each.weight) for place, each in reached]
        found = fit = self._epochs.given(places, means, variances)
        for place, each in rows:
            if each.missed and self.constants.censored:
                # "More epochs than": the mean of the truncated normal, as an observation.
                deviation = math.sqrt(fit.cov[place, place] + noise[place])
                surprise = (each.longest - fit.mean[place]) / deviation
                places.append(place)
                means.append(fit.mean[place] + deviation * _mills(surprise))
                variances.append(noise[place] / (each.missed * each.weight) + 0.01)
                fit = self._epochs.given(places, means, variances)
        return fit._replace(log_likelihood=found.log_likelihood)

    def _noise(self, sources: Sequence[tuple[Evidence, ...]]) -> Floats:
        """s² of each batch size (n,): inverse-gamma estimates, pooled with that of the job."""
        constants = self.constants
        every = [each for source in sources for each in source]
        trials = sum(each.epochs.count + each.missed for each in every)
        mean = sum(each.epochs.count * each.epochs.mean + each.missed * each.longest for each in every) / trials
        prior = constants.epochs_noise**2 + constants.whole_epochs * math.exp(-2 * mean)
        own, freedom = np.zeros(self._count), np.zeros(self._count)
        for source in sources:
            own += [each.weight * each.epochs.deviation for each in source]
            freedom += [each.weight * max(0, each.epochs.count - 1) for each in source]
        weight, pooling = constants.noise_weight, constants.pooling
        job = max(1e-4, (weight * prior + own.sum()) / (weight + freedom.sum()))
        return np.asarray((weight * prior + pooling * job + own) / (weight + pooling + freedom))


@lru_cache(maxsize=256)
def _model(sizes: tuple[int, ...], constants: Constants) -> _Model:
    return _Model(sizes, constants)


def _above(z: Floats) -> Floats:
    """P(Z > z) of a standard normal (Page, Applied Statistics 26(1), 1977; absolute error below 2e-4)."""
    tail: Floats = 0.5 - 0.5 * np.tanh(math.sqrt(2 / math.pi) * z * (1 + 0.044715 * (z * z)))
    return tail


def _mills(z: float) -> float:
    """E[Z | Z > z] of a standard normal."""
    if z > 6:  # pragma: no mutate: from here on both differ by less than a hundredth
        return z + 1 / z
    return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(z / math.sqrt(2)))


@dataclass(frozen=True)
class Values:
    """What the belief says about costs; see the glossary of the module. All arrays by batch size, at the end (…, n).

    Attributes:
        ok, miss, crash: Expected cost of a trial that reaches the target, in joules; q; r.
        crash_share: What a crash costs, as a share of `ok`.
        log_limit: ln of the cost at which a trial ends without reaching the target.
    """

    ok: Floats
    miss: Floats
    crash: Floats
    crash_share: float
    log_limit: Floats

    @cached_property
    def trial(self) -> Floats:
        """A: expected cost of a trial, in joules."""
        ended = (1 - self.miss) * self.ok + self.miss * np.exp(self.log_limit)
        return (1 - self.crash) * ended + self.crash * self.crash_share * self.ok

    @cached_property
    def model(self) -> Floats:
        """R: expected cost of a model if only this batch size is used, in joules."""
        return self.trial / self.delivers

    @cached_property
    def delivers(self) -> Floats:
        """Probability that a trial delivers a model."""
        return (1 - self.crash) * (1 - self.miss)


class _Outlook(NamedTuple):
    """What a search leads to: the belief, its values, the best known batch size, and the bound of every batch size."""

    belief: Belief
    values: Values
    best: int
    bounds: Mapping[int, float | None]


class KnowledgeGradient:
    """The policy.

    Args:
        constants: The model's constants.
    """

    watches_epochs = False

    def __init__(self, constants: Constants = Constants()) -> None:
        self.constants = constants

    def faults(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """The window is part of the state."""
        if spec.window_size > LARGEST_WINDOW:
            yield "window_size", f"is {spec.window_size}; use at most {LARGEST_WINDOW}, or 0 for all trials"

    def register(self, spec: JobSpec, priors: Sequence[Prior] = ()) -> Search:
        """A search that starts at the default batch size, or at the best one of the prior jobs."""
        sizes = spec.batch_sizes
        prior = tuple(self._prior(size, priors) for size in sizes) if priors else ()
        first = next((each.best for each in priors if each.best in sizes), None)
        knowledge = Knowledge((Evidence(),) * len(sizes), prior, first)
        return Search(Stage.MAB, tuple(map(Arm, sizes)), 0, spec.default_batch_size, notes=knowledge.to_json())

    def next(
        self,
        spec: JobSpec,
        search: Search,
        trial_number: int,
        rng: np.random.Generator,  # noqa: ARG002 - it draws nothing
    ) -> Choice | Exhausted:
        """The batch size whose trial costs least, less what its result is worth."""
        allowed = {arm.batch_size for arm in available(search, trial_number)}
        if not allowed:
            return Exhausted()
        places = np.array([place for place, size in enumerate(spec.batch_sizes) if size in allowed])
        knowledge = read(search.notes)
        if knowledge.reached[places].any():
            place, reason = self._prospects(spec, search, knowledge, places).choice()
        else:
            place, reason = _first(spec, search, knowledge, places)
        size = spec.batch_sizes[place]
        return Choice(TrialType.MAB, size, reason)

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Adds a decided trial to the evidence, and remembers whether the newest launch delivered a model."""
        if isinstance(event, Banned | Allowed):
            return search
        knowledge, number = read(search.notes), event.trial.number
        if isinstance(event, Succeeded | Failed) and number in knowledge.insuring:
            extra = self._extra(spec, search, event)
            left = tuple(each for each in knowledge.insuring if each != number)
            knowledge = replace(knowledge, insuring=left, insured=knowledge.insured + extra)
        match event:
            case Dispatched(trial) if self._insures(spec, search, knowledge, trial):
                knowledge = replace(knowledge, insuring=(*knowledge.insuring, number))
            case Succeeded(trial):
                knowledge = self._learned(spec, knowledge, trial)
            case Failed(trial) if counts_as_failure(trial) and _retried(knowledge, trial):
                knowledge = replace(knowledge, retry=number)
            case Revived() if number == knowledge.retry:
                knowledge = replace(knowledge, retry=None)
        return replace(search, notes=knowledge.to_json())

    def bound(self, spec: JobSpec, search: Search, batch_size: int) -> float | None:
        """β times the least expected cost; for the best known batch size None, or where starting again is cheaper."""
        outlook = self._outlook(spec, search)
        # Without an outlook only trials beyond the window have reached the target: the cheapest of them is the guide.
        return outlook.bounds[batch_size] if outlook else cost_bound(spec, search, batch_size)

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """Mean and deviation of the cost at every batch size; nothing before a trial has reached the target."""
        outlook = self._outlook(spec, search)
        if outlook is None:
            return [ArmBelief(arm.batch_size, 0.0, 0.0, 0.0, 0) for arm in search.arms]
        knowledge, belief = read(search.notes), outlook.belief
        trials = knowledge.reached + knowledge.missed
        # Of lognormal variables: the variance is expm1(variance of the logarithm) times the squared mean.
        doubt, spread = np.expm1(belief.variance), np.expm1(belief.noise)
        models, crash = outlook.values.model, outlook.values.crash
        return [
            ArmBelief(
                arm.batch_size,
                -float(belief.expected[place]),
                float(1 / (doubt[place] * belief.expected[place] ** 2)),
                float(1 / (spread[place] * belief.expected[place] ** 2)),
                int(trials[place]),
                float(models[place]),
                float(models[place] * math.sqrt(doubt[place])),
                float(crash[place]),
            )
            for place, arm in enumerate(search.arms)
        ]

    def changes(self, search: Search) -> Sequence[Change]:  # noqa: ARG002 - the protocol's
        """None so far."""
        return ()

    # Evidence

    def _prior(self, size: int, priors: Sequence[Prior]) -> Evidence:
        """What prior jobs tell about one batch size, with a weight of a few trials."""
        known = Evidence()
        for prior in priors:
            if size in prior.epochs:
                known = known._replace(epochs=known.epochs.merge(prior.epochs[size]))
            if size in prior.missed:
                missed, longest = prior.missed[size]
                known = known._replace(missed=known.missed + missed, longest=max(known.longest, longest))
        trials = known.epochs.count + known.missed
        return known._replace(weight=min(1.0, self.constants.prior_weight / trials)) if trials else known

    def _learned(self, spec: JobSpec, knowledge: Knowledge, trial: Trial) -> Knowledge:
        if trial.last is None or trial.cost is None:
            return knowledge
        place = spec.batch_sizes.index(trial.batch_size)
        epoch_cost = math.log(trial.cost / trial.last.epoch) if trial.cost > _LEAST_COST else None
        seen = Seen(place, math.log(trial.last.epoch), epoch_cost, trial.target_reached)
        hint = knowledge.hint
        # Estimated energy tells nothing about how busy a GPU was.
        measured = trial.last.energy_joules and not trial.monitor.estimated
        # Trials that former versions saved may have taken no time.
        if not knowledge.trials and measured and trial.last.time_seconds:
            hint = _hint(spec, trial.batch_size, trial.last.energy_joules / trial.last.time_seconds)
        window = (*knowledge.window, seen)[-spec.window_size :] if spec.window_size else ()
        if spec.window_size:
            evidence = _with_seen((Evidence(),) * len(spec.batch_sizes), window)
        else:
            evidence = _with_seen(knowledge.evidence, [seen])
        knowledge = replace(
            knowledge,
            evidence=evidence,
            window=window,
            hint=hint,
            trials=knowledge.trials + 1,
            total=knowledge.total + trial.cost,
        )
        if trial.target_reached:
            newest = max(knowledge.delivered, trial.number) if _launched(trial) else knowledge.delivered
            return replace(knowledge, delivered=newest, retry=None)
        return replace(knowledge, retry=trial.number) if _retried(knowledge, trial) else knowledge

    def _insures(self, spec: JobSpec, search: Search, knowledge: Knowledge, trial: Trial) -> bool:
        """Whether a new trial is the first of its batch size although the model does not recommend it."""
        if trial.type in (TrialType.REQUESTED, TrialType.IMPORTED):
            return False
        place = spec.batch_sizes.index(trial.batch_size)
        others = search.arms[place].running - 1
        if knowledge.known[place] or others:
            return False
        # As it was chosen: the trial itself is not running yet.
        arms = tuple(replace(arm, running=others) if at == place else arm for at, arm in enumerate(search.arms))
        before = replace(search, arms=arms)
        allowed = {arm.batch_size for arm in available(before, trial.number)} | {trial.batch_size}
        places = np.array([at for at, size in enumerate(spec.batch_sizes) if size in allowed])
        if not knowledge.reached[places].any():
            return False
        return self._prospects(spec, before, knowledge, places).worth != place

    def _extra(self, spec: JobSpec, search: Search, event: Succeeded | Failed) -> float:
        """What such a trial cost beyond the best known batch size, in joules; all of its cost if it failed."""
        cost = event.trial.cost or 0.0
        outlook = self._outlook(spec, search) if isinstance(event, Succeeded) else None
        return cost if outlook is None else max(0.0, cost - float(outlook.values.model[outlook.best]))

    # Belief

    def _outlook(self, spec: JobSpec, search: Search) -> _Outlook | None:
        """What the search leads to; None before a trial has reached the target. Computed once for each search."""
        if self not in search.derived:
            search.derived[self] = self._computed_outlook(spec, search)
        outlook: _Outlook | None = search.derived[self]
        return outlook

    def _computed_outlook(self, spec: JobSpec, search: Search) -> _Outlook | None:
        knowledge = read(search.notes)
        if not knowledge.reached.any():
            return None
        belief = self._belief(spec, knowledge)
        values = self._values(spec, search, knowledge, belief)
        usable = _usable(search, knowledge)
        places = usable if len(usable) else np.flatnonzero(knowledge.reached)
        best = int(places[np.argmin(values.model[places])])
        if spec.beta_knob is None or not len(usable):
            return _Outlook(belief, values, best, dict.fromkeys(spec.batch_sizes))
        bound = relaxed(search) * _limit(spec, search, knowledge, belief)
        bounds: dict[int, float | None] = dict.fromkeys(spec.batch_sizes, bound)
        restart = self._restart(spec, knowledge, belief, best)
        bounds[spec.batch_sizes[best]] = None if restart is None else relaxed(search) * restart
        return _Outlook(belief, values, best, bounds)

    def _belief(self, spec: JobSpec, knowledge: Knowledge) -> Belief:
        model = _model(spec.batch_sizes, self.constants)
        if model not in knowledge.derived:
            knowledge.derived[model] = model.belief(knowledge)
        belief: Belief = knowledge.derived[model]
        return belief

    def _values(self, spec: JobSpec, search: Search, knowledge: Knowledge, belief: Belief) -> Values:
        limit = np.log(_limit(spec, search, knowledge, belief))
        log_limit = np.minimum(limit, belief.cost + math.log(spec.max_epochs + 0.5))
        ok, miss = self.ends(knowledge, slice(None), belief.mean, belief.variance + belief.noise, log_limit)
        # A batch size that does not fit into memory says nothing about how often the others crash. Crashes count
        # whatever the window: the rules for failures need them all.
        crashes = [Arm(arm.batch_size) if arm.excluded else arm for arm in search.arms]
        failed = np.array([float(arm.num_failed) for arm in crashes])
        # A batch size without trials is expected to crash as often as the others, after the same share of its cost.
        decided = np.array([float(arm.num_succeeded) for arm in crashes])
        weight = self.constants.crash_weight
        usual = failed.sum() / (failed.sum() + decided.sum() + weight)
        crash = np.minimum((failed + weight * usual) / (failed + decided + weight), _MOST_CERTAIN)
        lost = sum(arm.failed_cost for arm in crashes)
        share = min(1.0, lost / float(failed @ ok)) if lost else 0.0
        return Values(ok, miss, crash, share, log_limit)

    def ends(
        self, knowledge: Knowledge, places: NDArray[np.int64] | slice, mean: Floats, spread: Floats, log_limit: Floats
    ) -> tuple[Floats, Floats]:
        """Values of ok and q at some batch sizes (m,), given mean and variance of ln C (…, m).

        q is the share of trials that missed the target. Its prior: a trial is too slow, or misses for another reason as
        often as at the other batch sizes. Too slow by `max_epochs` is too expensive at the expected cost of an epoch,
        which overrates such a miss a little while that cost is uncertain.
        """
        slow = _above((log_limit - mean) / np.sqrt(spread))
        reached, missed = knowledge.reached[places], knowledge.missed[places]
        weight = self.constants.model_weight
        other = np.where(reached > 0, knowledge.usual_misses, knowledge.usual_failures)
        prior = slow + (1 - slow) * other
        miss = np.minimum((missed + weight * prior) / (missed + reached + weight), _MOST_CERTAIN)
        return np.exp(np.minimum(mean + 0.5 * spread, log_limit)), miss

    # Stopping the best batch size

    def _restart(self, spec: JobSpec, knowledge: Knowledge, belief: Belief, best: int) -> float | None:
        """The cost at which a trial of the best batch size is stopped, because starting again is expected to cost less.

        With S(n) the probability that a trial has not reached the target after n epochs and m the expected cost of a
        new trial, stopping at N costs f(N) = c·ΣS(n) + S(N)·m, summed over n < N. The N with the least f is taken. S is
        lognormal, apart from a share of trials that never reach the target. None while no such trial has been seen, and
        if f only falls.
        """
        never = self._never(knowledge, belief, best)
        if never is None:
            return None
        epoch_cost, again = math.exp(belief.cost[best]), float(belief.expected[best])
        first = float(math.ceil(self.constants.patience * again / epoch_cost))
        last = min(max(first, spec.max_epochs), _LATEST_STOP * first)
        epochs = np.unique(np.geomspace(first, last, _STOPS).round())
        alive = never + (1 - never) * _slower(belief, best, np.log(epochs + 0.5))
        spent = epoch_cost * np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(epochs))])
        stop = epochs[np.argmin(spent + alive * again)]
        return float(stop * epoch_cost) if stop < last else None

    def _never(self, knowledge: Knowledge, belief: Belief, best: int) -> float | None:
        """The share of trials of the best batch size that never reach the target; None if none was seen.

        A miss counts by its probability of being one of those rather than a slow one, only at batch sizes that do reach
        the target. Half of the evidence is that of the batch size itself, half that of all.
        """
        places = np.flatnonzero((knowledge.reached > 0) & (knowledge.missed > 0))
        if not len(places):
            return None
        prior, weight = self.constants.never, self.constants.never_weight
        reached, here = knowledge.reached.sum(), knowledge.reached[best]
        longest = np.array([knowledge.evidence[place].longest for place in places])
        slower = _slower(belief, places, longest)
        rate = prior
        # Twice, since the probability that a miss is one of those depends on their share.
        for _ in range(2):
            shares = knowledge.missed[places] * rate / (rate + (1 - rate) * slower)
            never, own = shares.sum(), shares[places == best].sum()
            seen = 0.5 * (reached + never) + 0.5 * (here + own)
            rate = float((weight * prior + 0.5 * (never + own)) / (weight + seen))
        return rate

    def _prospects(self, spec: JobSpec, search: Search, knowledge: Knowledge, places: NDArray[np.int64]) -> _Prospects:
        running = np.array([arm.running for arm in search.arms])
        belief = self._belief(spec, knowledge)
        values = self._values(spec, search, knowledge, belief)
        working = np.array([not failing(arm) for arm in search.arms])
        return _Prospects(self, spec, knowledge, places, running, working, belief, values)


@dataclass(frozen=True)
class _Prospects:
    """The choice of one trial, once a trial has reached the target at one of the allowed batch sizes.

    Attributes:
        policy: The policy.
        spec: The job.
        knowledge: What is known.
        places: The indices of the allowed batch sizes, ascending.
        running: The number of running trials, by batch size (n,).
        working: Whether a batch size does not keep failing (n,).
        belief, values: The belief and its values.
    """

    policy: KnowledgeGradient
    spec: JobSpec
    knowledge: Knowledge
    places: NDArray[np.int64]
    running: NDArray[np.int64]
    working: NDArray[np.bool_]
    belief: Belief
    values: Values

    @cached_property
    def reached(self) -> NDArray[np.int64]:
        """The allowed batch sizes that have reached the target."""
        return self.places[self.knowledge.reached[self.places] > 0]

    @cached_property
    def best(self) -> int:
        """The best known batch size; at best not one that keeps failing and is due again."""
        working = self.reached[self.working[self.reached]]
        places = working if len(working) else self.reached
        return int(places[np.argmin(self.values.model[places])])

    @cached_property
    def price(self) -> Floats:
        """What a launch costs that tries a batch size: if it gets no model, it is repeated with the best known one."""
        again = (1 - self.values.delivers) * self.values.model[self.best]
        return np.asarray(self.values.trial + again)

    @cached_property
    def launches(self) -> float:
        """The launches for which an insight is used."""
        constants, window = self.policy.constants, self.spec.window_size
        launches = constants.horizon + constants.misfit_horizon * self.belief.misfit + self.knowledge.trials
        return min(launches, constants.windows * window) if window else launches

    @cached_property
    def worth(self) -> int:
        """The batch size to try, or the best known one if no result is worth what its trial costs.

        A trial pays off if its cost less the worth of its result is lower than that of the best known one. Of several
        such trials one can follow the other, so that their order only decides what is gained in between.
        """
        near = self.places[self._within_reach(self.reached[:1], self.reached[-1:])[0]]
        gain = np.maximum(self.values.model[near].min() - self._after(near), 0.0)
        price = self.price[near]
        whole = price - self.launches * gain
        pays = whole < whole[near == self.best]
        if not pays.any():
            return self.best
        soon = price - min(self.policy.constants.soon, self.launches) * gain
        return int(near[np.argmin(np.where(pays, soon, np.inf))])

    def choice(self) -> tuple[int, str]:
        """The batch size of the next trial, and the reason."""
        best = self.best
        if self.knowledge.retry:
            return best, f"{self._alone(best)}, the least of those tried; the trial that ended last delivered no model"
        default = self.spec.batch_sizes.index(self.spec.default_batch_size)
        untried = default in self.places and not (self.knowledge.known[default] or self.running[default])
        misled = self.belief.prior_trust < _LEAST_TRUST  # pragma: no mutate: it is never just that
        if misled and untried:
            return default, f"{self._beside(default)}; the prior jobs were wrong, so the default is tried"
        if self.worth != best:
            launches = f"{self.launches:.0f} launches"
            return self.worth, f"{self._beside(self.worth)}; a trial pays off, as its result serves the next {launches}"
        if (end := self._second_look()) is not None:
            beyond = "smaller" if end < best else "larger"  # pragma: no mutate: they are never equal
            return end, f"{self._beside(end)}; tried only once, and {beyond} batch sizes depend on it"
        if (other := self._insured()) is not None:
            return other, f"{self._beside(other)}; never tried, and affordable beside all that was spent"
        return best, f"{self._alone(best)}, the least of those tried; no other batch size is worth a trial"

    def _within_reach(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each allowed batch size is not far beyond the range from first to last (m,), or next to it (m, n)."""
        places, sizes = self.places, np.array(self.spec.batch_sizes)
        order, reach = np.arange(len(places)), 2.0**self.policy.constants.reach
        first, last = first[:, None], last[:, None]
        from_first = (sizes[places] >= sizes[first] / reach) | (order >= np.searchsorted(places, first) - 1)
        to_last = (sizes[places] <= sizes[last] * reach) | (order <= np.searchsorted(places, last) + 1)
        return np.asarray(from_first & to_last)

    def _after(self, near: NDArray[np.int64]) -> Floats:
        """Expected least R after one more trial of each near batch size (m,), by Gauss-Hermite quadrature.

        A trial also leads on, to batch sizes that come within reach by it; those still farther away do not count, since
        nothing can be done with them. What the running trials will tell, another trial does not need to find out.
        """
        belief, values, knowledge, places = self.belief, self.values, self.knowledge, self.places
        later = belief.once_ended(self.running, knowledge.evidence)
        grid = np.ix_(near, places)
        epochs_var = later.epochs_cov.diagonal()[near] + belief.noise[near]
        cost_var = later.cost_cov.diagonal()[near] + belief.cost_noise
        # How far the means move with one standard deviation of surprise: [trial of, mean of].
        by_epochs = later.epochs_cov[grid] / np.sqrt(epochs_var)[:, None]
        by_cost = later.cost_cov[grid] / np.sqrt(cost_var)[:, None]
        left = np.maximum(belief.variance[places] - by_epochs**2 - by_cost**2, 0) + belief.noise[places]
        # [trial of, node, mean of]
        unmoved = np.broadcast_to(belief.mean[places], by_epochs.shape)
        mean = _Z_NODES @ np.stack([unmoved, by_epochs, by_cost], axis=1)
        limit = values.log_limit[places]
        ok, miss = self.policy.ends(knowledge, places, mean, left[:, None, :], limit)
        then = Values(ok, miss, values.crash[places], values.crash_share, limit)
        leads_to = self._within_reach(np.minimum(near, self.reached[0]), np.maximum(near, self.reached[-1]))
        least: Floats = np.where(leads_to[:, None, :], then.model, np.inf).min(2) @ _Z_WEIGHTS
        return least

    def _second_look(self) -> int | None:
        """An end of the known range next to the best, with a single success: one bad draw closes no direction."""
        reached, places, knowledge, belief = self.reached, self.places, self.knowledge, self.belief
        if len(reached) < 2:
            return None
        for end, inner, goes_on in (
            (reached[0], reached[1], places[0] < reached[0]),
            (reached[-1], reached[-2], places[-1] > reached[-1]),
        ):
            once = knowledge.reached[end] == 1 and not knowledge.missed[end] and not self.running[end]
            worse = belief.mean[end] - belief.mean[self.best]
            doubt = self.policy.constants.second_look * math.sqrt(belief.variance[end])
            close = worse < doubt  # pragma: no mutate: they are never equal
            if goes_on and inner == self.best and once and close:
                return int(end)
        return None

    def _insured(self) -> int | None:
        """A batch size without a trial, once what such trials cost is a small share of all cost.

        Without it a second valley behind a hill would never be found. The worse the law fits, the sooner: only then
        there may be one.
        """
        new = self.places[~self.knowledge.known[self.places] & (self.running[self.places] == 0)]
        # Those between the batch sizes that have reached the target, and the next one on either side.
        first, last = np.searchsorted(new, (self.reached[0], self.reached[-1]))
        candidates = new[max(0, first - 1) : last + 1]
        if not len(candidates):
            return None
        extra = self.price[candidates] - self.values.model[self.best]
        spent = self.knowledge.insured + max(0.0, float(extra.min()))
        constants, trials = self.policy.constants, self.knowledge.trials
        share = constants.insurance * self.belief.misfit * trials / (trials + constants.insured_later)
        affordable = share * self.knowledge.total
        if spent > affordable:  # pragma: no mutate: they are never equal
            return None
        return int(candidates[extra.argmin()])

    def _alone(self, place: int) -> str:
        cost = float(self.values.model[place])
        deviation = cost * math.sqrt(math.expm1(float(self.belief.variance[place])))
        return f"expected {with_unit(cost, deviation)}"

    def _beside(self, place: int) -> str:
        best, cost = self.spec.batch_sizes[self.best], float(self.values.model[self.best])
        return f"{self._alone(place)}; batch size {best}, the best known, costs {with_unit(cost)}"


def _first(spec: JobSpec, search: Search, knowledge: Knowledge, places: NDArray[np.int64]) -> tuple[int, str]:
    """Nothing has reached the target: the least tried batch size, the nearest to the default, the smaller first.

    Those that only missed it in the prior jobs come after the others. Failures count once it has been set aside.
    """
    start = spec.default_batch_size if knowledge.first is None else knowledge.first
    center = spec.batch_sizes.index(start)
    missing = {place for place, prior in enumerate(knowledge.prior) if prior.missed and not prior.epochs.count}

    def tries(place: int) -> float:
        arm = search.arms[place]
        return float(knowledge.missed[place]) + arm.num_failed + arm.running

    def order(place: int) -> tuple[float, bool, int, int]:
        later = place in missing and place != center
        arm = search.arms[place]
        # A single failure says little: the batch size is tried again, until it has been set aside.
        failed = arm.num_failed if failing(arm) else 0
        return knowledge.missed[place] + failed + arm.running, later, abs(place - center), place

    place = min(map(int, places), key=order)
    arm = search.arms[place]
    which = "the default" if knowledge.first is None else "the best of the prior jobs"
    if place == center and not tried(search):
        return place, f"{which} is tried first"
    ended = {"missed the target": knowledge.missed[place], "failed": arm.num_failed, "is running": arm.running}
    seen = [f"{_counted(int(count), 'trial')} {what}" for what, count in ended.items() if count]
    chosen = which if place == center else f"the nearest to {which}, {start}"
    skipped = missing - {center} and place not in missing
    least = min(map(tries, map(int, places)))
    why = f"of the least tried, this is {chosen}"
    if tries(place) != least:
        why = f"this is {chosen}, tried again after a failure"
    return place, (
        f"no allowed batch size has reached the target{' in the window' if spec.window_size else ' yet'}; "
        f"{why} ({', '.join(seen) or 'no trial so far'})"
        f"{'; those that only missed it in the prior jobs come later' if skipped else ''}"
    )


def _launched(trial: Trial) -> bool:
    """Whether a trial is a launch of the job, of which the next one may be a retry."""
    return trial.type is not TrialType.IMPORTED


def _retried(knowledge: Knowledge, trial: Trial) -> bool:
    """Whether the next launch repeats a trial that delivered no model: a launch, since which none has delivered."""
    newest = trial.number > knowledge.delivered  # pragma: no mutate: the one that delivered has ended
    return newest and _launched(trial)


def _usable(search: Search, knowledge: Knowledge) -> NDArray[np.int64]:
    """The indices of the batch sizes that have reached the target and may be chosen; at best without failing ones."""
    surviving = {arm.batch_size for arm in search.surviving}
    reached = [place for place in np.flatnonzero(knowledge.reached) if search.arms[place].batch_size in surviving]
    places = [place for place in reached if not failing(search.arms[place])] or reached
    return np.array(places, np.int64)  # pragma: no mutate: an empty array of another type is never an index


def _limit(spec: JobSpec, search: Search, knowledge: Knowledge, belief: Belief) -> float:
    """The cost at which trials are stopped: β times the least expected cost of a trial that reaches the target."""
    usable = _usable(search, knowledge)
    if spec.beta_knob is None or not len(usable):
        return math.inf
    return spec.beta_knob * float(belief.expected[usable].min())


def _hint(spec: JobSpec, batch_size: int, watts: float) -> float:
    """log2 K from the first trial's power draw.

    A GPU far below its power limit is not saturated, so that a larger batch is cheaper. Between a fifth of the limit,
    idle, and three fifths the power is taken to be linear in the utilization U = b/(b + K), the share of a batch's time
    1 + K/b that its samples take.
    """
    used = (watts / spec.gpu.max_power_watts - 0.2) / 0.4
    utilization = min(max(used, 0.05), 0.95)
    return math.log2(batch_size * (1 - utilization) / utilization)


def _slower(belief: Belief, places: Any, log_epochs: Floats) -> Floats:
    """P(E > n), with one and a half times the standard deviation: tails are heavier than the normal's."""
    deviation = 1.5 * np.sqrt(belief.epochs_cov.diagonal()[places] + belief.noise[places])
    return _above((log_epochs - belief.epochs[places]) / deviation)


def _with_seen(evidence: tuple[Evidence, ...], trials: Iterable[Seen]) -> tuple[Evidence, ...]:
    every = list(evidence)
    for seen in trials:
        known = every[seen.place]
        if seen.epoch_cost is not None:
            known = known._replace(epoch_cost=known.epoch_cost.add(seen.epoch_cost))
        if seen.reached:
            known = known._replace(epochs=known.epochs.add(seen.epochs))
        else:
            known = known._replace(missed=known.missed + 1, longest=max(known.longest, seen.epochs))
        every[seen.place] = known
    return tuple(every)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


POLICY = KnowledgeGradient()
