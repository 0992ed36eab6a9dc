"""What trials say about ln E if some of them are unusual: expectation propagation, integrated numerically."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
from wattwise_server.policy.knowledge_gradient import Constants

from tests.server.policy.reference.edges import Edges
from tests.server.policy.reference.gaussians import Floats, Mixture, Observation, above, density

SWEEPS = 4
"""Times that the sites of all rows are computed, at most."""

STEPS = 3
"""Times that the sites of a row's trials are computed in each of them."""

FIRST, LATER = 1.0, 0.5
"""How far a site moves in the first of these steps and in the others; the same of the sites of rows and sweeps."""

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
"""Nodes and weights of the integral over e, which the misses of a batch size share."""

CLOSE = 0.3
"""Sites are not computed again if they would move the belief by less, in standard deviations and in precision."""

LEAST = 0.03
"""Least precision of the site of a row, relative to the precision of the belief without the row."""

LEAST_CHANCE = 1e-9
"""Least probability of a miss."""


@dataclass(frozen=True)
class Row:
    """The trials of one batch size of a source.

    Attributes:
        place: Index of the batch size.
        reached: ln E of the trials that reached the target.
        missed: ln of what E is larger than, of those that missed it.
        earlier: ln E of trials that are only known together; they count as usual.
        earlier_unusual: How many trials were unusual before, and are only counted.
        earlier_missed: How many missed before; they are taken to be like those in `missed`.
        weight: What a trial counts.
    """

    place: int
    reached: Sequence[float] = ()
    missed: Sequence[float] = ()
    earlier: Sequence[float] = ()
    earlier_unusual: int = 0
    earlier_missed: int = 0
    weight: float = 1.0

    @property
    def num_reached(self) -> int:
        """How many trials reached the target."""
        return len(self.reached) + len(self.earlier)

    @property
    def num_missed(self) -> int:
        """How many missed it."""
        return len(self.missed) + self.earlier_missed

    @property
    def miss_weight(self) -> float:
        """What each of the misses counts, so that all of them together count like all misses."""
        return self.weight * self.num_missed / len(self.missed) if self.missed else self.weight


class Rates(NamedTuple):
    """s² by batch size, u and w."""

    noise: Floats
    unusual: float
    reaches: float


class Site(NamedTuple):
    """A Gaussian factor: its precision, and precision times mean."""

    precision: float
    product: float


class Moments(NamedTuple):
    """A mean and a variance."""

    mean: float
    variance: float


@dataclass(frozen=True)
class Misses:
    """What the misses of batch sizes say; see `Misses` of the policy."""

    logs: Floats
    only: Sequence[bool]
    epochs: Floats
    variance: Floats

    @staticmethod
    def none(count: int) -> Misses:
        """Without a miss."""
        return Misses(np.zeros(count), [False] * count, np.zeros(count), np.zeros(count))


class Tilted(NamedTuple):
    """A belief times the likelihood of a trial.

    That is its moments, ln of its integral, and the probabilities of three reasons for the result.
    """

    moments: Moments
    log_integral: float
    usual: float
    late: float
    always: float


class Refined(NamedTuple):
    """The site of a row, and the probabilities of what each of its trials is.

    Attributes:
        site: The site.
        of_reached: The site of the trials that reached the target alone, and ln of its factor.
        usual: That it is not unusual, because it is usual or because its batch size always misses.
        late: That it is unusual but late.
        always: That its batch size always misses.
    """

    site: Site
    of_reached: tuple[Site, float]
    usual: Sequence[float]
    late: Sequence[float]
    always: Sequence[float]


@dataclass(frozen=True)
class Learned:
    """What trials say; see `wattwise_server.policy.knowledge_gradient.expectation_propagation.Inference`."""

    fit: Mixture
    rates: Rates
    misses: Misses
    unlucky: Floats
    log_likelihood: float


def nearly_above(z: Floats) -> Floats:
    """P(Z > z) of a standard normal as the policy approximates it: 1 / (1 + exp(a·z·(1 + b·z²)))."""
    return np.asarray(1 / (1 + np.exp(np.clip(2 * math.sqrt(2 / math.pi) * z * (1 + 0.044715 * z**2), -700, 700))))


