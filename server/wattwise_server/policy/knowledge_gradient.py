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

B, L and K lie on a grid of knots, and the process has one of several amplitudes, so that the belief is a mixture of
Gaussians; its first two moments are used. A trial that missed the target is a censored observation: E was larger.

    ok    expected cost of a trial that reaches the target, at most its limit
    q     probability that a trial misses the target; r that it crashes
    A     expected cost of a trial:  (1−r)·((1−q)·ok + q·limit) + r·(cost of a crash)
    R     expected cost of a model if only this batch size is used, misses and crashes included:  A / ((1−r)·(1−q))

The next trial is the one whose cost now, less what knowing its result is expected to save over the coming launches, is
least: the knowledge gradient of Frazier, Powell and Dayanik, "A Knowledge-Gradient Policy for Sequential Information
Collection", SIAM J. Control Optim. 47(5), 2008. A trial is stopped at β times the least R, a trial of the best batch
size only if trials are known to fail without a reason and starting again is expected to cost less than going on.

All is deterministic. The state is `Knowledge`, kept as JSON in `Search.notes`: a few sums for each batch size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattwise_server.domain import Arm, JobSpec, Moments, Search, Stage, Trial, TrialType
from wattwise_server.policy.base import ArmBelief, Choice, Event, Exhausted, Failed, Prior, Succeeded
from wattwise_server.policy.failures import available

Floats: TypeAlias = NDArray[np.float64]

LARGEST_WINDOW = 1000
"""The window is part of the state, which is saved with every trial."""

_VAGUE = 25.0
"""Variance of the constants of e and k: nothing is known about them."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
# Gauss-Hermite nodes and weights for the surprise in ln E and the surprise in ln c.
_Z_EPOCHS, _Z_COST = (axis.ravel() for axis in np.meshgrid(_NODES, _NODES))
_Z_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel() / _WEIGHTS.sum() ** 2


class Deviation(NamedTuple):
    """A Gaussian process for the deviation from a law: standard deviation, length in octaves, and prior weight."""

    amplitude: float
    octaves: float
    weight: float = 1.0


@dataclass(frozen=True)
class Constants:
    """The model's constants, chosen on recorded traces and synthetic workloads.

    Attributes:
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
        hint: Trust in average power as a hint of saturation, in octaves; 0 ignores it.
        horizon: Launches for which an insight is used: this number, and as many as there were.
        reach: How far beyond the batch sizes that reached the target a trial may go, in octaves, or to the next one.
        second_look: Standard deviations within which the end of the known range is tried a second time.
        model_weight: Weight of the model in the probability of a miss, in trials.
        crash_weight: Weight of the job's crash rate in that of a batch size, in trials.
        never: Prior probability that a trial never reaches the target, whatever its batch size.
        never_weight: Weight of that prior, in trials.
        patience: A trial of the best batch size is not stopped before this multiple of its expected cost.
        insurance: Share of all cost that may go into first trials of batch sizes that the model does not recommend.
        prior_weight: Largest weight of a prior job, in trials of each batch size.
        prior_trust: Prior probability that the prior jobs tell the epochs of this one.
    """

    epochs_noise: float = 0.10
    whole_epochs: float = 0.35
    noise_weight: float = 4.0
    pooling: float = 4.0
    epochs_deviations: tuple[Deviation, ...] = (Deviation(0.1, 2.0), Deviation(0.3, 2.0), Deviation(0.6, 1.5))
    epochs_apart: float = 0.05
    cost_deviation: Deviation = Deviation(0.2, 3.0)
    cost_apart: float = 0.03
    cost_noise: float = 0.01
    rise: float = 0.25
    hint: float = 2.0
    horizon: float = 100.0
    reach: float = 1.6
    second_look: float = 1.0
    model_weight: float = 0.5
    crash_weight: float = 2.0
    never: float = 0.002
    never_weight: float = 2.0
    patience: float = 1.3
    insurance: float = 0.005
    prior_weight: float = 4.0
    prior_trust: float = 0.8


class Evidence(NamedTuple):
    """What the trials of one batch size have shown.

    Attributes:
        epochs: ln E of the trials that reached the target.
        epoch_cost: ln c of all trials.
        missed: Trials that did not reach the target.
        longest: Largest ln of their epochs.
    """

    epochs: Moments = Moments()
    epoch_cost: Moments = Moments()
    missed: float = 0.0
    longest: float = 0.0

    @property
    def longest_epochs(self) -> Floats:
        """The largest number of epochs without reaching the target."""
        return np.exp(np.array(self.longest))


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
        first_trials: What first trials of batch sizes cost beyond the best known one, in joules.
        retry: Whether the trial that ended last delivered no model.
        window: The newest trials; only for a job with a window.
    """

    evidence: tuple[Evidence, ...]
    prior: tuple[Evidence, ...] = ()
    first: int | None = None
    hint: float | None = None
    trials: int = 0
    total: float = 0.0
    first_trials: float = 0.0
    retry: bool = False
    window: tuple[Seen, ...] = ()

    @cached_property
    def derived(self) -> dict[object, Any]:
        """What was computed from it, so that it is computed once."""
        return {}

    def to_json(self) -> str:
        """The state as text; floats keep every bit."""
        state = {name: getattr(self, name) for name in ("first", "hint", "trials", "total", "first_trials", "retry")}
        state["window"] = self.window
        state["evidence"] = [_flat(known) for known in self.evidence]
        state["prior"] = [_flat(known) for known in self.prior]
        return json.dumps(state, separators=(",", ":"))


