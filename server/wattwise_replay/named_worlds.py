"""Synthetic workloads by name: hard cases one by one, random ones, and trainers that crash.

All of them have one power limit and 100 recurrences. Over the batch size b, they state the mean epochs to the target
E(b) and the cost of an epoch c(b), in units of 1 kJ at η = 0.5; a trial costs E·c. A run's epochs are E·e^(s·Z), with
Z ~ N(0, 1) and s the noise, rounded; 200 runs are recorded per batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from wattwise.rules import EndReason

from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import BatchSize, Crash, PowerPoint, RecordedRun, Workload, validated

_RUNS = 200
_RECURRENCES = 100
_MAX_WATTS = 250.0
_UNIT_JOULES = 1000.0
_POWER_SHARE = 0.4
"""Average power over the highest limit, at every batch size: it says nothing about which batch size is the best."""

_DOUBLING = 8 * 2 ** np.arange(10)
_PLACE = np.arange(10)
_NEVER = math.inf


class Course(NamedTuple):
    """The course of the trials of a world.

    Attributes:
        sizes: Batch sizes, ascending.
        default: Place of the default among them.
        epochs: Mean epochs to the target, by batch size; infinite where it is never reached.
        epoch_costs: Cost of an epoch, by batch size.
        noise: Standard deviation of the logarithm of a run's epochs.
        max_epochs: Epochs after which a trial is over.
        missing: Share of runs that never reach the target.
    """

    sizes: np.ndarray
    default: int
    epochs: np.ndarray
    epoch_costs: np.ndarray
    noise: float
    max_epochs: int
    missing: float = 0.0


_LARGE_OPTIMUM = Course(_DOUBLING, 3, 4.4 * (1 + 0.05 * _PLACE), 1 + 40 / _DOUBLING, 0.2, 30)
_VALLEY = Course(_DOUBLING, 5, 20 * (1 + _DOUBLING / 200), 1 + 40 / _DOUBLING, 0.1, 200)
"""The optimum lies between 64 and 128; the default, 256, costs a quarter more."""


def _flat_noisy(rng: np.random.Generator) -> Course:
    return Course(_DOUBLING, 5, 20 * np.exp(0.03 * rng.standard_normal(10)), np.ones(10), 0.4, 100)


def _large_optimum(_: np.random.Generator) -> Course:
    return _LARGE_OPTIMUM


def _small_optimum(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 6, 20 * (1 + _DOUBLING / 300), 1 + 0.02 * _PLACE, 0.1, 100)


def _two_humps(_: np.random.Generator) -> Course:
    epochs = 20 * np.array([1.8, 1.5, 1.3, 1.6, 1.7, 1.6, 1.2, 1.0, 1.2, 1.7])
    return Course(_DOUBLING, 2, epochs, np.ones(10), 0.08, 60)


def _small_diverge(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 5, np.array([_NEVER] * 4 + [24, 20, 22, 26, 33, 45]), 1 + 20 / _DOUBLING, 0.1, 60)


def _edge_of_divergence(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 5, np.array([_NEVER] * 4 + [16, 20, 26, 36, 50, 70]), 1 + 0.01 * _PLACE, 0.1, 100)


def _one_converges(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 5, np.array([_NEVER] * 7 + [20] + [_NEVER] * 2), np.ones(10), 0.1, 60)


def _all_fail(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 5, 20 * (1 + _DOUBLING / 500), 1 + 60 / _DOUBLING, 0.1, 60, missing=0.2)


def _steep_noisy(_: np.random.Generator) -> Course:
    return Course(_DOUBLING, 6, 20 * (1 + _DOUBLING / 200), 1 + 40 / _DOUBLING, 0.4, 200)


CASES: dict[str, Callable[[np.random.Generator], Course]] = {
    "flat-noisy": _flat_noisy,
    "large-optimum": _large_optimum,
    "small-optimum": _small_optimum,
    "two-humps": _two_humps,
    "small-diverge": _small_diverge,
    "edge-of-divergence": _edge_of_divergence,
    "one-converges": _one_converges,
    "all-fail": _all_fail,
    "steep-noisy": _steep_noisy,
}


def _case(name: str) -> Workload:
    """One of the cases; all draw from one generator in turn."""
    rng = np.random.default_rng(5)
    for each, course in CASES.items():
        made = _workload(each, course(rng), rng)
        if each == name:
            return made
    raise AssertionError(f"{name} is none of the cases")


def _drift() -> Workload:
    """The costs are mirrored over the batch sizes after half of the recurrences."""
    sizes = _DOUBLING[:8]
    course = Course(sizes, 4, 20 * (1 + sizes / 60), 1 + 2 / sizes, 0.1, 900)
    return replace(_workload("drift", course, np.random.default_rng(9)), usual_recurrences=120).drifting(60)


def _default_crashes() -> Workload:
    """Half of the default's trainers crash before their last epoch ends."""

    def crash(place: int, run: RecordedRun, rng: np.random.Generator) -> RecordedRun:
        return _crashing(run, 0.5, 1.0, rng) if place == 5 else run

    return _with_crashes("default-crashes", _VALLEY, crash)


