"""A choice of the knowledge-gradient policy, without a server.

python -m benchmarks.choice [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from statistics import median

import numpy as np
from wattwise.rules import EndReason, GpuGroup, ResolvedJob, TrialStatus
from wattwise_server.domain import Measurement, Search, Trial, TrialOrigin
from wattwise_server.events import TrialDecided, TrialDispatched
from wattwise_server.policy.base import Choice
from wattwise_server.policy.history import observe
from wattwise_server.policy.registry import POLICIES
from wattwise_server.policy.stopping import judge

from benchmarks.figures import Samples, medians

SIZES = 20
"""Batch sizes of the job."""

_POLICY = POLICIES["knowledge_gradient"]
_SIZES = tuple(round(8 * 1.4**place) for place in range(SIZES))
_SPEC = ResolvedJob(
    "bench",
    _SIZES,
    _SIZES[SIZES // 2],
    GpuGroup(gpu_model="Benchmark GPU", count=1, max_power_watts_per_gpu=300.0),
    0.9,
    True,
)
_TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)
_RNG = np.random.default_rng(0)


def measure(launches: int = 200) -> Samples:
    """Seconds of a floor, of a choice and of all that the policy does for a launch, for each launch of a job.

    The floor is what NumPy takes to factorize and solve twenty systems of twenty equations.
    """
    samples: Samples = {"solve": [], "choice": [], "launch": []}
    matrices = np.eye(SIZES) + _RNG.random((20, SIZES, SIZES)) / SIZES
    factors = matrices @ matrices.transpose(0, 2, 1)
    for seconds, search in _launches(launches):
        started = time.perf_counter()
        np.linalg.solve(np.linalg.cholesky(factors), factors)
        solved = time.perf_counter()
        # Another text of the same state, so that nothing is remembered, as after a restart.
        _choose(replace(search, notes=f"{search.notes} "))
        samples["solve"].append(solved - started)
        samples["choice"].append(time.perf_counter() - solved)
        samples["launch"].append(seconds)
    return samples


def _launches(count: int) -> Iterator[tuple[float, Search]]:
    """Yields the seconds of the policy for each launch, and the state after it."""
    search = _POLICY.register(_SPEC, ())
    for number in range(1, count + 1):
        started = time.perf_counter()
        size = _choose(search).batch_size
        trial = Trial("bench", number, size, TrialOrigin.SEARCH, None, _TIME, str(number))
        search = observe(_POLICY, _SPEC, search, TrialDispatched(trial))
        verdict = judge(_SPEC, _POLICY.bound(_SPEC, search, size), _last(number, size))
        ended = trial._replace(
            status=TrialStatus.DECIDED,
            end_reason=verdict.end_reason or EndReason.MAX_EPOCHS,
            last=_last(number, size),
            cost=verdict.cost,
            converged=verdict.converged,
            target_reached=verdict.target_reached,
        )
        search = observe(_POLICY, _SPEC, search, TrialDecided(ended))
        yield time.perf_counter() - started, search


def _choose(search: Search) -> Choice:
    choice = _POLICY.next(_SPEC, search, search.num_trials + 1, _RNG)
    if not isinstance(choice, Choice):
        raise TypeError("no batch size is left")
    return choice


def _last(number: int, size: int) -> Measurement:
    """Returns the epoch that reaches the target."""
    epochs = round((10 + size / 50 + 300 / size) * (1 + 0.1 * (number % 3)))
    seconds = epochs * (10 + 200 / size)
    return Measurement(epochs, seconds, 150 * seconds, 0.95, _TIME)


def main() -> None:
    """Prints the medians, or where the time goes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    if not parser.parse_args().profile:
        print("\n".join(medians(measure())))
        return
    profile = cProfile.Profile()
    profile.runcall(lambda: median(seconds for seconds, _ in _launches(200)))
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