@lru_cache(maxsize=1024)
def read(notes: str) -> Knowledge:
    """The state of `Knowledge.to_json`."""
    state: dict[str, Any] = json.loads(notes)
    state["window"] = tuple(Seen(*seen) for seen in state["window"])
    for name in ("evidence", "prior"):
        state[name] = tuple(_unflat(row) for row in state[name])
    return Knowledge(**state)


def _flat(known: Evidence) -> list[float]:
    epochs, costs = known.epochs, known.epoch_cost
    sums = [epochs.count, epochs.mean, epochs.deviation, costs.count, costs.mean, costs.deviation]
    return [*sums, known.missed, known.longest]


def _unflat(row: Sequence[Any]) -> Evidence:
    return Evidence(Moments(*row[0:3]), Moments(*row[3:6]), row[6], row[7])


@dataclass(frozen=True, slots=True)
class Belief:
    """The belief about ln E and ln c at n batch sizes.

    Attributes:
        epochs, epochs_cov: Mean (n,) and covariance (n, n) of ln E without the noise.
        cost, cost_cov: The same of ln c.
        noise: Variance of ln E between trials, by batch size (n,).
        job_noise: The job's s².
        cost_noise: Variance of ln c between trials.
    """

    epochs: Floats
    epochs_cov: Floats
    cost: Floats
    cost_cov: Floats
    noise: Floats
    job_noise: float
    cost_noise: float

    @property
    def mean(self) -> Floats:
        """Mean of ln C without the noise."""
        return self.epochs + self.cost

    @property
    def variance(self) -> Floats:
        """Variance of that belief."""
        return np.maximum(np.diag(self.epochs_cov) + np.diag(self.cost_cov), 1e-12)

    def while_running(self, running: Sequence[int], known: Sequence[Evidence]) -> Belief:
        """The belief with the covariance that the results of running trials will remove."""
        epochs_cov, cost_cov = self.epochs_cov, self.cost_cov
        for place, trials in enumerate(running):
            if trials:
                epochs_cov = _conditioned(epochs_cov, place, self.job_noise / trials)
                if not known[place].epoch_cost.count:
                    cost_cov = _conditioned(cost_cov, place, self.cost_noise)
        return replace(self, epochs_cov=epochs_cov, cost_cov=cost_cov)


def _conditioned(cov: Floats, place: int, noise: float) -> Floats:
    return cov - np.outer(cov[place], cov[place]) / (cov[place, place] + noise)


class _Fit(NamedTuple):
    """Moments of a mixture of Gaussian processes after some observations, and the log of their likelihood."""

    mean: Floats
    cov: Floats
    log_likelihood: float


