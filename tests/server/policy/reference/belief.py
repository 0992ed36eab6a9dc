"""What a job's trials are known to be, and the belief about epochs and costs that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np
from wattwise_server.domain import ChangedQuantity, DetectedChange
from wattwise_server.policy.knowledge_gradient import Constants, Deviation

from tests.server.policy.reference.edges import Edges
from tests.server.policy.reference.gaussians import Floats, Gaussian, Mixture, Observation
from tests.server.policy.reference.unusual import Learned, Misses, Rates, Row, later, learned

KEPT = 16
"""Trials of a batch size that are kept one by one, of those that reached the target and of those that missed it."""

LEAST_TRUST = 0.05
"""Probability that the prior jobs tell the epochs below which they are taken to be wrong."""

ASSUMED = 1e-6
"""Variance of an observation that is assumed."""


@dataclass(frozen=True)
class Seen:
    """A trial that ran to a decision.

    Attributes:
        number, place, epochs, reached: Its number, the place of its batch size, its epochs, and how it ended.
        log_cost: Ln of the cost of an epoch; None if that is not known, or no longer counts.
        chance: The probability of so long a miss.
    """

    number: int
    place: int
    epochs: int
    log_cost: float | None
    reached: bool
    chance: float = 1.0

    @property
    def log_epochs(self) -> float:
        """Ln E, or ln of what E is larger than: the target would have been reached between two epochs."""
        return math.log(self.epochs) if self.reached else math.log(self.epochs + 0.5)


@dataclass(frozen=True)
class Costs:
    """Ln of the cost of an epoch in some trials of a batch size, and the variance of what they have in common."""

    logs: Sequence[float] = ()
    doubt: float = 0.0

    def add(self, log: float) -> Costs:
        """With one more trial, after which old ones in doubt no longer count."""
        return Costs([log]) if self.doubt else Costs([*self.logs, log])

    def doubted(self, log_factor: float) -> Costs:
        """After a change at other batch sizes, which may or may not be one here."""
        if not self.logs:
            return self
        return Costs([float(np.mean(self.logs)) + log_factor / 2], self.doubt + log_factor**2 / 4)


@dataclass(frozen=True)
class Sum:
    """A cumulative sum, and the number of trials that ended since it was 0."""

    value: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class Watched:
    """A trial, with ln E and ln c as expected before it: mean, variance and degrees of freedom."""

    seen: Seen
    epochs: tuple[float, float, float]
    log_cost: tuple[float, float, float]


@dataclass(frozen=True)
class Known:
    """What is known after some trials.

    Attributes:
        epochs: The trials whose epochs count.
        costs: By batch size.
        trusted: Whether the prior jobs count.
        trials: The number of trials since the epochs changed.
        luck, misses: Probability and places of the misses since a trial last reached the target.
        default_due: Whether the default is to be tried again.
        recent: The trials that ended since the earliest sum was 0, the newest of them; in this order.
        epochs_sums, cost_sums: The sums.
        changes: The changes.
        news: The quantities whose change no launch has been told.
        window: The trials that ended last, as many as there are in the window; without costs that no longer count.
    """

    epochs: Sequence[Seen]
    costs: Sequence[Costs]
    trusted: bool = True
    trials: int = 0
    luck: float = 1.0
    misses: Sequence[int] = ()
    default_due: bool = False
    recent: Sequence[Watched] = ()
    epochs_sums: Sequence[Sum] = (Sum(),) * 4
    cost_sums: Sequence[Sum] = (Sum(),) * 4
    changes: Sequence[DetectedChange] = ()
    news: Sequence[ChangedQuantity] = ()
    window: Sequence[Seen] = ()

    def count(self, place: int, *, reached: bool) -> int:
        """How many of the trials of a batch size reached or missed the target."""
        return sum(each.place == place and each.reached is reached for each in self.epochs)

    def luck_of(self, place: int) -> float:
        """The probability of the misses of a batch size since one of its trials reached the target."""
        luck = 1.0
        for each in self.epochs:
            if each.place == place:
                luck = 1.0 if each.reached else luck * each.chance
        return luck


def row_of(known: Known, place: int) -> Row:
    """The trials of one batch size: the newest ones, and the others together, the unusual of them moved closer."""
    reached = [each.log_epochs for each in known.epochs if each.place == place and each.reached]
    missed = [each.log_epochs for each in known.epochs if each.place == place and not each.reached]
    earlier, unusual = list[float](), 0
    for oldest in range(len(reached) - KEPT):
        logs = reached[oldest : oldest + KEPT + 1]
        middle = median(logs)
        deviation = 1.4826 * median(abs(log - middle) for log in logs)
        reach = 3 * max(0.1, deviation)
        unusual += abs(logs[0] - middle) > reach
        earlier.append(float(np.clip(logs[0], middle - reach, middle + reach)))
    more = max(0, len(missed) - KEPT)
    return Row(place, reached[len(earlier) :], missed[more:], earlier, unusual, more)


@dataclass(frozen=True)
class Belief:
    """The belief about ln E and ln c; see `wattwise_server.policy.knowledge_gradient.belief.Belief`.

    Attributes:
        sizes: The batch sizes.
        known: What is known.
        prior: What the prior jobs tell, by batch size.
        constants: The constants.
        assumed: A batch size that is taken to reach the target, while no trial has ended.
        max_epochs: The largest number of epochs.
    """

    sizes: Sequence[int]
    known: Known
    prior: Sequence[Row]
    constants: Constants
    assumed: int | None = None
    max_epochs: int = 150

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
                    math.log(weight / len(processes)),
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

    # Epochs

    @cached_property
    def epochs_before(self) -> Mixture:
        """The belief about ln E before any trial."""
        b, law, constants = 2.0**self.x, list[tuple[float, Floats]](), self.constants
        rises = [knot for knot in self.knots if knot < (self.x[0] + self.x[-1]) / 2][::2]
        for knot in self.knots:
            falls = math.log(constants.usual_epochs) + np.log(1 + b / 2**knot)
            law.append(((1 - constants.rise) / len(self.knots), falls))
            for rise in rises:
                rising = math.log(constants.usual_epochs) + np.log(1 + b / 2**knot + 2**rise / b)
                law.append((constants.rise / len(rises) / len(self.knots), rising))
        return self.parts(law, constants.epochs_deviations, constants.epochs_apart, constants.usual_spread**2)

    def learned(self, rows: Sequence[Row]) -> Learned:
        """What some trials say about the epochs."""
        trials = [row for row in rows if row.num_reached or row.num_missed]
        return learned(self.epochs_before, self.x.tolist(), trials, self.constants)

    @cached_property
    def own(self) -> Sequence[Row]:
        """The trials of the job."""
        return [row_of(self.known, place) for place in range(len(self.sizes))]

    @cached_property
    def told(self) -> bool:
        """Whether prior jobs count."""
        return self.known.trusted and any(row.num_reached or row.num_missed for row in self.prior)

    @cached_property
    def alone(self) -> Learned:
        """What the trials say if the prior jobs do not tell the epochs."""
        if self.assumed is None:
            return self.learned(self.own)
        if any(row.num_reached for row in self.prior):
            return self.learned(self.prior)
        constants, none = self.constants, np.zeros(len(self.sizes))
        usual = max(1.0, min(constants.usual_epochs, self.max_epochs / 2))
        fit = self.epochs_before.given([Observation(self.assumed, math.log(usual), ASSUMED)])
        noise = constants.epochs_noise**2 + constants.whole_epochs / usual**2
        rates = Rates(none + noise, constants.unusual, constants.reaches)
        return Learned(fit, rates, Misses.none(len(none)), none, 0.0)

    @cached_property
    def both(self) -> Learned:
        """What the trials say if the prior jobs tell the epochs."""
        return self.learned([*self.prior, *self.own]) if self.told and self.assumed is None else self.alone

    @cached_property
    def prior_trust(self) -> float:
        """Probability that the prior jobs tell the epochs."""
        if self.both is self.alone:
            return 1.0
        told = math.exp(self.both.log_likelihood - self.learned(self.prior).log_likelihood)
        trusted = self.constants.prior_trust * told
        return trusted / (trusted + (1 - self.constants.prior_trust) * math.exp(self.alone.log_likelihood))

    @cached_property
    def epochs(self) -> Mixture:
        """The belief about ln E: the prior jobs tell it, or not."""
        if self.prior_trust == 1.0:
            return self.both.fit
        shares = [(self.prior_trust, self.both.fit), (1 - self.prior_trust, self.alone.fit)]
        return Mixture([Gaussian(math.log(share), each.mean, each.cov, each.amplitude2) for share, each in shares])

    @cached_property
    def misfit(self) -> float:
        """How badly the law fits."""
        return self.epochs.amplitude2 / self.epochs_before.amplitude2

    @property
    def likelier(self) -> Learned:
        """What tells how trials differ and which batch sizes always miss: with the prior jobs, or without them."""
        return self.both if self.prior_trust >= LEAST_TRUST else self.alone

    @property
    def rates(self) -> Rates:
        """s², u and w."""
        return self.likelier.rates

    @property
    def misses(self) -> Misses:
        """What the misses say."""
        return self.likelier.misses

    @property
    def unlucky(self) -> Floats:
        """Expected number of misses that were unusual trials, by batch size."""
        return self.alone.unlucky

    @cached_property
    def reached(self) -> Floats:
        """The number of trials that reached the target, by batch size."""
        return np.array([self.known.count(place, reached=True) for place in range(len(self.sizes))], float)

    @cached_property
    def missed(self) -> Floats:
        """The number of trials that missed it, by batch size."""
        return np.array([self.known.count(place, reached=False) for place in range(len(self.sizes))], float)

    @cached_property
    def freedom(self) -> Floats:
        """Degrees of freedom of s²."""
        own, constants = np.maximum(0, self.reached - 1), self.constants
        pooled = constants.noise_weight + np.minimum(own.sum(), constants.pooling + own)
        return np.asarray(pooled)

    @cached_property
    def edges(self) -> Edges:
        """Which batch sizes always miss the target."""
        reached = [count > 0 or place == self.assumed for place, count in enumerate(self.reached)]
        told = self.told and self.assumed is None and self.prior_trust >= LEAST_TRUST
        elsewhere = [row.num_reached > 0 for row in self.prior] if told else []
        return Edges(self.x.tolist(), reached, list(self.misses.logs), self.constants, elsewhere)

    # Costs

    @cached_property
    def cost_logs(self) -> Sequence[Sequence[float]]:
        """Ln of the costs that count, by batch size; none beside an assumed one."""
        return [() if self.assumed is not None else each.logs for each in self.known.costs]

    @cached_property
    def cost_freedom(self) -> float:
        """Degrees of freedom of the variance of ln c."""
        return self.constants.noise_weight + sum(max(0, len(logs) - 1) for logs in self.cost_logs)

    @cached_property
    def cost_noise(self) -> float:
        """Variance of ln c between trials."""
        squares = sum(len(logs) * float(np.var(logs)) for logs in self.cost_logs if logs)
        return (self.constants.noise_weight * self.constants.cost_noise**2 + squares) / self.cost_freedom

    @cached_property
    def cost(self) -> Mixture:
        """The belief about ln c, around the mean of the trials; an assumed one costs 1."""
        observations = [
            Observation(place, float(np.mean(each.logs)), self.cost_noise / len(each.logs) + each.doubt)
            for place, each in enumerate(self.known.costs)
            if each.logs
        ]
        if self.assumed is not None:
            observations = [Observation(self.assumed, 0.0, ASSUMED)]
        center = float(np.mean([each.mean for each in observations]))
        law = [(1 / len(self.knots), center + np.log(1 + 2**knot / 2.0**self.x)) for knot in self.knots]
        constants = self.constants
        return self.parts(law, [constants.cost_deviation], constants.cost_apart, 25.0).given(observations)

    # Both

    @cached_property
    def mean(self) -> Floats:
        """The mean of ln C without the noise."""
        return self.epochs.mean + self.cost.mean

    @cached_property
    def variance(self) -> Floats:
        """The variance of that belief."""
        return np.asarray(np.diag(self.epochs.cov) + np.diag(self.cost.cov))

    @cached_property
    def expected(self) -> Floats:
        """Expected cost of a trial that reaches the target."""
        return np.exp(self.mean + (self.variance + self.rates.noise) / 2)

    @cached_property
    def unlucky_rate(self) -> Floats:
        """How often a trial misses the target although its batch size reaches it."""
        weight = self.constants.model_weight
        return np.asarray((self.unlucky + weight * self.rates.unusual) / (self.reached + self.missed + weight))

    def chance(self, place: int, log_epochs: float) -> float:
        """The probability that a trial misses the target for so long."""
        variance = float(self.epochs.cov[place, place] + self.rates.noise[place])
        slow = float(later(log_epochs - float(self.epochs.mean[place]), variance, self.rates, self.constants))
        always = float(self.edges.always[place])
        return always + (1 - always) * max(slow, float(self.unlucky_rate[place]))

    def with_known(self, known: Known) -> Belief:
        """The belief that follows from something else."""
        return replace(self, known=known)
