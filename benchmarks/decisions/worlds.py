"""Synthetic worlds that only the table of decisions needs: runs that are unlucky now and then, and jobs that change.

As in `named_worlds`, a trial of batch size b costs E(b)·c(b), 200 runs of each are recorded, and there is one power
limit. Published figures rest on these worlds: their random streams must stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from wattwise_replay.named_worlds import Course, assembled
from wattwise_replay.workload import Change, RecordedRun, Workload

_SIZES = 8 * 2 ** np.arange(10)
_RUNS = 200
_CHANGE = 50
"""The recurrence from which on a world is another one: half of all."""
_SMALL = _SIZES < 200

_Factors = Callable[[np.random.Generator], np.ndarray]
"""What the mean epochs of a batch size are multiplied by in its runs; infinite where a run never reaches the target."""


def _unlucky(rate: float, factor: float, noise: float) -> _Factors:
    """Returns noise that has this factor in a share of all runs."""

    def factors(rng: np.random.Generator) -> np.ndarray:
        usual = np.exp(noise * rng.standard_normal(_RUNS))
        return usual * np.where(rng.random(_RUNS) < rate, factor, 1.0)

    return factors


_CALM = _unlucky(0.0, 1.0, 0.1)


def _student(rng: np.random.Generator) -> np.ndarray:
    return np.exp(0.2 * rng.standard_t(3, _RUNS))


def _world(
    name: str,
    epochs: np.ndarray,
    costs: np.ndarray,
    default: int,
    factors: _Factors,
    *,
    max_epochs: int = 400,
    seed: Sequence[int] = (41, 0),
) -> Workload:
    """Returns the world of mean epochs and costs of an epoch, by batch size."""
    rng = np.random.default_rng(seed)
    runs = [[_run(epoch) for epoch in mean * factors(rng)] for mean in epochs]
    return assembled(name, Course(_SIZES, default, epochs, costs, math.nan, max_epochs), runs)


def _run(epoch: float) -> RecordedRun:
    return RecordedRun(max(1, round(epoch)) if math.isfinite(epoch) else None)


_SHAPES: Mapping[str, tuple[np.ndarray, np.ndarray, int]] = {
    # The default, 16, costs several times the best, 256.
    "left": (6 * (1 + _SIZES / 400), 1 + 120 / _SIZES, 1),
    # The default is 256, the best lies between 64 and 128.
    "valley": (20 * (1 + _SIZES / 200), 1 + 40 / _SIZES, 5),
    # The default is 1024, the best near 64.
    "steep": (8 * (1 + _SIZES / 60) ** 1.3, 1 + 60 / _SIZES, 7),
}
"""Epochs, costs of an epoch, and the place of the default."""

_LUCK: Mapping[str, _Factors] = {
    **{f"{rate}-x3": _unlucky(rate / 100, 3.0, 0.12) for rate in (5, 10, 20)},
    **{f"{rate}-never": _unlucky(rate / 100, math.inf, 0.12) for rate in (5, 10, 20)},
    "t3": _student,
    "clean": _unlucky(0.0, 1.0, 0.12),
}
"""The share of unlucky runs, in percent, and how much longer they take; Student's noise; and noise alone."""


def _unlucky_world(shape: str, luck: str) -> Workload:
    name = f"{shape}-{luck}"
    epochs, costs, default = _SHAPES[shape]
    most = int(4 * max(3 * epochs.min(), epochs[default]))
    return _world(name, epochs, costs, default, _LUCK[luck], max_epochs=most, seed=(77, *name.encode()))


def _valley(
    *,
    noise_scale: float = 120.0,
    fewest: float = 20.0,
    price: float | np.ndarray = 1.0,
    default: int = 5,
    luck: _Factors = _CALM,
) -> Workload:
    """Epochs rise from the noise scale on, an epoch gets cheaper up to 40; the default is 256."""
    return _world("valley", fewest * (1 + _SIZES / noise_scale), price * (1 + 40 / _SIZES), default, luck)


def _diverging(*, diverges: bool) -> Workload:
    """Returns a world in which all batch sizes converge, or only those from 256 on."""
    epochs = 20 * (1 + _SIZES / 60)
    return _world("diverging", np.where(_SMALL & diverges, math.inf, epochs), 1 + 10 / _SIZES, 5, _CALM)


def _changing(before: Workload, *later: Workload, every: int = _CHANGE) -> Workload:
    changes = (Change(every * place, workload) for place, workload in enumerate(later, 1))
    return replace(before, changes=tuple(changes))


def _slow(noise_scales: Sequence[float]) -> Workload:
    first, *later = (_valley(noise_scale=each) for each in noise_scales)
    return _changing(first, *later, every=5)


_LEAST, _MOST = 60.0, 2000.0
_STEPS = [_LEAST * (_MOST / _LEAST) ** (step / 20) for step in range(21)]
_SOMETIMES = _unlucky(0.1, 3.0, 0.1)

_CHANGES: Mapping[str, Callable[[], Workload]] = {
    "small-begin-to-diverge": lambda: _changing(_diverging(diverges=False), _diverging(diverges=True)),
    "best-moves-up": lambda: _changing(_valley(noise_scale=_LEAST), _valley(noise_scale=_MOST)),
    "best-moves-down": lambda: _changing(_valley(noise_scale=_MOST), _valley(noise_scale=_LEAST)),
    "epochs-triple": lambda: _changing(_valley(), _valley(fewest=60.0)),
    "epochs-triple-best-default": lambda: _changing(_valley(default=3), _valley(default=3, fewest=60.0)),
    "slowly-up": lambda: _slow(_STEPS[:20]),
    "slowly-down": lambda: _slow(_STEPS[:0:-1]),
    "epochs-halve": lambda: _changing(_valley(), _valley(fewest=10.0)),
    "epoch-cost-doubles": lambda: _changing(_valley(), _valley(price=2.0)),
    "epoch-cost-of-small-doubles": lambda: _changing(_valley(), _valley(price=np.where(_SMALL, 2.0, 1.0))),
    "unlucky-best-moves-up": lambda: _changing(
        _valley(noise_scale=_LEAST, luck=_SOMETIMES), _valley(noise_scale=_MOST, luck=_SOMETIMES)
    ),
}

UNLUCKY: Sequence[str] = [f"{shape}-{luck}" for shape in _SHAPES for luck in _LUCK]
"""The names of worlds with unlucky runs, and of their counterparts without."""

CHANGING: Sequence[str] = list(_CHANGES)
"""The names of worlds that change after half of their recurrences, or slowly."""

WORLDS: Mapping[str, Callable[[], Workload]] = {
    **{f"{shape}-{luck}": partial(_unlucky_world, shape, luck) for shape in _SHAPES for luck in _LUCK},
    **_CHANGES,
}