class _Model:
    """What the belief of a job starts from: its curves and processes at its batch sizes.

    Args:
        sizes: The batch sizes, ascending.
        constants: The constants.
    """

    def __init__(self, sizes: tuple[int, ...], constants: Constants) -> None:
        self.constants = constants
        x = self.x = np.log2(np.array(sizes, float))
        knots = self.knots = np.arange(x[0] - 2, x[-1] + 2.01, 1.5)
        ratio = 2.0 ** (x[:, None] - knots)
        left = knots[knots < x[-1]][::2]
        risen = [np.log(1 + ratio + 2.0 ** (knot - x)[:, None]) for knot in left]
        flat, rise = np.full(len(knots), 1 / len(knots)), constants.rise
        self.epochs_curves = np.hstack([np.log(1 + ratio), *risen])
        self.epochs_weights = np.concatenate([flat * (1 - rise)] + [flat * rise / len(left)] * len(left))
        self.cost_curves, self.cost_weights = np.log(1 + 1 / ratio), flat
        distance = (x[:, None] - x) ** 2

        def kernel(process: Deviation, apart: float) -> Floats:
            smooth = process.amplitude**2 * np.exp(-distance / (2 * process.octaves**2))
            return _VAGUE + smooth + apart**2 * np.eye(len(x))

        self.epochs_kernels = [kernel(each, constants.epochs_apart) for each in constants.epochs_deviations]
        total = sum(each.weight for each in constants.epochs_deviations)
        self.kernel_weights = [each.weight / total for each in constants.epochs_deviations]
        self.cost_kernel = kernel(constants.cost_deviation, constants.cost_apart)

    def belief(self, knowledge: Knowledge) -> Belief:
        """The belief after at least one trial has reached the target."""
        epochs, noise, job_noise = self._epochs(knowledge)
        known = [place for place, each in enumerate(knowledge.evidence) if each.epoch_cost.count]
        costs = [knowledge.evidence[place].epoch_cost for place in known]
        own = sum(each.deviation for each in costs)
        freedom = sum(each.count - 1 for each in costs)
        weight = self.constants.noise_weight
        cost_noise = (weight * self.constants.cost_noise**2 + own) / (weight + freedom)
        variances = np.array([cost_noise / each.count for each in costs])
        means = np.array([each.mean for each in costs])
        weights = self._hinted(knowledge.hint)
        cost = _fit([self.cost_kernel], [1.0], self.cost_curves, weights, np.array(known), means, variances)
        return Belief(epochs.mean, epochs.cov, cost.mean, cost.cov, noise, job_noise, cost_noise)

    def _hinted(self, hint: float | None) -> Floats:
        if hint is None or not self.constants.hint:
            return self.cost_weights
        near = np.exp(-0.5 * ((self.knots - hint) / self.constants.hint) ** 2) + 0.1
        weights: Floats = self.cost_weights * near
        return weights / weights.sum()

    def _epochs(self, knowledge: Knowledge) -> tuple[_Fit, Floats, float]:
        alone = self._fit_epochs([knowledge.evidence])
        if not any(each.epochs.count for each in knowledge.prior):
            return alone
        # Two hypotheses: the prior jobs tell the epochs of this one, or they don't.
        together = self._fit_epochs([knowledge.prior, knowledge.evidence])
        before = self._fit_epochs([knowledge.prior])
        trust = self.constants.prior_trust
        odds = math.log(trust / (1 - trust)) + together[0].log_likelihood - before[0].log_likelihood
        share = 0.5 * (1 + math.tanh(0.5 * (odds - alone[0].log_likelihood)))
        fits = ((share, together[0]), (1 - share, alone[0]))
        mean = sum((weight * fit.mean for weight, fit in fits), np.zeros(len(self.x)))
        cov = sum(
            (weight * (fit.cov + np.outer(fit.mean - mean, fit.mean - mean)) for weight, fit in fits),
            np.zeros((len(self.x), len(self.x))),
        )
        noise = share * together[1] + (1 - share) * alone[1]
        return _Fit(mean, cov, 0.0), noise, share * together[2] + (1 - share) * alone[2]

    def _fit_epochs(self, sources: Sequence[tuple[Evidence, ...]]) -> tuple[_Fit, Floats, float]:
        """The belief about ln E, the noise of each batch size, and the job's noise."""
        noise, job_noise = self._noise(sources)
        rows = [(place, each) for source in sources for place, each in enumerate(source)]
        reached = [(place, each.epochs) for place, each in rows if each.epochs.count]
        places = [place for place, _ in reached]
        means = [each.mean for _, each in reached]
        variances = [noise[place] / each.count for place, each in reached]
        found = fit = self._fit(places, means, variances)
        for place, each in rows:
            if each.missed:
                # "More epochs than": the mean of the truncated normal, as an observation.
                deviation = math.sqrt(fit.cov[place, place] + noise[place])
                surprise = (each.longest - fit.mean[place]) / deviation
                places.append(place)
                means.append(fit.mean[place] + deviation * _mills(surprise))
                variances.append(noise[place] / each.missed + 0.01)
                fit = self._fit(places, means, variances)
        return fit._replace(log_likelihood=found.log_likelihood), noise, job_noise

    def _fit(self, places: list[int], means: list[float], variances: list[float]) -> _Fit:
        at, y, v = np.array(places), np.array(means), np.array(variances)
        return _fit(self.epochs_kernels, self.kernel_weights, self.epochs_curves, self.epochs_weights, at, y, v)

    def _noise(self, sources: Sequence[tuple[Evidence, ...]]) -> tuple[Floats, float]:
        """Variance of ln E between trials of each batch size (n,), and of the job: inverse-gamma estimates."""
        constants = self.constants
        every = [each for source in sources for each in source]
        trials = sum(each.epochs.count + each.missed for each in every)
        mean = sum(each.epochs.count * each.epochs.mean + each.missed * each.longest for each in every) / trials
        prior = constants.epochs_noise**2 + constants.whole_epochs * math.exp(-2 * mean)
        own = sum(np.array([each.epochs.deviation for each in source]) for source in sources)
        freedom = sum(np.array([max(0, each.epochs.count - 1) for each in source]) for source in sources)
        weight, pooling = constants.noise_weight, constants.pooling
        job = max(1e-4, (weight * prior + own.sum()) / (weight + freedom.sum()))
        return (weight * prior + pooling * job + own) / (weight + pooling + freedom), float(job)