def later(
    late: float | Floats,
    variance: float | Floats,
    rates: Rates,
    constants: Constants,
    above: Callable[[Floats], Floats] = above,
) -> Floats:
    """P(ln E > n) of a trial, from n less the expected ln E, unless its batch size always misses."""
    usual = above(np.asarray(late / np.sqrt(variance)))
    reaches = above(np.asarray(late / np.sqrt(variance + constants.unusual_spread**2)))
    never = 1 - rates.reaches
    return np.asarray((1 - rates.unusual) * usual + rates.unusual * (rates.reaches * reaches + never))


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of one trial as a function of e.

    Attributes:
        log: ln E, or ln of what it is larger than.
        reached: Whether it is ln E.
        noise: s².
        rates: u and w.
        always: Probability that the batch size always misses.
        constants: The constants.
    """

    log: float
    reached: bool
    noise: float
    rates: Rates
    always: float
    constants: Constants

    def parts(self, e: Floats) -> Mapping[str, Floats]:
        """By what the trial is."""
        u, w, far = self.rates.unusual, self.rates.reaches, self.noise + self.constants.unusual_spread**2
        if self.reached:
            return {
                "usual": (1 - u) * density(self.log, e, self.noise),
                "late": u * w * density(self.log, e, far),
            }
        return {
            "usual": (1 - self.always) * (1 - u) * above((self.log - e) / math.sqrt(self.noise)),
            "late": (1 - self.always) * u * w * above((self.log - e) / math.sqrt(far)),
            "never": np.full(len(e), (1 - self.always) * u * (1 - w)),
            "always": np.full(len(e), self.always),
        }

    def tilted(self, before: Moments) -> Tilted:
        """The moments of a belief times the likelihood, on a grid with several points per standard deviation."""
        deviation, own = math.sqrt(before.variance), math.sqrt(self.noise)
        lowest = min(before.mean - 12 * deviation, self.log - 12 * own)
        highest = max(before.mean + 12 * deviation, self.log + 12 * own)
        e = np.arange(lowest, highest, min(deviation, own) / 4)
        parts = {name: density(e, *before) * part for name, part in self.parts(e).items()}
        total = sum(part.sum() for part in parts.values())
        whole = np.asarray(sum(parts.values())) / total
        mean = float(whole @ e)
        chance = {name: float(part.sum() / total) for name, part in parts.items()}
        # That its batch size always misses makes a trial not unusual.
        usual = 1 - chance["late"] - chance.get("never", 0.0)
        moments = Moments(mean, float(whole @ (e - mean) ** 2))
        log_integral = math.log(total * (e[1] - e[0]))
        return Tilted(moments, log_integral, usual, chance["late"], chance.get("always", 0.0))


def log_integral(before: Moments, site: Site) -> float:
    """Ln of the integral of a belief times exp(product·e − precision·e²/2), which is a Gaussian in e."""
    precision = 1 / before.variance + site.precision
    mean = (before.mean / before.variance + site.product) / precision
    exponent = 0.5 * precision * mean**2 - 0.5 * before.mean**2 / before.variance
    return exponent - 0.5 * math.log(precision * before.variance)


def log_likelihood_of(before: Mixture, rows: Sequence[Row], found: Sequence[Refined]) -> float:
    """Ln of the likelihood of the trials that reached the target, up to a constant for each trial.

    Each site is a factor times a Gaussian, which is its mean's density up to another factor.
    """
    sites = [each.of_reached[0] for each in found]
    log_factor = sum(each.of_reached[1] for each in found) + sum(
        0.5 * site.product**2 / site.precision - 0.5 * math.log(site.precision) for site in sites if site.precision > 0
    )
    return log_factor + before.given([each for _, each in observations(rows, sites)]).log_weight


def refined(row: Row, cavity: Moments, always: float, rates: Rates, constants: Constants) -> Refined:
    """The site of a row, given the belief without it."""
    noise = float(rates.noise[row.place])
    trials = [Likelihood(log, True, noise, rates, always, constants) for log in row.reached]
    trials += [Likelihood(log, False, noise, rates, always, constants) for log in row.missed]
    sites = [Site(0.0, 0.0)] * len(trials)
    for index, each in enumerate(trials):
        if each.reached:
            # As likely as each is usual beside the median of the batch size.
            error, wide = each.log - median(row.reached), noise + constants.unusual_spread**2
            usual = (1 - rates.unusual) * math.exp(-(error**2) / (2 * noise)) / math.sqrt(noise)
            odd = rates.unusual * rates.reaches * math.exp(-(error**2) / (2 * wide)) / math.sqrt(wide)
            precision = max(usual / (usual + odd), noise / wide) / noise
            sites[index] = Site(precision, precision * each.log)
    prior = Site(1 / cavity.variance, cavity.mean / cavity.variance)
    base = Site(row.weight * len(row.earlier) / noise, row.weight * sum(row.earlier) / noise)

    def together() -> Site:
        return Site(
            base.precision + row.weight * sum(each.precision for each in sites),
            base.product + row.weight * sum(each.product for each in sites),
        )

    found, factors = list[Tilted](), list[tuple[Site, float]]()
    for step in range(STEPS):
        own = together()
        whole = Site(prior.precision + own.precision, prior.product + own.product)
        found, factors, moved = [], [], list[Site]()
        for trial, site in zip(trials, sites, strict=True):
            precision = whole.precision - row.weight * site.precision
            mean = (whole.product - row.weight * site.product) / precision
            tilted = trial.tilted(Moments(mean, 1 / precision))
            wanted = max(1 / tilted.moments.variance - precision, 0.0)
            product = tilted.moments.mean * (wanted + precision) - mean * precision
            share = LATER if step else FIRST
            found.append(tilted)
            of_site = log_integral(Moments(mean, 1 / precision), Site(wanted, product))
            factors.append((Site(wanted, product), tilted.log_integral - of_site))
            moved.append(
                Site(
                    site.precision + share * (wanted - site.precision),
                    site.product + share * (product - site.product),
                )
            )
        sites = moved
    site = together()
    if site.precision < LEAST * prior.precision:
        mean = (prior.product + site.product) / (prior.precision + site.precision)
        least = LEAST * prior.precision
        site = Site(least, mean * (prior.precision + least) - prior.product)
    reached = factors[: len(row.reached)]
    of_earlier = sum(-0.5 * log**2 / noise - 0.5 * math.log(2 * math.pi * noise) for log in row.earlier)
    of_reached = (
        Site(
            base.precision + row.weight * sum(each.precision for each, _ in reached),
            base.product + row.weight * sum(each.product for each, _ in reached),
        ),
        row.weight * (of_earlier + sum(factor for _, factor in reached)),
    )
    return Refined(
        site, of_reached, [each.usual for each in found], [each.late for each in found], [each.always for each in found]
    )


def noise_of(rows: Sequence[Row], usual: Sequence[Sequence[float]], count: int, constants: Constants) -> Floats:
    """s² by batch size, from trials that reached the target and count as far as they are usual."""
    own, freedom = np.zeros(count), np.zeros(count)
    all_logs, all_shares = list[float](), list[float]()
    for row, chances in zip(rows, usual, strict=True):
        logs = [*row.earlier, *row.reached]
        shares = [1.0] * len(row.earlier) + list(chances[: len(row.reached)])
        all_logs += [*logs, *row.missed]
        all_shares += [*shares, *(1.0 for _ in row.missed)]
        if logs and sum(shares) > 0:
            middle = float(np.average(logs, weights=shares))
            squares = sum(share * (log - middle) ** 2 for share, log in zip(shares, logs, strict=True))
            own[row.place] += row.weight * squares
            freedom[row.place] += row.weight * max(0.0, sum(shares) - 1)
    usual_epochs = math.exp(float(np.average(all_logs, weights=all_shares)))
    weight, pooling = constants.noise_weight, constants.pooling
    prior = constants.epochs_noise**2 + constants.whole_epochs / usual_epochs**2
    of_job = max(1e-4, (weight * prior + own.sum()) / (weight + freedom.sum()))
    return np.asarray((weight * prior + pooling * of_job + own) / (weight + pooling + freedom))


def rates_of(rows: Sequence[Row], found: Sequence[Refined], count: int, constants: Constants) -> Rates:
    """u, w and s², as if their priors were earlier trials."""
    unusual = reached = trials = 0.0
    for row, each in zip(rows, found, strict=True):
        of_reached = len(row.reached)
        weights = [row.weight] * of_reached + [row.miss_weight] * len(row.missed)
        odd = [weight * (1 - usual) for weight, usual in zip(weights, each.usual, strict=True)]
        late = [row.miss_weight * chance for chance in each.late[of_reached:]]
        unusual += row.weight * row.earlier_unusual + sum(odd)
        reached += row.weight * row.earlier_unusual + sum(odd[:of_reached]) + sum(late)
        # Trials of a batch size that always misses do not tell how often trials are unusual.
        trials += row.weight * (row.num_reached + row.num_missed) - row.miss_weight * sum(each.always[of_reached:])
    weight, of_reaches = constants.unusual_weight, constants.reaches_weight
    return Rates(
        noise_of(rows, [each.usual for each in found], count, constants),
        (weight * constants.unusual + unusual) / (weight + trials),
        (of_reaches * constants.reaches + reached) / (of_reaches + unusual),
    )


def observations(rows: Sequence[Row], sites: Sequence[Site]) -> Sequence[tuple[int, Observation]]:
    """The sites that say something, each with the index of its row."""
    return [
        (index, Observation(row.place, site.product / site.precision, 1 / site.precision))
        for index, (row, site) in enumerate(zip(rows, sites, strict=True))
        if site.precision > 0
    ]


def cavities(before: Mixture, fit: Mixture, rows: Sequence[Row], sites: Sequence[Site]) -> Sequence[Moments]:
    """The belief about e at the batch size of each row without the row: really left out."""
    seen = observations(rows, sites)
    found = []
    for index, row in enumerate(rows):
        others = [observation for other, observation in seen if other != index]
        without = fit if len(others) == len(seen) else before.given(others)
        found.append(Moments(float(without.mean[row.place]), float(without.cov[row.place, row.place])))
    return found


def misses_of(rows: Sequence[Row], without: Sequence[Moments], rates: Rates, constants: Constants) -> Misses:
    """What the misses of each batch size say if it does not always miss: all share one e, over which is integrated."""
    count = len(rates.noise)
    logs, means, variances = np.zeros(count), np.zeros(count), np.zeros(count)
    only = [False] * count
    for place in range(count):
        here = [index for index, row in enumerate(rows) if row.place == place and row.missed]
        if not here:
            continue
        only[place] = not any(row.num_reached for row in rows if row.place == place)
        # Of several rows, the belief without the last one.
        e = without[here[-1]].mean + math.sqrt(without[here[-1]].variance) * NODES
        shares = WEIGHTS / WEIGHTS.sum()
        for index in here:
            for log in rows[index].missed:
                chance = later(log - e, float(rates.noise[place]), rates, constants, nearly_above)
                shares = shares * np.maximum(chance, LEAST_CHANCE) ** rows[index].miss_weight
        logs[place] = math.log(shares.sum())
        means[place] = np.average(e, weights=shares)
        variances[place] = np.average((e - means[place]) ** 2, weights=shares)
    return Misses(logs, only, means, variances)


def learned(before: Mixture, octaves: Sequence[float], rows: Sequence[Row], constants: Constants) -> Learned:
    """What trials say about the epochs, in as many sweeps as it takes."""
    count, by_place = len(octaves), range(len(octaves))
    usual = [[1.0] * (len(row.reached) + len(row.missed)) for row in rows]
    rates = Rates(noise_of(rows, usual, count, constants), constants.unusual, constants.reaches)
    # At first all that reached the target were usual, and misses say nothing.
    sites = [
        Site(
            row.weight * row.num_reached / float(rates.noise[row.place]),
            row.weight * (sum(row.reached) + sum(row.earlier)) / float(rates.noise[row.place]),
        )
        for row in rows
    ]
    fit = before.given([each for _, each in observations(rows, sites)])
    misses, unlucky, log_likelihood = Misses.none(count), np.zeros(count), 0.0
    reached = [any(row.num_reached for row in rows if row.place == place) for place in by_place]
    for sweep in range(SWEEPS):
        without = cavities(before, fit, rows, sites)
        misses, unlucky = misses_of(rows, without, rates, constants), np.zeros(count)
        always = np.zeros(count)
        if any(row.missed for row in rows):
            always = Edges(octaves, reached, list(misses.logs), constants).always
        found = [
            refined(row, cavity, float(always[row.place]), rates, constants)
            for row, cavity in zip(rows, without, strict=True)
        ]
        for row, each in zip(rows, found, strict=True):
            unlucky[row.place] += row.miss_weight * sum(1 - usual for usual in each.usual[len(row.reached) :])
        log_likelihood = log_likelihood_of(before, rows, found)
        better = rates_of(rows, found, count, constants)
        moved = [
            abs(after.product - now.product - fit.mean[row.place] * (after.precision - now.precision))
            * math.sqrt(fit.cov[row.place, row.place])
            for row, now, (after, *_) in zip(rows, sites, found, strict=True)
        ]
        gained = [
            abs(after.precision - now.precision) * fit.cov[row.place, row.place]
            for row, now, (after, *_) in zip(rows, sites, found, strict=True)
        ]
        change = np.abs(np.log(better.noise / rates.noise)).max()
        rates = better
        if max(*moved, *gained, change) < CLOSE:
            break
        share = LATER if sweep else FIRST
        sites = [
            Site(
                now.precision + share * (each.site.precision - now.precision),
                now.product + share * (each.site.product - now.product),
            )
            for now, each in zip(sites, found, strict=True)
        ]
        fit = before.given([each for _, each in observations(rows, sites)])
    return Learned(fit, rates, misses, unlucky, log_likelihood)
