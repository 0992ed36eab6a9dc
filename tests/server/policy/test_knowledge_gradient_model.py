"""The knowledge gradient's beliefs, expected costs and bounds against the formulas of its glossary, one step at a time.

Here each pair of a curve and a process is a Gaussian of its own, conditioned with plain inverses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray
from wattwise_server.domain import EndReason, Measurement, Moments
from wattwise_server.policy.base import Choice, Prior
from wattwise_server.policy.knowledge_gradient import Constants, Deviation

from tests.server.policy.simulated import NOW, SimulatedJob, spec

Floats = NDArray[np.float64]
Logs = Callable[[int], list[float]]

C = Constants()
WATTS = 50.0
"""Power draw of every trial, half of the limit."""


@dataclass(frozen=True)
class Run:
    """A trial that ran to a decision, with what one of its epochs cost in joules."""

    size: int
    epochs: int
    epoch_cost: float = 100.0
    reached: bool = True


@dataclass(frozen=True)
class Crash:
    """A trial that failed, with its cost in joules."""

    size: int
    cost: float


@dataclass(frozen=True)
class Told:
    """The epochs of a prior job's trials of one batch size, those that reached the target and those that missed it."""

    size: int
    reached: Sequence[int] = ()
    missed: Sequence[int] = ()


@dataclass(frozen=True)
class Source:
    """Trials as the belief uses them: ln E of those that reached and of those that missed, and what a trial counts."""

    reached: Mapping[int, Sequence[float]]
    missed: Mapping[int, Sequence[float]]
    weight: Mapping[int, float]


@dataclass(frozen=True)
class Observation:
    """A mean of ln E or ln c at one place, and its variance."""

    place: int
    mean: float
    variance: float


@dataclass(frozen=True)
class Gaussian:
    """One part of a mixture: its weight, its moments, and the squared amplitude of its process."""

    weight: float
    mean: Floats
    cov: Floats
    amplitude2: float

    def given(self, observations: Sequence[Observation]) -> Gaussian:
        """Conditioned, with its weight times the likelihood."""
        at = [each.place for each in observations]
        errors = np.array([each.mean for each in observations]) - self.mean[at]
        cov = self.cov[np.ix_(at, at)] + np.diag([each.variance for each in observations])
        gain = self.cov[:, at] @ np.linalg.inv(cov)
        likelihood = math.exp(-0.5 * errors @ np.linalg.inv(cov) @ errors) / math.sqrt(np.linalg.det(cov))
        return Gaussian(
            self.weight * likelihood, self.mean + gain @ errors, self.cov - gain @ self.cov[at], self.amplitude2
        )


@dataclass(frozen=True)
class Mixture:
    """Gaussians, weighted."""

    parts: Sequence[Gaussian]

    @cached_property
    def weight(self) -> float:
        """Of all."""
        return sum(each.weight for each in self.parts)

    @cached_property
    def mean(self) -> Floats:
        """The first moment."""
        return np.asarray(sum(each.weight * each.mean for each in self.parts) / self.weight)

    @cached_property
    def cov(self) -> Floats:
        """The second central moment."""
        squares = sum(each.weight * (each.cov + np.outer(each.mean, each.mean)) for each in self.parts)
        return np.asarray(squares / self.weight - np.outer(self.mean, self.mean))

    @cached_property
    def amplitude2(self) -> float:
        """Mean of the squared amplitude."""
        return sum(each.weight * each.amplitude2 for each in self.parts) / self.weight

    def given(self, observations: Sequence[Observation]) -> Mixture:
        """Conditioned."""
        return Mixture([each.given(observations) for each in self.parts] if observations else self.parts)