@lru_cache(maxsize=256)
def _model(sizes: tuple[int, ...], constants: Constants) -> _Model:
    return _Model(sizes, constants)


def _fit(
    kernels: Sequence[Floats],
    kernel_weights: Sequence[float],
    curves: Floats,
    curve_weights: Floats,
    at: NDArray[np.int64],
    observed: Floats,
    variances: Floats,
) -> _Fit:
    """Gaussian process regression with a mixture of mean functions and kernels.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1, for each kernel; a curve's and
    a kernel's weight is its prior weight times its likelihood.

    Args:
        kernels: Covariances (n, n).
        kernel_weights: Their prior weights.
        curves: Mean functions (n, h).
        curve_weights: Their prior weights (h,).
        at: The batch sizes that were observed (m,).
        observed: The observations (m,).
        variances: Their variances (m,).
    """
    means, covs, logs = [], [], []
    width = curves.shape[1]
    for kernel, weight in zip(kernels, kernel_weights, strict=True):
        factor = np.linalg.cholesky(kernel[np.ix_(at, at)] + np.diag(variances))
        solved = np.linalg.solve(factor, np.hstack([observed[:, None] - curves[at], kernel[at]]))
        residuals, cross = solved[:, :width], solved[:, width:]
        logs.append(np.log(curve_weights * weight) - 0.5 * (residuals**2).sum(0) - np.log(np.diag(factor)).sum())
        means.append(curves + cross.T @ residuals)
        covs.append(kernel - cross.T @ cross)
    log = np.concatenate(logs)
    largest = log.max()
    shares = np.exp(log - largest)
    likelihood = largest + math.log(shares.sum())
    shares /= shares.sum()
    every = np.hstack(means)
    mean = every @ shares
    apart = every - mean[:, None]
    cov = sum(share * each for share, each in zip(shares.reshape(len(kernels), -1).sum(1), covs, strict=True))
    return _Fit(mean, cov + (apart * shares) @ apart.T, likelihood)


def _above(z: Floats) -> Floats:
    """P(Z > z) of a standard normal (Page, Applied Statistics 26(1), 1977; absolute error below 2e-4)."""
    tail: Floats = 0.5 * (1 - np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return tail


def _mills(z: float) -> float:
    """E[Z | Z > z] of a standard normal."""
    if z > 6:
        return z + 1 / z
    return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(z / math.sqrt(2)))