def _all_crash() -> Workload:
    """A fifth of all trainers crash, somewhere in training."""
    return _with_crashes("all-crash", _VALLEY, lambda _, run, rng: _crashing(run, 0.2, rng.random(), rng))


def _memory_limit() -> Workload:
    """The larger the better, but the four largest batch sizes run out of memory at once."""

    def crash(place: int, run: RecordedRun, _: np.random.Generator) -> RecordedRun:
        return _out_of_memory(run) if place >= 6 else run

    return _with_crashes("memory-limit", _LARGE_OPTIMUM, crash)


def _default_out_of_memory() -> Workload:
    """The default and all larger batch sizes run out of memory at once."""

    def crash(place: int, run: RecordedRun, _: np.random.Generator) -> RecordedRun:
        return _out_of_memory(run) if place >= 5 else run

    return _with_crashes("default-out-of-memory", _VALLEY, crash)


_Factors: TypeAlias = Callable[[int, np.random.Generator], np.ndarray]
"""What the mean epochs of a batch size, by its place, are multiplied by in its runs; shape (200,)."""


def _spread(name: str, factors: _Factors, default: int = 5) -> Workload:
    """The valley with runs that differ in another way, and enough epochs for the longest."""
    rng = np.random.default_rng([23, *name.encode()])
    course = _VALLEY._replace(default=default, max_epochs=1000)
    drawn = [np.maximum(1, np.round(mean * factors(place, rng))) for place, mean in enumerate(course.epochs)]
    return assembled(name, course, [[RecordedRun(int(epoch)) for epoch in each] for each in drawn])


def _noise(rng: np.random.Generator, deviation: float) -> np.ndarray:
    return np.exp(deviation * rng.standard_normal(_RUNS))


def _now_and_then(rng: np.random.Generator, factor: float) -> np.ndarray:
    """A little noise, and this factor in a fifth of all runs."""
    return _noise(rng, 0.1) * np.where(rng.random(_RUNS) < 0.2, factor, 1.0)


def _bimodal() -> Workload:
    """A fifth of all runs takes three times as long."""
    return _spread("bimodal", lambda _, rng: _now_and_then(rng, 3.0))


def _lucky() -> Workload:
    """A fifth of all runs takes a quarter of the time."""
    return _spread("lucky", lambda _, rng: _now_and_then(rng, 0.25))


def _lucky_default() -> Workload:
    """A fifth of the default's runs takes a quarter of the time; no run of another batch size does."""
    return _spread("lucky-default", lambda place, rng: _now_and_then(rng, 0.25) if place == 5 else _noise(rng, 0.1))


def _heavy_tailed() -> Workload:
    """Pareto distributed epochs: half of all runs take less than 0.8 times the mean, one in a hundred eleven times."""
    return _spread("heavy-tailed", lambda _, rng: np.minimum(0.5 * (1 + rng.pareto(1.5, _RUNS)), 15.0))