def above(z: float) -> float:
    """P(Z > z) of a standard normal."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def mean_above(z: float) -> float:
    """E[Z | Z > z], for large z by its asymptote."""
    return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / above(z) if z < 6 else z + 1 / z


@dataclass(frozen=True)
class Reference:
    """A job with such trials, the first of which is measured, and with one prior job."""

    trials: Sequence[Run | Crash]
    told: Sequence[Told] = ()
    max_epochs: int = 150
    sizes: tuple[int, ...] = (8, 16, 32, 64, 128)

    # The job

    def job(self) -> SimulatedJob:
        """It as the policy sees it."""
        job = SimulatedJob(
            spec(
                batch_sizes=self.sizes,
                default_batch_size=self.sizes[len(self.sizes) // 2],
                target_metric=0.9,
                max_epochs=self.max_epochs,
                policy="KNOWLEDGE_GRADIENT",
            )
        )
        if self.told:
            reached = {told.size: Moments() for told in self.told if told.reached}
            for told in self.told:
                for epochs in told.reached:
                    reached[told.size] = reached[told.size].add(math.log(epochs))
            missed = {told.size: (len(told.missed), math.log(max(told.missed))) for told in self.told if told.missed}
            job.search = job.policy.register(job.spec, [Prior(None, reached, missed)])
        for each in self.trials:
            trial = job.dispatch(each.size)
            if isinstance(each, Crash):
                job.fail(trial, EndReason.ERROR, each.cost)
                continue
            cost = each.epochs * each.epoch_cost
            last = Measurement(each.epochs, cost / WATTS, cost, 1.0 if each.reached else 0.0, NOW)
            job.succeed(trial._replace(last=last, target_reached=each.reached), cost, converged=each.reached)
        return job

    # What was seen

    @cached_property
    def runs(self) -> Sequence[Run]:
        """The trials that ran to a decision."""
        return [each for each in self.trials if isinstance(each, Run)]

    def logs(self, *, reached: bool) -> Mapping[int, Sequence[float]]:
        """By batch size, ln E."""
        return {
            size: [math.log(run.epochs) for run in self.runs if run.size == size and run.reached is reached]
            for size in self.sizes
        }

    @cached_property
    def own(self) -> Source:
        """The trials of the job."""
        return Source(self.logs(reached=True), self.logs(reached=False), dict.fromkeys(self.sizes, 1.0))

    @cached_property
    def prior(self) -> Source:
        """The trials of the prior job, at most four of each batch size."""
        none: dict[int, Sequence[float]] = dict.fromkeys(self.sizes, ())
        reached = none | {each.size: [math.log(epochs) for epochs in each.reached] for each in self.told}
        missed = none | {each.size: [math.log(epochs) for epochs in each.missed] for each in self.told}
        trials = {size: len(reached[size]) + len(missed[size]) for size in self.sizes}
        return Source(reached, missed, {size: min(1.0, C.prior_weight / max(1, trials[size])) for size in self.sizes})

    def count(self, size: int, *, reached: bool) -> int:
        """How many of its trials reached or missed the target."""
        return len((self.own.reached if reached else self.own.missed)[size])

    # Beliefs

    @cached_property
    def noise(self) -> Floats:
        """s² by batch size."""
        logs, own, freedom = list[float](), np.zeros(len(self.sizes)), np.zeros(len(self.sizes))
        for source in (self.prior, self.own):
            for place, size in enumerate(self.sizes):
                reached, missed = source.reached[size], source.missed[size]
                logs += [*reached, *(max(missed) for _ in missed)]
                own[place] += source.weight[size] * len(reached) * float(np.var(reached or [0]))
                freedom[place] += source.weight[size] * max(0, len(reached) - 1)
        usual = C.epochs_noise**2 + C.whole_epochs * math.exp(-2 * float(np.mean(logs)))
        of_job = max(1e-4, (C.noise_weight * usual + own.sum()) / (C.noise_weight + freedom.sum()))
        total = C.noise_weight + C.pooling + freedom
        return np.asarray((C.noise_weight * usual + C.pooling * of_job + own) / total)

    @cached_property
    def x(self) -> Floats:
        """log2 of the batch sizes."""
        return np.asarray(np.log2(self.sizes))

    @cached_property
    def knots(self) -> Sequence[float]:
        """log2 of the B, L and K that are considered: every one and a half octaves, two octaves beyond either end."""
        first, last = float(self.x[0]) - 2, float(self.x[-1]) + 2
        return [first + 1.5 * step for step in range(100) if first + 1.5 * step <= last]

    def parts(
        self, law: Sequence[tuple[float, Floats]], processes: Sequence[Deviation], apart: float, variance: float
    ) -> Mixture:
        """Every curve of a law, which has a weight, with every process, and with a constant of this variance."""
        octaves2 = (self.x[:, None] - self.x) ** 2
        return Mixture(
            [
                Gaussian(
                    weight / len(processes),
                    curve,
                    variance
                    + process.amplitude**2 * np.exp(-octaves2 / (2 * process.octaves**2))
                    + apart**2 * np.eye(len(self.x)),
                    process.amplitude**2,
                )
                for weight, curve in law
                for process in processes
            ]
        )

    @cached_property
    def epochs_before(self) -> Mixture:
        """The belief about ln E before any trial."""
        b, law = 2.0**self.x, list[tuple[float, Floats]]()
        rises = [knot for knot in self.knots if knot < (self.x[0] + self.x[-1]) / 2][::2]
        for knot in self.knots:
            falls = math.log(C.usual_epochs) + np.log(1 + b / 2**knot)
            law.append(((1 - C.rise) / len(self.knots), falls))
            for rise in rises:
                rising = math.log(C.usual_epochs) + np.log(1 + b / 2**knot + 2**rise / b)
                law.append((C.rise / len(rises) / len(self.knots), rising))
        return self.parts(law, C.epochs_deviations, C.epochs_apart, C.usual_spread**2)

    def epochs_given(self, *sources: Source) -> tuple[Mixture, float]:
        """The belief about ln E after these trials, and the likelihood of those that reached the target."""
        observations = []
        for source in sources:
            for place, size in enumerate(self.sizes):
                if logs := source.reached[size]:
                    variance = self.noise[place] / (len(logs) * source.weight[size])
                    observations.append(Observation(place, float(np.mean(logs)), variance))
        likelihood = self.epochs_before.given(observations).weight
        # A miss counts as an observation of what is to be expected, given that it was larger.
        for source in sources:
            for place, size in enumerate(self.sizes):
                if logs := source.missed[size]:
                    so_far = self.epochs_before.given(observations)
                    deviation = math.sqrt(so_far.cov[place, place] + self.noise[place])
                    surprise = mean_above((max(logs) - so_far.mean[place]) / deviation)
                    variance = self.noise[place] / (len(logs) * source.weight[size]) + 0.01
                    observations.append(Observation(place, so_far.mean[place] + deviation * surprise, variance))
        return self.epochs_before.given(observations), likelihood

    @cached_property
    def epochs(self) -> Mixture:
        """The belief about ln E: the prior job tells it, or not."""
        own, likelihood = self.epochs_given(self.own)
        if not self.told:
            return own
        both, likelihood_of_both = self.epochs_given(self.prior, self.own)
        trusted = C.prior_trust * likelihood_of_both / self.epochs_given(self.prior)[1]
        parts = [(trusted, both), ((1 - C.prior_trust) * likelihood, own)]
        return Mixture([Gaussian(weight, each.mean, each.cov, each.amplitude2) for weight, each in parts])

    @cached_property
    def misfit(self) -> float:
        """How badly the law fits."""
        return self.epochs.amplitude2 / self.epochs_before.amplitude2

    @cached_property
    def cost_noise(self) -> float:
        """Variance of ln c between trials."""
        logs = [[math.log(run.epoch_cost) for run in self.runs if run.size == size] for size in self.sizes]
        squares = sum(len(each) * float(np.var(each)) for each in logs if each)
        freedom = sum(len(each) - 1 for each in logs if each)
        return (C.noise_weight * C.cost_noise**2 + squares) / (C.noise_weight + freedom)

    @cached_property
    def cost(self) -> Mixture:
        """The belief about ln c."""
        logs = {size: [math.log(run.epoch_cost) for run in self.runs if run.size == size] for size in self.sizes}
        means = {size: float(np.mean(each)) for size, each in logs.items() if each}
        center = float(np.mean(list(means.values())))
        observations = [
            Observation(self.sizes.index(size), mean, self.cost_noise / len(logs[size])) for size, mean in means.items()
        ]
        # Between idle, 20 W, and busy, 60 W, the power is the share b / (b + K) of a batch's time.
        busy = (WATTS - 20) / 40
        hint = math.log2(self.runs[0].size * (1 - busy) / busy)
        law = [
            (C.hint_doubt + math.exp(-(((knot - hint) / C.hint) ** 2) / 2), center + np.log(1 + 2**knot / 2.0**self.x))
            for knot in self.knots
        ]
        return self.parts(law, [C.cost_deviation], C.cost_apart, 25.0).given(observations)

    # Costs

    @cached_property
    def mean(self) -> Floats:
        """Of ln C without the noise."""
        return self.epochs.mean + self.cost.mean

    @cached_property
    def variance(self) -> Floats:
        """Of that belief."""
        return np.asarray(np.diag(self.epochs.cov) + np.diag(self.cost.cov))

    @cached_property
    def expected(self) -> Floats:
        """Expected cost of a trial that reaches the target."""
        return np.exp(self.mean + (self.variance + self.noise) / 2)

    @cached_property
    def limit(self) -> float:
        """The bound of all but the best batch size: twice the least of those that have reached the target."""
        return 2 * min(
            float(self.expected[place]) for place, size in enumerate(self.sizes) if self.count(size, reached=True)
        )

    def misses(self, mean: Floats, variance: Floats) -> Floats:
        """By batch size, q, with such a belief about ln C."""
        counts = {size: (self.count(size, reached=True), self.count(size, reached=False)) for size in self.sizes}
        reached = sum(ok for ok, _ in counts.values())
        missed = sum(miss for ok, miss in counts.values() if ok)
        usual = missed / (missed + reached + 2)
        hopeless = sum(miss > 0 and not ok for ok, miss in counts.values())
        usual_failures = max(0, hopeless - 2) / (sum(ok + miss > 0 for ok, miss in counts.values()) + 2)
        found = []
        for place, (ok, miss) in enumerate(counts.values()):
            deviation = math.sqrt(variance[place] + self.noise[place])
            slow = above((self.log_limit[place] - mean[place]) / deviation)
            prior = 1 - (1 - slow) * (1 - (usual if ok else usual_failures))
            found.append(min(0.99, (miss + C.model_weight * prior) / (miss + ok + C.model_weight)))
        return np.array(found)

    @cached_property
    def log_limit(self) -> Floats:
        """Logarithm of the cost at which a trial ends: at the bound, or after the last epoch."""
        return np.minimum(math.log(self.limit), self.cost.mean + math.log(self.max_epochs + 0.5))

    @cached_property
    def crashes(self) -> Floats:
        """By batch size, r."""
        crashed = [each.size for each in self.trials if isinstance(each, Crash)]
        failed = np.array([crashed.count(size) for size in self.sizes])
        decided = np.array([self.count(size, reached=True) + self.count(size, reached=False) for size in self.sizes])
        usual = len(crashed) / (len(self.trials) + C.crash_weight)
        return np.asarray(np.minimum((failed + C.crash_weight * usual) / (failed + decided + C.crash_weight), 0.99))

    @cached_property
    def crash_share(self) -> float:
        """What a crash costs, the same share of a trial everywhere, at most all of it."""
        ok = np.minimum(self.expected, np.exp(self.log_limit))
        spent = [(each.cost, ok[self.sizes.index(each.size)]) for each in self.trials if isinstance(each, Crash)]
        return min(1.0, sum(cost for cost, _ in spent) / sum(usual for _, usual in spent)) if spent else 0.0

    def trial_and_model(self, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
        """A and R with such a belief about ln C."""
        ok, misses = np.exp(np.minimum(mean + (variance + self.noise) / 2, self.log_limit)), self.misses(mean, variance)
        ended = (1 - misses) * ok + misses * np.exp(self.log_limit)
        trial = (1 - self.crashes) * ended + self.crashes * self.crash_share * ok
        return trial, np.asarray(trial / (1 - self.crashes) / (1 - misses))

    @cached_property
    def trial(self) -> Floats:
        """A."""
        return self.trial_and_model(self.mean, self.variance)[0]

    @cached_property
    def model(self) -> Floats:
        """R."""
        return self.trial_and_model(self.mean, self.variance)[1]

    @cached_property
    def best(self) -> int:
        """The place of the best known batch size."""
        reached = [place for place, size in enumerate(self.sizes) if self.count(size, reached=True)]
        return min(reached, key=lambda place: float(self.model[place]))

    # What a trial is worth, if every batch size is within reach

    def after(self, place: int) -> float:
        """Expected least R after one more trial of a batch size."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(15)
        by_epochs = self.epochs.cov[place] / math.sqrt(self.epochs.cov[place, place] + self.noise[place])
        by_cost = self.cost.cov[place] / math.sqrt(self.cost.cov[place, place] + self.cost_noise)
        left = self.variance - by_epochs**2 - by_cost**2
        least = [
            [self.trial_and_model(self.mean + a * by_epochs + b * by_cost, left)[1].min() for b in nodes] for a in nodes
        ]
        return float(weights @ np.array(least) @ weights / weights.sum() ** 2)

    @cached_property
    def launches(self) -> float:
        """For how many launches a result counts."""
        return C.horizon + C.misfit_horizon * self.misfit + len(self.runs)

    @cached_property
    def choice(self) -> int:
        """The batch size whose trial costs least, less what its result is worth soon, if it is worth it at all."""
        gain = np.array([self.model.min() - self.after(place) for place in range(len(self.sizes))])
        price = self.trial + (1 - self.trial / self.model) * self.model[self.best]
        in_all, soon = price - self.launches * gain, price - C.soon * gain
        pays = [place for place in range(len(self.sizes)) if in_all[place] < in_all[self.best]]
        return self.sizes[min(pays, key=lambda place: float(soon[place]), default=self.best)]

    # Stopping the best batch size

    def slower(self, place: int, log_epochs: float) -> float:
        """P(E > n) with heavy tails."""
        deviation = 1.5 * math.sqrt(self.epochs.cov[place, place] + self.noise[place])
        return above((log_epochs - self.epochs.mean[place]) / deviation)

    @cached_property
    def never(self) -> float | None:
        """The share of trials that never reach the target, in two rounds; None if none was seen."""
        seen = [place for place, size in enumerate(self.sizes) if self.own.reached[size] and self.own.missed[size]]
        rate = C.never
        for _ in range(2):
            of_all = own = 0.0
            for place in seen:
                logs = self.own.missed[self.sizes[place]]
                lost = len(logs) * rate / (rate + (1 - rate) * self.slower(place, max(logs)))
                of_all += lost
                own += lost if place == self.best else 0.0
            everywhere = of_all + sum(self.count(size, reached=True) for size in self.sizes)
            here = own + self.count(self.sizes[self.best], reached=True)
            rate = (C.never_weight * C.never + (of_all + own) / 2) / (C.never_weight + (everywhere + here) / 2)
        return rate if seen else None

    @cached_property
    def restart(self) -> float | None:
        """The cost at which a trial of the best batch size is stopped."""
        if self.never is None:
            return None
        epoch_cost, again = math.exp(self.cost.mean[self.best]), float(self.expected[self.best])
        first = max(1, math.ceil(C.patience * again / epoch_cost))
        stops, spent = list[float](), 0.0
        for stop in range(first, min(self.max_epochs, 50 * first) + 1):
            alive = self.never + (1 - self.never) * self.slower(self.best, math.log(stop + 0.5))
            stops.append(spent + alive * again)
            spent += epoch_cost * alive
        for place, cost in enumerate(stops[:-1]):
            if cost <= min(stops[place + 1 :]):
                return (first + place) * epoch_cost
        return None