@dataclass(frozen=True)
class Values:
    """What the belief says about costs, by batch size (n,); see the glossary of the module.

    Attributes:
        ok, miss, crash: Expected cost of a trial that reaches the target, in joules; q; r.
        crash_cost: Expected cost of a crash, in joules.
        log_limit: ln of the cost at which a trial ends without reaching the target.
    """

    ok: Floats
    miss: Floats
    crash: Floats
    crash_cost: Floats
    log_limit: Floats

    @cached_property
    def trial(self) -> Floats:
        """A: expected cost of a trial, in joules."""
        ended = (1 - self.miss) * self.ok + self.miss * np.exp(self.log_limit)
        return (1 - self.crash) * ended + self.crash * self.crash_cost

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

    def __init__(self, constants: Constants = Constants()) -> None:  # noqa: B008 - immutable
        self.constants = constants

    def faults(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """The window is part of the state."""
        if spec.window_size > LARGEST_WINDOW:
            yield "window_size", f"is {spec.window_size}; use at most {LARGEST_WINDOW}, or 0 for all trials"

    def register(self, spec: JobSpec, priors: Sequence[Prior] = ()) -> Search:
        """A search that starts at the default batch size, or at the best one of the prior jobs."""
        sizes = spec.batch_sizes
        prior = tuple(self._prior(size, priors) for size in sizes) if priors else ()
        best = (each.best for each in priors)
        first = next((size for size in best if size in sizes), None)
        knowledge = Knowledge(tuple(Evidence() for _ in sizes), prior, first)
        arms = tuple(map(Arm, sizes))
        return Search(Stage.MAB, arms, 0, spec.default_batch_size, notes=knowledge.to_json())

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:  # noqa: ARG002 - it draws nothing
        """The batch size whose trial costs least, less what its result is worth."""
        allowed = {arm.batch_size for arm in available(search, trial_number)}
        if not allowed:
            return Exhausted()
        places = np.array([place for place, size in enumerate(spec.batch_sizes) if size in allowed])
        knowledge = read(search.notes)
        reached = [place for place in places if knowledge.evidence[place].epochs.count]
        if not reached:
            place, reason = self._first(spec, search, knowledge, places)
        else:
            place, reason = self._weighed(spec, search, knowledge, places, reached)
        size = spec.batch_sizes[place]
        return Choice(TrialType.MAB, size, f"{size}: {reason}")

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """Adds a decided trial to the evidence."""
        knowledge = read(search.notes)
        match event:
            case Succeeded(trial):
                knowledge = self._learned(spec, search, knowledge, trial)
            case Failed(trial):
                knowledge = replace(knowledge, retry=True)
            case _:
                return search
        return replace(search, notes=knowledge.to_json())

    def bound(self, spec: JobSpec, search: Search, batch_size: int) -> float | None:
        """β times the least expected cost; for the best known batch size None, or where starting again is cheaper."""
        outlook = self._outlook(spec, search)
        return outlook.bounds[batch_size] if outlook else None

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """Mean and deviation of the cost at every batch size; nothing before a trial has reached the target."""
        outlook = self._outlook(spec, search)
        evidence = read(search.notes).evidence
        if outlook is None:
            return [ArmBelief(arm.batch_size, 0.0, 0.0, 0.0, 0) for arm in search.arms]
        variance, noise = outlook.belief.variance, outlook.belief.job_noise
        mean = np.exp(outlook.belief.mean + 0.5 * (variance + noise))
        models, fails = outlook.values.model, 1 - outlook.values.delivers
        return [
            ArmBelief(
                arm.batch_size,
                -float(mean[place]),
                float(1 / (np.expm1(variance[place]) * mean[place] ** 2)),
                float(1 / (np.expm1(noise) * mean[place] ** 2)),
                evidence[place].epochs.count + int(evidence[place].missed),
                float(models[place]),
                float(models[place] * math.sqrt(np.expm1(variance[place]))),
                float(fails[place]),
            )
            for place, arm in enumerate(search.arms)
        ]

    # Evidence

    def _prior(self, size: int, priors: Sequence[Prior]) -> Evidence:
        """What prior jobs tell about one batch size, with a weight of a few trials."""
        epochs, missed, longest = Moments(), 0, 0.0
        for prior in priors:
            epochs = epochs.merge(prior.epochs.get(size, Moments()))
            count, most = prior.missed.get(size, (0, 0.0))
            missed, longest = missed + count, max(longest, most)
        trials = epochs.count + missed
        share = min(1.0, self.constants.prior_weight / trials) if trials else 0.0
        shrunk = Moments(epochs.count * share, epochs.mean, epochs.deviation * share)  # type: ignore[arg-type]
        return Evidence(shrunk, Moments(), missed * share, longest)

    def _learned(self, spec: JobSpec, search: Search, knowledge: Knowledge, trial: Trial) -> Knowledge:
        if trial.last is None or trial.cost is None:
            return knowledge
        place = spec.batch_sizes.index(trial.batch_size)
        # A trial without cost tells nothing about costs.
        each = math.log(trial.cost / trial.last.epoch) if trial.cost > 0 else None
        seen = Seen(place, math.log(trial.last.epoch), each, trial.target_reached)
        before = knowledge.evidence[place]
        is_first = not (before.epochs.count or before.missed)
        outlook = self._outlook(spec, search) if is_first else None
        extra = max(0.0, trial.cost - float(outlook.values.model[outlook.best])) if outlook else 0.0
        hint = knowledge.hint
        if not knowledge.trials and trial.last.energy_joules > 0 and trial.last.time_seconds > 0:
            hint = self._hint(spec, trial.batch_size, trial.last.energy_joules / trial.last.time_seconds)
        window = (*knowledge.window, seen)[-spec.window_size :] if spec.window_size else ()
        if len(window) > len(knowledge.window) or not spec.window_size:
            evidence = _with_seen(knowledge.evidence, seen)
        else:
            evidence = (Evidence(),) * len(spec.batch_sizes)
            for each_seen in window:
                evidence = _with_seen(evidence, each_seen)
        return replace(
            knowledge,
            evidence=evidence,
            window=window,
            hint=hint,
            trials=knowledge.trials + 1,
            total=knowledge.total + trial.cost,
            first_trials=knowledge.first_trials + extra,
            retry=not trial.target_reached,
        )

    @staticmethod
    def _hint(spec: JobSpec, batch_size: int, watts: float) -> float:
        """log2 K from the first trial's power draw.

        A GPU far below its power limit is not saturated, so that a larger batch is cheaper: the time of a batch is a
        fixed part and a part for each sample, 1 + K/b, whose second part is the utilization U = b/(b + K).
        """
        used = (watts / spec.gpu.max_power_watts - 0.2) / 0.4
        utilization = min(max(used, 0.05), 0.95)
        return math.log2(batch_size * (1 - utilization) / utilization)

    # Belief

    def _outlook(self, spec: JobSpec, search: Search) -> _Outlook | None:
        """What the search leads to; None before a trial has reached the target. Computed once for each search."""
        if self not in search.derived:
            search.derived[self] = self._computed_outlook(spec, search)
        outlook: _Outlook | None = search.derived[self]
        return outlook

    def _computed_outlook(self, spec: JobSpec, search: Search) -> _Outlook | None:
        knowledge = read(search.notes)
        reached = [place for place, each in enumerate(knowledge.evidence) if each.epochs.count]
        if not reached:
            return None
        belief = self._belief(spec, knowledge)
        values = self._values(spec, search, knowledge, belief, reached)
        surviving = [place for place in reached if search.arms[place] in search.surviving]
        best = min(surviving or reached, key=lambda place: float(values.model[place]))
        if spec.beta_knob is None:
            bounds: dict[int, float | None] = dict.fromkeys(spec.batch_sizes)
        else:
            # A job always delivers: after two trials in a row that were stopped, the bound doubles with each further one.
            relaxed = 2.0 ** min(max(0, search.bound_stops - 1), 64)
            bound = relaxed * float(self._limit(spec, belief, reached))
            bounds = dict.fromkeys(spec.batch_sizes, bound)
            restart = self._restart(spec, knowledge, belief, best)
            bounds[spec.batch_sizes[best]] = restart and relaxed * restart
        return _Outlook(belief, values, best, bounds)

    def _belief(self, spec: JobSpec, knowledge: Knowledge) -> Belief:
        model = _model(spec.batch_sizes, self.constants)
        if model not in knowledge.derived:
            knowledge.derived[model] = model.belief(knowledge)
        belief: Belief = knowledge.derived[model]
        return belief

    def _limit(self, spec: JobSpec, belief: Belief, reached: Sequence[int]) -> float:
        """β times the least expected cost of a trial that reaches the target."""
        if spec.beta_knob is None:
            return math.inf
        expected = np.exp(belief.mean + 0.5 * (belief.variance + belief.job_noise))
        return spec.beta_knob * float(expected[reached].min())

    def _values(
        self, spec: JobSpec, search: Search, knowledge: Knowledge, belief: Belief, reached: Sequence[int]
    ) -> Values:
        mean, spread = belief.mean, belief.variance + belief.job_noise
        log_limit = np.minimum(
            np.log(self._limit(spec, belief, reached)), belief.cost + math.log(spec.max_epochs + 0.5)
        )
        missed = np.array([each.missed for each in knowledge.evidence])
        converged = np.array([each.epochs.count for each in knowledge.evidence])
        miss = self._miss(_above((log_limit - mean) / np.sqrt(spread)), missed, converged)
        ok = np.exp(np.minimum(mean + 0.5 * spread, log_limit))
        crash, crash_cost = self._crashes(search, ok)
        return Values(ok, miss, crash, crash_cost, log_limit)

    def _miss(self, modelled: Floats, missed: Floats, converged: Floats) -> Floats:
        """q: the share of trials that missed the target, with the model's probability as a prior."""
        weight = self.constants.model_weight
        rate: Floats = np.minimum((missed + weight * modelled) / (missed + converged + weight), 0.99)
        return rate

    def _crashes(self, search: Search, ok: Floats) -> tuple[Floats, Floats]:
        """r, and the expected cost of a crash. A batch size without crashes is expected to crash like the others."""
        failed = np.array([float(arm.num_failed - arm.out_of_memory) for arm in search.arms])
        if not failed.any():
            return np.zeros(len(ok)), ok
        decided = np.array([float(arm.num_succeeded) for arm in search.arms])
        weight = self.constants.crash_weight
        usual = failed.sum() / (failed.sum() + decided.sum() + weight)
        crash = np.minimum((failed + weight * usual) / (failed + decided + weight), 0.99)
        spent = sum(arm.failed_cost for arm in search.arms)
        return crash, ok * min(1.0, spent / float(failed @ ok))

    def _restart(self, spec: JobSpec, knowledge: Knowledge, belief: Belief, best: int) -> float | None:
        """The cost at which a trial of the best batch size is stopped, because starting again is expected to cost less.

        With S(n) the probability that a trial has not reached the target after n epochs and m the expected cost of a new
        trial, stopping at N costs f(N) = c·ΣS(n) + S(N)·m, n < N: the first N is taken from which f only rises. S is
        lognormal, apart from a share of trials that never reach the target. None while no such trial has been seen.
        """
        rate = self._never(knowledge, belief, best)
        if rate is None:
            return None
        epoch_cost = math.exp(belief.cost[best])
        again = math.exp(belief.mean[best] + 0.5 * (belief.variance[best] + belief.job_noise))
        first = max(1, math.ceil(self.constants.patience * again / epoch_cost))
        last = min(spec.max_epochs, 50 * first)
        if first >= last:
            return None
        # Few enough to be fast where a trial takes thousands of epochs.
        epochs = np.unique(np.geomspace(first, last, 400).round())
        alive = rate + (1 - rate) * self._slower(belief, best, epochs)
        spent = epoch_cost * np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(epochs))])
        total = spent + alive * again
        later = np.minimum.accumulate(total[::-1])[::-1]
        stops = np.flatnonzero(total[:-1] <= later[1:])
        return float(epochs[stops[0]] * epoch_cost) * (1 - 1e-9) if len(stops) else None

    def _never(self, knowledge: Knowledge, belief: Belief, best: int) -> float | None:
        """The share of trials of the best batch size that never reach the target; None if none was seen.

        A miss counts by its probability of being one of those rather than a slow one, only at batch sizes that do reach
        the target. Half of the evidence is that of the batch size itself, half that of all.
        """
        known = [(place, each) for place, each in enumerate(knowledge.evidence) if each.epochs.count]
        if not any(each.missed for _, each in known):
            return None
        weight, rate = self.constants.never_weight, self.constants.never
        own = never = 0.0
        for _ in range(2):
            shares = {
                place: each.missed
                * rate
                / (rate + (1 - rate) * float(self._slower(belief, place, each.longest_epochs)))
                for place, each in known
            }
            never, own = sum(shares.values()), shares.get(best, 0.0)
            reached = sum(each.epochs.count for _, each in known)
            here = knowledge.evidence[best].epochs.count
            prior = weight * self.constants.never
            rate = (prior + 0.5 * (never + own)) / (weight + 0.5 * (reached + never) + 0.5 * (here + own))
        return rate

    def _slower(self, belief: Belief, place: int, epochs: Floats) -> Floats:
        """P(E > n), with one and a half times the standard deviation: tails are heavier than the normal's."""
        deviation = 1.5 * math.sqrt(belief.epochs_cov[place, place] + belief.noise[place])
        return _above((np.log(epochs + 0.5) - belief.epochs[place]) / deviation)

    # Choice

    def _first(self, spec: JobSpec, search: Search, knowledge: Knowledge, places: NDArray[np.int64]) -> tuple[int, str]:
        """Nothing has reached the target: the least tried batch size, the nearest to the default, the smaller first."""
        start = spec.default_batch_size if knowledge.first is None else knowledge.first
        center = spec.batch_sizes.index(start)

        def order(place: int) -> tuple[float, int, int]:
            tried = knowledge.evidence[place].missed + search.arms[place].running
            return tried, abs(place - center), place

        place = min(map(int, places), key=order)
        if place == center and not knowledge.trials:
            origin = "the default" if knowledge.first is None else "the best of the prior jobs"
            return place, f"{origin} is tried first"
        tried = knowledge.evidence[place].missed
        which = "not tried yet" if not tried else f"tried {tried:.0f} times, as few as any"
        return place, f"nothing has reached the target yet; of the batch sizes {which}, it is the nearest to {start}"

    def _weighed(
        self, spec: JobSpec, search: Search, knowledge: Knowledge, places: NDArray[np.int64], reached: Sequence[int]
    ) -> tuple[int, str]:
        """The batch size with the least cost less the worth of knowing its result, and the reason."""
        running = [arm.running for arm in search.arms]
        belief = self._belief(spec, knowledge).while_running(running, knowledge.evidence)
        everywhere = [place for place, each in enumerate(knowledge.evidence) if each.epochs.count]
        values = self._values(spec, search, knowledge, belief, everywhere)
        models = values.model
        best = min(reached, key=lambda place: float(models[place]))
        view = _View(spec, belief, models, best)
        if knowledge.retry:
            return best, f"{view.alone(best)}, the least known; the trial that ended last delivered no model"
        near = self._within_reach(spec, places, reached)
        # What a trial costs until there is a model: a launch that gets none is repeated with the best known.
        price = values.trial + (1 - values.delivers) * models[best]
        gain = np.maximum(models[near].min() - self._after(belief, values, knowledge, near), 0.0)
        launches = self.constants.horizon + knowledge.trials
        pick = int(near[np.argmin(price[near] - launches * gain)])
        if pick != best:
            return pick, f"{view.beside(pick)}; worth a trial for the next {launches:.0f} launches"
        if (end := self._second_look(belief, knowledge, running, places, reached, best)) is not None:
            return end, f"{view.beside(end)}; one trial does not rule out that it gets better beyond"
        if (untried := self._insured(knowledge, running, places, reached, price - models[best])) is not None:
            return untried, f"{view.beside(untried)}; not tried yet, and affordable beside all that was spent"
        return best, f"{view.alone(best)}, the least of {len(places)} batch sizes"

    def _within_reach(self, spec: JobSpec, places: NDArray[np.int64], reached: Sequence[int]) -> NDArray[np.int64]:
        """The allowed batch sizes not far beyond those that reached the target, and at least the next on each side."""
        x = np.log2(np.array(spec.batch_sizes, float))
        low, high = x[reached[0]] - self.constants.reach, x[reached[-1]] + self.constants.reach
        below, above = places[places < reached[0]], places[places > reached[-1]]
        near = (x[places] >= low - 1e-9) & (x[places] <= high + 1e-9)
        return np.unique(np.concatenate([places[near], below[-1:], above[:1]]))

    def _after(self, belief: Belief, values: Values, knowledge: Knowledge, near: NDArray[np.int64]) -> Floats:
        """Expected least R after one more trial of each batch size (m,), by Gauss-Hermite quadrature."""
        grid = np.ix_(near, near)
        epochs_var = np.diag(belief.epochs_cov)[near] + belief.noise[near]
        cost_var = np.diag(belief.cost_cov)[near] + belief.cost_noise
        # How far the means move with one standard deviation of surprise: [trial of, mean of].
        by_epochs = belief.epochs_cov[grid] / np.sqrt(epochs_var)[:, None]
        by_cost = belief.cost_cov[grid] / np.sqrt(cost_var)[:, None]
        left = np.maximum(belief.variance[near] - by_epochs**2 - by_cost**2, 0) + belief.job_noise
        spread = left[:, :, None]
        moved = by_epochs[:, :, None] * _Z_EPOCHS + by_cost[:, :, None] * _Z_COST
        mean = belief.mean[near][None, :, None] + moved
        limit = values.log_limit[near][None, :, None]
        missed = np.array([knowledge.evidence[place].missed for place in near])[None, :, None]
        converged = np.array([knowledge.evidence[place].epochs.count for place in near])[None, :, None]
        miss = self._miss(_above((limit - mean) / np.sqrt(spread)), missed, converged)
        ok = np.exp(np.minimum(mean + 0.5 * spread, limit))
        crash, share = values.crash[near], values.crash_cost[near] / values.ok[near]
        then = replace(
            values,
            ok=ok,
            miss=miss,
            crash=crash[None, :, None],
            crash_cost=ok * share[None, :, None],
            log_limit=limit,
        )
        least: Floats = then.model.min(1) @ _Z_WEIGHTS
        return least

    def _second_look(
        self,
        belief: Belief,
        knowledge: Knowledge,
        running: Sequence[int],
        places: NDArray[np.int64],
        reached: Sequence[int],
        best: int,
    ) -> int | None:
        """An end of the known range next to the best, with a single success: one bad draw closes no direction."""
        if len(reached) < 2:
            return None
        ends = (
            (reached[0], reached[1], places[0] < reached[0]),
            (reached[-1], reached[-2], places[-1] > reached[-1]),
        )
        for end, inner, goes_on in ends:
            known = knowledge.evidence[end]
            once = known.epochs.count == 1 and not known.missed and not running[end]
            close = belief.mean[end] - belief.mean[best] < self.constants.second_look * math.sqrt(belief.variance[end])
            if goes_on and inner == best and once and close:
                return end
        return None

    def _insured(
        self,
        knowledge: Knowledge,
        running: Sequence[int],
        places: NDArray[np.int64],
        reached: Sequence[int],
        extra: Floats,
    ) -> int | None:
        """A batch size without a trial, once what all first trials cost is a small share of all cost.

        Without it a second valley behind a hill would never be found.
        """
        new = [
            int(place)
            for place in places
            if not (knowledge.evidence[place].epochs.count or knowledge.evidence[place].missed or running[place])
        ]
        below, above = [p for p in new if p < reached[0]], [p for p in new if p > reached[-1]]
        inside = [p for p in new if reached[0] < p < reached[-1]]
        candidates = [*inside, *below[-1:], *above[:1]]
        if not candidates:
            return None
        place = min(candidates, key=lambda place: float(extra[place]))
        spent = knowledge.first_trials + max(0.0, float(extra[place]))
        return place if spent <= self.constants.insurance * knowledge.total else None


