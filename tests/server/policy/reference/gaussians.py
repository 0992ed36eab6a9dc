"""Mixtures of Gaussians over the batch sizes of a job, and the normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Observation:
    """A value at one place, and its variance."""

    place: int
    mean: float
    variance: float


@dataclass(frozen=True)
class Gaussian:
    """One part of a mixture: ln of its weight, its moments, and the squared amplitude of its process."""

    log_weight: float
    mean: Floats
    cov: Floats
    amplitude2: float

    def given(self, observations: Sequence[Observation]) -> Gaussian:
        """Conditioned, with its weight times the likelihood."""
        at = [each.place for each in observations]
        errors = np.array([each.mean for each in observations]) - self.mean[at]
        cov = self.cov[np.ix_(at, at)] + np.diag([each.variance for each in observations])
        inverse = np.linalg.inv(cov)
        gain = self.cov[:, at] @ inverse
        log_likelihood = -0.5 * float(errors @ inverse @ errors) - 0.5 * float(np.linalg.slogdet(cov)[1])
        return Gaussian(
            self.log_weight + log_likelihood,
            self.mean + gain @ errors,
            self.cov - gain @ self.cov[at],
            self.amplitude2,
        )


@dataclass(frozen=True)
class Mixture:
    """Gaussians, weighted."""

    parts: Sequence[Gaussian]

    @cached_property
    def log_weight(self) -> float:
        """Ln of the weight of all."""
        highest = max(each.log_weight for each in self.parts)
        return highest + math.log(sum(math.exp(each.log_weight - highest) for each in self.parts))

    @cached_property
    def shares(self) -> Sequence[float]:
        """The weight of each part, relative to that of all."""
        return [math.exp(each.log_weight - self.log_weight) for each in self.parts]

    @cached_property
    def mean(self) -> Floats:
        """The first moment."""
        return np.asarray(sum(share * each.mean for share, each in zip(self.shares, self.parts, strict=True)))

    @cached_property
    def cov(self) -> Floats:
        """The second central moment."""
        return np.asarray(
            sum(
                share * (each.cov + np.outer(each.mean - self.mean, each.mean - self.mean))
                for share, each in zip(self.shares, self.parts, strict=True)
            )
        )

    @cached_property
    def amplitude2(self) -> float:
        """Mean of the squared amplitude."""
        return sum(share * each.amplitude2 for share, each in zip(self.shares, self.parts, strict=True))

    def given(self, observations: Sequence[Observation]) -> Mixture:
        """Conditioned."""
        return Mixture([each.given(observations) for each in self.parts] if observations else self.parts)


_erfc = np.frompyfunc(math.erfc, 1, 1)


def above(z: float | Floats) -> Floats:
    """P(Z > z) of a standard normal."""
    return 0.5 * np.asarray(_erfc(np.asarray(z, float) / math.sqrt(2)), float)


def density(x: float | Floats, mean: float | Floats, variance: float | Floats) -> Floats:
    """The density of a normal distribution."""
    return np.asarray(np.exp(-0.5 * (x - mean) ** 2 / variance) / np.sqrt(2 * math.pi * variance))


def conditioned(cov: Floats, place: int, noise: float) -> Floats:
    """The covariance after an observation at one place, whatever its value."""
    return np.asarray(cov - np.outer(cov[place], cov[place]) / (cov[place, place] + noise))