def _uneven_noise() -> Workload:
    """The default's runs differ ten times as much as those of other batch sizes."""
    return _spread("uneven-noise", lambda place, rng: _noise(rng, 0.5 if place == 5 else 0.05))


def _best_default() -> Workload:
    """The default is the best."""
    return _spread("best-default", lambda _, rng: _noise(rng, 0.1), default=3)


def _best_default_noisy() -> Workload:
    """The same with runs that differ much."""
    return _spread("best-default-noisy", lambda _, rng: _noise(rng, 0.4), default=3)


OTHERS = {
    "drift": _drift,
    "bimodal": _bimodal,
    "lucky": _lucky,
    "lucky-default": _lucky_default,
    "heavy-tailed": _heavy_tailed,
    "uneven-noise": _uneven_noise,
    "best-default": _best_default,
    "best-default-noisy": _best_default_noisy,
    "default-crashes": _default_crashes,
    "all-crash": _all_crash,
    "memory-limit": _memory_limit,
    "default-out-of-memory": _default_out_of_memory,
}


def _random_course(rng: np.random.Generator) -> Course:
    """Epochs and epoch costs of random shape; the default costs at most four times the best."""
    count = int(rng.integers(4, 15))
    octaves = 3 + rng.choice([1.0, 1.0, 0.58]) * np.arange(count)
    sizes = np.round(2**octaves).astype(int)
    saturation, noise_scale = 2 ** rng.uniform(octaves[0] - 2, octaves[-1] + 2, 2)
    epochs = 1 + sizes / noise_scale
    if rng.random() < 0.3:
        epochs = epochs + 2 ** rng.uniform(octaves[0] - 2, octaves[count // 2]) / sizes
    if rng.random() < 0.3:
        epochs = epochs * (1 + (sizes / (4 * noise_scale)) ** 2)
    costs = 1 + saturation / sizes
    if rng.random() < 0.3:
        costs = costs + sizes / 2 ** rng.uniform(octaves[count // 2], octaves[-1] + 3)
    fewest = math.exp(rng.uniform(math.log(3), math.log(40)))
    epochs = fewest * epochs / epochs.min() * np.exp(0.05 * rng.standard_normal(count))
    costs = costs * np.exp(0.03 * rng.standard_normal(count))
    ratios = epochs * costs / (epochs * costs).min()
    best = int(np.argmin(ratios))
    default = int(rng.integers(0, count))
    if ratios[default] > 4:
        # Nobody would keep a default as bad as that.
        default = int(np.argmin(abs(np.log(ratios) - math.log(3))))
    max_epochs = int(max(epochs[default] * 1.7, fewest * 3, 6))
    epochs = np.where(epochs > max_epochs * 1.2, _NEVER, epochs)
    if rng.random() < 0.25:
        end = int(rng.integers(0, max(1, min(default, best) + 1)))
        diverging = slice(end) if rng.random() < 0.7 else slice(max(default, best) + 1, count)
        epochs[diverging] = _NEVER
    return Course(sizes, default, epochs, costs, float(rng.choice([0.03, 0.1, 0.1, 0.25])), max_epochs)


def _random(number: int) -> Workload:
    rng = np.random.default_rng([20, number])
    return _workload(f"random-{number}", _random_course(rng), rng)


def _far(number: int) -> Workload:
    """The default is 3 to 5 octaves from the best; few epochs, with a long right tail."""
    rng = np.random.default_rng([21, number])
    count = 12
    sizes = 8 * 2 ** np.arange(count)
    fewest, way = int(rng.integers(2, 8)), int(rng.integers(3, 6))
    if number % 2 == 0:
        default = int(rng.integers(1, count - way))
        costs = 1 + sizes[default + way] / 2 / sizes
        epochs = fewest * (1 + sizes / sizes[-1] / 8)
    else:
        default = int(rng.integers(way, count))
        costs = 1 + 0.01 * np.arange(count) + 1 / sizes
        epochs = fewest * (1 + sizes / (sizes[default - way] * 2))
    costs = costs * np.exp(0.04 * rng.standard_normal(count))
    epochs = epochs * np.exp(0.06 * rng.standard_normal(count))
    course = Course(sizes, default, epochs, costs, math.nan, int(epochs[default] * 2 + 4))
    drawn = [np.round(mean * (1 + 0.3 * rng.exponential(0.7, _RUNS) ** 1.3)).clip(1) for mean in epochs]
    return assembled(f"far-{number}", course, [[RecordedRun(int(epoch)) for epoch in each] for each in drawn])


_FAMILIES = {"random": _random, "far": _far}

NAMES: Sequence[str] = (*CASES, *OTHERS, *(f"{family}-K" for family in _FAMILIES))
"""The names; K is a number from 0."""


def named_world(name: str) -> Workload:
    """The workload of a name.

    Raises:
        ReplayError: there is none of that name.
    """
    if name in CASES:
        return _case(name)
    if name in OTHERS:
        return OTHERS[name]()
    family, _, number = name.rpartition("-")
    if family in _FAMILIES and number.isdecimal():
        return _FAMILIES[family](int(number))
    raise ReplayError(f"no synthetic workload is named {name!r}; use a seed from 0 or one of {', '.join(NAMES)}")


def _workload(name: str, course: Course, rng: np.random.Generator) -> Workload:
    return assembled(name, course, [_runs(course, mean, rng) for mean in course.epochs])


def _runs(course: Course, mean: float, rng: np.random.Generator) -> Sequence[RecordedRun]:
    if math.isinf(mean):
        epochs = np.full(_RUNS, _NEVER)
    else:
        epochs = np.maximum(1, np.round(mean * np.exp(course.noise * rng.standard_normal(_RUNS))))
    if course.missing:
        epochs[rng.random(_RUNS) < course.missing] = _NEVER
    return [RecordedRun(None if math.isinf(epoch) else int(epoch)) for epoch in epochs]


def assembled(name: str, course: Course, runs: Sequence[Sequence[RecordedRun]]) -> Workload:
    """The world of a course, with the recorded runs of each batch size."""
    sizes = [int(size) for size in course.sizes]
    batch_sizes = (
        BatchSize(size, tuple(each), (_point(float(price)),))
        for size, each, price in zip(sizes, runs, course.epoch_costs, strict=True)
    )
    return validated(
        Workload(
            name,
            "simulated",
            tuple(batch_sizes),
            sizes[course.default],
            0.9,
            True,
            course.max_epochs,
            _MAX_WATTS,
            _RECURRENCES,
        )
    )


def _point(price: float) -> PowerPoint:
    """The epoch that costs `price` at η = 0.5."""
    cost_per_second = _MAX_WATTS * (0.5 * _POWER_SHARE + 0.5)
    return PowerPoint(_MAX_WATTS, price * _UNIT_JOULES / cost_per_second, _MAX_WATTS * _POWER_SHARE)


def _with_crashes(
    name: str, course: Course, crash: Callable[[int, RecordedRun, np.random.Generator], RecordedRun]
) -> Workload:
    """The world of a course, with the crashes of each batch size's runs by its place."""
    rng = np.random.default_rng([22, *name.encode()])
    calm = _workload(name, course, rng)
    batch_sizes = (
        replace(each, runs=tuple(crash(place, run, rng) for run in each.runs))
        for place, each in enumerate(calm.batch_sizes)
    )
    return replace(calm, batch_sizes=tuple(batch_sizes))


def _crashing(run: RecordedRun, probability: float, place: float, rng: np.random.Generator) -> RecordedRun:
    """The run, or with this probability one that crashes at a place between its beginning, 0, and its end, 1."""
    if rng.random() >= probability or run.target_epoch is None:
        return run
    return replace(run, crash=Crash(int(place * (run.target_epoch - 1)), EndReason.ERROR))


def _out_of_memory(run: RecordedRun) -> RecordedRun:
    return replace(run, crash=Crash(0, EndReason.OUT_OF_MEMORY))
