"""Facts about every NVIDIA GPU, tested on a stub of NVML, and on a real GPU by `make test-gpu`.

Each case measures and asserts, on GPU 0; most take a load to put on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor, gpu_group
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS

Load: TypeAlias = Callable[[float], object]
"""Keeps the GPU busy for a number of seconds."""


class Comparison(NamedTuple):
    """The energy of one load by the counter and by polled power, in joules, and its length."""

    counted: float
    polled: float
    seconds: float


def case_units(load: Load) -> None:
    """The mean power is plausible for a GPU: a wrong unit would be off by a factor of 1000."""
    monitor = NvmlMonitor([0])
    limit = gpu_group(monitor).max_power_watts
    assert 15 < limit < 3000
    monitor.begin_window("epoch")
    load(1.0)
    window = monitor.end_window("epoch")
    assert 1.0 <= window.time < 60
    assert 0.01 * limit < window.total_energy / window.time < 1.5 * limit


def case_comparison(load: Load, seconds: float, tolerance: float) -> Comparison:
    """Counter and polled power agree on the same load within the tolerance."""
    counter, power = NvmlMonitor([0]), NvmlMonitor([0], use_counter=False)
    if not counter.counts_energy:
        pytest.skip("this GPU has no energy counter to compare its power with")
    load(min(2.0, seconds / 2))  # power readings are averages
    power.begin_window("epoch")
    counter.begin_window("epoch")
    load(seconds)
    counted, polled = counter.end_window("epoch"), power.end_window("epoch")
    result = Comparison(counted.total_energy, polled.total_energy, counted.time)
    assert result.polled == pytest.approx(result.counted, rel=tolerance)
    return result


def case_nested_windows(load: Load) -> None:
    """Windows within a window add up to it, up to the counter's steps."""
    monitor = NvmlMonitor([0])
    monitor.begin_window("whole")
    parts = []
    for _ in range(3):
        monitor.begin_window("part")
        load(0.4)
        parts.append(monitor.end_window("part"))
    whole = monitor.end_window("whole")
    assert sum(part.time for part in parts) <= whole.time
    watts = whole.total_energy / whole.time
    # Little energy is used between two windows, and each end may miss a step.
    steps = (len(parts) + 1) * COUNTER_SECONDS
    assert sum(part.total_energy for part in parts) == pytest.approx(watts * whole.time, abs=watts * steps)


def case_short_windows(load: Load) -> None:
    """Windows that are too short for the counter add up to what it counts: no step is missed or counted twice."""
    monitor = NvmlMonitor([0])
    load(1.0)
    monitor.begin_window("whole")
    steps = []
    for _ in range(40):
        monitor.begin_window("step")
        load(0.02)
        steps.append(monitor.end_window("step"))
    whole = monitor.end_window("whole")
    watts = sum(step.total_energy for step in steps) / sum(step.time for step in steps)
    assert watts == pytest.approx(whole.total_energy / whole.time, rel=0.4)


def case_names() -> None:
    """A name with an open window cannot be begun, and one without cannot be ended."""
    monitor = NvmlMonitor([0])
    with pytest.raises(MonitorError, match="'epoch' is not open"):
        monitor.end_window("epoch")
    monitor.begin_window("epoch")
    with pytest.raises(MonitorError, match="'epoch' is already open"):
        monitor.begin_window("epoch")
    monitor.end_window("epoch")


def case_visible_by_uuid() -> None:
    """CUDA_VISIBLE_DEVICES with a GPU's UUID shows only that GPU."""
    uuid = repr(NvmlMonitor([0])).rpartition("(")[2].rstrip(")")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    monitor = NvmlMonitor()
    assert monitor.gpu_indices == [0]
    assert uuid in repr(monitor)