POLICY = KnowledgeGradient()


def _with_seen(evidence: tuple[Evidence, ...], seen: Seen) -> tuple[Evidence, ...]:
    known = evidence[seen.place]
    if seen.epoch_cost is not None:
        known = known._replace(epoch_cost=known.epoch_cost.add(seen.epoch_cost))
    if seen.reached:
        known = known._replace(epochs=known.epochs.add(seen.epochs))
    else:
        known = known._replace(missed=known.missed + 1, longest=max(known.longest, seen.epochs))
    return (*evidence[: seen.place], known, *evidence[seen.place + 1 :])


class _View(NamedTuple):
    """Words for a choice."""

    spec: JobSpec
    belief: Belief
    models: Floats
    best: int

    def alone(self, place: int) -> str:
        """What a batch size is expected to cost."""
        cost = float(self.models[place])
        deviation = cost * math.sqrt(math.expm1(float(self.belief.variance[place])))
        return f"expected {with_unit(cost, deviation)}"

    def beside(self, place: int) -> str:
        """The same, and the best known one."""
        best = self.spec.batch_sizes[self.best]
        return f"{self.alone(place)}, the best known is {best} with {with_unit(float(self.models[self.best]))}"


def with_unit(joules: float, deviation: float | None = None) -> str:
    """A cost in a readable unit: "19.1 ± 2.0 kJ"."""
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if joules >= size:
            break
    else:
        unit, size = "J", 1.0
    value = f"{joules / size:.3g}"
    return f"{value} {unit}" if deviation is None else f"{value} ± {deviation / size:.2g} {unit}"