ROUND = [Run(8, 35, 210), Run(16, 24, 160), Run(32, 20, 130), Run(64, 22, 110), Run(128, 40, 100)]
NOISY = [Run(32, 18, 99), Run(32, 23, 101), Run(16, 30, 120), Run(16, 24, 115), Run(16, 26, 125), Run(64, 40, 90)]
CASES = {
    "one trial": Reference([Run(32, 20)]),
    "a trial of each batch size": Reference(ROUND),
    "noise": Reference(NOISY),
    "a law with a rise to the left": Reference([Run(8, 90), Run(16, 45), Run(32, 24), Run(64, 20), Run(128, 20)]),
    "no law": Reference([Run(8, 10), Run(16, 40), Run(32, 10), Run(64, 40), Run(128, 10)]),
    "one epoch": Reference([Run(32, 1, 50), Run(32, 1, 52), Run(64, 1, 20)], max_epochs=1),
    "two octaves": Reference([Run(8, 30), Run(32, 20, 60)], sizes=(8, 32)),
    "close together": Reference([Run(300, 20), Run(310, 22), Run(320, 19)], sizes=(300, 310, 320, 330)),
    "slow misses": Reference([Run(32, 20), Run(64, 30, reached=False), Run(128, 45, reached=False)]),
    "several misses": Reference([*NOISY, Run(8, 50, reached=False), Run(8, 40, reached=False)]),
    "a miss far beyond what was expected": Reference([*[Run(32, 10)] * 30, Run(32, 150, reached=False)]),
    "most batch sizes only miss": Reference(
        [Run(32, 20), *(Run(size, 30, reached=False) for size in (8, 16, 64, 128))], max_epochs=30
    ),
    "cheap crashes": Reference([Run(32, 20), Run(16, 30), Crash(32, 30), Crash(64, 1)]),
    "expensive crashes": Reference([Run(32, 20), Crash(32, 5000), Crash(16, 9000), Run(64, 20)]),
    "crashes without a cost": Reference([Run(32, 20), Crash(32, 0), Run(64, 20)]),
    "a prior that fits": Reference([Run(32, 20)], [Told(16, [20, 22]), Told(32, [19]), Told(64, [30])]),
    "a prior in doubt": Reference([Run(32, 20)], [Told(32, [14, 15]), Told(64, [12, 14, 11])]),
    "a wrong prior": Reference([Run(32, 60), Run(64, 70)], [Told(32, [10]), Told(64, [5])]),
    "a prior with misses": Reference([Run(32, 20)], [Told(16, [], [50, 40]), Told(32, [18], [40])]),
    "a prior with many trials": Reference([Run(32, 20)], [Told(32, [22, 26, 18] * 4), Told(64, [15] * 9, [30])]),
    "a miss of the best": Reference([*[Run(32, 20)] * 5, Run(32, 100, reached=False)]),
    "a slow miss of the best": Reference([*[Run(32, 20), Run(32, 30)] * 4, Run(32, 45, reached=False)]),
    "misses of the best": Reference([*[Run(32, 20)] * 3, *[Run(32, 150, reached=False)] * 6]),
    "misses of another one": Reference([*[Run(32, 20)] * 5, Run(16, 25), *[Run(16, 90, reached=False)] * 2]),
    "slow misses of the best": Reference([*[Run(32, 20)] * 5, *[Run(32, 24, reached=False)] * 6]),
    "misses of the best that may be slow": Reference(
        [*(Run(32, epochs) for epochs in (20, 30, 24, 30, 14)), *[Run(32, 32, reached=False)] * 4]
    ),
    "stopping soon before the last epoch": Reference(
        [*ROUND, *(Run(size, 58, reached=False) for size in (16, 32, 64, 32))], max_epochs=58
    ),
    "no epoch to stop at": Reference([*[Run(32, 20)] * 5, Run(32, 28, reached=False)], max_epochs=28),
    "hundreds of epochs": Reference([*[Run(32, 200)] * 5, *[Run(32, 1000, reached=False)] * 2], max_epochs=1000),
    "hundreds of epochs, more or less": Reference(
        [*[Run(32, 240), Run(32, 300)] * 2, *[Run(32, 400, reached=False)] * 5], max_epochs=3000
    ),
    "misses everywhere": Reference([*ROUND, *(Run(size, 150, reached=False) for size in (16, 32, 64, 32))]),
}


