"""Mixtures of Gaussian processes: regression, and what each observation is expected to be without itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


class LeftOut(NamedTuple):
    """Leave-one-out predictions of the observations, without their noise: mean and variance (m,)."""

    mean: Floats
    variance: Floats


class Fit(NamedTuple):
    """A mixture of Gaussian processes after some observations.

    Attributes:
        mean, cov: Its moments (n,), (n, n).
        log_likelihood: ln of the likelihood of the observations, up to a constant.
        misfit: Mean square of the amplitude, relative to the prior one.
        left_out: By observation; None if it was not asked for.
    """

    mean: Floats
    cov: Floats
    log_likelihood: float
    misfit: float
    left_out: LeftOut | None = None


class Mixture(NamedTuple):
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

    def posterior(
        self,
        places: NDArray[np.int64] | Sequence[int],
        observations: Floats | Sequence[float],
        variances: Floats | Sequence[float],
        *,
        leave_out: bool = False,
    ) -> Fit:
        """Regresses (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, algorithm 2.1).

        The weight of a curve and a kernel is their prior weight times their likelihood.

        Args:
            places: The indices of the observed batch sizes (m,); one may occur several times.
            observations: The observations (m,).
            variances: Their variances (m,).
            leave_out: Whether to compute `Fit.left_out`.
        """
        curves, kernels, places = self.curves, self.kernels, np.asarray(places, np.int64)
        observed, variances = np.asarray(observations, float), np.asarray(variances, float)
        center = float(observed.sum()) / max(1, len(observed)) if self.center is None else self.center
        factors = np.linalg.cholesky(kernels[:, places[:, None], places] + np.diag(variances))
        # (k, m, m): the lower triangular factors are small, and used several times.
        inverse = np.linalg.inv(factors)
        whitened = inverse @ ((observed - center)[:, None] - curves[places])
        cross = inverse @ kernels[:, places]
        log_determinants = np.log(factors.diagonal(axis1=1, axis2=2)).sum(1)
        logs = np.log(self.weights) - 0.5 * np.einsum("kmh,kmh->kh", whitened, whitened) - log_determinants[:, None]
        highest = float(logs.max())
        shares = np.exp(logs - highest)
        total = float(shares.sum())
        shares /= total
        across = cross.transpose(0, 2, 1)
        means = curves + across @ whitened
        mean = np.einsum("knh,kh->n", means, shares)
        apart = (means - mean[:, None]) * np.sqrt(shares)[:, None, :]
        of_kernels = shares.sum(1)
        cov = (of_kernels[:, None, None] * (kernels - across @ cross) + apart @ apart.transpose(0, 2, 1)).sum(0)
        squares = self.amplitudes**2
        return Fit(
            mean + center,
            cov,
            highest + math.log(total / len(kernels)),
            float(of_kernels @ squares / squares.mean()),
            _left_out(inverse, whitened, logs, observed, variances) if leave_out else None,
        )


def _left_out(inverse: Floats, whitened: Floats, logs: Floats, observed: Floats, variances: Floats) -> LeftOut:
    """Predicts each value without itself (Rasmussen and Williams, section 5.4.2), with the weights that result."""
    precisions = np.einsum("kim,kim->km", inverse, inverse)[:, :, None]
    errors = (inverse.transpose(0, 2, 1) @ whitened) / precisions
    squares = errors * errors
    # The likelihood of all observations, over that of the one that is left out.
    others = logs[:, None, :] - 0.5 * np.log(precisions) + 0.5 * precisions * squares
    shares = np.exp(others - others.max(axis=(0, 2), keepdims=True))
    shares /= shares.sum(axis=(0, 2), keepdims=True)
    error = np.einsum("kmh,kmh->m", shares, errors)
    spread = np.einsum("kmh,kmh->m", shares, 1 / precisions + squares) - error**2
    return LeftOut(observed - error, np.maximum(spread - variances, 1e-6))