@pytest.mark.parametrize("case", CASES)
def test_belief(case: str) -> None:
    """Expected costs and their variances, failure rates and bounds are those of the formulas."""
    expected = CASES[case]
    job = expected.job()
    beliefs = job.policy.belief(job.spec, job.search)
    assert [-each.mean for each in beliefs] == pytest.approx(expected.expected, rel=1e-6)
    spread = np.expm1([expected.variance, expected.noise]) * expected.expected**2
    assert [1 / each.precision for each in beliefs] == pytest.approx(spread[0], rel=1e-6)
    assert [1 / each.reward_precision for each in beliefs] == pytest.approx(spread[1], rel=1e-6)
    assert [each.failure_rate for each in beliefs] == pytest.approx(expected.crashes)
    counts = [expected.count(size, reached=True) + expected.count(size, reached=False) for size in expected.sizes]
    assert [each.observations for each in beliefs] == counts
    # The policy's P(Z > z) is off by up to 2e-4.
    assert [each.expected_cost for each in beliefs] == pytest.approx(expected.model, rel=5e-3)
    deviations = np.sqrt(np.expm1(expected.variance)) * expected.model
    assert [each.deviation for each in beliefs] == pytest.approx(deviations, rel=5e-3)
    bounds: list[float | None] = [expected.limit] * len(expected.sizes)
    bounds[expected.best] = expected.restart
    # Of hundreds of epochs not every one is considered.
    tolerance = 1e-6 if expected.max_epochs <= 150 else 0.01
    assert [job.policy.bound(job.spec, job.search, size) for size in expected.sizes] == [
        bound if bound is None else pytest.approx(bound, rel=tolerance) for bound in bounds
    ]


@pytest.mark.parametrize("case", ["one trial", "a law with a rise to the left", "one epoch", "a prior in doubt"])
def test_insights_count_the_longer_the_worse_the_law_fits(case: str) -> None:
    """The launches for which an insight is worth its trial grow with the misfit."""
    expected = CASES[case]
    choice = expected.job().choose()
    assert isinstance(choice, Choice)
    found = re.search(r"serves the next (\d+) launches", choice.reason)
    assert found, choice
    assert int(found[1]) == pytest.approx(expected.launches, abs=0.51)


@pytest.mark.parametrize(
    "runs",
    [
        ROUND,
        NOISY,
        [Run(64, 18, 150), Run(16, 14, 200), Run(64, 15, 150)],
        [Run(64, 16, 150), Run(8, 15, 240), Run(64, 36, 100)],
        [Run(16, 11, 240), Run(32, 16, 180), Run(128, 33, 90), Run(16, 12, 160), Run(8, 32, 360)],
        [Run(16, 20, 240), Run(32, 16, 150), Run(16, 11, 160), Run(16, 32, 200), Run(64, 42, 125)],
        [Run(16, 12, 200), Run(64, 16, 125), Run(8, 21, 240), Run(8, 16, 300)],
    ],
)
def test_choice(runs: Sequence[Run]) -> None:
    """The batch size is chosen whose trial costs the least, less what its result is worth for later launches."""
    expected = Reference(runs)
    choice = expected.job().choose()
    assert isinstance(choice, Choice)
    assert choice.batch_size == expected.choice
